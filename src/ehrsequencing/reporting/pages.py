"""Pages of figures and tables from one template: pretraining, every outcome of a run, pooled sites, new people.

The lines that the commands print are here too.
"""

from collections.abc import Mapping
from pathlib import Path
from textwrap import TextWrapper
from typing import Any

from markupsafe import Markup

from ehrsequencing.config import format_days
from ehrsequencing.core.version import __version__
from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.reporting.chart import Estimate
from ehrsequencing.reporting.figures import forest
from ehrsequencing.reporting.wording import environment, hashed, interval, with_interval

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]  # heading, columns, rows


def rendered_page(*, searchable: bool = False, **content: Any) -> str:
    """A page of `page.html.jinja`."""
    page: dict[str, Any] = {
        "lines": (),
        "forests": {},
        "panels": (),
        "version": __version__,
        "search": "",
    }
    if searchable:
        script = (Path(__file__).parent / "templates" / "search.js").read_text(encoding="utf-8")
        page |= {"search": Markup(script), "policy": f"script-src {hashed(script)}; "}
    return environment().get_template("page.html.jinja").render(page | content)


# ------------------------------------------------------------------------------------------------------- pretraining

LEARNED = "The pretrained model foresees codes better than a list of the most frequent ones"


OPTIMISTIC = "tuning subjects also chose the epoch, so that the numbers are slightly optimistic"


def pretraining_lines(results: dict[str, Any]) -> tuple[str, ...]:
    """Lines of a terminal: what was learned; `pretraining.json`, which is given, has the numbers.

    Something was where the interval of one objective's gain over frequencies lies above zero.
    """
    measured = {
        name: one for name, one in results["objectives"].items() if one["gain"]["value"] is not None
    }
    learned = [name for name, one in measured.items() if (one["gain"]["low"] or 0) > 0]
    headline = "Pretraining learned nothing beyond how frequent each code is."
    if not measured:
        headline = "Too few tuning subjects to say whether pretraining learned anything."
    elif learned:
        where = f" in one of two exercises, {' and '.join(learned)}"
        headline = LEARNED + ("" if len(learned) == len(measured) else where) + "."
    indented, lines = TextWrapper(100, initial_indent="  ", subsequent_indent="    "), list[str]()
    for name, one in measured.items():
        value, low, high = (one["gain"][end] for end in ("value", "low", "high"))
        gain = with_interval(value, low, high, "+.3f")
        lines += indented.wrap(
            f"{name}: a loss of {one['loss']:.3f} nats, and {one['frequency_loss']:.3f} by the codes' frequencies"
            f" alone: a gain of {gain}."
        )
    of = f"tuning split, {results['targets']} target codes, best epoch {results['best_epoch']}"
    return (headline, *lines, of, OPTIMISTIC)


# ---------------------------------------------------------------------------------------------------- every outcome


def render_outcomes(result: dict[str, Any], *, title: str) -> str:
    """The page of every outcome of a run as a string of HTML, without a script; `result` is of `evaluate_outcomes`."""
    rows, pooled = [], result["pooled"]
    for row in sorted(
        result["outcomes"],
        key=lambda row: -row["events"] if isinstance(row["events"], int) else 0,  # else withheld
    ):
        numbers = (_estimate(row[name], name) for name in ("auc", "c", "oe"))
        rows.append((row["code"], str(row["events"]), *numbers))
    if pooled["outcomes"]:
        name = f"{pooled['outcomes']} outcomes with fewer than {result['fewest_events']} events, pooled"
        auc, oe = _estimate(pooled["auc"], "auc"), _estimate(pooled["oe"], "oe")
        rows.append((name, str(pooled["events"]), auc, "not computed", oe))
    far, strata = format_days(result["horizons_days"][1]), " and ".join(result["strata"])
    notes = [
        f"Events: subjects with the event within {far} after a landmark.",
        f"AUC within {strata}: how often a subject with the event had a higher risk than one without it, of the same"
        f" {strata} (5 years of age). A case counts at its last prediction time at least 36.5 days before the event, a"
        " subject without the event at one random prediction time in each band. The mean over all bands counts each"
        " band once, as in Delphi-2M's evaluation. In the pooled AUC each case counts once.",
        f"C: of two subjects at a landmark, how often the one with the earlier event had the higher risk, by {far}."
        " O/E: events observed, over those expected; above 1 the predicted risks are too low.",
        f"Intervals are of {result['resamples']} resamples of subjects. Numbers: outcome-metrics.json.",
    ]
    columns = ("Outcome", "Events", f"AUC within {strata}", "C", "O/E")
    return rendered_page(
        searchable=True,
        title=title,
        kicker=f"Every outcome · {result['split'].replace('_', '-')} split, {result['subjects']} subjects",
        lines=[f"{line[0].upper()}{line[1:]}." for line in outcome_lines(result)],
        tables=[("All outcomes", columns, rows)],
        notes=notes,
    )


