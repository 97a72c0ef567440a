"""One self-contained `report.html` from an evaluation's metrics: what was predicted, for whom, how well.

The page needs no script and no network; its content security policy forbids both. Everything is escaped, nobody's id
or date is read, every count of people goes through `small_counts` before it is printed or drawn, and what would give a
hidden count away by a product goes with it (`disclosure`).
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ehrsequencing.disclosure.counts import publish
from ehrsequencing.disclosure.derived import disclose
from ehrsequencing.errors import EhrseqError
from ehrsequencing.metrics.registry import in_columns
from ehrsequencing.reporting import page_text, panels, svg, tables
from ehrsequencing.reporting.scores import Scores
from ehrsequencing.reporting.wording import METRICS, duration, from_landmark
from ehrsequencing.storage import write_bytes

_REQUIRED = (
    "title", "split", "created", "versions", "task", "question", "data", "causes", "horizons_days", "attrition",
    "events", "models", "metrics", "at_risk", "calibration", "risk_distribution", "trajectories", "history", "config",
    "warnings",
)  # fmt: skip
_LATER = (  # absent from older runs: the page then says that they were not computed
    "differences", "smooth_calibration", "decision", "subgroups", "censoring", "follow_up", "inputs", "checks",
    "instability", "external", "recalibration", "repeated_splits", "oracle", "audit",
    "records_before",
)  # fmt: skip
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # no XML may hold these


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
        raise EhrseqError(f"has no {missing[0]!r}", where="metrics.json", fix="run ehrseq evaluate again")
    m = dict.fromkeys(_LATER) | _clean(metrics)
    environment = Environment(
        loader=PackageLoader("ehrsequencing.reporting"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(duration=duration, landmark=from_landmark)
    return environment.get_template("report.html.jinja").render(_context(m))


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
    """Everything that the template prints, by name."""
    shown = publish(m)
    m = disclose(m, shown)
    table = Scores(m)
    return {
        "m": m, "style": Markup(svg.STYLE), "shown": shown, "models": table.models,
        "metrics": {metric.key: metric for metric in in_columns(METRICS.values())},
        "swatches": [Markup(svg.swatch(k)) for k in range(len(table.models))],
        **_words(m, table, shown), **_figures(m, table, shown),
        "accuracy": _by_cause(table.blocks("accuracy")), "calibration": _by_cause(table.blocks("calibration")),
        "inputs": tables.inputs(m, shown), "checks": tables.checks(m, shown), "card": tables.card(m),
        "immortal": tables.immortal_time(m, shown),
        "external": tables.external(m, shown), "follow_up": tables.follow_up(m, shown),
        "repeated": tables.repeated(m, table.models), "recalibration": tables.recalibration(m),
        "training": panels.training(m["history"]), "oracle": panels.oracle(m.get("oracle")), "audit": m.get("audit"),
        "settings": _flat(m["config"]),
    }  # fmt: skip


def _words(m: dict[str, Any], table: Scores, shown: dict[Any, str]) -> dict[str, Any]:
    filled, human = page_text.checklist(m)
    return {
        "summary": page_text.summary(m, table, shown), "headline": table.headline(), "strongest": table.strongest(),
        "definition": page_text.definition(m["task"]), "flow": page_text.flow(m["attrition"], shown),
        "limits": page_text.limits(m, table), "human_items": human, "filled_items": filled,
    }  # fmt: skip


def _figures(m: dict[str, Any], table: Scores, shown: dict[Any, str]) -> dict[str, Any]:
    return {
        "forests": table.forests(shown), "gap_forests": table.gap_forests(shown),
        "calibrations": panels.by_cause(m, panels.calibrations(m, table, shown)),
        "decisions": panels.by_cause(m, panels.decisions(m, table.models, shown)),
        "risks": panels.by_cause(m, panels.risks(m, shown)), "subgroups": tables.subgroups(m, table, shown),
        "trajectories": [panels.trajectory(m, t) for t in m["trajectories"] if t["times_days"]],
        "instability": tables.instability(m),
    }  # fmt: skip


def _by_cause(blocks: Sequence[Mapping[str, Any]]) -> list[tuple[str | None, list[Mapping[str, Any]]]]:
    causes = dict.fromkeys(block["cause"] for block in blocks)
    return [(cause, [block for block in blocks if block["cause"] == cause]) for cause in causes]


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", json.dumps(value, ensure_ascii=False)))
    return rows
