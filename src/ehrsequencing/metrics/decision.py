"""Decision curves: what acting on the predicted risk is worth, with competing causes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.core.arrays import Floats, row_blocks
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.censoring import divide
from ehrsequencing.metrics.outcomes import ScoredRows


@dataclass(frozen=True)
class DecisionCurve:
    """Net benefit of treating by the model, and of treating everyone; treating nobody is 0."""

    thresholds: (
        Floats  # (thresholds,) or (causes, horizons, thresholds) risk from which one would act
    )
    net_benefit: Floats  # (..., causes, horizons, thresholds) true positives per row, less weighted false positives
    treat_all: Floats  # (..., causes, horizons, thresholds) the same when acting on everyone


def decision_curve(rows: ScoredRows, thresholds: ArrayLike) -> DecisionCurve:
    """Net benefit (Vickers & Elkin 2006; with censoring and competing causes Vickers et al. 2008).

        NB(p) = TP(p) − (flagged(p) − TP(p)) · p / (1 − p),     TP(p) = (1 / n) Σ_{i: risk_i ≥ p} ω_i(t) y_i

    with flagged(p) the share of rows whose risk is at least p, and ω_i(t) y_i the censoring-weighted event of cause e
    by the horizon (`ScoredRows.known_weights`). Who had a competing event is a false positive when flagged.

    Args:
        rows: The scored rows.
        thresholds: (thresholds,), or (causes, horizons, thresholds) of each cell; strictly between 0 and 1.

    Returns:
        The curves, with a leading resample axis for a block of weights.

    Raises:
        EhrseqError: A threshold outside (0, 1).
    """
    at = np.atleast_1d(np.asarray(thresholds, dtype=np.float64))
    if not ((at > 0) & (at < 1)).all():
        raise EhrseqError(
            "outside (0, 1)", where="thresholds", fix="a threshold is a risk between 0 and 1"
        )
    of_cell = np.broadcast_to(at, (*rows.risk.shape[1:], at.shape[-1]))
    odds = of_cell / (1.0 - of_cell)
    net_benefit = np.empty((len(rows.weights), *of_cell.shape))
    total = rows.total_weight[:, None]
    for e, h in np.ndindex(*rows.risk.shape[1:]):
        events = rows.known_weights(h) * rows.has_event_by(h)[e]
        share, true = (np.zeros((len(rows.weights), at.shape[-1])) for _ in range(2))
        for some in row_blocks(len(rows.risk)):
            flagged = (rows.risk[some, e, h, None] >= of_cell[e, h]).astype(np.float64)
            share += rows.weights[:, some] @ flagged
            true += events[:, some] @ flagged
        share, true = divide(share, total), divide(true, total)
        net_benefit[:, e, h] = true - (share - true) * odds[e, h]
    observed = rows.observed_risk[..., None]
    treat_all = observed - (1.0 - observed) * odds
    return DecisionCurve(at, rows.finish(rows.where_covered(net_benefit)), rows.finish(treat_all))
