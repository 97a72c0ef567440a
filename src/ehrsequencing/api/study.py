"""`run`: the whole way from records to a report; `ehrseq run` and `ehrseq demo` call it."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ehrsequencing.api.data import prepare, task_of
from ehrsequencing.api.evaluate import audit, evaluate
from ehrsequencing.api.records import check_study
from ehrsequencing.api.run import TrainedRun
from ehrsequencing.api.training import train
from ehrsequencing.config import StudyConfig, validated
from ehrsequencing.core.outputs import MANIFEST
from ehrsequencing.core.process import keep_freed_memory
from ehrsequencing.evaluation.results import SHARED
from ehrsequencing.prediction.run import saved_audit
from ehrsequencing.records.prepared import SECTIONS
from ehrsequencing.reporting.report import PAGES


def run(
    data: str | os.PathLike[str],
    task: Any,
    *,
    out: str | os.PathLike[str],
    progress: bool = True,
    say: Callable[[str], None] = lambda _: None,
    **sections: Mapping[str, Any],
) -> TrainedRun:
    """Check, prepare, train, evaluate and audit, and write the report; what is complete in `out` is not done again.

    Args:
        data: A folder of MEDS data.
        task: The task: its file, its content as a mapping, or a `TaskConfig`.
        out: Folder to make, with `prepared/` and `run/`.
        progress: Whether to show bars.
        say: Called with a line before each step.
        sections: Sections of a study, as in `model={"size": "small"}` or `training={"epochs": 30}`.

    Returns:
        The run.

    Raises:
        EhrseqError: Data, task or settings cannot be used, or `out` holds something else.

    Example:
        >>> import ehrsequencing as eh
        >>> tiny = {"model": {"dim": 16, "heads": 2, "layers": 1}, "training": {"epochs": 1, "min_steps": 2}}
        >>> fast = {"evaluation": {"baselines": "none", "bootstrap": 0, "explained_subjects": 0}}
        >>> found = eh.run("meds/", "task.yaml", out="study/", progress=False, **tiny, **fast)
        >>> found.evaluation.report.name
        'report.html'
    """
    study = validated(StudyConfig, sections, where="run")
    return run_study(Path(data), study, task_of(task), out=Path(out), progress=progress, say=say)


def run_study(
    data: Path,
    study: StudyConfig,
    task: Any,
    *,
    out: Path,
    progress: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> TrainedRun:
    """`run` with all settings in one study."""
    keep_freed_memory()
    folder = out / "run"
    of_records = {name: getattr(study, name) for name in SECTIONS}
    if not (out / "prepared" / MANIFEST).is_file():
        say("1/5  checking the records")
        for line in str(check_study(data, study, [task], progress=progress)).splitlines():
            say(line)
        say("2/5  preparing visits, codes and labels")
    prepared = prepare(data, task, out=out / "prepared", progress=progress, **of_records)
    if not (folder / MANIFEST).is_file():
        say("3/5  training")
    train(prepared, folder, study=study, resume=True, progress=progress)
    made = TrainedRun(folder)
    written = set(made.manifest["files"]) - set(made.altered)
    if not {SHARED, *PAGES} <= written:
        say("4/5  evaluating on held-out people, beside baselines")
        evaluate(made, progress=progress)
    if saved_audit(folder) is None:
        say("5/5  auditing: can anything from the future reach the model?")
        audit(folder, progress=progress)
    return TrainedRun(folder)
