"""Finished arms of `bench/few_labels.py`, small enough to keep in the repository (`bench/results/few_labels`).

An arm takes minutes, a panel hours. So each finished arm can leave its numbers here, one line for each seed and number
of labels: its mean held-out NLL, and its paired differences to from-scratch training with as many labels and to boosted
trees with all of them, each with a standard error over subjects. There is nothing about a subject.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.files import read_json, write_bytes

FOLDER = Path(__file__).parent / "results" / "few_labels"
DIGITS = 6
Pair = tuple[float, float]  # a difference and its standard error; positive is better


@dataclass(frozen=True)
class Row:
    """One arm with one number of labels in one seed.

    Attributes:
        panel: Folder of the panel.
        seed: Folder of the seed.
        n: Labelled subjects; None for all.
        arm: Its name; `ARM, all labels` beside n is that arm with all labels against scratch with n.
        nll: Mean over held-out prediction times.
        gain: Against scratch with n labels.
        over_trees: Against boosted trees with all labels; None where these have not run.
    """

    panel: str
    seed: str
    n: int | None
    arm: str
    nll: float
    gain: Pair
    over_trees: Pair | None

    @property
    def key(self) -> tuple[str, str, int | None, str]:
        """What makes it another line."""
        return self.panel, self.seed, self.n, self.arm


def finished(out: Path) -> list[Row]:
    """The lines of all arms below the folder of the bench whose seed has `scratch` with as many labels."""
    rows: list[Row] = []
    for seed in sorted(out.glob("*/seed-*")):
        arms: dict[tuple[str, int | None], Floats] = {}
        for path in sorted(seed.glob("arms/*.json")):
            one = json.loads(path.read_text())
            arms[one["arm"], one["n"]] = np.array(one["nll"])
        if not arms:
            continue
        subjects = np.array(json.loads((seed / "subjects.json").read_text()))
        sizes = {n for _, n in arms if n is not None}
        arms |= {
            (f"{arm}, all labels", n): arms[arm, None]
            for arm, m in tuple(arms)
            if m is None
            for n in sizes
        }
        trees = arms.get(("trees", None))
        for (arm, n), nll in arms.items():
            if (base := arms.get(("scratch", n))) is not None:
                over = None if trees is None else _pair(trees, nll, subjects)
                gain, mean = _pair(base, nll, subjects), round(float(nll.mean()), DIGITS)
                rows.append(Row(seed.parent.name, seed.name, n, arm, mean, gain, over))
    return rows


def kept() -> list[Row]:
    """The lines that the repository has."""
    return [
        Row(
            **{
                **one,
                "gain": tuple(one["gain"]),
                "over_trees": one["over_trees"] and tuple(one["over_trees"]),
            }
        )
        for path in sorted(FOLDER.glob("*.json"))
        for one in read_json(path)["rows"]
    ]


def keep(rows: list[Row]) -> None:
    """Add lines to the repository's; a line of the same panel, seed, labels and arm is replaced."""
    together = joined(kept(), rows)
    for panel in sorted({row.panel for row in rows}):
        lines = ",\n".join(json.dumps(asdict(row)) for row in together if row.panel == panel)
        write_bytes(FOLDER / f"{panel}.json", f'{{"rows": [\n{lines}\n]}}\n'.encode())


def joined(old: list[Row], new: list[Row]) -> list[Row]:
    """Both, the new ones where both have a line, in order."""
    found: Mapping[tuple[str, str, int | None, str], Row] = {row.key: row for row in (*old, *new)}
    return sorted(found.values(), key=lambda row: (row.panel, row.n or 10**9, row.arm, row.seed))


def _pair(base: Floats, arm: Floats, subjects: Ints) -> Pair:
    gain, error = paired_gain(base, arm, subjects)
    return round(float(gain), DIGITS), round(float(error), DIGITS)


def paired_gain(base: Floats, other: Floats, subject: Ints) -> tuple[float, float]:
    """Mean of `base − other` over prediction times, and its standard error over subjects.

    Args:
        base: (R,) likelihoods of the model to compare with.
        other: (R,) those of another model; a positive gain means that they are lower.
        subject: (R,) whose prediction time it is.

    Example:
        >>> mean, error = paired_gain(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 1.0]), np.array([0, 0, 1]))
        >>> round(mean, 3), round(error, 3)
        (1.0, 0.667)
    """
    difference = base - other
    mean, (_, owner) = float(difference.mean()), np.unique(subject, return_inverse=True)
    residual = np.bincount(owner, weights=difference - mean)
    count = len(residual)
    error = float(np.sqrt(count / max(count - 1, 1) * np.square(residual).sum())) / len(difference)
    return mean, error
