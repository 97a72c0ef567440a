"""`from_table`: a flat table with columns that change over time → a MEDS data set and a task."""

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from ehrsequencing.api.data import as_table, task_of
from ehrsequencing.config import TaskConfig
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.core.elsewhere import right_way
from ehrsequencing.core.errors import NO_HEADER, EhrseqError, looks_like_header
from ehrsequencing.core.files import private_folder
from ehrsequencing.core.text import DAYS_PER_YEAR, UNIT_DAYS, days_of

_ORIGIN = pd.Timestamp("2000-01-01")  # day 0 of times that are numbers
_UNIT_DAYS = UNIT_DAYS | {"month": DAYS_PER_YEAR / 12}
_LONGEST_DAYS = 50_000  # from the origin, either way
_FEW_DAYS = 10  # numbers that all lie below it are more likely years
_OLDEST_YEARS = 120
# Values of the column of events, in lower case; true is 1 and false is 0.
_CENSORED = (
    *(0, "no", "n", "none", "no event", "alive", "living", "censored", "censoring"),
    *("right censored", "right-censored", "right_censored"),
)
_EVENTS = (1, "yes", "y", "event", "dead", "died", "death", "deceased")
_MOST_VALUES = 10  # more of them are a measurement or free text, which may show a person
# Columns that are added to the table: what a row holds is known at its time, its event happens at its stop.
SUBJECT, START, STOP, _BIRTH, _CODE = "_subject", "_time", "_stop", "_birth", "_code"


