"""The protocol by which real data decides: `python bench/real.py DATA OUT [SET …] [section.key=value …]`.

With `training.blend=true` one run gives two rows of ours, the blend and its network alone, each compared with every
baseline.

Repeated random splits by subject, through the package's own `one_split`: each prepares, trains and evaluates anew, with
every baseline on the same subjects. It prints, set by set, the mean over splits of every model with the intervals of
Nadeau and Bengio, and ours minus each baseline. The strongest baseline has the lowest mean likelihood on tuning
subjects; held-out subjects choose nothing.

Whatever is finished in OUT is kept and an interrupted training goes on, so `--jobs-seconds` may end it at any moment
and the same command continues. Settings (`section.key=value`) are one trial: each has a folder of its own in OUT.

Seeds: split number i of every set has the seed 20000 + i. No other benchmark uses seeds from 20000 on
(`evaluate --splits` starts at 1234), so these divisions chose no setting before 22 November 2026.
"""

import argparse
import math
import re
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.baselines.cox import RIDGES_PER_EVENT
from ehrsequencing.baselines.forest import LEAVES, TIME_PARTS, CompetingForest
from ehrsequencing.baselines.marginal import MarginalIncidence
from ehrsequencing.config import EvaluationConfig, StudyConfig, format_days
from ehrsequencing.config.files import load_study, load_task
from ehrsequencing.evaluation.comparison import NETWORK, OURS
from ehrsequencing.evaluation.repeated_splits import ROWS, corrected_interval, one_split
from ehrsequencing.memory import keep_freed_memory
from ehrsequencing.storage import digest, read_json, write_json

REPOSITORY = Path(__file__).parents[1]
TASKS = REPOSITORY / "examples" / "tasks"
TRIALS_TABLE = REPOSITORY / "docs" / "lab-notes" / "trials.md"
FIRST_SEED = 20_000
COLUMNS = {"nll": "NLL", "ipa": "IPA", "c": "C", "auc": "AUC", "oe": "O/E", "slope": "slope"}
COMPARED = ("nll", "ipa", "c", "auc")
DIGITS = {"nll": 4, "oe": 2, "slope": 2}  # of the others: 3
LOWER_IS_BETTER = ("nll",)
Values = dict[tuple[str, str], float]  # (model, metric) → one number of a split


@dataclass(frozen=True)
class RealSet:
    """A set of records and how it is judged.

    Attributes:
        records: What it is, in words.
        splits: Default number of splits.
        prepare: Settings of the records, the same in every trial.
        tuning_trials: Settings tried for ours on this set before; the boosting tries as many.
        censoring: Of the evaluation.
        counts: Whether the patients are real and enough, so that the set decides.
    """

    records: str
    splits: int = 10
    prepare: tuple[str, ...] = ()
    tuning_trials: int = 8
    censoring: str = "kaplan-meier"
    counts: bool = True


SETS = {
    "pbc2": RealSet("312 real patients", splits=25, tuning_trials=9),
    "nafld": RealSet("14,051 real patients", tuning_trials=7),
    "physionet2012": RealSet("3,996 real ICU stays", prepare=("visits.by=window", "visits.window=12h")),
    "delphi_sim": RealSet("7,141 simulated life courses, published", censoring="cox", counts=False),
    "mimic4_demo": RealSet("100 real patients; it runs, no accuracy is claimed", splits=1, tuning_trials=1,
                           prepare=("training.epochs=3",), counts=False),
}  # fmt: skip


class TimeUp(BaseException):
    """The time of `--jobs-seconds` is over."""


def study_of(name: str, settings: Sequence[str]) -> StudyConfig:
    """All settings of one trial on one set."""
    return load_study(None, [*SETS[name].prepare, *settings]).model_copy(
        update={"task": load_task(TASKS / f"{name}.yaml")}
    )


def trial_folder(out: Path, settings: Sequence[str]) -> Path:
    """`OUT/default`, or a folder named after the settings of the trial."""
    words = re.sub(r"[^a-zA-Z0-9_.=-]+", "_", "+".join(sorted(settings)))
    return out / (words if len(words) <= 80 else f"{words[:60]}-{digest(sorted(settings))[:8]}") if words else (
        out / "default"
    )  # fmt: skip


