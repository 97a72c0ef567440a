"""A FHIR bundle in memory → MEDS rows in memory, by the mapping and the cleaning rules of `ehrseq import fhir`."""

from typing import Any

import pyarrow as pa

from ehrsequencing.readers.cleaning_rules import clean_rows, usable_rows
from ehrsequencing.readers.code_book import CodeBook
from ehrsequencing.readers.fhir.blocks import Blocks, finder, named_in
from ehrsequencing.readers.fhir.elements import resources_of
from ehrsequencing.readers.import_report import ImportReport
from ehrsequencing.readers.rows import rows_schema


def read_bundle(bundle: Any) -> tuple[pa.Table, ImportReport]:
    """The MEDS rows of a bundle, of a list of resources, or of a single resource.

    Args:
        bundle: JSON as Python reads it. It must hold the Patient, since events of an unknown person are dropped.

    Returns:
        Rows with subject_id, time, code, numeric_value, text_value and encounter_id, sorted as MEDS wants them, and the
        report of what was dropped and why. The subject id is that of an import: a hash of the patient's id.
    """
    report, book = ImportReport("fhir"), CodeBook()
    resources = list(resources_of(bundle))
    blocks = Blocks(report, book, finder(dict(named for r in resources for named in named_in(r))))
    blocks.begin(None)
    schema = rows_schema(pa.string())
    rows, usable = usable_rows(blocks.rows(resources), schema, report)
    blocks.finish()
    return clean_rows(rows.filter(pa.array(usable)), report.counts, report.row_counts), report
