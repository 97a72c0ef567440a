"""`compare --ablate`: one setting at several values, networks alone with the same seeds on the same people."""

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ehrsequencing.api.progress import stages, training_bar
from ehrsequencing.config import EvaluationConfig, load_study
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, write_json
from ehrsequencing.evaluation.evaluate import Evaluation
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.rivals import Evaluated
from ehrsequencing.metrics.bootstrap import mean_by_subject
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan

ALONE = (
    "training.blend=false",
    "training.distillation=0",
)  # no trees beside it, and none to learn from
RESULT, SECONDS = "ablation.json", "seconds.json"
_METRICS = ("c", "ipa")


def ablate(
    prepared: Prepared,
    setting: str,
    values: Sequence[str],
    *,
    out: Path,
    task: str | None = None,
    seeds: int = 5,
    overrides: Sequence[str] = (),
    progress: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Train a network for each value and seed, and compare the values on the held-out people.

    Args:
        prepared: The data.
        setting: Its name, as in `model.visit_encoder`.
        values: As on the command line; differences are each minus the first.
        out: Folder with a run for each value and seed, and `ablation.json`. What is finished there is kept.
        task: Name of the task; the only one by default.
        seeds: Of the training, from 0.
        overrides: Other settings, the same for all.
        progress: Whether to show bars.
        say: Called with what is trained.

    Returns:
        A row for each value: mean and standard deviation over seeds of NLL, C and IPA at the main landmark and horizon,
        the difference in NLL with its 95 % interval over people, and seconds of a training; and the content of the
        file, with a row for each run.

    Raises:
        EhrseqError: There are no two trainings to compare, one is impossible, or a folder holds another training.
    """
    name = task or prepared.only_task()
    settings = {value: [*overrides, f"{setting}={value}", *ALONE] for value in values}
    studies = [load_study(None, [*own, "training.seed=0"]) for own in settings.values()]
    trained = {study.model_dump_json(include={"model", "training"}) for study in studies}
    if len(values) < 2 or len(trained) < len(values):
        raise EhrseqError(
            "compares two different values or more, of what a network alone is trained with",
            where="--ablate",
            fix=f"write {setting}=ONE,OTHER",
        )
    for study in studies:  # what cannot be is refused before anything is trained
        Plan.of(prepared, name, study)
    places = [(value, seed) for value in values for seed in range(seeds)]
    folders = [out / re.sub(r"[^\w.-]+", "-", value) / f"seed-{seed}" for value, seed in places]
    seconds = read_json(out / SECONDS) if (out / SECONDS).is_file() else {}
    for (value, seed), folder in zip(places, folders, strict=True):
        say(f"{setting}={value}, seed {seed}")
        own = [*settings[value], f"training.seed={seed}"]
        key, started = folder.relative_to(out).as_posix(), time.monotonic()
        was_done = (folder / "manifest.json").is_file()
        try:
            with training_bar(show=progress) as report:
                plan = Plan.of(prepared, name, load_study(None, own))
                fit(plan, folder, resume=True, on_progress=report)
        finally:
            if not was_done:
                seconds[key] = seconds.get(key, 0.0) + time.monotonic() - started
                out.mkdir(parents=True, exist_ok=True)
                write_json(out / SECONDS, seconds)
    runs = [Run(folder) for folder in folders]
    with stages("comparing", show=progress) as stage:
        of_runs, subject = _on_held_out(runs, prepared, name, progress=stage)
    rows = [
        {"value": value, "seed": seed, "seconds": seconds.get(folder.relative_to(out).as_posix())}
        | {metric: of_run[metric] for metric in ("nll", *_METRICS)}
        for (value, seed), folder, of_run in zip(places, folders, of_runs, strict=True)
    ]
    table = _by_value(rows, values, of_runs, subject)
    result = {
        "setting": setting,
        "task": name,
        "runs": rows,
        "values": table.reset_index().to_dict("records"),
    }
    write_json(out / RESULT, result)
    return table, result


def _by_value(
    rows: list[dict[str, Any]], values: Sequence[str], of_runs: Sequence[Any], subject: Ints
) -> pd.DataFrame:
    """Means over seeds, their spread, and the difference of NLL to the first value with its interval over people."""
    by_value = (
        pd.DataFrame(rows)
        .astype({metric: float for metric in _METRICS})
        .groupby("value", sort=False)
    )
    columns = {metric: by_value[metric].mean() for metric in ("nll", *_METRICS)}
    columns |= {f"{metric} sd": by_value[metric].std() for metric in ("nll", *_METRICS)}
    table = pd.DataFrame(columns | {"seconds": by_value["seconds"].median()})
    nll = np.reshape(
        [of_run["rows"] for of_run in of_runs], (len(values), len(rows) // len(values), -1)
    ).mean(axis=1)
    for value, less in zip(values, nll - nll[0], strict=True):
        gap, se = mean_by_subject(less, subject)
        table.loc[value, ["nll less the first", "low", "high"]] = (
            gap,
            gap - 1.96 * se,
            gap + 1.96 * se,
        )
    return table


def _on_held_out(
    runs: Sequence[Run], prepared: Prepared, task: str, *, progress: Callable[[str], None]
) -> tuple[list[dict[str, Any]], Ints]:
    """Of each run its NLL by row, their mean, and its metrics at the main place; and whose rows they are."""
    population = Population.of_split(prepared, prepared.task(task), "held_out")
    evaluated = Evaluated.of_run(runs[0])
    others = {f"run {number}": run.predictor for number, run in enumerate(runs[1:], start=2)}
    evaluation = Evaluation(
        evaluated,
        population,
        prepared=None,
        settings=EvaluationConfig(baselines="none", bootstrap=0),
        beside=others,
    )
    metrics, _, (landmark, horizon) = evaluation.tables(progress=progress)
    cause = evaluated.task.causes[0]
    at = {
        (row["model"], row["metric"]): row["value"]
        for row in metrics
        if (row["landmark_days"], row["horizon_days"], row["cause"]) == (landmark, horizon, cause)
    }
    names = [evaluated.name, *others]
    results = [
        {"rows": evaluation.nll[name], "nll": float(evaluation.nll[name].mean())}
        | {metric: at.get((name, metric)) for metric in _METRICS}
        for name in names
    ]
    return results, np.asarray(population.records.rows.subject)