def _estimate(one: dict[str, Any], metric: str) -> str:
    """A number with its interval, both with the metric's digits."""
    return with_interval(one["value"], one["low"], one["high"], f".{METRICS[metric].digits}f")


def outcome_lines(result: dict[str, Any]) -> list[str]:
    """The summary of all outcomes as sentences, for the terminal and the page."""
    summary, fewest = result["summary"], result["fewest_events"]
    pooled = result["pooled"]
    within = "sex and age" if "sex" in result["strata"] else "age"
    if not summary["outcomes"] and pooled["outcomes"]:
        return [
            f"no outcome has {fewest} events or more; of the {pooled['outcomes']} with fewer, pooled, the AUC within"
            f" {within} is {_estimate(pooled['auc'], 'auc')}, and observed/expected is"
            f" {_estimate(pooled['oe'], 'oe')}"
        ]
    lines = [
        f"{summary['outcomes']} outcomes with {fewest} events or more, {pooled['outcomes']} with fewer"
    ]
    if summary["median_auc"] is not None:
        lines.append(f"median AUC within {within}: {summary['median_auc']:.3f}")
    if summary["oe_within_10_percent"] is not None:
        lines.append(
            f"observed/expected within .9 to 1.1: {summary['oe_within_10_percent']:.0%} of the outcomes; with so few"
            f" events, true hazards would reach {summary['oe_within_10_percent_if_true']:.0%}"
        )
    if summary["oe_intervals_that_hold_1"] is not None:
        lines.append(
            f"intervals of observed/expected that hold 1: {summary['oe_intervals_that_hold_1']:.0%}"
        )
    return lines


# ------------------------------------------------------------------------------------------------------ pooled sites

_REFERENCES = {
    "c": 0.5,
    "oe": 1.0,
    "ipa": 0.0,
    "slope": 1.0,
}  # no skill for C and IPA, else perfect


def render_pooled(result: Mapping[str, Any]) -> str:
    """The page of `evaluation.pooling.pool` as a string of HTML, without a script: a forest plot for each metric."""
    forests, rows = {}, []
    # causes with too few events at every site stand in the table alone
    known = [
        row
        for row in result["rows"]
        if any(site["value"] is not None for site in row["sites"].values())
    ]
    for metric in dict.fromkeys(row["metric"] for row in known):
        groups, name = [], METRICS[metric].name
        for row in (row for row in known if row["metric"] == metric):
            parts = {**row["sites"], "all sites": {**row, "value": row["mean"]}}
            for site, one in parts.items():
                kind = int(site != "all sites")
                estimate = Estimate(kind, site, one["value"], one["low"], one["high"])
                groups.append((f"{site}\n{where(row)}", [estimate]))
        reference, title = _REFERENCES[metric], f"{name} of each site"
        forests[name] = forest(groups, title=title, label=name, reference=reference)
    for row in result["rows"]:
        low, high, i2 = row["next_low"], row["next_high"], row["i2"]
        digits = f".{METRICS[row['metric']].digits}f"
        another = interval(low, high, digits) or "needs five"
        share = "" if i2 is None else f"{100 * i2:.0f}%"
        name = METRICS[row["metric"]].name
        rows.append((where(row), name, str(row["pooled"]), mean(row), another, share))
    columns = ("Event and horizon", "Metric", "Sites", "Mean of the sites", "Another site", "I²")
    tables: list[Any] = [("All sites", columns, rows)]
    kicker, notes = "One model at", list[str]()
    if "over" in result:  # a walk
        one = ("Index in", "Site left out")[result["over"] == "site"]
        sizes = [(row["step"], f"{row['train']}", f"{row['subjects']}") for row in result["steps"]]
        tables.append(("Steps", (one, "People who trained", "People tested"), sizes))
        kicker, notes = "Trained and tested again at", [result["note"]]
    return rendered_page(
        title=result["task"],
        kicker=f"{kicker} {len(result['sites'])} sites: {', '.join(result['sites'])}",
        forests=forests,
        tables=tables,
        notes=[
            "Random-effects means with Hartung–Knapp intervals (95%). “Another site” is where the true value of a"
            " further hospital lies with a probability of 95%. I² is the share of the differences between sites that"
            " chance does not explain. A site without an interval is drawn and not pooled; fewer than three have no"
            " mean.",
            *notes,
        ],
    )


def where(row: Mapping[str, Any]) -> str:
    """Cause, horizon and landmark in words."""
    at = f", {format_days(row['landmark_days'])} after the index" if row["landmark_days"] else ""
    return f"{row['cause']} by {format_days(row['horizon_days'])}{at}"


def mean(row: Mapping[str, Any]) -> str:
    """The mean of the sites with its interval."""
    return with_interval(row["mean"], row["low"], row["high"], f".{METRICS[row['metric']].digits}f")
