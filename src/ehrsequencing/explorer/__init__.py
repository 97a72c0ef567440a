"""The explorer: one page on which people look at a cohort, at one patient, and at what the risk would be without X."""

from ehrsequencing.explorer.collect import collect as collect
from ehrsequencing.explorer.page import page as page, write_page as write_page
from ehrsequencing.explorer.patients import ExplorerSettings as ExplorerSettings