def from_table(
    frame: Any,
    *,
    subject: str,
    time: str,
    event: str | Mapping[Any, Any],
    out: str | os.PathLike[str],
    start: str | None = None,
    interest: Any = None,
    unit: str | None = None,
    static: str | Sequence[str] = (),
    age: str | None = None,
    birth: str | None = None,
    horizons: Sequence[str | float] | None = None,
    overwrite: bool = False,
) -> tuple[Path, TaskConfig]:
    """Turn a flat table into a MEDS data set and a task: one row a subject, or one row for each of its times.

    What a row holds is known at its `start`: by default at its `time`, and in a table with one row a subject at day 0.
    Its event happens at its `time`, and follow-up ends at the subject's last `time`. A row whose start is its time
    counts, too: at one moment, the event comes first. The task asks for the time from a subject's first start to its
    first event, in days; a subject with an event at its first start is left out.

    Numbers become values of their column's code at the row's start. Texts, booleans and categories become codes
    (`COLUMN//TEXT`) at the row's start; in tables in which somebody has two rows they become static codes, without a
    time, if they are the same in all rows of each subject, the first one included.

    Args:
        frame: A frame of pandas, polars or Arrow, its rows in any order.
        subject: The column that says whose row it is.
        time: The column of times: dates, or numbers, as in days since a subject's diagnosis.
        event: The column of events. In it 0, false, an empty cell, `no`, `none`, `no event`, `alive`, `living`,
            `censored`, `censoring` and `right censored` are censoring; 1, true, `yes`, `event`, `dead`, `died`, `death`
            and `deceased` are the event. Where it holds anything else, or two of these events, say what it means:
            `{"status": {2: "death", 1: "transplant"}}` names the column and its events, that of interest first, and
            any other value is censoring. Without the column, `{2: "death", 1: "transplant"}`, it is `status`. Events
            compete.
        out: Folder to make.
        start: The column of times at which each row begins, as in tables with start and stop.
        interest: The event of interest, by its value or name. In the place of names, it says that all other values are
            events that compete with it, where some rows are censored by a value or word above.
        unit: Of times that are numbers: `s`, `min`, `h`, `d` (default), `w`, `month` (30.4375 d) or `y` (365.25 d).
        static: Columns that become static codes, such as a sex of 1 or 2.
        age: The column of ages in years; the first row's gives the birth: its start - age · 365.25 d.
        birth: The column of dates of birth, in the place of ages, where times are dates.
        horizons: As in `["90d", "1y"]`; default: the quartiles of the times to the event of interest.
        overwrite: Whether an earlier table there that nobody has changed is replaced.

    Returns:
        The folder and the task, for `prepare`, `check`, `run` and `EHRSurvival`.

    Raises:
        EhrseqError: A column is missing, or does not hold what its argument says; the values of the column of events
            have no certain meaning, or nobody has the event; rows start after their time; a column of `static` changes.

    Warns:
        UserWarning: Rows have no subject or no time and are left out; rows of one person overlap; cells of the column
            of events are empty beside ones that mean censoring; nobody is censored; times may be years.

    Example:
        >>> import pandas as pd
        >>> import ehrsequencing as eh
        >>> days = [(who, day) for who in range(80) for day in (0, 30, 90)]
        >>> rows = [(who, day, who % 7 + day / 100, int(day == 90 and who % 2)) for who, day in days]
        >>> frame = pd.DataFrame(rows, columns=["id", "day", "bilirubin", "died"])
        >>> data, task = eh.from_table(frame, subject="id", time="day", event="died", out="flat")
        >>> task.name, task.causes, task.horizons
        ('died', ('died',), (90.0,))
    """
    static = [static] if isinstance(static, str) else static
    used = [name for name in (start, age, birth) if name is not None]
    whole, table, happened, causes = read_rows(
        frame,
        subject=subject,
        time=time,
        event=event,
        start=start,
        interest=interest,
        unit=unit,
        named=[*used, *static],
    )
    event = str(happened.name)
    table[_BIRTH] = _births(table, age=age, birth=birth)
    measured = table.drop(columns=[*{subject, time, event, *used}, SUBJECT, START, STOP, _BIRTH])
    constant = _constant_columns(measured, table[SUBJECT], named=static)
    marks = [
        _marks(table, START, "ENROLLMENT", "min"),
        _marks(table, STOP, "END_OF_FOLLOWUP", "max"),
        *(_marks(table[happened == name], STOP, f"EVENT//{name}", "min") for name in causes),
    ]
    rows = pd.concat([table[[SUBJECT, START, _BIRTH]].join(measured), *marks], ignore_index=True)
    has_clock = is_numeric_dtype(whole[time]) and (rows[START] != rows[START].dt.floor("D")).any()
    numbers = measured.select_dtypes("number").columns
    events = [
        {"code": name, "value" if name in numbers else "code_from": name}
        for name in measured
        if name not in constant
    ]
    columns = {
        "subject": SUBJECT,
        "time": START,
        "birth": _BIRTH,
        "static": {name: name for name in constant},
        "events": [{"code_from": _CODE}, *events],
        "midnight": [START] if has_clock else [],
    }
    from ehrsequencing.api.records import import_csv  # which a run that is loaded need not load

    with private_folder() as folder:
        rows.to_parquet(folder / "table.parquet", index=False)
        import_csv(folder / "table.parquet", out, map=columns, overwrite=overwrite, progress=False)
    if horizons is None:
        # quartiles of the days from the first start to the first event, in whole days
        first = table[happened == causes[0]].groupby(SUBJECT)[STOP].min()
        wait = (first - table.groupby(SUBJECT)[START].min()) / pd.Timedelta(days=1)
        horizons = sorted({*np.ceil(wait.quantile([0.25, 0.5, 0.75])).clip(lower=1.0)})
    of_cause = {name: f"EVENT//{name}" for name in causes}
    task = {
        "name": "".join(c if c.isalnum() else "_" for c in event).strip("_") or "event",
        "index": {"code": "ENROLLMENT"},
        "outcome": {causes[0]: of_cause.pop(causes[0])},
        "competing": of_cause,
        "censoring": {"code": "END_OF_FOLLOWUP"},
        "horizons": days_of(horizons),
    }
    for doubt in _doubts(table, happened, table[event], whole[time], unit=unit):
        warnings.warn(doubt, stacklevel=3)
    return Path(out), task_of(task)


