"""A small hospital for the tests of the audit, runs with random weights, and ways to break a prepared set."""

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ehrsequencing.audit.audit import CHECKS, audit
from ehrsequencing.audit.data import AuditData
from ehrsequencing.config import TaskConfig, load_study, validated
from ehrsequencing.core.outputs import MANIFEST, write_manifest
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.fit import fit_last_step
from ehrsequencing.predictors.network import Network
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.run_folder import write_run_files
from helpers.meds import DAY_US, HOUR_US, SPLITS, YEAR_US, Row, us, write_meds
from helpers.training import NetworkTrainer as Trainer

ALL = tuple(check.name for check in CHECKS)
FIRST_ID = 7_310_500  # ids that nothing else in a report would look like
TINY = ("model.dim=16", "model.heads=2", "model.layers=1", "training.min_steps=1")
TASK: dict[str, Any] = {
    "name": "hospital",
    "index": {"code": "INDEX"},
    "outcome": {"relapse": "DX//RELAPSE"},
    "competing": {"death": "MEDS_DEATH"},
    "censoring": {"code": "END"},
    "horizons": ["1y", "3y"],
    "landmarks": ["0d", "180d"],
}


def task(**changes: Any) -> TaskConfig:
    return validated(TaskConfig, TASK | changes, where="task")


def untrained_run(prepared: Prepared) -> Any:
    """What reading records needs of a run, where none is trained."""
    task = prepared.task(prepared.tasks[0])
    return SimpleNamespace(manifest=prepared.manifest, task=task, study=prepared.study)


def hospital_rows(*, subjects: int = 240, seed: int = 0) -> list[Row]:
    """Visits of several hours, labs, rare codes; the outcome falls on days with visits, and records go on after END."""
    return list(_drawn_rows(subjects, seed))


@cache
def _drawn_rows(subjects: int, seed: int) -> tuple[Row, ...]:
    rng, rows = np.random.default_rng(seed), list[Row]()
    for subject in range(FIRST_ID, FIRST_ID + subjects):
        first, start = len(rows), us("2010-01-01") + int(rng.integers(0, 900)) * DAY_US
        rows += [Row(subject, start - int(rng.uniform(30, 80) * YEAR_US), "MEDS_BIRTH")]
        rows += [Row(subject, None, str(rng.choice(["SEX//F", "SEX//M"])))]
        rows += [Row(subject, start + 8 * HOUR_US, "INDEX"), Row(subject, start + 9 * HOUR_US, "DX//0")]
        day = -int(rng.integers(100, 400)) if rng.random() < 0.5 else 0
        moments = []
        while day < 2200:
            day += int(rng.exponential(130)) + 1
            moments.append(day)
            hours = np.sort(rng.integers(0, 24, 4))
            for hour in hours.tolist():
                at = start + day * DAY_US + hour * HOUR_US
                rows.append(Row(subject, at, f"DX//{min(int(rng.zipf(1.5)), 60)}"))
                if rng.random() < 0.4:
                    rows.append(Row(subject, at, f"LAB//{rng.integers(0, 2)}", float(rng.normal())))
        relapse = int(rng.exponential(1500)) + 5
        relapse = moments[np.searchsorted(moments, relapse)] if rng.random() < 0.5 and relapse < day else relapse
        end, death = int(rng.integers(900, 2200)), int(rng.exponential(6000)) + 5
        if relapse < 2300:
            rows.append(Row(subject, start + relapse * DAY_US + 11 * HOUR_US, "DX//RELAPSE"))
        rows.append(Row(subject, start + end * DAY_US, "END"))
        if death < 2400:
            ends = start + death * DAY_US
            rows[first:] = [row for row in rows[first:] if row.time is None or row.time < ends]
            rows.append(Row(subject, start + death * DAY_US, "MEDS_DEATH"))
    return tuple(rows)


def hospital_splits(rows: list[Row]) -> dict[int, str]:
    subjects = sorted({row.subject for row in rows})
    return {subject: SPLITS[(0, 0, 0, 1, 2)[k % 5]] for k, subject in enumerate(subjects)}


