"""Tables of a paper: who was studied, how accurate each model is, and the penalised weights of the Cox baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ehrsequencing.core.errors import EhrseqError, refuse_unknown
from ehrsequencing.metrics.registry import in_columns, taken
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.features import LinearDesign
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.history import AGE_KNOTS_YEARS
from ehrsequencing.predictors.landmark_cox import LandmarkCox
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.reporting.wording import with_interval


@dataclass(frozen=True, repr=False)
class PaperTable:
    """A table for a paper.

    Attributes:
        frame: Its cells as text, rows by name.
        caption: What it shows.
    """

    frame: pd.DataFrame
    caption: str

    def to_markdown(self) -> str:
        """The table in Markdown."""
        rows = [["", *self.frame.columns], ["---"] * (1 + len(self.frame.columns))]
        rows += [[str(name), *cells] for name, cells in self.frame.T.items()]
        return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)

    def to_latex(self) -> str:
        """The table in LaTeX, as a `tabular` with rules of the package booktabs."""
        escaped = self.frame.rename(index=_latex, columns=_latex).map(_latex)
        return str(escaped.to_latex(escape=False))

    def __repr__(self) -> str:
        return f"{self.caption}\n{self.frame.to_string()}"

    def _repr_html_(self) -> str:
        return str(self.frame.to_html())


def _latex(text: object) -> str:
    plain = str(text).replace("\\", "/")
    return "".join(f"\\{c}" if c in "%&_#${}" else c for c in plain).replace("<", "$<$")


def accuracy_table(
    rows: Sequence[Mapping[str, Any]], place: Mapping[str, Any], *, title: str
) -> PaperTable:
    """Table 2: the metrics of every model at one landmark, cause and horizon, from `metrics` of `metrics.json`."""
    columns = [metric for metric in in_columns(taken("everywhere")) if metric.in_terminal]
    wanted = (place["landmark"], place["cause"], place["horizon"])
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        if (row["landmark_days"], row["cause"], row["horizon_days"]) == wanted:
            own = cells.setdefault(row["model"], {})
            for metric in columns:
                if metric.key == row["metric"]:
                    own[metric.name] = with_interval(row["value"], row["low"], row["high"], ".2f")
    frame = pd.DataFrame.from_dict(cells, orient="index").fillna("")
    return PaperTable(frame, f"Accuracy of each model for {title}, with 95 % intervals")


# ---- the penalised weights of the Cox baseline -----------------------------------------------------------------------


NOTE = "penalised (ridge) landmark Cox regression: ratios are shrunk towards 1"


def hazard_ratios(run: Run, prepared: Prepared, cause: str | None) -> pd.DataFrame:
    """See `TrainedRun.hazard_ratios`."""
    of = run.task.causes[0] if cause is None else cause
    refuse_unknown("cause", [of], run.task.causes)
    data = FittingData(
        run.task,
        prepared.vocabulary,
        prepared.records(run.task.name, "train"),
        prepared.records(run.task.name, "tuning"),
        run.predictor.edges_days,
        enough=run.study.vocabulary.min_subjects,
    )
    cox = LandmarkCox(data)
    fit = cox.fits[run.task.causes.index(of)]
    if not fit.beta.any():
        raise EhrseqError("nobody in the training split had it", where=of)
    order = np.argsort(-np.abs(fit.beta), kind="stable")
    columns = {
        "covariate": np.array(_covariates(cox.design)),
        "penalised_ratio": np.exp(fit.beta),
        "sd": fit.scale,
    }
    table = pd.DataFrame({key: values[order] for key, values in columns.items()})
    table.attrs["note"] = NOTE
    return table


def _covariates(design: LinearDesign) -> list[str]:
    """What each covariate of the design is: features, marks of what is not known, hinges of age."""
    names = design.columns.names
    listed = [names[k] for k in design.used] + [f"{names[k]} unknown" for k in design.marked]
    if 0 in design.used:
        listed += [f"{names[0]} above {knot:g} years" for knot in AGE_KNOTS_YEARS]
    return listed
