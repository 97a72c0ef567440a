"""MEDS records → the feature table that every foreign model of the league gets, and the visits for sequence models.

A row is a subject at a prediction time p. It knows the subject's events with `time ≤ p` and the codes without a time,
and nothing else (`known_events` is the only place that decides). Codes and bins are chosen on training rows.

| feature | of |
|---|---|
| `age_years` | p minus `MEDS_BIRTH` |
| `days_since_index`, `days_since_first`, `days_since_last` | index; first and last known event |
| `events`, `days` | known events; distinct days that have one |
| `static CODE` | 1 or 0: codes without a time |
| `count CODE`, `days_since CODE` | the most frequent codes: number so far, time since the last; never: NaN |
| `last`, `mean`, `min`, `max`, `first CODE` | those of them that carry numbers |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

Array = NDArray[Any]
BIRTH = "MEDS_BIRTH"
MOST_CODES = 100  # the most frequent ones by training rows
FEWEST_ROWS = 10  # training rows that must know a code
DAY_US = 86_400_000_000
YEAR_DAYS = 365.25
OF_ROW = ("age_years", "days_since_index", "days_since_first", "days_since_last", "events", "days")
OF_NUMBER = ("last", "mean", "min", "max", "first")
QUINTILES = (0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True)
class Events:
    """All events of a MEDS data set, sorted by subject, then time (codes without a time first).

    Attributes:
        subject_id: (N,).
        time_us: (N,) microseconds since 1970; `NO_TIME` for a code without a time.
        code: (N,) position in `codes`.
        number: (N,) numeric value, NaN without one.
        codes: Names.
    """

    subject_id: Array
    time_us: Array
    code: Array
    number: Array
    codes: tuple[str, ...]

    @classmethod
    def read(cls, data: Path) -> Events:
        """Every Parquet file below `DATA/data`."""
        columns = ["subject_id", "time", "code", "numeric_value"]
        files = sorted((data / "data").rglob("*.parquet"))
        table = pa.concat_tables(
            [_plain(pq.read_table(path, columns=columns, partitioning=None)) for path in files]
        )
        names = table["code"].combine_chunks().dictionary_encode()
        if isinstance(names, pa.ChunkedArray):
            names = names.combine_chunks()
        time = pc.fill_null(table["time"].cast(pa.int64()), NO_TIME).to_numpy()
        number = pc.fill_null(table["numeric_value"].cast(pa.float64()), np.nan).to_numpy()
        subject = table["subject_id"].to_numpy()
        order = np.lexsort((time, subject))
        code = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(
            subject[order],
            time[order],
            code[order],
            number[order],
            tuple(names.dictionary.to_pylist()),
        )


NO_TIME = np.iinfo(np.int64).min


def _plain(table: pa.Table) -> pa.Table:
    kinds = {
        "subject_id": pa.int64(),
        "time": pa.timestamp("us"),
        "code": pa.string(),
        "numeric_value": pa.float64(),
    }
    return pa.table({name: table[name].cast(kind) for name, kind in kinds.items()})


@dataclass(frozen=True)
class Known:
    """What rows know: pairs of a row and an event, sorted by row, then time.

    Attributes:
        row: (P,) number of the row.
        event: (P,) number of the event.
    """

    row: Array
    event: Array


def known_events(events: Events, subject_id: Array, prediction_us: Array) -> Known:
    """The events of each row's subject with `time ≤ p`, and its codes without a time."""
    begin = np.searchsorted(events.subject_id, subject_id, side="left")
    end = np.searchsorted(events.subject_id, subject_id, side="right")
    stop = np.empty_like(end)
    for row, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        stop[row] = first + np.searchsorted(
            events.time_us[first:last], prediction_us[row], side="right"
        )
    size = stop - begin
    row = np.repeat(np.arange(len(size)), size)
    event = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size) + np.repeat(begin, size)
    return Known(row, event)


