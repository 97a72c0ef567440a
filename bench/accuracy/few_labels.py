"""What pretraining on unlabelled life courses is worth with few labels: `python -m bench few_labels DATA OUT`.

DATA is Delphi's simulated life courses in MEDS. All training people have records; only some have labels of the task.
Rows: the network from scratch, the default training, trees and Cox alone, and a network that starts from
`time_to_code` with all weights or with frozen ones. Each seed has a division, labelled people and weights of its own.
The table has held-out NLL gained over the network from scratch, with the interval of Nadeau and Bengio (t with J − 1).
"""

import argparse
import json
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.stats import t as student

from ehrsequencing.config import load_study, load_task
from ehrsequencing.core.arrays import Ints
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.pretraining.pretrain import Pretrainer
from ehrsequencing.training.transfer import Pretrained

TASKS = Path(__file__).parents[2] / "examples" / "tasks"
LEAST_TUNING = 30  # labelled tuning people, however few labels there are
NETWORK = ("model.size=small", "training.blend=false", "training.distillation=0")
FINE = ("training.learning_rate=1e-3", "training.warmup_steps=20", "training.patience=15")
PRETRAIN = (
    *("model.size=small", "pretraining.objectives=[time_to_code]"),
    *("training.epochs=20", "training.learning_rate=2e-3"),
)
ARMS = {  # settings, and the mode of the transfer
    "network from scratch": (NETWORK, None),
    "default training": ((), None),
    "trees and Cox": (("training.network=false",), None),
    "pretrained, all weights": ((*NETWORK, *FINE), "full"),
    "pretrained, frozen": ((*NETWORK, *FINE), "frozen"),
}


class FewLabels(Prepared):
    """A prepared set in which only n training people have prediction times, and that share of the tuning people.

    Whoever is among 50 is among 200. All held-out people have theirs.
    """

    def __init__(self, folder: Path, task: str, n: int | None, seed: int) -> None:
        super().__init__(folder, verify=False)
        self.of_task, self.n, self.seed = task, n, seed

    @cached_property
    def share(self) -> float:
        """Labelled people of all training people with a prediction time."""
        able = np.unique(super().rows(self.of_task, "train").subject)
        return 1.0 if self.n is None else min(1.0, self.n / len(able))

    def labelled(self, rows: TaskRows, split: str) -> Ints:
        """Numbers of the people with labels, rising."""
        order = np.random.default_rng([self.seed, len(split)]).permutation(np.unique(rows.subject))
        least = LEAST_TUNING if split == "tuning" else 0
        return np.sort(order[: max(least, round(self.share * len(order)))])

    def rows(self, task: str, split: str) -> TaskRows:
        """The prediction times of those with labels."""
        rows = super().rows(task, split)
        if task != self.of_task or split == "held_out" or self.n is None:
            return rows
        own = np.isin(np.arange(len(rows.row_offsets) - 1), self.labelled(rows, split))
        counts = np.diff(rows.row_offsets) * own
        return rows.select(np.flatnonzero(own[rows.subject]), np.r_[0, np.cumsum(counts)])

    def identity(self, task: str) -> dict[str, str]:
        """That of the set, and whose labels are known."""
        return {**super().identity(task), "labelled": f"{self.n} of seed {self.seed}"}


def nll(folder: Path, task: str, arm: str, n: int | None, seed: int) -> float:
    """Mean held-out NLL of one arm; a finished one is read."""
    out = folder / f"{arm}-{n}"
    kept = out.with_suffix(".json")
    if kept.is_file():
        return float(json.loads(kept.read_text())["nll"])
    settings, mode = ARMS[arm]
    init = None
    if mode is not None:
        settings = (*settings, f"transfer.mode={mode}")
        init = Pretrained(folder / "pretrained")
    labels = FewLabels(folder / "prepared", task, n, seed)
    study = load_study(None, [*settings, f"training.seed={seed}"])
    fit(Plan.of(labels, task, study, init=init), out)
    mean = float(np.mean(Run(out).predictor.nll(labels.records(task, "held_out"))))
    kept.write_text(json.dumps({"nll": mean}))
    return mean


def interval(values: list[float], ratio: float) -> str:
    """Mean and 95 % interval over divisions; `ratio` is held-out over training people."""
    own = np.array(values)
    if len(own) < 2:
        return f"{own.mean():+.3f}"
    half = student.ppf(0.975, len(own) - 1) * np.sqrt((1 / len(own) + ratio) * own.var(ddof=1))
    return f"{own.mean():+.3f} ({own.mean() - half:+.3f} to {own.mean() + half:+.3f})"


def main() -> None:
    """Train what is not there yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--task", default="delphi_diabetes")
    parser.add_argument("--labels", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[51000, 51001, 51002])
    given = parser.parse_args()
    task = load_task(TASKS / f"{given.task}.yaml")
    gained: dict[tuple[int, str], list[float]] = {}
    for seed in given.seeds:
        folder = given.out / given.task / str(seed)
        if not (folder / "prepared").is_dir():
            splits = load_study(None, ["splits.by=hash", f"splits.seed={seed}"])
            prepare(given.data, folder / "prepared", study=splits, tasks=[task], processes=1)
        if not (folder / "pretrained").is_dir():
            study = load_study(None, [*PRETRAIN, f"training.seed={seed}"])
            own = Prepared(folder / "prepared")
            Pretrainer(own, folder / "pretrained", study=study, task_name=task.name).fit()
        for n in given.labels:
            start = nll(folder, task.name, "network from scratch", n, seed)
            for arm in list(ARMS)[1:]:
                better = start - nll(folder, task.name, arm, n, seed)
                gained.setdefault((n, arm), []).append(better)
                print(f"seed {seed}, {n} labels, {arm}: {better:+.4f}", flush=True)
    print("\n| labels | " + " | ".join(list(ARMS)[1:]) + " |\n|" + "---|" * len(ARMS))
    for n in given.labels:
        cells = [interval(gained[n, arm], ratio=0.2 / 0.7) for arm in list(ARMS)[1:]]
        print(f"| {n} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
