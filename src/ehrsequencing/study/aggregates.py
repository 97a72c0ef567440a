"""What a site publishes of its scored rows: sums that add up over sites, and bins of at least eleven people.

Censoring is weighted by the site's own Kaplan–Meier curve G_s, since follow-up differs between hospitals. Pooled
numbers are then those of the pooled rows, each weighted by the G of its site.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import expit

from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.minimum_counts import SMALLEST_COUNT
from ehrsequencing.disclosure.small_counts import Count, exact, hide_small
from ehrsequencing.metrics.accuracy import observed_over_expected
from ehrsequencing.metrics.bootstrap import bootstrap_subjects
from ehrsequencing.metrics.censoring import divide
from ehrsequencing.metrics.discrimination import concordant_pairs, wolbers_c
from ehrsequencing.metrics.outcomes import ScoredRows

#: Edges of the risk bins, the same for all sites and taken from no data. Bins are first joined at the coarse edges, so
#: that sites share edges, and then cut again at the fine ones, which let the AUC compare more pairs.
COARSE_EDGES = tuple(
    round(float(edge), 6) for edge in (0.0, *np.geomspace(0.001, 0.5, 28), 0.6, 0.7, 0.8, 0.9, 1.0)
)
RISK_EDGES = tuple(
    sorted({*COARSE_EDGES, *(round(float(edge), 6) for edge in expit(np.linspace(-7, 7, 421)))})
)


def aggregate(rows: ScoredRows, *, resamples: int, seed: int) -> dict[str, Any]:
    """Everything that may leave a site about the rows of one landmark, one row per subject.

    Args:
        rows: The rows, without weights and with the censoring of the rows themselves.
        resamples: Of the bootstrap, for the standard errors.
        seed: Of the bootstrap.

    Returns:
        `subjects` as text, `<11` where they are few; `cells`, one for each cause and horizon that may be shown;
        `withheld`, the others with the reason.
    """
    events = event_counts(rows)
    subjects, shown = shown_counts(len(rows.duration_days), events)
    cells: list[dict[str, Any]] = []
    withheld: list[dict[str, Any]] = []
    errors = _standard_errors(rows, resamples, seed) if shown.any() else {}
    for e, h in np.ndindex(*events.shape):
        where = {"cause": e, "horizon": h}
        if not rows.covered[0, h]:
            withheld.append({**where, "reason": "the follow-up ends before this horizon"})
        elif not shown[e, h]:
            withheld.append(
                {
                    **where,
                    "reason": f"fewer than {SMALLEST_COUNT} subjects with the event, or without it",
                }
            )
        else:
            of_cell = {name: _finite(float(values[e, h])) for name, values in errors.items()}
            cells.append({**where, **_cell(rows, e, h), "events": int(events[e, h]), **of_cell})
    return {"subjects": subjects, "cells": cells, "withheld": withheld}


def event_counts(rows: ScoredRows) -> Ints:
    """(causes, horizons) events seen by each horizon."""
    counts = [rows.has_event_by(h).sum(axis=1) for h in range(len(rows.horizons_days))]
    return np.stack(counts, axis=1).astype(np.int64)


def shown_counts(subjects: int, events: Ints) -> tuple[str, Bools]:
    """The number of subjects as it may be printed, and of which causes and horizons anything may be told.

    No number of people from 1 to 10 may follow from what is shown, also not by subtraction: between two horizons, or
    of the event-free (`disclosure.small_counts.hide_small`).
    """
    causes, horizons = events.shape
    groups = {(e, h) for e in range(causes) for h in range(horizons)}
    everybody = frozenset({*groups, "rest"})
    counts: dict[Any, Count] = {"subjects": Count(subjects, everybody, weight=1)}
    for e, h in np.ndindex(causes, horizons):
        counts[e, h] = Count(int(events[e, h]), frozenset((e, k) for k in range(h + 1)))
    free = [
        everybody - {(e, k) for e in range(causes) for k in range(h + 1)} for h in range(horizons)
    ]
    texts = hide_small(counts, implied=free)
    told = exact(texts["subjects"]) and subjects >= SMALLEST_COUNT
    enough = (events >= SMALLEST_COUNT) & (subjects - events >= SMALLEST_COUNT)
    shown = np.array(
        [[exact(texts[e, h]) for h in range(horizons)] for e in range(causes)]
    ).reshape(events.shape)
    return texts["subjects"], shown & enough & told


def _cell(rows: ScoredRows, e: int, h: int) -> dict[str, Any]:
    """Sums over all rows, and over the rows of each bin of predicted risk."""
    risk, seen, known = rows.risk[:, e, h], rows.has_event_by(h)[e], rows.known_weights(h)[0]
    wins, pairs = (float(total[0]) for total in concordant_pairs(rows, e, h))
    return {
        "n": len(risk),
        "known": float(known.sum()),  # Σ ω
        "observed": float(known @ seen),  # Σ ω y
        "expected": float(risk.sum()),  # Σ risk
        "squared_error": float(known @ (seen - risk) ** 2),  # Σ ω (y − risk)²
        "concordant": wins,
        "pairs": pairs,
        "bins": risk_bins(risk, seen, known),
    }


def risk_bins(risk: Floats, seen: Bools, known: Floats) -> list[dict[str, Any]]:
    """Neighbouring bins, joined until each has at least eleven subjects with the event and eleven without.

    Args:
        risk: (n,) predicted risk.
        seen: (n,) whether the event was seen by the horizon.
        known: (n,) censoring weights.

    Returns:
        `low` and `high` edge, `n`, Σ ω, Σ ω y and Σ risk of each bin, from low to high; empty for too few subjects.
    """
    edges = np.array(RISK_EDGES)
    place = np.clip(np.searchsorted(edges, risk, side="right") - 1, 0, len(edges) - 2)
    coarse = _joined(place, seen, np.searchsorted(edges, COARSE_EDGES).tolist())
    bins = [
        fine
        for first, last in coarse
        for fine in _joined(place, seen, list(range(first, last + 1)))
    ]
    out = []
    for first, last in bins:
        inside = (place >= first) & (place < last)
        sums = {"n": int(inside.sum()), "known": float(known[inside].sum())}
        sums |= {
            "observed": float(known[inside] @ seen[inside]),
            "expected": float(risk[inside].sum()),
        }
        out.append({"low": float(edges[first]), "high": float(edges[last]), **sums})
    return out


def _joined(place: Ints, seen: Bools, edges: list[int]) -> list[tuple[int, int]]:
    """Pairs of edges between which there are enough subjects, from low to high; what is left over joins the last."""
    bins: list[tuple[int, int]] = []
    start = edges[0]
    for end in edges[1:]:
        if _is_large(seen[(place >= start) & (place < end)]):
            bins.append((start, end))
            start = end
    return [*bins[:-1], (bins[-1][0], edges[-1])] if bins else []


def _is_large(seen: Bools) -> bool:
    events = int(seen.sum())
    return min(events, len(seen) - events) >= SMALLEST_COUNT


def _standard_errors(rows: ScoredRows, resamples: int, seed: int) -> Mapping[str, Floats]:
    """Bootstrap standard errors of logit C and log O/E, each (causes, horizons)."""
    logit_c, log_oe = [], []
    for block in bootstrap_subjects(np.arange(len(rows.duration_days)), resamples, seed):
        drawn = ScoredRows.of(
            rows.duration_days, rows.cause, rows.risk, rows.horizons_days, weights=block
        )
        c, oe = wolbers_c(drawn), observed_over_expected(drawn)
        logit_c.append(
            np.log(divide(c, 1 - c), where=(c > 0) & (c < 1), out=np.full_like(c, np.nan))
        )
        log_oe.append(np.log(oe, where=oe > 0, out=np.full_like(oe, np.nan)))
    found = {"logit_c_se": logit_c, "log_oe_se": log_oe}
    return {name: _spread(np.concatenate(values)) for name, values in found.items()}


def _spread(values: Floats) -> Floats:
    """(causes, horizons) standard deviation over the resamples where the value is defined; NaN with fewer than ten."""
    defined = np.isfinite(values)
    n = defined.sum(axis=0)
    mean = divide(np.where(defined, values, 0).sum(axis=0), n)
    squares = np.where(defined, (np.where(defined, values, 0) - mean) ** 2, 0).sum(axis=0)
    return np.where(n >= 10, np.sqrt(divide(squares, n - 1)), np.nan)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
