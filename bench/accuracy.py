"""The accuracy table on real data: `python bench/accuracy.py DATA OUT [NAME …] [--splits 25] [--set key=value …]`.

Prepares, trains and evaluates with the very commands that a user would type, then prints Markdown: every model with its
intervals, and the paired differences between ours and the strongest baseline, which is the one that the data set's
tuning subjects find most likely. The boosted baseline gets as many tuning trials as ours got. DATA is a folder that
holds `pbc2_meds`, `nafld_meds`, `physionet2012_meds` and `mimic4_demo_meds`. Whatever is finished in OUT is kept, so
that an interrupted benchmark goes on where it was; `--set` settings belong in another OUT.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import format_days
from ehrsequencing.evaluation.repeated_splits import corrected_interval
from ehrsequencing.evaluation.results import read_result

TASKS = Path(__file__).parents[1] / "examples" / "tasks"
EHRSEQ = Path(sys.executable).with_name("ehrseq")
# What `prepare` and `train` are told. The models' settings were chosen on tuning splits (docs/benchmarks.md).
STUDIES: dict[str, tuple[list[str], list[str]]] = {
    "pbc2": ([], ["preset=small_cohort"]),
    "nafld": ([], ["preset=medium_cohort", "training.patience=4"]),
    "physionet2012": (["visits.by=window", "visits.window=1h"], ["preset=small_cohort", "training.patience=4"]),
    "mimic4_demo": ([], ["preset=small_cohort", "training.epochs=3"]),
}
REPEATED, SMOKE = "pbc2", "mimic4_demo"
TRIALS = {"pbc2": 9, "nafld": 7, "physionet2012": 8}  # settings that were tried for ours (docs/benchmarks.md)
COLUMNS = {"c": "C", "auc": "AUC", "ipa": "IPA", "ibs": "IBS", "nll": "NLL", "oe": "O/E"}
DIGITS = {"ibs": 4, "nll": 4, "oe": 2}  # of the others: 3
LOWER_IS_BETTER = ("ibs", "nll")


def run(*command: object) -> None:
    """Run one command; stop where it fails."""
    print(f"$ ehrseq {' '.join(map(str, command))}", file=sys.stderr, flush=True)
    subprocess.run([str(EHRSEQ), *map(str, command)], check=True, stdout=subprocess.DEVNULL)


def judged(name: str, data: Path, out: Path, *, splits: int, settings: Sequence[str]) -> dict[str, Any]:
    """The exact metrics of one data set, made as far as they are not there."""
    prepared, folder = out / f"{name}-prepared", out / name
    cut, fit = STUDIES[name]
    if not (prepared / "manifest.json").is_file():
        run("prepare", data / f"{name}_meds", "--task", TASKS / f"{name}.yaml", "--out", prepared, *cut)
    run("train", prepared, "--task", name, "--out", folder, "--resume", *fit, *settings)
    repeat = ["--splits", splits] if name == REPEATED else []
    found = read_result(folder) or {}
    if not found or (repeat and (found["repeated_splits"] or {}).get("splits") != splits):
        told = [f"evaluation.tuning_trials={TRIALS[name]}"] if name in TRIALS else []
        told += ["evaluation.bootstrap=0"] if name in (REPEATED, SMOKE) else []
        run("evaluate", folder, *repeat, *told)
        found = read_result(folder) or {}
    return found


# ---- one data set's table --------------------------------------------------------------------------------------------


def cell(row: Mapping[str, Any] | None, *, signed: bool = False) -> str:
    """`value (low–high)`, a dash where there is no such number, and "undefined" where it has no value."""
    if row is None:
        return "–"
    point = row.get("mean", row.get("value"))
    if point is None:
        return "undefined"
    form = f"{'+' if signed else ''}.{DIGITS.get(row['metric'], 3)}f"
    if row["low"] is None:
        return format(point, form)
    return f"{point:{form}} ({row['low']:{form}} to {row['high']:{form}})"


def verdict(row: Mapping[str, Any]) -> str:
    """What the interval of a difference allows one to say of ours."""
    if row["low"] is None:
        return "no interval"
    if row["low"] <= 0 <= row["high"]:
        return "not distinguishable"
    return "better" if (row["low"] > 0) != (row["metric"] in LOWER_IS_BETTER) else "worse"


def table(
    title: str, found: Mapping[str, Any], rows: Iterable[dict[str, Any]], differences: Iterable[dict[str, Any]]
) -> str:
    """Models × metrics at one place, then ours − the strongest baseline there, and ours − each in NLL.

    Args:
        title: Of the place.
        found: What `judged` returns.
        rows: Long rows of this place.
        differences: Long rows of the differences of this place.
    """
    of = {(row["model"], row["metric"]): row for row in rows}
    lines = [f"\n**{title}**\n", f"| model | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 1) + "|"]
    rival, differences = found["strongest"], list(differences)
    for model in found["models"]:
        name = f"{model} (strongest)" if model == rival else model
        lines.append(f"| {name} | {' | '.join(cell(of.get((model, metric))) for metric in COLUMNS)} |")
    said = [
        f"{COLUMNS[row['metric']]} {cell(row, signed=True)} *{verdict(row)}*"
        for row in differences
        if row["model"] == rival and row["metric"] in COLUMNS
    ]
    likely = [
        f"{row['model']} {cell(row, signed=True)} *{verdict(row)}*" for row in differences if row["metric"] == "nll"
    ]
    return "\n".join([*lines, f"\nOurs − {rival}: {', '.join(said)}.", f"\nNLL, ours − each: {', '.join(likely)}."])


def single_split(found: Mapping[str, Any]) -> str:
    """A table for each horizon, at the first landmark of the held-out split."""
    landmark, outcome = found["landmarks_days"][0], found["causes"][0]

    def here(rows: Iterable[dict[str, Any]], horizon: float | None) -> list[dict[str, Any]]:
        kept = (row for row in rows if row["landmark_days"] == landmark and row["cause"] == outcome)
        return [row for row in kept if row["horizon_days"] in (horizon, None)]

    return "\n".join(
        table(
            f"{outcome} within {format_days(horizon)} (IBS and NLL: over all times)", found,
            here(found["metrics"], horizon), here(found["differences"], horizon),
        )
        for horizon in found["horizons_days"]
    )  # fmt: skip


def many_splits(found: Mapping[str, Any]) -> str:
    """The table of the mean over all landmark × horizon cells and splits."""
    splits, outcome = found["repeated_splits"], found["causes"][0]

    def here(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in rows if row["cause"] == outcome and row["landmark_days"] is None]

    rows = here(splits["rows"])
    rows += [row for metric in ("ibs", "nll") for row in over_landmarks(splits, splits["rows"], outcome, metric)]
    differences = here(splits["differences"]) + over_landmarks(splits, splits["differences"], outcome, "nll")
    cells = f"{len(found['landmarks_days'])} × {len(found['horizons_days'])}"
    title = f"{outcome}: mean of the {cells} landmark × horizon cells, {splits['splits']} splits"
    return table(title, found, rows, differences)


def over_landmarks(
    splits: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], outcome: str, metric: str
) -> list[dict[str, Any]]:
    """Each model's mean over landmarks of a metric that has no horizon, or of its differences, over the splits."""
    by_model: dict[str, list[list[float]]] = {}
    for row in rows:
        if row["metric"] == metric and row["cause"] == outcome and row["landmark_days"] is not None:
            values = [np.nan if value is None else value for value in row["values"]]
            by_model.setdefault(row["model"], []).append(values)
    ratio = float(np.mean(np.divide(splits["held_out_subjects"], splits["train_subjects"])))
    out = []
    for model, curves in by_model.items():
        limits = zip(("mean", "low", "high"), corrected_interval(np.mean(curves, axis=0), ratio), strict=True)
        out.append({"model": model, "metric": metric, **{key: None if np.isnan(x) else x for key, x in limits}})
    return out


