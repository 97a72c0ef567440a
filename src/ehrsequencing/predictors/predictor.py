"""`Predictor`: the one answer to "what is the risk of these rows?", by hazards that are constant in the bins of a grid.

A subclass says hazards; risks, likelihoods and recalibrated answers follow from them, and are defined here only.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core import arrays
from ehrsequencing.core.arrays import Floats, Floats32, scratch
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.hazards import cumulative_incidence, horizon_nll
from ehrsequencing.predictors.history import FeatureSpec, history_features
from ehrsequencing.records.timelines import TaskRecords, TaskRows

__all__ = ["Predictor", "in_parts"]

NETWORK = "network"  # name of that part
PART_ROWS = 2_000  # prediction times that are answered at once


@dataclass
class Known:
    """What is known of a part of some records: hazards by predictor (`id`), features by what asks for them."""

    hazards: dict[int, Floats] = field(default_factory=dict)
    history: dict[Hashable, Floats32] = field(default_factory=dict)


class Predictor(ABC):
    """Whatever answers at prediction times.

    Attributes:
        name: What tables call it.
        edges_days: The K − 1 inner edges of its grid, in days after the prediction time; the last bin is open.
        n_causes: E, how many causes it answers for.
        has_hazards: Whether it has hazards, and with them a likelihood.
        by_hazards: Whether its risks at any rows are those of its hazards there.
        members: Where it is an ensemble, what each of its members alone would answer.
    """

    name: str
    edges_days: tuple[float, ...]
    n_causes: int
    has_hazards: bool = True
    by_hazards: bool = True
    members: "Sequence[Predictor]" = ()

    def hazards(self, records: TaskRecords) -> Iterator[tuple[slice, Floats]]:
        """Some rows at a time, those of `in_parts`, and their hazards (r, E, K) per day, above 0.

        A subclass defines either this or `_of_part`, from which the other one follows.
        """
        for rows, part in in_parts(records):
            yield rows, self.of_part(part, Known())

    def of_part(self, part: TaskRecords, known: Known) -> Floats:
        """Hazards (r, E, K) per day of the rows of a part of `in_parts`; what is known of it is not made again."""
        if id(self) not in known.hazards:
            known.hazards[id(self)] = self._of_part(part, known)
        return known.hazards[id(self)]

    def _of_part(self, part: TaskRecords, known: Known) -> Floats:
        return self.all_hazards(part)

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
        out = np.empty(len(records))
        for rows, hazards in self.hazards(records):
            out[rows] = self.nll_of_hazards(hazards, records.rows, rows)
        return out

    def nll_of_hazards(self, hazards: Floats, labels: TaskRows, rows: slice) -> Floats:
        """(r,) NLL in nats of labelled rows for which these hazards (r, causes, bins) per day were predicted."""
        return horizon_nll(
            hazards,
            self.edges_days,
            duration_days=np.asarray(labels.duration_days[rows]),
            cause=labels.cause[rows],
            entry_days=labels.entry_days[rows],
        )

    def recalibrated(self, intercept: Floats, slope: Floats) -> "Predictor":
        """The same with shifted and stretched log-hazards, see `Recalibrated`."""
        return Recalibrated(self, intercept, slope)

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
        for rows, each in hazards_of_each([self, *self.members], records):
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
        ...     def _of_part(self, part, known):
        ...         return np.full((len(part), 1, 1), 0.01)
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

    def _of_part(self, part: TaskRecords, known: Known) -> Floats:
        hazards = self.inner.of_part(part, known)
        return np.exp(self.intercept + self.slope * np.log(hazards))


def risks_and_likelihoods(
    predictors: Mapping[str, Predictor],
    records: TaskRecords,
    horizons_days: Floats,
    *,
    start_days: float = 0.0,
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """`risk` (R, E, H) of each of some predictors, and `nll` (R,) of those that have one; what they share is made once.

    Risks are in float32's precision anyway, and most of these arrays are in float32.

    Args:
        predictors: By name.
        records: As of `risk`, with labels.
        horizons_days: As of `risk`.
        start_days: As of `risk`.
    """
    shared = {name: one for name, one in predictors.items() if one.by_hazards}
    risks = {
        name: scratch(len(records), one.n_causes, len(horizons_days), dtype=np.float32)
        if name in shared
        else one.risk(records, horizons_days, start_days=start_days)
        for name, one in predictors.items()
    }
    nll = {
        name: np.empty(len(records)) if name in shared else one.nll(records)
        for name, one in predictors.items()
        if one.has_hazards
    }
    for rows, each in hazards_of_each([*shared.values()], records):
        for (name, one), hazards in zip(shared.items(), each, strict=True):
            risks[name][rows] = one._incidence(hazards, horizons_days, start_days)
            nll[name][rows] = one.nll_of_hazards(hazards, records.rows, rows)
    return risks, nll


def hazards_of_each(
    predictors: Sequence[Predictor], records: TaskRecords
) -> Iterator[tuple[slice, list[Floats]]]:
    """Some rows at a time, and the hazards (r, causes, bins) per day of each predictor there.

    Features that several look at are made once.
    """
    for rows, part in in_parts(records):
        known = Known()
        yield rows, [one.of_part(part, known) for one in predictors]


def member_band(risk: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Where 95 % of the members' risks lie: from the 2.5 % to the 97.5 % point, both rounded outwards to a member.

    With up to 40 members these are the least and the greatest. They show how far the risk depends on the randomness of
    training, not how far it is from the truth.

    Args:
        risk: (M, ...) one for each member.

    Returns:
        The lower and the upper end, (...) each.

    Example:
        >>> low, high = member_band(np.array([[0.1, 0.5], [0.2, 0.4], [0.3, 0.6]]))
        >>> low.tolist(), high.tolist()
        ([0.1, 0.4], [0.3, 0.6])
    """
    low = np.quantile(risk, 0.025, axis=0, method="lower")
    return np.asarray(low), np.asarray(np.quantile(risk, 0.975, axis=0, method="higher"))


def in_parts(records: TaskRecords) -> Iterator[tuple[slice, TaskRecords]]:
    """Consecutive subjects with at most `PART_ROWS` prediction times, or one subject, and their rows."""
    bounds, start, most = records.rows.row_offsets, 0, min(PART_ROWS, arrays.BLOCK_ROWS)
    while start < len(bounds) - 1:
        stop = int(np.searchsorted(bounds, bounds[start] + most, side="right")) - 1
        stop = min(max(stop, start + 1), len(bounds) - 1)
        if bounds[stop] > bounds[start]:
            yield slice(int(bounds[start]), int(bounds[stop])), records.take(slice(start, stop))
        start = stop


# ---- of a record by its history features alone -----------------------------------------------------------------------


class OfHistory(Predictor):
    """A predictor of history features.

    Attributes:
        columns: Which features it is given.
    """

    columns: FeatureSpec

    @abstractmethod
    def of_history(self, history: Floats32, rows: TaskRows) -> Floats:
        """Hazards (r, causes, bins) per day of rows with these features (r, F)."""

    def _of_part(self, part: TaskRecords, known: Known) -> Floats:
        if self.columns not in known.history:
            known.history[self.columns] = history_features(
                part, chosen=np.arange(len(part)), columns=self.columns
            )
        return self.of_history(known.history[self.columns], part.rows)
