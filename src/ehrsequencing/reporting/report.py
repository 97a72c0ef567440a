"""One self-contained `report.html` from an evaluation's metrics: what was predicted, for whom, how well.

The page needs no script and no network; its content security policy forbids both. Everything is escaped, nobody's id
or date is read, and every count of people goes through `small_counts` before it is printed or drawn.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ehrsequencing.errors import EhrseqError
from ehrsequencing.reporting import figures
from ehrsequencing.reporting.figures import CalibrationPoint
from ehrsequencing.reporting.scores import METRICS, Scores, duration, from_landmark, listed
from ehrsequencing.reporting.small_counts import excluded, merge_bins, pool_groups, publish
from ehrsequencing.storage import write_bytes

_REQUIRED = (
    "title", "split", "created", "versions", "task", "question", "data", "causes", "horizons_days", "attrition",
    "events", "models", "metrics", "at_risk", "calibration", "risk_distribution", "trajectories", "history", "config",
    "warnings",
)  # fmt: skip
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # no XML may hold these


HUMAN_ITEMS = {
    "Intended use and users": "who acts on the risk, in which decision, at which moment of care",
    "Ethics approval": "committee, reference, or why none is needed",
    "Data governance": "legal basis, licence, data use agreement, who may read this report",
    "Clinical review of the codes": "who confirmed that outcome, index and censoring codes mean what is claimed",
    "External validation": "another hospital, country or period, by people who did not build the model",
    "Fairness": "in whom errors would do most harm, and who judged the results there",
    "Monitoring": "how drift and harm will be noticed in use, and who can switch the model off",
    "Patient and public involvement": "who was asked, and what changed",
    "Responsible person": "name and contact, funding, conflicts of interest",
}


def write_report(metrics: Mapping[str, Any], out: Path) -> None:
    """Render the metrics of an evaluation as one HTML file.

    Args:
        metrics: The content of `metrics.json`.
        out: The HTML file to write, atomically.

    Raises:
        EhrseqError: The metrics lack a part of the report, or the file cannot be written.
    """
    write_bytes(out, render(metrics).encode())


def render(metrics: Mapping[str, Any]) -> str:
    """The report as a string of HTML."""
    missing = [name for name in _REQUIRED if name not in metrics]
    if missing:
        raise EhrseqError(f"has no {missing[0]!r}", where="metrics.json", mend="run ehrseq evaluate again")
    m = _clean(metrics)
    source = files(__package__).joinpath("template.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(duration=duration, landmark=from_landmark)
    return environment.from_string(source).render(_context(m))


def _clean(value: Any) -> Any:
    """Replace what no document may hold (control characters, half surrogates); NaN and infinity become undefined."""
    if isinstance(value, str):
        return _NOT_TEXT.sub("�", value)
    if isinstance(value, Mapping):
        return {_clean(key): _clean(inner) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_clean(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _context(m: dict[str, Any]) -> dict[str, Any]:
    shown = publish(m)
    table = Scores(m)
    return {
        "m": m, "style": Markup(figures.STYLE), "metrics": METRICS, "human_items": HUMAN_ITEMS,
        "swatches": [Markup(figures.swatch(k)) for k in range(len(table.models))],
        "models": table.models, "summary": _summary(m, table, shown), "headline": table.headline(),
        "definition": _definition(m["task"]), "flow": _flow(m["attrition"], shown), "shown": shown,
        "blocks": table.blocks(), "forests": table.forests(), "undefined": table.undefined,
        "calibrations": _by_cause(m, _calibrations(m, table.models, shown)), "risks": _by_cause(m, _risks(m, shown)),
        "trajectories": [_trajectory(m, t) for t in m["trajectories"] if t["times_days"]],
        "training": _training(m["history"]), "limits": _limits(m, table), "oracle": _oracle(m.get("oracle")),
        "audit": m.get("audit"),
        "settings": _flat(m["config"]),
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------ plain words


def _definition(task: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    """The task in words: (what, words, codes)."""
    index, censoring = task["index"], task.get("censoring") or {}
    after = f", plus {duration(index['after'])}" if index.get("after") else ""
    if index.get("code"):
        which = "each" if index.get("which") == "every" else "the first"
        start: tuple[str, list[str]] = (f"{which} of these codes{after}", index["code"])
    elif index.get("age"):
        start = (f"the day of age {duration(index['age'])}{after}", [])
    else:
        fixed = f"the date {index['date']}" if index.get("date") else "the end of the first visit"
        start = (f"{fixed}{after}", [])
    rows = [("Time zero (index)", *start)]
    rows += [(f"Outcome: {name}", "the first of these codes", codes) for name, codes in task["outcome"].items()]
    competing = (task.get("competing") or {}).items()
    rows += [(f"Competing: {name}", "ends follow-up as an event of its own", codes) for name, codes in competing]
    if censoring.get("code"):
        rows.append(("End of follow-up", "the first of these codes", censoring["code"]))
    elif censoring.get("date"):
        rows.append(("End of follow-up", f"the date {censoring['date']}", []))
    else:
        last = "the end of the data set" if censoring.get("dataset_end") else "the subject's last recorded event"
        rows.append(("End of follow-up", last, []))
    rows.append(("Horizons", listed(duration(h) for h in task["horizons"]) + " after each prediction", []))
    later = [duration(x) for x in task.get("landmarks") or [0.0] if x]
    at_once = 0.0 in (task.get("landmarks") or [0.0])
    compared = ["the index"] * at_once + (
        [f"{listed(later)} after {'it' if at_once else 'the index'}"] if later else []
    )
    rows.append(("Compared at", ", and ".join(compared), []))
    if task.get("blanking"):
        rows.append(("Blanking", f"the first {duration(task['blanking'])} after each prediction do not count", []))
    rows.append(("Known to the model", "only what is stamped at or before the moment of prediction", []))
    return rows


def _summary(m: Mapping[str, Any], table: Scores, shown: Mapping[Any, str]) -> list[tuple[str, str]]:
    """The five things a reader must take away: (heading, text)."""
    split, cause = m["split"], m["causes"][0]
    subjects = {s: shown["subjects", s] for s in m["data"]["subjects"] if ("subjects", s) in shown}
    trained = f"learned from {subjects['train']} subjects and " if split != "train" and "train" in subjects else ""
    rivals = m["causes"][1:]
    others = f" A competing event ({listed(rivals, 'or')}) may come first." if rivals else ""
    name = m["data"].get("name")
    data = f"Data: {name}. " if name else ""
    when = f"given for {listed(duration(h) for h in m['horizons_days'])} ahead" if m["horizons_days"] else "per visit"
    judged = f"{subjects.get(split, 'the')} {_split_name(split)} subjects"
    events = shown.get(("events", split, cause), "an unknown number")
    return [
        ("What was predicted", f"{m['question']} The answer is a probability, {when}.{others}"),
        (
            "For whom",
            f"{data}The model {trained}was judged on {judged}, of whom {events} had the event ({cause}) in follow-up.",
        ),
        ("How well", table.how_well()),
        ("Compared with what", table.compared()),
        ("Not to be used for", table.not_for()),
    ]


def _split_name(split: str) -> str:
    return {"held_out": "held-out", "train": "training"}.get(split, split)


def _limits(m: Mapping[str, Any], table: Scores) -> list[str]:
    by_date = (m["config"].get("splits") or {}).get("by") == "date"
    apart = "later subjects of the same source" if by_date else "other subjects of the same source, drawn alike"
    limits = [
        f"The numbers come from {apart}. They say nothing certain about another hospital, country or coding practice.",
        f"Risks are for at most {duration(max(m['horizons_days'] or [0.0]))} ahead. Nothing beyond that was tested.",
        "A code that is absent was not recorded; that does not mean that the condition was absent.",
        "What raises a predicted risk need not cause the event, and changing it need not change the outcome.",
        "Intervals show the chance in drawing these subjects, not the chance in training the model again.",
    ]
    if len(m["causes"]) > 1:
        limits.append(
            f"Risks of {listed(m['causes'])} are cumulative incidences: the chance of each happening first, in a world "
            "where the others also happen."
        )
    if table.undefined:
        limits.append(
            f"{table.undefined} of {len(m['metrics'])} metric values are undefined: too few subjects or events, or a "
            "model that gives everyone the same risk. They are shown as undefined, never as a guess."
        )
    return limits


# ------------------------------------------------------------------------------------------- cohort flow and figures


def _flow(steps: Sequence[Mapping[str, Any]], shown: Mapping[Any, str]) -> list[dict[str, str]]:
    return [
        {
            "step": step["step"],
            "subjects": shown["flow", i],
            "excluded": shown["out", i] if i and excluded(steps, i) else "",
            "reason": step.get("reason") or "",
        }
        for i, step in enumerate(steps)
    ]


def _by_cause(m: Mapping[str, Any], drawn: Sequence[tuple[str, str, Any]]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Figures (cause, caption, figure) under their causes, the cause of interest first."""
    grouped = [(cause, [(caption, figure) for c, caption, figure in drawn if c == cause]) for cause in m["causes"]]
    return [(cause, some) for cause, some in grouped if some]


