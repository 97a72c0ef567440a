"""FHIR R4 → MEDS, from bulk NDJSON and from bundles; `mapping.py` says what becomes of each resource."""

from ehrsequencing.readers.fhir.reader import import_fhir, read_bundle

__all__ = ["import_fhir", "read_bundle"]
