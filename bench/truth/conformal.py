"""Would conformal bounds of event times be worth a feature? `python -m bench conformal DATA OUT [TASK …] [--splits 5]`.

At a task's shown landmark the model says a cumulative incidence F(t | x) of the outcome, beside competing causes. A
lower bound of its time at level 1 − α is

    L(x) = inf {t : F(t | x) ≥ τ}, at most the last horizon       "with 90 %, not before L"

- `as said`: τ = α, which holds where the risks are calibrated.
- `conformal`: the greatest τ whose share of tuning people with the outcome before L is at most α, where a person with
  the outcome counts 1/G(T−) for those who were censored (Candès, Lei and Ren 2023, here with a competing cause, which
  ends the wait without an outcome), and one more person counts as a miss (the +1 of split conformal prediction).

Printed over divisions: the share of held-out people with the outcome before their bound (wanted: α), by those weights;
in simulated worlds by the true hazards, of all and in thirds of the risk that was said: what holds for all need not
hold for anybody's kind. Trainings are those of `python -m bench league`, with the same OUT.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.accuracy._league_tasks import FIRST_SEED, TASKS, Place
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.evaluation.oracle import Truth
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.predictor import Predictor
from ehrsequencing.records.hazards import cumulative_incidence
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan

MISS = 0.1
GRID = 400


class Asked:
    """The rows of a split at the shown landmark, with the incidences said of them."""

    def __init__(self, place: Place, split: str, predictor: Predictor) -> None:
        task, prepared = place.question, place.prepared()
        landmark, _ = place.one.shown_days
        self.records = prepared.records(task.name, split)
        self.chosen = np.asarray(self.records.at_landmark(landmark))
        self.days = np.linspace(0, max(task.horizons), GRID + 1)[1:]
        self.incidence = predictor.risk(self.records, self.days)[self.chosen, 0]
        self.duration = np.asarray(self.records.rows.duration_days)[self.chosen]
        self.cause = np.asarray(self.records.rows.cause)[self.chosen]
        self.weight = self._weights()

    def _weights(self) -> Floats:
        """(n,) 1/G(T−) of those with the outcome, 0 of the others; G is Kaplan–Meier's estimate of censoring."""
        ends = np.unique(self.duration[self.cause == 0])
        at_risk = (self.duration[None] >= ends[:, None]).sum(1)
        left = ((self.duration[None] == ends[:, None]) & (self.cause == 0)[None]).sum(1)
        stays = np.r_[1.0, np.cumprod(1 - left / at_risk)]
        return np.where(
            self.cause == 1, 1 / np.maximum(stays[np.searchsorted(ends, self.duration)], 1e-3), 0.0
        )

    def bound(self, level: float) -> Floats:
        """(n,) days: the first at which the incidence reaches the level, at most the last horizon."""
        reached = self.incidence >= level
        return np.where(reached.any(1), self.days[reached.argmax(1)], self.days[-1])

    def missed(self, level: float) -> float:
        """Weighted share with the outcome before the bound."""
        return float((self.weight * (self.duration < self.bound(level))).mean())

    def conformal_level(self) -> float:
        """The greatest level that misses no more than `MISS` of the people, one more of them counted as a miss."""
        levels = np.linspace(0.002, 0.6, 300)
        most = max(float(self.weight.max()), 1.0)
        n = len(self.weight)
        held = [(self.missed(level) * n + most) / (n + 1) <= MISS for level in levels]
        return float(levels[np.flatnonzero(held)[-1]]) if any(held) else 0.0


def true_misses(place: Place, asked: Asked, bound: Floats) -> Floats:
    """(n,) true probability of the outcome before each bound; NaN where the simulation has no truth."""
    truth = Truth.read(place.records, asked.records, causes=place.question.causes)
    assert truth is not None
    inner = truth.edges_days[1:-1].tolist()
    hazards = truth.hazards[asked.chosen]
    known = ~np.isnan(hazards).any(axis=(1, 2))
    out = np.full(len(bound), np.nan)
    curve = cumulative_incidence(hazards[known], inner, asked.days)[:, 0]
    place_of: Ints = np.searchsorted(asked.days, bound[known])
    out[known] = curve[np.arange(len(curve)), np.minimum(place_of, GRID - 1)]
    return out


def judged(place: Place) -> Iterator[tuple[str, list[float]]]:
    """Of one division, by kind of bound: level; misses; capped share; median bound; true misses of all and thirds."""
    folder = place.folder / "blend" / "run"
    study = place.study(f"training.seed={place.seed}")
    fit(Plan.of(place.prepared(), place.question.name, study), folder, resume=True)
    predictor = Run(folder).predictor
    tuning, held_out = (Asked(place, split, predictor) for split in ("tuning", "held_out"))
    for kind, level in (("as said", MISS), ("conformal", tuning.conformal_level())):
        bound = held_out.bound(level)
        capped = bound >= held_out.days[-1]
        numbers = [level, held_out.missed(level), float(capped.mean())]
        numbers.append(float(np.median(bound[~capped])) if (~capped).any() else np.nan)
        if place.one.world is not None:
            true = true_misses(place, held_out, bound)
            order = np.argsort(held_out.incidence[:, -1], kind="stable")
            thirds = [float(np.nanmean(true[part])) for part in np.array_split(order, 3)]
            numbers += [float(np.nanmean(true)), *thirds]
        yield kind, numbers


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("tasks", nargs="*", default=["sim_default", "sim_pairs", "pbc2"])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--subjects", type=int, default=3000)
    given = parser.parse_args()
    print(
        "| task | bound | τ | outcome before it: range | no bound | median days | truth: thirds |"
    )
    print("|---|---|---|---|---|---|---|")
    for task in given.tasks:
        if task not in TASKS:
            parser.error(f"unknown task {task}: one of {', '.join(TASKS)}")
        found: dict[str, list[list[float]]] = {}
        for number in range(given.splits):
            place = Place(
                task,
                given.data.resolve(),
                given.out.resolve(),
                FIRST_SEED + number,
                subjects=given.subjects,
            )
            for kind, numbers in judged(place):
                found.setdefault(kind, []).append(numbers)
        for kind, each in found.items():
            mean, low, high = (f(np.array(each), axis=0) for f in (np.nanmean, np.min, np.max))
            true = " / ".join(f"{value:.3f}" for value in mean[5:])
            print(
                f"| {task} | {kind} | {mean[0]:.3f} | {mean[1]:.3f}: {low[1]:.3f} to {high[1]:.3f} | {mean[2]:.0%} "
                f"| {mean[3]:.0f} | {f'{mean[4]:.3f}: {true}' if true else '–'} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
