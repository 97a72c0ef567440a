"""An invented `metrics.json`: with the keys of every run (`example`), or with all that issue 5 added (`complete`)."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

YEAR = 365.25
#: What a result holds where nothing was computed.
NOTHING: dict[str, Any] = {
    **{name: [] for name in ("differences", "decision", "subgroups", "smallest_g", "follow_up")},
    **{name: [] for name in ("records_before", "incidence", "baselines")},
    **dict.fromkeys(("external", "repeated_splits", "audit", "blend", "score")),
    **dict.fromkeys(("weights", "strongest", "made_of", "table1")),
    "inputs": {"by_split": {}},
    "checks": {},
    "tripod": {},
    "recalibrated_in_training": False,
}
MODELS = ["ehrsequencing", "boosted visits", "landmark Cox", "age + sex", "Aalen–Johansen"]


class Cohort:
    """Invented subjects: split, log hazard ratio, outcome, time of leaving, sex, age and ethnicity."""

    def __init__(self, causes: tuple[str, ...], subjects: int, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.split = rng.choice(["train", "tuning", "held_out"], size=subjects, p=[0.7, 0.15, 0.15])
        self.score = rng.normal(size=subjects)
        scale = [12 * YEAR * (1 + k) for k in range(len(causes))]
        times = [rng.exponential(s * np.exp(-self.score)) for s in scale]
        censored = rng.uniform(0.2 * YEAR, 12 * YEAR, size=subjects)
        first = np.min(times, axis=0)
        cause = np.where(first < censored, 1 + np.argmin(times, axis=0), 0)
        self.last = np.minimum(first, censored)
        self.outcome = np.array([*causes, "censored"])[cause - 1]
        other = np.random.default_rng(seed + 1)
        self.levels = {
            "sex": other.choice(["F", "M"], size=subjects, p=[0.55, 0.45]),
            "ETHNICITY": other.choice(["ASIAN", "BLACK", "HISPANIC", "WHITE"], size=subjects, p=[0.04, 0.16, 0.1, 0.7]),
        }
        self.judged = self.split == "held_out"
        self.age = other.normal(60, 11, size=subjects)

    def groups(self, landmark: float) -> dict[str, np.ndarray]:
        """Levels at a landmark: age moves on, the others stay."""
        band = np.searchsorted([40, 50, 60, 70, 80], self.age + landmark / YEAR, side="right")
        return {**self.levels, "age": np.array(["18-39", "40-49", "50-59", "60-69", "70-79", "80+"])[band]}

    def risk(self, place: int, horizon: float, blur: float = 0.0) -> np.ndarray:
        """Risk of the cause in this place; `blur` makes it worse."""
        return 1 - np.exp(-horizon / (12 * YEAR * (1 + place)) * np.exp((1 - blur) * self.score))


def example(
    *,
    causes: tuple[str, ...] = ("death",),
    landmarks: tuple[float, ...] = (0.0,),
    horizons: tuple[float, ...] = (YEAR, 3 * YEAR),
    subjects: int = 2000,
    seed: int = 0,
    undefined: bool = False,
    oracle: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Metrics of an invented evaluation, whose counts come from invented subjects and so fit together."""
    people = Cohort(causes, subjects, seed)
    rng, split = people.rng, people.split
    outcome, last = people.outcome, people.last
    judged = split == "held_out"
    at_risk = []
    for landmark in landmarks:
        here = judged & (last > landmark)
        by = {c: [int((here & (outcome == c) & (last <= landmark + h)).sum()) for h in horizons] for c in causes}
        at_risk.append(
            {
                "landmark_days": landmark,
                "subjects": int(here.sum()),
                "evaluated": [int(here.sum())] * len(horizons),
                "events": by,
            }
        )
    places = itertools.product(landmarks, enumerate(causes), horizons)
    return NOTHING | {
        "title": "Death within a year after intensive care",
        "run": "/home/somebody/runs/17",
        "split": "held_out",
        "created": "2026-11-20",
        "versions": {"ehrsequencing": "0.1.0", "torch": "2.13.0"},
        "task": {
            "name": "death_after_icu",
            "index": {"code": ["ICU_ADMISSION"], "which": "first", "after": 2.0},
            "outcome": {causes[0]: ["MEDS_DEATH"]},
            "competing": {c: [f"{c.upper()}//*"] for c in causes[1:]},
            "censoring": {"code": ["END_OF_FOLLOWUP"], "date": None, "age": None, "dataset_end": False},
            "horizons": list(horizons),
            "landmarks": list(landmarks),
            "blanking": 0.0,
        },
        "question": "For adults 48 hours after their first admission to intensive care: will they die?",
        "data": {
            "name": "invented records",
            "simulated": oracle is not None,
            "subjects": {s: int((split == s).sum()) for s in ("train", "tuning", "held_out")},
            "visits": {"train": 81234, "tuning": 17345, "held_out": 17456},
            "prediction_times": {"train": 80234, "tuning": 17045, "held_out": 17156},
        },
        "causes": list(causes),
        "horizons_days": list(horizons),
        "landmarks_days": list(landmarks),
        "main": {"landmark_days": landmarks[0], "horizon_days": horizons[-1]},
        "attrition": [
            {"step": "all subjects", "subjects": subjects + 431, "excluded": 0},
            {"step": "with an index", "subjects": subjects + 120, "excluded": 311},
            {"step": "index inside the record", "subjects": subjects + 113, "excluded": 7},
            {"step": "alive and without the outcome", "subjects": subjects, "excluded": 113},
        ],
        "events": {
            s: {o: int(((split == s) & (outcome == o)).sum()) for o in (*causes, "censored")}
            for s in ("train", "tuning", "held_out")
        },
        "models": MODELS,
        "metrics": _values(causes, landmarks, horizons, rng, undefined=undefined),
        "at_risk": at_risk,
        "smooth_calibration": [row for at, cause, h in places for row in _smooth((at, *cause, h), people)],
        "trajectories": list(_trajectories(causes, horizons)),
        "history": [
            {
                "epoch": e,
                "train_loss": 2 * np.exp(-e / 5) + 1,
                "tuning_nll": 1 + 0.4 * np.exp(-e / 3) + 0.004 * e,
                "best": e in (1, 4, 9),
                "seconds": 3.2,
            }
            for e in range(1, 16)
        ],
        "config": {
            "model": {"dim": 64, "visit_encoder": "attention"},
            "splits": {"by": "file"},
            "training": {"seed": 0, "learning_rate": 0.0005},
            "data": {},
        },
        "warnings": ["Deaths occur after the last other event: survival after it goes unseen."] if undefined else [],
        "oracle": oracle,
    }


