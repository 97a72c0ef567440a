"""The table and the figures of `bench/few_labels.py`, made of the arms that are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from _few_labels_results import Pair, Row
from ehrsequencing.core.arrays import Floats
from ehrsequencing.evaluation.repeated_splits import TRAIN, TUNING, corrected_interval
from ehrsequencing.reporting.chart import Chart, ticks
from ehrsequencing.reporting.report import standalone

_WIDTH, _LEFT, _ROW, _HEAD = 760.0, 262.0, 18.0, 24.0
RATIO = (1 - TRAIN - TUNING) / (TRAIN + TUNING)  # held-out subjects for each that is trained on
_BLEND = "[training.blend=true]"


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
    def of(cls, pairs: Sequence[Pair | None]) -> Difference | None:
        """Of the seeds that have one; None where there is none."""
        found = [pair for pair in pairs if pair is not None]
        return cls(*np.array(found).T) if found else None

    @property
    def interval(self) -> tuple[float, float, float]:
        """Mean and 95 % interval over the seeds by Nadeau and Bengio; of one seed that over its held-out subjects."""
        mean, low, high = corrected_interval(self.each, RATIO)
        if len(self.each) == 1:
            half = 1.96 * float(self.se[0])
            return mean, mean - half, mean + half
        return mean, low, high

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


def collect(rows: Sequence[Row]) -> list[Result]:
    """The arms, each over its seeds."""
    nll = {(row.panel, row.seed, row.n, row.arm): row.nll for row in rows}
    groups: dict[tuple[str, int | None, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.panel, row.n, row.arm), []).append(row)
    found: list[Result] = []
    for (panel, n, arm), group in groups.items():
        gain = Difference.of([row.gain for row in group])
        assert gain is not None
        best = [nll.get((panel, row.seed, None, "scratch")) for row in group]
        base = [nll[panel, row.seed, n, "scratch"] for row in group]
        gap = sum(low - high for low, high in zip(base, best, strict=True) if high is not None)
        share = float(gain.each.sum()) / gap if None not in best and gap > 0 else float("nan")
        over = Difference.of([row.over_trees for row in group])
        found.append(Result(panel, arm, n, np.array([row.nll for row in group]), gain, share, over))
    return sorted(found, key=lambda one: (one.panel, one.n or 10**9, one.arm))


def markdown(found: Sequence[Result]) -> str:
    """One table: a line for each panel, number of labels and arm."""
    lines = [
        "| panel | labels | arm | seeds | NLL | gain over scratch (95 %) | of the gap | over trees with all labels "
        "| gain, each seed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        base, same = (
            one.arm == "scratch",
            one.arm == "trees, all labels" or (one.arm, one.n) == ("trees", None),
        )
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
        if one.n is not None
        and one.arm != "scratch"
        and "[" not in one.arm.replace(_BLEND, "").split(",")[0]
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
    chart.x_axis(
        "NLL gained over from-scratch training with as many labels", lambda value: f"{value:+.2f}"
    )
    y = chart.y.high
    for n in sizes:
        chart.margin_text(4, y + 15, f"{n:,} labelled subjects", "strong")
        y += _HEAD
        for one in sorted(
            (one for one in shown if one.n == n), key=lambda one: -one.gain.interval[0]
        ):
            name, (mean, *ends) = one.arm.replace(_BLEND, ", blend"), one.gain.interval
            chart.margin_text(14, y + _ROW / 2, name)
            chart.whisker(_kind(one.arm), (ends[0], ends[1]), (y + _ROW / 2, y + _ROW / 2))
            chart.mark(
                _kind(one.arm), mean, y + _ROW / 2, f"{name}, {n:,} labels: {one.gain}", size=3.8
            )
            chart.told.append(f"{name}, {n:,} labels: {one.gain}")
            y += _ROW
    return standalone(chart.svg(f"What pretraining gains: {shown[0].panel}"))


def _kind(arm: str) -> int:
    """Which mark: 0 for what was pretrained, 1 for trees, 2 for networks from scratch, 3 for null controls."""
    if "-shuffled" in arm or "-other_pairs" in arm:
        return 3
    return {"trees": 1, "scratch": 2, "scratch_long": 2}.get(arm.split(",")[0].split("[")[0], 0)
