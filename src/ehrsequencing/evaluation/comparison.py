"""The rows that are compared together: one landmark, or all prediction times, with every model's risks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.config import format_days
from ehrsequencing.core.arrays import Bools, Floats, Ints, Ints32
from ehrsequencing.metrics.bootstrap import bootstrap_subjects
from ehrsequencing.metrics.censoring import StepFunction, SubjectClock
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.records.attrition import FEWEST_EVENTS, FEWEST_SUBJECTS, from_index, too_few

OURS, ORACLE = "ehrsequencing", "true hazards"
NETWORK = "network alone"  # of a blend
#: Resamples × rows at all prediction times together; above, fewer resamples are drawn, but never under a hundred.
MOST_DRAWN, FEWEST_RESAMPLES = 10_000_000, 100
#: Resamples × rows held at a time.
BLOCK_ELEMENTS = 2**22


@dataclass(frozen=True)
class Comparison:
    """Rows of one landmark (None: all prediction times together) with the risks of every model.

    Attributes:
        landmark_days: Days after the index.
        subject: (n,) subject of each row.
        duration_days: (n,) from the prediction time.
        cause: (n,) int, 0 = censored.
        horizons_days: (H,).
        risk: Model name → (n, causes, H), ours first, then the strongest baseline.
        draws: (resamples, subjects) how often the bootstrap drew each subject; the same in every scope, so that
            landmarks, models and their differences are paired. No resamples: no intervals. One byte each.
        censoring: G fitted on other rows, one for all or one for each; None: on these, again for each resample.
        potential_days: (n,) until follow-up ends by design; infinite where nothing ends it so. None: nowhere.
        expected: Model name → (n, causes, H), events that its hazards expect of each row while it is under observation.
        by_hazards: Whether O/E is that of `expected`. One model without hazards, and O/E of all models is of their
            risks.
    """

    landmark_days: float | None
    subject: Ints
    duration_days: Floats
    cause: Ints
    horizons_days: Floats
    risk: dict[str, Floats]
    draws: NDArray[np.uint8]
    censoring: StepFunction | SubjectClock | None = None
    potential_days: Floats | None = None
    expected: dict[str, Floats] = field(default_factory=dict)
    by_hazards: bool = True

    def __len__(self) -> int:
        return len(self.duration_days)

    @property
    def where(self) -> str:
        """The place in words, as in `at the index`."""
        return (
            "at all prediction times"
            if self.landmark_days is None
            else from_index(self.landmark_days)
        )

    def scored(
        self, model: str, *, weights: Ints32 | None = None, too_few: Bools | None = None
    ) -> ScoredRows:
        """One model's rows, as they are or under a block of weights (resamples, n)."""
        return ScoredRows.of(
            self.duration_days,
            self.cause,
            self.risk[model],
            self.horizons_days,
            weights=weights,
            censoring=self.censoring,
            expected=self.expected.get(model) if self.by_hazards else None,
            too_few=too_few,
        )

    def followed(self, horizon_days: float) -> Bools:
        """(n,) rows whose follow-up could last until the horizon: what ends before by design is no drop-out."""
        every = np.ones(len(self), dtype=bool)
        inside = every if self.potential_days is None else self.potential_days >= horizon_days
        if isinstance(self.censoring, SubjectClock):
            inside = inside & self.censoring.covers(horizon_days)
        return inside

    def parts(self) -> "list[Comparison]":
        """The horizons in order, those of the same rows together: each with the rows that could be followed so long."""
        divided: list[Comparison] = []
        start, inside = 0, self.followed(self.horizons_days[0])
        for h, horizon in enumerate(self.horizons_days):
            here = self.followed(horizon)
            if not np.array_equal(here, inside):
                divided.append(self._part(inside, slice(start, h)))
                start, inside = h, here
        return [*divided, self._part(inside, slice(start, len(self.horizons_days)))]

    def until(self, horizon_days: float) -> "Comparison":
        """The same rows with the risks up to a day."""
        return self._part(
            np.ones(len(self), dtype=bool),
            slice(0, int(np.searchsorted(self.horizons_days, horizon_days)) + 1),
        )

    def alone(self, *models: str) -> "Comparison":
        """The same rows with the risks of some models."""
        return replace(
            self,
            risk={name: self.risk[name] for name in models},
            expected={name: own for name, own in self.expected.items() if name in models},
        )

    def _part(self, inside: Bools, horizons: slice) -> "Comparison":
        part = self if inside.all() else self.among(inside)
        if len(self.horizons_days[horizons]) == len(self.horizons_days):
            return part
        return replace(
            part,
            horizons_days=self.horizons_days[horizons],
            risk={name: values[:, :, horizons] for name, values in part.risk.items()},
            expected={name: values[:, :, horizons] for name, values in part.expected.items()},
        )

    @property
    def subjects(self) -> int:
        """How many subjects there are; at all prediction times together each has many rows."""
        return len(np.unique(self.subject))

    def subjects_with_event(self) -> Ints:
        """(causes, horizons) how many subjects were seen to have each cause by each horizon after one of their rows."""
        n_causes = next(iter(self.risk.values())).shape[1]
        counts = np.zeros((n_causes, len(self.horizons_days)), dtype=np.int64)
        for e, h in np.ndindex(*counts.shape):
            seen = (self.cause == e + 1) & (self.duration_days <= self.horizons_days[h])
            counts[e, h] = len(np.unique(self.subject[seen]))
        return counts

    def too_few(self) -> Bools:
        """(causes, horizons) where there are too few subjects or events for an interval or a comparison."""
        return too_few(self.subjects_with_event(), self.subjects)

    def warnings(self, model: str) -> list[str]:
        """Horizons at which nothing is compared for want of people, and those that the follow-up does not reach."""
        landmark = self.landmark_days
        where = "" if landmark is None else f", predicted {format_days(landmark)} after the index"
        out, few, short = [], list[str](), list[str]()
        for part in self.alone(model).parts():
            names = [format_days(float(horizon)) for horizon in part.horizons_days]
            few += [name for name, lacks in zip(names, part.too_few()[0], strict=True) if lacks]
            if self.potential_days is not None:
                longest = self.potential_days.min(initial=np.inf)
                short += [
                    name for name, h in zip(names, part.horizons_days, strict=True) if longest < h
                ]
            covered = part.scored(model).covered[0] if len(part) else np.ones(len(names), bool)
            out += [
                f"The follow-up ends before {name}{where}: that horizon is refused."
                for name, reached in zip(names, covered, strict=True)
                if not reached
            ]
        if short:
            out.append(
                f"Some subjects could not be followed for {', '.join(short)}{where}, because follow-up ends by design. "
                "C, AUC, Brier score, IPA and calibration are those of the others there, whose number the tables give; "
                "O/E is of everybody."
            )
        if few:
            out.append(
                f"Nothing is compared by {', '.join(few)}{where}: fewer than {FEWEST_SUBJECTS} subjects are evaluated, "
                f"or fewer than {FEWEST_EVENTS} of them had the event."
            )
        return out

    def smallest_g(self) -> Floats:
        """(horizons,) the smallest chance G of being followed; the largest weight is its inverse. 1 without rows."""
        model = next(iter(self.risk))
        smallest = [
            part.scored(model).smallest_g[0] if len(part) else np.ones(len(part.horizons_days))
            for part in self.alone(model).parts()
        ]
        return np.concatenate(smallest).astype(np.float64)

    def blocks(self) -> Iterator[Ints32]:
        """(block, n) multiplicities of the rows, over all resamples."""
        step = max(1, BLOCK_ELEMENTS // max(len(self), 1))
        for start in range(0, len(self.draws), step):
            yield self.draws[start : start + step][:, self.subject].astype(np.int32)

    def among(self, inside: Bools) -> "Comparison":
        """The same scope with some of its rows."""
        censoring, potential = self.censoring, self.potential_days
        return replace(
            self,
            subject=self.subject[inside],
            duration_days=self.duration_days[inside],
            cause=self.cause[inside],
            risk={name: values[inside] for name, values in self.risk.items()},
            censoring=censoring.take(inside) if isinstance(censoring, SubjectClock) else censoring,
            potential_days=None if potential is None else potential[inside],
            expected={name: values[inside] for name, values in self.expected.items()},
        )

    def without_resamples(self) -> "Comparison":
        """The same scope, for point estimates only."""
        return replace(self, draws=self.draws[:0])


def main_place(
    comparisons: "Sequence[Comparison]", model: str, horizon_days: float | None = None
) -> tuple[float | None, float]:
    """The landmark and horizon that every headline is of: most people with the event among those evaluated there.

    Only where the follow-up reaches the horizon; of equals the earlier landmark, then the shorter horizon. Where
    nothing is reached, the first landmark and horizon; all prediction times together only where there is no landmark.
    A horizon that the task names (`horizon_days`) is always that of the headlines.
    """
    at_landmarks = [one for one in comparisons if one.landmark_days is not None]
    places: list[tuple[int, float | None, float]] = []
    for one in at_landmarks or comparisons:
        for part in one.parts():
            if not len(part):
                continue
            events, covered = part.subjects_with_event()[0], part.scored(model).covered[0]
            places += [
                (int(count), one.landmark_days, float(horizon))
                for count, horizon, reached in zip(events, part.horizons_days, covered, strict=True)
                if reached and horizon_days in (None, horizon)
            ]
    if not places:
        first = (at_landmarks or comparisons)[0]
        return first.landmark_days, horizon_days or float(first.horizons_days[0])
    most = max(count for count, *_ in places)
    _, landmark, horizon = next(place for place in places if place[0] == most)
    return landmark, horizon


def draw_subjects(n_subjects: int, n_resamples: int, seed: int) -> NDArray[np.uint8]:
    """(n_resamples, n_subjects) how often each subject is drawn; nobody is drawn 256 times."""
    out, done = np.zeros((n_resamples, n_subjects), dtype=np.uint8), 0
    for block in (
        bootstrap_subjects(np.arange(n_subjects), n_resamples, seed) if n_resamples else ()
    ):
        out[done : done + len(block)] = block
        done += len(block)
    return out
