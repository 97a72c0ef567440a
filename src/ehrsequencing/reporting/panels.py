"""The report's figures, from metrics and published counts: no count is drawn that may not be printed."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import groupby
from typing import Any

from markupsafe import Markup

from ehrsequencing.disclosure.small_counts import exact, merge_bins, pool_groups
from ehrsequencing.metrics.minimum_counts import SMALLEST_COUNT
from ehrsequencing.reporting import curves, figures, svg
from ehrsequencing.reporting.figures import CalibrationPoint, Curve
from ehrsequencing.reporting.scores import Scores
from ehrsequencing.reporting.wording import METRICS, duration, from_landmark, size


@dataclass(frozen=True)
class Panel:
    """One figure of a place (landmark, cause, horizon); None where it would show a small count."""

    cause: str
    caption: str
    figure: Markup | None
    note: str = ""


def by_cause(m: Mapping[str, Any], drawn: Sequence[Panel]) -> list[tuple[str, list[Panel]]]:
    """Figures under their causes, the cause of interest first."""
    grouped = [(cause, [panel for panel in drawn if panel.cause == cause]) for cause in m["causes"]]
    return [(cause, some) for cause, some in grouped if some]


def _place(row: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return row["landmark_days"], row["cause"], row["horizon_days"]


def caption(row: Mapping[str, Any], shown: Mapping[Any, str]) -> str:
    """Where a figure belongs, and how many it is about."""
    place = f"{from_landmark(row['landmark_days'])}, by {duration(row['horizon_days'])}".capitalize()
    people = shown.get(("at_risk", row["landmark_days"]))
    if people is not None:
        return f"{place}, {size(people)}"
    rows = shown.get(("curve", *_place(row), "n"))
    return place if rows is None else f"{place}, {size(rows)} prediction times"


def calibrations(m: Mapping[str, Any], table: Scores, shown: Mapping[Any, str]) -> list[Panel]:
    """Calibration of our model, with a baseline behind it; no figure where it would show a small count."""
    drawn, ours = [], table.models[0]
    behind = [row["model"] for row in m["calibration"] if row["model"] in table.models[1:]][:1]
    for row in m["calibration"]:
        if row["model"] != ours:
            continue
        series = [
            (table.models.index(r["model"]), r["model"], [CalibrationPoint(*astuple(g)) for g in pool_groups(r)])
            for r in m["calibration"]
            if r["model"] in (ours, *behind) and _place(r) == _place(row)
        ]
        series = sorted((s for s in series if s[2]), key=lambda s: s[0])
        smooth = [
            _smooth(r, table.models.index(r["model"]))
            for r in m.get("smooth_calibration") or []
            if r["model"] in [name for _, name, _ in series] and _place(r) == _place(row) and len(r["predicted"]) > 1
        ]
        figure = None
        events, at_risk = shown.get(("by", *_place(row)), "0"), shown.get(("at_risk", row["landmark_days"]), "0")
        if not (exact(events) and exact(at_risk)):  # the sizes of the groups add up to those at risk
            series = [(kind, name, _rough(points)) for kind, name, points in series if events[0] not in "<h"]
            smooth = [_rough_curve(curve) for curve in smooth]
        if series and series[0][0] == 0:
            title = f"Calibration for {row['cause']}: {caption(row, shown)}"
            figure = Markup(figures.calibration(series, title=title, curves=sorted(smooth, key=lambda c: c.kind)))
        drawn.append(Panel(row["cause"], caption(row, shown), figure, _distance(table, _place(row))))
    return drawn


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


def _distance(table: Scores, place: tuple[Any, Any, Any]) -> str:
    landmark, cause, horizon = place
    ici, chance = (table.values.get((table.models[0], landmark, cause, horizon, k)) for k in ("ici", "ici_null"))
    if ici is None or ici["value"] is None:
        return ""
    between = "" if ici["low"] is None or ici["high"] is None else f" ({ici['low']:.1%} to {ici['high']:.1%})"
    told = f"Mean distance from the diagonal (ICI) {ici['value']:.1%}{between}"
    if chance is None or chance["value"] is None:
        return f"{told}."
    words = "no more than chance" if ici["value"] <= chance["value"] else "more than chance"
    return f"{told}; right risks would stay under {chance['value']:.1%}: {words}."


def _rough(points: Sequence[CalibrationPoint]) -> list[CalibrationPoint]:
    """Round the risks of points whose exact place would give away a withheld count."""
    reach = max((p.observed if p.high is None else p.high for p in points), default=1.0)
    step = _step(reach)

    def near(risk: float | None) -> Any:
        return None if risk is None else round(risk / step) * step

    return [CalibrationPoint(near(p.predicted), near(p.observed), near(p.low), near(p.high), None) for p in points]


def _rough_curve(curve: Curve) -> Curve:
    """The same for a curve."""
    step = _step(max((*curve.y, *curve.high), default=1.0))

    def near(values: Sequence[float]) -> list[float]:
        return [round(v / step) * step for v in values]

    return replace(curve, y=near(curve.y), low=near(curve.low), high=near(curve.high))


def _step(reach: float) -> float:
    return next(s for s in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05) if s >= min(reach / 25, 0.05))


def risks(m: Mapping[str, Any], shown: Mapping[Any, str]) -> list[Panel]:
    """Histograms of the predicted risk by what became of the subjects."""
    drawn = []
    names = {
        "event": ("had the event", ""),
        "no_event": ("did not", "other"),
        "unknown": ("lost before then", "unknown"),
    }
    for row in m["risk_distribution"]:
        ridges = []
        for name, (label, style) in names.items():
            people = shown["risk", row["landmark_days"], row["cause"], row["horizon_days"], name]
            drawn_at_all = exact(people) or people[0] == "≥"
            bars = merge_bins(row["edges"], row[name]) if drawn_at_all else []
            told = f"{label}, {size(people)}{'' if drawn_at_all else ': not drawn'}"
            ridges.append(figures.Ridge(told, style, bars, rough=not exact(people)))
        title = f"Predicted risk of {row['cause']}: {caption(row, shown)}"
        label = f"predicted risk by {duration(row['horizon_days'])}"
        some = any(ridge.bars for ridge in ridges)
        figure = Markup(figures.risk_distribution(ridges, title=title, label=label)) if some else None
        drawn.append(Panel(row["cause"], caption(row, shown), figure))
    return drawn


def decisions(m: Mapping[str, Any], models: Sequence[str], shown: Mapping[Any, str]) -> list[Panel]:
    """Decision curves of our model and a baseline beside acting on everyone and on nobody.

    Net benefit times the number of people is made of counts, so the curves are rounded to five people, they end where
    fewer than 11 people have a higher risk, and there is none unless events and others may both be told.
    """
    rows = [row for row in m.get("decision") or [] if row["model"] in models]
    drawn = []
    for row in rows:
        if row["model"] != models[0]:
            continue
        n, events = (shown.get(("curve", *_place(row), name), "hidden") for name in ("n", "events"))
        figure, note = None, ""
        if exact(n) and exact(events) and min(row["events"], row["n"] - row["events"]) >= SMALLEST_COUNT:
            last = _highest_threshold(m, row)
            lines = [_net_benefit(r, models.index(r["model"]), last) for r in rows if _place(r) == _place(row)]
            lines = sorted((c for c in lines if len(c.x) > 1), key=lambda c: c.kind)
            if lines and lines[0].kind == 0:
                treat_all = zip(row["thresholds"], row["treat_all"], strict=True)
                x, y = _columns([(p, v) for p, v in treat_all if v is not None and p <= last], 2)
                everyone = Curve(9, "act on everyone", x, y, style="grey")
                title = f"Decision curve for {row['cause']}: {caption(row, shown)}"
                figure = Markup(curves.decision([*lines, everyone], title=title))
                what = "events" if row["landmark_days"] is not None else "prediction times before an event"
                note = f"{events} {what}. {_best_range(row, [r for r in rows if _place(r) == _place(row)], last)}"
        drawn.append(Panel(row["cause"], caption(row, shown), figure, note))
    return drawn


def _highest_threshold(m: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    """The highest risk that at least 11 people exceed for certain, by the histogram of the same place."""
    for shape in m["risk_distribution"]:
        if _place(shape) == _place(row):
            people = [sum(some) for some in zip(shape["event"], shape["no_event"], shape["unknown"], strict=True)]
            above = [edge for k, edge in enumerate(shape["edges"][:-1]) if sum(people[k:]) >= SMALLEST_COUNT]
            return float(max(above, default=0.0))
    return 0.5


def _net_benefit(row: Mapping[str, Any], kind: int, last: float) -> Curve:
    """A curve rounded to five people: one point for each stretch of equal values, in its middle."""
    step, points = 5.0 / row["n"], []
    bands = [row.get(name) or [None] * len(row["thresholds"]) for name in ("low", "high")]
    for p, *values in zip(row["thresholds"], row["net_benefit"], *bands, strict=True):
        if p <= last and values[0] is not None:
            points.append((p, *(None if v is None else round(v / step) * step for v in values)))
    runs = [list(run) for _, run in groupby(points, key=lambda point: point[1])]
    middles = [run[len(run) // 2] for run in runs]
    if points:
        middles = [(points[0][0], *middles[0][1:]), *middles[1:-1], (points[-1][0], *middles[-1][1:])]
    x, y, low, high = _columns(middles, 4)
    banded = None not in low and None not in high
    return Curve(kind, row["model"], x, y, low if banded else (), high if banded else ())


def _best_range(row: Mapping[str, Any], others: Sequence[Mapping[str, Any]], last: float) -> str:
    """From which to which threshold our curve lies above all others by more than it is rounded to, in words."""
    best, margin = [], 5.0 / row["n"]
    for k, p in enumerate(row["thresholds"]):
        rivals = [0.0, row["treat_all"][k], *(r["net_benefit"][k] for r in others if r["model"] != row["model"])]
        ours = row["net_benefit"][k]
        best.append(ours is not None and p <= last and all(v is None or ours > v + margin for v in rivals))
    runs = [(won, [k for k, _ in run]) for won, run in groupby(enumerate(best), key=lambda item: item[1])]
    longest = max((run for won, run in runs if won), key=len, default=[])
    if len(longest) < 2:
        return "By these estimates nowhere worth more than every alternative."
    ends = (svg.percent(row["thresholds"][longest[k]]) for k in (0, -1))
    return "By these estimates worth more than every alternative for who would act from {} to {} risk.".format(*ends)


def trajectory(m: Mapping[str, Any], t: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of one de-identified subject, per cause: risk over time, and the curve over the horizons."""
    times, horizons, panels = t["times_days"], t["horizons_days"], []
    wanted = [h for h in horizons if h in m["horizons_days"]] or horizons[-3:]
    few = sorted({round(k * (len(times) - 1) / 4) for k in range(5)})
    for cause, risks in t["curves"].items():
        top = min(1.0, max(max(row) for row in risks) * 1.08) or 0.01
        who = f"subject {t['label']}, {cause}"
        lines = [(duration(h), [row[horizons.index(h)] for row in risks]) for h in wanted]
        plots = []
        if len(times) > 1:
            title = f"Predicted risk over time: {who}"
            plots.append(Markup(figures.risk_over_time(times, lines, t["kind"], title=title, top=top)))
        curves = [(times[k], risks[k]) for k in few]
        title = f"Risk curve over the horizons: {who}"
        plots.append(Markup(figures.risk_curves(horizons, curves, title=title, top=top)))
        panels.append((cause, plots))
    return {"label": t["label"], "outcome": t["outcome"], "times": len(times), "panels": panels}


