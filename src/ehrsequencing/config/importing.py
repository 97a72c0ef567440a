"""Settings of the import commands; and the map of `ehrseq import csv`: which columns hold whom, when and what."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, create_model, model_validator

from ehrsequencing.config.base import Settings, TimeZone, as_list, check_date
from ehrsequencing.config.files import read_settings, read_yaml, validated
from ehrsequencing.core.errors import EhrseqError

# texts that mean nothing, as databases, spreadsheets, SAS and pandas write them
MISSING = (
    *("NA", "NaN", "nan", "NULL", "null", "\\N"),
    *(".", "N/A", "n/a", "#N/A", "<NA>", "NaT"),
)
_LIFE = ("MEDS_", "END")  # beginnings of codes of births, deaths and ends of follow-up
_SHOWN = "docs/data.md#any-flat-table"


class ImportConfig(Settings):
    """How an import reads its source, where the source itself does not tell."""

    # Order of day, month and year in dates written as text. None: found out, and refused where it is ambiguous.
    dates: Literal["dmy", "mdy", "ymd"] | None = None
    # Clock of the hospital, for times that are written in UTC: Europe/Berlin.
    time_zone: TimeZone | None = None
    # Of several dates of a row the one at which its content was known, or the earliest that its source gives.
    known: Literal["latest", "earliest"] = "latest"
    # Diagnoses that are not confirmed get the ending //provisional, or count as the others do.
    provisional: Literal["apart", "confirmed"] = "apart"
    # What the columns of a flat table mean, for `ehrseq import csv`.
    map: Path | None = None


_Sections: Any = create_model(
    "_Sections", __base__=Settings, **{"import": (ImportConfig, ImportConfig())}
)  # type: ignore[call-overload]


def load_import(overrides: Iterable[str] = ()) -> ImportConfig:
    """Settings of an import from `import.key=value` overrides."""
    sections = validated(_Sections, read_settings(None, overrides), where="settings")
    return getattr(sections, "import")


class Elapsed(Settings):
    """A column that counts time from an origin, as in {column: year, unit: y, since: 2000-01-01 12:00}."""

    column: str
    unit: Literal["s", "min", "h", "d", "w", "month", "y"]
    since: str | None = None  # an ISO date, or a column of dates: the column counts forward from it
    # the same: the column counts back from it, as an age at enrolment does
    before: str | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> "Elapsed":
        if (self.since is None) == (self.before is None):
            raise ValueError("needs either since or before, an ISO date or a column of dates")
        return self


def _kind(given: object) -> str:
    return "elapsed" if isinstance(given, dict | Elapsed) else "date"


# A column of dates, an ISO date, or an elapsed time.
When = Annotated[
    Annotated[str, Tag("date")] | Annotated[Elapsed, Tag("elapsed")], Discriminator(_kind)
]


def is_date(text: str) -> bool:
    """Whether a text of the map is a date, and not the name of a column."""
    try:
        check_date(text)
    except ValueError:
        return False
    return True


def _as_texts(given: object) -> object:
    """Numbers of a list as tables write them: -9, -9.0, -9.00."""
    if not isinstance(given, list):
        return given
    forms = ("{}", "{:.0f}", "{:.1f}", "{:.2f}", "{:.3f}")
    return [
        text
        for item in given
        for text in (
            [form.format(item) for form in forms] if type(item) in (int, float) else [item]
        )
        if type(item) not in (int, float) or float(text) == item
    ]


class EventMap(Settings):
    """One event for each row of the table in which its columns are filled."""

    code: str | None = None  # the code; with code_from its beginning: CODE//TEXT
    code_from: str | None = None  # the column whose text ends the code
    # texts of code_from → whole codes; others make no event
    codes: dict[str, str] = Field(default_factory=dict)
    value: str | None = None  # the column with the number
    numeric: bool = False  # whether texts of that column are errors, and no results of another kind
    unit: str | None = None  # of all numbers; becomes the code's ending
    unit_from: str | None = None  # the column with each number's unit
    time: When | None = None  # when it became known; default: the table's time

    @model_validator(mode="after")
    def _has_a_code(self) -> "EventMap":
        if self.code is None and self.code_from is None:
            raise ValueError("needs code, code_from or both")
        if self.codes and (self.code_from is None or self.code is not None):
            raise ValueError("codes are whole codes for the texts of code_from, without code")
        if self.unit is not None and self.unit_from is not None:
            raise ValueError("has both unit and unit_from")
        if self.value is None and (self.unit is not None or self.unit_from is not None):
            raise ValueError("has a unit, and no column value")
        return self


class EncounterMap(Settings):
    """Which encounter a row belongs to."""

    id: str  # the column of the encounter's id
    # when it began, and its end: events with a time of their own belong to it between them
    start: When | None = None
    end: When | None = None

    @model_validator(mode="after")
    def _end_needs_a_start(self) -> "EncounterMap":
        if self.end is not None and self.start is None:
            raise ValueError("has an end, and no start")
        return self


def _as_encounter(given: object) -> object:
    return {"id": given} if isinstance(given, str) else given


class TableMap(Settings):
    """What the columns of one flat table mean."""

    subject: str  # the column that says whose row it is
    time: When | None = None  # of every event that has none of its own
    # for visits.by=encounter
    encounter: Annotated[EncounterMap | None, BeforeValidator(_as_encounter)] = None
    birth: When | None = None
    death: When | None = None
    # column → beginning of a code without a time
    static: dict[str, str] = Field(default_factory=dict)
    events: tuple[EventMap, ...] = ()
    # columns in which 00:00 is a time of day; elsewhere it stands for a date
    midnight: Annotated[tuple[str, ...], BeforeValidator(as_list)] = ()
    # order of day, month and year (dmy, mdy, ymd), or how dates are written: "%d-%b-%y" for 03-Feb-15
    dates: str | None = Field(default=None, pattern="^(dmy|mdy|ymd)$|%")
    encoding: str | None = None  # of a CSV file; default: UTF-8, or Latin-1 where it is no UTF-8
    decimal: Literal[".", ","] = "."  # the mark before the decimals of a number written as text
    missing: Annotated[tuple[str, ...], BeforeValidator(_as_texts), BeforeValidator(as_list)] = (
        MISSING
    )

    @model_validator(mode="after")
    def _every_event_has_a_time(self) -> "TableMap":
        if not (self.events or self.birth or self.death or self.static):
            raise ValueError("says of no column what it means: name events, birth, death or static")
        if self.time is None and any(event.time is None for event in self.events):
            raise ValueError("an event has no time: give it one, or give the table one")
        if unused := set(self.midnight) - set(self.date_columns()):
            raise ValueError(
                f"midnight names {min(unused)}, which is no column of times of this map"
            )
        return self

    def whens(self) -> list[When]:
        """Every time of the map."""
        stay = [self.encounter.start, self.encounter.end] if self.encounter is not None else []
        times = [self.time, self.birth, self.death, *stay, *(event.time for event in self.events)]
        return [time for time in times if time is not None]

    def date_columns(self) -> list[str]:
        """Columns that hold dates."""
        named = [
            part
            for when in self.whens()
            for part in ([when] if isinstance(when, str) else [when.since, when.before])
        ]
        return list(dict.fromkeys(name for name in named if name is not None and not is_date(name)))

    def sure_columns(self) -> list[str]:
        """Columns of dates in which every cell must be read: of births, deaths, ends, and events that are a date."""
        whens, shared = [self.birth, self.death], [self.time]
        shared += [self.encounter.start, self.encounter.end] if self.encounter is not None else []
        for event in self.events:
            is_alone = event.code_from is None and event.value is None and event.time not in shared
            is_life = any(
                code.startswith(_LIFE) for code in (event.code or "", *event.codes.values())
            )
            whens += [event.time] if is_alone or is_life else []
        return [name for name in self.date_columns() if name in whens]

    def strict_columns(self) -> list[str]:
        """Columns that are refused where a tenth of the cells cannot be read: dates, and `numeric` numbers."""
        names = [event.value for event in self.events if event.numeric]
        return [*self.date_columns(), *(name for name in names if name is not None)]

    def number_columns(self) -> list[str]:
        """Columns that hold numbers."""
        names = [event.value for event in self.events]
        names += [when.column for when in self.whens() if isinstance(when, Elapsed)]
        return list(dict.fromkeys(name for name in names if name is not None))

    def id_columns(self) -> list[str]:
        """Columns that hold ids."""
        return [self.subject, *([self.encounter.id] if self.encounter is not None else [])]

    def code_columns(self) -> list[str]:
        """Columns whose text is a code, or a part of one."""
        return [*self.static, *(event.code_from for event in self.events if event.code_from)]

    def keys(self) -> dict[str, list[str]]:
        """Column → the keys of all `codes` of its events."""
        return {
            name: [key for event in self.events if event.code_from == name for key in event.codes]
            for name in (event.code_from for event in self.events if event.codes)
            if name is not None
        }

    def columns(self) -> list[str]:
        """Every column of the map, each once."""
        groups = (
            self.id_columns(),
            self.code_columns(),
            self.date_columns(),
            self.number_columns(),
            [event.unit_from for event in self.events if event.unit_from],
        )
        return list(dict.fromkeys(name for group in groups for name in group))


class FilesMap(Settings):
    """What the columns of several files mean, each with its own."""

    files: dict[str, TableMap] = Field(min_length=1)  # file name → its map


def load_table_map(path: Path | None) -> dict[str, TableMap]:
    """Read a map: file name → what its columns mean; the name is empty where there is one table.

    Raises:
        EhrseqError: There is none, or it has unknown keys or lacks one.
    """
    if path is None:
        raise EhrseqError(
            "a flat table needs a map",
            fix=f"write what the columns mean into a file, and name it with --map map.yaml; see {_SHOWN}",
        )
    content = read_yaml(path, see=_SHOWN)
    if "files" in content:
        files: FilesMap = validated(FilesMap, content, where=str(path))
        return files.files
    return {"": validated(TableMap, content, where=str(path))}
