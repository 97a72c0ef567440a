"""The task file: for whom, from when, which event, with which competing causes (docs/tasks.md)."""

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from ehrsequencing.config.base import CodeList, Days, Settings, check_date
from ehrsequencing.core.text import UNIT_DAYS, format_days

_NO_CAUSES = ("", "censored", "censoring")  # what labels and tables call the end of follow-up
# a time in a title: 30 days, 1-year, within a year
_WORDS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "five": 5, "six": 6, "ten": 10}
_TIMES = re.compile(
    rf"(?<![^\W\d_])(\d+|{'|'.join(_WORDS)})[ -]?(hour|day|week|month|year|h|d|w|y)s?(?![a-z])",
    re.I,
)
_SAME_TIME = 0.03  # relative: 12 months, a year and 360 days are one horizon


class IndexConfig(Settings):
    """Time zero: exactly one of `code`, `first_visit`, `age`, `date`, `file`."""

    code: CodeList | None = None  # index times are records of one of these codes
    # with code or file: only a subject's first index time, or each of them
    which: Literal["first", "every"] = "first"
    after: Days = 0.0  # with code or file: the index lies so long after it, as in 48h
    first_visit: bool = False  # the index is the end of the first visit
    age: Days | None = None  # the index is the moment of this age, as in 50y
    date: str | None = None  # the index is the midnight that begins this ISO date
    # index times from elsewhere: MEDS labels, an ACES result, or an OHDSI cohort table
    file: str | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "IndexConfig":
        given = [self.code, self.first_visit or None, self.age, self.date, self.file]
        if sum(one is not None for one in given) != 1:
            raise ValueError("give exactly one of code, first_visit, age, date, file")
        if self.code is None and self.file is None and (self.which != "first" or self.after):
            raise ValueError("which and after belong to an index by code or file")
        check_date(self.date)
        return self

    @property
    def moment(self) -> Literal["index", "last"]:
        """When people are usually asked about: at their newest index, or at their last prediction time."""
        return "index" if self.which == "every" else "last"

    @property
    def words(self) -> str:
        """The index in words: `the first ICU_ADMISSION`."""
        if self.first_visit:
            return "the first visit"
        if self.age is not None or self.date is not None:
            return f"age {format_days(self.age)}" if self.age is not None else str(self.date)
        code = " or ".join(self.code or ("index time of the file",))
        start = f"{'each' if self.which == 'every' else 'the first'} {code}"
        return f"{format_days(self.after)} after {start}" if self.after else start


class CensoringConfig(Settings):
    """End of follow-up: the first of a code and of an end by design; none means the subject's last event.

    An end by design (`date`, `age` or `dataset_end`) is known of everybody, also of those who had an event before it.
    """

    code: CodeList | None = None  # follow-up ends at the first of these codes from the index on
    # a period under observation begins at these codes and ends at `code`; an index outside of any is none
    start: CodeList | None = None
    date: str | None = None  # ISO date at which everybody's follow-up ends
    age: Days | None = None  # age at which it ends, as in 80y; at the data's end if that is earlier
    dataset_end: bool = False  # it ends at the last time stamp of the data set

    @model_validator(mode="after")
    def _one_kind(self) -> "CensoringConfig":
        if sum([self.date is not None, self.age is not None, self.dataset_end]) > 1:
            raise ValueError(
                "give at most one of date, age, dataset_end; a code may stand beside it"
            )
        if self.start is not None and self.code is None:
            raise ValueError("start belongs to a code: name the end of a period in code")
        check_date(self.date)
        return self

    @property
    def is_last_event(self) -> bool:
        """Whether nothing says when follow-up ends, so that the subject's last event ends it."""
        return self == CensoringConfig()


class HistoryCode(Settings):
    """Codes that an index must, or must not, have in the time before it (its own instant included)."""

    code: CodeList  # one code pattern or a list; any of them counts
    within: Days | None = None  # before the index; none = ever, codes without a time included
    count: int = Field(default=1, ge=1)  # so many events at least


def _as_history(value: object) -> object:
    """A code, or a list of codes and mappings, as a list of mappings."""
    items = [value] if isinstance(value, str | dict) else value
    if not isinstance(items, list | tuple):
        return items
    return [{"code": item} if isinstance(item, str | list) else item for item in items]


HistoryCodes = Annotated[tuple[HistoryCode, ...], BeforeValidator(_as_history)]


class EligibilityConfig(Settings):
    """Who may enter, by what is known at each index; an index that fails is no index."""

    history: Days = 0.0  # least time from the record's first event (birth apart) to the index
    min_age: Days | None = None  # at the index; unknown age is not eligible
    max_age: Days | None = None  # younger than this
    must_have: HistoryCodes = ()  # each of them
    must_not_have: HistoryCodes = ()  # none of them

    @model_validator(mode="after")
    def _rising(self) -> "EligibilityConfig":
        if self.min_age is not None and self.max_age is not None and self.min_age >= self.max_age:
            raise ValueError("min_age must be below max_age")
        return self


