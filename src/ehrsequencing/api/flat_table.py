"""`from_table`: a flat table with columns that change over time → a MEDS data set and a task."""

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from ehrsequencing.api.data import as_table, task_of
from ehrsequencing.api.predictions import days_of
from ehrsequencing.api.records import import_csv
from ehrsequencing.config import TaskConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import private_folder

_ORIGIN = "2000-01-01"  # day 0 of times that are numbers
_NO_EVENT = ("0", "0.0", "false", "none", "no", "alive", "censored", "")
_SUBJECT, _TIME, _CODE = "_subject", "_time", "_code"  # columns that are added to the table


def from_table(
    frame: Any,
    *,
    subject: str,
    time: str,
    event: str,
    out: str | os.PathLike[str],
    start: str | None = None,
    interest: str | None = None,
    horizons: Sequence[str | float] | None = None,
    overwrite: bool = False,
) -> tuple[Path, TaskConfig]:
    """Turn a flat table into a MEDS data set and a task: one row a subject, or one row for each of its times.

    What a row measures is known at its `start`: by default at its `time`, and in a table with one row a subject at day
    0. An event happens at the `time` of its row, and follow-up ends at the subject's last `time`. The task asks for the
    time from the first measurement to the first event.

    Args:
        frame: A frame of pandas, polars or Arrow.
        subject: The column that says whose row it is.
        time: The column of times: dates, or numbers of days.
        event: The column of events: 0 (or `censored`, `alive`, or nothing) for none; 1, or any other text, is the event
            of interest. Where there are several, they compete.
        out: Folder to make.
        start: The column of times at which the row was measured, as in tables with start and stop.
        interest: Which of several events is of interest; default: 1, or the most frequent text.
        horizons: As in `["90d", "1y"]`; default: the quartiles of the times to the event of interest.
        overwrite: Whether an earlier table there that nobody has changed is replaced.

    Returns:
        The folder and the task, for `prepare`, `check`, `run` and `EHRSurvival`.

    Raises:
        EhrseqError: A column is missing, or nobody has an event.

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
    table = as_table(frame).to_pandas()
    for name in filter(None, (subject, time, event, start)):
        _require_column(table, name)
    table = table.dropna(subset=[subject, time])
    names = _event_names(table[event], event)
    frequent = list(names.dropna().value_counts().index)
    causes = sorted(frequent, key=lambda name: (name != interest, name != event))
    if not causes or (interest is not None and interest != causes[0]):
        fix = f"its events are {', '.join(causes) or 'none'}"
        raise EhrseqError(f"nobody has the event in {event!r}", where="from_table", fix=fix)
    measured = _measured(table, subject=subject, time=time, start=start)
    covariates = table.drop(columns=[subject, time, event, *([start] if start else [])])
    marks = [
        _marks(table[subject], measured, "ENROLLMENT", first=True),
        _marks(table[subject], table[time], "END_OF_FOLLOWUP", first=False),
    ]
    for name in causes:
        has_it = table[names == name]
        marks.append(_marks(has_it[subject], has_it[time], f"EVENT//{name}", first=True))
    rows = covariates.assign(**{_SUBJECT: table[subject], _TIME: measured})
    elapsed: Any = {"column": _TIME, "unit": "d", "since": _ORIGIN}
    columns = {
        "subject": _SUBJECT,
        "time": elapsed if is_numeric_dtype(table[time]) else _TIME,
        "events": [{"code_from": _CODE}, *(_event_map(covariates[name]) for name in covariates)],
    }
    with private_folder() as folder:
        file = folder / "table.parquet"
        pd.concat([rows, *marks], ignore_index=True).to_parquet(file, index=False)
        import_csv(file, out, map=columns, overwrite=overwrite, progress=False)
    if horizons is None:
        horizons = _quartiles(table[subject], measured, table[time], names == causes[0])
    of_cause = {name: f"EVENT//{name}" for name in causes}
    task = {
        "name": "".join(c if c.isalnum() else "_" for c in event).strip("_") or "event",
        "index": {"code": "ENROLLMENT"},
        "outcome": {causes[0]: of_cause.pop(causes[0])},
        "competing": of_cause,
        "censoring": {"code": "END_OF_FOLLOWUP"},
        "horizons": days_of(horizons),
    }
    return Path(out), task_of(task)


def _require_column(table: pd.DataFrame, name: str) -> None:
    if name not in table.columns:
        near = get_close_matches(name, list(table.columns), n=1) or list(table.columns)
        what = f"the frame has no column {name!r}"
        raise EhrseqError(what, where="from_table", fix=f"name one of {', '.join(near)}")


def _measured(table: pd.DataFrame, *, subject: str, time: str, start: str | None) -> pd.Series:
    """When each row was measured: at its start, at day 0 in a table with one row a subject, else at its time."""
    if start is not None:
        return table[start]
    if not table[subject].is_unique:
        return table[time]
    if not is_numeric_dtype(table[time]):
        fix = "name the column of the beginning with start="
        raise EhrseqError("one row a subject needs a beginning", where="from_table", fix=fix)
    return table[time] * 0


def _event_names(column: pd.Series, name: str) -> pd.Series:
    """The event of each row, missing where there is none; the number 2 becomes NAME_2."""
    if is_numeric_dtype(column):
        named = column.map(lambda value: name if value == 1 else f"{name}_{value:g}")
        return named.where(column.fillna(0) != 0)
    text = column.astype("string")
    return text.where(~text.fillna("").str.lower().isin(_NO_EVENT))


def _marks(subject: pd.Series, time: pd.Series, code: str, *, first: bool) -> pd.DataFrame:
    """One row a subject: a code at its first or its last time."""
    times = time.groupby(subject).agg("min" if first else "max")
    return pd.DataFrame({_SUBJECT: times.index, _TIME: times.to_numpy(), _CODE: code})


def _event_map(column: pd.Series) -> dict[str, str]:
    """How a covariate is read: a number as a value, anything else as a code of its own."""
    name = str(column.name)
    if is_numeric_dtype(column) and not is_bool_dtype(column):
        return {"code": name, "value": name}
    return {"code": name, "code_from": name}


def _quartiles(
    subject: pd.Series, measured: pd.Series, time: pd.Series, has_event: pd.Series
) -> list[float]:
    """Quartiles of the days from the first measurement to the first event, in whole days."""
    wait = time[has_event].groupby(subject[has_event]).min() - measured.groupby(subject).min()
    if not is_numeric_dtype(wait):
        wait = wait / pd.Timedelta(days=1)
    days = np.unique(np.maximum(np.ceil(np.nanquantile(wait, [0.25, 0.5, 0.75])), 1.0))
    return [float(day) for day in days]
