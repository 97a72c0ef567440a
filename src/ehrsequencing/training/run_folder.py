"""Folders of runs and pretrained models: started, resumed or refused, and written."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ehrsequencing.config import StudyConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    digest,
    entries,
    is_temporary,
    locked,
    read_json,
    remove_folder,
    require_name,
    write_bytes,
    write_json,
    write_settings,
)
from ehrsequencing.core.made_of import differing
from ehrsequencing.core.outputs import (
    HISTORY,
    MANIFEST,
    NETWORK_FILES,
    PRETRAINED,
    RUN,
    RUN_NEEDS,
    UNFINISHED_RUN,
    Kind,
    is_json_of,
    read_manifest,
    require_format,
    write_manifest,
)
from ehrsequencing.core.version import versions
from ehrsequencing.records.outcomes import OUTCOMES_FILE
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.results.result_types import EpochRow

if TYPE_CHECKING:
    from ehrsequencing.models.base import SurvivalModel

# settings that an interrupted run may go on with: when it stops, and what only `evaluate` uses
MAY_CHANGE = ("training.epochs", "training.patience", "evaluation.")
# what a manifest's `"learned": false` says
NOTHING_LEARNED = "learned nothing that shows on tuning people beside the cohort's own rates"
BEGUN = "begun.json"  # among the checkpoints: what the run was started with
RESULTS_FILE = "pretraining.json"  # measures on the tuning split, beside the baselines


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Hold the lock of the folder of a run; a process that holds it already passes.

    Raises:
        EhrseqError: Another process is writing the folder, or it is a file.
    """
    require_name(out)
    if out.exists() and not out.is_dir():
        raise EhrseqError("is a file", where=str(out), fix="name a folder")
    with locked(out):
        yield


def remove_unfinished(out: Path, kind: Kind) -> None:
    """Remove what an interrupted training has left, if the folder holds nothing else.

    Raises:
        EhrseqError: Another process is writing the folder.
    """
    checkpoints = out / "checkpoints"
    if is_json_of(checkpoints / BEGUN, kind) and entries(out) == [checkpoints]:
        with alone_in(out):
            remove_folder(checkpoints)


def refuse_foreign(out: Path) -> None:
    """Refuse a folder for a new run that holds more than temporaries.

    Raises:
        EhrseqError: It does, or it is a file.
    """
    files = [path.relative_to(out) for path in out.rglob("*") if path.is_file()]
    if out.is_file() or not all(any(map(is_temporary, (name, *name.parents))) for name in files):
        raise EhrseqError(
            "is not empty",
            where=str(out),
            fix="name another folder, or add --resume to go on with its run, or --overwrite to start again",
        )


@contextmanager
def hold_folder(
    out: Path,
    prepared: Prepared,
    task_name: str,
    made_of: Mapping[str, str],
    *,
    resume: bool,
    kinds: tuple[Kind, Kind] = (RUN, UNFINISHED_RUN),
) -> Iterator[bool]:
    """Hold a folder for one training, whose checkpoints go when it has ended well; yields whether it is finished.

    Args:
        out: The folder.
        prepared: What the run is trained on.
        task_name: Its task; empty for pretraining, which has none.
        made_of: What decides the run beside its data, as of the function of that name.
        resume: Whether to go on with what the folder holds.
        kinds: What the folder is when it is finished, and until then.

    Raises:
        EhrseqError: It holds another run, other files, or a run of other settings or data.
    """
    finished, unfinished = kinds
    identity = prepared.identity(task_name)
    mark = out / "checkpoints" / BEGUN
    noted: dict[str, Any] | None = None
    decided = made_of
    with alone_in(out):
        is_finished = resume and (out / MANIFEST).is_file()
        if is_finished:
            noted = read_manifest(out, what=finished.what)
            if not finished.is_of(noted):
                raise EhrseqError(
                    f"holds something other than {finished.what}",
                    where=str(out),
                    fix="name another folder",
                )
            was = "holds a finished run made with"
            fix = "name another folder with --out for a run with other settings or data"
        elif resume and is_json_of(mark, unfinished):
            noted = read_json(mark)
            require_format(noted, mark)
            decided = {k: v for k, v in made_of.items() if not k.startswith(MAY_CHANGE)}
            was = "was started with"
            fix = "resume with the settings and data that it was started with, or start in an empty folder"
        else:
            refuse_foreign(out)
            write_json(mark, {**unfinished.facts, **identity, "made_of": made_of})
        if noted is not None:
            others = {
                "data": differing(identity, noted),
                "settings": differing(decided, noted.get("made_of")),
            }
            for kind, other in others.items():
                if other:
                    raise EhrseqError(
                        f"{was} other {kind} (what differs: {', '.join(other)})",
                        where=str(out),
                        fix=fix,
                    )
        yield is_finished
        if mark.is_file():  # a folder of that name without our mark stays
            remove_folder(mark.parent)