def _caption(row: Mapping[str, Any], shown: Mapping[Any, str]) -> str:
    people = shown.get(("at_risk", row["landmark_days"]))
    place = f"{from_landmark(row['landmark_days'])}, by {duration(row['horizon_days'])}".capitalize()
    return place if people is None else f"{place}, {_size(people)}"


def _size(people: str) -> str:
    """`n = 312` or `n ≥11`, on one line."""
    return f"n\u00a0=\u00a0{people}" if _exact(people) else f"n\u00a0{people}"


def _calibrations(m: Mapping[str, Any], models: Sequence[str], shown: Mapping[Any, str]) -> list[tuple[str, str, Any]]:
    """Calibration of our model, with the strongest baseline behind it; no figure where it would show a small count."""
    drawn = []
    for row in m["calibration"]:
        if row["model"] != models[0]:
            continue
        place = tuple(row[name] for name in ("landmark_days", "cause", "horizon_days"))
        series = [
            (models.index(r["model"]), r["model"], pool_groups(r))
            for r in m["calibration"]
            if r["model"] in models[:2] and (r["landmark_days"], r["cause"], r["horizon_days"]) == place
        ]
        series = sorted((s for s in series if s[2]), key=lambda s: s[0])
        figure = None
        events = shown.get(("by", *place), "0")
        if not _exact(events):
            series = [(kind, name, _rough(points)) for kind, name, points in series] if events[0] == "≥" else []
        if series and series[0][0] == 0:
            figure = Markup(
                figures.calibration(series, title=f"Calibration for {row['cause']}: {_caption(row, shown)}")
            )
        drawn.append((row["cause"], _caption(row, shown), figure))
    return drawn


