"""The page of `ehrseq monitor`: events, accuracy and drift over time; and what of it may leave the host."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ehrsequencing.core.files import Shareable
from ehrsequencing.evaluation.monitor import Watch, day_text
from ehrsequencing.metrics.sequential import BAND, START_EVERY
from ehrsequencing.reporting.chart import Chart, Curve, Estimate, Figure
from ehrsequencing.reporting.pages import Table, rendered_page
from ehrsequencing.reporting.wording import number, plain, with_interval
from ehrsequencing.results.observed import redact_night

MOST_MONTHS = 4  # in the table; the figure has all
DO = {
    "nothing": "Do nothing.",
    "look": "Look at the feed and at how outcomes are recorded, before the model.",
    "update": "Update the run with ehrseq update, which tests whether the level or the slope has changed; "
    "train again where that does not bring events back to what is predicted.",
}


def render_monitor(watch: Watch) -> str:
    """The page as a string of HTML, for its owner only."""
    gap = "There are no held-out people any more to compare with."
    if watch.gap is not None:
        c, brier, ipa = (number(one, "+.3f") for one in watch.gap)
        gap = f"For the held-out people, expected less realised: C {c}, Brier score {brier}, IPA {ipa}."
    return rendered_page(
        title=f"Watch of {watch.run}",
        kicker=f"{watch.question} · run {watch.run}",
        lines=[watch.verdict, DO[watch.action], watch.drifts[0].verdict, watch.since_last_quarter],
        forests=_figures(watch),
        tables=_tables(watch),
        notes=[
            "This page is of few people and of single days: keep it where the journal is kept.",
            f"Days are counted once they are {watch.lag_days:g} days old, and then stay as they are. Reported later,"
            f" and not counted: {watch.later} events.",
            f"The evidence must reach {watch.threshold:g} for an alarm. A run whose O/E lies between {BAND[0]} and"
            f" {BAND[1]} raises one with a probability of at most {1 / watch.threshold:.3g}, however often one looks.",
            f"“Expected” holds if the hazards are right. {gap}",
        ],
    )


def night_line(watch: Watch) -> Shareable[dict[str, Any]]:
    """What may leave the host every night: for `--json` and Prometheus."""
    last = watch.months[-1]["expected"][:, 0].tolist() if watch.months else [np.nan] * 3
    last = [None if np.isnan(one) else one for one in last]
    facts = {
        "run": watch.run,
        "verdict": watch.verdict,
        "alarm": watch.is_alarm,
        "since": None if watch.alarm_day is None else day_text(watch.alarm_day),
        "action": watch.action,
        "threshold": watch.threshold,
        **dict(zip(("expected_c", "expected_brier", "expected_ipa"), last, strict=True)),
        "drift": watch.history[-1][1],
        "drift_since_last_quarter": watch.history[-1][2],
    }
    counts = watch.observed[:, 0], watch.expected[:, 0]
    return redact_night(facts, watch.days, *counts, watch.evidence.total)


def poisson_interval(count: float) -> tuple[float, float]:
    """Byar's 95 % limits of the mean of a count.

    >>> [round(one, 1) for one in poisson_interval(10)]
    [4.8, 18.4]
    """
    low, high = (
        (n * (1 - 1 / (9 * n) + sign * 1.96 / (3 * np.sqrt(n))) ** 3 if n else 0.0)
        for n, sign in ((count, -1), (count + 1, 1))
    )
    return float(low), float(high)


def _figures(watch: Watch) -> dict[str, Figure]:
    """Events of the first cause by four weeks, C of their predictions, and drift by night."""
    drawn = dict[str, Figure]()
    starts = np.arange(0, len(watch.days), START_EVERY)
    if len(starts):
        days = watch.days[np.minimum(starts + 14, len(watch.days) - 1)].astype(np.float64).tolist()
        observed, expected = (
            np.add.reduceat(counts[:, 0], starts).tolist()
            for counts in (watch.observed, watch.expected)
        )
        low, high = ([edge * one for one in expected] for edge in BAND)
        seen = [Estimate(1, "observed", count, *poisson_interval(count)) for count in observed]
        drawn["Events by four weeks"] = _over_time(
            [Curve(0, "expected", days, expected, low, high)],
            [*zip(days, seen, strict=True)],
            title="Observed events (marks), expected (line) and the band of 10 %",
            alarm=[] if watch.alarm_day is None else [float(watch.alarm_day)],
        )
    if watch.months:
        days = [float(month["start_day"] + START_EVERY / 2) for month in watch.months]
        value, low, high = np.array([month["expected"][0] for month in watch.months]).T.tolist()
        realised = [
            (day, Estimate(1, "realised", *month["realised"][0].tolist()))
            for day, month in zip(days, watch.months, strict=True)
            if month["realised"] is not None
        ]
        curve, title = (
            Curve(0, "expected", days, value, low, high),
            "Realised C (marks) and expected (line)",
        )
        drawn["C of each four weeks' predictions"] = _over_time(
            [curve], realised, title=title, low=0.4, top=1.0
        )
    if len(watch.history) > 1:
        nights = [night[0] for night in watch.history]
        curves = [
            Curve(k, name, nights, [night[k + 1] for night in watch.history])
            for k, name in enumerate(("training", "a quarter ago"))
        ]
        drawn["Drift by night"] = _over_time(curves, [], title="The largest difference", top=1.0)
    return drawn


def _tables(watch: Watch) -> list[Table]:
    """Observed and expected events of each stream, and the accuracy of each four weeks."""
    rows: list[tuple[str, ...]] = []
    sums = watch.observed.sum(axis=0).tolist(), watch.expected.sum(axis=0).tolist()
    for name, seen, expected in zip(watch.streams, *sums, strict=True):
        low, high = poisson_interval(seen)
        ratio = "–"
        if expected:
            ratio = with_interval(seen / expected, low / expected, high / expected, ".2f")
        rows.append((name, f"{seen:,.0f}", f"{expected:,.1f}", ratio))
    tables: list[Table] = [
        ("Observed so far", ("Of whom", "Observed", "Expected", "O/E (95%)"), rows)
    ]
    if watch.months:
        rows = []
        for month in reversed(watch.months[-MOST_MONTHS:]):
            for k, name in enumerate(("C", "Brier score", "IPA")):
                cells = [
                    "not yet"
                    if found is None
                    else with_interval(found[k, 0], found[k, 1], found[k, 2], ".3f")
                    for found in (month["expected"], month["realised"])
                ]
                rows.append((day_text(month["start_day"]), str(month["people"]), name, *cells))
        heads = ("Four weeks from", "People", "", "Expected", "Realised")
        tables.append(("Accuracy by the main horizon", heads, rows))
    return tables


def _over_time(
    curves: Sequence[Curve],
    marks: Sequence[tuple[float, Estimate]],
    *,
    title: str,
    low: float = 0.0,
    top: float | None = None,
    alarm: Sequence[float] = (),
) -> Figure:
    """Lines and marks with intervals by day."""
    days = [day for curve in curves for day in curve.x]
    values = [one for curve in curves for one in (*curve.y, *curve.high)]
    values += [one.high or 0.0 for _, one in marks]
    ends = (min(days) - 1, max(days) + 1)
    chart = Chart(720, 260, ends, (low, top or 1.08 * max(values, default=1.0) or 1.0), right=120)
    chart.y_axis("", plain)
    chart.x_axis("", lambda day: day_text(round(day)), np.linspace(*ends, 5).tolist())
    chart.verticals(alarm, "reference")
    for curve in curves:
        chart.curve(curve)
    chart.end_labels([(curve.y[-1], curve.name) for curve in curves])
    for day, one in marks:
        if one.value is not None and one.low is not None and one.high is not None:
            chart.whisker(one.kind, (day, day), (one.low, one.high))
            chart.mark(one.kind, day, one.value, f"{day_text(round(day))}: {one.value:.3g}")
    return chart.svg(title)