def fingerprint_of(identity: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """Digest of the data and the settings that decide a model, all but those of `evaluate`."""
    return digest(
        [identity, {k: v for k, v in settings.items() if not k.startswith("evaluation.")}]
    )


def provenance(function: Callable[..., object]) -> dict[str, str]:
    """What a run notes of a loss: its name and the hash of its source; "unknown" where no file has the source."""
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    try:
        source = digest(inspect.getsource(named))
    except (OSError, TypeError):
        source = "unknown"
    return {"name": named.__qualname__, "source": source}


def write_history(out: Path, history: list[EpochRow]) -> None:
    """Write `history.jsonl`, one line an epoch."""
    write_bytes(out / HISTORY, "".join(json.dumps(row) + "\n" for row in history).encode())


def write_run_files(
    out: Path,
    prepared: Prepared,
    study: StudyConfig,
    model: "SurvivalModel | None",
    history: list[EpochRow],
    facts: Mapping[str, object],
    *,
    made_of: Mapping[str, str],
    kind: Kind = RUN,
    more: tuple[str, ...] = (),
    beside: tuple[str, ...] = (),
) -> None:
    """Write a run or a pretrained model; the manifest comes last.

    Args:
        out: Folder of the run.
        prepared: What it was trained on.
        study: Its settings; a run's task included.
        model: The trained model; None where no network answers.
        history: One row an epoch.
        facts: For the manifest.
        made_of: What decides the model beside its data.
        kind: What the folder is.
        more: Files that are there already, and that prediction needs too.
        beside: Others that are there already.
    """
    task = "" if kind is PRETRAINED or study.task is None else study.task.name
    write_history(out, history)
    needed = set(RUN_NEEDS)
    if model is None:
        needed -= NETWORK_FILES
    else:
        model.save_pretrained(out)
    prepared.vocabulary.save(out)
    if model is not None and model.config.outcomes:
        write_json(out / OUTCOMES_FILE, {"codes": prepared.outcomes(task)})
        more = (*more, OUTCOMES_FILE)
    required = (*sorted(needed), *more)
    write_settings(out / "config.yaml", study)
    manifest, identity = prepared.manifest, prepared.identity(task)
    write_manifest(
        out,
        {
            **kind.facts,
            "versions": versions(),
            "task": task,
            "prepared": str(prepared.folder.resolve()),
            "data": manifest["data"],
            "excluded": manifest["excluded"],
            "import": manifest.get("import", {}),
            **identity,
            "data_path": manifest.get("data_path", ""),
            "simulated": bool(manifest.get("simulated")),
            "subjects": {
                split: subjects_digest(prepared.timelines(split).subject_id)
                for split in ("train", "tuning")
            },
            "network": model is not None,
            "parameters": 0 if model is None else sum(p.numel() for p in model.parameters()),
            "fingerprint": fingerprint_of(identity, made_of),
            "made_of": made_of,
            **facts,
        },
        files=[out / name for name in (*required, HISTORY, *beside)],
        required=required,
    )


def subjects_digest(subject_id: Ints) -> str:
    """Digest of a set of subjects, whatever their order."""
    return digest(np.unique(subject_id).tolist())
