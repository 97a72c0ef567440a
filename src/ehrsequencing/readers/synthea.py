"""Synthea's CSV export → MEDS.

Reads exports of several versions: `Id` or `ID`, `START` or `DATE`, plain or gz, with or without most tables.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.config.importing import MISSING
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.cells import (
    NO_NUMBER,
    NO_TEXT,
    Block,
    parse_numbers,
    refuse_scientific,
    whole_text,
)
from ehrsequencing.readers.registry import Import, reader
from ehrsequencing.readers.rows import (
    END_SUFFIX,
    TERMS,
    CodeBook,
    Role,
    joined,
    make_rows,
    subject_ids,
    write_subject_names,
)
from ehrsequencing.readers.table_files import one_file_each, open_table
from ehrsequencing.records.events import BIRTH, DEATH

_TERMS = TERMS["synthea"]
TEXT_VALUE_LENGTH = 64  # a text value up to this length becomes part of the code
EVENT_TABLES: dict[str, str] = _TERMS["tables"]  # and the vocabulary of their codes
_FIX = "name the folder of Synthea's CSV files, plain or gz"


@reader(
    "synthea", help="Synthea's CSV export.", source="Folder of Synthea's CSV files, plain or gz"
)
def import_synthea(source: str, job: Import) -> None:
    """Read `patients.csv`, `encounters.csv` and the other tables, where they are there; see `Reader`."""
    if not Path(source).is_dir():
        raise EhrseqError("is not a folder", where=source, fix=_FIX)
    tables, found = ("patients", *EVENT_TABLES), list[tuple[str, Path]]()  # patients first
    for path in sorted(Path(source).glob("*.[cC]*")):
        name = path.name.lower().removesuffix(".gz").removesuffix(".csv")
        found += [(name, path)] if name in tables else []
    files = one_file_each(found)
    for name in ("patients", "encounters"):
        if name not in files:
            raise EhrseqError(f"holds no {name}.csv", where=source, fix=_FIX)
    job.report.missing += [name for name in EVENT_TABLES if name not in files]
    codes, names = CodeBook(), list[pa.Array]()
    with job.writer(Path(source), encounter=pa.string()) as writer:
        writer.code_facts = lambda seen: codes.facts
        for counts in job.tables([name for name in tables if name in files]):
            table = open_table(files[counts.name], missing=MISSING)
            if counts.name == "patients":
                person, start = "ID", ""
                table.check(["ID"])
                if not table.has("BIRTHDATE"):
                    job.report.cautions.append(
                        "patients has no column BIRTHDATE: every age is unknown"
                    )
            else:
                code = "MODALITY_CODE" if counts.name == "imaging_studies" else "CODE"
                table.check(["PATIENT"], ["START", "DATE"], [code])
                person, start = "PATIENT", "START" if table.has("START") else "DATE"
                counts.columns |= {"no_time": start, "no_code": code}
            counts.columns |= {"no_person": person, "unknown_person": person}
            counts.required |= {person, start}
            dates = job.survey([table], counts, _TERMS["dates"])
            for block in job.blocks([table], counts, _TERMS["columns"], dates):
                if counts.name == "patients":
                    refuse_scientific(block, "ID")
                    names.append(pc.unique(whole_text(block.name("ID"))))
                    writer.add(_patients(block))
                else:
                    writer.add(_events(counts.name, block, codes, job))
        write_subject_names(names, writer.folder)


def _patients(block: Block) -> pa.Table:
    """Persons, births, deaths, and what never changes (so not the marital status)."""
    base = {"subject_id": subject_ids(whole_text(block.name("ID"))), "source": block.source}
    died = pc.is_valid(block.text("DEATHDATE"))
    parts = [
        make_rows(Role.PERSON, base, BIRTH, time=block.times("BIRTHDATE")),
        make_rows(Role.DEATH, base, DEATH, died, time=block.times("DEATHDATE")),
    ]
    for column in _TERMS["static"]:
        code = joined(pa.scalar(column), block.text(column))
        parts.append(make_rows(Role.STATIC, base, code, pc.is_valid(code)))
    return pa.concat_tables(parts, promote_options="default")


def _events(name: str, block: Block, codes: CodeBook, job: Import) -> pa.Table:
    """The rows of a block of any table except patients."""
    base = {"subject_id": subject_ids(whole_text(block.name("PATIENT"))), "source": block.source}
    base["encounter_id"] = whole_text(block.name("ID" if name == "encounters" else "ENCOUNTER"))
    time = pc.coalesce(block.times("START"), block.times("DATE"))
    description = block.text("DESCRIPTION")
    if name == "imaging_studies":
        code = joined(pa.scalar("DICOM"), block.text("MODALITY_CODE"))
        description = block.text("MODALITY_DESCRIPTION")
    else:
        # the vocabulary that SYSTEM names ("SNOMED-CT", "http://snomed.info/sct" …), else the table's
        lower, vocabulary = pc.utf8_lower(block.text("SYSTEM")), pa.scalar(EVENT_TABLES[name])
        for part, system in _TERMS["systems"].items():
            is_named = pc.fill_null(pc.match_substring(lower, part), False)
            vocabulary = pc.if_else(is_named, system, vocabulary)
        code = joined(vocabulary, block.text("CODE"))
    codes.add(code, description)
    if name == "observations":
        # CODE//UNIT for a number with a unit, CODE//TEXT for a short text
        value = block.text("VALUE")
        is_text = pc.fill_null(pc.equal(pc.utf8_lower(block.text("TYPE")), "text"), False)
        number = pc.if_else(is_text, NO_NUMBER, parse_numbers(value))
        text = pc.if_else(number.is_valid(), NO_TEXT, value)
        short = pc.fill_null(pc.less_equal(pc.utf8_length(text), TEXT_VALUE_LENGTH), False)
        words = pc.if_else(short, text, NO_TEXT)
        suffix = pc.if_else(number.is_valid(), block.name("UNITS"), words)
        valued = pc.coalesce(joined(code, suffix), code)
        codes.add(valued, description, pc.if_else(pc.equal(valued, code), NO_TEXT, code))
        values = {"numeric_value": number, "text_value": text}
        return make_rows(Role.EVENT, base, valued, time=time, **values)
    is_report = name in _TERMS["reports"] and job.settings.known == "latest"
    events = make_rows(Role.BEGUN if is_report else Role.EVENT, base, code, time=time)
    if name != "encounters":
        return events
    kind = pc.fill_null(block.text("ENCOUNTERCLASS"), "unknown")
    visit = joined(pa.scalar("ENCOUNTER"), kind)
    codes.add(pc.binary_join_element_wise(visit, pa.scalar(END_SUFFIX), ""), parent=visit)
    stay = make_rows(
        Role.VISIT,
        base,
        visit,
        time=time,
        end=block.times("STOP"),
        acute=pc.is_in(pc.utf8_lower(kind), pa.array(_TERMS["acute"])),
        inpatient=pc.equal(pc.utf8_lower(kind), "inpatient"),
        site=block.name("ORGANIZATION"),
    )
    return pa.concat_tables([stay, events], promote_options="default")