def training(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Training curves, and which epoch was kept."""
    best = next((row["epoch"] for row in reversed(history) if row.get("best")), None)
    plots = []
    for name, title in (("train_loss", "Training loss"), ("tuning_nll", "Tuning NLL")):
        rows = [row for row in history if row.get(name) is not None]
        if rows:
            epochs, values = [row["epoch"] for row in rows], [row[name] for row in rows]
            plots.append((title, Markup(figures.training_curve(epochs, values, title=title, best_epoch=best))))
    seconds = sum(row.get("seconds") or 0 for row in history)
    return {"plots": plots, "epochs": len(history), "best": best, "seconds": seconds}


def oracle(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Where the model stands between knowing nothing and the truth of a simulation."""
    if found is None:
        return None
    values = [found["nll_null"], found["nll_model"], found["nll_oracle"]]
    figure = None
    if all(v is not None for v in values):
        figure = Markup(figures.oracle_bar(*values, title="NLL between no knowledge and the truth"))
    share, se, z = found["gain_share"], found.get("gain_share_se"), found.get("beats_oracle_z")
    reached = "undefined" if share is None else f"{share:.1%}" + ("" if se is None else f" (standard error {se:.1%})")
    return {
        "figure": figure, "reached": reached, "z": z, "leak": z is not None and z > 3,
        "risks": found.get("risks", []), "mechanisms": found.get("mechanisms", []),
        "expected": found.get("gain_share_expected"), "differences": _beside_truth(found.get("differences", [])),
    }  # fmt: skip


def _beside_truth(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Ours less the truth in C and O/E: a row per landmark, cause and horizon, values and intervals in words."""
    told: dict[tuple[Any, Any, Any], dict[str, Any]] = {}
    for row in rows:
        if row["metric"] in ("c", "oe"):
            place = dict(zip(("landmark", "cause", "horizon"), _place(row), strict=True))
            told.setdefault(_place(row), place)[row["metric"]] = _signed(row)
    return list(told.values())


def _signed(row: Mapping[str, Any]) -> str:
    if row["value"] is None:
        return str(row["reason"]) if row.get("hidden") else "undefined"
    digits = METRICS[row["metric"]].digits
    between = ""
    if row["low"] is not None and row["high"] is not None:
        between = f" ({row['low']:+.{digits}f} to {row['high']:+.{digits}f})"
    return f"{row['value']:+.{digits}f}{between}"