@dataclass(frozen=True)
class Columns:
    """Which codes have features, chosen on training rows."""

    static: tuple[int, ...]
    codes: tuple[int, ...]
    numeric: tuple[int, ...]

    @classmethod
    def choose(cls, events: Events, known: Known) -> Columns:
        """The most frequent codes among training rows; numeric where most of a code's events have a number."""
        code, timed = events.code[known.event], events.time_us[known.event] != NO_TIME
        size, birth = len(events.codes), np.array([name == BIRTH for name in events.codes])

        def frequent(which: Array) -> list[int]:
            pairs = np.unique(known.row[which] * size + code[which]) % size
            rows = np.where(birth, 0, np.bincount(pairs, minlength=size))
            ranked = np.argsort(-rows, kind="stable")[:MOST_CODES]
            return sorted(ranked[rows[ranked] >= FEWEST_ROWS].tolist())

        codes = frequent(timed)
        has = ~np.isnan(events.number[known.event]) & timed
        share = np.bincount(code[has], minlength=size) / np.maximum(
            np.bincount(code[timed], minlength=size), 1
        )
        return cls(
            tuple(frequent(~timed)), tuple(codes), tuple(one for one in codes if share[one] > 0.5)
        )

    def names(self, events: Events) -> tuple[str, ...]:
        """(F,) names of the features."""
        names = [*OF_ROW, *(f"static {events.codes[one]}" for one in self.static)]
        for one in self.codes:
            names += [f"count {events.codes[one]}", f"days_since {events.codes[one]}"]
        for one in self.numeric:
            names += [f"{what} {events.codes[one]}" for what in OF_NUMBER]
        return tuple(names)


def feature_table(
    events: Events, subject_id: Array, prediction_us: Array, index_us: Array, *, columns: Columns
) -> Array:
    """Features of some rows, see the table at the top of this file.

    Args:
        events: The records.
        subject_id: (n,).
        prediction_us: (n,) p.
        index_us: (n,) time zero of the task.
        columns: Which codes.

    Returns:
        (n, F) float32.
    """
    n, known = len(subject_id), known_events(events, subject_id, prediction_us)
    code, time, number = (of[known.event] for of in (events.code, events.time_us, events.number))
    timed, row = time != NO_TIME, known.row
    out = np.full((n, len(columns.names(events))), np.nan)
    if BIRTH in events.codes:
        born = (code == events.codes.index(BIRTH)) & timed
        out[row[born], 0] = (prediction_us[row[born]] - time[born]) / DAY_US / YEAR_DAYS
    seen = timed & (code != (events.codes.index(BIRTH) if BIRTH in events.codes else -1))
    out[:, 1] = (prediction_us - index_us) / DAY_US
    group, first, last = _groups(row[seen])
    out[group, 2] = (prediction_us[group] - time[seen][first]) / DAY_US
    out[group, 3] = (prediction_us[group] - time[seen][last]) / DAY_US
    out[:, 4] = np.bincount(row[seen], minlength=n)
    day = np.floor_divide(time[seen], DAY_US)
    fresh = np.r_[True, (row[seen][1:] != row[seen][:-1]) | (day[1:] != day[:-1])][: len(day)]
    out[:, 5] = np.bincount(row[seen][fresh], minlength=n)
    start = len(OF_ROW)
    out[:, start : start + len(columns.static)] = 0.0
    for place, one in enumerate(columns.static):
        out[row[(code == one) & ~timed], start + place] = 1.0
    start += len(columns.static)
    place = _place(columns.codes, len(events.codes))
    chosen = seen & (place[code] >= 0)
    order, group, first, last = _by_code(row[chosen], place[code[chosen]], len(columns.codes))
    at_row, at_column = np.divmod(group, max(len(columns.codes), 1))
    out[:, start : start + 2 * len(columns.codes) : 2] = 0.0
    out[at_row, start + 2 * at_column] = last - first + 1
    latest = time[chosen][order][last]
    out[at_row, start + 2 * at_column + 1] = (prediction_us[at_row] - latest) / DAY_US
    start += 2 * len(columns.codes)
    place = _place(columns.numeric, len(events.codes))
    chosen = seen & (place[code] >= 0) & ~np.isnan(number)
    order, group, first, last = _by_code(row[chosen], place[code[chosen]], len(columns.numeric))
    if len(group):
        at_row, at_column = np.divmod(group, len(columns.numeric))
        values, size = number[chosen][order], last - first + 1
        found = (
            values[last],
            np.add.reduceat(values, first) / size,
            np.minimum.reduceat(values, first),
            np.maximum.reduceat(values, first),
            values[first],
        )
        for offset, of in enumerate(found):
            out[at_row, start + len(OF_NUMBER) * at_column + offset] = of
    return out.astype(np.float32)


