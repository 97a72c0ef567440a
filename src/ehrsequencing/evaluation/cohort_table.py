"""Table 1 of a paper: who was studied, with the covariates and how many people lack each, by split.

Its cells are texts that may be shared: shares are of rounded counts, and those of 1 to 10 people are hidden.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT, count_text, shareable_rate
from ehrsequencing.evaluation.context import Context
from ehrsequencing.metrics.censoring import median_follow_up_days
from ehrsequencing.predictors.history import FeatureSpec, fit_feature_spec, history_features
from ehrsequencing.records.timelines import TaskRecords, Timelines
from ehrsequencing.records.vocabulary import Vocabulary

_MOST_CODES = 12  # codes without a time, and as many with numbers
_FREQUENT = 60  # codes with a time, among which those with numbers are looked for


def cohort_table(context: Context, landmark: float) -> dict[str, Any] | None:
    """Content of `table1`: the subjects of each split at a landmark; None where the training subjects are gone.

    Args:
        context: What is evaluated, on whom.
        landmark: Days from the index.

    Returns:
        `landmark_days`, `columns` (splits), and `rows`: [name, a cell for each column].
    """
    if context.prepared is None or "train" not in context.splits:
        return None
    words, columns = context.source.vocabulary, {}
    spec = fit_feature_spec(
        context.records("train"),
        words,
        max_codes=_FREQUENT,
        max_static_codes=_MOST_CODES,
        enough=SMALLEST_COUNT,
    )
    for split in context.splits:
        records = context.records(split)
        at = records.at_landmark(landmark)
        subject, first = np.unique(records.rows.subject[at], return_index=True)
        at = at[first]  # of somebody with several indexes, the first
        people = _People(len(at), context.is_simulated)
        duration, cause = records.rows.duration_days[at], records.rows.cause[at]
        cells = {
            "subjects": people.count(len(at)),
            "age in years, median (quartiles)": people.quartiles(
                np.round(records.rows.age_years[at])
            ),
            "visits before, median (quartiles)": people.quartiles(records.rows.visits_before[at]),
            **_static_rows(words, records.timelines.take(subject), spec, people),
            **_number_rows(words, records, at, spec, people),
            "median follow-up in years": "–",
        }
        if people.are_enough:
            years = float(median_follow_up_days(duration, cause)) / DAYS_PER_YEAR
            cells["median follow-up in years"] = f"{years:.1f}" if np.isfinite(years) else "–"
        for number, name in enumerate(context.source.task.causes, start=1):
            cells[f"{name}, n (%)"] = people.share(int((cause == number).sum()))
        columns[split.replace("_", "-")] = cells
    rows: list[list[str | list[str]]] = [
        [name, [cells[name] for cells in columns.values()]] for name in columns["train"]
    ]
    return {"landmark_days": landmark, "columns": list(columns), "rows": rows}


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

    def quartiles(self, values: ArrayLike) -> str:
        known = np.asarray(values, dtype=np.float64)
        known = known[np.isfinite(known)]
        if len(known) < (1 if self.is_simulated else 4 * SMALLEST_COUNT):
            return "–"  # a quarter of fewer is a handful
        low, middle, high = np.quantile(known, [0.25, 0.5, 0.75])
        return f"{_short(middle)} ({_short(low)} to {_short(high)})"


def _short(value: float) -> str:
    """Three digits, and no fewer than the whole number has.

    >>> _short(0.12345), _short(1234.5)
    ('0.123', '1,234')
    """
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _static_rows(
    words: Vocabulary, timelines: Timelines, spec: FeatureSpec, people: _People
) -> dict[str, str]:
    """How many people have each of the most frequent codes without a time."""
    cells = dict[str, str]()
    for code in sorted(spec.static_codes):
        with_it = np.unique(timelines.static_owner[timelines.static_codes == code])
        cells[f"{words.tokens[code]}, n (%)"] = people.share(len(with_it))
    return cells


def _number_rows(
    words: Vocabulary, records: TaskRecords, at: Ints, spec: FeatureSpec, people: _People
) -> dict[str, str]:
    """The newest number of each of the most frequent codes with numbers, and how many people have none."""
    cells = dict[str, str]()
    history = history_features(records, words, chosen=at, columns=spec)
    for token in spec.numeric[:_MOST_CODES]:
        name = words.tokens[token]
        newest = words.numbers_at(token, history[:, spec.index[f"last {name}"]])
        cells[f"{name}, median (quartiles)"] = people.quartiles(newest)
        cells[f"{name} unknown, n (%)"] = people.share(int(np.isnan(newest).sum()))
    return cells
