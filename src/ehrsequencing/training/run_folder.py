"""Folders of runs and pretrained models: started, resumed or refused, and written."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ehrsequencing.config import StudyConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    digest,
    is_temporary,
    locked,
    read_json,
    remove_folder,
    require_name,
    write_bytes,
    write_json,
    write_settings,
)
from ehrsequencing.core.outputs import (
    HISTORY,
    MANIFEST,
    PRETRAINED,
    RUN,
    RUN_NEEDS,
    UNFINISHED_RUN,
    Kind,
    is_json_of,
    read_manifest,
    write_manifest,
)
from ehrsequencing.core.version import __version__
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.records.outcomes import OUTCOMES_FILE
from ehrsequencing.records.prepared import Prepared

BEGUN = "begun.json"  # among the checkpoints: what the run was started with
MODEL_FILES = (*RUN_NEEDS, HISTORY)  # of a run and of a pretrained model
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


class RunFolder:
    """Guards the output folder of one training run.

    Args:
        out: The folder.
        prepared: What the run is trained on.
        task_name: Its task; empty for pretraining, which has none.
        fingerprint: Digest of what a resumed run must share with its start.
        kinds: What the folder is when it is finished, and until then.
    """

    def __init__(
        self,
        out: Path,
        prepared: Prepared,
        task_name: str,
        fingerprint: str,
        *,
        kinds: tuple[Kind, Kind] = (RUN, UNFINISHED_RUN),
    ) -> None:
        self.out, self.prepared, self.task_name, self.fingerprint = (
            out,
            prepared,
            task_name,
            fingerprint,
        )
        self.finished, self.unfinished = kinds
        self.checkpoints = out / "checkpoints"

    @contextmanager
    def held(self, *, resume: bool) -> Iterator[bool]:
        """Hold the folder for one training, whose checkpoints go when it has ended well; yields whether it is finished.

        Raises:
            EhrseqError: It holds another run, other files, or a run of other settings or data.
        """
        with alone_in(self.out):
            is_finished = resume and (self.out / MANIFEST).is_file()
            if is_finished:
                if not is_json_of(self.out / MANIFEST, self.finished):
                    what = f"holds something other than {self.finished.what}"
                    raise EhrseqError(what, where=str(self.out), fix="name another folder")
                manifest = read_manifest(self.out, what=self.finished.what)
                fix = "name another folder for a run with other settings or data"
                self._require_own(manifest, was="holds a finished run made with", fix=fix)
            else:
                self.begin(resume=resume)
            yield is_finished
            if (self.checkpoints / BEGUN).is_file():  # a folder of that name without our mark stays
                remove_folder(self.checkpoints)

    def begin(self, *, resume: bool) -> None:
        """Mark the folder as this run's; refuse a folder that holds another run or other files."""
        mark = self.checkpoints / BEGUN
        if resume and is_json_of(mark, self.unfinished):
            fix = "resume with the settings and data that it was started with, or start in an empty folder"
            self._require_own(read_json(mark), was="was started with", fix=fix)
            return
        files = [path for path in self.out.rglob("*") if path.is_file()]
        if any(
            not any(map(is_temporary, (path, *path.relative_to(self.out).parents)))
            for path in files
        ):
            fix = "name another folder, or add --resume to go on with its run, or --overwrite to start again"
            raise EhrseqError("is not empty", where=str(self.out), fix=fix)
        identity = self.prepared.identity(self.task_name)
        write_json(mark, {**self.unfinished.facts, "fingerprint": self.fingerprint, **identity})

    def _require_own(self, noted: dict[str, Any], *, was: str, fix: str) -> None:
        """Refuse to continue a run of other data or settings; `noted` is what its folder records."""
        if other := self.prepared.unlike(self.task_name, noted):
            what = f"{was} other data (what differs: {', '.join(other)})"
            raise EhrseqError(what, where=str(self.out), fix=fix)
        if noted.get("fingerprint") != self.fingerprint:
            raise EhrseqError(f"{was} other settings", where=str(self.out), fix=fix)


def write_history(out: Path, history: list[dict[str, Any]]) -> None:
    """Write `history.jsonl`, one line an epoch."""
    write_bytes(out / HISTORY, "".join(json.dumps(row) + "\n" for row in history).encode())


def write_run_files(
    out: Path,
    prepared: Prepared,
    study: StudyConfig,
    model: SurvivalModel,
    history: list[dict[str, Any]],
    facts: dict[str, Any],
    *,
    kind: Kind = RUN,
    more: tuple[str, ...] = (),
) -> None:
    """Write a run or a pretrained model; the manifest comes last.

    Args:
        out: Folder of the run.
        prepared: What it was trained on.
        study: Its settings; a run's task included.
        model: The trained model.
        history: One row an epoch.
        facts: For the manifest.
        kind: What the folder is.
        more: Files that are there already, and that prediction needs too.
    """
    task = "" if kind is PRETRAINED or study.task is None else study.task.name
    write_history(out, history)
    model.save_pretrained(out)
    prepared.vocabulary.save(out)
    if model.config.outcomes:
        write_json(out / OUTCOMES_FILE, {"codes": prepared.outcomes(task)})
        more = (*more, OUTCOMES_FILE)
    write_settings(out / "config.yaml", study)
    manifest = prepared.manifest
    write_manifest(
        out,
        {
            **kind.facts,
            "versions": {"ehrsequencing": __version__, "torch": torch.__version__},
            "task": task,
            "prepared": str(prepared.folder.resolve()),
            "data": manifest["data"],
            "excluded": manifest["excluded"],
            **prepared.identity(task),
            "data_path": manifest.get("data_path", ""),
            "subjects": {
                split: subjects_digest(prepared.timelines(split).subject_id)
                for split in ("train", "tuning")
            },
            "parameters": sum(p.numel() for p in model.parameters()),
            **facts,
        },
        files=[out / name for name in (*MODEL_FILES, *more)],
        required=(*RUN_NEEDS, *more),
    )


def subjects_digest(subject_id: Ints) -> str:
    """Digest of a set of subjects, whatever their order."""
    return digest(np.unique(subject_id).tolist())
