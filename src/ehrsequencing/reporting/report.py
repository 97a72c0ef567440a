"""One self-contained `report.html` from the content of `metrics.json`.

The page needs no script and no network, and its content security policy forbids both. All text is escaped. No id or
date of a person is read. Every count of people goes through `disclosure` before it is printed or drawn, together with
the numbers from which a hidden count could be worked out. The page's sentences are in the templates.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ehrsequencing.disclosure.counts import excluded, publish
from ehrsequencing.disclosure.derived import disclose
from ehrsequencing.errors import EhrseqError
from ehrsequencing.metrics.registry import METRICS, in_columns
from ehrsequencing.reporting import panels, summary, tables
from ehrsequencing.reporting.chart import swatch
from ehrsequencing.reporting.scores import Scores
from ehrsequencing.reporting.wording import duration, from_landmark, listed, percent, rounded, size
from ehrsequencing.storage import write_bytes

_REQUIRED = (
    *("title", "split", "created", "versions", "task", "question", "data", "causes", "horizons_days", "attrition"),
    *("events", "models", "metrics", "at_risk", "calibration", "risk_distribution", "trajectories", "history"),
    *("config", "warnings"),
)
_LATER = (  # absent from older runs: the page then says that they were not computed
    *("differences", "smooth_calibration", "decision", "subgroups", "censoring", "follow_up", "inputs", "checks"),
    *("instability", "external", "recalibration", "repeated_splits", "oracle", "audit", "records_before", "blend"),
    "score",
)
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # no XML may hold these


def write_report(metrics: Mapping[str, Any], out: Path) -> None:
    """Render the metrics of an evaluation as one HTML file.

    Raises:
        EhrseqError: The metrics lack a part of the report, or the file cannot be written.
    """
    write_bytes(out, render(metrics).encode())


def render(metrics: Mapping[str, Any]) -> str:
    """The report as a string of HTML."""
    missing = [name for name in _REQUIRED if name not in metrics]
    if missing:
        raise EhrseqError(f"has no {missing[0]!r}", where="metrics.json", fix="run ehrseq evaluate again")
    m = dict.fromkeys(_LATER) | _clean(metrics)
    return environment().get_template("report.html.jinja").render(_context(m))


@cache
def environment() -> Environment:
    """The templates with the filters that they format numbers with; whatever they print is escaped."""
    loader = PackageLoader("ehrsequencing.reporting")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters.update(duration=duration, landmark=from_landmark, listed=listed, percent=percent, rounded=rounded)
    made.filters["size"] = size
    made.filters["prose_percent"] = lambda value: f"{rounded(100 * value)}%"
    made.filters["whole_percent"] = "{:.0%}".format
    made.filters["per_100"] = lambda value: f"{100 * value:.0f}"
    return made


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
    """Everything that the templates print, by name."""
    shown = publish(m)
    m = disclose(m, shown)
    scores = Scores(m)
    by_cause = partial(panels.by_cause, m)
    sections = {
        "how_well": summary.how_well(scores),
        "compared": summary.compared(scores),
        "not_for": summary.not_for(scores),
        "headline": scores.headline(),
        "inputs": tables.inputs(m, shown),
        "immortal": tables.immortal_time(m, shown),
        "per_parameter": tables.per_parameter(m, shown),
        "follow_up": tables.follow_up(m, shown),
        "oracle": panels.oracle(m["oracle"]),
        "gap_forests": panels.gap_forests(scores, shown),
        "forests": panels.forests(scores, shown),
        "accuracy": scores.blocks("accuracy"),
        "calibrations": by_cause(panels.calibrations(m, scores, shown)),
        "calibration": scores.blocks("calibration"),
        "recalibration": tables.recalibration(m),
        "decisions": by_cause(panels.decisions(m, scores.models, shown)),
        "subgroups": tables.subgroups(m, scores, shown),
        "repeated": tables.repeated(m, scores.models),
        "instability": tables.instability(m),
        "blend": tables.blend(m),
        "risks": by_cause(panels.risks(m, shown)),
        "trajectories": [panels.trajectory(m, t) for t in m["trajectories"] if t["times_days"]],
        "audit": m["audit"],
        "training": panels.training(m["history"]),
        "settings": _flat(m["config"]),
    }
    swatches = [Markup(swatch(k)) for k in range(len(scores.models))]
    names = {"models": scores.models, "strongest": scores.strongest(), "undefined": scores.undefined}
    page = {"m": m, "shown": shown, "swatches": swatches, "excluded": excluded}
    page |= {"metrics": {metric.key: metric for metric in in_columns(METRICS.values())}}
    return page | names | sections


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", json.dumps(value, ensure_ascii=False)))
    return rows
