"""The one error that users see: what went wrong, where, and how to fix it."""

from collections.abc import Mapping
from functools import partial
from typing import Any


def install(extra: str) -> str:
    """How to install an optional extra. The package is on no index: anybody could take its name there."""
    return f'in a clone of the repository: pip install -e ".[{extra}]"'


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