def read_rows(
    frame: Any,
    *,
    subject: str,
    time: str,
    event: str | Mapping[Any, Any],
    start: str | None,
    interest: Any,
    unit: str | None,
    named: Sequence[str],
) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series, list[str]]:
    """Read a flat table.

    Args:
        frame: As of `from_table`, as are the arguments up to `unit`.
        subject: The column of subjects.
        time: The column of times.
        event: The column of events.
        start: The column of starts.
        interest: The event of interest.
        unit: Of times that are numbers.
        named: The other columns that it must have.

    Returns:
        The table; its rows that have a subject and times, in order of them, with these as columns of their own; the
        cause of each row's event, missing without one, called as the column of events; all causes.
    """
    is_pandas = isinstance(frame, pd.DataFrame)  # whose columns may mix numbers and texts
    whole = (frame if is_pandas else as_table(frame).to_pandas()).rename(columns=str)
    if isinstance(event, Mapping) and not isinstance(next(iter(event.values()), None), Mapping):
        event = {"status": event}
    event, given = (event, None) if isinstance(event, str) else next(iter(event.items()))
    for name in (subject, time, event, *named):
        near = ", ".join(get_close_matches(name, whole.columns) or whole.columns)
        known = f"name one of {near}" if looks_like_header(whole.columns) else NO_HEADER
        fix = right_way("terms", name) or known
        _require(name in whole, f"there is no column {name!r}", fix=fix)
    elapsed = is_numeric_dtype(whole[time])
    _require(
        unit is None or (elapsed and unit in _UNIT_DAYS),
        f"unit={unit!r} does not fit {time!r}",
        fix=f"write one of {', '.join(_UNIT_DAYS)} for numbers (m could be minutes or months), and none for dates",
    )
    _require(
        start is None or is_numeric_dtype(whole[start]) == elapsed,
        f"of {start!r} and {time!r} one holds numbers and the other dates",
        fix="give both as numbers, or both as dates",
    )
    stop = _moments(whole[time], unit)
    begin = stop if start is None else _moments(whole[start], unit)
    table = whole.assign(**{SUBJECT: whole[subject], START: begin, STOP: stop})
    table = table.dropna(subset=[SUBJECT, START, STOP])
    _require(
        len(table),
        f"no row has a subject and a time in {time!r}",
        fix="give numbers, or dates such as 2020-12-31: see pd.to_numeric and pd.to_datetime",
    )
    if start is None and table[SUBJECT].is_unique:
        fix = "name the column of the beginning with start="
        _require(elapsed, "one row a subject needs a beginning", fix=fix)
        table[START] = _ORIGIN
    late = int((table[START] > table[STOP]).sum())
    fix = "correct them: a row is known at its start, and its event happens later"
    _require(not late, f"{late:,} rows have {time!r} before {start or 'day 0'!r}", fix=fix)
    table = table.sort_values([SUBJECT, START, STOP], ignore_index=True)
    return whole, table, *_read_events(table[event], given, interest)


def _require(met: Any, what: str, *, fix: str) -> None:
    """Refuse the table unless a condition is met."""
    if not met:
        raise EhrseqError(what, where="frame", fix=fix)


# --------------------------------------------------------------------------------------------- times


def _moments(column: pd.Series, unit: str | None) -> pd.Series:
    """Dates as they are, numbers counted from the origin; missing where a cell cannot be read."""
    if is_numeric_dtype(column):
        days = column.astype("float64") * _UNIT_DAYS[unit or "d"]
        days = days.where(days.abs() < _LONGEST_DAYS)
        return _ORIGIN + pd.to_timedelta(days, unit="D").dt.round("s")
    return pd.to_datetime(column, format="ISO8601", errors="coerce").dt.tz_localize(None)


def _births(table: pd.DataFrame, *, age: str | None, birth: str | None) -> pd.Series:
    """The date of birth in each row that gives one; an age gives it in the subject's first row only."""
    column = birth or age
    if column is None:
        return pd.Series(pd.NaT, index=table.index)
    years = pd.to_numeric(table[column], errors="coerce")
    days = years.where(years.between(0, _OLDEST_YEARS)) * DAYS_PER_YEAR
    born = (table[START] - pd.to_timedelta(days, unit="D")).dt.floor("D")
    if birth is not None:
        born = _moments(table[column].astype(object), None)
    strange = int((table[column].notna() & born.isna()).sum())
    _require(
        not strange and (age is None or birth is None),
        f"{strange:,} rows of {column!r} do not say when a person was born",
        fix=f"give ages of 0 to {_OLDEST_YEARS} years with age=, or dates with birth=; leave unknown ones empty",
    )
    return born if birth is not None else born.where(~table[SUBJECT].duplicated())


# -------------------------------------------------------------------------------------------- events


def _value(cell: Any) -> Any:
    """A value of the column of events in one form: 2, 2.0 and "2" are alike, and so are true, "True" and 1."""
    text = "" if pd.isna(cell) else str(cell).strip().casefold()
    text = {"true": "1", "false": "0"}.get(text, text)
    return int(float(text)) if re.fullmatch(r"-?\d{1,9}(\.0*)?", text) else text or None


