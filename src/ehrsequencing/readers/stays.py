"""Rows of known persons, and the rules for their stays and deaths: spans, parts, ends that are none, moves."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.readers.import_report import FATES, ImportReport
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
from ehrsequencing.records.deaths import AGREE_DAYS, DOUBT_DAYS, filled_period
from ehrsequencing.records.events import (
    CONTINUED,
    DAY_US,
    DEATH,
    MOVED,
    OPEN,
    STATED_DEATH,
    TRANSFERRED,
)

OPEN_DAYS = 30  # without a row before the draw: nobody closed a stay
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
    report: ImportReport
    # rows that mark a stay: that of the stay, their time, and the place of their code
    marks: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)

    def lose(self, reason: str, chosen: Ints | Bools) -> None:
        """Say why some rows make none."""
        self.lost[chosen] = FATES[reason]

    def count(self, rule: str, chosen: Ints | Bools) -> None:
        """Count the rows to which a rule was applied, and note whose they are."""
        self.report.apply(rule, self.subject_ids[self.subject[chosen]])

    def of_role(self, *roles: Role) -> Bools:
        """(n,) which rows have one of these roles."""
        return np.isin(self.role, roles)

    def is_marked(self, name: str, value: Any = True) -> Bools:
        """(n,) where a column has a value."""
        return np.array(pc.fill_null(pc.equal(self.table[name], value), False).to_numpy())


def visit_spans(rows: Rows) -> VisitSpans:
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
    rows.count("dangling_encounter", (key >= 0) & (rows.visit < 0))

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


def set_known_times(rows: Rows, spans: VisitSpans) -> Bools:
    """What was reported has the latest time at which it began, or its visit's end if it began before.

    A diagnosis of a visit was known by the visit's end, and not when the disease began, years before. The bill of a
    stay of more than a day is written at its end.

    Returns:
        (n,) which rows lie more than a day before their visit's first day or after its last: they would stretch it,
        and are in no visit any more.
    """
    some = np.flatnonzero(rows.of_role(Role.REPORTED, Role.BEGUN, Role.BILLED))
    first, last, at = rows.time_us[some], rows.end_us[some], rows.visit[some]
    last = np.where(last == NO_TIME, first, last)
    start, end = spans.start_us[at], spans.end_us[at]
    is_early = (end_of_day(first) < start) | ((first <= end) & (end < last))
    is_billed = (rows.role[some] == Role.BILLED) & (first <= end) & (end - start > DAY_US)
    rows.count("billed", some[is_billed & ~is_early])
    rows.time_us[some] = np.where(is_early | is_billed, end, last)
    is_undated = first == NO_TIME
    rows.count("began_before", some[is_early & ~is_undated])
    rows.count("undated", some[is_early & is_undated])
    rows.lose("no_time", some[rows.time_us[some] == NO_TIME])

    start, end, until = spans.start_us, spans.end_us[rows.visit], spans.until_us[rows.visit]
    start = np.where(start == NO_TIME, NO_TIME, day_of(start) - DAY_US)[rows.visit]
    outside = (rows.time_us < start) | (rows.time_us >= until)
    outside |= rows.of_role(Role.SPAN) & (rows.end_us >= until)
    outside |= rows.of_role(Role.ISSUED) & (until < UNENDED) & (rows.time_us > end)
    outside &= (rows.time_us != NO_TIME) & (rows.visit >= 0)
    rows.visit[outside] = -1
    rows.count("outside_visit", outside)
    return outside


def name_parts(rows: Rows) -> None:
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
    rows.count("part", some[inside])


def mark_stays(rows: Rows, drawn_us: int | None) -> None:
    """Mark stays without an end, and those that are one episode of care with the next; remove ends that are none.

    A move is from one hospital stay of acute care to another: its source says so, and the other begins at another
    site within a day. A bill of a stay that goes on is joined with the next one of that site. Of the stays without an
    end those are counted apart of which nothing was heard for long before the source was drawn.
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
    # when a stay was last seen: its end, else the last row of the visit
    seen = np.full(rows.visit.max(initial=-1) + 2, NO_TIME)
    dated = (rows.lost == 0) & (rows.time_us != NO_TIME)
    np.maximum.at(seen, rows.visit[dated], rows.time_us[dated])
    last = np.maximum(np.where(rows.visit < 0, NO_TIME, seen[rows.visit]), rows.time_us)
    seen_us = np.where(rows.end_us == NO_TIME, last, rows.end_us)
    still = np.setdiff1d(stay[is_open[stay]], here[is_bill])
    is_old = seen_us[still] < (NO_TIME if drawn_us is None else drawn_us - OPEN_DAYS * DAY_US)
    for mark, chosen, time_us in (
        (MOVED, here[is_move], rows.end_us),
        (CONTINUED, then[is_move | is_bill], rows.time_us),
        (TRANSFERRED, alone, rows.end_us),
        (OPEN, still, seen_us),
    ):
        if len(chosen):
            names = pc.binary_join_element_wise(pa.scalar(mark[:-2]), rows.codes, "//")
            rows.marks.append((chosen, time_us[chosen], rows.code[chosen] + len(rows.codes)))
            rows.codes = pa.concat_arrays([rows.codes, names])
    rows.end_us = np.where(is_open, NO_TIME, rows.end_us)
    for rule, chosen in {
        "moved": here[is_move],
        "interim_bill": here[is_bill],
        "short_gap": here[is_gap],
        "transferred": alone,
        "open_stay": still,
        "unclosed_stay": still[is_old],
    }.items():
        rows.count(rule, chosen)


