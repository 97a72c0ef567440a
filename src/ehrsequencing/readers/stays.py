"""Rows of known persons, and the rules for their visits and stays: spans, parts, ends that are none, and moves."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.readers.import_report import FATES, RuleCounts
from ehrsequencing.readers.rows import (
    NO_TIME,
    PART_SUFFIX,
    UNENDED,
    Left,
    Role,
    VisitSpans,
    day_of,
    encoded,
    end_of_day,
    is_date,
    places,
)
from ehrsequencing.records.events import (
    CONTINUED,
    DAY_US,
    MOVED,
    OPEN,
    TRANSFERRED,
)

VISITS = (Role.VISIT, Role.NAMED_VISIT)
_WITHOUT_VISIT = (Role.PERSON, Role.DEATH, Role.OBSERVED)


@dataclass(eq=False)
class Rows:
    """Rows of known persons as plain columns; the rules change times and visits, and say which rows are lost."""

    table: pa.Table
    codes: pa.Array  # (c,) texts
    subject_ids: Ints  # (s,) sorted
    subject: Ints  # (n,) place among `subject_ids`
    role: Ints  # (n,) numbers of `Role`
    time_us: Ints  # (n,) `NO_TIME` for null
    end_us: Ints  # (n,) as `time_us`
    code: Ints  # (n,) place among `codes`, -1 for null
    source: Ints  # (n,)
    visit: Ints  # (n,) number of its visit; -1 without one
    date_only: Bools  # (n,) whether the source gave a date, and no time of day
    end_date_only: Bools  # (n,) the same of the end
    lost: Ints  # (n,) why a row makes none of the output, a number of `FATES`; 0 where it may make one
    # rows that mark a stay: that of the stay, their time, and the place of their code
    marks: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)

    def lose(self, reason: str, chosen: Ints | Bools) -> None:
        """Say why some rows make none."""
        self.lost[chosen] = FATES[reason]

    def of_role(self, *roles: Role) -> Bools:
        """(n,) which rows have one of these roles."""
        return np.isin(self.role, roles)

    def is_marked(self, name: str, value: Any = True) -> Bools:
        """(n,) where a column has a value."""
        return np.array(pc.fill_null(pc.equal(self.table[name], value), False).to_numpy())


def visit_spans(rows: Rows, counts: RuleCounts) -> VisitSpans:
    """Number the visits of the rows, and find their spans.

    Births, deaths and observation periods belong to no visit, so that rows which differ in it only are equal. Two
    persons may use the same `encounter_id`.
    """
    name = places(encoded(rows.table["encounter_id"]))
    name[rows.of_role(*_WITHOUT_VISIT)] = -1
    key = np.where(name < 0, -1, rows.subject + name * len(rows.subject_ids))
    is_visit = rows.of_role(*VISITS) & (key >= 0)
    visits = pc.unique(pa.array(key[is_visit]))
    rows.visit = pc.fill_null(pc.index_in(pa.array(key), visits), -1).to_numpy().astype(np.int64)
    counts["dangling_encounter"] += int(((key >= 0) & (rows.visit < 0)).sum())

    start, end = np.full(len(visits) + 1, UNENDED), np.full(len(visits) + 1, NO_TIME)
    chosen = np.flatnonzero(is_visit & (rows.time_us != NO_TIME))
    at, start_us = rows.visit[chosen], rows.time_us[chosen]
    end_us = end_of_day(rows.end_us[chosen])
    is_valid = end_us >= start_us
    np.minimum.at(start, at, start_us)
    np.maximum.at(end, at, np.where(is_valid, end_us, end_of_day(day_of(start_us))))
    until = np.full(len(start), UNENDED)
    ended = at[is_valid]
    until[ended] = day_of(end[ended]) + 2 * DAY_US
    return VisitSpans(
        np.where(end == NO_TIME, NO_TIME, start), np.where(end == NO_TIME, UNENDED, end), until
    )


def rows_outside(rows: Rows, spans: VisitSpans) -> Bools:
    """(n,) which rows lie more than a day before their visit's first day or after its last; they would stretch it."""
    start, until = spans.start_us, spans.until_us[rows.visit]
    first = np.where(start == NO_TIME, NO_TIME, day_of(start) - DAY_US)[rows.visit]
    is_far = (rows.time_us < first) | (rows.time_us >= until)
    is_far |= rows.of_role(Role.SPAN) & (rows.end_us >= until)
    is_far |= (
        rows.of_role(Role.ISSUED) & (until < UNENDED) & (rows.time_us > spans.end_us[rows.visit])
    )
    return is_far & (rows.time_us != NO_TIME) & (rows.visit >= 0)


