"""The page's figures from metrics and published counts: no count is drawn that may not be printed."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.reporting import figures
from ehrsequencing.reporting.chart import Curve, Estimate, Figure
from ehrsequencing.reporting.patient import moved, patient_figure, patient_of
from ehrsequencing.reporting.scores import Scores, Shown
from ehrsequencing.reporting.wording import duration, from_landmark, size
from ehrsequencing.results.result_types import EpochRow, PlaceRow, Shared, Trajectory, place_of

#: One figure of a landmark, cause and horizon: `cause`, `caption`, `figure` (None where it would show a small count),
#: and in some a `note`, the values of the sentence under it; its `kind` names the macro of `sentences.html.jinja`.
Panel = dict[str, Any]


def by_cause(m: Shared, drawn: Sequence[Panel]) -> list[tuple[str, list[Panel]]]:
    """Figures under their causes, the cause of interest first."""
    grouped = [
        (cause, [panel for panel in drawn if panel["cause"] == cause]) for cause in m["causes"]
    ]
    return [(cause, some) for cause, some in grouped if some]


def caption(row: Mapping[str, Any], shown: Shown) -> str:
    """Landmark, horizon and number of people of a figure."""
    place = (
        f"{from_landmark(row['landmark_days'])}, by {duration(row['horizon_days'])}".capitalize()
    )
    people = shown.get(("evaluated", row["landmark_days"], row["horizon_days"]))
    if people is not None:
        return f"{place}, {size(people)}"
    people = shown.get(("curve", *place_of(row)))
    return place if people is None else f"{place}, {size(people)}"


# ----------------------------------------------------------------------------------------------------- forest plots


def gap_forests(table: Scores, shown: Shown) -> list[Figure]:
    """Our model less each baseline in C and IPA for the cause of interest, and in NLL."""
    plots = []
    for metric in ("c", "ipa", "nll"):
        places = table.combinations()
        if metric == "nll":
            places = [(landmark, None) for landmark in table.landmarks]
        gaps = {
            (name, *place): table.gap(name, *place, metric)
            for name in table.rivals
            for place in places
        }
        groups = groups_of(table, shown, places, gaps)
        name, side = METRICS[metric].name, "right" if METRICS[metric].better > 0 else "left"
        title = f"Difference in {name} to each baseline"
        label = f"difference in {name} ({side}: ours is better)"
        if groups:
            plots.append(
                figures.forest(groups, title=title, label=label, reference=0.0, floor=-0.5)
            )
    return plots


def groups_of(
    table: Scores,
    shown: Shown,
    places: Sequence[tuple[float | None, float | None]],
    rows: Mapping[Any, Mapping[str, Any] | None],
) -> list[tuple[str, list[Estimate]]]:
    """A group of estimates for each place: of the rows that exist and are not withheld."""
    groups = []
    for place in places:
        rows_of_place = [
            (kind, name, rows.get((name, *place))) for kind, name in enumerate(table.models)
        ]
        some = [
            Estimate(kind, name, row["value"], row["low"], row["high"])
            for kind, name, row in rows_of_place
            if row is not None and not row.get("hidden")
        ]
        if some:
            landmark, horizon = place
            where = "all times"
            if landmark is not None:
                where = from_landmark(landmark).replace("after the index", "after index")
            people = shown.get(("evaluated", landmark, horizon), shown.get(("at_risk", landmark)))
            by = "over all horizons" if horizon is None else f"by {duration(horizon)}"
            counted = "" if people is None else f", {size(people)}"
            groups.append((f"{where}\n{by}{counted}", some))
    return groups


# ------------------------------------------------------------------------------------- calibration, risks, decisions


def calibrations(m: Shared, table: Scores, shown: Shown) -> list[Panel]:
    """Calibration of our model; no figure where too few people had the event."""
    drawn, ours = [], table.models[0]
    for row in (row for row in m["smooth_calibration"] if row["model"] == ours):
        where = caption(row, shown)
        points = zip(row["predicted"], row["observed"], row["low"], row["high"], strict=True)
        x, y, low, high = _columns(
            [(x, y, a, b) for x, y, a, b in points if a is not None and b is not None], 4
        )
        curve = Curve(0, ours, x, y, low, high)
        title = f"Calibration for {row['cause']}: {where}"
        figure = (
            figures.calibration(curve, title=title, histogram=row["histogram"])
            if len(curve.x) > 1
            else None
        )
        # and what a perfectly calibrated model would show by chance
        ici, chance = (
            table.values.get((ours, *place_of(row), name)) for name in ("ici", "ici_null")
        )
        note: dict[str, Any] | None = None
        if ici is not None and ici["value"] is not None:
            note = {"kind": "calibration", "ici": ici, "chance": chance and chance["value"]}
        drawn.append({"cause": row["cause"], "caption": where, "figure": figure, "note": note})
    return drawn


def _columns(points: Sequence[Sequence[float]], count: int) -> list[list[float]]:
    return [[point[k] for point in points] for k in range(count)]


def decisions(m: Shared, models: Sequence[str], shown: Shown) -> list[Panel]:
    """Decision curves of our model and a baseline beside acting on everyone and on nobody."""
    rows = [row for row in m["decision"] if row["model"] in models]
    drawn = []
    for row in (row for row in rows if row["model"] == models[0]):
        figure, note, where = None, None, caption(row, shown)
        here = [r for r in rows if place_of(r) == place_of(row)]
        lines = [_net_benefit(r, models.index(r["model"])) for r in here]
        lines = sorted((c for c in lines if len(c.x) > 1), key=lambda c: c.kind)
        if lines and lines[0].kind == 0:
            treat_all = zip(row["thresholds"], row["treat_all"], strict=True)
            x, y = _columns([(x, y) for x, y in treat_all if y is not None], 2)
            everyone = Curve(9, "act on everyone", x, y, style="grey")
            figure = figures.decision(
                [*lines, everyone], title=f"Decision curve for {row['cause']}: {where}"
            )
            # the longest range of thresholds where the lower limit of our band is above all other curves
            wins = []
            for k, limit in enumerate(row["low"] or []):
                curves = [r["net_benefit"][k] for r in here if r["model"] != row["model"]]
                rivals = [0.0, row["treat_all"][k], *curves]
                wins.append(limit is not None and all(v is None or limit > v for v in rivals))
            runs = [(won, [*run]) for won, run in groupby(range(len(wins)), wins.__getitem__)]
            longest = max((run for won, run in runs if won), key=len, default=[])
            best = None
            if len(longest) > 1:
                best = row["thresholds"][longest[0]], row["thresholds"][longest[-1]]
            note = {
                "kind": "decision",
                "events": row["events"],
                "landmark": row["landmark_days"],
                "best": best,
                "row": row,
                "shown": figures.spread_over(row["thresholds"]),
            }
        drawn.append({"cause": row["cause"], "caption": where, "figure": figure, "note": note})
    return drawn


def _net_benefit(row: PlaceRow, kind: int) -> Curve:
    """A decision curve where it is defined, with its band where it has one."""
    points = zip(row["thresholds"], row["net_benefit"], strict=True)
    x, y = _columns([(x, y) for x, y in points if y is not None], 2)
    if row["low"] is None or row["high"] is None:
        return Curve(kind, row["model"], x, y)
    ends = zip(row["low"], row["high"], strict=True)
    low, high = _columns([(a, b) for a, b in ends if a is not None and b is not None], 2)
    return Curve(kind, row["model"], x, y, low, high)


# --------------------------------------------------------------------------------- single subjects, training, truth


def trajectory(t: Trajectory) -> dict[str, object]:
    """One de-identified subject's timeline with the risk curve, what happened, and what moved the risk."""
    patient, event = patient_of(t), t["event"]
    return {
        "timeline": patient_figure(patient, title=f"Timeline of subject {t['label']}"),
        "changes": [moved(row, patient.descriptions) for row in patient.moves],
        "banded": bool(patient.bands),
        "label": t["label"],
        "outcome": f"{event['cause'] or 'event-free'} at {duration(round(event['day']))}",
        "times": len(t["times_days"]),
        "horizon": duration(patient.horizon_days),
        "has_event": bool(event["cause"]),
    }


def training(history: Sequence[EpochRow]) -> dict[str, object]:
    """How many epochs were trained, for how long, and which one was kept."""
    best = next((row["epoch"] for row in reversed(history) if row.get("best")), None)
    seconds = sum(row.get("seconds") or 0 for row in history)
    return {"epochs": len(history), "best": best, "seconds": seconds}