# ---- deaths: which of several counts, and when it was ----
_AT_START = (Role.EVENT, Role.REPORTED, Role.BEGUN, Role.BILLED, Role.VISIT, Role.SPAN)
_STAYS = (*VISITS, Role.SPAN)


def choose_deaths(rows: Rows, drawn_us: int) -> None:
    """Keep the more precise of the deaths of a person, and put one that is known by its year or month only.

    The last stated death counts where no visit begins after it, and no death is recorded; also where the recorded one
    is vague, or a filled date, and may be the same. A vague death without another stands at the end of its period, not
    after the draw, and not before the last sign of life in it.
    """
    is_death = rows.of_role(Role.DEATH) & (rows.lost == 0) & (rows.time_us != NO_TIME)
    is_stated = is_death & rows.is_marked("left", Left.DIED)
    last_us = np.full(len(rows.subject_ids), NO_TIME)
    chosen = is_stated | rows.of_role(Role.VISIT)
    np.maximum.at(last_us, rows.subject[chosen], rows.time_us[chosen])
    good = is_stated & (rows.time_us == last_us[rows.subject])
    filled, no_end = filled_period(rows.time_us), rows.end_us == NO_TIME
    first_us = np.where(no_end, filled[0], rows.time_us)
    until_us = np.where(no_end, filled[1], rows.end_us)
    is_vague = is_death & ~is_stated & (day_of(until_us) > day_of(first_us))
    is_precise = good | (is_death & ~is_stated & ~is_vague)
    precise_us = np.full(len(rows.subject_ids), UNENDED)
    np.minimum.at(precise_us, rows.subject[is_precise], rows.time_us[is_precise])
    other_us = precise_us[rows.subject]
    is_same = is_vague & (day_of(other_us) >= first_us) & (day_of(other_us) <= until_us)
    rows.count("vague_death", is_same)
    rows.count("death_conflict", is_vague & ~is_same & (other_us != UNENDED))
    rows.lose("vaguer_death", is_same)
    recorded = np.unique(rows.subject[is_death & ~is_stated & ~is_same])
    good &= ~np.isin(rows.subject, recorded)
    rows.lose("two_deaths", is_stated & ~good)
    rows.report.apply("stated_death", rows.subject_ids[np.unique(rows.subject[good])])

    placed = np.flatnonzero(is_vague & ~is_same & (rows.end_us != NO_TIME))
    seen_us = np.full(len(rows.subject_ids), NO_TIME)
    end_us = np.full(len(rows.subject_ids), NO_TIME)
    end_us[rows.subject[placed]] = rows.end_us[placed] + DAY_US
    for times in (rows.time_us, rows.end_us):
        is_sign = ~rows.of_role(Role.DEATH, Role.PERSON) & (times < end_us[rows.subject])
        np.maximum.at(seen_us, rows.subject[is_sign], times[is_sign])
    latest = np.maximum(np.minimum(rows.end_us[placed], drawn_us), seen_us[rows.subject[placed]])
    rows.time_us[placed] = np.maximum(day_of(latest), rows.time_us[placed])


