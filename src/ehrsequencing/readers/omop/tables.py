"""OMOP's tables: which of their columns are read, and the Ibis expressions that read them with any engine."""

from dataclasses import dataclass
from typing import Any

from ehrsequencing.readers.rows import Role


@dataclass(frozen=True)
class EventTable:
    """The columns of an event table. A column that a source lacks is read as null."""

    domain: str  # the last part of the code OMOP//0//DOMAIN for rows without a concept
    concept: str  # stem of the columns {stem}_concept_id and {stem}_source_concept_id
    start: str  # stem of the columns {stem}_datetime and {stem}_date
    end: str | None = None  # the same, if the end is read
    role: Role = Role.EVENT
    valued: bool = False  # whether there are columns with values and units


EVENT_TABLES = {
    "visit_occurrence": EventTable("VISIT", "visit", "visit_start", "visit_end", Role.VISIT),
    "visit_detail": EventTable(
        "VISIT_DETAIL", "visit_detail", "visit_detail_start", "visit_detail_end", Role.SPAN
    ),
    "condition_occurrence": EventTable("CONDITION", "condition", "condition_start"),
    "drug_exposure": EventTable("DRUG", "drug", "drug_exposure_start"),
    "procedure_occurrence": EventTable("PROCEDURE", "procedure", "procedure"),
    "measurement": EventTable("MEASUREMENT", "measurement", "measurement", valued=True),
    "observation": EventTable("OBSERVATION", "observation", "observation", valued=True),
    "device_exposure": EventTable("DEVICE", "device", "device_exposure_start"),
}
VOCABULARY_TABLES = ("concept", "concept_ancestor", "concept_relationship")
TABLES = ("person", "observation_period", *EVENT_TABLES, "death", *VOCABULARY_TABLES)


PERSON_CONCEPTS = ("gender", "race", "ethnicity")
BIRTH_PARTS = ("year_of_birth", "month_of_birth", "day_of_birth")
_OWN_COLUMNS = {
    "person": (*BIRTH_PARTS, "birth_datetime"),
    "concept": ("concept_id", "concept_name", "vocabulary_id", "concept_code"),
    "concept_ancestor": (
        "ancestor_concept_id",
        "descendant_concept_id",
        "min_levels_of_separation",
    ),
    "concept_relationship": ("concept_id_1", "concept_id_2", "relationship_id", "invalid_reason"),
}
_VALUED = (
    "value_as_number",
    "operator_concept_id",
    "value_as_string",
    "value_as_concept_id",
    "unit_concept_id",
    "unit_source_value",
)

_NO_SUCH = ("birth", "date")  # person has birth_datetime only


def date_stems(name: str) -> tuple[str, ...]:
    """Stems of a table's dates: `{stem}_datetime` and `{stem}_date`."""
    spec = EVENT_TABLES.get(name)
    if spec is not None:
        return (spec.start,) if spec.end is None else (spec.start, spec.end)
    periods = ("observation_period_start", "observation_period_end")
    return {"person": ("birth",), "observation_period": periods, "death": ("death",)}.get(name, ())


def date_columns(name: str) -> tuple[str, ...]:
    """Columns of a table that hold dates."""
    stems = date_stems(name)
    return tuple(
        f"{stem}_{kind}"
        for stem in stems
        for kind in ("datetime", "date")
        if (stem, kind) != _NO_SUCH
    )


def _concept_columns(name: str) -> list[tuple[str, str]]:
    spec = EVENT_TABLES.get(name)
    stems = PERSON_CONCEPTS if name == "person" else (spec.concept,) if spec is not None else ()
    return [(f"{stem}_concept_id", f"{stem}_source_concept_id") for stem in stems]


def columns_of(name: str) -> frozenset[str]:
    """All columns of a table that are read."""
    spec = EVENT_TABLES.get(name)
    columns = {*date_columns(name), *_OWN_COLUMNS.get(name, ())}
    columns |= {column for pair in _concept_columns(name) for column in pair}
    columns |= set() if name in VOCABULARY_TABLES else {"person_id"}
    columns |= {"visit_occurrence_id"} if spec is not None else set()
    columns |= set(_VALUED) if spec is not None and spec.valued else set()
    return frozenset(columns)


def alternatives(name: str) -> list[tuple[str, ...]]:
    """Groups of columns; a table needs one column of each group."""
    if name in VOCABULARY_TABLES:
        return []
    spec = EVENT_TABLES.get(name)
    stems = () if name == "person" else date_stems(name) if spec is None else (spec.start,)
    dates = [(f"{stem}_date", f"{stem}_datetime") for stem in stems]
    return [("person_id",), *dates, *([] if name == "person" else _concept_columns(name))]


def rows_of(table: Any, name: str) -> Any:
    """The columns of a table that are read, as they are; `cells` reads them, cell by cell."""
    there = [column for column in sorted(columns_of(name)) if column in table.columns]
    return table.select(**{column: _plain(table[column]) for column in there})


def _plain(column: Any) -> Any:
    """A column that Arrow can hold: an exact decimal becomes a float."""
    return column.cast("float64") if column.type().is_decimal() else column


def typed(table: Any, name: str, kind: str) -> Any:
    """A column cast to a type; null where the column is absent or its text cannot be cast."""
    import ibis

    if name not in table.columns:
        return ibis.null().cast(kind)
    column = table[name]
    if column.type().is_string() and kind != "string":
        return column.try_cast(kind)
    return column.cast(kind)


def concept_rows(table: Any) -> Any:
    """Concepts with the columns of their codes and names."""
    text = {
        name: typed(table, name, "string")
        for name in ("vocabulary_id", "concept_code", "concept_name")
    }
    return table.select(concept_id=typed(table, "concept_id", "int64"), **text)


def ancestor_rows(table: Any) -> Any:
    """Child and direct parent, from concept_ancestor."""
    levels = typed(table, "min_levels_of_separation", "int64")
    rows = table.select(
        child=typed(table, "descendant_concept_id", "int64"),
        parent=typed(table, "ancestor_concept_id", "int64"),
        levels=levels,
    )
    return rows.filter(rows.levels == 1).select("child", "parent")


def relationship_kinds(with_ancestors: bool) -> tuple[str, ...]:
    """Which rows of concept_relationship tell parents: `Is a` only where there is no concept_ancestor."""
    return ("Maps to",) if with_ancestors else ("Is a", "Maps to")


def relationship_rows(table: Any, kinds: tuple[str, ...]) -> Any:
    """Child and parent, from the valid rows of concept_relationship with one of these relationships."""
    rows = table.select(
        child=typed(table, "concept_id_1", "int64"),
        parent=typed(table, "concept_id_2", "int64"),
        kind=typed(table, "relationship_id", "string"),
        invalid=typed(table, "invalid_reason", "string"),
    )
    valid = rows.invalid.isnull() | (rows.invalid == "")
    return rows.filter(valid & rows.kind.isin(kinds)).select("child", "parent")