def _values(
    causes: tuple[str, ...], landmarks: tuple[float, ...], horizons: tuple[float, ...], rng: Any, *, undefined: bool
) -> list[dict[str, Any]]:
    rows = []
    for model, landmark, cause, horizon in itertools.product(MODELS, landmarks, causes, [*horizons, None]):
        place = {"model": model, "landmark_days": landmark, "cause": cause, "horizon_days": horizon}
        rank, flat = MODELS.index(model), model == MODELS[-1]
        means = {
            "c": 0.88 - 0.02 * rank,
            "auc": 0.89 - 0.02 * rank,
            "ipa": 0.3 - 0.07 * rank,
            "brier": 0.09 + 0.01 * rank,
            "oe": 1.02 + 0.11 * rank,
        }
        for name, mean in means.items() if horizon else (("ibs", 0.081 + 0.01 * rank), ("nll", 1.21 + 0.05 * rank)):
            value, half = float(mean + rng.normal(0, 0.005)), 0.015 + 0.03 * (cause != causes[0])
            row: dict[str, Any] = {"value": value, "low": value - half, "high": value + half}
            if (flat and name in ("c", "auc")) or (undefined and horizon == horizons[0]):
                row = dict.fromkeys(row)
            elif flat and name == "ipa":
                row = {"value": 0.0, "low": None, "high": None}
            rows.append({**place, "metric": name, "reason": None, **row})
    return rows


