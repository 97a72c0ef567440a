"""The folder of a run while it trains: started, resumed or refused, and what is removed at the end."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    entries,
    is_temporary,
    locked,
    read_json,
    remove_folder,
    require_name,
    write_bytes,
    write_json,
)
from ehrsequencing.core.outputs import HISTORY, RUN, UNFINISHED_RUN, Kind, is_json_of, read_manifest
from ehrsequencing.records.prepared import Prepared

BEGUN = "begun.json"  # among the checkpoints: what the run was started with
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class HasFolder(Protocol):
    """What writes a run into its folder `out`."""

    out: Path


Maker = TypeVar("Maker", bound=HasFolder)


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


def alone(
    fit: Callable[Concatenate[Maker, Arguments], Result],
) -> Callable[Concatenate[Maker, Arguments], Result]:
    """Decorate a method that fits into the folder `self.out`: it holds the folder's lock meanwhile.

    Raises:
        EhrseqError: Another process is writing the folder.
    """

    @wraps(fit)
    def locked_fit(self: Maker, /, *given: Arguments.args, **named: Arguments.kwargs) -> Result:
        with alone_in(self.out):
            return fit(self, *given, **named)

    return locked_fit


class RunFolder:
    """Guards the output folder of one training run, which holds its lock (`alone`).

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

    def begin(self, *, resume: bool) -> None:
        """Mark the folder as this run's; refuse a folder that holds another run or other files."""
        mark = self.checkpoints / BEGUN
        if not resume and entries(self.out):
            fix = "name another folder, or add --resume to go on with this run, or --overwrite to start again"
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
