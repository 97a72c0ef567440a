"""AUC within strata, as of sex and age: pairs from different strata are never compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Floats, Ints


@dataclass(frozen=True)
class StratifiedRows:
    """Cases, or controls: at most one row of a subject in a stratum."""

    score: Floats  # (n,)
    stratum: Ints  # (n,)
    subject: Ints  # (n,) column of the bootstrap weights

    def within(self, stratum: int) -> StratifiedRows:
        """The rows of one stratum."""
        inside = self.stratum == stratum
        return StratifiedRows(self.score[inside], self.stratum[inside], self.subject[inside])


@dataclass(frozen=True)
class StratifiedAuc:
    """For each resample: the AUC of each stratum, and how much cases weigh there."""

    auc: Floats  # (strata, resamples), NaN without a case or a control
    cases: Floats  # (strata, resamples) cases of strata that have an AUC, else 0

    @property
    def mean(self) -> Floats:
        """(resamples,) mean over strata, each with weight 1 (Delphi-2M, Shmatko et al. 2025); NaN without any."""
        known = ~np.isnan(self.auc)
        count = known.sum(axis=0)
        total = np.where(known, self.auc, 0.0).sum(axis=0)
        mean: Floats = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
        return mean

    @property
    def won(self) -> Floats:
        """(resamples,) Σ over strata of cases × AUC: with `cases`, what is pooled over several outcomes."""
        won: Floats = (np.nan_to_num(self.auc) * self.cases).sum(axis=0)
        return won


def stratified_auc(
    cases: StratifiedRows, controls: StratifiedRows, weights: Floats
) -> StratifiedAuc:
    """AUC of each stratum: how often a case scores above a control of its own stratum; ties count one half.

        AUC_g = Σ_{i case, j control in g} w_i w_j (1[s_i > s_j] + ½ 1[s_i = s_j]) / Σ_{i, j} w_i w_j

    Args:
        cases: Rows with the event.
        controls: Rows without it.
        weights: (resamples, subjects) how often each subject was drawn.

    Returns:
        For every stratum with a case and a control.
    """
    auc, total = [], []
    for stratum in np.intersect1d(cases.stratum, controls.stratum).tolist():
        ours, theirs = cases.within(stratum), controls.within(stratum)
        wins = np.sign(ours.score[:, None] - theirs.score[None, :]) * 0.5 + 0.5
        w_case, w_control = weights[:, ours.subject], weights[:, theirs.subject]
        pairs = w_case.sum(axis=1) * w_control.sum(axis=1)
        won = np.einsum("bi,bi->b", w_case, w_control @ wins.T)
        auc.append(np.divide(won, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0))
        total.append(np.where(pairs > 0, w_case.sum(axis=1), 0.0))
    empty = np.zeros((0, len(weights)))
    return StratifiedAuc(np.array(auc) if auc else empty, np.array(total) if total else empty)
