"""The page's figures from metrics and published counts: no count is drawn that may not be printed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.reporting import figures
from ehrsequencing.reporting.chart import Curve, Estimate, Figure
from ehrsequencing.reporting.incidence import incidence_of
from ehrsequencing.reporting.patient import largest_changes, patient_figure, patient_of
from ehrsequencing.reporting.scores import Scores, place_of
from ehrsequencing.reporting.wording import about, duration, from_landmark, signed, size

Shown = Mapping[Any, str]


@dataclass(frozen=True)
class Panel:
    """One figure of a landmark, cause and horizon; None where it would show a small count.

    Attributes:
        note: Values of the sentence under the figure; its `kind` names the macro of `sentences.html.jinja`.
    """

    cause: str
    caption: str
    figure: Figure | None
    note: Mapping[str, Any] | None = None


def by_cause(m: Mapping[str, Any], drawn: Sequence[Panel]) -> list[tuple[str, list[Panel]]]:
    """Figures under their causes, the cause of interest first."""
    grouped = [(cause, [panel for panel in drawn if panel.cause == cause]) for cause in m["causes"]]
    return [(cause, some) for cause, some in grouped if some]


def caption(row: Mapping[str, Any], shown: Shown) -> str:
    """Landmark, horizon and number of people of a figure."""
    place = (
        f"{from_landmark(row['landmark_days'])}, by {duration(row['horizon_days'])}".capitalize()
    )
    people = shown.get(("at_risk", row["landmark_days"]))
    if people is not None:
        return f"{place}, {size(people)}"
    people = shown.get(("curve", *place_of(row)))
    return place if people is None else f"{place}, {size(people)}"


# ----------------------------------------------------------------------------------------------------- forest plots


def forests(table: Scores, shown: Shown) -> list[tuple[str, list[Figure]]]:
    """Forest plots of C and IPA per cause."""
    drawn = []
    for cause in table.m["causes"]:
        plots = []
        for metric, reference, floor in (("c", 0.5, 0.0), ("ipa", 0.0, -0.25)):
            groups = []
            for place in table.combinations():
                found = [
                    table.values.get((name, place[0], cause, place[1], metric))
                    for name in table.models
                ]
                groups.append((_group_name(*place, shown), _estimates(table.models, found)))
            name = METRICS[metric].name
            title = f"{name} of each model for {cause}"
            plots += _forest(groups, title=title, label=name, reference=reference, floor=floor)
        if plots:
            drawn.append((cause, plots))
    return drawn


def forest_of(
    table: Scores,
    shown: Shown,
    places: Sequence[tuple[float | None, float | None]],
    models: Sequence[str],
) -> list[Figure]:
    """C and IPA of some models for the cause of interest, a row for each place."""
    plots, cause = [], table.m["causes"][0]
    for metric, reference, floor in (("c", 0.5, 0.0), ("ipa", 0.0, -0.25)):
        groups = []
        for place in places:
            rows = [
                table.values.get((name, place[0], cause, place[1], metric)) for name in table.models
            ]
            some = [
                estimate for estimate in _estimates(table.models, rows) if estimate.name in models
            ]
            groups.append((_group_name(*place, shown), some))
        if any(estimate.value is not None for _, some in groups for estimate in some):
            title = f"{METRICS[metric].name} by horizon and landmark for {cause}"
            plots += _forest(
                groups, title=title, label=METRICS[metric].name, reference=reference, floor=floor
            )
    return plots


def gap_forests(table: Scores, shown: Shown) -> list[Figure]:
    """Our model less each baseline in C and IPA for the cause of interest, and in NLL."""
    plots = []
    for metric in ("c", "ipa", "nll"):
        groups = []
        for place in (
            table.combinations() if metric != "nll" else [(at, None) for at in table.landmarks]
        ):
            found = [
                table.gap(name, *place, metric) if name in table.rivals else None
                for name in table.models
            ]
            groups.append((_group_name(*place, shown), _estimates(table.models, found)))
        name, side = METRICS[metric].name, "right" if METRICS[metric].better > 0 else "left"
        title, label = (
            f"Difference in {name} to each baseline",
            f"difference in {name} ({side}: ours is better)",
        )
        plots += _forest(groups, title=title, label=label, reference=0.0, floor=-0.5)
    return plots


def _estimates(models: Sequence[str], rows: Sequence[Mapping[str, Any] | None]) -> list[Estimate]:
    """The rows that exist and are not withheld."""
    return [
        Estimate(kind, name, row["value"], row["low"], row["high"])
        for kind, (name, row) in enumerate(zip(models, rows, strict=True))
        if row is not None and not row.get("hidden")
    ]


def _forest(groups: Sequence[tuple[str, list[Estimate]]], **options: Any) -> list[Figure]:
    some = [group for group in groups if group[1]]
    return [figures.forest(some, **options)] if some else []


def _group_name(landmark: float | None, horizon: float | None, shown: Shown) -> str:
    where = (
        "all times"
        if landmark is None
        else from_landmark(landmark).replace("after the index", "after index")
    )
    people = shown.get(("at_risk", landmark))
    by = "over all horizons" if horizon is None else f"by {duration(horizon)}"
    return f"{where}\n{by}" + ("" if people is None else f", {size(people)}")


# ------------------------------------------------------------------------------------- calibration, risks, decisions


def calibrations(m: Mapping[str, Any], table: Scores, shown: Shown) -> list[Panel]:
    """Calibration of our model, with a baseline behind it; no figure where too few people had the event."""
    drawn, ours = [], table.models[0]
    behind = [row["model"] for row in m["calibration"] if row["model"] in table.models[1:]][:1]
    for row in (row for row in m["calibration"] if row["model"] == ours):
        here = [
            r
            for r in m["calibration"]
            if r["model"] in (ours, *behind) and place_of(r) == place_of(row)
        ]
        series = [
            (table.models.index(r["model"]), r["model"], _groups(r))
            for r in sorted(here, key=lambda r: table.models.index(r["model"]))
        ]
        names = [name for _, name, _ in series]
        curves = [
            r
            for r in m.get("smooth_calibration") or []
            if r["model"] in names and place_of(r) == place_of(row)
        ]
        smooth = [
            _smooth(r, table.models.index(r["model"])) for r in curves if len(r["predicted"]) > 1
        ]
        figure, where = None, caption(row, shown)
        if series and series[0][0] == 0:
            title = f"Calibration for {row['cause']}: {where}"
            figure = figures.calibration(
                series, title=title, curves=sorted(smooth, key=lambda c: c.kind)
            )
        drawn.append(Panel(row["cause"], where, figure, _distance(table, place_of(row))))
    return drawn


def _groups(row: Mapping[str, Any]) -> list[figures.CalibrationGroup]:
    columns = (row[name] for name in ("predicted", "observed", "low", "high", "n"))
    return [figures.CalibrationGroup(*group) for group in zip(*columns, strict=True)]


def _smooth(row: Mapping[str, Any], kind: int) -> Curve:
    """The curve where it is defined, with its band where it has one."""
    bands = [row.get(name) or [] for name in ("low", "high")]
    banded = all(len(band) == len(row["predicted"]) for band in bands)
    points = zip(row["predicted"], row["observed"], *(bands if banded else []), strict=True)
    x, y, *rest = _columns([point for point in points if None not in point], 4 if banded else 2)
    low, high = rest if banded else ([], [])
    return Curve(kind, row["model"], x, y, low, high)


def _columns(points: Sequence[Sequence[float]], count: int) -> list[list[float]]:
    return [[point[k] for point in points] for k in range(count)]


def _distance(table: Scores, place: tuple[Any, Any, Any]) -> dict[str, Any] | None:
    """The ICI of our model, and what a perfectly calibrated model would show by chance."""
    ici, chance = (
        table.values.get((table.models[0], *place, name)) for name in ("ici", "ici_null")
    )
    if ici is None or ici["value"] is None:
        return None
    return {
        "kind": "calibration",
        "ici": ici,
        "chance": None if chance is None else chance["value"],
    }


def incidences(m: Mapping[str, Any], shown: Shown) -> list[Panel]:
    """Observed and predicted incidence by risk group, per landmark and cause."""
    rows = m.get("incidence") or []
    return [Panel(row["cause"], caption(row, shown), incidence_of(row)) for row in rows]


def risks(m: Mapping[str, Any], shown: Shown) -> list[Panel]:
    """Histograms of the predicted risk by what became of the subjects."""
    drawn = []
    groups = (("event", "had the event", ""), ("no_event", "did not", "other"))
    for row in m["risk_distribution"]:
        ridges = []
        for name, label, style in (*groups, ("unknown", "lost before then", "unknown")):
            people = shown["risk", *place_of(row), name]
            bars = [
                bar
                for bar in zip(row["edges"], row["edges"][1:], row[name], strict=False)
                if isinstance(bar[-1], int)
            ]
            some = any(count for *_, count in bars)
            told = f"{label}, {size(people)}{'' if some else ': not drawn'}"
            ridges.append(figures.Ridge(told, style, bars if some else []))
        where, axis = caption(row, shown), f"predicted risk by {duration(row['horizon_days'])}"
        title = f"Predicted risk of {row['cause']}: {where}"
        some = any(ridge.bars for ridge in ridges)
        figure = figures.risk_distribution(ridges, title=title, label=axis) if some else None
        drawn.append(Panel(row["cause"], where, figure))
    return drawn


def decisions(m: Mapping[str, Any], models: Sequence[str], shown: Shown) -> list[Panel]:
    """Decision curves of our model and a baseline beside acting on everyone and on nobody."""
    rows = [row for row in m.get("decision") or [] if row["model"] in models]
    drawn = []
    for row in (row for row in rows if row["model"] == models[0]):
        figure, note, where = None, None, caption(row, shown)
        here = [r for r in rows if place_of(r) == place_of(row)]
        lines = [_net_benefit(r, models.index(r["model"])) for r in here]
        lines = sorted((c for c in lines if len(c.x) > 1), key=lambda c: c.kind)
        if lines and lines[0].kind == 0:
            treat_all = zip(row["thresholds"], row["treat_all"], strict=True)
            x, y = _columns([point for point in treat_all if None not in point], 2)
            everyone = Curve(9, "act on everyone", x, y, style="grey")
            title = f"Decision curve for {row['cause']}: {where}"
            figure = figures.decision([*lines, everyone], title=title)
            note = {
                "kind": "decision",
                "events": row["events"],
                "landmark": row["landmark_days"],
                "best": _best_range(row, here),
            }
        drawn.append(Panel(row["cause"], where, figure, note))
    return drawn


def _net_benefit(row: Mapping[str, Any], kind: int) -> Curve:
    """A decision curve where it is defined, with its band where it has one."""
    nothing = [None] * len(row["thresholds"])
    bands = [row.get(name) or nothing for name in ("low", "high")]
    points = zip(row["thresholds"], row["net_benefit"], *bands, strict=True)
    x, y, low, high = _columns([point for point in points if point[1] is not None], 4)
    banded = None not in low and None not in high
    return Curve(kind, row["model"], x, y, low if banded else (), high if banded else ())


def _best_range(
    row: Mapping[str, Any], others: Sequence[Mapping[str, Any]]
) -> tuple[float, float] | None:
    """The longest range of thresholds where the lower limit of our band is above all other curves; None without one."""
    low = row.get("low") or [None] * len(row["thresholds"])
    best = []
    for k in range(len(row["thresholds"])):
        curves = [r["net_benefit"][k] for r in others if r["model"] != row["model"]]
        rivals = [0.0, row["treat_all"][k], *curves]
        best.append(low[k] is not None and all(v is None or low[k] > v for v in rivals))
    runs = [
        (won, [k for k, _ in run])
        for won, run in groupby(enumerate(best), key=lambda item: item[1])
    ]
    longest = max((run for won, run in runs if won), key=len, default=[])
    return (
        None
        if len(longest) < 2
        else (row["thresholds"][longest[0]], row["thresholds"][longest[-1]])
    )


# --------------------------------------------------------------------------------- single subjects, training, truth


def trajectory(m: Mapping[str, Any], t: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of one de-identified subject, per cause: timeline, risk over time, and whole curves over the horizons."""
    times, horizons, panels = t["times_days"], t["horizons_days"], []
    whole = t.get("full")
    wanted = [h for h in horizons if h in m["horizons_days"]] or horizons[-3:]
    few = sorted({round(k * (len(times) - 1) / 4) for k in range(5)})
    for cause, risks in t["curves"].items():
        top = min(1.0, max(max(row) for row in risks) * 1.08) or 0.01
        who = f"subject {t['label']}, {cause}"
        lines = [(duration(h), [row[horizons.index(h)] for row in risks]) for h in wanted]
        curves = [(times[k], risks[k]) for k in few]
        days = horizons
        if whole:
            days, curves = (
                t["curve_days"],
                [(times[k], whole[cause][j]) for j, k in enumerate(t["curve_at"])],
            )
            top = min(1.0, max(top, 1.08 * max(max(curve) for _, curve in curves)))
        over_time, over_horizons = (
            f"Predicted risk over time: {who}",
            f"Risk curve over the horizons: {who}",
        )
        plots = [figures.risk_curves(days, curves, title=over_horizons, top=top)]
        if len(times) > 1:
            plots.insert(
                0, figures.risk_over_time(times, lines, t["kind"], title=over_time, top=top)
            )
        panels.append((cause, plots))
    patient = patient_of(t)
    timeline = patient_figure(
        patient, title=f"Timeline of subject {t['label']} with the risk curve"
    )
    told = {
        "timeline": timeline,
        "changes": largest_changes(patient),
        "banded": bool(patient.bands),
    }
    outcome = t["outcome"]
    if event := t.get("event"):
        outcome = f"{event['cause'] or 'event-free'} at {about(event['day'])}"
    return told | {
        "label": t["label"],
        "outcome": outcome,
        "times": len(times),
        "panels": panels,
        "causes": len(t["curves"]),
        "horizon": duration(patient.horizon_days),
        "has_event": bool(event and event["cause"]),
    }