def name_parts(rows: Rows, counts: RuleCounts) -> None:
    """Give `//PART` to what begins and ends in a visit of the same class, or in another such part of that visit."""
    n = len(rows.codes)
    key = np.where(rows.visit < 0, -1, rows.visit * n + rows.code)
    some = np.flatnonzero(rows.of_role(Role.SPAN) & (key >= 0))
    end_us = np.where(rows.end_us == NO_TIME, UNENDED, rows.end_us)
    columns = np.stack([key[some], rows.time_us[some], -end_us[some]])
    spans, place = np.unique(columns, axis=1, return_inverse=True)
    group, end = (np.unique(spans[k], return_inverse=True)[1] for k in (0, 2))
    last = (group + 1) * len(end) - end  # rises with the group, then with the end
    inside = np.r_[False, last[1:] <= np.maximum.accumulate(last)[:-1]]
    inside = inside[place.reshape(-1)] | np.isin(key[some], key[rows.of_role(Role.VISIT)])
    rows.code[some[inside]] += n
    names = pc.binary_join_element_wise(rows.codes, pa.scalar(PART_SUFFIX), "")
    rows.codes = pa.concat_arrays([rows.codes, names])
    counts["part"] += int(inside.sum())


def mark_stays(rows: Rows, counts: RuleCounts) -> None:
    """Mark stays without an end, and those that are one episode of care with the next; remove ends that are none.

    A move is from one hospital stay of acute care to another: its source says so, and the other begins at another
    site within a day. A bill of a stay that goes on is joined with the next one of that site.
    """
    left = pc.fill_null(rows.table["left"], -1).to_numpy()
    inpatient, is_open = rows.is_marked("inpatient"), left == Left.STILL
    is_open |= inpatient & (rows.end_us == NO_TIME)
    stay = np.flatnonzero(rows.of_role(Role.VISIT) & (rows.lost == 0) & (inpatient | is_open))
    stay = stay[np.lexsort((rows.time_us[stay], rows.subject[stay]))]
    site = places(encoded(rows.table["site"]))[stay]
    here, then = stay[:-1], stay[1:]
    is_elsewhere = (site[:-1] >= 0) & (site[1:] >= 0) & (site[:-1] != site[1:])
    start_us, end_us = rows.time_us[then], rows.end_us[here]
    is_dated = rows.end_date_only[here] | is_date(start_us)
    days = (day_of(start_us) - day_of(end_us)) // DAY_US
    is_near = (rows.subject[here] == rows.subject[then]) & (end_us != NO_TIME)
    is_next_day = is_near & (days <= 1)
    is_near &= np.where(is_dated, abs(days) <= 1, abs(start_us - end_us) <= DAY_US)
    is_near &= inpatient[here] & inpatient[then] & is_elsewhere
    is_bill = is_next_day & is_open[here] & (site[:-1] == site[1:])
    is_bill &= rows.code[here] == rows.code[then]
    is_move = is_near & (left[here] == Left.MOVED)
    is_gap = is_near & ~np.isin(left[here], (Left.MOVED, Left.STILL, Left.DIED))
    moves = inpatient & (left == Left.MOVED) & (rows.end_us != NO_TIME) & rows.of_role(Role.VISIT)
    alone = np.setdiff1d(np.flatnonzero(moves & (rows.lost == 0)), here[is_move])
    unclosed = np.setdiff1d(stay[is_open[stay]], here[is_bill])
    for mark, chosen, time_us in (
        (MOVED, here[is_move], rows.end_us),
        (CONTINUED, then[is_move | is_bill], rows.time_us),
        (TRANSFERRED, alone, rows.end_us),
        (OPEN, unclosed, _last_seen(rows)),
    ):
        if len(chosen):
            names = pc.binary_join_element_wise(pa.scalar(mark[:-2]), rows.codes, "//")
            rows.marks.append((chosen, time_us[chosen], rows.code[chosen] + len(rows.codes)))
            rows.codes = pa.concat_arrays([rows.codes, names])
    rows.end_us = np.where(is_open, NO_TIME, rows.end_us)
    for rule, n in {
        "moved": is_move.sum(),
        "interim_bill": is_bill.sum(),
        "short_gap": is_gap.sum(),
        "transferred": len(alone),
        "open_stay": len(unclosed),
    }.items():
        counts[rule] += int(n)


def _last_seen(rows: Rows) -> Ints:
    """(n,) the end of each row, else the last row of its visit."""
    seen = np.full(rows.visit.max(initial=-1) + 2, NO_TIME)
    chosen = (rows.lost == 0) & (rows.time_us != NO_TIME)
    np.maximum.at(seen, rows.visit[chosen], rows.time_us[chosen])
    last = np.maximum(np.where(rows.visit < 0, NO_TIME, seen[rows.visit]), rows.time_us)
    return np.where(rows.end_us == NO_TIME, last, rows.end_us)
