"""Tables of a paper: who was studied, and how accurate each model is."""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ehrsequencing.core.disclosure import TOO_FEW
from ehrsequencing.core.elsewhere import Hinted
from ehrsequencing.metrics.registry import in_columns, taken
from ehrsequencing.reporting.wording import with_interval


@dataclass(frozen=True, repr=False)
class PaperTable(Hinted):
    """A table for a paper.

    Attributes:
        frame: Its cells as text, rows by name.
        caption: What it shows.
    """

    frame: pd.DataFrame
    caption: str

    def to_frame(self) -> pd.DataFrame:
        """Its cells as text, rows by name."""
        return self.frame

    def to_markdown(self, path: str | os.PathLike[str] | None = None) -> str:
        """The table in Markdown, which is also written to `path`."""
        rows = [["", *self.frame.columns], ["---"] * (1 + len(self.frame.columns))]
        rows += [[str(name), *cells] for name, cells in self.frame.T.items()]
        return _kept("\n".join(f"| {' | '.join(map(str, row))} |" for row in rows), path)

    def to_latex(self, path: str | os.PathLike[str] | None = None) -> str:
        """The table in LaTeX, as a `tabular` with rules of the package booktabs, which is also written to `path`."""
        escaped = self.frame.rename(index=_latex, columns=_latex).map(_latex)
        return _kept(str(escaped.to_latex(escape=False)), path)

    def __repr__(self) -> str:
        return f"{self.caption}\n{self.frame.to_string()}"

    def _repr_html_(self) -> str:
        return str(self.frame.to_html())


def _kept(text: str, path: str | os.PathLike[str] | None) -> str:
    """The text, also written to a file where one is named."""
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def _latex(text: object) -> str:
    plain = str(text).replace("\\", "/")
    return "".join(f"\\{c}" if c in "%&_#${}" else c for c in plain).replace("<", "$<$")


def warn_of_few(table: PaperTable) -> None:
    """Warn, two calls up, where a table has no number, and say how to get some."""
    if table.frame.eq(TOO_FEW).all(axis=None):
        remedy = "eh.evaluate(run, splits=25) divides, trains and evaluates again and again"
        warnings.warn(f"{TOO_FEW}: {remedy}", stacklevel=4)


def accuracy_table(
    result: Mapping[str, Any], place: Mapping[str, Any], *, title: str
) -> PaperTable:
    """Table 2: the metrics of every model at one landmark, cause and horizon, from the content of `metrics.json`.

    Where divisions were repeated, it has the means over them: one division of a small cohort is too little.
    """
    repeated = result.get("repeated_splits")
    rows, of = result["metrics"], "with 95 % intervals"
    if repeated:
        rows = [row | {"value": row["mean"]} for row in repeated["rows"]]
        of = f"means over {repeated['splits']} random splits, with 95 % intervals (Nadeau and Bengio)"
    columns = [metric for metric in in_columns(taken("everywhere")) if metric.in_terminal]
    wanted = (place["landmark"], place["cause"], place["horizon"])
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        if (row["landmark_days"], row["cause"], row["horizon_days"]) == wanted:
            own = cells.setdefault(row["model"], {})
            for metric in columns:
                if metric.key == row["metric"]:
                    shown = with_interval(row["value"], row["low"], row["high"], ".2f")
                    own[metric.name] = shown if row["value"] is not None else row["reason"] or shown
    frame = pd.DataFrame.from_dict(cells, orient="index").fillna("")
    return PaperTable(frame, f"Accuracy of each model for {title}, {of}")
