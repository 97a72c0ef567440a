"""`cox` and `run.cox`: what goes along with a risk, for a paper.

Rows of a regression are spells: a subject is at risk from a start to a stop, with the last value of each covariate
before the start.
"""

import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from ehrsequencing.api.data import events_table, meds_folder
from ehrsequencing.api.flat_table import START, STOP, SUBJECT, read_rows
from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.elsewhere import right_way
from ehrsequencing.core.errors import EhrseqError, refuse_idle, refuse_unknown
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.cox import CoxRows
from ehrsequencing.predictors.unpenalised_cox import fit_cox
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.meds import MedsReader
from ehrsequencing.records.prepare import require_made_of

_CAUSE, _ZERO = "_cause", "_zero"  # columns: of the event at a spell's stop; when its clock starts
_CLOCK = ["subject_id", "index_time"]  # of a run's people: one for each index
_DAY = pd.Timedelta(days=1)
_LONG_AGO = pd.Timestamp("1678-01-01")  # of codes without a time
_SEX = {"sex": ("sex", "gender"), "gender": ("gender", "sex")}  # two names of one covariate


def cox(
    frame: Any,
    *,
    subject: str,
    time: str,
    event: str | Mapping[Any, Any],
    covariates: str | Sequence[str],
    start: str | None = None,
    interest: Any = None,
    unit: str | None = None,
    cause: str | None = None,
    units: Mapping[str, float] | None = None,
    log: str | Sequence[str] = (),
    ties: str = "efron",
) -> pd.DataFrame:
    """Cox regression of a flat table, as R's `coxph(Surv(start, stop, event) ~ …, cluster = subject)`.

    A row's covariates are known at its `start`, and without that column at its `time`: then a row counts until the
    subject's next one. A cell that is empty has the subject's last value; rows before the first value are left out.
    Other events end a subject's rows (cause-specific hazards). Numbers are the clock itself; dates count from the
    subject's first row.

    Args:
        frame: A frame of pandas, polars or Arrow, its rows in any order.
        subject: As of `from_table`, as are `time`, `event`, `start`, `interest` and `unit`.
        time: The column of times.
        event: The column of events.
        covariates: Columns; texts are compared with their first level in the order of the alphabet, categories
            with their own first one.
        start: The column of times at which each row begins.
        interest: The event of interest.
        unit: Of times that are numbers.
        cause: Of which event; default: the one of interest.
        units: Covariate → how much of it one hazard ratio is about, as in `{"age": 10}`; default: 1.
        log: Covariates of which the natural logarithm counts.
        ties: `efron` or `breslow`: how events at one time are handled.

    Returns:
        One row a covariate: `hazard_ratio`, `low` and `high` (95 %, robust), `p` (robust Wald test), `coef`, `se`,
        `robust_se`, `p_proportional` (score test of proportional hazards, as R's `cox.zph`). In `attrs`: that test of
        all covariates together, and the exact numbers of `rows`, `subjects` and `events`.

    Raises:
        EhrseqError: A column is missing, a logarithm is undefined, nobody has the event, or there is no finite maximum.

    Example:
        >>> import pandas as pd
        >>> import ehrsequencing as eh
        >>> days = [(who, day) for who in range(80) for day in (0, 30, 90)]
        >>> rows = [(who, day, who * 7 % 11 + day / 100, int(day == 90 and who % 2)) for who, day in days]
        >>> frame = pd.DataFrame(rows, columns=["id", "day", "bilirubin", "died"])
        >>> table = eh.cox(frame, subject="id", time="day", event="died", covariates=["bilirubin"])
        >>> table.loc["bilirubin", ["hazard_ratio", "low", "high", "p"]].round(2).tolist()
        [1.01, 0.92, 1.11, 0.86]
    """
    covariates = _named(covariates)
    _, table, happened, causes = read_rows(
        frame,
        subject=subject,
        time=time,
        event=event,
        start=start,
        interest=interest,
        unit=unit,
        named=[*covariates, *([start] if start else [])],
    )
    table[_CAUSE] = happened
    own = table.groupby(SUBJECT)
    table[_ZERO] = (
        table[START].min() if is_numeric_dtype(table[time]) else own[START].transform("min")
    )
    if start is None and not table[SUBJECT].is_unique:
        table[[STOP, _CAUSE]] = own[[START, _CAUSE]].shift(-1)
    table[covariates] = own[covariates].ffill()
    first = table[STOP].where(table[_CAUSE].notna()).groupby(table[SUBJECT]).transform("min")
    spells = table[~(table[START] >= first)]
    return _fitted(
        spells, {name: name for name in covariates}, _cause(causes, cause), units, log, ties
    )


