"""Fits all baselines on the same subjects, prediction times and history as the run, and ranks them.

All but Aalen–Johansen are landmark supermodels (van Houwelingen 2007), fitted on all training prediction times. Which
one is the strongest depends on the data: the likelihood of tuning subjects decides.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from ehrsequencing.baselines.base import Baseline, FittingData
from ehrsequencing.baselines.boosted import BoostedVisits
from ehrsequencing.baselines.forest import INSTALL, CompetingForest, has_forest
from ehrsequencing.baselines.landmark_cox import LandmarkCox
from ehrsequencing.baselines.simple import AgeAndSex, MarginalIncidence
from ehrsequencing.core.errors import EhrseqError

BASELINES = (
    BoostedVisits.name,
    CompetingForest.name,
    LandmarkCox.name,
    AgeAndSex.name,
    MarginalIncidence.name,
)


@dataclass(frozen=True)
class Fitted:
    """A baseline, and what the tuning subjects say of it.

    Attributes:
        model: The baseline.
        tuning_nll: Mean over all tuning prediction times; NaN without any.
    """

    model: Baseline
    tuning_nll: float


def fit_baselines(
    kind: Literal["fast", "forest", "all", "none"],
    data: FittingData,
    *,
    trials: int | None = None,
    more: Mapping[str, Callable[[], Baseline]] | None = None,
    known: Mapping[str, Baseline] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Fitted]:
    """Fit the baselines, the strongest first: by the likelihood of tuning subjects at all their prediction times.

    Args:
        kind: `fast`: boosted visits, landmark Cox, age + sex, Aalen–Johansen. `forest`: also the competing-risk forest.
            `all`: also the forest (where its library is installed: `what_is_missing`) and those of `more`. `none`:
            nothing.
        data: What to fit. Tuning subjects choose the boosting's settings and length, the ridge, and the strongest.
        trials: Settings that were tried for the run; the boosting tries as many. None: one.
        more: Other baselines by name, and how to get them; only `all` asks for them.
        known: Baselines by name that were fitted to this very data with these settings, and are not fitted again.
        progress: Called with the name and number of each baseline before it is fitted.

    Raises:
        EhrseqError: `all` without `more`, or `forest` without scikit-survival.
    """
    if kind == "none":
        return []
    if kind == "forest" and not has_forest():
        what = "scikit-survival is not installed"
        raise EhrseqError(what, where=CompetingForest.name, fix=INSTALL)
    fits: dict[str, Callable[[], Baseline]] = {
        BoostedVisits.name: partial(BoostedVisits.fit, data, trials=trials or 1)
    }
    if kind in ("forest", "all") and has_forest():
        fits[CompetingForest.name] = partial(CompetingForest, data)
    if kind == "all":
        if more is None:
            fix = "evaluate a run whose prepared set is still there, or use --baselines fast"
            raise EhrseqError(
                "flat BEHRT needs the run's own data",
                where="evaluation.baselines=all",
                fix=fix,
            )
        fits |= more
    fits |= {
        model.name: partial(model, data) for model in (LandmarkCox, AgeAndSex, MarginalIncidence)
    }
    out: list[Fitted] = []
    every = np.arange(len(data.tuning))
    for number, (name, fit) in enumerate(fits.items(), start=1):
        progress(f"{name}, {number} of {len(fits)}")
        model = known[name] if known is not None and name in known else fit()
        nll = float(model.nll(data.tuning, every).mean()) if len(every) else float("nan")
        out.append(Fitted(model, nll))
    return sorted(out, key=lambda fitted: fitted.tuning_nll)


def what_is_missing(kind: str) -> str | None:
    """What `all` leaves out, as a line for the user; None where nothing is."""
    if kind != "all" or has_forest():
        return None
    return (
        f"There is no {CompetingForest.name}, because scikit-survival is not installed ({INSTALL})."
    )
