"""The protocol by which real data decides: `python -m bench real DATA OUT [SET …] [section.key=value …]`.

With `training.blend=true` one run gives two rows of ours, the blend and its network alone, each compared with every
baseline.

Repeated random splits by subject, through the package's own `one_split`: each prepares, trains and evaluates anew, with
every baseline on the same subjects. It prints, set by set, the mean over splits of every model with the intervals of
Nadeau and Bengio, and ours minus each baseline. The strongest baseline has the lowest mean likelihood on tuning
subjects; held-out subjects choose nothing.

Whatever is finished in OUT is kept and an interrupted training goes on, so `--jobs-seconds` may end it at any moment
and the same command continues. Settings (`section.key=value`) are one trial: each has a folder of its own in OUT.
With `--keep` the numbers of finished splits also go to `bench/results/real/`, which the repository holds; splits that
are there with the same settings are not trained again, and `--markdown` prints them without any training.

Seeds: split number i of every set has the seed 20000 + i. No other benchmark uses seeds from 20000 on
(`evaluate --splits` starts at 1234), so these divisions chose no setting before 22 November 2026.
"""

import argparse
import math
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.accuracy._real_numbers import (
    COLUMNS,
    cell,
    gap,
    interval,
    median_and_wins,
    median_text,
    oe_beside_cohort,
    ours_of,
    seeds_of,
    strongest,
    tuning_means,
    values_of,
    verdict,
)
from bench.accuracy._real_results import FOLDER, keep, kept_splits, lengthened
from bench.measure import ROOT
from ehrsequencing.config import EvaluationConfig, StudyConfig, format_days
from ehrsequencing.config.files import load_study, load_task
from ehrsequencing.core.files import digest, read_json, write_json
from ehrsequencing.core.signals import keep_freed_memory
from ehrsequencing.evaluation.comparison import NETWORK, OURS
from ehrsequencing.evaluation.repeated_splits import (
    ROWS,
    one_split,
    random_division,
    split_fingerprint,
    split_study,
)

TASKS = ROOT / "examples" / "tasks"
FIRST_SEED = 20_000
COMPARED = ("nll", "ipa", "c", "auc")


@dataclass(frozen=True)
class RealSet:
    """A set of records and how it is judged.

    Attributes:
        records: What it is, in words.
        splits: Default number of splits.
        prepare: Settings of the records, the same in every trial.
        tuning_trials: Settings tried for ours on this set before; the boosting tries as many.
        counts: Whether the patients are real and enough, so that the set decides.
    """

    records: str
    splits: int = 10
    prepare: tuple[str, ...] = ()
    tuning_trials: int = 8
    counts: bool = True


SETS = {
    "pbc2": RealSet("312 real patients", splits=25, tuning_trials=9),
    "nafld": RealSet("14,051 real patients", tuning_trials=7),
    "physionet2012": RealSet(
        "3,996 real ICU stays", prepare=("visits.by=window", "visits.window=12h")
    ),
    "delphi_sim": RealSet("7,141 simulated life courses, published", counts=False),
    "mimic4_demo": RealSet(
        "100 real patients; it runs, no accuracy is claimed",
        splits=1,
        tuning_trials=1,
        prepare=("training.epochs=3",),
        counts=False,
    ),
}


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
    return (
        out / (words if len(words) <= 80 else f"{words[:60]}-{digest(sorted(settings))[:8]}")
        if words
        else (out / "default")
    )


@dataclass(frozen=True)
class Trial:
    """One set, trained with some settings and judged beside the baselines, split by split.

    Attributes:
        name: Of the set.
        settings: `section.key=value`, beside those of the set.
        out: The folder of finished and interrupted work.
    """

    name: str
    settings: tuple[str, ...]
    out: Path

    @property
    def study(self) -> StudyConfig:
        """All settings."""
        return study_of(self.name, self.settings)

    @property
    def judged_by(self) -> EvaluationConfig:
        """Baselines and trials."""
        one = SETS[self.name]
        changed = {"baselines": "fast", "bootstrap": 0}
        told = self.study.evaluation.model_dump() | changed | {"tuning_trials": one.tuning_trials}
        return EvaluationConfig.model_validate(told)

    @property
    def origin(self) -> str:
        """A digest of the settings."""
        return digest(self.study.model_dump(mode="json", exclude={"evaluation", "splits"}))

    @property
    def kept_at(self) -> Path:
        """Its file in the repository."""
        return trial_folder(FOLDER, self.settings) / f"{self.name}.json"

    def fingerprint(self, seed: int) -> str:
        """What a split's numbers depend on."""
        return split_fingerprint(split_study(self.study, seed), self.judged_by, self.origin)

    def done(self) -> list[dict[str, Any]]:
        """The finished splits, by seed: those of the repository that hold for these settings, and those in `out`."""
        kept = kept_splits(self.kept_at)
        found = {
            seed: lengthened(one)
            for seed, one in kept.items()
            if one["fingerprint"] == self.fingerprint(seed)
        }
        for path in (trial_folder(self.out, self.settings) / self.name).glob(f"seed-*/{ROWS}"):
            stored = read_json(path)
            seed = int(stored["seed"])
            if stored["fingerprint"] == self.fingerprint(seed):
                found.setdefault(seed, stored)  # what is kept may have more models
        return [found[seed] for seed in sorted(found)]