def _trajectories(causes: tuple[str, ...], horizons: tuple[float, ...]) -> Iterator[dict[str, Any]]:
    for label, outcome, count in (
        ("A", f"{causes[0]} at 3.2 y", 24),
        ("B", "event-free, 6.0 y seen", 7),
        ("C", "?", 1),
    ):
        times = (np.linspace(0, 3.1, count) ** 1.2 * YEAR).tolist()
        rising = {
            cause: [[float(1 - np.exp(-h / YEAR * 0.05 / (1 + k) * (1 + t / 400))) for h in horizons] for t in times]
            for k, cause in enumerate(causes)
        }
        kinds = ["query", *(["visit"] * (count - 1))]
        event = {"day": 1000.0, "cause": causes[0] if label == "A" else None}
        last = {cause: [risks[-1]] for cause, risks in rising.items()}
        yield {
            "label": label,
            "risk_horizon_days": horizons[len(horizons) // 2],
            "outcome": outcome,
            "times_days": times,
            "kind": kinds,
            "curves": rising,
            "horizons_days": list(horizons),
            "now": count - 1,
            "event": event,
            "curve_days": list(horizons),
            "curve_at": [count - 1],
            "full": last,
            "visits": [],
            "descriptions": {},
        }


# ------------------------------------------------------------------------------------------ what issue 5 added


def complete(**kind: Any) -> dict[str, Any]:
    """All keys of the contract, about the same invented subjects as `example`."""
    metrics = example(**kind)
    causes, horizons = tuple(metrics["causes"]), metrics["horizons_days"]
    people = Cohort(causes, kind.get("subjects", 2000), kind.get("seed", 0))
    places = [
        (landmark, k, cause, h)
        for landmark in metrics["landmarks_days"]
        for k, cause in enumerate(causes)
        for h in horizons
    ]
    metrics["metrics"] += [row for place in places for row in _more_values(place, people.rng)]
    found = {tuple(row[k] for k in KEY): row["value"] for row in metrics["metrics"]}
    differences = []
    for (landmark, _, cause, h), model, metric in itertools.product(places, MODELS[1:], ("c", "auc", "ipa", "brier")):
        two = [found[name, landmark, cause, h, metric] for name in (MODELS[0], model)]
        gap = None if None in two else two[0] - two[1]
        half = 0.012 + 0.02 * (cause != causes[0])
        span = {"value": gap, "low": None if gap is None else gap - half, "high": None if gap is None else gap + half}
        place = {"landmark_days": landmark, "cause": cause, "horizon_days": h}
        differences.append({"model": model, **place, "metric": metric, **span, "reason": None})
    return metrics | {
        "differences": differences,
        "decision": [r for place in places for r in _decision(place, people)],
        "subgroups": [r for place in places for r in _subgroups(place, people)],
        "smallest_g": [
            {"landmark_days": d, "horizon_days": h, "g": max(0.03, 0.9 - h / YEAR / 6), "thin": False}
            for d in metrics["landmarks_days"]
            for h in horizons
        ],
        "follow_up": [
            {
                "landmark_days": d,
                "median_days": 2400.0 - d / 2,
                "low": 2250.0 - d / 2,
                "high": 2500.0 - d / 2,
                "reason": None,
            }
            for d in metrics["landmarks_days"]
        ],
        "inputs": {
            "by_split": {
                s: {
                    "subjects": n,
                    "prediction_times": 17 * n,
                    "unknown_token_rate": 0.0123,
                    "unknown_age_rate": 0.0021,
                    "people": {"unknown_age_rate": [n // 100, n], "unknown_token_rate": [n // 4, n]},
                }
                for s, n in metrics["data"]["subjects"].items()
            }
        },
        "checks": {
            "time_zero": "Time zero is 48 hours after the first ICU_ADMISSION, known when it is reached.",
            "predictor_cutoff": "Every token at a prediction time is stamped at or before it.",
            "parameters": 187_204,
            "tuning_trials": 12,
            "seeds": [0, 1, 2],
            "members": 3,
        },
        "external": None,
        "repeated_splits": _splits(metrics),
        "recalibrated_in_training": True,
    }


KEY = ("model", "landmark_days", "cause", "horizon_days", "metric")


def _more_values(place: tuple[Any, ...], rng: Any) -> Iterator[dict[str, Any]]:
    landmark, _, cause, h = place
    for rank, model in enumerate(MODELS):
        where = {"model": model, "landmark_days": landmark, "cause": cause, "horizon_days": h}
        means = {
            "intercept": 0.04 - 0.1 * rank,
            "slope": 0.97 - 0.06 * rank,
            "ici": 0.012 + 0.01 * rank,
            "e50": 0.009 + 0.008 * rank,
            "e90": 0.03 + 0.01 * rank,
            "ici_null": 0.017,
            "ks": 0.011 + 0.01 * rank,
            "ks_p": 0.41 / (1 + 8 * rank),
        }
        for metric, mean in means.items():
            half = 0.1 if metric in ("slope", "intercept") else mean / 2
            bare = metric in ("ici_null", "ks", "ks_p")
            value = mean if bare else mean + float(rng.normal(0, half / 5))
            if model == MODELS[-1] and metric == "slope":
                value, bare = None, True
            span = {"low": None, "high": None} if bare else {"low": value - half, "high": value + half}
            yield {**where, "metric": metric, "value": value, **span, "reason": None}


def _here(place: tuple[Any, ...], people: Cohort) -> tuple[np.ndarray, np.ndarray]:
    landmark, _, cause, h = place
    here = people.judged & (people.last > landmark)
    return here, here & (people.outcome == cause) & (people.last <= landmark + h)


def _smooth(place: tuple[Any, ...], people: Cohort) -> Iterator[dict[str, Any]]:
    landmark, k, cause, h = place
    here, event = _here(place, people)
    for model, blur in zip(MODELS[:2], (0.0, 0.4), strict=True):
        if not here.any():
            continue
        risk = people.risk(k, h, blur)[here]
        counts, edges = np.histogram(risk, 10)
        x = np.linspace(*np.quantile(risk, [0.01, 0.99]), 50)
        y = x ** (1.04 - 0.12 * (blur > 0)) * (0.97 + 0.1 * (blur > 0))
        half = 1.96 * np.sqrt(x * (1 - x) / max(len(risk), 1)) * (1 + 4 * x)
        yield {
            "model": model,
            "landmark_days": landmark,
            "cause": cause,
            "horizon_days": h,
            "predicted": x.tolist(),
            "observed": y.tolist(),
            "low": np.maximum(y - half, 0).tolist(),
            "high": np.minimum(y + half, 1).tolist(),
            "histogram": {"edges": edges.tolist(), "shares": (counts / len(risk)).tolist(), "n": counts.tolist()},
            "n": int(here.sum()),
            "events": int(event.sum()),
        }


def _decision(place: tuple[Any, ...], people: Cohort) -> Iterator[dict[str, Any]]:
    landmark, k, cause, h = place
    here, event = _here(place, people)
    at = np.linspace(0.01, 0.6, 60)
    share = event[here].mean() if here.any() else np.nan
    for model, blur in zip(MODELS[:2], (0.0, 0.6), strict=True):
        flagged = people.risk(k, h, blur)[here][:, None] >= at
        true = (flagged & event[here][:, None]).sum(0) / max(here.sum(), 1)
        benefit = true - (flagged.mean(0) if len(flagged) else np.nan * at - true) * at / (1 - at)
        half = 0.4 * np.sqrt(np.maximum(true, 0) / max(here.sum(), 1)) + 0.002
        yield {
            "model": model,
            "landmark_days": landmark,
            "cause": cause,
            "horizon_days": h,
            "thresholds": at.tolist(),
            "above": flagged.sum(0).tolist(),
            "events_above": (flagged & event[here][:, None]).sum(0).tolist(),
            "net_benefit": benefit.tolist(),
            "low": (benefit - half).tolist(),
            "high": (benefit + half).tolist(),
            "treat_all": (share - (1 - share) * at / (1 - at)).tolist(),
            "n": int(here.sum()),
            "events": int(event.sum()),
        }


def _subgroups(place: tuple[Any, ...], people: Cohort) -> Iterator[dict[str, Any]]:
    landmark, _, cause, h = place
    here, event = _here(place, people)
    for group, of in people.groups(landmark).items():
        for level in sorted(set(of.tolist())):
            n, events = int((here & (of == level)).sum()), int((event & (of == level)).sum())
            wide = 1 / max(events, 1) ** 0.5
            means = {"oe": 1.03, "auc": 0.84, "brier": 0.09}
            spans = {
                m: {"value": v, "low": v - 0.8 * v * wide, "high": v + 0.8 * v * wide, "reason": None}
                for m, v in means.items()
            }
            if not events:
                spans = {m: dict.fromkeys(("value", "low", "high", "reason")) for m in means}
            yield {
                "landmark_days": landmark,
                "cause": cause,
                "horizon_days": h,
                "group": group,
                "level": level,
                "n": n,
                "events": events,
                **spans,
            }


def _splits(metrics: dict[str, Any]) -> dict[str, Any]:
    rng, rows, gaps = np.random.default_rng(7), [], []
    for rank, model in enumerate(MODELS):
        for metric, mean in (("c", 0.84 - 0.01 * rank), ("ipa", 0.3 - 0.03 * rank), ("brier", 0.1 + 0.01 * rank)):
            values = (mean + rng.normal(0, 0.02, 25)).tolist()
            place = {"model": model, **metrics["main"], "cause": metrics["causes"][0]}
            rows.append(
                {**place, "metric": metric, "mean": mean, "low": mean - 0.03, "high": mean + 0.03, "values": values}
            )
            if rank:
                gap = {"c": 0.01, "ipa": 0.03, "brier": -0.01}[metric] * rank
                gaps.append(
                    {**place, "metric": metric, "mean": gap, "low": gap - 0.015, "high": gap + 0.015, "values": values}
                )
    return {"splits": 25, "seeds": list(range(1234, 1259)), "rows": rows, "differences": gaps}


WIDE = {"causes": ("death", "transplant"), "landmarks": (YEAR, 3 * YEAR), "horizons": (YEAR, 3 * YEAR, 5 * YEAR)}
ORACLE = {"nll_model": 1.103, "nll_oracle": 1.061, "nll_difference": 0.042, "nll_difference_se": 0.011}


def of_split(
    seed: int,
    values: dict[tuple[Any, ...], float],
    train: int = 80,
    held_out: int = 20,
    counts: tuple[int, int] = (20, 40),
) -> dict[str, Any]:
    """What is kept of one random split: a value for each model, landmark, cause, horizon and metric."""
    rows = [
        {**dict(zip(KEY, place, strict=True)), "value": value, "events": counts[0], "subjects": counts[1]}
        for place, value in values.items()
    ]
    return {"seed": seed, "train_subjects": train, "held_out_subjects": held_out, "metrics": rows}