def _read_events(
    cells: pd.Series, given: Mapping[Any, Any] | None, interest: Any
) -> tuple[pd.Series, list[str]]:
    """The cause of each row's event, missing where there is none, and all causes, that of interest first.

    Args:
        cells: The column of events.
        given: Value → cause; a value that is not named is censoring. None: the values must say it.
        interest: The value or the cause of interest.
    """
    values = pd.Series(map(_value, cells), index=cells.index, dtype=object, name=cells.name)
    present = list(values.value_counts().index)
    events = [value for value in present if value not in _CENSORED]
    number = f"{cells.name}_"
    names = {v: v if isinstance(v, str) else f"{number}{v}".removesuffix("_1") for v in events}
    column, counts, few = values.name, values.value_counts(), f"<{SMALLEST_COUNT}"
    each = [f"{v!r} ({n if n >= SMALLEST_COUNT else few} rows)" for v, n in counts.items()]
    shown = f"{column!r} has the values {', '.join(each)}"
    fix = (
        f"write event={ {column: dict(names) or {1: 'death'}} }, the event of interest first; a value that is left out "
        f"is censored"
    )
    if len(counts) > _MOST_VALUES:
        shown = f"{column!r} has {len(counts):,} different values"
        fix = "name a column of a few values, such as 0 and 1"
    elif set(counts.index) == {1, 2}:
        one, both = {column: {2: "death"}}, {column: {2: "death", 1: "transplant"}}
        fix = f"write event={one} if 1 is censored, as in R's survival data, or event={both} if 1 competes"
    elif 0 < len(names) < len(counts):
        fix = f"{fix}; or interest={next(iter(names))!r} if each of these is an event"
    if given is None:
        usual = len(events) < 2 and set(events) <= set(_EVENTS)
        someone_is_censored = len(events) < values.nunique(dropna=False)
        is_clear = usual or (interest is not None and someone_is_censored)
        _require(is_clear, f"{shown}: which of them are events?", fix=fix)
        given = names
    causes = {_value(value): str(cause) for value, cause in given.items()}
    _require(causes.keys() <= set(present), f"{shown}, and event= names another one", fix=fix)
    causes = {value: cause for value, cause in causes.items() if _value(cause) not in _CENSORED}
    first = [cause for value, cause in causes.items() if _value(interest) in (value, _value(cause))]
    _require(causes and (first or interest is None), f"{shown}: nobody has the event", fix=fix)
    return values.map(causes), list(dict.fromkeys([*first, *causes.values()]))


def _doubts(
    table: pd.DataFrame, happened: pd.Series, cells: pd.Series, time: pd.Series, *, unit: str | None
) -> list[str]:
    """What to check in a table that can be read: `cells` is its column of events, `time` that of times in all rows."""
    lost, subjects = len(time) - len(table), table[SUBJECT].nunique()
    reached = table.groupby(SUBJECT)[STOP].cummax().groupby(table[SUBJECT]).shift()
    overlapping = table[SUBJECT][table[START] < reached].nunique()
    empty = int(cells.isna().sum()) if (cells.notna() & happened.isna()).any() else 0
    short = unit is None and is_numeric_dtype(time) and time.max() < _FEW_DAYS
    doubts = {
        f"{lost:,} rows without a subject or a time are left out": lost,
        f"rows of {overlapping:,} people overlap: one starts before the last one ends": overlapping,
        f"{empty:,} rows have nothing in {cells.name!r} and count as rows without an event": empty,
        "nobody is censored: every subject has an event": (
            table[SUBJECT][happened.notna()].nunique() == subjects
        ),
        f"all of {time.name!r} is below {_FEW_DAYS} days: write unit='y' for years, or 'd'": short,
    }
    return [doubt for doubt, is_so in doubts.items() if is_so]


# ------------------------------------------------------------------------------------------- columns


def _constant_columns(
    measured: pd.DataFrame, subject: pd.Series, *, named: Sequence[str]
) -> list[str]:
    """The columns that become static codes: named ones, and where a subject has two rows those of constant texts.

    A text must be there in each subject's first row: what is filled in later was not known before.
    """
    known, again = measured.notna(), subject.duplicated()
    changing = (measured.groupby(subject).nunique() > 1).sum()
    from_first_row = known[~again].sum() == known.groupby(subject).any().sum()
    wrong = [name for name in named if changing.get(name, True)]
    fix = "leave out what changes, which is read at each row, and what another argument names"
    _require(not wrong, f"static={wrong} is not the same in all rows of each subject", fix=fix)
    texts = measured.select_dtypes(exclude=["number", "datetime", "datetimetz"])
    constant = [str(name) for name in texts if not changing[name] and from_first_row[name]]
    return list(dict.fromkeys([*named, *(constant if again.any() else ())]))


def _marks(table: pd.DataFrame, time: str, code: str, which: str) -> pd.DataFrame:
    """One row a subject: a code at its first or its last time (min, max)."""
    times = table.groupby(SUBJECT)[time].agg(which)
    return pd.DataFrame({SUBJECT: times.index, START: times.to_numpy(), _CODE: code})
