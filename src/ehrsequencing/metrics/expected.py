"""What C, Brier score and IPA will be if the predicted hazards are right, before any outcome is known."""

import numpy as np

from ehrsequencing.core.arrays import Floats
from ehrsequencing.metrics.censoring import divide


def expected_accuracy(incidence: Floats, weights: Floats | None = None) -> Floats:
    """Expected C, Brier score and IPA of a cause by a horizon.

    With F_i the predicted cumulative incidence and t the horizon, a person i has the event in bin k with probability
    ΔF_i(k), and j has had none by then with 1 − F_j. So, as Wolbers' C counts pairs,

        C = Σ_ij a_ij (1[F_i(t) > F_j(t)] + ½ 1[F_i(t) = F_j(t)]) / Σ_ij a_ij,   a_ij = Σ_k ΔF_i(k) (1 − F_j(k))
        Brier = mean F(t) (1 − F(t)),   IPA = 1 − Brier / (F̄(t) (1 − F̄(t)))

    Costs O(n²): give a sample.

    Args:
        incidence: (n, K) cumulative incidence by the ends of bins, the last of which is the horizon.
        weights: (B, n) of people; default: one row of ones.

    Returns:
        (3, B); NaN where nothing can be compared.

    Example:
        >>> expected_accuracy(np.array([[0.5], [0.1]])).round(3).ravel().tolist()
        [0.864, 0.17, 0.19]
    """
    n = len(incidence)
    weight = np.ones((1, n)) if weights is None else weights
    risk, start = incidence[:, -1], np.pad(incidence, ((0, 0), (1, 0)))[:, :-1]
    pairs = (incidence - start) @ (1.0 - (incidence + start) / 2).T
    np.fill_diagonal(pairs, 0.0)
    won = np.sign(risk[:, None] - risk) / 2 + 0.5
    c = divide(
        ((weight @ (pairs * won)) * weight).sum(axis=1), ((weight @ pairs) * weight).sum(axis=1)
    )
    total = weight.sum(axis=1)
    brier, mean = divide(weight @ (risk * (1 - risk)), total), divide(weight @ risk, total)
    return np.stack([c, brier, 1.0 - divide(brier, mean * (1 - mean))])
