"""The two pages of a report from the content of `metrics.json`: the answer and the details behind it.

`report.html` is the answer, `report-details.html` has everything else. Each is one file. The pages
need no script and no network, and their content security policy forbids both. All text is escaped. No id or date of a
person is read. The result of an evaluation goes through `results.redaction.redact` before anything is printed or drawn.
The pages' sentences are in the templates.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ehrsequencing.core.files import Page, Shareable, write_bytes
from ehrsequencing.evaluation.context import QUESTIONS
from ehrsequencing.metrics.registry import METRICS, in_columns
from ehrsequencing.predictors.blend import STACKED
from ehrsequencing.reporting import figures, panels, tables
from ehrsequencing.reporting.chart import Figure, swatch
from ehrsequencing.reporting.scores import (
    Scores,
    Shown,
    audit_case,
    card,
    cause_verdict,
    caveats,
    declared,
)
from ehrsequencing.reporting.wording import (
    environment,
)
from ehrsequencing.results.redaction import owners_part, redact
from ehrsequencing.results.result_types import Exact, Shared, place_of

MOST_PLACES = 8  # landmarks and horizons in the forest plot of the short page
MOST_LEVELS = 14  # rows of its subgroup figure


def answer(m: Shared, scores: Scores, shown: Shown) -> dict[str, object]:
    """Content of the short page, by name."""
    verdicts = [cause_verdict(scores, cause, shown) for cause in m["causes"]]
    first = scores.main()[0], m["causes"][0]
    incidence = [row for row in m["incidence"] if (row["landmark_days"], row["cause"]) == first]
    hopeless = all(case["rank"] == "too few" for case in verdicts)
    # the last of the examples with the event of interest, and the first without any; those that there are
    patients = [panels.trajectory(row) for row in m["trajectories"] if row["times_days"]]
    had = [row for row in patients if row["has_event"]]
    free = [row for row in patients if not row["has_event"]]
    # calibration of each cause, and the decision curve of the cause of interest, at the main place
    only: Shared = {
        **m,
        "smooth_calibration": [
            row for row in m["smooth_calibration"] if place_of(row)[::2] == scores.main()
        ],
        "decision": [row for row in m["decision"] if place_of(row)[::2] == scores.main()],
    }
    decisions = panels.decisions(only, scores.models, shown)
    return {
        "verdicts": verdicts,
        "reached": scores.reached(),
        "hopeless": hopeless,
        "over_splits": tables.over_splits(m, ("c", "ipa", "oe")) if hopeless else {},
        "card": card(scores),
        "declared": declared(scores),
        "caveats": caveats(scores, verdicts),
        "audited": audit_case(m),
        "incidence": figures.incidence(incidence[0]) if incidence else None,
        "patients": [*had[-1:], *free[:1]] if had and free else patients[:2],
        "main": {
            "calibration": panels.calibrations(only, scores, shown)[:2],
            "decision": [panel for panel in decisions if panel["cause"] == m["causes"][0]],
        },
        "forest": forest(scores, shown),
        "groups": subgroup_figures(m, scores, shown),
        "c": scores.number(scores.models[0], *scores.main(), "c").value,
        "tripod": tripod(m),
    }


def forest(scores: Scores, shown: Shown) -> list[Figure]:
    """C and IPA of our model and the strongest baseline by landmark and horizon."""
    places = [
        place for place in scores.combinations() if place[0] is not None
    ] or scores.combinations()
    if len(places) > MOST_PLACES:  # the main landmark, and the main horizon of the others
        landmark, horizon = scores.main()
        places = [place for place in places if place[0] == landmark or place[1] == horizon][
            :MOST_PLACES
        ]
    models = [name for name in (scores.models[0], scores.strongest()) if name]
    plots, cause = list[Figure](), scores.m["causes"][0]
    for metric, reference, floor in (("c", 0.5, 0.0), ("ipa", 0.0, -0.25)):
        values = {
            (name, *place): scores.values.get((name, place[0], cause, place[1], metric))
            for name in models
            for place in places
        }
        groups = panels.groups_of(scores, shown, places, values)
        name = METRICS[metric].name
        title = f"{name} by horizon and landmark for {cause}"
        if any(estimate.value is not None for _, some in groups for estimate in some):
            plots.append(
                figures.forest(groups, title=title, label=name, reference=reference, floor=floor)
            )
    return plots


def subgroup_figures(m: Shared, scores: Scores, shown: Shown) -> dict[str, object] | None:
    """O/E and AUC by subgroup at the main landmark, of levels that may be told; None where nothing can be compared."""
    for place in tables.subgroups(m, shown):
        if place["landmark"] != scores.main()[0]:
            continue
        families = {
            family: some
            for family, rows in place["families"].items()
            if len(some := [row for row in rows if row["told"] and row["auc"].value is not None])
            > 1
        }
        while sum(map(len, families.values())) > MOST_LEVELS:
            families.pop(max(families, key=lambda family: len(families[family])))
        if not families:
            return None
        (landmark, horizon), drawn = scores.main(), []
        overall = scores.number(scores.models[0], landmark, horizon, "auc").value
        for metric, label, line in (
            ("oe", "O/E (1: right)", 1.0),
            ("auc", "AUC (dashed: all together)", overall),
        ):
            rows = [
                (f"{family}\n{row['name']}", [row[metric]])
                for family, some in families.items()
                for row in some
                if row[metric].value is not None
            ]
            if rows and line is not None:
                drawn.append(
                    figures.forest(
                        rows, title=f"{label} by subgroup", label=label, reference=line, form=".2f"
                    )
                )
        return {"caption": place["caption"], "figures": drawn}
    return None


def tripod(m: Shared) -> Sequence[dict[str, object]]:
    """What only people can tell: (title, what is asked, answer or None) of every question."""
    trials = m["checks"].get("tuning_trials")
    answers = {
        "tuning_trials": None if trials is None else f"{trials:,}",
        **m["tripod"],
    }
    return [
        {"title": title, "asked": asked, "answer": answers.get(key)}
        for key, (title, asked) in QUESTIONS.items()
    ]


# characters that no XML may hold
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


ANSWER, DETAILS = "report.html", "report-details.html"
PAGES = (ANSWER, DETAILS)
_TEMPLATES = {ANSWER: "answer.html.jinja", DETAILS: "details.html.jinja"}


def write_report(metrics: Exact | Shared, folder: Path) -> None:
    """Write both pages of the metrics of an evaluation into a folder.

    Raises:
        EhrseqError: A file cannot be written.
    """
    for page, text in pages(metrics).items():
        write_page(folder / page, text)


def write_page(path: Path, text: str) -> None:
    """Write a page of the report; one with exact curves or single people is for its owner alone."""
    write_bytes(path, text.encode(), owner_only=not isinstance(text, Page))


def pages(metrics: Exact | Shared) -> dict[str, str]:
    """Every page of the report by the name of its file."""
    redacted = redact(metrics, decimals=False)
    return {page: _page(redacted, metrics, page) for page in PAGES}


def render(metrics: Exact | Shared, page: str = DETAILS) -> str:
    """One page of the report as a string of HTML.

    Args:
        metrics: The content of `metrics.json`.
        page: `report.html` or `report-details.html`.
    """
    return _page(redact(metrics, decimals=False), metrics, page)


def _page(m: Shareable[Shared], metrics: Exact | Shared, page: str) -> str:
    if page == DETAILS and "individual" in m.keys() - metrics.keys():  # of real people, exact
        return _drawn({**m, **owners_part(metrics)}, page)
    return m.drawn(partial(_drawn, page=page))


def _drawn(m: Mapping[str, Any], page: str) -> str:
    """Everything that the templates of a page print, by name, in them."""
    clean = _clean(m)
    shown, scores = count_texts(clean), Scores(clean)
    content = answer(clean, scores, shown) if page == ANSWER else _details(clean, scores, shown)
    content |= {
        "m": clean,
        "shown": shown,
        "oracle": clean["oracle"],
        "models": scores.models,
        "strongest": scores.strongest(),
        "undefined": scores.undefined,
        "swatches": [Markup(swatch(k)) for k in range(len(scores.models))],
        "metrics": {metric.key: metric for metric in in_columns(METRICS.values())},
        "training": panels.training(clean["history"]),
        "ANSWER": ANSWER,
        "DETAILS": DETAILS,
        "OTHER": DETAILS if page == ANSWER else ANSWER,
    }
    return environment().get_template(_TEMPLATES[page]).render(content)


def count_texts(m: Shared) -> dict[tuple[Any, ...], str]:
    """Texts of every count that the pages print.

    Returns:
        Texts under `("flow", step)`, `("out", step)`, `("subjects", split)`, `("events", split, cause or "censored")`,
        `("at_risk", landmark)`, `("evaluated", landmark, horizon)`, `("by", landmark, cause, horizon)`,
        `("curve", landmark, cause, horizon)` and `("external",)`.
    """
    counts: dict[tuple[Any, ...], Any] = {
        **{("flow", i): step["subjects"] for i, step in enumerate(m["attrition"])},
        **{("out", i): step["excluded"] for i, step in enumerate(m["attrition"])},
        **{("subjects", split): count for split, count in m["data"]["subjects"].items()},
        **{
            ("events", split, name): count
            for split, events in m["events"].items()
            for name, count in events.items()
        },
        **{("at_risk", row["landmark_days"]): row["subjects"] for row in m["at_risk"]},
        **{
            ("evaluated", row["landmark_days"], horizon): count
            for row in m["at_risk"]
            for horizon, count in zip(m["horizons_days"], row["evaluated"], strict=True)
        },
        **{
            ("by", row["landmark_days"], cause, horizon): count
            for row in m["at_risk"]
            for cause, had in row["events"].items()
            for horizon, count in zip(m["horizons_days"], had, strict=True)
        },
        **{("curve", *place_of(curve)): curve["n"] for curve in m["smooth_calibration"]},
        ("external",): (m["external"] or {}).get("subjects"),
    }
    return {
        key: f"{count:,}" if isinstance(count, int) else count
        for key, count in counts.items()
        if count is not None
    }


def _clean(value: Any) -> Any:
    """Replace what no document may hold (control characters, half surrogates); NaN and infinity become undefined."""
    if isinstance(value, str):
        return _NOT_TEXT.sub("�", value)
    if isinstance(value, dict):
        return {_clean(key): _clean(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _details(m: Shared, scores: Scores, shown: Mapping[Any, str]) -> dict[str, object]:
    """What only the page with the details prints."""
    by_cause = partial(panels.by_cause, m)
    return {
        "follow_up": tables.follow_up(m, shown),
        "weightings": tables.weightings(scores),
        "incidences": by_cause(
            [
                {
                    "cause": row["cause"],
                    "caption": panels.caption(row, shown),
                    "figure": figures.incidence(row),
                    "note": None,
                }
                for row in m["incidence"]
            ]
        ),
        "tripod": tripod(m),
        "gap_forests": panels.gap_forests(scores, shown),
        "accuracy": scores.blocks("accuracy"),
        "calibrations": by_cause(panels.calibrations(m, scores, shown)),
        "calibration": scores.blocks("calibration"),
        "ratios": tables.ratios(m),
        "decisions": by_cause(panels.decisions(m, scores.models, shown)),
        "subgroups": tables.subgroups(m, shown),
        "repeated": tables.repeated(m),
        "without_network": scores.gap(STACKED, scores.main()[0], None, "nll"),
        "trajectories": [panels.trajectory(t) for t in m["trajectories"] if t["times_days"]],
        "audit": m["audit"],
        "settings": _flat(m["config"]),
    }


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", json.dumps(value, ensure_ascii=False)))
    return rows