def run_split(name: str, data: Path, out: Path, number: int, settings: Sequence[str], baselines: str) -> None:
    """One split of one set, as far as it is not there."""
    study, one = study_of(name, settings), SETS[name]
    folder = trial_folder(out, settings)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "trial.json", {"settings": sorted(settings)})
    judged_by = study.evaluation.model_dump() | {
        "baselines": baselines, "censoring": one.censoring, "bootstrap": 0, "tuning_trials": one.tuning_trials
    }  # fmt: skip
    origin = digest(study.model_dump(mode="json", exclude={"evaluation", "preset", "splits"}))
    place, started, cpu = folder / name / f"seed-{FIRST_SEED + number}", time.monotonic(), time.process_time()

    def stage(what: str) -> None:
        print(f"[{time.process_time() - cpu:6.0f} CPU s] {folder.name} {name} split {number + 1}: {what}",
              file=sys.stderr, flush=True)  # fmt: skip

    one_split(
        data / f"{name}_meds", place, study=study, seed=FIRST_SEED + number, origin=origin, stage=stage,
        settings=EvaluationConfig.model_validate(judged_by),
    )  # fmt: skip
    if time.monotonic() - started > 1:
        stage("done")


def splits_done(out: Path, name: str, settings: Sequence[str]) -> list[dict[str, Any]]:
    """The finished splits of a trial on a set, by seed."""
    found = sorted((trial_folder(out, settings) / name).glob(f"seed-*/{ROWS}"))
    return [read_json(path) for path in found]


# ---- numbers ---------------------------------------------------------------------------------------------------------


def values_of(stored: Mapping[str, Any], horizon: float | None = None) -> Values:
    """One number per model and metric of a split: the mean over the landmark × horizon cells of the outcome.

    A cell counts where the metric is defined for every model that has it anywhere, so that all are averaged over the
    same cells. NLL has no horizons: the mean over landmarks.

    Args:
        stored: A split's `rows.json`.
        horizon: Only this horizon; default all.
    """
    rows = [row for row in stored["metrics"] if row["landmark_days"] is not None and row["metric"] in COLUMNS]
    outcome = rows[0]["cause"]
    cells: dict[tuple[str, float, float | None], dict[str, float]] = {}
    for row in rows:
        here = horizon is None or row["horizon_days"] == horizon
        if here and row["cause"] == outcome and row["value"] is not None:
            place = row["metric"], row["landmark_days"], row["horizon_days"]
            cells.setdefault(place, {})[row["model"]] = float(row["value"])
    found: dict[tuple[str, str], list[float]] = {}
    have: dict[str, set[str]] = {}
    for (metric, *_), by_model in cells.items():
        have.setdefault(metric, set()).update(by_model)
    for (metric, *_), by_model in cells.items():
        if set(by_model) == have[metric]:
            for model, value in by_model.items():
                found.setdefault((model, metric), []).append(value)
    return {place: float(np.mean(values)) for place, values in found.items()}


def interval(values: Iterable[float], splits: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    """Mean over splits with the interval of Nadeau and Bengio."""
    ratio = float(np.mean([one["held_out_subjects"] / one["train_subjects"] for one in splits]))
    return corrected_interval(list(values), ratio)


def tuning_means(splits: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Model → mean over splits of its likelihood on tuning subjects, the best first."""
    names = splits[0]["tuning_nll"]
    means = {name: float(np.mean([one["tuning_nll"][name] for one in splits])) for name in names}
    return dict(sorted(means.items(), key=lambda pair: pair[1]))


def ours_of(splits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Our models and what they are called: one, or where a blend was trained the blend and its network."""
    if NETWORK not in splits[0]["tuning_nll"]:
        return {OURS: "ours"}
    return {OURS: "blend", NETWORK: "network alone"}


def strongest(splits: Sequence[Mapping[str, Any]]) -> str:
    """The baseline with the lowest mean likelihood on tuning subjects."""
    return next(name for name in tuning_means(splits) if name not in (OURS, NETWORK))


def seeds_of(splits: Sequence[Mapping[str, Any]]) -> str:
    """`20000–20003`, or each seed where some between them are missing."""
    seeds = [int(one["seed"]) for one in splits]
    if len(seeds) > 1 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))


# ---- tables ----------------------------------------------------------------------------------------------------------


def cell(metric: str, found: tuple[float, float, float], *, signed: bool = False) -> str:
    """`value (low to high)`; a dash where it is undefined, no limits with one split."""
    mean, low, high = found
    form = f"{'+' if signed else ''}.{DIGITS.get(metric, 3)}f"
    if math.isnan(mean):
        return "–"
    return f"{mean:{form}}" if math.isnan(low) else f"{mean:{form}} ({low:{form}} to {high:{form}})"


