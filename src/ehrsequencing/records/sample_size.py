"""How many events a study needs: Riley et al. (2020, development), (2021, external validation), for a binary outcome.

The linear predictor is taken to be normal, with the mean and sd that give the incidence and C.
"""

from statistics import NormalDist

import numpy as np

from ehrsequencing.core.arrays import Floats

USUAL_C = 0.75  # where no model has been evaluated
_NORMAL = np.array([NormalDist().inv_cdf((i + 0.5) / 2000) for i in range(2000)])
_SHRINKAGE = 0.9  # of a model's effects in new people, which over-fitting may cost


def needed_events(incidence: float, c: float = USUAL_C) -> dict[str, int]:
    """Events that give 95 % intervals of a stated width, and that ten parameters of a model need.

    Args:
        incidence: Share of the people with the event by the horizon, between 0 and 1.
        c: What C one expects, between 0.5 and 1.

    Returns:
        What for → people with the event by the horizon, in a cohort with this incidence.

    Example:
        >>> needed_events(0.2)
        {'O/E ± 0.2': 77, 'slope ± 0.2': 180, 'C ± 0.05': 114, 'ten parameters': 133}
    """
    quantile = NormalDist().inv_cdf
    low, high = 0.0, 40.0
    for _ in range(40):  # halvings
        sd = (low + high) / 2
        mean, spread, risk = _population(incidence, sd)
        low, high = (low, sd) if _concordance(risk) > c else (sd, high)
    weight = risk * (1 - risk)
    moments = [(weight * (mean + spread) ** power).mean() for power in range(3)]
    slope_variance = moments[0] / (moments[0] * moments[2] - moments[1] ** 2)  # times n
    # Newcombe (2006), for large n; the variance times n
    pairs = 0.5 * (1 - c) / (2 - c) + 0.5 * c / (1 + c)
    c_variance = c * (1 - c) * pairs / (incidence * (1 - incidence))
    null = _log_likelihood(np.array(incidence))
    explained = 1 - np.exp(-2 * (_log_likelihood(risk).mean() - null))  # Cox–Snell R²
    reach = quantile(0.975)
    people = {
        "O/E ± 0.2": (reach / 0.2) ** 2 * (1 - incidence) / incidence,
        "slope ± 0.2": (reach / 0.2) ** 2 * slope_variance,
        "C ± 0.05": (reach / 0.05) ** 2 * c_variance,
        "ten parameters": 10 / ((_SHRINKAGE - 1) * np.log(1 - explained / _SHRINKAGE)),
    }
    return {name: int(np.ceil(n * incidence)) for name, n in people.items()}


def _population(incidence: float, sd: float) -> tuple[float, Floats, Floats]:
    """The mean of the linear predictor, (n,) its rising deviations of a given sd, and the risks of this incidence."""
    spread = sd * _NORMAL
    low, high = -200.0, 200.0
    for _ in range(50):
        mean = (low + high) / 2
        risk = 1 / (1 + np.exp(-np.clip(mean + spread, -500, 500)))
        low, high = (low, mean) if risk.mean() > incidence else (mean, high)
    return mean, spread, risk


def _concordance(risk: Floats) -> float:
    """C of rising risks that are right: how often a case has more than somebody without the event."""
    without = np.cumsum(1 - risk) - (1 - risk) / 2
    return float(risk @ without / (risk.sum() * (1 - risk).sum()))


def _log_likelihood(risk: Floats) -> Floats:
    """Of an outcome that has this risk, in expectation."""
    least = np.finfo(np.float64).tiny
    return risk * np.log(risk + least) + (1 - risk) * np.log(1 - risk + least)
