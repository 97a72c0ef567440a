"""`compare`: runs and seeds side by side on the same people; `pool_sites`: one run's evaluations at several sites."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ehrsequencing.api.evaluation import long_table
from ehrsequencing.api.paper import PaperTable, accuracy_table
from ehrsequencing.api.progress import stages
from ehrsequencing.config import format_days
from ehrsequencing.core.arrays import Bools, Floats
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import write_bytes, write_json
from ehrsequencing.core.outputs import POOLED, complete_folder, write_manifest
from ehrsequencing.evaluation.comparison import Comparison, draw_subjects, main_place
from ehrsequencing.evaluation.estimates import difference_rows, metric_rows, scope_estimates
from ehrsequencing.evaluation.pooling import pool, read_sites
from ehrsequencing.evaluation.population import RowFinder
from ehrsequencing.evaluation.risk_source import RunRisks
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.cohort import potential_days
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.reporting.pages import render_pooled


@dataclass(frozen=True)
class RunComparison:
    """Several runs on the same people.

    Attributes:
        result: The task, its main landmark and horizon (`main_place`), and the long rows of `metrics` and
            `differences`, as in `metrics.json`.
        subjects: How many people all runs answer for.
    """

    result: dict[str, Any]
    subjects: int

    @property
    def causes(self) -> tuple[str, ...]:
        """Names of the causes, the cause of interest first."""
        causes: tuple[str, ...] = self.result["task"].causes
        return causes

    @property
    def metrics(self) -> pd.DataFrame:
        """One row for each run, landmark, cause, horizon and metric, with its 95 % interval."""
        return long_table(self.result["metrics"], "model")

    @property
    def differences(self) -> pd.DataFrame:
        """The first run minus each other one, paired."""
        return long_table(self.result["differences"], "against")

    def table(self) -> PaperTable:
        """The runs beside one another, for the first cause at the main landmark and horizon."""
        landmark, horizon = self.result["main"]
        place = {"landmark": landmark, "cause": self.causes[0], "horizon": horizon}
        title = f"{place['cause']} by {format_days(place['horizon'])}"
        return accuracy_table(self.result["metrics"], place, title=title)


def compare(
    runs: Sequence[str | os.PathLike[str] | Run],
    *,
    split: str = "held_out",
    bootstrap: int = 500,
    seed: int = 0,
    progress: bool = True,
) -> RunComparison:
    """Compare runs of one task on the same people: models, settings or seeds, side by side and paired.

    Args:
        runs: Two runs or more, or their folders; differences are the first minus each other one.
        split: Whose people; those whom all runs answer for are compared.
        bootstrap: Resamples of people for the intervals.
        seed: Of the resamples.
        progress: Whether to show a bar.

    Raises:
        EhrseqError: There is one run only, tasks differ, or no person is in this split of all runs.

    Example:
        >>> import ehrsequencing as eh
        >>> found = eh.compare(["runs/hf", "runs/hf"], bootstrap=20, progress=False)
        >>> found.metrics.model.unique().tolist()
        ['hf', 'hf 2']
    """
    opened = [run if isinstance(run, Run) else Run(os.fspath(run)) for run in runs]
    if len(opened) < 2:
        raise EhrseqError("compares two runs or more", where="compare", fix="name another run")
    task = opened[0].task
    for run in opened:
        if run.task != task:
            fix = "train on one task file"
            raise EhrseqError("has another task", where=str(run.folder), fix=fix)
    horizons, names = np.array(task.horizons), _names(opened)
    metrics: list[Mapping[str, Any]] = []
    differences: list[Mapping[str, Any]] = []
    scopes: list[Comparison] = []
    with stages("comparing", show=progress) as stage:
        records = [run.prepared().records(task.name, split) for run in opened]
        common, risks = records[0], {}
        in_all = np.ones(len(common), dtype=bool)
        for name, run, own in zip(names, opened, records, strict=True):
            stage(f"risks of {name}")
            risks[name], answered = _risks(run, own, common, horizons)
            in_all &= answered
        rows = common.rows
        ends = potential_days(common, task, int(opened[0].prepared().manifest["dataset_end_us"]))
        draws = draw_subjects(len(common.timelines), bootstrap, seed)
        for landmark in task.landmarks:
            at = common.at_landmark(landmark)
            at = at[in_all[at]]
            if not len(at):
                continue
            scope = Comparison(
                landmark_days=landmark,
                subject=rows.subject[at],
                duration_days=rows.duration_days[at],
                cause=rows.cause[at].astype(np.int64),
                horizons_days=horizons,
                risk={name: risk[at] for name, risk in risks.items()},
                draws=draws,
                potential_days=ends[at],
            )
            scopes.append(scope)
            found = scope_estimates(scope, task.causes, progress=stage)
            metrics += metric_rows(scope, found)
            differences += difference_rows(scope, found, ours=names[0], rivals=names[1:])
    if not metrics:
        fix = "prepare them from the same records with the same splits"
        raise EhrseqError("the runs have no person in common", where=f"split {split}", fix=fix)
    subjects = len(np.unique(rows.subject[in_all]))
    result = {
        "task": task,
        "main": main_place(scopes, names[0]),
        "metrics": metrics,
        "differences": differences,
    }
    return RunComparison(result, subjects)


def _names(runs: Sequence[Run]) -> list[str]:
    """The folders' names, numbered where two are alike."""
    names: list[str] = []
    for run in runs:
        name, number = run.folder.resolve().name, 1
        while name in names:
            number += 1
            name = f"{run.folder.resolve().name} {number}"
        names.append(name)
    return names


def _risks(
    run: Run, own: TaskRecords, common: TaskRecords, horizons: Floats
) -> tuple[Floats, Bools]:
    """(R, causes, horizons) risks of a run at the prediction times of the first run, and where it has them.

    Raises:
        EhrseqError: The labels of its prepared set are others.
    """
    place = RowFinder(own)(common.subject_id, np.asarray(common.rows.prediction_us))
    answered = place >= 0
    for name in ("duration_days", "cause"):
        ours, theirs = getattr(own.rows, name)[place], getattr(common.rows, name)
        if not np.array_equal(ours[answered], theirs[answered]):
            fix = "prepare both from the same records"
            raise EhrseqError("has other labels", where=str(run.folder), fix=fix)
    return RunRisks(run).risk(own, horizons)[place], answered


def pool_sites(
    files: Sequence[str | os.PathLike[str]],
    *,
    out: str | os.PathLike[str],
    overwrite: bool = False,
) -> dict[str, Any]:
    """Pool the evaluations of one run at several sites by random effects; writes `pooled.json` and `pooled.html`.

    Args:
        files: The `metrics.json` of each site (`evaluate` with `data=`).
        out: Folder to make.
        overwrite: Whether an earlier pooling there that nobody has changed is replaced.

    Returns:
        The content of `pooled.json`.

    Raises:
        EhrseqError: A file is impossible, or the sites are of different models or tasks.
    """
    result = pool(read_sites([Path(file) for file in files]))
    with complete_folder(Path(out), POOLED, overwrite=overwrite) as folder:
        write_json(folder / "pooled.json", result)
        write_bytes(folder / "pooled.html", render_pooled(result).encode())
        write_manifest(folder, POOLED.facts)
    return result