def verdict(metric: str, found: tuple[float, float, float]) -> str:
    """What the interval of a difference allows one to say of ours."""
    _, low, high = found
    if math.isnan(low):
        return "no interval"
    if low <= 0 <= high:
        return "not distinguishable"
    return "better" if (low > 0) != (metric in LOWER_IS_BETTER) else "worse"


def table(name: str, splits: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> str:
    """One set in Markdown: every model, then ours minus each of the others."""
    one, by_split = SETS[name], [values_of(stored) for stored in splits]
    means, rival = tuning_means(splits), strongest(splits)
    said = f"{len(splits)} of {one.splits} splits done (seeds {seeds_of(splits)})"
    lines = [
        f"\n## {name}\n", f"{one.records}. {said}. Settings of ours: {', '.join(sorted(settings)) or 'defaults'}.\n",
        f"| model | tuning NLL | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 2) + "|",
    ]  # fmt: skip
    own = ours_of(splits)
    rivals = [model for model in means if model not in own]
    for model in [*own, *rivals]:
        cells = [
            cell(metric, interval((found.get((model, metric), math.nan) for found in by_split), splits))
            for metric in COLUMNS
        ]
        mark = " (strongest)" if model == rival else ""
        label = own[model] if model in own and len(own) > 1 else model
        lines.append(f"| {label}{mark} | {means[model]:.4f} | {' | '.join(cells)} |")
    lines += [
        "",
        f"| difference | {' | '.join(COLUMNS[metric] for metric in COMPARED)} |",
        "|---" * (len(COMPARED) + 1) + "|",
    ]
    pairs = [(OURS, NETWORK)] if len(own) > 1 else []
    for mine, other in [*pairs, *((mine, other) for mine in own for other in rivals)]:
        found = {metric: gap(by_split, splits, other, metric, ours=mine) for metric in COMPARED}
        cells = [f"{cell(metric, value, signed=True)} *{verdict(metric, value)}*" for metric, value in found.items()]
        lines.append(f"| {own[mine]} − {own.get(other, other)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gap(
    by_split: Sequence[Values], splits: Sequence[Mapping[str, Any]], model: str, metric: str, *, ours: str = OURS
) -> tuple[float, float, float]:
    """One of ours minus another model, paired by split."""
    values = [found.get((ours, metric), math.nan) - found.get((model, metric), math.nan) for found in by_split]
    return interval(values, splits)


def level_table(name: str, splits: Sequence[Mapping[str, Any]], study: StudyConfig) -> str:
    """Observed over expected by horizon and model, with what decides the level of ours: early stop, recalibration.

    The last column divides by the O/E of Aalen–Johansen in the same split, which takes out how many events that split
    happens to hold out: below 1 the model expects more events than the training cohort's own incidence does.
    """
    assert study.task is not None
    lines = []
    for days in study.task.horizons:
        by_split = [values_of(stored, days) for stored in splits]
        for model in tuning_means(splits):
            value = interval((found.get((model, "oe"), math.nan) for found in by_split), splits)
            cohort = interval((oe_beside_cohort(found, model) for found in by_split), splits)
            is_own = model in (OURS, NETWORK)
            own = f"{study.training.early_stop} | {study.training.recalibration:g}" if is_own else " | "
            place = f"{name} | {format_days(days)} | {model} | {len(splits)} | {own}"
            lines.append(f"| {place} | {cell('oe', value)} | {cell('oe', cohort)} |")
    return "\n".join(lines)


def oe_beside_cohort(found: Values, model: str) -> float:
    """The model's O/E over that of Aalen–Johansen; NaN without either."""
    return found.get((model, "oe"), math.nan) / found.get((MarginalIncidence.name, "oe"), math.nan)


LEVEL_HEAD = """| set | horizon | model | splits | early stop | recalibration | O/E | O/E ÷ that of Aalen–Johansen |
|---|---|---|---|---|---|---|---|"""


# ---- the table of all trials -----------------------------------------------------------------------------------------

TRIALS_HEAD = """# All trials on real data

One row for each trial: the settings of ours, and the mean likelihood (NLL) of **tuning** subjects over the splits that
are done, for ours and for every baseline. Compare rows over the same seeds only. In brackets: how many settings were
tried for the baseline within each split; its tuning NLL is that of the best. No held-out subject is in this table.
`python bench/real.py DATA OUT [SET …] --trials [section.key=value …]` adds or replaces the rows of a trial.

| date | set | settings of ours | splits | ours | baselines |
|---|---|---|---|---|---|
"""


def trial_row(name: str, splits: Sequence[Mapping[str, Any]], settings: Sequence[str], date: str) -> str:
    """The row of a trial in the table of trials."""
    tried = {"boosted visits": SETS[name].tuning_trials, CompetingForest.name: len(LEAVES) * len(TIME_PARTS)}
    tried["landmark Cox"] = len(RIDGES_PER_EVENT)
    rivals = [
        f"{model} {value:.4f}" + (f" ({tried[model]})" if model in tried else "")
        for model, value in tuning_means(splits).items()
        if model not in (OURS, NETWORK)
    ]
    words = ", ".join(f"`{text}`" for text in sorted(settings)) or "defaults"
    own, means = ours_of(splits), tuning_means(splits)
    told = ", ".join(
        f"{label} {means[model]:.4f}" if len(own) > 1 else f"{means[model]:.4f}" for model, label in own.items()
    )
    return f"| {date} | {name} | {words} | {len(splits)} ({seeds_of(splits)}) | {told} | {', '.join(rivals)} |"


def add_trial(path: Path, row: str) -> None:
    """Append the row to the table; the row of the same set, settings and day is replaced."""
    lines = (path.read_text(encoding="utf-8") if path.is_file() else TRIALS_HEAD).rstrip("\n").split("\n")
    same = row.split(" | ")[:3]
    lines = [line for line in lines if line.split(" | ")[:3] != same]
    path.write_text("\n".join([*lines, row]) + "\n", encoding="utf-8")


# ---- the command -----------------------------------------------------------------------------------------------------


def work(arguments: argparse.Namespace, names: Sequence[str], settings: Sequence[str]) -> None:
    """Run what is missing, the first split of every set before the second, until it is done or the time is up."""

    def stop(*_: object) -> None:
        raise TimeUp

    if arguments.jobs_seconds is not None:
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, max(arguments.jobs_seconds, 0.001))
    try:
        for number in range(max(wanted(name, arguments.splits) for name in names)):
            for name in names:
                if number < wanted(name, arguments.splits):
                    run_split(name, arguments.data, arguments.out, number, settings, arguments.baselines)
    except TimeUp:
        print("the time is up; the same command goes on", file=sys.stderr, flush=True)
    finally:
        if arguments.jobs_seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)


