"""The one error that users see: what went wrong, where, and how to fix it."""

import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

__all__ = ["EhrseqError"]

NO_HEADER = "its first line may be a patient's and is not shown: give it a header line"
_NAME = re.compile(r"(?!.*\d{3})[\w ./()%\[\]-]{1,64}")
# a name that no cell has: by its last word, as in patient_id, eventDate and sex
_NAME_ALONE = re.compile(
    r"(?:\S*[_.])?(?i:ids?|subject|patient|person|age|sex|gender|event|status|start|stop|end|day|years?|value|unit|risk)"
    r"|\S*(?i:date|time|timestamp|code|birth)|\S*[a-z]I[dD]"
)


def looks_like_header(names: Collection[str]) -> bool:
    """Whether names of columns may stand in a message: all look like names, and one is like no cell.

    The first line of a table without a header is a patient's.

    >>> looks_like_header(["ID", "visit date", "HbA1c (%)"]), looks_like_header(["4711007", "1961-03-04", "HIV"])
    (True, False)
    >>> looks_like_header(["Anna", "HIV positive"])
    False
    """
    return all(map(_NAME.fullmatch, names)) and any(map(_NAME_ALONE.fullmatch, names))


def install(extra: str) -> str:
    """How to install an optional extra. The package is on no index: anybody could take its name there."""
    return f'in a clone of the repository: pip install -e ".[{extra}]"'


def quoted(name: str) -> str:
    """A key of a file for a message, after a blank; empty where it may be a patient's.

    >>> quoted("training.dimm"), quoted("4711007")
    (" 'training.dimm'", '')
    """
    return f" {name!r}" if _NAME.fullmatch(name) else ""


class EhrseqError(Exception):
    """A problem that the user can fix.

    The command line prints it as one line and exits with 2. Messages name files, columns, settings and codes of the
    task file; they never contain a patient's value, date or id.

    Args:
        what: What went wrong.
        where: The file, column, setting or argument concerned.
        fix: What to do about it.
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__("".join([f"{where}: " if where else "", what, f" ({fix})" if fix else ""]))

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the parts when the error goes from one process to another."""
        return partial(type(self), where=self.where, fix=self.fix), (self.what,)


def refuse_idle(
    arguments: Mapping[str, object], why: str, *, where: str, when: bool = True
) -> None:
    """Refuse arguments that were given to a call in which they would do nothing.

    Args:
        arguments: Name → value; those that are None or False were not given.
        why: Beside or without what they would do nothing.
        where: The function or the command.
        when: Whether it is such a call.

    Raises:
        EhrseqError: Names those that were given.

    Example:
        >>> refuse_idle({"out": "there", "overwrite": False}, "without data", where="evaluate")
        Traceback (most recent call last):
        ehrsequencing.core.errors.EhrseqError: evaluate: out would do nothing without data (leave it out)
    """
    given = [name for name, value in arguments.items() if value is not None and value is not False]
    if given and when:
        raise EhrseqError(
            f"{', '.join(given)} would do nothing {why}",
            where=where,
            fix="leave it out" if len(given) == 1 else "leave them out",
        )


def refuse_unknown(kind: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse a name that is none of those that are known.

    Args:
        kind: What it names, as in `cause`.
        given: The names.
        known: Those that are known.

    Raises:
        EhrseqError: Names the first such name, and those that are known.
    """
    for name in given:
        if name not in known:
            raise EhrseqError(
                f"there is no {kind} {name!r}", where=kind, fix=f"use one of {', '.join(known)}"
            )
