"""The table and the figures of `bench/few_labels.py`, made of the arms that are there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ehrsequencing.arrays import Floats, Ints
from ehrsequencing.evaluation.few_labels import paired_gain
from ehrsequencing.reporting.chart import Chart, ticks
from ehrsequencing.reporting.report import standalone

_WIDTH, _LEFT, _ROW, _HEAD = 760.0, 262.0, 18.0, 24.0
_BLEND = "[training.blend=true]"
BySeed = Mapping[str, Floats]  # seed → NLL of each held-out prediction time


@dataclass(frozen=True)
class Difference:
    """How much lower an arm's NLL is than another's, one entry a seed; positive is better.

    Attributes:
        each: Mean difference over held-out prediction times.
        se: Its standard error over held-out subjects, paired.
    """

    each: Floats
    se: Floats

    @classmethod
    def between(cls, base: BySeed, arm: BySeed, subjects: Mapping[str, Ints]) -> Difference | None:
        """Over the seeds that have both; None where there is none."""
        seeds = sorted(base.keys() & arm.keys())
        gains = [paired_gain(base[seed], arm[seed], subjects[seed]) for seed in seeds]
        return cls(*np.array(gains).T) if gains else None

    @property
    def interval(self) -> tuple[float, float, float]:
        """Mean and 95 % interval; the standard error is the larger of that within seeds and that between them."""
        count = len(self.each)
        within = float(np.sqrt(np.square(self.se).sum())) / count
        between = float(self.each.std(ddof=1)) / np.sqrt(count) if count > 1 else 0.0
        mean, half = float(self.each.mean()), 1.96 * max(within, between)
        return mean, mean - half, mean + half

    def __str__(self) -> str:
        mean, low, high = self.interval
        return f"{mean:+.4f} ({low:+.4f} to {high:+.4f})"


@dataclass(frozen=True)
class Result:
    """An arm with one number of labels, over the seeds that also have `scratch` with as many.

    Attributes:
        panel: Folder of the panel.
        arm: Its name.
        n: Labelled subjects; None for all.
        nll: Mean held-out NLL a prediction time, one a seed.
        gain: Against scratch with as many labels.
        share: Of the distance from scratch with n to scratch with all labels, over all seeds together.
        over_trees: Against boosted trees with all labels; None where these have not run.
    """

    panel: str
    arm: str
    n: int | None
    nll: Floats
    gain: Difference
    share: float
    over_trees: Difference | None


def collect(out: Path) -> list[Result]:
    """Everything that is below the folder of the bench."""
    found: list[Result] = []
    for panel in sorted({path.parents[2] for path in out.glob("*/seed-*/arms/*.json")}):
        arms: dict[tuple[str, int | None], dict[str, Floats]] = {}
        subjects: dict[str, Ints] = {}
        for path in sorted(panel.glob("seed-*/arms/*.json")):
            one, seed = json.loads(path.read_text()), path.parents[1].name
            arms.setdefault((one["arm"], one["n"]), {})[seed] = np.array(one["nll"])
            subjects.setdefault(seed, np.array(json.loads((path.parents[1] / "subjects.json").read_text())))
        best, trees = arms.get(("scratch", None), {}), arms.get(("trees", None), {})
        sizes = {n for _, n in arms if n is not None}
        arms |= {(f"{arm}, all labels", n): arms[arm, None] for arm, m in tuple(arms) if m is None for n in sizes}
        for (arm, n), by_seed in arms.items():
            base = arms.get(("scratch", n), {})
            gain = Difference.between(base, by_seed, subjects)
            if gain is None:
                continue
            seeds = sorted(by_seed.keys() & base.keys())
            gap = [base[s].mean() - best[s].mean() for s in seeds if s in best]
            share = gain.each.sum() / sum(gap) if len(gap) == len(seeds) and sum(gap) > 0 else float("nan")
            nll = np.array([by_seed[s].mean() for s in seeds])
            over = Difference.between(trees, {s: by_seed[s] for s in seeds}, subjects)
            found.append(Result(panel.name, arm, n, nll, gain, float(share), over))
    return sorted(found, key=lambda one: (one.panel, one.n or 10**9, one.arm))


def markdown(found: Sequence[Result]) -> str:
    """One table: a line for each panel, number of labels and arm."""
    lines = [
        "| panel | labels | arm | seeds | NLL | gain over scratch (95 %) | of the gap | over trees with all labels "
        "| gain, each seed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        base, same = one.arm == "scratch", one.arm == "trees, all labels" or (one.arm, one.n) == ("trees", None)
        lines.append("| " + " | ".join((
            one.panel, "all" if one.n is None else f"{one.n:,}", f"`{one.arm}`", str(len(one.nll)),
            f"{one.nll.mean():.4f}", "" if base else str(one.gain),
            "" if base or np.isnan(one.share) else f"{one.share:+.0%}",
            "" if same or one.over_trees is None else str(one.over_trees),
            "" if base else " ".join(f"{gain:+.4f}" for gain in one.gain.each),
        )) + " |")  # fmt: skip
    return "\n".join(lines) + "\n"


def figure(found: Sequence[Result]) -> str:
    """Gains over scratch of one panel: a row for each arm, with its 95 % interval, below each number of labels.

    Arms with settings of their own are left to the table, but for blends.
    """
    shown = [
        one
        for one in found
        if one.n is not None and one.arm != "scratch" and "[" not in one.arm.replace(_BLEND, "").split(",")[0]
    ]
    if not shown:
        return ""
    sizes = sorted({one.n for one in shown if one.n is not None})
    ends = [end for one in shown for end in one.gain.interval]
    height = 50 + _ROW * len(shown) + _HEAD * len(sizes)
    low, high = min(0.0, *ends), max(0.0, *ends)
    pad = 0.04 * (high - low)
    chart = Chart(_WIDTH, height, (low - pad, high + pad), left=_LEFT, top=6)
    chart.verticals(ticks(chart.x.low, chart.x.high), "grid")
    chart.verticals([0.0], "reference")
    chart.x_axis("NLL gained over from-scratch training with as many labels", lambda value: f"{value:+.2f}")
    y = chart.y.high
    for n in sizes:
        chart.margin_text(4, y + 15, f"{n:,} labelled subjects", "strong")
        y += _HEAD
        for one in sorted((one for one in shown if one.n == n), key=lambda one: -one.gain.interval[0]):
            name, (mean, *ends) = one.arm.replace(_BLEND, ", blend"), one.gain.interval
            chart.margin_text(14, y + _ROW / 2, name)
            chart.whisker(_kind(one.arm), (ends[0], ends[1]), (y + _ROW / 2, y + _ROW / 2))
            chart.mark(_kind(one.arm), mean, y + _ROW / 2, f"{name}, {n:,} labels: {one.gain}", size=3.8)
            chart.told.append(f"{name}, {n:,} labels: {one.gain}")
            y += _ROW
    return standalone(chart.svg(f"What pretraining gains: {shown[0].panel}"))


def _kind(arm: str) -> int:
    """Which mark: 0 for what was pretrained, 1 for trees, 2 for networks from scratch, 3 for null controls."""
    if "-shuffled" in arm or "-other_pairs" in arm:
        return 3
    return {"trees": 1, "scratch": 2}.get(arm.split(",")[0].split("[")[0], 0)
