"""What a run says of records: predictions as a frame, one subject's risks, explanations, attention weights, curves."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import ArrayLike

from ehrsequencing.api import paper
from ehrsequencing.api.data import as_settings, events_table, meds_folder, times
from ehrsequencing.api.progress import bar
from ehrsequencing.config import DataConfig, format_days
from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.elsewhere import Hinted
from ehrsequencing.core.errors import EhrseqError, refuse_idle
from ehrsequencing.core.text import day_of
from ehrsequencing.explain import subject_record
from ehrsequencing.metrics.censoring import (
    aalen_johansen as cumulative_incidence,
    aalen_johansen_se,
    checked_outcome,
)
from ehrsequencing.metrics.plain import whole_causes
from ehrsequencing.prediction.journal import Journal
from ehrsequencing.prediction.predict import (
    Moment,
    NewRecords,
    Request,
    RiskPredictor,
)
from ehrsequencing.prediction.predict_some import predict_labels
from ehrsequencing.prediction.prediction_file import columns_of_moment
from ehrsequencing.prediction.run import Run, horizons_of
from ehrsequencing.records.codes import CodeMatcher, read_parents
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.reporting.share import share_run

CURVE_POINTS = 60  # of a drawn risk curve


@contextmanager
def opened(
    run: Run,
    data: Any,
    *,
    facts: Mapping[str, Any] | DataConfig | None = None,
    show: bool = True,
    label: str = "predicting",
) -> Iterator[NewRecords]:
    """Records that a run is asked about: a folder of MEDS data, or a frame of MEDS rows."""
    with meds_folder(data) as folder, bar(label, show=show) as tick:
        yield NewRecords(run, folder, as_settings(DataConfig, facts), tick)


def risk_column(cause: str, horizon_days: float | None) -> str:
    """Name of the column of a cause's risk.

    >>> risk_column("hf", 365.25), risk_column("hf", None)
    ('hf_1y', 'hf_next_visit')
    """
    return f"{cause}_next_visit" if horizon_days is None else f"{cause}_{format_days(horizon_days)}"


def predictions(
    records: NewRecords,
    asked: RiskPredictor,
    *,
    at: Moment,
    force: bool,
    journal: Journal | None,
    say: Callable[[str], None],
) -> pa.Table:
    """One row a prediction time: a column a cause and horizon, for an ensemble its band, and what the moment is."""
    names = [risk_column(cause, day) for cause in asked.causes for day in asked.horizons_days]
    asked.keeps_hazards = journal is not None
    with ExitStack() as stack:
        keep, parts = None, list[pa.Table]()
        if journal is not None:
            keep = stack.enter_context(journal.writer(asked.run, records.end_us))
        for risks in asked.answers(records, at, force=force, say=say):
            if keep is not None:
                keep(risks)
            # the columns of some prediction times, one a risk
            now_us = records.now_us(at)
            columns = {
                "subject_id": pa.array(risks.subject_id),
                "prediction_time": times(risks.prediction_us),
            }
            by_end = {"": risks.risk, "_low": risks.low, "_high": risks.high}
            given = {
                end: v.reshape(len(v), len(names)) for end, v in by_end.items() if v is not None
            }
            for number, name in enumerate(names):
                for end, values in given.items():
                    columns[name + end] = pa.array(values[:, number].astype(np.float64))
            columns |= columns_of_moment(risks.kind, risks.index_us, risks.prediction_us, now_us)
            parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def draw_subject(
    run: Run,
    records: NewRecords,
    subject: int,
    horizons: Sequence[float] | None,
    ax: "paper.Axes | None",
) -> "paper.Axes":
    """See `TrainedRun.plot_risk`.

    Raises:
        EhrseqError: The head is `visit`, or the subject has no prediction time in these records.
    """
    if run.is_visit_head:
        raise EhrseqError(
            "the visit head knows no days", where="plot_risk", fix="train with head='horizon'"
        )
    lines, last = own(records, subject), horizons_of(run, horizons)[-1]
    days = np.linspace(run.start_days, float(last or 0.0), CURVE_POINTS + 1)[1:]
    now, curves = (
        RiskPredictor(run, horizons_days).answer(lines)
        for horizons_days in ([days[-1]], days.tolist())
    )
    rows, since_us = events_table(records.reader, np.array([subject])), now.prediction_us[0]
    codes, when_us = rows["code"].to_pylist(), rows["time"].cast(pa.int64()).fill_null(0).to_numpy()
    events, parents = dict[str, int](), read_parents(records.data)
    for cause, patterns in run.task.patterns.items():  # their codes make no tokens
        matches = CodeMatcher(patterns, parents=parents)
        own_us = when_us[[matches(code) for code in codes]]
        if (own_us > since_us).any():
            events[cause] = int(own_us[own_us > since_us].min())
    visit_us, causes = lines.timelines.start_us, run.task.causes[: now.risk.shape[1]]
    return paper.subject_risk(
        now, curves, days, causes=causes, visit_us=visit_us, events=events, ax=ax
    )


def attention_table(run: Run, records: NewRecords, subject: int | None) -> pa.Table:
    """Weights of each visit's codes in the visit's vector, summing to 1 over a visit; the mean over an ensemble.

    Raises:
        EhrseqError: The visit encoder gives no weights, or there is no such subject.
    """
    from ehrsequencing.predictors.network import code_attention

    parts, names = [], pa.array(run.vocabulary.tokens)
    every = (records.encoder.encode(*one) for one in records.prediction_times(Moment("all")))
    for encoded in every if subject is None else [own(records, subject)]:
        lines = encoded.timelines
        visit = np.repeat(np.arange(len(lines.start_us)), np.diff(lines.visit_offsets))
        columns = {
            "subject_id": pa.array(lines.subject_id[lines.owner[visit]]),
            "time": times(lines.start_us[visit]),
            "code": names.take(pa.array(lines.codes)),
            "weight": pa.array(code_attention(run.model, lines, code_types=run.code_types)),
        }
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def own(records: NewRecords, subject: int) -> TaskRecords:
    """The visits and prediction times of one subject.

    Raises:
        EhrseqError: There is no such subject, or it has no prediction time.
    """
    found = subject_record(records, subject)
    return records.encoder.encode(found.record, found.moments)


def state_table(run: Run, records: NewRecords, *, at: str) -> pd.DataFrame:
    """The network's state at prediction times.

    Raises:
        EhrseqError: The run has no network or the `visit` head.
    """
    if run.is_visit_head:
        raise EhrseqError(
            "the visit head has no state at a day", where="embed", fix="use head=horizon"
        )
    from ehrsequencing.predictors.network import states_of_rows

    parts = []
    for record, rows in records.prediction_times(Moment(at)):
        part = records.encoder.encode(record, rows)
        states, _ = states_of_rows(run.model, part, code_types=run.code_types)
        when = pd.to_datetime(np.asarray(part.rows.prediction_us), unit="us")
        index = pd.MultiIndex.from_arrays(
            [part.subject_id, when], names=["subject_id", "prediction_time"]
        )
        parts.append(pd.DataFrame(states.numpy(), index=index))
    return pd.concat(parts)


# ---- curves as step functions ----------------------------------------------------------------------------------------


class StepFunction(Hinted):
    """A curve that is constant between its points, as scikit-survival's users know it.

    Attributes:
        x: (n,) days, increasing, 0 first.
        y: (n,) values there.
        low: (n,) lower limits of a 95 % interval; None without one.
        high: (n,) the upper limits.
        domain: The first and the last day.

    Example:
        >>> curve = StepFunction(np.array([0.0, 30.0, 90.0]), np.array([0.0, 0.1, 0.2]))
        >>> curve(45.0), curve([0, 90]).tolist()
        (0.1, [0.0, 0.2])
    """

    def __init__(
        self, x: Floats, y: Floats, *, low: Floats | None = None, high: Floats | None = None
    ) -> None:
        self.x, self.y = x, y
        self.low, self.high = low, high
        self.domain = (float(x[0]), float(x[-1]))

    def __call__(self, x: ArrayLike) -> float | Floats:
        """The value at some days.

        Raises:
            ValueError: A day is not within the domain.
        """
        days = np.asarray(x, dtype=np.float64)
        if not ((days >= self.domain[0]) & (days <= self.domain[1])).all():
            raise ValueError(f"x must be within [{self.domain[0]:g}; {self.domain[1]:g}]")
        value = self.y[np.searchsorted(self.x, days, side="right") - 1]
        return float(value) if value.ndim == 0 else value

    def __repr__(self) -> str:
        return (
            f"StepFunction({len(self.x)} points from {self.domain[0]:g} to {self.domain[1]:g} days)"
        )


def aalen_johansen(time: ArrayLike, cause: ArrayLike, *, of: int = 1) -> StepFunction:
    """The exact Aalen–Johansen curve of a cause, with a 95 % interval. It shows single persons: do not share it.

    Args:
        time: (n,) days to the event or censoring.
        cause: (n,) int, 0 = censored, 1 = the event of interest, 2 … = competing.
        of: Whose cumulative incidence.

    Returns:
        A step function from 0 to the longest follow-up, with `low` and `high` (estimate ± 1.96 standard errors).

    Example:
        >>> import ehrsequencing as eh
        >>> curve = eh.aalen_johansen([10.0, 20.0, 30.0, 40.0], [1, 2, 0, 1])
        >>> curve(25), curve.y.tolist()
        (0.25, [0.0, 0.25, 0.25, 0.25, 0.75])
    """
    codes = whole_causes(cause)
    n_causes = max(of, int(codes.max(initial=1)))
    duration, codes, _ = checked_outcome(time, codes, n_causes, None)
    curve = cumulative_incidence(duration, codes, n_causes=n_causes)
    x = np.unique(np.r_[0.0, curve.times_days, duration.max(initial=0.0)])
    y = curve.at(x)[of - 1]
    error = 1.96 * aalen_johansen_se(duration, codes, x, n_causes=n_causes)[of - 1]
    return StepFunction(x, y, low=np.clip(y - error, 0, 1), high=np.clip(y + error, 0, 1))


# ---- `export`: a run for other people, or its risks for MEDS-DEV --------------------------------------------------


_BELONGS = {"share": {"license"}, "meds-dev": {"data", "labels", "cause", "horizon"}}


def export(
    run: str | os.PathLike[str] | Run,
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    format: str = "share",
    license: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    cause: str | None = None,
    horizon: str | float | None = None,
    overwrite: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> list[str] | int:
    """Write a run for other people (`share`), or its risks at the times of MEDS labels (`meds-dev`).

    Args:
        run: A run, or its folder.
        out: The folder (`share`) or file (`meds-dev`) to make.
        data: For `meds-dev`: a folder of MEDS data.
        format: `share`: a folder with a model card and without ids, dates and paths, of a run that was prepared with
            `vocabulary.min_subjects` of at least 11. `meds-dev`: a risk for each label.
        license: For `share`: the licence that the model card names, as in `cc-by-nc-4.0`.
        labels: For `meds-dev`: MEDS labels, a file or a folder.
        cause: For `meds-dev`: which cause; default: the first.
        horizon: For `meds-dev`: as in `"90d"`; default: the task's only one.
        overwrite: Whether an earlier output there that nobody has changed is replaced.
        progress: Whether to show a bar.
        say: Called with remarks.

    Returns:
        `share`: the names of the files. `meds-dev`: how many labels have a risk.

    Raises:
        EhrseqError: The run may not be shared, or an argument belongs to the other format.
    """
    folder = run.folder if isinstance(run, Run) else Path(run)
    values = {
        "data": data,
        "labels": labels,
        "cause": cause,
        "horizon": horizon,
        "license": license,
    }
    others = {name: value for name, value in values.items() if name not in _BELONGS[format]}
    refuse_idle(others, f"in the format {format}", where="export")
    if format == "share":
        with bar("exporting", show=progress):
            return share_run(folder, Path(out), license_id=license, overwrite=overwrite)
    if data is None or labels is None:
        raise EhrseqError("needs data and labels", where="format meds-dev", fix="name both")
    with bar("predicting", show=progress) as tick:
        return predict_labels(
            folder,
            Path(data),
            Path(out),
            Request(
                horizons_days=None if horizon is None else [day_of(horizon)],
                overwrite=overwrite,
                progress=tick,
                say=say,
            ),
            labels=Path(labels),
            cause=cause,
        )
