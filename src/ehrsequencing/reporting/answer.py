"""The answer, `report.html`: which of the figures and numbers of an evaluation stand on the short page.

The cleaned and disclosed content of `metrics.json` goes in, what `answer.html.jinja` prints comes out. Everything else
of an evaluation is on the second page, `report-details.html`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ehrsequencing.evaluation.tripod import QUESTIONS
from ehrsequencing.reporting import panels, tables, verdict
from ehrsequencing.reporting.chart import Figure
from ehrsequencing.reporting.codes import codes
from ehrsequencing.reporting.figures import levels
from ehrsequencing.reporting.incidence import incidence_of
from ehrsequencing.reporting.scores import Scores, place_of

MOST_PLACES = 8  # landmarks and horizons in the forest plot of the short page
MOST_LEVELS = 14  # rows of its subgroup figure
Shown = Mapping[Any, str]


def answer(m: Mapping[str, Any], scores: Scores, shown: Shown) -> dict[str, Any]:
    """Content of the short page, by name."""
    verdicts = [verdict.of_cause(scores, cause, shown) for cause in m["causes"]]
    return {
        "verdicts": verdicts,
        "hopeless": all(case["rank"] == "too few" for case in verdicts),
        "card": verdict.card(scores),
        "caveats": verdict.caveats(scores, verdicts),
        "audited": verdict.audit_case(m),
        "incidence": _main_incidence(m, scores),
        "patients": two_patients(m),
        "codes": codes(m),
        "main": main_figures(m, scores, shown),
        "forest": forest(scores, shown),
        "groups": subgroup_figures(m, scores, shown),
        "tripod": tripod(m),
    }


def _main_incidence(m: Mapping[str, Any], scores: Scores) -> Figure | None:
    """Observed and predicted incidence of the cause of interest at the main landmark."""
    landmark, cause = scores.main()[0], m["causes"][0]
    rows = [
        row
        for row in m.get("incidence") or []
        if (row["landmark_days"], row["cause"]) == (landmark, cause)
    ]
    return incidence_of(rows[0]) if rows else None


def two_patients(m: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The last of the examples with the event of interest, and the first without any; those that there are."""
    found = [panels.trajectory(m, row) for row in m["trajectories"] if row["times_days"]]
    had = [row for row in found if row["has_event"]]
    free = [row for row in found if not row["has_event"]]
    return [*had[-1:], *free[:1]] if had and free else found[:2]


def main_figures(
    m: Mapping[str, Any], scores: Scores, shown: Shown
) -> dict[str, list[panels.Panel]]:
    """Calibration of each cause, and the decision curve of the cause of interest, at the main place."""
    landmark, horizon = scores.main()

    def here(row: Mapping[str, Any]) -> bool:
        return place_of(row)[::2] == (landmark, horizon)

    only = {
        **m,
        **{
            name: [row for row in m.get(name) or [] if here(row)]
            for name in ("calibration", "decision")
        },
    }
    first = [
        panel
        for panel in panels.decisions(only, scores.models, shown)
        if panel.cause == m["causes"][0]
    ]
    return {"calibration": panels.calibrations(only, scores, shown)[:2], "decision": first}


def forest(scores: Scores, shown: Shown) -> list[Figure]:
    """C and IPA of our model and the strongest baseline by landmark and horizon."""
    places = [
        place for place in scores.combinations() if place[0] is not None
    ] or scores.combinations()
    if (
        len(places) > MOST_PLACES
    ):  # every horizon of the first landmark, and the main horizon of the others
        landmark, horizon = scores.main()
        places = [place for place in places if place[0] == landmark or place[1] == horizon][
            :MOST_PLACES
        ]
    return panels.forest_of(
        scores, shown, places, [name for name in (scores.models[0], scores.strongest()) if name]
    )


def subgroup_figures(m: Mapping[str, Any], scores: Scores, shown: Shown) -> dict[str, Any] | None:
    """O/E and AUC by subgroup at the first landmark, of levels that may be told; None where nothing can be compared."""
    for place in tables.subgroups(m, scores, shown)[:1]:
        kept = {
            family: some
            for family, rows in place["families"].items()
            if len(some := [row for row in rows if row["told"] and row["auc"].value is not None])
            > 1
        }
        while sum(map(len, kept.values())) > MOST_LEVELS:
            kept.pop(max(kept, key=lambda family: len(kept[family])))
        if not kept:
            return None
        (landmark, horizon), drawn = scores.main(), []
        overall = scores.number(scores.models[0], landmark, horizon, "auc").value
        for metric, label, line in (
            ("oe", "O/E (1: right)", 1.0),
            ("auc", "AUC (dashed: all together)", overall),
        ):
            rows = [
                (family, [(row["name"], row[metric]) for row in some])
                for family, some in kept.items()
            ]
            if any(estimate.value is not None for _, some in rows for _, estimate in some):
                drawn.append(
                    levels(rows, title=f"{label} by subgroup", label=label, reference=line)
                )
        return {"caption": place["caption"], "figures": drawn}
    return None


def tripod(m: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """What only people can tell: (title, what is asked, answer or None) of every question."""
    told = m.get("tripod") or {}
    return [
        {"title": title, "asked": asked, "answer": told.get(key)}
        for key, (title, asked) in QUESTIONS.items()
    ]
