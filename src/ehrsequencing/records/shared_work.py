"""The folder that several workers of one `prepare` share: claims and results of pieces of work, and what they are for.

A result is written in one step, under the name of its piece, so that a worker which dies leaves none or a whole one.
A claim is a locked file (`locks.claimed`), which the system releases when its process ends. Results hold rows of
patients: the folder must belong to this user, and nobody else may be able to write or read it.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    is_temporary,
    locked,
    read_json,
    sha256,
    write_bytes,
    write_json,
)
from ehrsequencing.core.locks import claimed
from ehrsequencing.core.outputs import MANIFEST
from ehrsequencing.records.plain_results import from_bytes, to_bytes

_STATE = "work.json"
_OPENING_SECONDS = 60  # that workers wait for each other when they open the folder


class SharedWork:
    """Work that is shared by all who open it with the same `identity`.

    Args:
        out: The output; the folder is called OUT.work.
        identity: Digest of all that goes in.

    Raises:
        EhrseqError: The folder is for other data or settings, belongs to somebody else, or is something else.
    """

    def __init__(self, out: Path, identity: str) -> None:
        self.out, self.identity = out, identity
        self.folder = out.with_name(f"{out.name}.work")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self.folder, wait_seconds=_OPENING_SECONDS):
            self._open()
            for name in () if self.is_done else ("claims", "results", "rows"):
                (self.folder / name).mkdir(exist_ok=True)

    def _open(self) -> None:
        self._refuse_others()
        state = read_json(self.folder / _STATE) if (self.folder / _STATE).exists() else None
        if state is None and not all(map(is_temporary, self.folder.iterdir())):
            fix = "name another --out, or remove that folder"
            raise EhrseqError("is not a folder of unfinished work", where=str(self.folder), fix=fix)
        if (
            state is not None
            and state.get("identity") == self.identity
            and (not state["done"] or self.is_done)
        ):
            return
        if state is not None and not state["done"] and state.get("identity") != self.identity:
            what = "holds unfinished work on other data, tasks or settings"
            fix = "start the workers as those before, or stop them all and remove that folder"
            raise EhrseqError(what, where=str(self.folder), fix=fix)
        write_json(self.folder / _STATE, {"identity": self.identity, "done": None})

    def _refuse_others(self) -> None:
        found = self.folder.stat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            fix = "remove it, or name another --out"
            raise EhrseqError("can be read or written by others", where=str(self.folder), fix=fix)

    @property
    def is_done(self) -> bool:
        """Whether the output is complete, and still what was made of this work."""
        state, manifest = read_json(self.folder / _STATE), self.out / MANIFEST
        return bool(state["done"]) and manifest.is_file() and sha256(manifest) == state["done"]

    def claim(self, piece: str) -> AbstractContextManager[bool]:
        """Claim a piece, as `locks.claimed`."""
        return claimed(self.folder / "claims" / piece)

    def has(self, piece: str) -> bool:
        """Whether a piece is done."""
        return (self.folder / "results" / piece).is_file()

    def save(self, piece: str, result: Any) -> None:
        """Store the result of a piece."""
        write_bytes(self.folder / "results" / piece, to_bytes(result), owner_only=True)

    def load(self, piece: str) -> Any:
        """The result of a piece that is done."""
        path = self.folder / "results" / piece
        return from_bytes(path.read_bytes(), where=str(path))

    def finish(self) -> None:
        """Note that the output is complete, and remove what is no longer needed."""
        write_json(
            self.folder / _STATE, {"identity": self.identity, "done": sha256(self.out / MANIFEST)}
        )
        self._sweep()

    def _sweep(self) -> None:
        """Remove all that holds rows of patients; claims hold none, and others may have them open."""
        for path in self.folder.iterdir():
            if path.is_dir() and path.name != "claims":
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def unless_done(self) -> Iterator[None]:
        """Stop the block without an error where another worker has finished the work, and removed it, meanwhile.

        Whoever leaves after that removes it again: a slow worker may have begun anew in the folder that was swept.
        """
        try:
            yield
        except (OSError, EhrseqError):
            if not self.is_done:
                raise
        finally:
            if self.is_done:
                self._sweep()