def run_split(trial: Trial, data: Path, number: int) -> None:
    """One split of one set, as far as it is not there."""
    folder, name = trial_folder(trial.out, trial.settings), trial.name
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "trial.json", {"settings": sorted(trial.settings)})
    place, started, cpu = (
        folder / name / f"seed-{FIRST_SEED + number}",
        time.monotonic(),
        time.process_time(),
    )

    def stage(what: str) -> None:
        print(
            f"[{time.process_time() - cpu:6.0f} CPU s] {folder.name} {name} split {number + 1}: {what}",
            file=sys.stderr,
            flush=True,
        )

    one_split(
        data / f"{name}_meds",
        place,
        division=random_division(trial.study, FIRST_SEED + number),
        origin=trial.origin,
        stage=stage,
        settings=trial.judged_by,
    )
    if time.monotonic() - started > 1:
        stage("done")


# ---- tables ----------------------------------------------------------------------------------------------------------


def table(name: str, splits: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> str:
    """One set in Markdown: every model, then ours minus each of the others."""
    one, by_split = SETS[name], [values_of(stored) for stored in splits]
    means, rival = tuning_means(splits), strongest(splits)
    said = f"{len(splits)} of {one.splits} splits done (seeds {seeds_of(splits)})"
    lines = [
        f"\n## {name}\n",
        f"{one.records}. {said}. Settings of ours: {', '.join(sorted(settings)) or 'defaults'}.\n",
        f"| model | tuning NLL | {' | '.join(COLUMNS.values())} |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    own = ours_of(splits)
    rivals = [model for model in means if model not in own]
    for model in [*own, *rivals]:
        columns = {
            metric: [found.get((model, metric), math.nan) for found in by_split]
            for metric in COLUMNS
        }
        cells = [
            cell(metric, interval(values, splits)) + median_text(metric, values)
            for metric, values in columns.items()
        ]
        mark = " (strongest)" if model == rival else ""
        tuning = means.get(model, math.nan), math.nan, math.nan  # none of a network in a blend
        lines.append(
            f"| {own.get(model, model)}{mark} | {cell('nll', tuning)} | {' | '.join(cells)} |"
        )
    lines += [
        "",
        f"| difference | {' | '.join(COLUMNS[metric] for metric in COMPARED)} |",
        "|---" * (len(COMPARED) + 1) + "|",
    ]
    pairs = [(OURS, NETWORK)] if len(own) > 1 else []
    for mine, other in [*pairs, *((mine, other) for mine in own for other in rivals)]:
        found = {metric: gap(by_split, splits, other, metric, ours=mine) for metric in COMPARED}
        cells = [
            f"{cell(metric, value, signed=True)} *{verdict(metric, value)}*; "
            + median_and_wins(by_split, other, metric, ours=mine)
            for metric, value in found.items()
        ]
        lines.append(f"| {own[mine]} − {own.get(other, other)} | {' | '.join(cells)} |")
    return "\n".join(lines)


SUMMARY_HEAD = """| set | model | NLL | IPA | C | O/E | NLL: blend − model |
|---|---|---|---|---|---|---|"""


def summary(name: str, splits: Sequence[Mapping[str, Any]]) -> str:
    """One set for README: means over splits of every model, and ours minus each of them in likelihood."""
    by_split, own, rival = (
        [values_of(stored) for stored in splits],
        ours_of(splits),
        strongest(splits),
    )
    lines, place = [], f"{name}: {SETS[name].records}, {len(splits)} splits"
    for model in [*own, *(other for other in tuning_means(splits) if other not in own)]:
        means = {
            metric: interval((found.get((model, metric), math.nan) for found in by_split), splits)[
                0
            ]
            for metric in ("nll", "ipa", "c", "oe")
        }
        numbers = " | ".join(
            cell(metric, (mean, math.nan, math.nan)) for metric, mean in means.items()
        )
        less = ""
        if model != OURS:
            less = cell("nll", gap(by_split, splits, model, "nll"), signed=True)
            less += f"; {median_and_wins(by_split, model, 'nll')}"
        label = f"**{own.get(model, model)}**" if model in own else model
        lines.append(
            f"| {place} | {label}{' (strongest)' if model == rival else ''} | {numbers} | {less} |"
        )
        place = ""
    return "\n".join(lines)


def level_table(name: str, splits: Sequence[Mapping[str, Any]], study: StudyConfig) -> str:
    """Observed over expected by horizon and model, and the recalibration of ours, which decides its level.

    The last column divides by the O/E of Aalen–Johansen in the same split, which takes out how many events that split
    happens to hold out: below 1 the model expects more events than the training cohort's own incidence does.
    """
    assert study.task is not None
    lines = []
    for days in study.task.horizons:
        by_split = [values_of(stored, days) for stored in splits]
        for model in {**ours_of(splits), **tuning_means(splits)}:
            value = interval((found.get((model, "oe"), math.nan) for found in by_split), splits)
            cohort = interval((oe_beside_cohort(found, model) for found in by_split), splits)
            is_own = model in (OURS, NETWORK)
            own = f"{study.training.recalibration:g}" if is_own else " "
            label = ours_of(splits).get(model, model)
            place = f"{name} | {format_days(days)} | {label} | {len(splits)} | {own}"
            lines.append(f"| {place} | {cell('oe', value)} | {cell('oe', cohort)} |")
    return "\n".join(lines)


LEVEL_HEAD = """| set | horizon | model | splits | recalibration | O/E | O/E ÷ that of Aalen–Johansen |
|---|---|---|---|---|---|---|---|"""


# ---- the command -----------------------------------------------------------------------------------------------------


def work(arguments: argparse.Namespace, trials: Sequence[Trial]) -> None:
    """Run what is missing, the first split of every set before the second, until it is done or the time is up."""

    def stop(*_: object) -> None:
        raise TimeUp

    if arguments.jobs_seconds is not None:
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, max(arguments.jobs_seconds, 0.001))
    try:
        for number in range(max(wanted(trial.name, arguments.splits) for trial in trials)):
            for trial in trials:
                is_done = any(int(one["seed"]) == FIRST_SEED + number for one in trial.done())
                if number < wanted(trial.name, arguments.splits) and not is_done:
                    run_split(trial, arguments.data, number)
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder that holds pbc2_meds, nafld_meds …")
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "words", nargs="*", default=[], metavar="SET|key=value", help=f"sets: {', '.join(SETS)}"
    )
    parser.add_argument("--splits", type=int, help="instead of the number of each set")
    parser.add_argument("--jobs-seconds", type=float, help="stop after so long; 0 only prints")
    parser.add_argument("--markdown", action="store_true", help="only the tables, without progress")
    parser.add_argument(
        "--summary", action="store_true", help="one short table of all sets, as README has it"
    )
    parser.add_argument(
        "--level", action="store_true", help="also observed over expected at each horizon"
    )
    parser.add_argument(
        "--keep", action="store_true", help=f"also keep the finished splits in {FOLDER}"
    )
    arguments = parser.parse_intermixed_args()
    settings = [word for word in arguments.words if "=" in word]
    names = [word for word in arguments.words if "=" not in word] or list(SETS)
    if unknown := [name for name in names if name not in SETS]:
        parser.error(f"unknown set {unknown[0]}: one of {', '.join(SETS)}")
    keep_freed_memory()
    trials = [Trial(name, tuple(settings), arguments.out) for name in names]
    if not arguments.markdown and arguments.jobs_seconds != 0:
        work(arguments, trials)
    levels, short = [], []
    for trial in trials:
        name, splits = trial.name, trial.done()
        if not splits:
            print(f"\n## {name}\n\nNo split is done.")
            continue
        if arguments.keep:
            keep(trial.kept_at, settings, splits, COLUMNS)
        if not arguments.summary:
            print(table(name, splits, settings), flush=True)
        short.append(summary(name, splits))
        levels.append(level_table(name, splits, study_of(name, settings)))
    if arguments.summary:
        print("\n".join([SUMMARY_HEAD, *short]))
    if arguments.level:
        print("\n".join(["", LEVEL_HEAD, *levels]))


if __name__ == "__main__":
    main()