def section(name: str, found: Mapping[str, Any]) -> str:
    """One data set in Markdown."""
    events, at_risk = found["events"], found["at_risk"][0]
    if name == SMOKE:
        text = f"\nSmoke only: {at_risk['subjects']} held-out subjects. It ran to its report; no accuracy is claimed."
    elif name == REPEATED:
        text = many_splits(found)
    else:
        counts = "; ".join(
            f"{split}: {', '.join(f'{number:,} {what}' for what, number in by_cause.items())}"
            for split, by_cause in events.items()
        )
        text = f"\n{at_risk['subjects']:,} held-out subjects ({counts}).\n" + single_split(found)
    chosen = ""
    if name != SMOKE:
        likely = (f"{row['model']} {row['tuning_nll']:.4f}" for row in found["baselines"])
        chosen = f"\nTuning NLL of the baselines: {', '.join(likely)}. The first is the strongest.\n"
    return f"\n## {name}\n{text}\n{chosen}"


def main() -> None:
    """Make what is missing, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=[], help=f"of {', '.join(STUDIES)}; default all")
    parser.add_argument("--splits", type=int, default=25, help=f"random splits of {REPEATED}")
    parser.add_argument("--set", nargs="*", default=[], help="more settings of train, as in training.epochs=10")
    arguments = parser.parse_args()
    for name in arguments.names or STUDIES:
        found = judged(name, arguments.data, arguments.out, splits=arguments.splits, settings=arguments.set)
        print(section(name, found), flush=True)


if __name__ == "__main__":
    main()
