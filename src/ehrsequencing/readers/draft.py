"""`ehrseq import csv --draft`: a map to edit, guessed from the names and the content of some files' columns."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.config.importing import MISSING
from ehrsequencing.readers.cells import as_numbers, as_text, as_times, count_dates
from ehrsequencing.readers.table_files import encoding_of, open_table

_KNOWN = tomllib.loads(Path(__file__).with_name("columns.toml").read_text("utf-8"))
MOST_CODES = 0.3  # share of different texts up to which a column may hold codes
SURE = 0.9  # share of the cells that must be of a kind
_HEAD = """# A map to edit: what the columns of these files mean (docs/data.md#any-flat-table).
# Guessed from names and content; check the lines that say `unsure`, and drop what you do not need.
# Then: ehrseq import csv FOLDER --map {name} meds
files:
"""


def draft_map(paths: Sequence[Path], name: str) -> str:
    """A map of some files, as YAML with remarks; `name` is that of the file that it goes to.

    Raises:
        EhrseqError: A file cannot be read.
    """
    return _HEAD.format(name=name) + "".join(_draft(path) for path in paths)


def _draft(path: Path) -> str:
    """What the columns of a file may mean."""
    encoding = encoding_of(path)
    table = open_table(path, missing=MISSING, encoding=encoding)
    cells = next(iter(table.blocks([*table.names])), None)
    columns = {} if cells is None else {table.names[low]: cells[low] for low in table.names}
    written, dates = _dates(columns)
    numbers = {
        n: c
        for n, c in columns.items()
        if n not in dates and (_share(c, as_numbers(c)) or _share(c, as_numbers(c, ",")))
    }
    role = {kind: _named([*columns], pattern) for kind, pattern in _KNOWN["names"].items()}
    keys = [name for name in columns if name not in dates]
    role |= {kind: _named(keys, _KNOWN["names"][kind]) for kind in ("subject", "encounter")}
    subject = role["subject"] or next(iter(columns), "?")
    times = [n for n in dates if n not in (role["birth"], role["death"])]
    start = next((n for n in times if n == role["start"]), None)
    time = start or next(iter(times), None)
    lines = [f"subject: {_text(subject)}" + ("" if role["subject"] else "   # unsure")]
    lines += [f"encoding: {encoding}"] if encoding != "utf-8" else []
    lines += [f"dates: {_text(written)}"] if written else []
    lines += ['decimal: ","'] if any(_has_comma(columns[n]) for n in numbers) else []
    lines += [
        f"{kind}: {_text(role[kind] or '')}" for kind in ("birth", "death") if role[kind] in dates
    ]
    lines += [f"static: {{{_text(role['sex'])}: SEX}}"] if role["sex"] else []
    events = list[str]()
    if time is not None:
        lines.append(f"time: {_text(time)}" + ("" if len(times) == 1 or start else "   # unsure"))
    if time is not None and role["encounter"] and start:
        end = role["end"] if role["end"] in times else None
        span = f", start: {_text(start)}" + (f", end: {_text(end)}" if end else "")
        lines.append(f"encounter: {{id: {_text(role['encounter'])}{span}}}")
        events.append(f"{{code: ADMISSION, time: {_text(start)}}}")
        events += [f"{{code: DISCHARGE, time: {_text(end)}}}"] if end else []
    used = {subject, role["sex"], role["encounter"], *dates}
    value = role["value"] if role["value"] in numbers else None
    unit = f", unit_from: {_text(role['unit'])}" if role["unit"] else ""
    for column, values in columns.items():
        if time is None or column in used or column in (value, role["unit"]):
            continue
        kinds = len(pc.unique(values.drop_null())) / max(1, len(values) - values.null_count)
        is_code = re.fullmatch(_KNOWN["names"]["code"], column, re.IGNORECASE) is not None
        if is_code and value:
            events.append(f"{{code_from: {_text(column)}, value: {_text(value)}{unit}}}")
            used.add(value)
            value = None
        elif column in numbers and not is_code:
            events.append(f"{{code: {_text(column)}, value: {_text(column)}}}   # unsure")
        elif is_code or kinds <= MOST_CODES:
            events.append(
                f"{{code: {_text(column)}, code_from: {_text(column)}}}"
                + ("" if is_code else "   # unsure")
            )
    lines += ["events:", *(f"  - {event}" for event in events)] if events else []
    return f"  {_text(path.name)}:\n" + "".join(f"    {line}\n" for line in lines)


def _dates(columns: dict[str, pa.ChunkedArray]) -> tuple[str | None, list[str]]:
    """How the dates of a file are written, if its columns need it said, and the columns that hold any."""
    found, forms = list[str](), list[str]()
    for name, cells in columns.items():
        filled = len(cells) - cells.null_count
        if (
            not filled
            or not pc.any(pc.match_substring_regex(as_text(cells), "[-/.:, A-Za-z]")).as_py()
        ):
            continue
        counts = count_dates(as_text(cells))
        orders = [order for order in ("ymd", "dmy", "mdy") if counts[order] >= SURE * filled]
        for form in () if orders else _KNOWN["forms"]:
            if _share(cells, as_times(cells, form)):
                orders.append(form)
                break
        if orders:
            found.append(name)
            forms += orders[:1] if "ymd" not in orders else []
    return next(iter(forms), None), found


def _named(columns: Sequence[str], pattern: str) -> str | None:
    return next((name for name in columns if re.fullmatch(pattern, name, re.IGNORECASE)), None)


def _share(cells: pa.ChunkedArray, values: pa.ChunkedArray) -> bool:
    """Whether nearly all filled cells were read."""
    filled = len(cells) - cells.null_count
    return bool(filled) and len(values) - values.null_count >= SURE * filled


def _has_comma(cells: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.match_substring(as_text(cells), ",")).as_py())


def _text(text: str) -> str:
    """A text of YAML."""
    return text if re.fullmatch(r"[A-Za-z][\w.-]*", text) else "'" + text.replace("'", "''") + "'"
