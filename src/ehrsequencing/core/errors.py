"""The one error that users see: what went wrong, where, and how to fix it."""

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