def make_set(
    folder: Path,
    rows: list[Row],
    *settings: str,
    parents: Mapping[str, Sequence[str]] | None = None,
    column: str | None = None,
    splits: Mapping[int, str] | None = None,
    **changes: Any,
) -> Path:
    """Write the records, and prepare them for the task with `changes`."""
    write_meds(folder / "data", rows, splits=splits or hospital_splits(rows), parents=parents, column=column)
    prepare(folder / "data", folder / "set", study=load_study(None, settings), tasks=[task(**changes)])
    return folder / "set"


def in_stays(rows: list[Row]) -> list[Row]:
    """The same events in stays of several days that overlap and enclose loose rows."""
    out = []
    for row in rows:
        stay = None if row.time is None or row.code == "END" else f"{row.time // (9 * DAY_US)}-{row.time % 2}"
        out.append(row._replace(encounter=stay if row.time and row.time % 5 else None))
    return out


def in_touching_stays(rows: list[Row]) -> list[Row]:
    """The same events in stays of four, of which each ends at the instant at which the next begins."""
    out = []
    for subject in dict.fromkeys(row.subject for row in rows):
        own = [row for row in rows if row.subject == subject]
        timed = sorted(
            (row for row in own if row.time is not None and row.code != "END"), key=lambda row: row.time or 0
        )
        out += [row for row in own if row.time is None or row.code == "END"]
        for k in range(0, len(timed), 4):
            stay = timed[k : k + 4]
            left = [timed[k + 4]._replace(code="LEFT", value=None)] if k + 4 < len(timed) else []
            out += [row._replace(encounter=f"{subject}-{k}") for row in [*stay, *left]]
    return out


def assemble(prepared: Path, out: Path, *settings: str, seed: int = 0) -> Path:
    """A run with large random weights, so that every input moves every answer; nothing is learned but the last step."""
    store = Prepared(prepared)
    trainer = Trainer(store, store.only_task(), out, study=load_study(None, [*TINY, *settings]))
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trainer.training.best.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=noise)
    out.mkdir(parents=True)
    trainer.objective.tuning_nll = lambda model: 0.0  # type: ignore  # it refuses labels that are to be audited
    best: Any = trainer.training.best
    corrects = trainer.settings.recalibration > 0 and trainer.config.head == "horizon"
    facts: dict[str, Any] = {"best_epoch": 0, "tuning_nll": 0.0}
    if corrects:
        data = trainer.plan.fitting_data()
        fitted = fit_last_step(Network(best, trainer.plan.code_types).all_hazards(data.tuning), data)
        best.recalibrate(torch.from_numpy(fitted.intercept), torch.from_numpy(fitted.slope))
        facts["recalibration"] = fitted.as_json(trainer.plan.task.causes)
    facts["seed"] = trainer.settings.seed
    write_run_files(out, store, trainer.plan.study, best.cpu(), [], facts, made_of=trainer.plan.made_of)
    return out


def rewrite_manifest(folder: Path) -> None:
    """Make a folder valid again after its files were changed."""
    facts = json.loads((folder / MANIFEST).read_text())
    listed = facts.pop("files")
    write_manifest(folder, facts, files=[folder / name for name in listed])


def broken_set(prepared: Path, out: Path, change: Callable[[Path], None]) -> Path:
    """A copy of a prepared set with something changed."""
    shutil.copytree(prepared, out)
    change(out)
    rewrite_manifest(out)
    return out


def broken_model(run: Path, **changes: Any) -> Path:
    """The run, with a changed `config.json`: the weights stay, what is made of them does not."""
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | changes))
    rewrite_manifest(run)
    return run


def load(folder: Path, name: str) -> Any:
    return np.load(folder / f"{name}.npy")


def save(folder: Path, name: str, array: Any) -> None:
    before = load(folder, name)
    np.save(folder / f"{name}.npy", array.astype(before.dtype))


def verdicts(run: Path, **settings: Any) -> dict[str, str]:
    """Verdict of each check."""
    result = audit(run, **{"subjects": 25, **settings})
    return {check["name"]: check["verdict"] for check in result["checks"]}


def leaks(run: Path, *, only: Collection[str] = ALL, **settings: Any) -> set[str]:
    """The checks, of some or all, that find a leak."""
    loaded = Run(run)
    data = AuditData(loaded, loaded.prepared(), **{"split": "held_out", "subjects": 25, "seed": 0, **settings})
    data.read_source(None)
    return {check.name for check in CHECKS if check.name in only and check.make(data).verdict == "leak"}
