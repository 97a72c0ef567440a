"""A FHIR R4 bundle of one patient → MEDS rows, by the mapping of `ehrseq import fhir` (`readers/fhir/`)."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ehrsequencing.readers.fhir.elements import kind_of, resources_of, text
from ehrsequencing.readers.fhir.mapping import NAMED, READ
from ehrsequencing.readers.fhir.memory import read_bundle
from ehrsequencing.serve.problems import Problem


@dataclass(frozen=True)
class PatientRecord:
    """What was read of a bundle.

    Attributes:
        reference: Of the patient, as in `Patient/12`.
        rows: With the columns of MEDS but `subject_id`.
        left_out: How many resources made no row, by type; of types that are not read under `others`.
    """

    reference: str
    rows: pa.Table
    left_out: Counter[str]


def read_patient(bundle: Any) -> PatientRecord:
    """Read the resources of one patient.

    Raises:
        Problem: It is no Bundle, or it does not hold exactly one patient with an id.
    """
    if kind_of(bundle) != "Bundle":
        raise Problem(
            422,
            "is no FHIR Bundle",
            where="body",
            fix="send a Bundle of one patient and its resources",
        )
    try:
        patients = [one for one in resources_of(bundle) if kind_of(one) == "Patient"]
        rows, report = read_bundle(bundle)
    except RecursionError:
        raise Problem(422, "is nested too deeply", where="Bundle.entry") from None
    names = {text(patient, "id") for patient in patients}
    if len(names) != 1 or None in names:
        what = (
            "holds no Patient with an id"
            if not names or None in names
            else "holds more than one Patient"
        )
        raise Problem(422, what, where="Bundle.entry", fix="send one patient with its resources")
    left_out = Counter[str]()
    for kind, counts in report.row_counts.tables.items():
        left_out[kind if kind in READ else "others"] += (
            counts.rows_in - counts.kept if kind not in NAMED else 0
        )
    columns = ["time", "code", "numeric_value", "encounter_id"]
    return PatientRecord(f"Patient/{names.pop()}", rows.select(columns), +left_out)
