"""What the league gives a contender, and what it gets back; with NumPy and PyArrow only.

The league writes a folder with the question: a feature table for each split, labels of training and tuning rows, and
the horizons. A contender reads it, fits, tries its settings, and writes `predictions.parquet` (tuning and held-out
rows) and `facts.json` there. The labels of held-out rows are not in the folder, so that no contender can use them.

Every contender here gives cumulative hazards for each cause. They become cumulative incidences by the same formula,
after a hundredth of the training cohort's hazard was mixed in: without it one event in a leaf without events makes a
likelihood infinite. Settings are compared by the likelihood of tuning rows that the league itself reports.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Array = NDArray[Any]
QUESTION, PREDICTIONS, FACTS, VISITS = (
    "question.npz",
    "predictions.parquet",
    "facts.json",
    "visits.json",
)
SPLITS = ("train", "tuning", "held_out")
COHORT_SHARE = 0.01  # of the cohort's hazard in every prediction
# nobody's risks sum to 1: the likelihood of those who are still there would be infinite
LEAST_SURVIVAL = 1e-5
GRID_POINTS = 100  # quantiles of event times at which cumulative hazards are read, beside the knots


@dataclass(frozen=True)
class Question:
    """One task on one division of its subjects; n rows are prediction times.

    Attributes:
        folder: Where the answer goes.
        names: (F,) names of the features.
        features: Split → (n, F) float32, NaN where something is not known.
        subject_id: Split → (n,).
        prediction_us: Split → (n,) microseconds since 1970.
        duration_days: `train` and `tuning` → (n,) from the prediction time.
        cause: `train` and `tuning` → (n,) 0 = censored, 1 … = number of the cause.
        causes: Names, the outcome first.
        horizons_days: Of the task.
        knots_days: (K,) rising, the task's horizons among them: where risks are asked for.
        seed: Of every random draw.
    """

    folder: Path
    names: tuple[str, ...]
    features: Mapping[str, Array]
    subject_id: Mapping[str, Array]
    prediction_us: Mapping[str, Array]
    duration_days: Mapping[str, Array]
    cause: Mapping[str, Array]
    causes: tuple[str, ...]
    horizons_days: Array
    knots_days: Array
    seed: int

    def write(self) -> None:
        """Write the folder's `question.npz`, without the labels of held-out rows."""
        arrays: dict[str, Array] = {"names": np.array(self.names), "causes": np.array(self.causes)}
        arrays |= {
            "horizons_days": self.horizons_days,
            "knots_days": self.knots_days,
            "seed": np.array(self.seed),
        }
        for split in SPLITS:
            for column in ("features", "subject_id", "prediction_us"):
                arrays[f"{split}.{column}"] = getattr(self, column)[split]
        for split in SPLITS[:2]:
            for column in ("duration_days", "cause"):
                arrays[f"{split}.{column}"] = getattr(self, column)[split]
        self.folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(self.folder / QUESTION, **arrays)

    @classmethod
    def read(cls, folder: Path) -> Question:
        """Read what `write` wrote."""
        with np.load(folder / QUESTION, allow_pickle=False) as found:
            of_rows = {
                column: {
                    split: found[f"{split}.{column}"]
                    for split in SPLITS
                    if f"{split}.{column}" in found
                }
                for column in ("features", "subject_id", "prediction_us", "duration_days", "cause")
            }
            names, causes = (tuple(found[name].tolist()) for name in ("names", "causes"))
            return cls(
                folder,
                names,
                causes=causes,
                horizons_days=found["horizons_days"],
                knots_days=found["knots_days"],
                seed=int(found["seed"]),
                **of_rows,
            )

    @property
    def grid_days(self) -> Array:
        """(G,) days at which cumulative hazards are read: the knots, and quantiles of training events before them."""
        train = self.duration_days["train"][self.cause["train"] > 0]
        train = train[train < self.knots_days[-1]]
        spaced = np.quantile(train, np.linspace(0, 1, GRID_POINTS)) if len(train) else np.zeros(0)
        days: Array = np.unique(np.r_[spaced, self.knots_days])
        return days[days > 0]

    def filled(self) -> dict[str, Array]:
        """Split → (n, F') features without gaps, for models that need numbers everywhere.

        `count …` and days become log(1 + ·); days since something that never happened become the largest such time
        seen in training; other gaps become the training median. Columns that are constant or equal to another column
        in training are left out, values are kept within their training range, and mean and spread become 0 and 1.
        """
        skewed = np.array([name.startswith(("count ", "days", "events")) for name in self.names])
        since = np.array([name.startswith("days_since ") for name in self.names])
        raw = {split: values.astype(np.float64) for split, values in self.features.items()}
        for values in raw.values():
            values[:, skewed] = np.log1p(np.maximum(values[:, skewed], 0.0))
        train = raw["train"]
        known = ~np.isnan(train).all(axis=0)
        gap = np.zeros(train.shape[1])
        gap[known] = np.where(
            since[known], np.nanmax(train[:, known], axis=0), np.nanmedian(train[:, known], axis=0)
        )
        full = {split: np.where(np.isnan(values), gap, values) for split, values in raw.items()}
        low, high = full["train"].min(axis=0), full["train"].max(axis=0)
        _, first = np.unique(full["train"], axis=1, return_index=True)
        kept = np.sort(first)
        kept = kept[(high > low)[kept] & known[kept]]
        mean, spread = full["train"][:, kept].mean(axis=0), full["train"][:, kept].std(axis=0)
        return {
            split: (np.clip(v, low, high)[:, kept] - mean) / spread for split, v in full.items()
        }


