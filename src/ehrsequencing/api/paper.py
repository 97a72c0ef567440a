"""Tables of a paper: who was studied, how accurate each model is, and the penalised weights of the Cox baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT, count_text, shareable_rate
from ehrsequencing.core.errors import EhrseqError, refuse_unknown
from ehrsequencing.metrics.censoring import median_follow_up_days
from ehrsequencing.metrics.registry import in_columns, taken
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.features import LinearDesign
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.history import (
    AGE_KNOTS_YEARS,
    FeatureSpec,
    fit_feature_spec,
    history_features,
)
from ehrsequencing.predictors.landmark_cox import LandmarkCox
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.reporting.wording import with_interval

_MOST_CODES = 12  # codes without a time, and as many with numbers, in table 1


@dataclass(frozen=True, repr=False)
class PaperTable:
    """A table for a paper.

    Attributes:
        frame: Its cells as text, rows by name.
        caption: What it shows.
    """

    frame: pd.DataFrame
    caption: str

    def to_markdown(self) -> str:
        """The table in Markdown."""
        rows = [["", *self.frame.columns], ["---"] * (1 + len(self.frame.columns))]
        rows += [[str(name), *cells] for name, cells in self.frame.T.items()]
        return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)

    def to_latex(self) -> str:
        """The table in LaTeX, as a `tabular` with rules of the package booktabs."""
        escaped = self.frame.rename(index=_latex, columns=_latex).map(_latex)
        return str(escaped.to_latex(escape=False))

    def __repr__(self) -> str:
        return f"{self.caption}\n{self.frame.to_string()}"

    def _repr_html_(self) -> str:
        return str(self.frame.to_html())


def _latex(text: object) -> str:
    plain = str(text).replace("\\", "/")
    return "".join(f"\\{c}" if c in "%&_#${}" else c for c in plain).replace("<", "$<$")


def cohort_table(
    prepared: Prepared, task: str, *, landmark: float, is_simulated: bool
) -> PaperTable:
    """Table 1: the subjects of each split at a landmark. Counts of 1 to 10 people are hidden, unless simulated."""
    columns = {}
    train = prepared.records(task, "train")
    spec = fit_feature_spec(train, prepared.vocabulary, enough=SMALLEST_COUNT)
    for split in SPLITS:
        records = prepared.records(task, split)
        at = records.at_landmark(landmark)
        subject, first = np.unique(records.rows.subject[at], return_index=True)
        at = at[first]  # of somebody with several indexes, the first
        people = _People(len(at), is_simulated)
        duration, cause = records.rows.duration_days[at], records.rows.cause[at]
        cells = {
            "subjects": people.count(len(at)),
            "age in years, median (quartiles)": people.quartiles(records.rows.age_years[at]),
            "visits before, median (quartiles)": people.quartiles(records.rows.visits_before[at]),
            **_static_rows(prepared, records.timelines.take(subject), people),
            **_number_rows(prepared, records, at, spec, people),
            "median follow-up in years": "–",
        }
        if people.are_enough:
            years = float(median_follow_up_days(duration, cause)) / DAYS_PER_YEAR
            cells["median follow-up in years"] = f"{years:.1f}" if np.isfinite(years) else "–"
        for number, name in enumerate(prepared.task(task).causes, start=1):
            cells[f"{name}, n (%)"] = people.share(int((cause == number).sum()))
        columns[split.replace("_", "-")] = cells
    frame = pd.DataFrame(columns).fillna("0")
    return PaperTable(frame, "Subjects at the first prediction time that is compared, by split")


@dataclass(frozen=True)
class _People:
    """How many people a column is about, and how their numbers may be shown."""

    total: int
    is_simulated: bool

    @property
    def are_enough(self) -> bool:
        return self.total >= (1 if self.is_simulated else SMALLEST_COUNT)

    def count(self, people: int) -> str:
        return f"{people:,}" if self.is_simulated else count_text(people)

    def share(self, people: int) -> str:
        if not self.total:
            return "0"
        share = (
            people / self.total
            if self.is_simulated
            else shareable_rate(people / self.total, self.total)
        )
        if share is not None:
            return f"{self.count(people)} ({100 * share:.0f})"
        return count_text(people) if people < SMALLEST_COUNT else "–"

    def quartiles(self, values: ArrayLike, form: str = ".0f") -> str:
        known = np.asarray(values, dtype=np.float64)
        known = known[np.isfinite(known)]
        if len(known) < (1 if self.is_simulated else SMALLEST_COUNT):
            return "–"
        low, middle, high = np.quantile(known, [0.25, 0.5, 0.75])
        return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def _static_rows(prepared: Prepared, timelines: Any, people: _People) -> dict[str, str]:
    """The share of people with each of the most frequent codes without a time."""
    owner = np.repeat(np.arange(len(timelines)), np.diff(timelines.static_offsets))
    pairs = np.unique(np.stack([timelines.static_codes.astype(np.int64), owner]), axis=1)
    codes, counts = np.unique(pairs[0], return_counts=True)
    names = prepared.vocabulary.tokens
    most = np.argsort(-counts, kind="stable")[:_MOST_CODES]
    return {f"{names[codes[k]]}, n (%)": people.share(int(counts[k])) for k in sorted(most)}


def _number_rows(
    prepared: Prepared, records: TaskRecords, at: Ints, spec: FeatureSpec, people: _People
) -> dict[str, str]:
    """The newest number of each of the most frequent codes with numbers, and how many people have none."""
    words, cells = prepared.vocabulary, dict[str, str]()
    history = history_features(records, words, chosen=at, columns=spec)
    for token in spec.numeric[:_MOST_CODES]:
        name = words.tokens[token]
        newest = words.numbers_at(token, history[:, spec.index[f"last {name}"]])
        cells[f"{name}, median (quartiles)"] = people.quartiles(newest, ".3g")
        cells[f"{name} unknown, n (%)"] = people.share(int(np.isnan(newest).sum()))
    return cells


def accuracy_table(
    rows: Sequence[Mapping[str, Any]], place: Mapping[str, Any], *, title: str
) -> PaperTable:
    """Table 2: the metrics of every model at one landmark, cause and horizon, from `metrics` of `metrics.json`."""
    columns = [metric for metric in in_columns(taken("everywhere")) if metric.in_terminal]
    wanted = (place["landmark"], place["cause"], place["horizon"])
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        if (row["landmark_days"], row["cause"], row["horizon_days"]) == wanted:
            own = cells.setdefault(row["model"], {})
            for metric in columns:
                if metric.key == row["metric"]:
                    own[metric.name] = with_interval(row["value"], row["low"], row["high"], ".2f")
    frame = pd.DataFrame.from_dict(cells, orient="index").fillna("")
    return PaperTable(frame, f"Accuracy of each model for {title}, with 95 % intervals")


# ---- the penalised weights of the Cox baseline -----------------------------------------------------------------------


NOTE = "penalised (ridge) landmark Cox regression: ratios are shrunk towards 1"


def hazard_ratios(run: Run, prepared: Prepared, cause: str | None) -> pd.DataFrame:
    """See `TrainedRun.hazard_ratios`."""
    of = run.task.causes[0] if cause is None else cause
    refuse_unknown("cause", [of], run.task.causes)
    data = FittingData(
        run.task,
        prepared.vocabulary,
        prepared.records(run.task.name, "train"),
        prepared.records(run.task.name, "tuning"),
        run.predictor.edges_days,
        enough=run.study.vocabulary.min_subjects,
    )
    cox = LandmarkCox(data)
    fit = cox.fits[run.task.causes.index(of)]
    if not fit.beta.any():
        raise EhrseqError("nobody in the training split had it", where=of)
    order = np.argsort(-np.abs(fit.beta), kind="stable")
    columns = {
        "covariate": np.array(_covariates(cox.design)),
        "penalised_ratio": np.exp(fit.beta),
        "sd": fit.scale,
    }
    table = pd.DataFrame({key: values[order] for key, values in columns.items()})
    table.attrs["note"] = NOTE
    return table


def _covariates(design: LinearDesign) -> list[str]:
    """What each covariate of the design is: features, marks of what is not known, hinges of age."""
    names = design.columns.names
    listed = [names[k] for k in design.used] + [f"{names[k]} unknown" for k in design.marked]
    if 0 in design.used:
        listed += [f"{names[0]} above {knot:g} years" for knot in AGE_KNOTS_YEARS]
    return listed
