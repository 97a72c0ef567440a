"""Risks of a file as a predictor, and curves through risks that are known at some horizons."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from ehrsequencing.config import format_days
from ehrsequencing.core.arrays import Bools, Floats
from ehrsequencing.metrics.hazards import (
    LEAST_SURVIVAL,
    cumulative_incidence,
    hazards_through,
    horizon_nll,
)
from ehrsequencing.metrics.outcomes import ROUNDING
from ehrsequencing.predictors.predictor import Predictor, without_hazards
from ehrsequencing.records.timelines import TaskRecords, TaskRows

# Horizons from which the curve through them has nearly the model's likelihood: in the simulator's default world five
# evenly spaced ones keep 97 % of what the true hazards gain over the cohort's, three 89 %, one 75 %.
FEWEST_KNOTS = 5


class FromFile(Predictor):
    """Risks that somebody else's model gave, at their prediction times and horizons.

    Args:
        name: Of the model.
        records: The prediction times (R) with their labels; it answers for these, whatever is asked.
        horizons_days: (H,) horizons of the file, among them the task's.
        values: (R, causes, H) the risks.
        edges_days: Of the grid on which its rivals are fitted.
        start_days: They are given no event for so long (the task's blanking).
    """

    by_hazards = False

    def __init__(
        self,
        name: str,
        records: TaskRecords,
        horizons_days: Floats,
        values: Floats,
        *,
        edges_days: tuple[float, ...],
        start_days: float,
    ) -> None:
        self.name, self.labels = name, records
        self.horizons_days, self.values = horizons_days, values
        self.edges_days, self.start_days = edges_days, start_days
        self.n_causes = values.shape[1]

    @cached_property
    def incoherent(self) -> Bools:
        """(R,) prediction times at which a risk falls with the horizon, or the causes' risks sum to more than 1."""
        falling = (np.diff(self.values, axis=2) < -ROUNDING).any(axis=(1, 2))
        total = self.values.sum(axis=1).max(axis=1)
        return np.asarray(falling | (total > 1 + ROUNDING * self.values.shape[1]), dtype=np.bool_)

    @property
    def is_curve(self) -> bool:
        """Whether it has the risk at every day up to the last horizon: enough horizons, and incidences."""
        return len(self.horizons_days) >= FEWEST_KNOTS and not self.incoherent.any()

    @cached_property
    def _rising(self) -> Floats:
        """The risks without what rounding does."""
        rising = np.maximum.accumulate(self.values, axis=2)
        return np.asarray(
            rising / np.maximum(rising.sum(axis=1, keepdims=True), 1.0), dtype=np.float64
        )

    def hazards(self, records: TaskRecords) -> Iterator[tuple[slice, Floats]]:
        """A file has none: its likelihood is that of the curve through its risks (`nll`).

        Raises:
            EhrseqError: Always.
        """
        raise without_hazards(self.name)

    def risk(
        self,
        records: TaskRecords,
        horizons_days: Sequence[float] | Floats,
        *,
        start_days: float = 0.0,
    ) -> Floats:
        """At horizons of the file its own risks, at other days those of the curve through them; see `Predictor`."""
        horizons_days = np.asarray(horizons_days, dtype=np.float64)
        at = np.minimum(
            np.searchsorted(self.horizons_days, horizons_days), len(self.horizons_days) - 1
        )
        known = self.horizons_days[at] == horizons_days
        out = np.empty((*self.values.shape[:2], len(horizons_days)))
        out[:, :, known] = self.values[:, :, at[known]]
        if not known.all():
            days, start = horizons_days[~known], self.start_days
            out[:, :, ~known] = risk_through(
                self._rising, self.horizons_days, days, start_days=start
            )
        return out

    @cached_property
    def _nll(self) -> Floats:
        start = self.start_days
        return nll_through(self._rising, self.horizons_days, self.labels.rows, start_days=start)

    @property
    def has_hazards(self) -> bool:  # type: ignore[override]
        """Whether the curve through the risks has a likelihood: no event falls where it is flat."""
        return self.is_curve and bool(np.isfinite(self._nll).all())

    def nll(self, records: TaskRecords) -> Floats:
        """The likelihood of the curve through the risks (`nll_through`); see `Predictor`."""
        return self._nll if self.has_hazards else super().nll(records)

    def warnings(self) -> list[str]:
        """Why there is no likelihood, or what kind of likelihood it is."""
        if self.incoherent.any():
            return [
                "At some prediction times a risk falls with the horizon, or the "
                "causes' risks sum to over 1. NLL and the integrated Brier score are left out: these are no cumulative "
                "incidences."
            ]
        if not self.is_curve:
            return [
                f"NLL and the integrated Brier score are left out: they need the risks of {FEWEST_KNOTS} or more "
                f"horizons, and the file has {len(self.horizons_days)}."
            ]
        if not np.isfinite(self._nll).all():
            return [
                "NLL is left out: some events fall where the predicted curve is flat, so that it is infinite."
            ]
        last = format_days(float(self.horizons_days[-1]))
        return [
            f"NLL is that of curves through the risks at the {len(self.horizons_days)} horizons of the file, with the "
            f"follow-up cut at {last}. It is so for every model here, and cannot be compared with other reports."
        ]


def nll_through(
    risk: Floats, knots_days: Floats, rows: TaskRows, *, start_days: float = 0.0
) -> Floats:
    """Likelihood of the curve through the risks, with the follow-up cut at the last knot τ_K.

        NLL_p = Σ_e Σ_k λ_{e,k} · |[τ_{k−1}, τ_k) ∩ [s, min(T, τ_K))|  −  Σ_e 1[cause = e, T ≤ τ_K] · log λ_{e, k(T)}

    with the hazards of `hazards_through`. Between two knots it knows no more than that the hazard is constant: what a
    model says within them is neither rewarded nor punished beyond that, so that it must be the same for all models that
    are compared.

    Args:
        risk: (R, E, K) cumulative incidence at each knot, given no event until s.
        knots_days: (K,) rising.
        rows: The prediction times with their labels.
        start_days: s, the task's blanking.

    Returns:
        (R,); infinite where an event falls between two knots at which its risk is the same, or nobody should be left.
    """
    hazards = hazards_through(risk, knots_days, start_days=start_days)
    hazards = np.where(np.isfinite(hazards), hazards, np.inf)
    last = knots_days[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        nll = horizon_nll(
            hazards,
            knots_days[:-1].tolist(),
            duration_days=np.minimum(rows.duration_days, last),
            cause=np.where(rows.duration_days <= last, rows.cause, 0),
            entry_days=rows.entry_days,
        )
    return np.where(np.isnan(nll), np.inf, nll)


def risk_through(
    risk: Floats, knots_days: Floats, days: Floats, *, start_days: float = 0.0
) -> Floats:
    """Cumulative incidence (R, E, D) at other days, none after the last knot, of the curve through the risks.

    From where the risks sum to 1, hazards would be infinite: a few in 1e12 are taken to be left there.
    """
    hazards = hazards_through(
        risk, knots_days, start_days=start_days, least_survival=LEAST_SURVIVAL
    )
    return cumulative_incidence(hazards, knots_days[:-1].tolist(), days, start_days=start_days)