def _place(chosen: Sequence[int], size: int) -> Array:
    """Code → its position among the chosen ones, −1 where it is none."""
    out = np.full(size, -1)
    out[list(chosen)] = np.arange(len(chosen))
    return out


def _groups(sorted_keys: Array) -> tuple[Array, Array, Array]:
    """Distinct keys with the first and the last position of each."""
    keys, first = np.unique(sorted_keys, return_index=True)
    return keys, first, np.r_[first[1:], len(sorted_keys)][: len(first)] - 1


def _by_code(row: Array, place: Array, size: int) -> tuple[Array, Array, Array, Array]:
    """Sort pairs by row and code, times staying in order: the order, and groups of row · size + code."""
    key = row * max(size, 1) + place
    order = np.argsort(key, kind="stable")
    return order, *_groups(key[order])


# ---- visits for sequence models --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bins:
    """Quintiles of each numeric code among what training rows know."""

    edges: Mapping[int, Array]

    @classmethod
    def fit(cls, events: Events, known: Known, columns: Columns) -> Bins:
        """Fit on training rows; each event counts once."""
        event = np.unique(known.event)
        code, number = events.code[event], events.number[event]
        return cls(
            {
                one: np.unique(np.quantile(number[(code == one) & ~np.isnan(number)], QUINTILES))
                for one in columns.numeric
            }
        )


def visits(
    events: Events,
    subject_id: Array,
    prediction_us: Array,
    *,
    age_years: Array,
    bins: Bins,
    window_days: float,
) -> list[list[list[str]]]:
    """Each row's past as a list of visits of code names: codes without a time and the age's decade are the first.

    Events of one window of time are a visit; numbers become `CODE//Q1` … `CODE//Q5`.

    Args:
        events: The records.
        subject_id: (n,).
        prediction_us: (n,).
        age_years: (n,) at p.
        bins: Of numbers.
        window_days: Length of a window.
    """
    known = known_events(events, subject_id, prediction_us)
    names = np.array(events.codes, dtype=object)[events.code[known.event]]
    for one, edges in bins.edges.items():
        which = np.flatnonzero(
            (events.code[known.event] == one) & ~np.isnan(events.number[known.event])
        )
        quintile = 1 + np.searchsorted(edges, events.number[known.event[which]], side="right")
        names[which] = [f"{events.codes[one]}//Q{q}" for q in quintile.tolist()]
    timed = events.time_us[known.event] != NO_TIME
    window = np.where(
        timed, np.floor_divide(events.time_us[known.event], round(window_days * DAY_US)), NO_TIME
    )
    out: list[list[list[str]]] = [
        [[f"AGE//{int(age // 10)}" if not np.isnan(age) else "AGE//unknown"]]
        for age in age_years.tolist()
    ]
    last = [NO_TIME] * len(out)
    for row, when, name in zip(known.row.tolist(), window.tolist(), names.tolist(), strict=True):
        if name == BIRTH:
            continue
        if when != last[row]:
            out[row].append([])
            last[row] = when
        out[row][-1].append(name)
    return [[sorted(set(visit)) for visit in one] for one in out]