def cox_of_run(
    run: Run,
    covariates: str | Sequence[str],
    *,
    cause: str | None = None,
    units: Mapping[str, float] | None = None,
    log: str | Sequence[str] = (),
    ties: str = "efron",
    data: Any = None,
    prepared: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Hazard ratios of a few covariates, by a Cox regression without a penalty on all subjects of the task.

    Time runs from the index. Rows are start–stop with the last value of each covariate, as R's
    `coxph(Surv(start, stop, event) ~ …, cluster = subject)` takes them. Other causes end the follow-up (cause-specific
    hazards). They are associations, not effects.

    Args:
        run: The run.
        covariates: Codes with numbers (their last value), families such as `sex` (their last level), other codes
            (whether recorded so far), and `age` (at the index). The part of a name after the last `//` is enough, and
            so is a part of it that no other code has.
        cause: Default: the task's first outcome.
        units: Covariate → how much of it one hazard ratio is about, as in `{"age": 10}`; default: 1.
        log: Covariates of which the natural logarithm counts.
        ties: `efron` or `breslow`: how events at one time are handled.
        data: The records that the set was prepared from, a folder or a frame, if they have moved.
        prepared: The prepared set that the run was trained on, if it has moved.

    Returns:
        One row a covariate: `hazard_ratio`, `low` and `high` (95 %, robust), `p` (robust Wald test), `coef`, `se`,
        `robust_se`, `p_proportional` (score test of proportional hazards, as R's `cox.zph`). In `attrs`: that test of
        all covariates together, and the exact numbers of `rows`, `subjects` and `events`.

    Raises:
        EhrseqError: A covariate or a cause is not known, the records have changed, or there is no finite maximum.

    Example:
        >>> table = eh.load("runs/hf").cox(["age", "sex"], units={"age": 10})
        >>> table.index.tolist()
        ['age per 10', 'SEX: M vs F']
    """
    covariates = _named(covariates)
    store, task = run.prepared(None if prepared is None else Path(prepared)), run.task
    source = store.manifest["data_path"] if data is None else data
    if data is None and not Path(source).is_dir():
        raise EhrseqError("the records have moved", where=source, fix="name them with data=")
    with meds_folder(source) as folder:
        require_made_of(store, folder)
        reader = MedsReader(folder, store.study.data, store.study)
        words = [word for name in ("meds_birth", *covariates) for word in _words(name)]
        rows = events_table(reader, words=words).to_pandas()
    cohort = pd.read_parquet(store.folder / "tasks" / task.name / "cohort.parquet")
    people = cohort.sort_values("prediction_time").groupby(_CLOCK, as_index=False).first()
    days = np.stack([np.full(len(people), task.blanking), people["duration_days"]])
    after = np.rint(days * DAY_US).astype("timedelta64[us]")
    people[START], people[STOP] = (people["prediction_time"] + one for one in after)
    values = people[[*_CLOCK, START, STOP]].merge(rows, on="subject_id")
    changes = values[(values["time"] > values[START]) & (values["time"] < values[STOP])]
    every = [people.assign(time=people[START]), people.merge(changes[[*_CLOCK, "time"]])]
    spells = pd.concat(every).drop_duplicates([*_CLOCK, "time"]).sort_values("time")
    labels = {}
    for name in covariates:
        label, codes = named_codes(name, sorted(values["code"].unique()))
        own = values[values["code"].isin(codes)].fillna({"time": _LONG_AGO})
        own = own.sort_values("time", kind="stable")
        is_ever = codes == [label]
        if label == "age":
            own["value"] = (own["index_time"] - own["time"]) / _DAY / DAYS_PER_YEAR
        elif own["numeric_value"].notna().any():
            own = own.assign(value=own["numeric_value"]).dropna(subset="value")
            is_ever = False
        else:
            levels = own["code"].str.removeprefix(f"{label}//")
            own["value"] = 1.0 if is_ever else levels
        # the last value at the start of each spell
        known = own[[*_CLOCK, "time", "value"]]
        last = pd.merge_asof(spells, known, on="time", by=_CLOCK)["value"]
        labels[name] = label
        spells[name] = (last.fillna(0.0) if is_ever else last).set_axis(spells.index)
    spells = spells.sort_values([*_CLOCK, "time"])
    following = spells.groupby(_CLOCK)["time"].shift(-1)
    happened = spells["cause"].map(dict(enumerate(task.causes, start=1)))
    columns = {
        SUBJECT: spells["subject_id"],
        _ZERO: spells["index_time"],
        START: spells["time"],
        STOP: following.fillna(spells[STOP]),
        _CAUSE: happened.where(following.isna()),
    }
    return _fitted(spells.assign(**columns), labels, _cause(task.causes, cause), units, log, ties)


def _named(names: str | Sequence[str]) -> list[str]:
    """Names of columns or codes, one or several.

    Raises:
        EhrseqError: There is none, or one is there twice.
    """
    given = [names] if isinstance(names, str) else list(names)
    if not given or len({*given}) < len(given):
        raise EhrseqError(
            f"got {given}", where="covariates", fix="name one or more, and each of them once"
        )
    return given


def _cause(causes: Sequence[str], cause: str | None) -> str:
    """The cause that is asked about; None: the first."""
    refuse_unknown("cause", [cause or causes[0]], causes)
    return cause or causes[0]


def _words(name: str) -> tuple[str, ...]:
    return _SEX.get(name.casefold(), (name.casefold(),))


def named_codes(name: str, codes: Sequence[str]) -> tuple[str, list[str]]:
    """What a covariate names: a code, or the codes of a family, such as `GENDER` of `GENDER//F`; births for `age`.

    A name, or what stands after its last `//`, counts before a part of that.

    >>> named_codes("bili", ["LAB//bilirubin", "LAB//albumin"])
    ('LAB//bilirubin', ['LAB//bilirubin'])
    >>> named_codes("sex", ["GENDER//F", "GENDER//M"])
    ('GENDER', ['GENDER//F', 'GENDER//M'])

    Raises:
        EhrseqError: There is no such code, or several of them.
    """
    words = _words(name)
    if "age" in words:
        return "age", ["MEDS_BIRTH"]
    members: dict[str, list[str]] = {}
    for code in codes:
        for label in {code, code.rpartition("//")[0] or code}:
            members.setdefault(label, []).append(code)
    tails = {label: label.rpartition("//")[2].casefold() for label in members}
    whole = [label for label, tail in tails.items() if {tail, label.casefold()} & {*words}]
    part = [label for label, tail in tails.items() if any(word in tail for word in words)]
    if len(found := whole or part) != 1:
        what = f"{name!r} names {len(found)} codes" if found else f"there is no code {name!r}"
        near = f"name one of {', '.join(found[:4])}" if found else "eh.codes(data) lists them"
        raise EhrseqError(what, where="covariates", fix=right_way("terms", name) or near)
    return found[0], members[found[0]]


# ---- from spells to the table ---------------------------------------------------------------------------------------


def _fitted(
    spells: pd.DataFrame,
    labels: Mapping[str, str],
    of: str,
    units: Mapping[str, float] | None,
    log: str | Sequence[str],
    ties: str,
) -> pd.DataFrame:
    """The table of a regression on spells: `SUBJECT`, `_ZERO`, `START`, `STOP`, `_CAUSE`, and covariates → labels."""
    units, log = units or {}, [log] if isinstance(log, str | bool) else log
    refuse_unknown("covariate", units, labels)
    refuse_unknown("covariate", log, labels)
    refuse_unknown("tie rule", [ties], ("efron", "breslow"))
    known = spells.dropna(subset=[STOP, *labels])
    columns: dict[str, Floats] = {}
    for name, label in labels.items():
        columns |= _columns(known[name], label, unit=units.get(name), is_log=name in log)
    subject = known[SUBJECT].to_numpy()
    rows = CoxRows(
        np.stack([*columns.values()], axis=1),
        ((known[START] - known[_ZERO]) / _DAY).to_numpy(),
        ((known[STOP] - known[_ZERO]) / _DAY).to_numpy(),
        (known[_CAUSE] == of).to_numpy(),
    )
    if not rows.has_events:
        raise EhrseqError(
            "nobody with all covariates had it", where=of, fix="name other covariates"
        )
    from scipy.special import ndtr, ndtri  # which a run that is only loaded need not load

    found = fit_cox(rows, subject, is_efron=ties == "efron")
    together, reach = found.pop("p_all"), ndtri(0.975) * found["robust_se"]
    numbers = {
        "hazard_ratio": np.exp(found["coef"]),
        "low": np.exp(found["coef"] - reach),
        "high": np.exp(found["coef"] + reach),
        "p": 2 * ndtr(-np.abs(found["coef"]) / found["robust_se"]),
        **found,
    }
    table = pd.DataFrame(numbers, index=pd.Index(columns, name="covariate"))
    table.attrs |= {
        "cause": of,
        "p_proportional": float(together),
        "rows": len(known),
        "subjects": len(np.unique(subject)),
        "events": len(np.unique(subject[rows.event])),
    }
    return table


def _columns(
    values: "pd.Series[Any]", label: str, *, unit: float | None, is_log: bool
) -> dict[str, Floats]:
    """Name in the table → numbers: of a text a column for each level but the first."""
    if values.nunique() < 2:
        raise EhrseqError("is the same in all rows", where=label, fix="leave it out")
    if not is_numeric_dtype(values):
        refuse_idle({"log": is_log, "units": unit}, "of texts", where=label)
        is_ordered = isinstance(values.dtype, pd.CategoricalDtype)
        texts = values if is_ordered else values.astype(str)
        first, *others = texts.astype("category").cat.remove_unused_categories().cat.categories
        return {f"{label}: {level} vs {first}": (texts == level) * 1.0 for level in others}
    numbers = values.to_numpy(np.float64)
    if np.isinf(numbers).any() or (is_log and (numbers <= 0).any()):
        raise EhrseqError(
            "has infinite values, or logarithms of values of 0 or less",
            where=label,
            fix="correct them, or leave it out of log=",
        )
    if unit is not None and not (isinstance(unit, Real) and unit > 0):
        raise EhrseqError(f"a unit of {unit!r}", where=label, fix="write units={'age': 10}")
    numbers, name = (np.log(numbers), f"log {label}") if is_log else (numbers, label)
    return {name: numbers} if unit is None else {f"{name} per {unit:g}": numbers / unit}
