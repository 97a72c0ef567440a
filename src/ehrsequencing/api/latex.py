"""The table of an evaluation for a paper, in LaTeX with booktabs."""

from collections.abc import Mapping, Sequence
from typing import Any

from ehrsequencing.config import format_days
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.version import __version__
from ehrsequencing.metrics.outcomes import Metric
from ehrsequencing.metrics.registry import METRICS

FIRST_LINE = "% Table of ehrsequencing"
_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\^{}",
    "\\": r"\textbackslash{}",
}
_MISSING = "--"


def escaped(text: str) -> str:
    r"""Text as LaTeX.

    >>> escaped("age_sex & 5%")
    'age\\_sex \\& 5\\%'
    """
    return "".join(_SPECIAL.get(c, c) for c in text)


def latex_table(
    told: Mapping[str, Any],
    *,
    horizons: Sequence[float],
    metrics: Sequence[str],
    cause: str,
    landmark: float,
) -> str:
    """One line a model, one column a metric, and a block for each horizon.

    Args:
        told: What may be told of an evaluation.
        horizons: Days.
        metrics: Keys.
        cause: The cause.
        landmark: Days after the index.

    Raises:
        EhrseqError: There is no such metric.
    """
    unknown = [key for key in metrics if key not in METRICS]
    if unknown:
        fix = f"use some of {', '.join(METRICS)}"
        raise EhrseqError(f"there is no metric {unknown[0]!r}", where="metrics", fix=fix)
    chosen = [METRICS[key] for key in metrics]
    cells = {
        (row["model"], row["horizon_days"], row["metric"]): row
        for row in told["metrics"]
        if row["cause"] == cause and row["landmark_days"] == landmark
    }
    lines = [
        f"{FIRST_LINE} {__version__}. Needs \\usepackage{{booktabs}}.",
        f"% {cause}, landmark {format_days(landmark)}; 95 % intervals by bootstrap over subjects.",
        f"\\begin{{tabular}}{{l{'c' * len(chosen)}}}",
        r"\toprule",
        " & ".join(["Model", *(escaped(metric.name) for metric in chosen)]) + r" \\",
    ]
    for days in horizons:
        lines += [
            r"\midrule",
            f"\\multicolumn{{{len(chosen) + 1}}}{{l}}{{\\textit{{by {format_days(days)}}}}} \\\\",
        ]
        for model in told["models"]:
            values = [_cell(cells.get((model, days, metric.key)), metric) for metric in chosen]
            lines.append(" & ".join([escaped(model), *values]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _cell(row: Mapping[str, Any] | None, metric: Metric) -> str:
    """A value with its interval; none of either where it is not known."""
    if row is None or row["value"] is None:
        return _MISSING
    numbers = (row["value"], row["low"], row["high"])
    value, low, high = (
        None if n is None else f"{metric.scale * n:.{metric.digits}f}".replace("-", "$-$")
        for n in numbers
    )
    return f"{value}" if low is None or high is None else f"{value} ({low} to {high})"
