"""The explorer: one page on which people look at a cohort, at one patient, and at what the risk would be without X."""

from ehrsequencing.explorer.explore import explore as explore
from ehrsequencing.explorer.page import page as page
from ehrsequencing.explorer.settings import ExplorerSettings as ExplorerSettings
