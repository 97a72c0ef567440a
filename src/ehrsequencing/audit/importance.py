"""How much suspicious codes matter: C and NLL of the landmark Cox model, fitted with and without them."""

from dataclasses import replace

import numpy as np

from ehrsequencing.audit.data import AuditData
from ehrsequencing.audit.fitted import training_edges
from ehrsequencing.baselines.base import FittingData
from ehrsequencing.baselines.landmark_cox import LandmarkCox
from ehrsequencing.core.arrays import Bools
from ehrsequencing.core.disclosure import enough_people
from ehrsequencing.metrics.plain import concordance
from ehrsequencing.records.timelines import TaskRecords

MOST_ROWS = 20_000  # prediction times that are ranked, drawn at random
UNKNOWN = 1  # the unknown token, of which no feature is made
Importance = dict[str, dict[str, float]]


def importance(data: AuditData, suspects: tuple[int, ...]) -> Importance | None:
    """C of the first cause by the last horizon, and mean NLL, at prediction times of the audited split.

    Returns:
        `c` and `nll`, each `with` and `without` the suspects; None where fewer than 11 people have, or have not, the
        event.
    """
    rows = data.records[data.split].rows
    events = len(np.unique(rows.subject[rows.cause == 1]))
    if not enough_people(events, len(np.unique(rows.subject))):
        return None
    hidden = np.isin(data.vocabulary.base, suspects)
    found = {"with": _fit(data, np.zeros_like(hidden)), "without": _fit(data, hidden)}
    return {name: {key: scores[name] for key, scores in found.items()} for name in ("c", "nll")}


def _fit(data: AuditData, hidden: Bools) -> dict[str, float]:
    """Of the model that does not know the `hidden` (V,) tokens."""
    records = {name: _without(part, hidden) for name, part in data.records.items()}
    fitting = FittingData(
        data.task, data.vocabulary, records["train"], records["tuning"], training_edges(data)
    )
    model, judged = LandmarkCox(fitting), records[data.split]
    chosen = fitting.draw(np.arange(len(judged)), MOST_ROWS)
    horizon = data.task.horizons[-1]
    risk = model.risk(judged, chosen, np.array([horizon]))[:, 0, 0]
    c = concordance(
        judged.rows.duration_days[chosen], judged.rows.cause[chosen], risk, horizon=horizon
    )
    return {"c": round(c, 3), "nll": round(float(model.nll(judged, chosen).mean()), 4)}


def _without(records: TaskRecords, hidden: Bools) -> TaskRecords:
    """The same visits, in which some codes have become unknown."""
    old = records.timelines
    codes = np.where(hidden[old.codes], UNKNOWN, old.codes).astype(np.int32)
    values = np.where(hidden[old.codes][:, None], np.float32(np.nan), old.values)
    static = np.where(hidden[old.static_codes], UNKNOWN, old.static_codes).astype(np.int32)
    timelines = replace(old, codes=codes, values=values, static_codes=static)
    return replace(records, timelines=timelines)


def sentence(found: Importance | None) -> str:
    """What `importance` found, for people."""
    if found is None:
        return "too few people have the event to say how much this matters"
    c, nll = found["c"], found["nll"]
    return (
        f"with it, a Cox model has C {c['with']:.2f} and an NLL of {nll['with']:.3f}, "
        f"without it C {c['without']:.2f} and {nll['without']:.3f}"
    )
