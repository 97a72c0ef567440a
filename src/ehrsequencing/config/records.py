"""Settings of `prepare`: visits, numbers, vocabulary, splits, and how a data set's files differ from MEDS."""

from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    model_validator,
)

from ehrsequencing.config.base import Days, Settings, TimeZone, as_list, check_date


def _refuse_of_others(section: Any, name: str, **owners: str) -> None:
    """Refuse a setting that only another `by` would use: whoever gives it believes that it does something."""
    for setting, by in owners.items():
        if (
            by != section.by
            and getattr(section, setting) != type(section).model_fields[setting].default
        ):
            key = setting.removesuffix("_date")
            raise ValueError(f"{name}.{key} is for {name}.by={by}, and {name}.by is {section.by}")


class VisitsConfig(Settings):
    """How events are grouped into visits."""

    # what makes a visit: a calendar day, a window of fixed length, events without a gap, or an encounter of the data
    by: Literal["day", "window", "gap", "encounter"] = "day"
    window: Days = Field(
        default=1 / 24, gt=0
    )  # by=window: length of the window, aligned to midnight
    gap: Days = Field(default=1.0, gt=0)  # by=gap: so long without an event starts a new visit
    column: str = "hadm_id"  # by=encounter: the column that names the encounter
    ignore: tuple[str, ...] = ()  # code patterns that make no token, no visit and no visit end
    # last: what is dated by the day (00:00:00) stands at its end; a task with same_day: after sets it
    dates: Literal["as_given", "last"] = "as_given"

    @model_validator(mode="after")
    def _of_one_rule(self) -> "VisitsConfig":
        _refuse_of_others(self, "visits", window="window", gap="gap", column="encounter")
        return self


class ValuesConfig(Settings):
    """How numeric values become model inputs."""

    # polynomial and interpolate add to the code's vector; bins: a token such as LAB//Na//Q3; none: numbers are not used
    mode: Literal["polynomial", "interpolate", "bins", "none"] = "polynomial"
    bins: int = Field(default=5, ge=2, le=50)  # mode=bins: number of quantile bins of each code
    # numbers that mean that there is none, such as 9999, whatever the code
    missing: tuple[float, ...] = ()
    # join: a unit's spellings (K/uL, 10*9/L) are one code
    units: Literal["as_written", "join"] = "as_written"
    carry: bool = True  # queries carry summaries of past values of each numeric code


def _from_switch(value: object) -> object:
    # YAML's on and off
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


class VocabularyConfig(Settings):
    """Which codes get their own token."""

    # a code needs so many training subjects to get its own token
    min_subjects: int = Field(default=11, ge=1)
    # on: rare codes are replaced by their nearest frequent ancestor of the ontology (`parent_codes`)
    rollup: Annotated[Literal["off", "on"], BeforeValidator(_from_switch)] = "off"


class SplitsConfig(Settings):
    """How subjects are split. `file` falls back to the folders of shards, then to `hash`."""

    # the data set's own splits, a hash of the subject id, the day of the index, or the site
    by: Literal["file", "hash", "date", "site"] = "file"
    # share of subjects to train on; by=date and by=site: train and tuning divide those who are not held out
    train: float = Field(default=0.70, gt=0, lt=1)
    # share of subjects for early stopping and recalibration; by=hash: the rest is held out
    tuning: float = Field(default=0.15, gt=0, lt=1)
    seed: int = 0  # of the hash: other seeds give independent splits
    # by=date, also written `from`: whose index falls on it or later is held out
    from_date: str | None = Field(None, validation_alias=AliasChoices("from", "from_date"))
    column: str | None = None  # by=site: column of the data that names the site of each row
    held_out_sites: Annotated[tuple[str, ...], BeforeValidator(as_list)] | None = None  # by=site

    @model_validator(mode="after")
    def _complete(self) -> "SplitsConfig":
        if self.by == "date" and self.from_date is None:
            raise ValueError("splits.by=date needs splits.from, as in splits.from=2015-01-01")
        if self.by == "site" and not (self.column and self.held_out_sites):
            raise ValueError(
                "splits.by=site needs splits.column and splits.held_out_sites, as in [north]"
            )
        check_date(self.from_date)
        _refuse_of_others(self, "splits", from_date="date", column="site", held_out_sites="site")
        if self.by == "hash" and self.train + self.tuning >= 1:
            raise ValueError(
                "splits.train and splits.tuning leave nobody to hold out; let their sum be below 1"
            )
        return self


# codes; one that ends with * is a prefix
NameList = Annotated[tuple[str, ...], BeforeValidator(as_list)]


class DialectConfig(Settings):
    """How a data set's files differ from MEDS 0.4: names of columns, other names of codes, a time zone."""

    subject_id: str = "subject_id"  # the column that holds it
    time: str = "time"  # the column that holds it
    code: str = "code"  # the column that holds it
    numeric_value: str = "numeric_value"  # the column that holds it
    # also MEDS_BIRTH itself
    birth: NameList = (
        "MEDS_BIRTH//*",
        "BIRTH",
        "DATE_OF_BIRTH",
        "DOB",
        "SNOMED/184099003",
    )
    # also MEDS_DEATH itself
    death: NameList = (
        "MEDS_DEATH//*",
        "DEATH",
        "DATE_OF_DEATH",
        "DOD",
        "SNOMED/419620001",
    )
    time_zone: TimeZone | None = None  # clock of the hospital, for times with a zone: Europe/Berlin

    @model_validator(mode="after")
    def _consistent(self) -> "DialectConfig":
        columns = (self.subject_id, self.time, self.code, self.numeric_value)
        if len(set(columns)) < len(columns):
            raise ValueError("two parts of a row have the same column")
        if set(self.birth) & set(self.death):
            raise ValueError("a code cannot mean both birth and death")
        return self


class DataConfig(Settings):
    """Facts about the data set that are not in its files."""

    extracted: str | None = None  # ISO date of extraction: later events are refused
    # written as the section `dialect:` of a study file; None: MEDS as it is
    dialect: DialectConfig | None = None
