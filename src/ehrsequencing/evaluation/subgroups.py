"""People by group: metrics of our model by age, sex and other codes without a time, and Table 1 of a paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.disclosure import (
    SMALLEST_COUNT,
    TOO_FEW,
    count_text,
    enough_people,
    shareable_rate,
)
from ehrsequencing.evaluation import results
from ehrsequencing.evaluation.comparison import Comparison
from ehrsequencing.evaluation.context import Context
from ehrsequencing.evaluation.estimates import Estimate, metric_estimates
from ehrsequencing.metrics.censoring import median_follow_up_days
from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.predictors.history import fit_feature_spec, history_features
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.results.result_types import Interval, PlaceRow

AGE_EDGES_YEARS = (20, 30, 40, 50, 60, 70, 80, 90)
MOST_LEVELS = 12  # of one family of codes, the most frequent ones
NOT_RECORDED = "not recorded"
SUBGROUP_METRICS = ("oe", "auc", "brier")
SUBGROUP_PLACE = ("landmark_days", "cause", "horizon_days", "group", "level", "n", "events")


def subgroup_rows(
    comparison: Comparison,
    groups: dict[str, NDArray[np.str_]],
    causes: Sequence[str],
    *,
    model: str,
) -> list[PlaceRow]:
    """Rows of `subgroups`: size, events, O/E, AUC and Brier score of every level of every group.

    A level also has the differences of its metrics to those of the largest level, on the same resamples, where at least
    11 people of that one had the event and 11 had not.

    Censoring weights are fitted within the level, so that groups may be followed up for different times. Size and
    events are of those who could be followed until the horizon.

    Args:
        comparison: The rows.
        groups: Of `groups_of_rows`, for these rows.
        causes: Names.
        model: Whose risks.
    """
    out = []
    for group, level_of in groups.items():
        levels, sizes = np.unique(level_of, return_counts=True)
        largest: dict[str, Estimate] = {}
        for level in levels[np.argsort(-sizes, kind="stable")].tolist():
            part = comparison.among(level_of == level)
            estimates = metric_estimates(part, model, [METRICS[key] for key in SUBGROUP_METRICS])
            largest = largest or estimates
            for e, h in np.ndindex(len(causes), len(part.horizons_days)):
                own = estimates["auc"]
                row: PlaceRow = {
                    "landmark_days": part.landmark_days,
                    "cause": causes[e],
                    "horizon_days": float(part.horizons_days[h]),
                    "n": int(own.subjects[h]),
                    "events": int(own.events[e, h]),
                    "group": group,
                    "level": level,
                    "oe": _value(estimates["oe"], (e, h)),
                    "auc": _value(own, (e, h)),
                    "brier": _value(estimates["brier"], (e, h)),
                }
                base, less = largest["auc"], {}
                if estimates is not largest and enough_people(
                    int(base.events[e, h]), int(base.subjects[h])
                ):
                    less = {
                        f"{name}_difference": _value(one.minus(largest[name]), (e, h))
                        for name, one in estimates.items()
                    }
                out.append({**row, **less})
    return out


def _value(one: Estimate, place: tuple[int, int]) -> Interval:
    """One estimate; no number where there are too few people."""
    reason, (low, high) = one.reason(place), one.interval
    few = reason == TOO_FEW
    return {
        "value": None if few else results.number(one.value[place]),
        "low": results.number(low[place]),
        "high": results.number(high[place]),
        "reason": reason,
    }


def groups_of_rows(
    records: TaskRecords, vocabulary: Vocabulary, *, chosen: Ints
) -> dict[str, NDArray[np.str_]]:
    """What group each row belongs to, by age at the prediction time and by each family of static codes.

    Ages are in decades, as `60-69`. A family is what stands before the last `//` of a code: `GENDER//F` and `GENDER//M`
    are one. `GENDER` or `SEX` is called sex. A code without `//` is a family of its own, with the levels yes and no. A
    subject with two levels of a family counts in the first of them by token. Groups that have one level only are left
    out.

    Args:
        records: Static codes and prediction times.
        vocabulary: Names of the tokens.
        chosen: (r,) which rows.

    Returns:
        Group → (r,) name of each row's level.
    """
    rows, lines = records.rows, records.timelines
    bands = [f"{low}-{low + 9}" for low in AGE_EDGES_YEARS[:-1]]
    names = np.array(["0-19", *bands, "90 and over", "unknown"])
    age_years = rows.age_years[chosen]
    band = np.searchsorted(AGE_EDGES_YEARS, age_years, side="right")
    out = {"age": names[np.where(np.isnan(age_years), len(names) - 1, band)]}
    codes, owner = lines.static_codes, lines.static_owner
    tokens, counts = np.unique(codes, return_counts=True)
    families: dict[str, list[tuple[int, int]]] = {}
    for token, count in zip(tokens.tolist(), counts.tolist(), strict=True):
        name = vocabulary.tokens[token]
        if token >= vocabulary.n_unknown:  # codes that training did not know are no group
            families.setdefault(name.rpartition("//")[0] or name, []).append((count, token))
    for family in sorted(families):
        largest = sorted(token for _, token in sorted(families[family], reverse=True)[:MOST_LEVELS])
        alone = [vocabulary.tokens[token] for token in largest] == [family]
        level_of = np.full(len(lines), "no" if alone else NOT_RECORDED, dtype=object)
        for token in reversed(largest):
            level = "yes" if alone else vocabulary.tokens[token].rpartition("//")[2]
            level_of[owner[codes == token]] = level
        is_sex = family.upper().startswith(("GENDER", "SEX")) and "sex" not in out
        out["sex" if is_sex else family] = level_of.astype(np.str_)[rows.subject[chosen]]
    return {group: levels for group, levels in out.items() if len(np.unique(levels)) > 1}


# ---- Table 1: who was studied, by split; its cells may be shared ---------------------------------------------------

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
        }
        lines = records.timelines.take(subject)
        for code in sorted(spec.static_codes):
            with_it = np.unique(lines.static_owner[lines.static_codes == code])
            cells[f"{words.tokens[code]}, n (%)"] = people.share(len(with_it))
        history = history_features(records, chosen=at, columns=spec)
        for token in spec.numeric[:_MOST_CODES]:
            name = words.tokens[token]
            newest = words.numbers_at(token, history[:, spec.names.index(f"last {name}")])
            cells[f"{name}, median (quartiles)"] = people.quartiles(newest)
            cells[f"{name} unknown, n (%)"] = people.share(int(np.isnan(newest).sum()))
        years = np.nan
        if len(at) >= (1 if context.is_simulated else SMALLEST_COUNT):
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
