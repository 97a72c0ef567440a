"""One patient's timeline with the risk curve: what was recorded, what was predicted at each visit, and what happened.

In: a `Patient`, in days since the index. Out: one SVG. It is used by the report and by pictures in the documentation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import escape

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.reporting.chart import Chart, Figure, ticks
from ehrsequencing.reporting.wording import duration, number, percent, percent_mark, plain
from ehrsequencing.results.result_types import Trajectory

WIDTH, MOST_LANES, LANE = 560.0, 5, 17.0
_KINDS = {  # lanes in the field's words, by the prefix of a code
    "DX": "diagnoses",
    "DIAGNOSIS": "diagnoses",
    "CONDITION": "diagnoses",
    "RX": "drugs",
    "MEDICATION": "drugs",
    "DRUG": "drugs",
    "PROC": "procedures",
    "PROCEDURE": "procedures",
    "LAB": "laboratory",
    "MEASUREMENT": "laboratory",
    "VITAL": "vital signs",
    "STAY": "hospital stays",
    "HOSPITAL_ADMISSION": "hospital stays",
    "VISIT": "visits",
    "HOSPITAL_DISCHARGE": "hospital stays",
}


@dataclass(frozen=True)
class Patient:
    """One patient up to one prediction, and what happened after it.

    Attributes:
        times_days: (T,) prediction times since the index, rising; the last is the one whose curves are drawn.
        risk: (T,) risk of the first cause within `horizon_days`, as predicted at each of them.
        horizon_days: By when.
        curve_days: (D,) days after the last prediction time, rising.
        curves: Cause → (D,) cumulative incidence from the last prediction time, the cause of interest first.
        bands: Cause → (low, high), (D,) each, where an ensemble gives them.
        visits: `day` since the index and `codes` of each visit until the last prediction time.
        event: Day since the index and name of what happened then; None where nothing is known.
        censored: Whether `event` is the end of follow-up and not an event.
        descriptions: Words for codes.
        moves: The largest changes of the risk, each with the parts that add up to it, where they were explained.
    """

    times_days: Sequence[float]
    risk: Sequence[float]
    horizon_days: float
    curve_days: Sequence[float]
    curves: Mapping[str, Sequence[float]]
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    visits: Sequence[dict[str, Any]] = ()
    event: tuple[float, str] | None = None
    censored: bool = False
    descriptions: Mapping[str, str] = field(default_factory=dict)
    moves: Sequence[dict[str, Any]] = ()


def patient_of(row: Trajectory) -> Patient:
    """A patient from one row of `trajectories` in the content of `metrics.json`."""
    horizons, causes, now = row["horizons_days"], list(row["curves"]), row["now"]
    event = row["event"]
    own = horizons.index(row["risk_horizon_days"])
    days, curves = horizons, {name: row["curves"][name][now] for name in causes}
    if "full" in row:  # a file of predictions has risks at the horizons only
        shown, days = row["curve_at"].index(now), row["curve_days"]
        curves = {name: row["full"][name][shown] for name in causes}
    return Patient(
        times_days=row["times_days"][: now + 1],
        risk=[risks[own] for risks in row["curves"][causes[0]][: now + 1]],
        horizon_days=float(horizons[own]),
        curve_days=days,
        curves=curves,
        bands={name: (band["low"], band["high"]) for name, band in row.get("band", {}).items()},
        visits=row["visits"],
        event=(event["day"], event["cause"] or "end of follow-up"),
        censored=event["cause"] is None,
        descriptions=row["descriptions"],
        moves=row.get("moves", ()),
    )


def patient_figure(patient: Patient, *, title: str) -> Figure:
    """One patient's timeline with the risk curve, on one axis of time.

    Left of the line "prediction" lies the past: the risk within `horizon_days` as it was predicted at each time, and
    below it what was recorded, one lane for each kind of code (a filled mark is a code's first record, a faint one a
    repetition). Right of it lies what was predicted: the cumulative incidence of each cause after the last prediction
    time, with its band where there is one. The event, or the end of follow-up, is a labelled line. The risk at the end
    of the past is the value of the first curve `horizon_days` later.

    Args:
        patient: What is drawn. `patient_of` makes it from a row of `trajectories`.
        title: Name of the figure, for screen readers.

    Returns:
        The SVG (560 units wide), with the table of its numbers. It needs the page's style
        (`templates/chart.css.jinja`); `tools/draw_patient.py` makes a file of its own.

    Example:
        >>> patient = Patient([0.0, 90.0], [0.1, 0.2], 365.25, [180.0, 365.25], {"death": [0.1, 0.2]})
        >>> str(patient_figure(patient, title="Patient A"))[:16]
        '<svg class="fig '
    """
    now, lanes = patient.times_days[-1], lanes_of(patient)
    start = min([patient.times_days[0], *(visit["day"] for visit in patient.visits)])
    # cuts a long past, which would squeeze what is predicted
    start = max(start, now - 2.5 * patient.curve_days[-1])
    end = now + patient.curve_days[-1]
    per, unit = (DAYS_PER_YEAR, "years") if end - start >= 2 * DAYS_PER_YEAR else (1.0, "days")
    top = max([*patient.risk, *(max(curve) for curve in patient.curves.values())])
    top = max([top, *(max(high) for _, high in patient.bands.values())])
    top, head, plot = min(1.0, 1.1 * top) or 0.01, 38.0, 170.0
    below = LANE * len(lanes) + 12
    chart = Chart(
        WIDTH,
        head + plot + below + 40,
        (start / per, end / per),
        (0, top),
        left=112,
        right=100,
        top=head,
        bottom=below + 40,
    )
    _frame(chart, now / per, len(lanes), f"{unit} since the index", top)
    shown = [k for k, day in enumerate(patient.times_days) if day >= start]
    x, y = [patient.times_days[k] / per for k in shown], [patient.risk[k] for k in shown]
    steps = [
        (a, b) for k in range(len(x)) for a, b in ([(x[k], y[k - 1])] if k else []) + [(x[k], y[k])]
    ]
    chart.path([a for a, _ in steps], [b for _, b in steps])
    for at, risk in zip(x, y, strict=True):
        chart.mark(
            0,
            at,
            risk,
            f"{at:.3g} {unit}: risk within {duration(patient.horizon_days)} {percent(risk)}",
            size=2.4,
        )
        chart.rows.append(
            (f"{at:.3g}", f"risk within {duration(patient.horizon_days)}", percent(risk))
        )
    if chart.x(now / per) - chart.x.start > 160:
        chart.text(chart.x.low, top, f"risk within {duration(patient.horizon_days)}", dx=0, dy=-17)
    _curves(chart, patient, now, per)
    _happened(chart, patient, per)
    _marks(chart, patient, lanes, start, per)
    chart.rows = [(f"{time} {unit[0]}", *rest) for time, *rest in chart.rows]
    chart.columns = ("since the index", "what", "value")
    first, last = percent(patient.risk[0]), percent(patient.risk[-1])
    chart.told.insert(
        0, f"Risk within {duration(patient.horizon_days)}: {first} at first, {last} at the end"
    )
    return chart.svg(title, "fig wide")


def lanes_of(patient: Patient) -> list[tuple[str, list[tuple[float, str, bool]]]]:
    """Lanes of the timeline: (kind, marks), with a mark (day, words, first record) for each visit with that kind."""
    lanes: dict[str, dict[float, list[tuple[str, bool]]]] = {}
    before: set[str] = set()
    for visit in sorted(patient.visits, key=lambda visit: visit["day"]):
        for code in visit["codes"]:
            lanes.setdefault(kind_of(code), {}).setdefault(visit["day"], []).append(
                (code, code not in before)
            )
        before.update(visit["codes"])
    by_size = sorted(lanes, key=lambda kind: -len(lanes[kind]))
    if len(by_size) > MOST_LANES:
        for kind in [kind for kind in by_size[MOST_LANES - 1 :] if kind != "other"]:
            for day, codes in lanes.pop(kind).items():
                lanes.setdefault("other", {}).setdefault(day, []).extend(codes)
        by_size = [*(kind for kind in by_size[: MOST_LANES - 1] if kind != "other"), "other"]

    def mark(codes: Sequence[tuple[str, bool]]) -> tuple[str, bool]:
        return ", ".join(words_of(code, patient.descriptions) for code, _ in codes), any(
            new for _, new in codes
        )

    return [
        (kind, [(day, *mark(codes)) for day, codes in sorted(lanes[kind].items())])
        for kind in by_size
    ]


def kind_of(code: str) -> str:
    """The kind of a code in the field's words, by its prefix: its lane in a timeline.

    >>> kind_of("DX//I10"), kind_of("HOME_CARE//1"), kind_of("Weight")
    ('diagnoses', 'home care', 'other')
    """
    prefix, _, rest = code.partition("//")
    return _KINDS.get(prefix.upper(), prefix.lower().replace("_", " ") if rest else "other")


def words_of(code: str, descriptions: Mapping[str, str]) -> str:
    """The description of a code, or its name, in at most 100 characters.

    >>> words_of("DX//I10", {"DX//I10": "Essential hypertension"}), words_of("RX//C07", {})
    ('Essential hypertension', 'RX//C07')
    """
    words = descriptions.get(code) or code
    return words if len(words) <= 100 else words[:99].rstrip() + "…"


def _frame(chart: Chart, now: float, lanes: int, label: str, top: float) -> None:
    """Axes, and the future as a tinted area behind everything."""
    chart.bar((now, chart.x.high), top, 0, "future")
    chart.y_axis("risk", percent_mark)
    base = LANE * lanes + 12
    for tick in ticks(chart.x.low, chart.x.high, 6):
        chart.text(tick, 0, plain(tick), "mid", dy=base + 12)
    chart.line(chart.x.low, 0, chart.x.high, 0, "axis")
    chart.text((chart.x.low + chart.x.high) / 2, 0, label, "mid", dy=base + 29)
    chart.verticals([now], "reference")
    is_late = chart.x(now) > chart.width - 170
    chart.text(
        now,
        top,
        "prediction",
        "end strong" if is_late else "strong",
        dx=-4 if is_late else 4,
        dy=-21,
    )


def _curves(chart: Chart, patient: Patient, now: float, per: float) -> None:
    ends = []
    for kind, (cause, curve) in enumerate(patient.curves.items()):
        x, y = [now / per, *((now + day) / per for day in patient.curve_days)], [0.0, *curve]
        if cause in patient.bands:
            low, high = patient.bands[cause]
            chart.band(x, [0.0, *low], [0.0, *high], f"b{kind}" if kind else "")
        chart.path(x, y, f"k{min(kind, 3)}" if kind else "")
        ends.append((curve[-1], cause if len(cause) <= 11 else cause[:10] + "…"))
        chart.told.append(
            f"{cause}: {percent(curve[-1])} within {duration(patient.curve_days[-1])}"
        )
        for day, risk in zip(patient.curve_days, curve, strict=True):
            if day in (patient.horizon_days, patient.curve_days[-1]):
                chart.rows.append(
                    (
                        f"{(now + day) / per:.3g}",
                        f"predicted risk of {cause} by then",
                        percent(risk),
                    )
                )
    chart.end_labels(ends)


def _happened(chart: Chart, patient: Patient, per: float) -> None:
    """The event as a labelled line; at the border where it lies beyond the axis."""
    if patient.event is None:
        return
    day, words = patient.event
    inside = chart.x.low <= day / per <= chart.x.high
    at = day / per if inside else chart.x.high
    if inside:
        chart.line(
            at, chart.y.low, at, chart.y.high, "happened" if not patient.censored else "ended"
        )
        chart.mark(0, at, chart.y.high, words, hollow=patient.censored, size=4, style="happened")
    text = words if inside else f"{words} later, at {day / per:.3g}"
    side = "end" if chart.x(at) > chart.width - 190 else ""
    chart.text(at, chart.y.high, text, f"strong {side}".rstrip(), dx=-6 if side else 6, dy=-5)
    chart.told.append(f"{words} at {day / per:.3g}")
    chart.rows.append((f"{day / per:.3g}", words, ""))


def _marks(
    chart: Chart,
    patient: Patient,
    lanes: Sequence[tuple[str, list[tuple[float, str, bool]]]],
    start: float,
    per: float,
) -> None:
    for lane, (kind, marks) in enumerate(lanes):
        dy = LANE * (lane + 0.5) + 8
        y = chart.y.start + dy
        end = chart.x(patient.times_days[-1] / per)
        ends = f'x1="{chart.x.start:.1f}" y1="{y:.1f}" x2="{end:.1f}" y2="{y:.1f}"'
        chart.drawn.append(f'<line {ends} class="grid"/>')
        chart.text(
            chart.x.low, 0, kind if len(kind) <= 14 else kind[:13] + "…", "end", dx=-6, dy=dy + 4
        )
        for day, words, is_new in marks:
            if day >= start:
                place = f'x="{chart.x(day / per) - 1.5:.1f}" y="{y - 5:.1f}"'
                look = f'width="3" height="10" rx="1" class="{"seen" if is_new else "again"}"'
                hover = f"<title>{escape(f'{day / per:.3g}: {words}')}</title>"
                chart.drawn.append(f"<rect {place} {look}>{hover}</rect>")
                chart.rows.append((f"{day / per:.3g}", kind, words))


def moved(row: dict[str, Any], descriptions: Mapping[str, str]) -> dict[str, Any]:
    """A change of the risk in words: `day`, `before`, `after`; `codes`, at most three with their points; `more`."""
    parts = sorted(row["parts"], key=lambda part: -abs(part["change"]))
    codes = []
    for part in parts[:3]:
        name = words_of(part["code"], descriptions) if part["code"] else "time passing"
        if part["code"] is None and part["codes"]:
            name = f"{part['codes']} other codes together"
        points = 100 * part["change"]
        codes.append((name, number(points, "+.1f")))
    return {**row, "codes": codes, "more": max(len(parts) - 3, 0)}