def place_deaths(rows: Rows, died_us: Ints) -> None:
    """Keep deaths without a date, mark those on which a discharge agrees, move others to it; changes `died_us` (s,).

    A death known by its day moves to the end of a stay on that day that began earlier, is acute or ended by death, if
    nobody left it alive and no clock of that day is later.
    """
    is_death = rows.of_role(Role.DEATH)
    # of a person without a dated death one without a date is kept, as a row without a time
    undated = np.flatnonzero(is_death & (rows.time_us == NO_TIME) & (rows.lost == 0))
    _, first = np.unique(rows.subject[undated], return_index=True)
    kept = undated[first][died_us[rows.subject[undated[first]]] == NO_TIME]
    rows.lose("vaguer_death", np.setdiff1d(undated, kept))
    rows.role = rows.role.copy()
    rows.role[kept] = Role.STATIC
    rows.count("undated_death", kept)

    # a stay's discharge agrees, where the record goes on so that the death might be doubted
    died = died_us[rows.subject]
    late = np.unique(rows.subject[(died != NO_TIME) & (rows.time_us > died + DOUBT_DAYS * DAY_US)])
    agrees_ = is_death & rows.is_marked("left", Left.DIED) & np.isin(rows.subject, late)
    agrees_ &= abs(rows.time_us - died) <= AGREE_DAYS * DAY_US
    agrees = np.flatnonzero(agrees_)
    mark = np.full(len(agrees), len(rows.codes))
    rows.codes = pa.concat_arrays([rows.codes, pa.array([STATED_DEATH + DEATH])])
    rows.marks.append((agrees, died[agrees], mark))

    deaths = np.flatnonzero(is_death & rows.date_only & (rows.lost == 0))
    day = np.full(len(died_us), UNENDED)
    day[rows.subject[deaths]] = day_of(rows.time_us[deaths])
    some = np.flatnonzero(day[rows.subject] != UNENDED)
    who, start_us, end_us = rows.subject[some], rows.time_us[some], rows.end_us[some]
    acute, is_dead = rows.is_marked("acute")[some], rows.is_marked("left", Left.DIED)[some]
    alive = (rows.is_marked("left", Left.ALIVE) | rows.is_marked("left", Left.MOVED))[some]
    left_alive = np.setdiff1d(rows.visit[some[alive]], -1)
    alive |= np.isin(rows.visit[some], left_alive)  # with its parts
    is_stay = acute | is_dead | (day_of(start_us) < day[who])
    is_event = rows.of_role(Role.EVENT)[some]
    starts = rows.of_role(*_AT_START)[some] & ~rows.date_only[some] & ~is_date(start_us)
    ends = rows.of_role(*_STAYS)[some] & ~rows.end_date_only[some]
    leaves = np.r_[acute & is_event, is_stay] & ~np.r_[alive, alive]
    time_us, who = np.r_[start_us, end_us], np.r_[who, who]
    has_clock = np.r_[starts, ends] & (day_of(time_us) == day[who])
    last, left = (np.full(len(died_us), NO_TIME) for _ in range(2))
    for latest, chosen in ((last, has_clock), (left, has_clock & leaves)):
        np.maximum.at(latest, who[chosen], time_us[chosen])
    moved = deaths[(left == np.maximum(last, NO_TIME + 1))[rows.subject[deaths]]]
    rows.time_us[moved] = died_us[rows.subject[moved]] = left[rows.subject[moved]]
    rows.count("death_at_discharge", moved)
