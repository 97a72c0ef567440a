"""`Predictor`: the one answer to "what is the risk of these rows?", by hazards that are constant in the bins of a grid.

A subclass says hazards; risks, likelihoods and recalibrated answers follow from them, and are defined here only.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from ehrsequencing.core import arrays
from ehrsequencing.core.arrays import Floats, scratch
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.hazards import cumulative_incidence, horizon_nll
from ehrsequencing.records.timelines import TaskRecords

__all__ = ["Predictor", "in_parts"]


class Predictor(ABC):
    """Whatever answers at prediction times.

    Attributes:
        name: What tables call it.
        edges_days: The K − 1 inner edges of its grid, in days after the prediction time; the last bin is open.
        n_causes: E, how many causes it answers for.
        has_hazards: Whether it has hazards, and with them a likelihood.
        members: Where it is an ensemble, what each of its members alone would answer.
    """

    name: str
    edges_days: tuple[float, ...]
    n_causes: int
    has_hazards: bool = True
    members: Sequence["Predictor"] = ()

    @abstractmethod
    def hazards(self, records: TaskRecords) -> Iterator[tuple[slice, Floats]]:
        """Some rows at a time, those of `in_parts`, and their hazards (r, E, K) per day, above 0."""

    def risk(
        self,
        records: TaskRecords,
        horizons_days: Sequence[float] | Floats,
        *,
        start_days: float = 0.0,
    ) -> Floats:
        """Cumulative incidence of each cause by each horizon, at every prediction time.

        Args:
            records: Visits and prediction times, of any split or none.
            horizons_days: (H,) days after the prediction time.
            start_days: Given no event for so long after the prediction time (a task's blanking).

        Returns:
            (R, E, H), in float32's precision: what a file of predictions holds is what is evaluated.
        """
        days = np.asarray(horizons_days, dtype=np.float64)
        out = scratch(len(records), self.n_causes, len(days))
        for rows, hazards in self.hazards(records):
            out[rows] = self._incidence(hazards, days, start_days)
        return out

    def nll(self, records: TaskRecords) -> Floats:
        """Negative log-likelihood (R,) of every labelled prediction time.

        Raises:
            EhrseqError: It knows risks alone.
        """
        if not self.has_hazards:
            raise without_hazards(self.name)
        labels, out = records.rows, np.empty(len(records))
        for rows, hazards in self.hazards(records):
            out[rows] = horizon_nll(
                hazards,
                self.edges_days,
                duration_days=np.asarray(labels.duration_days[rows]),
                cause=labels.cause[rows],
                entry_days=labels.entry_days[rows],
            )
        return out

    def recalibrated(self, intercept: Floats, slope: Floats) -> "Predictor":
        """The same with shifted and stretched log-hazards, see `Recalibrated`."""
        return Recalibrated(self, intercept, slope)

    def spread(self, records: TaskRecords) -> Iterator[tuple[slice, Floats]]:
        """Some rows at a time: hazards (1 + M, r, E, K) per day of the predictor, then of each of its M members."""
        every = [self, *self.members]
        for parts in zip(*(one.hazards(records) for one in every), strict=True):
            yield parts[0][0], np.stack([hazards for _, hazards in parts])

    def risk_of_members(
        self,
        records: TaskRecords,
        horizons_days: Sequence[float] | Floats,
        *,
        start_days: float = 0.0,
    ) -> tuple[Floats, Floats]:
        """`risk` (R, E, H), and that of each member (M, R, E, H); see there."""
        days = np.asarray(horizons_days, dtype=np.float64)
        out = np.empty((1 + len(self.members), len(records), self.n_causes, len(days)))
        for rows, each in self.spread(records):
            for m, hazards in enumerate(each):
                out[m, rows] = self._incidence(hazards, days, start_days)
        return out[0], out[1:]

    def _incidence(self, hazards: Floats, days: Floats, start_days: float) -> Floats:
        risk = cumulative_incidence(hazards, self.edges_days, days, start_days=start_days)
        return risk.astype(np.float32).astype(np.float64)

    def all_hazards(self, records: TaskRecords) -> Floats:
        """(R, E, K) hazards per day of all rows at once."""
        out = np.empty((len(records), self.n_causes, len(self.edges_days) + 1))
        for rows, hazards in self.hazards(records):
            out[rows] = hazards
        return out


def without_hazards(name: str) -> EhrseqError:
    """The error of a predictor that knows risks alone, where hazards or a likelihood are wanted."""
    return EhrseqError(
        "has risks at some days and no hazards, so that there is no likelihood",
        where=name,
        fix="compare it by its risks",
    )


class Recalibrated(Predictor):
    """A predictor whose log-hazards are shifted and stretched, cause by cause.

        log λ'_{e,k} = a_{e,k} + b_{e,k} · log λ_{e,k}

    Args:
        inner: The predictor, which is not changed.
        intercept: a, one a cause (E,) or one a cause and bin (E, K).
        slope: b, likewise.

    Example:
        >>> class Constant(Predictor):
        ...     name, edges_days, n_causes = "constant", (), 1
        ...     def hazards(self, records):
        ...         for rows, part in in_parts(records):
        ...             yield rows, np.full((len(part), 1, 1), 0.01)
        >>> double = Constant().recalibrated(np.log([2.0]), np.array([1.0]))
        >>> double.name, double.slope.shape
        ('constant', (1, 1))
    """

    def __init__(self, inner: Predictor, intercept: Floats, slope: Floats) -> None:
        self.inner, self.name = inner, inner.name
        self.edges_days, self.n_causes = inner.edges_days, inner.n_causes
        self.intercept, self.slope = (
            np.reshape(numbers, (inner.n_causes, -1)) for numbers in (intercept, slope)
        )
        self.members = [one.recalibrated(intercept, slope) for one in inner.members]

    def hazards(self, records: TaskRecords) -> Iterator[tuple[slice, Floats]]:
        """See `Predictor`."""
        for rows, hazards in self.inner.hazards(records):
            yield rows, np.exp(self.intercept + self.slope * np.log(hazards))

    def spread(self, records: TaskRecords) -> Iterator[tuple[slice, Floats]]:
        """See `Predictor`."""
        for rows, each in self.inner.spread(records):
            yield rows, np.exp(self.intercept + self.slope * np.log(each))


def in_parts(records: TaskRecords) -> Iterator[tuple[slice, TaskRecords]]:
    """Consecutive subjects with at most `arrays.BLOCK_ROWS` prediction times, or one subject, and their rows."""
    bounds, start = records.rows.row_offsets, 0
    while start < len(bounds) - 1:
        stop = int(np.searchsorted(bounds, bounds[start] + arrays.BLOCK_ROWS, side="right")) - 1
        stop = min(max(stop, start + 1), len(bounds) - 1)
        if bounds[stop] > bounds[start]:
            yield slice(int(bounds[start]), int(bounds[stop])), records.take(slice(start, stop))
        start = stop
