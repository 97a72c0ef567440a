"""The table and the figure of `bench/few_labels.py`, made of the arms that are there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ehrsequencing.arrays import Floats, Ints
from ehrsequencing.evaluation.few_labels import paired_gain
from ehrsequencing.reporting.chart import Chart
from ehrsequencing.reporting.report import standalone

_WIDTH, _HEIGHT = 760.0, 340.0


@dataclass(frozen=True)
class Gain:
    """An arm against `scratch` with as many labels, over the seeds that have both.

    Attributes:
        panel: Folder of the panel.
        arm: Its name.
        n: Labelled subjects; None for all.
        nll: Mean held-out NLL a prediction time, one a seed.
        gain: NLL of scratch minus its own, one a seed; positive is better.
        se: Its standard error over held-out subjects, paired, one a seed.
        share: Of the distance from scratch with n to scratch with all labels, over all seeds together.
    """

    panel: str
    arm: str
    n: int | None
    nll: Floats
    gain: Floats
    se: Floats
    share: float

    @property
    def pooled(self) -> tuple[float, float]:
        """Mean gain, and its standard error: the larger of that within seeds and that between them."""
        count = len(self.gain)
        within = float(np.sqrt(np.square(self.se).sum())) / count
        between = float(self.gain.std(ddof=1)) / np.sqrt(count) if count > 1 else 0.0
        return float(self.gain.mean()), max(within, between)


def collect(out: Path) -> list[Gain]:
    """Everything that is below the folder of the bench."""
    found: list[Gain] = []
    for panel in sorted({path.parents[2] for path in out.glob("*/seed-*/arms/*.json")}):
        arms: dict[tuple[str, int | None], dict[str, Floats]] = {}
        subjects: dict[str, Ints] = {}
        for path in sorted(panel.glob("seed-*/arms/*.json")):
            one, seed = json.loads(path.read_text()), path.parents[1].name
            arms.setdefault((one["arm"], one["n"]), {})[seed] = np.array(one["nll"])
            subjects.setdefault(seed, np.array(json.loads((path.parents[1] / "subjects.json").read_text())))
        best = arms.get(("scratch", None), {})
        for (arm, n), by_seed in arms.items():
            base = arms.get(("scratch", n), {})
            seeds = sorted(by_seed.keys() & base.keys())
            if not seeds:
                continue
            gains = [paired_gain(base[s], by_seed[s], subjects[s]) for s in seeds]
            gap = [base[s].mean() - best[s].mean() for s in seeds if s in best]
            whole = sum(g[0] for g in gains)
            share = whole / sum(gap) if len(gap) == len(seeds) and sum(gap) > 0 else float("nan")
            nll, (gain, se) = np.array([by_seed[s].mean() for s in seeds]), np.array(gains).T
            found.append(Gain(panel.name, arm, n, nll, gain, se, share))
    return sorted(found, key=lambda one: (one.panel, one.n or 10**9, one.arm))


def markdown(found: Sequence[Gain]) -> str:
    """One table: a line for each panel, number of labels and arm."""
    lines = [
        "| panel | labels | arm | seeds | NLL | gain over scratch (95 %) | of the gap | each seed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        mean, se = one.pooled
        interval = "" if one.arm == "scratch" else f"{mean:+.4f} ({mean - 1.96 * se:+.4f} to {mean + 1.96 * se:+.4f})"
        share = "" if np.isnan(one.share) or one.arm == "scratch" else f"{one.share:+.0%}"
        each = "" if one.arm == "scratch" else " ".join(f"{gain:+.4f}" for gain in one.gain)
        n = "all" if one.n is None else f"{one.n:,}"
        cells = [one.panel, n, f"`{one.arm}`", str(len(one.gain)), f"{one.nll.mean():.4f}", interval, share, each]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def figure(found: Sequence[Gain]) -> str:
    """Gain over scratch against the number of labels, one line an arm, with 95 % intervals."""
    shown = [one for one in found if one.n is not None and one.arm != "scratch"]
    if not shown:
        return ""
    arms = sorted({one.arm for one in shown})
    ends = [mean + sign * 1.96 * se for mean, se in (one.pooled for one in shown) for sign in (-1, 1)]
    sizes = sorted({one.n for one in shown if one.n is not None})
    low, high = np.log10(sizes[0]) - 0.15, np.log10(sizes[-1]) + 0.15
    chart = Chart(_WIDTH, _HEIGHT, (low, high), (min(0.0, *ends), max(0.0, *ends)), left=66, right=250)
    chart.y_axis("gain in NLL over scratch", lambda value: f"{value:+.2f}")
    for n in sizes:
        chart.text(np.log10(n), chart.y.low, f"{n:,}", "mid", dy=16)
    chart.line(low, 0.0, high, 0.0, "axis")
    chart.text((low + high) / 2, chart.y.low, "labelled training subjects", "mid", dy=33)
    for kind, arm in enumerate(arms):
        line = sorted((one.n or 0, *one.pooled) for one in shown if one.arm == arm)
        shift = 0.012 * (kind - len(arms) / 2)  # so that intervals do not lie on each other
        at = [np.log10(n) + shift for n, _, _ in line]
        chart.path(at, [mean for _, mean, _ in line], "" if kind == 0 else "k1 thin")
        for x, (n, mean, se) in zip(at, line, strict=True):
            chart.whisker(kind, (x, x), (mean - 1.96 * se, mean + 1.96 * se))
            chart.mark(kind, x, mean, f"{arm}, {n:,} labels: {mean:+.4f}")
        chart.told.append(f"{arm}: {', '.join(f'{n:,} labels {mean:+.4f}' for n, mean, _ in line)}")
    chart.end_labels(
        [(max((one.n or 0, one.pooled[0]) for one in shown if one.arm == arm)[1], arm[:36]) for arm in arms]
    )
    return standalone(chart.svg(f"What pretraining gains: {shown[0].panel}"))
