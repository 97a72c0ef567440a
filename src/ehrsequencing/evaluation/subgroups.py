"""Metrics of our model in groups of subjects: by age, sex and other codes without a time."""

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.disclosure import TOO_FEW, enough_people
from ehrsequencing.evaluation import results
from ehrsequencing.evaluation.comparison import Comparison
from ehrsequencing.evaluation.estimates import Estimate, metric_estimates
from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.records.timelines import TaskRecords, Timelines
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.results.result_types import Interval, SubgroupRow

AGE_EDGES_YEARS = (20, 30, 40, 50, 60, 70, 80, 90)
VISITS = "visits so far"
VISIT_EDGES = (1, 2, 5, 10, 20, 50)
VISIT_BANDS = ("0", "1", "2-4", "5-9", "10-19", "20-49", "50 and over")
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
) -> list[SubgroupRow[int]]:
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
                row: SubgroupRow[int] = {
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
                out.append(cast(SubgroupRow[int], {**row, **less}))
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
    """What group each row belongs to, by age and visits at the prediction time and by each family of static codes.

    A family is what stands before the last `//` of a code: `GENDER//F` and `GENDER//M` are one. `GENDER` or `SEX` is
    called sex. A code without `//` is a family of its own, with the levels yes and no. A subject with two levels of a
    family counts in the first of them by token. Groups that have one level only are left out.

    Args:
        records: Static codes and prediction times.
        vocabulary: Names of the tokens.
        chosen: (r,) which rows.

    Returns:
        Group → (r,) name of each row's level.
    """
    rows = records.rows
    band = np.searchsorted(VISIT_EDGES, rows.visits_before[chosen], side="right")
    out = {"age": age_bands(rows.age_years[chosen]), VISITS: np.array(VISIT_BANDS)[band]}
    for family, level_of in _families(records.timelines, vocabulary):
        is_sex = family.upper().startswith(("GENDER", "SEX")) and "sex" not in out
        out["sex" if is_sex else family] = level_of[rows.subject[chosen]]
    return {group: levels for group, levels in out.items() if len(np.unique(levels)) > 1}


def age_bands(age_years: NDArray[np.floating]) -> NDArray[np.str_]:
    """Decades of age, as `60-69`; `unknown` where it is.

    >>> age_bands(np.array([19.9, 60.0, 69.99, 95.0, np.nan])).tolist()
    ['0-19', '60-69', '60-69', '90 and over', 'unknown']
    """
    names = [
        "0-19",
        *(f"{low}-{low + 9}" for low in AGE_EDGES_YEARS[:-1]),
        "90 and over",
        "unknown",
    ]
    band = np.searchsorted(AGE_EDGES_YEARS, age_years, side="right")
    return np.array(names)[np.where(np.isnan(age_years), len(names) - 1, band)]


def _families(
    timelines: Timelines, vocabulary: Vocabulary
) -> Iterator[tuple[str, NDArray[np.str_]]]:
    """Each family of static codes, in order of name, with every subject's level."""
    codes, owner = timelines.static_codes, timelines.static_owner
    tokens, counts = np.unique(codes, return_counts=True)
    members: dict[str, list[tuple[int, int]]] = {}
    for token, count in zip(tokens.tolist(), counts.tolist(), strict=True):
        name = vocabulary.tokens[token]
        if token >= vocabulary.n_unknown:  # codes that training did not know are no group
            members.setdefault(name.rpartition("//")[0] or name, []).append((count, token))
    for family in sorted(members):
        largest = sorted(token for _, token in sorted(members[family], reverse=True)[:MOST_LEVELS])
        alone = [vocabulary.tokens[token] for token in largest] == [family]
        level_of = np.full(len(timelines), "no" if alone else NOT_RECORDED, dtype=object)
        for token in reversed(largest):
            level = "yes" if alone else vocabulary.tokens[token].rpartition("//")[2]
            level_of[owner[codes == token]] = level
        yield family, level_of.astype(np.str_)
