"""`ehrseq import csv --draft`: a map to edit, guessed from the names and the content of some files' columns."""

import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from ehrsequencing.config.importing import MISSING
from ehrsequencing.readers.cells import as_numbers, as_text, as_times, count_dates
from ehrsequencing.readers.table_files import encoding_of, open_table

_KNOWN = tomllib.loads(Path(__file__).with_name("columns.toml").read_text("utf-8"))
MOST_CODES = 0.3  # share of different texts up to which a column may hold codes
SURE = 0.9  # share of the cells that must be of a kind
_HEAD = """# A map to edit: what the columns of these files mean (docs/data.md#any-flat-table).
# Guessed from names and content. Drop what you do not need. Then: ehrseq import csv FOLDER --map {name} meds
"""


def draft_map(paths: Sequence[Path], name: str) -> str:
    """A map of some files, as YAML with remarks; `name` is that of the file that it goes to.

    Raises:
        EhrseqError: A file cannot be read.
    """
    unsure = list[str]()
    files = {path.name: _draft(path, unsure) for path in paths}
    remarks = "".join(f"# unsure: {one}\n" for one in unsure)
    written = yaml.safe_dump({"files": files}, sort_keys=False, allow_unicode=True)
    return _HEAD.format(name=name) + remarks + written


def _draft(path: Path, unsure: list[str]) -> dict[str, Any]:
    """What the columns of a file may mean; what is a guess without a name for it is added to `unsure`."""
    encoding = encoding_of(path)
    table = open_table(path, missing=MISSING, encoding=encoding)
    cells = next(iter(table.blocks([*table.names])), None)
    columns = {} if cells is None else {table.names[low]: cells[low] for low in table.names}
    dates = {name: form for name, column in columns.items() if (form := _form_of_dates(column))}
    plain = {name: column for name, column in columns.items() if name not in dates}
    commas = {n for n, c in plain.items() if _reads(c, as_numbers(c, ",")) and _has(c, ",")}
    numbers = commas | {n for n, c in plain.items() if _reads(c, as_numbers(c))}
    role = {kind: _named(dates, kind) for kind in ("birth", "death", "start", "end")}
    role |= {kind: _named(plain, kind) for kind in ("subject", "encounter", "sex", "unit")}
    role["value"] = _named(numbers, "value")
    times = [name for name in dates if name not in (role["birth"], role["death"])]
    time = role["start"] or next(iter(times), None)
    subject = role["subject"] or next(iter(columns), "?")
    if role["subject"] is None:
        unsure.append(f"{path.name}: the subject is in {subject}")
    if time is not None and role["start"] is None and len(times) > 1:
        unsure.append(f"{path.name}: the time is that of {time}")
    forms = [form for form in dates.values() if form != "ymd"]
    draft: dict[str, Any] = {
        "subject": subject,
        "encoding": encoding if encoding != "utf-8" else None,
        "dates": next(iter(forms), None),
        "decimal": "," if commas else None,
        "birth": role["birth"],
        "death": role["death"],
        "static": {role["sex"]: "SEX"} if role["sex"] else None,
        "time": time,
    }
    events, guessed = list[dict[str, Any]](), list[str]()
    if role["encounter"] and role["start"]:
        ends = {"end": role["end"]} if role["end"] else {}
        draft["encounter"] = {"id": role["encounter"], "start": role["start"], **ends}
        events.append({"code": "ADMISSION", "time": role["start"]})
        events += [{"code": "DISCHARGE", "time": role["end"]}] if role["end"] else []
    used = {subject, role["sex"], role["encounter"], role["value"], role["unit"]}
    for name in plain if time is not None else ():
        if name in used:
            continue
        is_code = _named([name], "code") is not None
        is_number = name in numbers and not is_code
        filled = plain[name].drop_null()
        beside = _beside(plain[name], {one: columns[one] for one in times}) or time
        own = {"time": beside} if beside != time else {}
        if is_code and role["value"]:
            unit = {"unit_from": role["unit"]} if role["unit"] else {}
            events.append({"code_from": name, "value": role["value"], **unit, **own})
            role["value"] = None
        elif is_number or is_code or len(pc.unique(filled)) <= MOST_CODES * len(filled):
            events.append({"code": name, "value" if is_number else "code_from": name, **own})
            guessed += [] if is_code else [name]
    if guessed:
        unsure.append(f"{path.name}: these are events, not names or notes: {', '.join(guessed)}")
    draft["events"] = events
    return {name: value for name, value in draft.items() if value}


def _beside(cells: pa.ChunkedArray, times: dict[str, pa.ChunkedArray]) -> str | None:
    """The date that most filled cells of a column have in their rows; the first of those with as many."""
    filled = pc.is_valid(cells)
    shared = {
        name: pc.sum(pc.and_(filled, pc.is_valid(own))).as_py() for name, own in times.items()
    }
    return max(shared, key=lambda name: shared[name], default=None)


def _form_of_dates(cells: pa.ChunkedArray) -> str | None:
    """How the dates of a column are written, as a map says it; None where it holds none."""
    filled = len(cells) - cells.null_count
    if not filled or not _has(cells, "[-/.:, A-Za-z]"):
        return None
    counts = count_dates(as_text(cells))
    orders = (order for order in ("ymd", "dmy", "mdy") if counts[order] >= SURE * filled)
    forms = (form for form in _KNOWN["forms"] if _reads(cells, as_times(cells, form)))
    return next(orders, None) or next(forms, None)


def _named(columns: Iterable[str], kind: str) -> str | None:
    """The first column whose name is one of a kind."""
    pattern = re.compile(_KNOWN["names"][kind], re.IGNORECASE)
    return next((name for name in columns if pattern.fullmatch(name)), None)


def _reads(cells: pa.ChunkedArray, values: pa.ChunkedArray) -> bool:
    """Whether nearly all filled cells were read."""
    filled = len(cells) - cells.null_count
    return bool(filled) and len(values) - values.null_count >= SURE * filled


def _has(cells: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(as_text(cells), pattern)).as_py())