def cohort_hazard(duration_days: Array, cause: Array, *, causes: int, grid_days: Array) -> Array:
    """(causes, G) Nelson–Aalen cumulative hazards at the grid: sums of events over subjects at risk."""
    order = np.sort(duration_days)
    at_risk = len(order) - np.searchsorted(order, duration_days, side="left")
    out = np.zeros((causes, len(grid_days)))
    for number in range(causes):
        of_cause = cause == number + 1
        position = np.searchsorted(grid_days, duration_days[of_cause], side="left")
        steps = np.bincount(position, weights=1 / at_risk[of_cause], minlength=len(grid_days) + 1)
        out[number] = np.cumsum(steps)[: len(grid_days)]
    return out


def incidences(cumulative: Array) -> Array:
    """Cumulative incidences from cumulative hazards of competing causes, hazards in constant ratio between grid days.

        F_e(t_g) = Σ_{j ≤ g} S(t_{j−1}) (1 − exp(−ΔH_j)) ΔH_{e,j} / ΔH_j,   S = exp(−Σ_e H_e)

    Args:
        cumulative: (n, causes, G), never falling, from 0 at day 0.
    """
    steps = np.maximum(np.diff(cumulative, axis=2, prepend=0.0), 0.0)
    either = steps.sum(axis=1)
    before = np.exp(-(np.cumsum(either, axis=1) - either))
    share = np.divide(steps, either[:, None], out=np.zeros_like(steps), where=either[:, None] > 0)
    return np.cumsum((before * -np.expm1(-either))[:, None] * share, axis=2)


def nll_through(risk: Array, knots_days: Array, duration_days: Array, cause: Array) -> float:
    """Mean negative log-likelihood of curves through risks at knots, with the follow-up cut at the last knot.

    Hazards are constant between knots. The package has the same in `predictors/from_file.py`.

    Args:
        risk: (n, causes, K).
        knots_days: (K,).
        duration_days: (n,).
        cause: (n,).
    """
    gained = np.maximum(np.diff(risk, axis=2, prepend=0.0), 0.0)
    survival = np.maximum(1 - risk.sum(axis=1), 1e-12)
    # (n, K) cumulative hazard in each interval
    step = -np.diff(np.log(np.c_[np.ones(len(risk)), survival]), axis=1)
    either, width = gained.sum(axis=1), np.diff(np.r_[0.0, knots_days])
    inside = np.clip((duration_days[:, None] - np.r_[0.0, knots_days[:-1]]) / width, 0.0, 1.0)
    loss = (step * inside).sum(axis=1)
    event = np.flatnonzero((cause > 0) & (duration_days <= knots_days[-1]))
    at = np.searchsorted(knots_days, duration_days[event], side="left")
    share = gained[event, cause[event] - 1, at] / np.maximum(either[event, at], 1e-300)
    with np.errstate(divide="ignore"):
        loss[event] -= np.log(share * step[event, at] / width[at])
    return float(loss.mean())


Fitted = Callable[[str], Array]  # split → (n, causes, G) cumulative hazards at the question's grid


