"""OMOP's Common Data Model 5.3 and 5.4 → MEDS, from files or from a live database."""

from ehrsequencing.readers.omop.reader import import_omop

__all__ = ["import_omop"]
