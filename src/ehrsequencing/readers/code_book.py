"""Descriptions and parents of codes, gathered while rows are read."""

from typing import NamedTuple

import pyarrow as pa


class CodeFacts(NamedTuple):
    """A code's entry in `codes.parquet`."""

    description: str | None = None
    parents: tuple[str, ...] = ()


class CodeBook:
    """Descriptions and parents of the codes read so far.

    Attributes:
        facts: Of each code the first description in alphabetical order, so that the order of rows does not matter, and
            its parent.
    """

    def __init__(self) -> None:
        self.facts: dict[str, CodeFacts] = {}

    def add(
        self, code: pa.ChunkedArray, description: pa.ChunkedArray, parent: pa.ChunkedArray | None
    ) -> None:
        """Take the codes of some rows with their descriptions and parents, null where unknown."""
        parent = pa.nulls(len(code), pa.string()) if parent is None else parent
        table = pa.table({"code": code, "description": description, "parent": parent})
        distinct = table.group_by("code", use_threads=False).aggregate(
            [("description", "min"), ("parent", "min")]
        )
        for row in distinct.to_pylist():
            if row["code"] is None:
                continue
            before = self.facts.get(row["code"], CodeFacts())
            texts = [t for t in (before.description, row["description_min"]) if t]
            up = row["parent_min"]
            self.facts[row["code"]] = CodeFacts(
                min(texts, default=None), (up,) if up else before.parents
            )
