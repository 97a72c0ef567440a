"""`pooled.html`: the metrics of one model at several sites, pooled, with a forest plot for each metric."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from ehrsequencing.config import format_days
from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.reporting.chart import Estimate
from ehrsequencing.reporting.figures import levels
from ehrsequencing.reporting.report import environment
from ehrsequencing.reporting.wording import with_interval


def render_pooled(result: Mapping[str, Any]) -> str:
    """The page as a string of HTML, without a script; `result` is that of `evaluation.pooling.pool`."""
    forests: dict[str, Markup] = {}
    references = {
        "c": 0.5,
        "oe": 1.0,
        "ipa": 0.0,
        "slope": 1.0,
    }  # no skill for C and IPA, else perfect
    for metric in dict.fromkeys(row["metric"] for row in result["rows"]):
        groups = []
        for row in (row for row in result["rows"] if row["metric"] == metric):
            parts = {**row["sites"], "all sites": {**row, "value": row["mean"]}}
            estimates = [
                (name, Estimate(name != "all sites", name, one["value"], one["low"], one["high"]))
                for name, one in parts.items()
            ]
            groups.append((where(row), estimates))
        name = METRICS[metric].name
        figure = levels(
            groups, title=f"{name} of each site", label=name, reference=references[metric]
        )
        forests[name] = Markup(figure)
    template = environment().get_template("pooled.html.jinja")
    return template.render(result, forests=forests, where=where, mean=mean, metrics=METRICS)


def where(row: Mapping[str, Any]) -> str:
    """Cause, horizon and landmark in words."""
    at = f", {format_days(row['landmark_days'])} after the index" if row["landmark_days"] else ""
    return f"{row['cause']} by {format_days(row['horizon_days'])}{at}"


def mean(row: Mapping[str, Any]) -> str:
    """The mean of the sites with its interval."""
    return with_interval(row["mean"], row["low"], row["high"], ".3f")
