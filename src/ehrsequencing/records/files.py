"""Find the Parquet files of a folder; a folder that cannot be listed, or a broken link, is an error."""

import os
from collections.abc import Iterable
from pathlib import Path

from ehrsequencing.core.errors import EhrseqError


def parquet_files(root: Path) -> list[Path]:
    """The Parquet files under a folder, sorted by path, without hidden files.

    Args:
        root: The folder. Where there is none, there are no files.

    Raises:
        EhrseqError: A folder cannot be listed, or a link leads to a folder or nowhere.
    """
    found: list[Path] = []
    if not os.path.lexists(root):
        return found
    for folder, folders, files in os.walk(root, onerror=_refuse):
        here = Path(folder)
        refuse_broken_links(here / name for name in files)
        for name in folders:  # os.walk would not enter it
            if (here / name).is_symlink():
                raise EhrseqError(
                    "is a link to a folder", where=str(here / name), fix="copy the folder itself"
                )
        found += [
            here / name for name in files if name.endswith(".parquet") and not name.startswith(".")
        ]
    return sorted(found)


def listed(folder: Path) -> list[Path]:
    """What a folder holds, sorted; nothing where there is no folder.

    Raises:
        EhrseqError: It cannot be listed, it is no folder, or a link in it leads nowhere.
    """
    if not os.path.lexists(folder):
        return []
    try:
        found = sorted(folder.iterdir())
    except OSError as error:
        raise _unreadable(folder, error) from error
    refuse_broken_links(found)
    return found


def refuse_broken_links(paths: Iterable[Path]) -> None:
    """Refuse a link that leads nowhere: its file would be missing without a word."""
    for path in paths:
        if path.is_symlink() and not path.exists():
            raise EhrseqError(
                "is a link to nothing",
                where=str(path),
                fix="copy the file itself, or remove the link",
            )


def _refuse(error: OSError) -> None:
    raise _unreadable(Path(str(error.filename)), error) from error


def _unreadable(folder: Path, error: OSError) -> EhrseqError:
    return EhrseqError(
        f"cannot be listed: {error.strerror}",
        where=str(folder),
        fix="make it a folder you can read",
    )
