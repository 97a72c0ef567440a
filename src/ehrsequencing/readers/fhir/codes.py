"""Codings of FHIR → codes of MEDS, VOCABULARY//CODE, under the vocabulary names that OMOP uses."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ehrsequencing.readers.fhir.elements import text, walk

# The code systems whose names differ from the last part of their URL; `systems()` adds their object identifiers.
_SYSTEMS = {
    "http://snomed.info/sct": "SNOMED",
    "http://loinc.org": "LOINC",
    "http://www.nlm.nih.gov/research/umls/rxnorm": "RxNorm",
    "http://hl7.org/fhir/sid/cvx": "CVX",
    "http://hl7.org/fhir/sid/ndc": "NDC",
    "http://hl7.org/fhir/sid/icd-10": "ICD10",
    "http://hl7.org/fhir/sid/icd-10-cm": "ICD10CM",
    "http://hl7.org/fhir/sid/icd-9-cm": "ICD9CM",
    "http://www.cms.gov/medicare/coding/icd10": "ICD10PCS",
    "http://fhir.de/codesystem/bfarm/icd-10-gm": "ICD10GM",
    "http://fhir.de/codesystem/dimdi/icd-10-gm": "ICD10GM",
    "http://fhir.de/codesystem/bfarm/ops": "OPS",
    "http://fhir.de/codesystem/dimdi/ops": "OPS",
    "http://www.ama-assn.org/go/cpt": "CPT4",
    "http://www.whocc.no/atc": "ATC",
    "http://dicom.nema.org/resources/ontology/dcm": "DICOM",
    "urn:oid:2.16.840.1.113883.6.96": "SNOMED",
    "urn:oid:2.16.840.1.113883.6.1": "LOINC",
    "urn:oid:2.16.840.1.113883.6.88": "RxNorm",
    "urn:oid:2.16.840.1.113883.12.292": "CVX",
    "urn:oid:2.16.840.1.113883.6.69": "NDC",
    "urn:oid:2.16.840.1.113883.6.3": "ICD10",
    "urn:oid:2.16.840.1.113883.6.90": "ICD10CM",
    "urn:oid:2.16.840.1.113883.6.103": "ICD9CM",
    "urn:oid:2.16.840.1.113883.6.4": "ICD10PCS",
    "urn:oid:2.16.840.1.113883.6.12": "CPT4",
    "urn:oid:2.16.840.1.113883.6.73": "ATC",
}


class Coded(NamedTuple):
    """A code and what it means."""

    code: str
    description: str | None = None


Find = Callable[[str], tuple[Coded, ...]]  # a reference to a Medication or Device → its codes


def vocabulary(system: str | None) -> str:
    """The vocabulary's name of a code system: from the table, else the last part of its URL.

    >>> vocabulary("http://loinc.org"), vocabulary("http://hospital.example/CodeSystem/labs"), vocabulary(None)
    ('LOINC', 'labs', 'FHIR')
    """
    if system is None:
        return "FHIR"
    known = _SYSTEMS.get(system.lower().rstrip("/"))
    return known or system.rstrip("/").rpartition("/")[2].removeprefix("urn:oid:").removeprefix(
        "urn:"
    )


def codings(concept: Any) -> tuple[Coded, ...]:
    """The codes of a CodeableConcept or a Coding: those of known vocabularies, else all, each once.

    Local codings beside a standard one say the same in other words, and would only double the row.
    """
    found: dict[str, Coded] = {}
    known: set[str] = set()
    for coding in [*walk(concept, "coding"), *([concept] if text(concept, "code") else [])]:
        code, system = text(coding, "code"), text(coding, "system")
        if code is None:
            continue
        coded = Coded(
            f"{vocabulary(system)}//{code}", text(coding, "display") or text(concept, "text")
        )
        found.setdefault(coded.code, coded)
        if system is not None and system.lower().rstrip("/") in _SYSTEMS:
            known.add(coded.code)
    return tuple(coded for coded in found.values() if not known or coded.code in known)


def coded_as(resource: Any, paths: Iterable[str], find: Find, *, uncoded: str) -> list[Coded]:
    """The codes of all concepts at these paths, each once; a concept may also be a reference.

    A concept with a text and no coding becomes `uncoded`: the text may hold anything, also a name.
    """
    found: dict[str, Coded] = {}
    for concept in (concept for path in paths for concept in walk(resource, path)):
        if not isinstance(concept, dict):
            continue
        reference = text(concept, "reference")
        codes = codings(concept) if reference is None else find(reference)
        if not codes and (text(concept, "text") or text(concept, "display")):
            codes = (Coded(uncoded),)
        for coded in codes:
            found.setdefault(coded.code, coded)
    return list(found.values())
