"""The same numbers as outside libraries wherever they define the same thing.

SurvivalEVAL, R's `concordance` (as PyPI's survival ports it) and polarstate have our rule for ties: who is censored at
an instant outlived the events of that instant. Their numbers for tied data are in `reference/tied_oracles.json`.
torchsurv, hazardous, lifelines and scikit-survival have other rules, of their own each. So they are compared on data in
which events tie with events, and no censoring with an event or a horizon: events lie on multiples of 1/8, horizons of
1/16, censorings 1/32 after multiples of 1/8 (exact in float32 too, which torchsurv uses).
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hazardous.metrics import (
    aj_calibration_per_event,
    brier_score_incidence,
    concordance_index_incidence,
    integrated_brier_score_incidence,
)
from lifelines import KaplanMeierFitter
from scipy.interpolate import CubicSpline
from sklearn.linear_model import LogisticRegression
from sksurv.metrics import brier_score, concordance_index_ipcw, cumulative_dynamic_auc, integrated_brier_score
from sksurv.nonparametric import (
    CensoringDistributionEstimator,
    _compute_counts,
    _var_dinse_approx,
    cumulative_incidence_competing_risks,
    kaplan_meier_estimator,
)

from ehrsequencing.metrics import accuracy, discrimination
from ehrsequencing.metrics.calibration import aalen_johansen_error, fit_logistic, spline_design
from ehrsequencing.metrics.censoring import (
    RiskSets,
    StepFunction,
    aalen_johansen,
    aalen_johansen_se,
    censoring_survival,
)
from ehrsequencing.metrics.outcomes import ScoredRows
from helpers.settings import examples
from reference import tied_oracles
from reference.metrics_bruteforce import Sample, random_sample

with warnings.catch_warnings():  # importing torchsurv calls torch.jit.script, deprecated in torch 2.13
    warnings.simplefilter("ignore", DeprecationWarning)
    from torchsurv.metrics.auc import Auc
    from torchsurv.metrics.brier_score import BrierScore
    from torchsurv.metrics.cindex import ConcordanceIndex

LATER = 1 / 32  # from an instant of events to that of censorings
JUST_AFTER = 1 / 64  # no time lies so soon after a horizon: for libraries that exclude the horizon itself
N_DATA_SETS = examples(100)


def untied(sample: Sample) -> Sample:
    """The sample with its censorings between the instants of events and horizons."""
    return replace(sample, duration=np.where(sample.cause == 0, sample.duration + LATER, sample.duration))


def within_follow_up(sample: Sample) -> np.ndarray:
    """Horizons that every library accepts: strictly inside the observed times, someone at risk, an event before."""
    duration = sample.duration
    return np.flatnonzero((sample.horizons >= duration.min()) & (sample.horizons < duration.max()))


def single_cause_samples(n: int = N_DATA_SETS) -> list[Sample]:
    samples = (untied(random_sample(seed, n_causes=1)) for seed in range(4 * n))
    kept = [s for s in samples if (s.cause > 0).any() and len(within_follow_up(s))][:n]
    assert len(kept) == n
    return kept


def competing_samples(n: int = N_DATA_SETS) -> list[Sample]:
    samples = (untied(random_sample(seed)) for seed in range(4 * n))
    kept = [s for s in samples if s.risk.shape[1] > 1 and s.cause.max() > 1][:n]
    assert len(kept) == n
    return kept


def rows_at(sample: Sample, h: int) -> ScoredRows:
    return ScoredRows.of(sample.duration, sample.cause, sample.risk[:, :, [h]], sample.horizons[[h]])


def survival_array(duration: np.ndarray, event: np.ndarray) -> np.ndarray:
    out = np.empty(len(duration), dtype=[("event", bool), ("time", float)])
    out["event"], out["time"] = event, duration
    return out


def agree(ours: np.ndarray | float, theirs: np.ndarray | float, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


# -- tied data: numbers that were kept ---------------------------------------------------------------------------------

ORACLES = json.loads(tied_oracles.FILE.read_text(encoding="utf-8"))["samples"]


def test_metrics_of_tied_data() -> None:
    compared: Counter[str] = Counter()
    for seed, oracle in ORACLES.items():
        sample = tied_oracles.sample_of(int(seed))
        rows = ScoredRows.of(sample.duration, sample.cause, sample.risk, sample.horizons)
        c, n_causes = discrimination.wolbers_c(rows), sample.risk.shape[1]
        ours = {
            "brier": accuracy.brier(rows),
            "auc": discrimination.cumulative_dynamic_auc(rows),
            "wolbers": c,
            "uno": c,
            "incidence": aalen_johansen(sample.duration, sample.cause, n_causes=n_causes).at(sample.horizons),
        }
        for name, cause, h, number in oracle["numbers"]:
            agree(ours[name][cause - 1, h], number, atol=1e-12)
            compared[name] += 1
    assert min(compared.values()) > 50
    assert len(compared) == 5


# -- curves ------------------------------------------------------------------------------------------------------------


def test_kaplan_meier_and_censoring_curve() -> None:
    for sample in single_cause_samples():
        event, grid = sample.cause == 1, np.unique(sample.duration)
        weights = np.random.default_rng(0).integers(1, 4, size=len(event))
        ours = RiskSets.count(sample.duration, sample.cause, 1, None).survival
        times, survival = kaplan_meier_estimator(event, sample.duration)
        agree(ours.at(times), survival)
        fitted = KaplanMeierFitter().fit(sample.duration, event, weights=weights)
        weighted = RiskSets.count(sample.duration, sample.cause, 1, weights).survival
        agree(weighted.at(grid), fitted.predict(grid).to_numpy())
        g = censoring_survival(sample.duration, sample.cause)
        if not event.all():
            estimator = CensoringDistributionEstimator().fit(survival_array(sample.duration, event))
            inside = grid[grid < grid.max()]
            agree(g.at(inside), estimator.predict_proba(inside))
            flipped = KaplanMeierFitter().fit(sample.duration, ~event)
            agree(g.at(grid), flipped.predict(grid).to_numpy())
            agree(g.before(grid), flipped.predict(grid - JUST_AFTER).to_numpy())


def test_aalen_johansen_and_its_standard_error() -> None:
    n_compared = 0
    for sample in competing_samples():
        n_causes = sample.cause.max()
        if len(np.unique(sample.cause[sample.cause > 0])) < n_causes:
            continue  # they want every cause to be seen
        n_compared += 1
        times, incidence = cumulative_incidence_competing_risks(sample.cause, sample.duration)
        agree(aalen_johansen(sample.duration, sample.cause, n_causes=n_causes).at(times), incidence[1:])
        _, events, at_risk, _ = _compute_counts(sample.cause, sample.duration)
        left = times[(at_risk - events[:, 0]) > 0]  # their formula divides by zero where all have an event
        survival = np.r_[1.0, 1.0 - incidence[0]][: len(left)]
        k = slice(len(left))
        variance = _var_dinse_approx(events[k], survival, at_risk[k], incidence[:, k])
        error = aalen_johansen_se(sample.duration, sample.cause, left, n_causes=n_causes)
        agree(error, np.sqrt(np.maximum(variance, 0.0)))
    assert n_compared > 0.7 * N_DATA_SETS


# -- one cause: scikit-survival and torchsurv --------------------------------------------------------------------------


def uno(event: np.ndarray, duration: np.ndarray, score: np.ndarray, inverse: np.ndarray, horizon: float) -> list[float]:
    """C by scikit-survival and by torchsurv."""
    y, tensors = survival_array(duration, event), map(torch.from_numpy, (score, event, duration))
    theirs = ConcordanceIndex()(*tensors, weight=torch.from_numpy(inverse), tmax=torch.tensor(horizon + JUST_AFTER))
    return [concordance_index_ipcw(y, y, score, tau=horizon + JUST_AFTER)[0], theirs.item()]


def auc(event: np.ndarray, duration: np.ndarray, score: np.ndarray, inverse: np.ndarray, horizon: float) -> list[float]:
    """AUC by scikit-survival and by torchsurv; the weight at the horizon is equal for all controls, and cancels."""
    y, tensors = survival_array(duration, event), map(torch.from_numpy, (score, event, duration))
    at = {
        "new_time": torch.tensor([horizon], dtype=torch.float64),
        "weight_new_time": torch.ones(1, dtype=torch.float64),
    }
    theirs = Auc()(*tensors, weight=torch.from_numpy(inverse), **at)
    return [cumulative_dynamic_auc(y, y, score, [horizon])[0][0], theirs.item()]


@pytest.mark.parametrize(
    ("metric", "others"), [(discrimination.wolbers_c, uno), (discrimination.cumulative_dynamic_auc, auc)]
)
def test_discrimination_of_one_cause(metric: Callable[[ScoredRows], np.ndarray], others: Callable[..., Any]) -> None:
    n_compared = 0
    for sample in single_cause_samples():
        duration, event = sample.duration, sample.cause == 1
        inverse = 1.0 / censoring_survival(sample.duration, sample.cause).before(sample.duration)
        for h in within_follow_up(sample):
            ours = metric(rows_at(sample, h))[0, 0]
            if not np.isnan(ours):
                theirs = others(event, duration, sample.risk[:, 0, h], inverse, sample.horizons[h])
                agree(np.repeat(ours, 2), theirs)
                n_compared += 1
    assert n_compared > N_DATA_SETS


def test_brier_and_integrated_brier_of_one_cause() -> None:
    for sample in single_cause_samples():
        duration, event = sample.duration, sample.cause == 1
        g = censoring_survival(sample.duration, sample.cause)
        inside = within_follow_up(sample)
        horizons, survival = sample.horizons[inside], 1.0 - sample.risk[:, 0, inside]
        rows = ScoredRows.of(sample.duration, sample.cause, sample.risk[:, :, inside], horizons)
        y = survival_array(duration, event)
        ours = accuracy.brier(rows)[0]
        agree(ours, brier_score(y, y, survival, horizons)[1])
        score = BrierScore()
        theirs = score(
            torch.from_numpy(survival),
            torch.from_numpy(event),
            torch.from_numpy(duration),
            new_time=torch.from_numpy(horizons),
            weight=torch.from_numpy(1.0 / g.before(sample.duration)),
            weight_new_time=torch.from_numpy(1.0 / g.before(horizons)),
        )
        agree(ours, theirs.numpy())
        if len(inside) > 1:
            agree(accuracy.integrated_brier(rows)[0], integrated_brier_score(y, y, survival, horizons))
            agree(accuracy.integrated_brier(rows)[0], score.integral().item())


# -- competing causes: hazardous ---------------------------------------------------------------------------------------


def hazardous_frame(sample: Sample) -> pd.DataFrame:
    return pd.DataFrame({"event": sample.cause, "duration": sample.duration})


def well_observed(sample: Sample) -> np.ndarray:
    """Horizons where hazardous does not cut G off (it does below 5 %)."""
    g = censoring_survival(sample.duration, sample.cause).before(sample.horizons)
    return np.flatnonzero((g >= 0.05) & (sample.horizons < sample.duration.max()))


def test_brier_with_competing_causes() -> None:
    n_compared = 0
    for k, sample in enumerate(competing_samples()):
        frame, inside = hazardous_frame(sample), well_observed(sample)
        if len(inside) == 0:
            continue
        horizons = sample.horizons[inside]
        rows = ScoredRows.of(sample.duration, sample.cause, sample.risk[:, :, inside], horizons)
        ours = accuracy.brier(rows)
        for e in range(sample.risk.shape[1]):
            risk = sample.risk[:, e, inside]
            agree(ours[e], brier_score_incidence(frame, frame, risk, horizons, event_of_interest=e + 1))
            if len(inside) > 1 and k % 4 == 0:  # an integral of what was just compared
                theirs = integrated_brier_score_incidence(frame, frame, risk, horizons, event_of_interest=e + 1)
                agree(accuracy.integrated_brier(rows)[e], theirs)
            n_compared += 1
    assert n_compared > N_DATA_SETS


def test_wolbers_c_with_competing_causes() -> None:
    n_compared = 0
    for sample in competing_samples():
        frame = hazardous_frame(sample)
        for h in well_observed(sample)[:1]:
            ours = discrimination.wolbers_c(rows_at(sample, h))[:, 0]
            for e in np.flatnonzero(np.isfinite(ours)):
                theirs = concordance_index_incidence(
                    frame,
                    sample.risk[:, e, h][:, None].repeat(2, axis=1),
                    y_train=frame,
                    time_grid=np.array([0.0, sample.horizons[h]]),
                    taus=[sample.horizons[h]],
                    event_of_interest=e + 1,
                )
                agree(ours[e], theirs[0])
                n_compared += 1
    assert n_compared > N_DATA_SETS


@pytest.mark.slow
def test_aalen_johansen_calibration_error() -> None:
    n_compared = 0
    for seed, sample in enumerate(competing_samples(60)):
        inside, n_causes = within_follow_up(sample), sample.risk.shape[1]
        if not len(inside) or set(sample.cause) - {0} != set(range(1, n_causes + 1)):
            continue  # it wants every cause to be seen
        duration = sample.duration + np.random.default_rng(seed).permutation(len(sample.cause)) / 1e4  # and no ties
        frame = pd.DataFrame({"event": sample.cause, "duration": duration})
        days = np.r_[0.0, np.sort(np.random.default_rng(seed).uniform(0, sample.horizons[inside[-1]], 6))]
        jumps = np.sort(duration[duration < sample.horizons[inside[-1]]])
        many = np.linspace(0, sample.horizons[inside[-1]], 2000)  # theirs is a trapezoid, also where the curves cross
        days = np.unique(np.r_[days, many, jumps, jumps - 1e-9])
        risk = np.sort(np.random.default_rng(seed).uniform(0, 1 / n_causes, (len(frame), n_causes, len(days))), axis=2)
        risk[:, :, 0] = 0.0
        whole = np.concatenate([1 - risk.sum(axis=1, keepdims=True), risk], axis=1)
        theirs = aj_calibration_per_event(frame, days, whole, alpha=1.0, min_prop_at_risk=0.0)
        rows = ScoredRows.of(duration, sample.cause, risk[:, :, 1:], days[1:])
        agree(aalen_johansen_error(rows), [theirs[e] for e in range(1, n_causes + 1)], atol=1e-5)
        n_compared += 1
    assert n_compared > 30


# -- building blocks of calibration ------------------------------------------------------------------------------------


def test_logistic_fit_equals_scikit_learn() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        design = np.column_stack([np.ones(80), rng.normal(size=(80, 2))])
        outcome = (rng.random(80) < 1 / (1 + np.exp(-design @ [-0.5, 1.0, -0.5]))).astype(float)
        weights = rng.integers(0, 3, size=(2, 80)) * rng.uniform(1, 3, size=80)
        for ours, weight in zip(fit_logistic(design, outcome, weights), weights, strict=True):
            model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10, fit_intercept=False)
            agree(ours, model.fit(design, outcome, sample_weight=weight).coef_[0])


def test_spline_basis_spans_the_natural_cubic_splines() -> None:
    rng = np.random.default_rng(0)
    knots = np.array([-2.0, -0.5, 0.3, 1.9])
    natural = CubicSpline(knots, rng.normal(size=4), bc_type="natural")
    x = np.linspace(-2.0, 1.9, 200)
    design = spline_design(x, knots)
    coefficients = np.linalg.lstsq(design, natural(x), rcond=None)[0]
    agree(design @ coefficients, natural(x))
    tail = spline_design(np.array([2.0, 3.0, 4.0]), knots) @ coefficients
    assert np.diff(tail, 2) == pytest.approx(0.0, abs=1e-9)


# -- a wrong rule for ties is noticed ----------------------------------------------------------------------------------


def test_another_rule_for_ties_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """G(T) in place of G(T−) differs from the kept numbers, where censorings tie with events."""
    monkeypatch.setattr(StepFunction, "before", StepFunction.at)
    with pytest.raises(AssertionError):
        test_metrics_of_tied_data()
