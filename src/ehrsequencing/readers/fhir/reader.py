"""`ehrseq import fhir`: every resource of a FHIR export, file by file, to the MEDS writer."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from ehrsequencing.readers.code_book import CodeBook
from ehrsequencing.readers.fhir.blocks import UNTYPED, Blocks, finder, named_in
from ehrsequencing.readers.fhir.codes import Coded
from ehrsequencing.readers.fhir.elements import kind_of, text
from ehrsequencing.readers.fhir.source import BLOCK, FhirFile, FhirSource, Line, open_fhir
from ehrsequencing.readers.registry import Import, reader
from ehrsequencing.readers.subject_ids import SubjectNames


@reader(
    "fhir",
    help="FHIR R4: bulk export or bundles.",
    source="Folder of .ndjson and .json files, plain or gz, or one such file",
)
def import_fhir(source: str, job: Import) -> None:
    """Read every resource whose type has a mapping, and count the others; see `Reader` and `mapping.py`."""
    with open_fhir(source) as found, job.writer(Path(source), encounter=pa.string()) as writer:
        book, names = CodeBook(), SubjectNames()
        writer.code_facts = lambda seen: book.facts
        blocks = Blocks(job.report, book, finder(_named(found)))
        for number in job.files(len(found.files)):
            file = found.files[number]
            blocks.begin(file.public_name)
            malformed = 0
            for block in found.blocks(file):
                malformed += sum(item == Line(None) for item in block)
                for start in range(0, len(block), BLOCK):
                    part = block[start : start + BLOCK]
                    _count_unread(part, blocks)
                    resources = [item for item in part if not isinstance(item, Line)]
                    names.add(pa.chunked_array([_patients(resources)]))
                    writer.add(blocks.rows(resources))
            if malformed:
                _lose_lines(job, file, malformed)
        blocks.finish()
        names.write(writer.folder)


def _named(source: FhirSource) -> dict[str, tuple[Coded, ...]]:
    """The codes of all Medications and Devices that other resources may refer to; equal codes exist once."""
    once = dict[tuple[Coded, ...], tuple[Coded, ...]]()
    return {
        name: once.setdefault(codes, codes)
        for file in source.files
        for block in source.named_blocks(file)
        for resource in block
        if not isinstance(resource, Line)
        for name, codes in named_in(resource)
    }


def _patients(resources: list[Any]) -> pa.Array:
    return pa.array([text(r, "id") for r in resources if kind_of(r) == "Patient"], pa.string())


def _count_unread(block: list[Any], blocks: Blocks) -> None:
    """Count the resources of types without a mapping."""
    for kind, rows in Counter(item.kind for item in block if isinstance(item, Line)).items():
        if kind is not None:
            blocks.drop("not_read", [blocks.take(kind) for _ in range(rows)])


def _lose_lines(job: Import, file: FhirFile, rows: int) -> None:
    """Count lines that are no JSON under the table of their own."""
    table = job.report.row_counts.table(UNTYPED)
    table.essential = False
    job.report.lose_lines(table, file.path.name, rows, None)