def _exact(text: str) -> bool:
    return text.replace(",", "").isdigit()


def _rough(points: Sequence[CalibrationPoint]) -> list[CalibrationPoint]:
    """Round the risks of points whose exact place would give away a withheld count."""
    reach = max((p.observed if p.high is None else p.high for p in points), default=1.0)
    step = next(s for s in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05) if s >= min(reach / 25, 0.05))

    def near(risk: float | None) -> Any:
        return None if risk is None else round(risk / step) * step

    return [CalibrationPoint(near(p.predicted), near(p.observed), near(p.low), near(p.high), None) for p in points]


def _risks(m: Mapping[str, Any], shown: Mapping[Any, str]) -> list[tuple[str, str, Any]]:
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
            drawn_at_all = _exact(people) or people[0] == "≥"
            bars = merge_bins(row["edges"], row[name]) if drawn_at_all else []
            told = f"{label}, {_size(people)}{'' if drawn_at_all else ': not drawn'}"
            ridges.append(figures.Ridge(told, style, bars, rough=not _exact(people)))
        title = f"Predicted risk of {row['cause']}: {_caption(row, shown)}"
        label = f"predicted risk by {duration(row['horizon_days'])}"
        some = any(ridge.bars for ridge in ridges)
        figure = Markup(figures.risk_distribution(ridges, title=title, label=label)) if some else None
        drawn.append((row["cause"], _caption(row, shown), figure))
    return drawn


def _trajectory(m: Mapping[str, Any], t: Mapping[str, Any]) -> dict[str, Any]:
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


def _training(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    best = next((row["epoch"] for row in reversed(history) if row.get("best")), None)
    plots = []
    for name, title in (("train_loss", "Training loss"), ("tuning_nll", "Tuning NLL at the landmarks")):
        rows = [row for row in history if row.get(name) is not None]
        if rows:
            epochs, values = [row["epoch"] for row in rows], [row[name] for row in rows]
            plots.append((title, Markup(figures.training_curve(epochs, values, title=title, best_epoch=best))))
    seconds = sum(row.get("seconds") or 0 for row in history)
    return {"plots": plots, "epochs": len(history), "best": best, "seconds": seconds}


def _oracle(oracle: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if oracle is None:
        return None
    values = [oracle["nll_null"], oracle["nll_model"], oracle["nll_oracle"]]
    figure = None
    if all(v is not None for v in values):
        figure = Markup(figures.oracle_bar(*values, title="NLL between no knowledge and the truth"))
    share, se, z = oracle["gain_share"], oracle.get("gain_share_se"), oracle.get("beats_oracle_z")
    reached = "undefined" if share is None else f"{share:.1%}" + ("" if se is None else f" (standard error {se:.1%})")
    return {
        "figure": figure, "reached": reached, "z": z, "leak": z is not None and z > 3,
        "risks": oracle.get("risks", []), "mechanisms": oracle.get("mechanisms", []),
    }  # fmt: skip


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", json.dumps(value, ensure_ascii=False)))
    return rows
