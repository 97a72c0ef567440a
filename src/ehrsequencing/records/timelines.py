"""Encoded records as packed arrays: visits as token ids, and the prediction times of a task with their labels.

`encoding.py` makes these arrays from events. This file defines them, and takes, joins and cuts them by subject. On disk
each field is a `.npy` file, which is appended to while it is made and read by memory map.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import (
    ArrayWriter,
    Bools,
    Floats,
    Floats32,
    Ints,
    Ints32,
    ragged,
    spans,
)
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.events import DAY_US

_OF_VISITS = ("start_us", "end_us", "age_years", "delta_days")


@dataclass(frozen=True)
class Timelines:
    """Encoded visits of S subjects: N visits, K codes (layout of `PREPARED/visits/SPLIT`)."""

    subject_id: Ints  # (S,) int64
    birth_us: Ints  # (S,) int64, `STATIC` where unknown
    subject_offsets: Ints  # (S+1,) int64; subject s owns visits `[offsets[s], offsets[s+1])`
    start_us: Ints  # (N,) int64
    end_us: Ints  # (N,) int64
    age_years: Floats32  # (N,) float32 at the visit's start, NaN where unknown
    delta_days: Floats32  # (N,) float32 since the end of the visit before, 0 for the first
    visit_offsets: Ints  # (N+1,) int64; visit n owns codes `[offsets[n], offsets[n+1])`
    codes: Ints32  # (K,) int32 token ids, ordered by time, then id, within a visit
    values: Floats32  # (K, 2) float32 rank and standardised value, NaN without a number
    static_codes: Ints32  # (·,) int32 token ids of codes without a time
    static_offsets: Ints  # (S+1,) int64

    def __len__(self) -> int:
        return len(self.subject_id)

    @property
    def owner(self) -> Ints:
        """(N,) row of the subject that owns each visit."""
        return np.repeat(np.arange(len(self)), np.diff(self.subject_offsets))

    @property
    def static_owner(self) -> Ints:
        """(·,) row of the subject that owns each static code."""
        return np.repeat(np.arange(len(self)), np.diff(self.static_offsets))

    def take(self, subjects: Ints | slice) -> "Timelines":
        """Some subjects, in the order given; a slice of subjects gives views, except for the offsets."""
        visits, subject_offsets = _owned(self.subject_offsets, subjects)
        codes, visit_offsets = _owned(self.visit_offsets, visits)
        static, static_offsets = _owned(self.static_offsets, subjects)
        return Timelines(
            subject_id=self.subject_id[subjects],
            birth_us=self.birth_us[subjects],
            subject_offsets=subject_offsets,
            **{name: getattr(self, name)[visits] for name in _OF_VISITS},
            visit_offsets=visit_offsets,
            codes=self.codes[codes],
            values=_items(self.values, codes),
            static_codes=self.static_codes[static],
            static_offsets=static_offsets,
        )


@dataclass(frozen=True)
class TaskRows:
    """A task's R prediction times for the S subjects of a `Timelines` (layout of `PREPARED/tasks/NAME/SPLIT`)."""

    row_offsets: (
        Ints  # (S+1,) int64; subject s owns rows `[offsets[s], offsets[s+1])`, in time order
    )
    prediction_us: Ints  # (R,) int64
    index_us: Ints  # (R,) int64
    is_query: Bools  # (R,) bool
    visits_before: (
        Ints32  # (R,) int32, visits of the subject with `end ≤ p`; a visit row is the last of them
    )
    age_years: Floats32  # (R,) float32 at p
    # (R,) float32 since the end of the last visit before p, 0 without one; where p lies in a visit, since the last
    # event of that visit that is stamped ≤ p
    delta_days: Floats32
    # (R,) int32, where a query lies in a visit that ends later: how many of that visit's codes are stamped ≤ p. They
    # are its first ones (codes stand in the order of their times), and the query sees them as one more visit; 0
    # elsewhere
    unfinished_codes: Ints32
    duration_days: Floats  # (R,) float64, NaN without labels
    entry_days: Floats  # (R,) float64, when exposure starts
    cause: NDArray[np.int8]  # (R,) int8
    carry_offsets: Ints  # (R+1,) int64 into the summary tokens; visit rows own none
    carry_codes: Ints32  # (·,) int32
    carry_values: Floats32  # (·, 2) float32

    def __len__(self) -> int:
        return len(self.prediction_us)

    def at_landmark(self, landmark_days: float) -> Bools:
        """(R,) which rows are the query asked `landmark_days` after their index."""
        return np.asarray(
            self.is_query & (self.prediction_us - self.index_us == round(landmark_days * DAY_US))
        )

    @property
    def subject(self) -> Ints:
        """(R,) subject row that owns each prediction time."""
        return np.repeat(np.arange(len(self.row_offsets) - 1), np.diff(self.row_offsets))

    def numbers(self, subjects: Ints) -> Ints:
        """Which rows some subjects own, in the order in which `take` has them."""
        return ragged(self.row_offsets, subjects)[0]

    def take(self, subjects: Ints | slice) -> "TaskRows":
        """The prediction times of some subjects, in the order given; a slice of subjects gives views."""
        return self.select(*_owned(self.row_offsets, subjects))

    def select(self, chosen: Ints | slice, row_offsets: Ints) -> "TaskRows":
        """Some prediction times, given to new subjects.

        Args:
            chosen: (r,) row numbers, in the new order.
            row_offsets: (S+1,) new subject s owns the chosen rows `[offsets[s], offsets[s+1])`.
        """
        carry, carry_offsets = _owned(self.carry_offsets, chosen)
        new: dict[str, Any] = {
            "row_offsets": row_offsets,
            "carry_offsets": carry_offsets,
            "carry_codes": _items(self.carry_codes, carry),
            "carry_values": _items(self.carry_values, carry),
        }
        for field in fields(self):
            if field.name not in new:
                new[field.name] = getattr(self, field.name)[chosen]
        return TaskRows(**new)


