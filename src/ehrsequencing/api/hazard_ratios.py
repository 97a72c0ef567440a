"""Hazard ratios of the landmark Cox model, with intervals by resampling subjects."""

from dataclasses import replace

import numpy as np
import pandas as pd

from ehrsequencing.baselines.base import FittingData
from ehrsequencing.baselines.cox import CoxFit, CoxRegression, CoxRows
from ehrsequencing.baselines.history import AGE_KNOTS_YEARS, history_features
from ehrsequencing.baselines.landmark_cox import LandmarkCox, LinearDesign
from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared

MOST_ROWS = 20_000  # prediction times of the resampled fits, drawn at random
NOTE = "penalised (ridge) landmark Cox regression: ratios are shrunk towards 1"


def cause_number(task: TaskConfig, cause: str | None) -> int:
    """The number of a cause in the labels, from 1.

    Raises:
        EhrseqError: There is no such cause.
    """
    if cause is None:
        return 1
    if cause not in task.causes:
        fix = f"use one of {', '.join(task.causes)}"
        raise EhrseqError(f"there is no cause {cause!r}", where="cause", fix=fix)
    return 1 + task.causes.index(cause)


def hazard_ratios(
    run: Run, prepared: Prepared, cause: int, *, bootstrap: int, seed: int
) -> pd.DataFrame:
    """See `TrainedRun.hazard_ratios`."""
    name = run.task.name
    data = FittingData(
        run.task,
        prepared.vocabulary,
        prepared.records(name, "train"),
        prepared.records(name, "tuning"),
        run.study.model.edges_days,
        enough=run.study.vocabulary.min_subjects,
    )
    cox = LandmarkCox(data)
    fit, rows = cox.fits[cause - 1], data.train.rows
    events = float((rows.cause == cause).sum())
    if not fit.beta.any():
        raise EhrseqError("nobody in the training split had it", where=run.task.causes[cause - 1])
    chosen = data.draw(np.arange(len(rows)), MOST_ROWS)
    history = history_features(
        data.train, data.vocabulary, chosen=chosen, columns=cox.design.columns
    )
    sample = CoxRows(
        cox.design(history),
        np.asarray(rows.entry_days[chosen], np.float64),
        rows.duration_days[chosen],
        rows.cause[chosen] == cause,
    )
    fit = replace(fit, ridge=fit.ridge * float(sample.event.sum()) / events)  # of the rows drawn
    drawn = _resampled(sample, rows.subject[chosen], fit, bootstrap, seed)
    low, high = np.full((2, len(fit.beta)), np.nan)
    if bootstrap:
        low, high = np.exp(np.quantile(drawn, [0.025, 0.975], axis=0))
    ratio = np.exp(fit.beta)
    order = np.argsort(-np.abs(fit.beta), kind="stable")
    columns = {
        "covariate": np.array(_covariates(cox.design)),
        "hazard_ratio": ratio,
        "low": np.minimum(low, ratio),
        "high": np.maximum(high, ratio),
        "sd": fit.scale,
    }
    table = pd.DataFrame({key: values[order] for key, values in columns.items()})
    table.attrs["note"] = NOTE
    return table


def _resampled(sample: CoxRows, subject: Ints, fit: CoxFit, bootstrap: int, seed: int) -> Floats:
    """(bootstrap, F) coefficients of fits to resampled subjects, per standard deviation of the fit."""
    rng, owners = np.random.default_rng(seed), np.unique(subject)
    rows_of = [np.flatnonzero(subject == owner) for owner in owners]
    out = np.empty((bootstrap, len(fit.beta)))
    for number in range(bootstrap):
        rows = np.concatenate([rows_of[k] for k in rng.integers(0, len(owners), len(owners))])
        some = replace(
            sample,
            x=sample.x[rows],
            entry_days=sample.entry_days[rows],
            duration_days=sample.duration_days[rows],
            event=sample.event[rows],
        )
        again = CoxRegression(some).fit(ridge=fit.ridge)
        out[number] = again.beta / again.scale * fit.scale
    return out


def _covariates(design: LinearDesign) -> list[str]:
    """What each covariate of the design is: features, marks of what is not known, hinges of age."""
    names = design.columns.names
    listed = [names[k] for k in design.used] + [f"{names[k]} unknown" for k in design.marked]
    if 0 in design.used:
        listed += [f"{names[0]} above {knot:g} years" for knot in AGE_KNOTS_YEARS]
    return listed