def training(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Training curves, and which epoch was kept."""
    best = next((row["epoch"] for row in reversed(history) if row.get("best")), None)
    plots = []
    for name, title in (("train_loss", "Training loss"), ("tuning_nll", "Tuning NLL")):
        rows = [row for row in history if row.get(name) is not None]
        if rows:
            epochs, values = [row["epoch"] for row in rows], [row[name] for row in rows]
            plots.append(
                (title, figures.training_curve(epochs, values, title=title, best_epoch=best))
            )
    seconds = sum(row.get("seconds") or 0 for row in history)
    return {"plots": plots, "epochs": len(history), "best": best, "seconds": seconds}


def oracle(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The model's NLL between that of no knowledge and that of the true hazards of a simulation."""
    if found is None:
        return None
    values: list[Any] = [found.get(name) for name in ("nll_null", "nll_model", "nll_oracle")]
    title = "NLL between no knowledge and the truth"
    figure = None if None in values else figures.oracle_bar(*values, title=title)
    differences: dict[
        tuple[Any, ...], dict[str, Any]
    ] = {}  # ours less the truth in C and O/E, by place
    for row in found.get("differences", []):
        if row["metric"] in ("c", "oe"):
            place = dict(zip(("landmark", "cause", "horizon"), place_of(row), strict=True))
            words = str(row["reason"]) if row.get("hidden") else signed(row, row["metric"])
            differences.setdefault(place_of(row), place)[row["metric"]] = words
    z = found.get("beats_oracle_z")
    return {
        "figure": figure,
        "share": found.get("gain_share"),
        "share_se": found.get("gain_share_se"),
        "expected": found.get("gain_share_expected"),
        "z": z,
        "leak": z is not None and z > 3,
        "differences": list(differences.values()),
    }