@dataclass(frozen=True)
class OutcomeEvents:
    """When a task's outcomes were recorded for the S subjects of a `Timelines`, sorted by subject, outcome and time.

    `outcomes.py` makes them, and labels of prediction times from them.
    """

    outcome_offsets: Ints  # (S+1,) int64; subject s owns events `[offsets[s], offsets[s+1])`
    outcome_codes: Ints32  # (·,) int32, number of the outcome among those of the task
    outcome_us: Ints  # (·,) int64

    def take(self, subjects: Ints | slice) -> "OutcomeEvents":
        """The events of some subjects, in the order given."""
        events, offsets = _owned(self.outcome_offsets, subjects)
        return OutcomeEvents(offsets, self.outcome_codes[events], self.outcome_us[events])


@dataclass(frozen=True)
class TaskRecords:
    """Visits of S subjects, with a task's R prediction times for the same subjects."""

    timelines: Timelines  # visits
    rows: TaskRows  # prediction times, owned by the subjects of `timelines` in the same order
    # events of the same subjects, for tasks with many outcomes
    outcomes: OutcomeEvents | None = None

    def __len__(self) -> int:
        """Number of prediction times."""
        return len(self.rows)

    @property
    def subject_id(self) -> Ints:
        """(R,) id of the subject that owns each prediction time."""
        return self.timelines.subject_id[self.rows.subject]

    def at_landmark(self, landmark_days: float) -> Ints:
        """(r,) numbers of the queries asked `landmark_days` after their index."""
        return np.flatnonzero(self.rows.at_landmark(landmark_days))

    def take(self, subjects: Ints | slice) -> "TaskRecords":
        """Some subjects, in the order given."""
        events = None if self.outcomes is None else self.outcomes.take(subjects)
        return TaskRecords(self.timelines.take(subjects), self.rows.take(subjects), events)


