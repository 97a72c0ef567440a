"""The inputs of a model: how complete they are, and how far the population differs from the training subjects."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ehrsequencing.baselines.history import fit_feature_spec, history_features
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.evaluation.results import number
from ehrsequencing.models.ensemble import member_band
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary

MOST_ROWS = 4_000  # prediction times of each side that drift is measured on
MOST_CODES = 100  # timed codes that drift looks at
SHOWN = 15
MOST_GROUPS = 15  # of subjects of similar risk, each of at least 11
_CHUNK_SUBJECTS = 20_000
_READABLE = {
    "age_years": "age (years)",
    "days_since_index": "days since the index",
    "days_since_visit": "days since the last visit",
    "days_between_visits": "days between the last two visits",
    "visits": "visits so far",
}


def input_rates(records: TaskRecords, vocabulary: Vocabulary) -> dict[str, float | int | None]:
    """How complete the inputs are: of subjects with a prediction time, what they had by their last one.

    Args:
        records: Visits and prediction times.
        vocabulary: The one that encoded them.

    Returns:
        `subjects`, `prediction_times`; `unknown_token_rate` and `numeric_value_rate` (of tokens in visits),
        `unknown_age_rate` and `no_visit_before_rate` (of prediction times), `codes_per_visit`, `visits_per_subject`;
        None where there is nothing to divide by.
    """
    timelines, rows = records.timelines, records.rows
    last = rows.row_offsets[1:] - 1
    asked = np.flatnonzero(np.diff(rows.row_offsets) > 0)
    first_visit = timelines.subject_offsets[asked]
    stop_visit = first_visit + rows.visits_before[last[asked]]
    first, stop = timelines.visit_offsets[first_visit], timelines.visit_offsets[stop_visit]
    unknown = numeric = 0
    for begin, end, seen in _token_chunks(first, stop):
        unknown += int(vocabulary.is_unknown(timelines.codes[begin:end])[seen].sum())
        numeric += int((~np.isnan(timelines.values[begin:end, 0]))[seen].sum())
    tokens, visits = int((stop - first).sum()), int((stop_visit - first_visit).sum())
    return {
        "subjects": len(asked),
        "prediction_times": len(rows),
        "unknown_token_rate": _rate(unknown, tokens),
        "unknown_age_rate": _rate(int(np.isnan(rows.age_years).sum()), len(rows)),
        "no_visit_before_rate": _rate(int((rows.visits_before == 0).sum()), len(rows)),
        "codes_per_visit": _rate(tokens, visits),
        "visits_per_subject": _rate(visits, len(asked)),
        "numeric_value_rate": _rate(numeric, tokens),
    }


def _token_chunks(first: Ints, stop: Ints) -> Iterator[tuple[int, int, Bools]]:
    """Spans of the token arrays that hold some subjects' tokens, and which of the tokens are meant."""
    for start in range(0, len(first), _CHUNK_SUBJECTS):
        a, b = first[start : start + _CHUNK_SUBJECTS], stop[start : start + _CHUNK_SUBJECTS]
        begin, end = int(a[0]), int(b[-1])
        edges = np.zeros(end - begin + 1, dtype=np.int64)
        np.add.at(edges, a - begin, 1)
        np.add.at(edges, b - begin, -1)
        yield begin, end, np.cumsum(edges[:-1]) > 0


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def drift(
    train: TaskRecords,
    population: TaskRecords,
    vocabulary: Vocabulary,
    *,
    landmark_days: float,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """The features that differ most between the training subjects and the population, at one landmark.

        smd = (mean_judged − mean_train) / √((var_judged + var_train) / 2)

    over the rows where a feature is known. Codes count by whether they were seen so far; known numbers by the last one.

    Args:
        train: Visits and prediction times of the training subjects.
        population: Those of the population.
        vocabulary: The one that encoded both.
        landmark_days: Where both are looked at.
        seed: Of the draw of prediction times, where there are many.

    Returns:
        At most 15 rows {feature, train, judged, smd}, the largest |smd| first; smd is None where neither side varies
        but they differ (those come first).
    """
    columns = fit_feature_spec(train, vocabulary, max_codes=MOST_CODES)
    sides = []
    for records in (train, population):
        at = records.at_landmark(landmark_days)
        if len(at) > MOST_ROWS:
            at = np.sort(np.random.default_rng(seed).choice(at, MOST_ROWS, replace=False))
        sides.append(
            history_features(records, vocabulary, chosen=at, columns=columns).astype(np.float64)
        )
    found = []
    for column, name in enumerate(columns.names):
        kind, _, code = name.partition(" ")
        if name in _READABLE:
            text, (x, y) = _READABLE[name], (side[:, column] for side in sides)
        elif kind == "static":
            text, (x, y) = code, (side[:, column] for side in sides)
        elif kind == "count":
            text, (x, y) = (
                f"{code} seen",
                ((side[:, column] > 0).astype(np.float64) for side in sides),
            )
        elif kind == "last":
            text, (x, y) = f"{code}, last value (rank)", (side[:, column] for side in sides)
        else:
            continue
        row = _difference(text, x, y)
        if row is not None:
            found.append(row)
    found.sort(key=lambda row: -np.inf if row["smd"] is None else -abs(row["smd"]))
    return found[:SHOWN]


def _difference(text: str, train: Floats, judged: Floats) -> dict[str, Any] | None:
    x, y = train[~np.isnan(train)], judged[~np.isnan(judged)]
    if len(x) < 2 or len(y) < 2:
        return None
    smd = standardised_difference(x, y)
    return {
        "feature": text,
        "train": float(x.mean()),
        "judged": float(y.mean()),
        "smd": number(smd),
    }


def standardised_difference(x: Floats, y: Floats) -> float:
    """(mean y − mean x) / √((var x + var y) / 2); 0 where nothing varies or differs, infinite where they only differ.

    >>> round(standardised_difference(np.array([0.0, 2.0]), np.array([1.0, 3.0])), 4)
    0.7071
    """
    gap, spread = float(y.mean() - x.mean()), float(np.sqrt((x.var(ddof=1) + y.var(ddof=1)) / 2))
    if spread <= 1e-9 * max(1.0, abs(float(x.mean()))):
        return (
            0.0
            if abs(gap) <= 1e-9 * max(1.0, abs(float(x.mean())))
            else float(np.copysign(np.inf, gap))
        )
    return gap / spread


POINTS = 200


def instability(
    run: Run, records: TaskRecords, *, chosen: Ints, horizon_days: float
) -> dict[str, Any] | None:
    """Content of `instability`, or None for a single model: each member was trained with a seed of its own.

    In a blend each stands beside the same other parts. With `training.bootstrap`, each also learned from other
    subjects: the spread is then that over bootstrap samples.

    Args:
        run: The trained run.
        records: Visits and prediction times.
        chosen: (n,) the rows that are looked at.
        horizon_days: By when.
    """
    answers = run.answers
    if len(answers.members) < 2:
        return None
    risks = answers.with_members(records, horizons_days=[horizon_days])[1][:, chosen, 0, 0]
    bootstrap = run.study.training.bootstrap
    return spread(risks.astype(np.float64)) | {"horizon_days": horizon_days, "bootstrap": bootstrap}


def spread(risk: Floats) -> dict[str, Any]:
    """The mean absolute difference from the members' mean, and the members' band for subjects from low to high risk.

        mape = (1 / (M n)) Σ_m Σ_i |r_{m,i} − r̄_i|

    (Riley & Collins 2023 call it the mean absolute prediction error.)

    Args:
        risk: (members, n).
    """
    mean, (low, high) = risk.mean(axis=0), member_band(risk)
    order = np.argsort(mean, kind="stable")
    groups = np.array_split(order, max(1, min(len(order) // SMALLEST_COUNT, MOST_GROUPS)))
    return {
        "resamples": len(risk),
        "mape": float(np.abs(risk - mean).mean()),
        "groups": [
            {
                "risk": float(mean[some].mean()),
                "low": float(low[some].mean()),
                "high": float(high[some].mean()),
            }
            for some in groups
            if len(some) >= SMALLEST_COUNT
        ],
    }
