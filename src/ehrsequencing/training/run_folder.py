"""The folder of a run: started, resumed or refused while it trains, and the files of a finished run."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ehrsequencing.config import StudyConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    entries,
    is_temporary,
    locked,
    read_json,
    remove_folder,
    require_name,
    sweep_temporaries,
    write_bytes,
    write_json,
    write_settings,
)
from ehrsequencing.core.outputs import (
    HISTORY,
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
from ehrsequencing.training.pretrained import subjects_digest

BEGUN = "begun.json"  # among the checkpoints: what the run was started with
MODEL_FILES = (*RUN_NEEDS, HISTORY)  # of a run and of a pretrained model


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
    """Guards the output folder of one training run, whose lock is held (`alone_in`).

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

    def check_finished(self) -> None:
        """Refuse a finished run of other settings or data."""
        manifest = read_manifest(self.out, what=self.finished.what)
        if manifest.get("kind") != self.finished.name:
            raise EhrseqError(
                f"holds something other than {self.finished.what}",
                where=str(self.out),
                fix="name another folder",
            )
        fix = "name another folder for a run with other settings or data"
        self._require_own(manifest, was="holds a finished run made with", fix=fix)
        sweep_temporaries(self.out)

    def begin(self, *, resume: bool) -> None:
        """Mark the folder as this run's; refuse a folder that holds another run or other files."""
        mark = self.checkpoints / BEGUN
        if not resume and any(not is_temporary(path) for path in entries(self.out)):
            fix = "name another folder, or add --resume to go on with this run"
            raise EhrseqError("is not empty", where=str(self.out), fix=fix)
        if is_json_of(mark, self.unfinished):
            fix = "resume with the settings and data that it was started with, or start in an empty folder"
            self._require_own(read_json(mark), was="was started with", fix=fix)
            return
        if any(p.is_file() and not is_temporary(p) for p in self.out.rglob("*")):
            what = "is not empty, and holds no run that this version of ehrseq started"
            raise EhrseqError(what, where=str(self.out), fix="name another folder")
        identity = self.prepared.identity(self.task_name)
        write_json(mark, {**self.unfinished.facts, "fingerprint": self.fingerprint, **identity})

    def _require_own(self, noted: dict[str, Any], *, was: str, fix: str) -> None:
        """Refuse to continue a run of other data or settings; `noted` is what its folder records."""
        if other := self.prepared.unlike(self.task_name, noted):
            what = f"{was} other data (what differs: {', '.join(other)})"
            raise EhrseqError(what, where=str(self.out), fix=fix)
        if noted.get("fingerprint") != self.fingerprint:
            raise EhrseqError(f"{was} other settings", where=str(self.out), fix=fix)

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints of a finished run; a folder of that name without our mark is left alone."""
        if (self.checkpoints / BEGUN).is_file():
            remove_folder(self.checkpoints)


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
    more: tuple[str, ...] = (),
) -> None:
    """Write a run; the manifest comes last.

    Args:
        out: Folder of the run.
        prepared: What it was trained on.
        study: Its settings, the task included.
        model: The trained model.
        history: One row an epoch.
        facts: For the manifest.
        more: Files that are there already, and that prediction needs too.
    """
    assert study.task is not None
    task = study.task.name
    sweep_temporaries(out)
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
            **RUN.facts,
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
