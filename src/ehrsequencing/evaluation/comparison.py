"""The rows that are compared together: one landmark, or all prediction times, with every model's risks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.config import format_days
from ehrsequencing.core.arrays import Bools, Floats, Ints, Ints32, row_blocks, scratch
from ehrsequencing.metrics.bootstrap import bootstrap_subjects
from ehrsequencing.metrics.censoring import RowCensoring, StepFunction
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
    """

    landmark_days: float | None
    subject: Ints
    duration_days: Floats
    cause: Ints
    horizons_days: Floats
    risk: dict[str, Floats]
    draws: NDArray[np.uint8]
    censoring: StepFunction | RowCensoring | None = None

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

    def scored(self, model: str, *, weights: Ints32 | None = None) -> ScoredRows:
        """One model's rows, as they are or under a block of weights (resamples, n)."""
        return ScoredRows.of(
            self.duration_days,
            self.cause,
            self.risk[model],
            self.horizons_days,
            weights=weights,
            censoring=self.censoring,
        )

    def events(self) -> Ints:
        """(causes, horizons) how many events of each cause were seen by each horizon."""
        n_causes = next(iter(self.risk.values())).shape[1]
        of_cause = self.cause == np.arange(1, n_causes + 1)[:, None]
        return np.stack(
            [(of_cause & (self.duration_days <= days)).sum(axis=1) for days in self.horizons_days],
            axis=1,
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
        out, few = [], self.horizons_days[self.too_few()[0]]
        if len(few):
            by = ", ".join(format_days(float(horizon)) for horizon in few)
            out.append(
                f"Nothing is compared by {by}{where}: fewer than {FEWEST_SUBJECTS} subjects are evaluated, or "
                f"fewer than {FEWEST_EVENTS} of them had the event."
            )
        for horizon in self.horizons_days[~self.scored(model).covered[0]]:
            out.append(
                f"The follow-up ends before {format_days(float(horizon))}{where}: that horizon is refused."
            )
        return out

    def longest_horizon(self, model: str) -> float:
        """The longest horizon that the follow-up reaches; else the shortest."""
        covered = self.horizons_days[self.scored(model).covered[0]]
        return float(covered[-1] if len(covered) else self.horizons_days[0])

    def smallest_g(self) -> Floats:
        """(horizons,) the smallest chance G of being followed; the largest weight is its inverse."""
        of_rows: Floats = self.scored(next(iter(self.risk))).smallest_g
        return np.asarray(of_rows[0], dtype=np.float64)

    def blocks(self) -> Iterator[Ints32]:
        """(block, n) multiplicities of the rows, over all resamples."""
        wanted = min(len(self.draws), max(FEWEST_RESAMPLES, MOST_DRAWN // max(len(self), 1)))
        step = max(1, BLOCK_ELEMENTS // max(len(self), 1))
        for start in range(0, wanted, step):
            yield self.draws[start : min(start + step, wanted)][:, self.subject].astype(np.int32)

    def among(self, inside: Bools) -> "Comparison":
        """The same scope with some of its rows."""
        censoring = self.censoring
        if isinstance(censoring, RowCensoring):
            censoring = replace(censoring, factor=censoring.factor[inside])
        risk = {name: values[inside] for name, values in self.risk.items()}
        return replace(
            self,
            subject=self.subject[inside],
            duration_days=self.duration_days[inside],
            cause=self.cause[inside],
            risk=risk,
            censoring=censoring,
        )

    def without_resamples(self) -> "Comparison":
        """The same scope, for point estimates only."""
        return replace(self, draws=self.draws[:0])

    def all_cause(self) -> "Comparison":
        """The same rows with all causes as one: any event, and the sum of the risks."""
        risk = {
            name: scratch(len(values), 1, values.shape[2]) for name, values in self.risk.items()
        }
        for name, values in self.risk.items():
            for some in row_blocks(len(values)):
                np.minimum(values[some].sum(axis=1, keepdims=True), 1.0, out=risk[name][some])
        return replace(self, cause=(self.cause > 0).astype(np.int64), risk=risk)


def draw_subjects(n_subjects: int, n_resamples: int, seed: int) -> NDArray[np.uint8]:
    """(n_resamples, n_subjects) how often each subject is drawn; nobody is drawn 256 times."""
    out, done = np.zeros((n_resamples, n_subjects), dtype=np.uint8), 0
    for block in (
        bootstrap_subjects(np.arange(n_subjects), n_resamples, seed) if n_resamples else ()
    ):
        out[done : done + len(block)] = block
        done += len(block)
    return out