def search(
    question: Question,
    trials: Sequence[Mapping[str, Any]],
    fit: Callable[[Mapping[str, Any]], Fitted],
    *,
    seconds: float,
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Fit with each setting, and keep the one with the lowest likelihood loss on tuning rows.

    A setting that the package cannot fit (no convergence) counts as a trial and is passed over.

    Args:
        question: The task.
        trials: Settings, in the order in which they are tried.
        fit: Settings → what gives cumulative hazards.
        seconds: No trial starts later than this, except for the first.

    Returns:
        Split → (n, causes, K) risks at the knots, and the facts of the search.
    """
    started, best, tried, failed = time.monotonic(), np.inf, 0, list[str]()
    chosen: dict[str, Any] | None = None
    kept: dict[str, Array] = {}
    for settings in trials:
        if tried and time.monotonic() - started > seconds:
            break
        tried += 1
        try:
            fitted = fit(settings)
            risk = {split: risks_of(question, fitted(split)) for split in ("tuning", "held_out")}
        except (ArithmeticError, ValueError, RuntimeError, np.linalg.LinAlgError) as error:
            failed.append(f"{dict(settings)}: {type(error).__name__}")
            continue
        own = question.duration_days["tuning"], question.cause["tuning"]
        loss = nll_through(risk["tuning"], question.knots_days, *own)
        if loss < best or chosen is None:
            best, chosen, kept = loss, dict(settings), risk
    if chosen is None:
        raise RuntimeError(f"no setting could be fitted: {'; '.join(failed)}")
    return kept, {
        "trials": tried,
        "of_trials": len(trials),
        "chosen": chosen,
        "tuning_nll": best,
        "failed": failed,
    }


def risks_of(question: Question, cumulative: Array) -> Array:
    """(n, causes, K) risks at the knots from a contender's cumulative hazards at the grid."""
    grid = question.grid_days
    train = question.duration_days["train"], question.cause["train"]
    base = cohort_hazard(*train, causes=len(question.causes), grid_days=grid)
    mixed = (1 - COHORT_SHARE) * cumulative + COHORT_SHARE * base
    risk = incidences(np.asarray(mixed, dtype=np.float64))[
        :, :, np.searchsorted(grid, question.knots_days)
    ]
    return (1 - LEAST_SURVIVAL) * risk


def write_answer(
    question: Question,
    risk: Mapping[str, Array],
    facts: Mapping[str, Any],
    *,
    horizons_days: Array,
    is_curve: bool,
    packages: Sequence[str],
) -> None:
    """Write `predictions.parquet` and, when it is complete, `facts.json`.

    Args:
        question: The task.
        risk: `tuning` and `held_out` → (n, causes, horizons).
        facts: What is told of the fit.
        horizons_days: Of the risks.
        is_curve: Whether they are enough for a likelihood.
        packages: Whose versions are told.
    """
    tables = []
    for split, values in risk.items():
        n, n_causes, n_horizons = values.shape
        repeat = n_causes * n_horizons
        tables.append(
            pa.table(
                {
                    "subject_id": pa.array(
                        np.repeat(question.subject_id[split], repeat).astype(np.int64)
                    ),
                    "prediction_time": pa.array(
                        np.repeat(question.prediction_us[split], repeat)
                    ).cast(pa.timestamp("us")),
                    "cause": pa.array(
                        np.tile(
                            np.repeat(np.array(question.causes, dtype=object), n_horizons), n
                        ).tolist()
                    ),
                    "horizon_days": pa.array(
                        np.tile(horizons_days, n * n_causes).astype(np.float64)
                    ),
                    "risk": pa.array(values.reshape(-1).astype(np.float32)),
                }
            )
        )
    pq.write_table(pa.concat_tables(tables), question.folder / PREDICTIONS)
    versions = {name: metadata.version(name) for name in packages}
    whole = {**facts, "is_curve": is_curve, "versions": versions}
    (question.folder / FACTS).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def contend(
    what: str,
    answer: Callable[[Question, float], tuple[dict[str, Array], dict[str, Any]]],
    *packages: str,
    at_horizons_only: bool = False,
) -> None:
    """The command line of a contender: `python CONTENDER.py FOLDER [--seconds S]`.

    Args:
        what: The contender in one sentence.
        answer: (question, seconds) → risks by split, and facts.
        packages: The packages that it is made of.
        at_horizons_only: Whether it predicts at the task's horizons, not at all knots.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("folder", type=Path, help="what the league wrote")
    parser.add_argument("--seconds", type=float, default=600.0, help="no trial starts later")
    arguments = parser.parse_args()
    started, cpu = time.monotonic(), time.process_time()
    question = Question.read(arguments.folder)
    risk, facts = answer(question, arguments.seconds)
    facts |= {
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }
    horizons = question.horizons_days if at_horizons_only else question.knots_days
    write_answer(
        question,
        risk,
        facts,
        horizons_days=horizons,
        is_curve=not at_horizons_only,
        packages=packages,
    )