def as_of(
    timelines: Timelines, subjects: Ints, *, visits: Ints, unfinished_codes: Ints, end_us: Ints
) -> Timelines:
    """Records cut at moments that lie in a visit, each as a subject of its own.

    Args:
        timelines: Whole records.
        subjects: (m,) rows of `timelines`.
        visits: (m,) how many visits had ended.
        unfinished_codes: (m,) how many codes of the next visit were known; at least one.
        end_us: (m,) the last of these codes' times.

    Returns:
        m subjects with `visits + 1` visits each.
    """
    visit, subject_offsets = spans(timelines.subject_offsets[subjects], visits + 1)
    newest = subject_offsets[1:] - 1
    start = timelines.visit_offsets[visit]
    length = timelines.visit_offsets[visit + 1] - start
    length[newest] = unfinished_codes
    codes, visit_offsets = spans(start, length)
    stood = replace(
        timelines.take(subjects),
        subject_offsets=subject_offsets,
        visit_offsets=visit_offsets,
        codes=timelines.codes[codes],
        values=timelines.values.take(codes, axis=0),
        **{name: np.array(getattr(timelines, name)[visit]) for name in _OF_VISITS},
    )
    stood.end_us[newest] = end_us
    return stood


Stored = TypeVar("Stored", Timelines, TaskRows, OutcomeEvents)


Arrays = TypeVar("Arrays")  # a dataclass of arrays


def joined(parts: Sequence[Arrays]) -> Arrays:
    """The arrays of several groups of subjects, one group after another."""
    kind: Any = type(parts[0])
    columns: dict[str, Any] = {}
    for field in fields(kind):
        arrays = [getattr(part, field.name) for part in parts]
        if field.name.endswith("_offsets"):
            lengths = np.concatenate([np.diff(array) for array in arrays])
            columns[field.name] = np.r_[0, np.cumsum(lengths)].astype(np.int64)
        else:
            columns[field.name] = np.concatenate(arrays)
    made: Arrays = kind(**columns)
    return made


def _owned(offsets: Ints, owners: Ints | slice) -> tuple[Ints | slice, Ints]:
    """Where the items of some owners are, and the offsets of these owners among them."""
    if not isinstance(owners, slice):
        return ragged(offsets, owners)
    own = offsets[owners.start : owners.stop + 1]
    return slice(int(own[0]), int(own[-1])), own - own[0]


def _items(array: NDArray[Any], items: Ints | slice) -> NDArray[Any]:
    # `take` is faster than indexing in two dimensions
    return array[items] if isinstance(items, slice) else array.take(items, axis=0)


class ArrayAppender:
    """Open `.npy` files, one a field; the arrays of some subjects after another are appended to them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._writers: dict[Path, ArrayWriter] = {}

    def append(self, folder: Path, arrays: Timelines | TaskRows | OutcomeEvents) -> None:
        """Append every field to its file under `folder`; offsets go on where those before ended."""
        for field in fields(arrays):
            path, rows = folder / f"{field.name}.npy", getattr(arrays, field.name)
            is_offsets = field.name.endswith("_offsets")
            if path not in self._writers:
                writer = ArrayWriter(path, rows.dtype, rows.shape[1:])
                self._writers[path] = self._stack.enter_context(writer)
                if is_offsets:
                    writer.append(np.zeros(1, np.int64))
            if is_offsets:
                rows = rows[1:] + self._writers[path].last
            if len(rows):
                self._writers[path].append(rows)


def open_arrays(kind: type[Stored], folder: Path) -> Stored:
    """Memory-map every field of an array class; empty files cannot be mapped and are loaded."""
    arrays = dict[str, Any]()
    for field in fields(kind):
        path = folder / f"{field.name}.npy"
        try:
            # as a plain array, since a `memmap` slices slowly
            arrays[field.name] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        except ValueError:
            arrays[field.name] = np.load(path, allow_pickle=False)
        except OSError as error:
            raise EhrseqError("cannot be read", where=str(path), fix="prepare again") from error
    return kind(**arrays)
