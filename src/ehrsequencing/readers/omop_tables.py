"""OMOP's tables as Ibis expressions, one set for all engines: nothing but selections, casts and `coalesce`."""

from dataclasses import dataclass
from typing import Any

from ehrsequencing.readers.rows import Role


@dataclass(frozen=True)
class EventTable:
    """Which columns of a table mean what. A column that a source lacks is null.

    Attributes:
        domain: Name of the table's rows whose concept is unknown.
        concept: Stem of the standard concept's column; `{stem}_concept_id`, `{stem}_source_concept_id`.
        start: Stem of the start: `{start}_datetime`, `{start}_date`.
        end: Stem of the end, where the span matters.
        valued: Whether there are value columns.
    """

    domain: str
    concept: str
    start: str
    end: str | None = None
    role: Role = Role.EVENT
    valued: bool = False


EVENT_TABLES = {
    "visit_occurrence": EventTable("VISIT", "visit", "visit_start", "visit_end", Role.VISIT),
    "visit_detail": EventTable("VISIT_DETAIL", "visit_detail", "visit_detail_start", "visit_detail_end", Role.SPAN),
    "condition_occurrence": EventTable("CONDITION", "condition", "condition_start"),
    "drug_exposure": EventTable("DRUG", "drug", "drug_exposure_start"),
    "procedure_occurrence": EventTable("PROCEDURE", "procedure", "procedure"),
    "measurement": EventTable("MEASUREMENT", "measurement", "measurement", valued=True),
    "observation": EventTable("OBSERVATION", "observation", "observation", valued=True),
    "device_exposure": EventTable("DEVICE", "device", "device_exposure_start"),
}
VOCABULARY_TABLES = ("concept", "concept_ancestor", "concept_relationship")
TABLES = ("person", "observation_period", *EVENT_TABLES, "death", *VOCABULARY_TABLES)


def typed(table: Any, name: str, kind: str) -> Any:
    """A column with a type; null where it is absent, and (in text files) where it cannot be read."""
    import ibis

    if name not in table.columns:
        return ibis.null().cast(kind)
    column = table[name]
    if column.type().is_string() and kind != "string":
        return column.try_cast(kind)
    return column.cast(kind)


def moment(table: Any, stem: str) -> Any:
    """Date and time where there is a time, else the date at midnight."""
    import ibis

    time, date = typed(table, f"{stem}_datetime", "timestamp"), typed(table, f"{stem}_date", "date").cast("timestamp")
    return ibis.coalesce(time, date)


def concept_of(table: Any, stem: str) -> Any:
    """The standard concept, else the source's own, else 0."""
    import ibis

    standard = typed(table, f"{stem}_concept_id", "int64").nullif(0)
    own = typed(table, f"{stem}_source_concept_id", "int64").nullif(0)
    return ibis.coalesce(standard, own, ibis.literal(0, type="int64"))


def event_rows(table: Any, spec: EventTable) -> Any:
    """The rows of an event table."""
    import ibis

    columns = {
        "subject_id": typed(table, "person_id", "int64"),
        "concept_id": concept_of(table, spec.concept),
        "time": moment(table, spec.start),
        "encounter_id": typed(table, "visit_occurrence_id", "int64"),
    }
    columns["end"] = moment(table, spec.end) if spec.end else ibis.null().cast("timestamp")
    if spec.valued:
        columns |= {
            "number": typed(table, "value_as_number", "float64"),
            "text_value": typed(table, "value_as_string", "string"),
            "value_id": typed(table, "value_as_concept_id", "int64"),
            "unit_id": typed(table, "unit_concept_id", "int64"),
            "unit": typed(table, "unit_source_value", "string"),
        }
    return table.select(**columns)


def person_rows(table: Any) -> Any:
    """Birth, and what never changes."""
    parts = {part: typed(table, f"{part}_of_birth", "int64") for part in ("year", "month", "day")}
    concepts = {name: concept_of(table, name) for name in ("gender", "race", "ethnicity")}
    birth = typed(table, "birth_datetime", "timestamp")
    return table.select(subject_id=typed(table, "person_id", "int64"), birth=birth, **parts, **concepts)


def period_rows(table: Any) -> Any:
    """Observation periods."""
    time, end = (moment(table, f"observation_period_{which}") for which in ("start", "end"))
    return table.select(subject_id=typed(table, "person_id", "int64"), time=time, end=end)


def death_rows(table: Any) -> Any:
    """Deaths."""
    return table.select(subject_id=typed(table, "person_id", "int64"), time=moment(table, "death"))


def concept_rows(table: Any) -> Any:
    """Concepts with what names them."""
    text = {name: typed(table, name, "string") for name in ("vocabulary_id", "concept_code", "concept_name")}
    return table.select(concept_id=typed(table, "concept_id", "int64"), **text)


def ancestor_rows(table: Any) -> Any:
    """Direct parents, from concept_ancestor."""
    levels = typed(table, "min_levels_of_separation", "int64")
    rows = table.select(
        child=typed(table, "descendant_concept_id", "int64"),
        parent=typed(table, "ancestor_concept_id", "int64"),
        levels=levels,
    )
    return rows.filter(rows.levels == 1).select("child", "parent")


def relationship_rows(table: Any, kinds: tuple[str, ...]) -> Any:
    """Parents, from valid rows of concept_relationship of some kinds."""
    rows = table.select(
        child=typed(table, "concept_id_1", "int64"),
        parent=typed(table, "concept_id_2", "int64"),
        kind=typed(table, "relationship_id", "string"),
        invalid=typed(table, "invalid_reason", "string"),
    )
    valid = rows.invalid.isnull() | (rows.invalid == "")
    return rows.filter(valid & rows.kind.isin(kinds)).select("child", "parent")
