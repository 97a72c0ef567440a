"""The explorer: one page on which people look at a cohort, at one patient, and at what the risk would be without X."""

from ehrsequencing.explorer.codes import collect
from ehrsequencing.explorer.page import page, write_page
from ehrsequencing.explorer.patients import ExplorerSettings

__all__ = ["ExplorerSettings", "collect", "page", "write_page"]
