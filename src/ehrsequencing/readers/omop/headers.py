"""Column names of OMOP tables: checks that the needed ones are there, and renames what an export changed.

Exports change the case, or leave an SQL expression as the name.
"""

import re
from typing import Any

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.omop.tables import alternatives, columns_of

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_TEXT = re.compile(r"'[^']*'")


def renamed_columns(
    table: Any, name: str, *, where: str
) -> tuple[Any, tuple[tuple[str, str], ...]]:
    """Rename columns to lower case, and an expression to the one missing column of OMOP that it mentions.

    Returns:
        The Ibis table, and pairs of column and the expression that it was called.

    Raises:
        EhrseqError: An expression mentions several missing columns, or several expressions mention the same one.
    """
    names = {column: column.strip().lower() for column in table.columns}
    if len(set(names.values())) < len(names):
        raise EhrseqError(
            "has columns whose names differ only in case", where=where, fix="rename one of them"
        )
    plain = {lower for lower in names.values() if _NAME.fullmatch(lower)}
    found: dict[str, str] = {}  # column of OMOP → header
    for header, lower in names.items():
        wanted = [] if lower in plain else _columns_in(lower, columns_of(name) - plain)
        clash = next((column for column in wanted if column in found), None)
        if len(wanted) > 1 or clash:
            both = (
                f"and {names[found[clash]]!r} both name {clash}"
                if clash
                else f"names {' and '.join(wanted)}"
            )
            fix = f"rename it to the column that it holds: {' or '.join(wanted)}"
            raise EhrseqError(f"column {lower!r} {both}", where=where, fix=fix)
        if wanted:
            found[wanted[0]] = header
    chosen = {header: column for column, header in found.items()}
    new = {chosen.get(header, lower): header for header, lower in names.items()}
    return table.rename(new), tuple((column, names[header]) for column, header in found.items())


def _columns_in(expression: str, columns: frozenset[str] | set[str]) -> list[str]:
    """The columns that an expression mentions outside quotes."""
    return sorted({word for word in _NAME.findall(_TEXT.sub("", expression)) if word in columns})


def check_columns(table: Any, name: str, *, where: str) -> None:
    """Refuse an Ibis table that lacks a needed column.

    Raises:
        EhrseqError: A column is missing; the message lists similar columns of the table.
    """
    there = set(table.columns)
    if not there & columns_of(name):
        fix = "give it OMOP's column names as its first line"
        raise EhrseqError(f"has none of the columns of {name}", where=where, fix=fix)
    for choice in alternatives(name):
        if not there & set(choice):
            last = choice[-1].rpartition("_")[2]
            kinds = (
                ("date", "time")
                if last in ("date", "datetime")
                else ("id", "concept")
                if last == "id"
                else ("",)
            )
            alike = [
                c for c in table.columns if _NAME.fullmatch(c) and any(kind in c for kind in kinds)
            ]
            found = f"; found: {', '.join(sorted(alike)[:8])}" if alike else ""
            what = f"has no column {' or '.join(choice)}{found}"
            raise EhrseqError(
                what, where=where, fix=f"rename the column that holds it to {choice[0]}"
            )
