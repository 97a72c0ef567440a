"""Carried summaries: the past of each numeric code up to a query, in seven numbers (SCIENCE.md §2, Query)."""

from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Floats, Floats32, Ints, Ints32, spans
from ehrsequencing.records.events import DAY_US, number_runs, opens_run
from ehrsequencing.records.visits import count_at_or_before
from ehrsequencing.records.vocabulary import SUMMARIES


@dataclass(frozen=True)
class Summaries:
    """One row per query and numeric code seen by then, ordered by query, then code."""

    query: Ints  # (m,) int64, position of the query
    token: Ints32  # (m,) int32, token id of the code
    values: dict[str, Floats]  # raw numbers (m,) by the names of `SUMMARIES`; SINCE in days


def summarise(
    subject: Ints,
    time_us: Ints,
    token: Ints32,
    value: Floats32,
    *,
    query_subject: Ints,
    query_us: Ints,
) -> Summaries:
    """Summarise, for each query, every numeric code that its subject has up to then (time ≤ p).

    Args:
        subject: (n,) subject row of each number, sorted.
        time_us: (n,) its time, sorted within a subject.
        token: (n,) its code's token id.
        value: (n,) the number.
        query_subject: (q,) subject row of each query, sorted.
        query_us: (q,) its moment.

    Returns:
        The summaries. At equal times the later row of the record is the last one.
    """
    # times stay in order
    order = np.argsort(subject * (int(token.max(initial=0)) + 1) + token, kind="stable")
    subject, time_us, token, number = (
        subject[order],
        time_us[order],
        token[order],
        value[order].astype(np.float64),
    )
    start = np.flatnonzero(opens_run(subject, token))  # each (subject, code) is one group
    group_of = number_runs(start, len(order))
    low = np.searchsorted(subject[start], query_subject, side="left")
    high = np.searchsorted(subject[start], query_subject, side="right")
    query, (group, _) = np.repeat(np.arange(len(query_us)), high - low), spans(low, high - low)
    count, _ = count_at_or_before(group_of, time_us, group, query_us[query])
    query, group, count = query[count > 0], group[count > 0], count[count > 0]
    first, last = start[group], start[group] + count - 1
    bounds = np.stack([first, last + 1], axis=1).ravel()
    padded = np.r_[number, 0.0]  # `reduceat` needs every bound inside the array
    values = {
        "LAST": number[last],
        "FIRST": number[first],
        "MEAN": np.add.reduceat(padded, bounds)[::2] / count if len(bounds) else np.zeros(0),
        "MIN": np.minimum.reduceat(padded, bounds)[::2] if len(bounds) else np.zeros(0),
        "MAX": np.maximum.reduceat(padded, bounds)[::2] if len(bounds) else np.zeros(0),
        "SINCE": (query_us[query] - time_us[last]) / DAY_US,
        "COUNT": count.astype(np.float64),
    }
    return Summaries(
        query,
        token[start[group]] if len(group) else np.zeros(0, np.int32),
        {n: values[n] for n in SUMMARIES},
    )
