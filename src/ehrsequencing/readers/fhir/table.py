"""Mapped rows of FHIR resources → the table that the MEDS writer takes: times, subject ids, counted fixes."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.readers.cells import parse_times
from ehrsequencing.readers.cleaning_rules import END_SUFFIX
from ehrsequencing.readers.code_book import CodeBook
from ehrsequencing.readers.fhir.mapping import UNCODED, Row
from ehrsequencing.readers.import_report import RuleCounts
from ehrsequencing.readers.rows import Role
from ehrsequencing.readers.subject_ids import subject_ids

_MONTH = r"^(\d{4})-(\d{2})$"
_YEAR = r"^(\d{4})$"
_TYPES = {"role": pa.int8(), "number": pa.float64()}


def rows_table(
    mapped: Sequence[Row], sources: Sequence[int], counts: RuleCounts, book: CodeBook
) -> pa.Table:
    """The rows as `rows_schema` wants them.

    Args:
        mapped: Rows of `rows_of`.
        sources: Number of the resource of each row, from `TableCounts.take`.
        counts: Where fixes are counted.
        book: Where descriptions and parents of the codes are gathered.
    """
    columns = zip(*mapped, strict=True) if mapped else [() for _ in Row._fields]
    rows = {
        name: pa.array(c, _TYPES.get(name, pa.string()))
        for name, c in zip(Row._fields, columns, strict=True)
    }
    role, code = rows["role"], rows["code"]
    visit = pc.equal(role, int(Role.VISIT))
    _describe(book, rows, visit)
    counts["uncoded"] += pc.sum(pc.starts_with(code, UNCODED)).as_py() or 0
    role, time, end = _known_times(rows, counts)
    table = pa.table(
        {
            "subject_id": subject_ids(pa.chunked_array([rows["subject"]])),
            "role": role,
            "time": time,
            "end": end,
            "code": code,
            "numeric_value": rows["number"],
            "text_value": rows["text"],
            "encounter_id": rows["encounter"],
            "source": pa.array(sources, pa.int64()),
        }
    )
    undated = pc.and_(pc.equal(role, int(Role.DEATH)), pc.is_null(table["time"]))
    counts["undated_death"] += pc.sum(undated).as_py() or 0
    return table.filter(pc.invert(undated))


def _describe(book: CodeBook, rows: dict[str, pa.Array], visit: pa.Array) -> None:
    """Descriptions and parents of the codes, and the stays as parents of their ends."""
    book.add(rows["code"], rows["description"], rows["parent"])
    stays = rows["code"].filter(visit)
    ends = pc.binary_join_element_wise(stays, pa.scalar(END_SUFFIX), "")
    book.add(ends, pa.nulls(len(ends), pa.string()), stays)


def _known_times(
    rows: dict[str, pa.Array], counts: RuleCounts
) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Role, time and end of each row. What was recorded later than it began has the time of its recording.

    Without that time it keeps its role `REPORTED`, since only its visit tells when it became known.
    """
    role = rows["role"]
    reported = pc.equal(role, int(Role.REPORTED))
    early = pc.or_(pc.is_in(role, value_set=_EARLY), reported)
    began, unsure = _times(rows["time"], early)
    recorded, recorded_unsure = _times(rows["recorded"], pa.scalar(False))
    later = pc.greater_equal(recorded, pc.floor_temporal(began, unit="day"))
    dated = pc.and_(pc.is_valid(recorded), pc.fill_null(later, True))
    end, end_unsure = _times(rows["end"], pa.scalar(False))
    used = pc.or_(pc.if_else(dated, recorded_unsure, unsure), end_unsure)
    counts["partial_date"] += pc.sum(used).as_py() or 0
    span = pc.and_(pc.and_(reported, unsure), pc.invert(dated))
    if pc.any(span).as_py():
        end = pc.if_else(span, _times(rows["time"], pa.scalar(False))[0], end)
    role = pc.if_else(dated, pa.scalar(int(Role.EVENT), pa.int8()), role)
    return role, pc.if_else(dated, recorded, began), end


def _times(written: pa.Array, early: pa.Array | pa.Scalar) -> tuple[pa.Array, pa.Array]:
    """Times of FHIR as timestamps, and which lack the day: these become the last day that they may mean.

    By the last day the event was certainly known, as by the end of a day for an event of that day. Those that are
    `early` become the first day.
    """
    written = pc.utf8_trim_whitespace(written)
    month, year = (
        pc.fill_null(pc.match_substring_regex(written, p), False) for p in (_MONTH, _YEAR)
    )
    partial = pc.or_(month, year)
    if not pc.any(partial).as_py():
        return parse_times(pa.chunked_array([written])), partial
    first = pc.replace_substring_regex(
        pc.replace_substring_regex(written, _MONTH, r"\1-\2-01"), _YEAR, r"\1-01-01"
    )
    last = pc.replace_substring_regex(written, _YEAR, r"\1-12-31")
    time = parse_times(pa.chunked_array([pc.if_else(early, first, pc.if_else(month, first, last))]))
    late_month = pc.and_(month, pc.invert(early))
    ends = pc.subtract(pc.ceil_temporal(time, 1, unit="month", ceil_is_strictly_greater=True), _DAY)
    return pc.if_else(late_month, ends, time), partial


_DAY = pa.scalar(86_400_000_000, pa.duration("us"))
_EARLY = pa.array([int(Role.VISIT), int(Role.PERSON)], pa.int8())