class OutcomesConfig(Settings):
    """Many codes, each predicted by itself: its first record. The task's causes end every exposure."""

    codes: CodeList  # patterns; every code that matches is predicted by itself
    # Codes with an event in fewer training subjects are left out. Their hazards are stored with the run.
    min_subjects: int = Field(default=100, ge=5)


class DeathsConfig(Settings):
    """What deaths mean that the records leave open."""

    # of people known to be dead without a date: dead at their last sign of life, or censored there; none: dead there,
    # and refused where they are more than a twentieth of the deaths
    undated: Literal["at_last_sign", "censor"] | None = None
    # a death that its person outlived by over 60 days, on two days or more
    doubtful: Literal["drop", "keep"] = "drop"


class TaskConfig(Settings):
    """A question: for whom, from when, which event, with which competing causes (docs/tasks.md)."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")  # of the task, in files and tables
    index: IndexConfig  # time zero of each subject
    outcome: dict[str, CodeList] = Field(min_length=1)  # the cause of interest first
    # what reports are called, such as "Death within a year after intensive care"; none: the name
    title: str | None = Field(default=None, min_length=1, max_length=120)
    # name → codes of other events that end the time at risk, such as death
    competing: dict[str, CodeList] = Field(default_factory=dict)
    censoring: CensoringConfig = CensoringConfig()  # when follow-up ends
    # times after a prediction time by which risk is reported, as in [1y, 5y]
    horizons: tuple[Days, ...] = Field(min_length=1)
    # the horizon of every headline; none: the one that the title names, else that with the most events
    main: Days | None = None
    # times since the index at which models are compared
    landmarks: tuple[Days, ...] = Field(default=(0.0,), min_length=1)
    # outcomes within this time after a prediction time do not count
    blanking: Days = 0.0
    eligibility: EligibilityConfig | None = None  # who may enter; null: everybody with an index
    deaths: DeathsConfig = DeathsConfig()  # those without a date, or in doubt
    # also predict every one of these codes (docs/outcomes.md)
    outcomes: OutcomesConfig | None = None
    # a move from one hospital to another is no discharge and no admission; false: each stay counts by itself
    episodes: bool = True
    # a cause dated by the day, on the day of an index with a clock, came before it or after it; exclude: nobody's
    # first day counts; none: by the time stamps, with a warning where that matters
    same_day: Literal["before", "after", "exclude"] | None = None
    recurrent: bool = False  # outcomes recur: labels tell the next one after each prediction time

    @model_validator(mode="after")
    def _consistent(self) -> "TaskConfig":
        if set(self.outcome) & set(self.competing):
            raise ValueError("a cause cannot be both outcome and competing")
        if min(self.horizons) <= 0 or list(self.horizons) != sorted(set(self.horizons)):
            raise ValueError("horizons must be positive and rising")
        if self.main is not None and self.main not in self.horizons:
            raise ValueError("main must be one of the horizons")
        if list(self.landmarks) != sorted(set(self.landmarks)):
            raise ValueError("landmarks must be rising and not negative")
        if self.blanking >= self.horizons[0]:
            raise ValueError(
                f"blanking={format_days(self.blanking)} must be below every horizon, and one is "
                f"{format_days(self.horizons[0])}: no event can be seen before it"
            )
        for name in self.causes:
            if name.strip().lower() in _NO_CAUSES or not name.isprintable():
                raise ValueError(
                    f"{name!r} cannot name a cause: choose another name under outcome or competing"
                )
        if self.outcomes is not None and (self.recurrent or self.index.which == "every"):
            raise ValueError(
                "outcomes needs causes that end a record: leave recurrent and index.which=every out"
            )
        return self

    @property
    def heading(self) -> str:
        """The title; the name where the task has none."""
        return self.title or self.name

    @property
    def main_horizon(self) -> float | None:
        """The horizon that `main` or the title names; None where neither does."""
        units = {**UNIT_DAYS, "m": UNIT_DAYS["y"] / 12}
        for number, unit in _TIMES.findall("" if self.main else self.heading):
            days = float(_WORDS.get(number.lower(), number)) * units[unit[0].lower()]
            named = [one for one in self.horizons if abs(one - days) <= _SAME_TIME * days]
            if named:
                return named[0]
        return self.main

    @property
    def causes(self) -> tuple[str, ...]:
        """Names of all causes; cause k of the labels is `causes[k - 1]`."""
        return (*self.outcome, *self.competing)

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        """Code patterns of each cause, in order."""
        return {**self.outcome, **self.competing}