def wanted(name: str, splits: int | None) -> int:
    """How many splits of a set."""
    return SETS[name].splits if splits is None else splits


def main() -> None:
    """Run what is missing, then print what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that holds pbc2_meds, nafld_meds …")
    parser.add_argument("out", type=Path)
    parser.add_argument("words", nargs="*", default=[], metavar="SET|key=value", help=f"sets: {', '.join(SETS)}")
    parser.add_argument("--splits", type=int, help="instead of the number of each set")
    parser.add_argument("--jobs-seconds", type=float, help="stop after so long; 0 only prints")
    parser.add_argument("--baselines", default="forest", choices=("fast", "forest", "all"))
    parser.add_argument("--markdown", action="store_true", help="only the tables, without progress")
    parser.add_argument("--level", action="store_true", help="also observed over expected at each horizon")
    parser.add_argument("--trials", action="store_true", help=f"also write the trial into {TRIALS_TABLE.name}")
    arguments = parser.parse_intermixed_args()
    settings = [word for word in arguments.words if "=" in word]
    names = [word for word in arguments.words if "=" not in word] or list(SETS)
    if unknown := [name for name in names if name not in SETS]:
        parser.error(f"unknown set {unknown[0]}: one of {', '.join(SETS)}")
    keep_freed_memory()
    if not arguments.markdown and arguments.jobs_seconds != 0:
        work(arguments, names, settings)
    levels = []
    for name in names:
        splits = splits_done(arguments.out, name, settings)
        if not splits:
            print(f"\n## {name}\n\nNo split is done.")
            continue
        print(table(name, splits, settings), flush=True)
        levels.append(level_table(name, splits, study_of(name, settings)))
        if arguments.trials:
            add_trial(TRIALS_TABLE, trial_row(name, splits, settings, time.strftime("%Y-%m-%d")))
    if arguments.level:
        print("\n".join(["", LEVEL_HEAD, *levels]))


if __name__ == "__main__":
    main()
