"""The cleaning rules for deaths: which of several counts, and when it was."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Ints
from ehrsequencing.readers.import_report import RuleCounts
from ehrsequencing.readers.rows import (
    NO_TIME,
    UNENDED,
    Left,
    Role,
    day_of,
    is_date,
    make_rows,
)
from ehrsequencing.readers.stays import VISITS, Rows
from ehrsequencing.records.deaths import AGREE_DAYS, DOUBT_DAYS, filled_from, filled_until
from ehrsequencing.records.events import (
    DAY_US,
    DEATH,
    STATED_DEATH,
)

_AT_START = (Role.EVENT, Role.REPORTED, Role.BEGUN, Role.BILLED, Role.VISIT, Role.SPAN)
_STAYS = (*VISITS, Role.SPAN)


def with_stated_deaths(table: pa.Table) -> pa.Table:
    """The rows, and a death at the end of each stay that ended by one, as its source says."""
    ended = table.filter(pc.and_(pc.equal(table["left"], Left.DIED), table["end"].is_valid()))
    base = {name: ended[name] for name in ("subject_id", "source", "left")}
    code = pa.array([DEATH] * len(ended), pa.string()).dictionary_encode()
    deaths = make_rows(Role.DEATH, base, code, time=ended["end"])
    return pa.concat_tables([table, deaths], promote_options="default")


def choose_deaths(rows: Rows, drawn_us: int, counts: RuleCounts) -> None:
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
    until_us = np.where(rows.end_us == NO_TIME, filled_until(rows.time_us), rows.end_us)
    first_us = np.where(rows.end_us == NO_TIME, filled_from(rows.time_us), rows.time_us)
    is_vague = is_death & ~is_stated & (day_of(until_us) > day_of(first_us))
    is_precise = good | (is_death & ~is_stated & ~is_vague)
    precise_us = np.full(len(rows.subject_ids), UNENDED)
    np.minimum.at(precise_us, rows.subject[is_precise], rows.time_us[is_precise])
    other_us = precise_us[rows.subject]
    is_same = is_vague & (day_of(other_us) >= first_us) & (day_of(other_us) <= until_us)
    counts["vague_death"] += int(is_same.sum())
    counts["death_conflict"] += int((is_vague & ~is_same & (other_us != UNENDED)).sum())
    rows.lose("vaguer_death", is_same)
    recorded = np.unique(rows.subject[is_death & ~is_stated & ~is_same])
    good &= ~np.isin(rows.subject, recorded)
    rows.lose("two_deaths", is_stated & ~good)
    counts["stated_death"] += len(np.unique(rows.subject[good]))

    placed = np.flatnonzero(is_vague & ~is_same & (rows.end_us != NO_TIME))
    seen_us = np.full(len(rows.subject_ids), NO_TIME)
    end_us = np.full(len(rows.subject_ids), NO_TIME)
    end_us[rows.subject[placed]] = rows.end_us[placed] + DAY_US
    for times in (rows.time_us, rows.end_us):
        is_sign = ~rows.of_role(Role.DEATH, Role.PERSON) & (times < end_us[rows.subject])
        np.maximum.at(seen_us, rows.subject[is_sign], times[is_sign])
    latest = np.maximum(np.minimum(rows.end_us[placed], drawn_us), seen_us[rows.subject[placed]])
    rows.time_us[placed] = np.maximum(day_of(latest), rows.time_us[placed])


def keep_undated_deaths(rows: Rows, died_us: Ints, counts: RuleCounts) -> None:
    """Of a person without a dated death keep one without a date, as a row without a time."""
    undated = np.flatnonzero(
        rows.of_role(Role.DEATH) & (rows.time_us == NO_TIME) & (rows.lost == 0)
    )
    _, first = np.unique(rows.subject[undated], return_index=True)
    kept = undated[first][died_us[rows.subject[undated[first]]] == NO_TIME]
    rows.lose("vaguer_death", np.setdiff1d(undated, kept))
    rows.role = rows.role.copy()
    rows.role[kept] = Role.STATIC
    counts["undated_death"] += len(kept)


def mark_agreeing_deaths(rows: Rows, died_us: Ints) -> None:
    """Mark deaths on which a stay's discharge agrees, where the record goes on so that they might be doubted."""
    died = died_us[rows.subject]
    is_stated = rows.of_role(Role.DEATH) & rows.is_marked("left", Left.DIED)
    late = np.unique(rows.subject[(died != NO_TIME) & (rows.time_us > died + DOUBT_DAYS * DAY_US)])
    agrees = is_stated & np.isin(rows.subject, late)
    agrees &= abs(rows.time_us - died) <= AGREE_DAYS * DAY_US
    kept = np.flatnonzero(agrees)
    mark = np.full(len(kept), len(rows.codes))
    rows.codes = pa.concat_arrays([rows.codes, pa.array([STATED_DEATH + DEATH])])
    rows.marks.append((kept, died[kept], mark))


def put_deaths_at_discharge(rows: Rows, died_us: Ints, counts: RuleCounts) -> None:
    """Move deaths known by their day to the end of a stay on that day, also in `died_us` (s,).

    The stay began earlier, is acute or ended by death, and nobody left it alive; no clock of that day is later.
    """
    deaths = np.flatnonzero(rows.of_role(Role.DEATH) & rows.date_only & (rows.lost == 0))
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
    counts["death_at_discharge"] += len(moved)
