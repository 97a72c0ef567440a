"""Several files that are one result: they get their names together, or none of them does.

They are written into a temporary folder. Once they are whole it is renamed, and from then on they count: each gets its
name, and what a kill leaves undone the next command that writes them does first.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import PENDING, disk_errors, fsync, temporary_in
from ehrsequencing.core.outputs import Kind, refuse_existing


@contextmanager
def output_files(outs: Mapping[Path, Kind], *, overwrite: bool = False) -> Iterator[list[Path]]:
    """Yield a temporary for each of some files. On success they become `outs`; on failure all are removed.

    A file that the result does not have, and whose temporary is not written, is removed where an earlier one is.

    Args:
        outs: The files, all of one folder, and what each is; the first one's name is that of the result.
        overwrite: As of `refuse_existing`.

    Raises:
        EhrseqError: As of `refuse_existing`, or the disk refused.
    """
    first = next(iter(outs))
    pending = first.parent / f".{first.name}{PENDING}"
    with disk_errors("cannot be written", first):
        _finish(pending)
        for out, kind in outs.items():
            refuse_existing(out, kind, overwrite=overwrite)
        first.parent.mkdir(parents=True, exist_ok=True)
        with temporary_in(first.parent, is_folder=True) as temporary:
            try:
                yield [temporary / out.name for out in outs]
            except EhrseqError as error:  # it names the temporary
                where = error.where.replace(f"/{temporary.name}/", "/")
                raise EhrseqError(error.what, where=where, fix=error.fix) from error
            for out, kind in outs.items():  # they may have changed meanwhile
                refuse_existing(out, kind, overwrite=overwrite)
            for path in [*temporary.iterdir(), temporary]:
                fsync(path)
            for out in outs:
                if not (temporary / out.name).exists():
                    out.unlink(missing_ok=True)
            os.replace(temporary, pending)
        _finish(pending)


def _finish(pending: Path) -> None:
    """Give the files of a result their names, where a kill came between."""
    if not pending.is_dir():
        return
    for path in sorted(pending.iterdir()):
        with suppress(FileNotFoundError):  # another process finishes them, too
            os.replace(path, pending.parent / path.name)
    fsync(pending.parent)
    with suppress(FileNotFoundError):
        pending.rmdir()
