"""An evaluation in Python: tables, outcomes and plots.

What it shows of real people may be shared, as `metrics.json`: counts of people are rounded, and hidden below 11. Only
`outcomes()` holds single persons.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ehrsequencing.api import paper, predictions as curves
from ehrsequencing.api.data import meds_folder, times
from ehrsequencing.api.paper import (
    PaperTable,
    accuracy_table,
    known_day,
    long_table,
    main_c,
    rows_at,
)
from ehrsequencing.api.predictions import StepFunction, risk_column
from ehrsequencing.config import format_days
from ehrsequencing.core.disclosure import TOO_FEW
from ehrsequencing.core.elsewhere import Answering, Hinted
from ehrsequencing.core.errors import EhrseqError, refuse_unknown
from ehrsequencing.evaluation.curves import OPERATING_COLUMNS
from ehrsequencing.evaluation.external import read_external
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.subgroups import SUBGROUP_METRICS, SUBGROUP_PLACE
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.results.redaction import redact
from ehrsequencing.results.result_types import Exact, Shared

REPORT = "report.html"


class EvaluationResult(Hinted, Answering):
    """What an evaluation found. Made by `evaluate`, `score`, or `run.evaluation`.

    Attributes:
        result: The content of `metrics.json`.
        simulated: Whether the data is simulated, so that everything is exact.
        folder: Where `metrics.json` and `report.html` are.
        every_outcome: The content of `outcome-metrics.json`; None where the run has no such outcomes.
    """

    def __init__(
        self,
        result: Exact | Shared,
        folder: Path,
        *,
        run: Run | None = None,
        data: Any = None,
        prepared: Path | None = None,
        every_outcome: dict[str, Any] | None = None,
    ) -> None:
        self.result, self.every_outcome = redact(result).content, every_outcome
        self.folder = folder
        self._run, self._data, self._prepared = run, data, prepared
        self.simulated = bool(result["data"].get("simulated"))

    @property
    def report(self) -> Path:
        """The page for people to read."""
        return self.folder / REPORT

    # ---- tables ------------------------------------------------------------------------------------------------

    @property
    def metrics(self) -> pd.DataFrame:
        """One row for each model, landmark, cause, horizon and metric, with its 95 % interval.

        Example:
            >>> ev = eh.load("runs/hf").evaluation
            >>> table = ev.metrics
            >>> chosen = table[(table.metric == "brier") & (table.horizon == "1y") & (table.cause == "hf")]
            >>> bool(0 < chosen.value.iloc[0] < 1)
            True
        """
        return long_table(self.result["metrics"], "model")

    @property
    def differences(self) -> pd.DataFrame:
        """One row for each comparison: our metric minus that of the model in the column `against`, paired.

        Example:
            >>> list(eh.load("runs/hf").evaluation.differences.columns)[:4]
            ['against', 'landmark', 'cause', 'horizon']
        """
        return long_table(self.result["differences"], "against")

    def calibration(
        self,
        horizon: str | float | None = None,
        *,
        cause: str | None = None,
        landmark: str | float | None = None,
    ) -> pd.DataFrame:
        """The points of `plot_calibration`: `model`, `predicted`, `observed`, `low`, `high`; arguments as there.

        Example:
            >>> eh.load("runs/hf").evaluation.calibration("1y").model.unique().tolist()
            ['ehrsequencing']
        """
        columns = ("predicted", "observed", "low", "high")
        return self._points(self.result["smooth_calibration"], columns, horizon, cause, landmark)

    def operating_points(
        self,
        horizon: str | float | None = None,
        *,
        cause: str | None = None,
        landmark: str | float | None = None,
    ) -> pd.DataFrame:
        """What acting from a threshold means, at those of the decision curve (`evaluation.decision_thresholds`).

        Args:
            horizon: As in `"1y"`; default: the main one.
            cause: Default: the first.
            landmark: Default: the main one.

        Returns:
            One row a model and threshold: the share of the people who are `flagged`, the `sensitivity`, the `ppv`
            (positive predictive value), each with `_low` and `_high` (95 %), the number needed to evaluate (1 / PPV),
            and the `net_benefit`. Corrected for censoring; NaN where too few people would be shown.

        Example:
            >>> points = eh.load("runs/hf").evaluation.operating_points("1y")
            >>> bool(points.flagged.dropna().between(0, 1).all())
            True
        """
        columns = ("thresholds", *OPERATING_COLUMNS, "net_benefit")
        table = self._points(self.result["decision"], columns, horizon, cause, landmark)
        table = table.rename(columns={"thresholds": "threshold"})
        return table.assign(number_needed=1.0 / table["ppv"])

    def subgroups(self) -> pd.DataFrame:
        """Size, events, O/E, AUC and Brier score of each group of people, and how the group differs from the others.

        Returns:
            One row a landmark, cause, horizon, `group` and `level`: `oe`, `auc`, `brier`, and `oe_difference` and
            `auc_difference` to the largest level of the group, each with `_low` and `_high` (95 %).

        Example:
            >>> eh.load("runs/hf").evaluation.subgroups().group.unique().tolist()
            ['age', 'sex']
        """
        names = [*SUBGROUP_METRICS, *(f"{name}_difference" for name in SUBGROUP_METRICS)]
        rows: Sequence[Mapping[str, Any]] = self.result["subgroups"]
        table = pd.DataFrame(rows, columns=[*SUBGROUP_PLACE, *names])
        for name in names:
            for end, key in (("", "value"), ("_low", "low"), ("_high", "high")):
                cells = [(row.get(name) or {}).get(key) for row in rows]
                table[f"{name}{end}"] = np.array(cells, dtype=np.float64)
        return table

    def outcomes(self, *, landmark: str | float | None = None) -> pd.DataFrame:
        """Outcome and predicted risks of every evaluated subject at a landmark, for R, lifelines or your own metrics.

        These are single persons: do not share the table.

        Args:
            landmark: As in `"1y"`; default: the main one.

        Returns:
            Columns `subject_id`, `prediction_time`, `duration_days`, `cause` (0 = censored, 1 … in the order of the
            task's causes), `event` (the cause's name, or `censored`), and a risk for each cause and horizon.

        Raises:
            EhrseqError: There is no such landmark, or only scored predictions are known.

        Example:
            >>> table = eh.load("runs/hf").evaluation.outcomes()
            >>> list(table.columns)[:6]
            ['subject_id', 'prediction_time', 'duration_days', 'cause', 'event', 'hf_1y']
            >>> len(table) > 50, sorted(table.event.unique())
            (True, ['censored', 'death', 'hf'])
        """
        run, records = self._own_run, self._records
        task, rows = run.task, records.rows
        at = np.flatnonzero(rows.at_landmark(self._landmark(landmark)))
        risk = run.predictor.risk(records, task.horizons, start_days=task.blanking)[at]
        cause = rows.cause[at].astype(np.int64)
        names = np.array(["censored", *task.causes], dtype=object)
        columns: dict[str, Any] = {
            "subject_id": records.subject_id[at],
            "prediction_time": times(rows.prediction_us[at]),
            "duration_days": np.array(rows.duration_days[at]),
            "cause": cause,
            "event": names[cause].tolist(),
        }
        for e, name in enumerate(task.causes):
            columns |= {
                risk_column(name, horizon): risk[:, e, h] for h, horizon in enumerate(task.horizons)
            }
        return pa.table(columns).to_pandas()

    def aalen_johansen(
        self, cause: str | None = None, *, landmark: str | float | None = None
    ) -> StepFunction:
        """The exact observed cumulative incidence from a landmark on; it shows single persons: do not share it.

        Args:
            cause: Default: the first.
            landmark: Default: the first.

        Raises:
            EhrseqError: There is no such cause or landmark.

        Example:
            >>> curve = eh.load("runs/hf").evaluation.aalen_johansen("hf")
            >>> curve(0), 0 < curve(365.25) < 1
            (0.0, True)
        """
        place, _ = self._place(None, cause, landmark)
        rows = self._records.rows
        at = rows.at_landmark(place["landmark"])
        of = 1 + self.result["causes"].index(place["cause"])
        return curves.aalen_johansen(rows.duration_days[at], rows.cause[at], of=of)

    def table1(self) -> PaperTable:
        """Table 1 of a paper: the subjects of each split at the first landmark; it may be shared.

        Example:
            >>> print(eh.load("runs/hf").evaluation.table1().to_markdown().splitlines()[2])
            | subjects | 294 | 45 | 61 |
        """
        table = self.result.get("table1")
        if table is None:
            raise EhrseqError(
                "there is no table 1 without the training subjects",
                where=str(self.folder),
                fix="evaluate again, with prepared=",
            )
        names, cells = zip(*table["rows"], strict=True)
        frame = pd.DataFrame(cells, index=names, columns=table["columns"])
        caption = "Subjects at the first prediction time that is compared, by split"
        return PaperTable(frame, caption)

    def table2(
        self,
        horizon: str | float | None = None,
        *,
        cause: str | None = None,
        landmark: str | float | None = None,
    ) -> PaperTable:
        """Table 2 of a paper: the metrics of every model at one horizon; arguments as of `plot_calibration`.

        After `evaluate(run, splits=25)` it has the means over those random splits: what a small cohort needs.

        Example:
            >>> eh.load("runs/hf").evaluation.table2("1y").frame.index.tolist()
            ['ehrsequencing']
        """
        place, title = self._place(horizon, cause, landmark)
        table = accuracy_table(self.result, place, title=title)
        if table.frame.eq(TOO_FEW).all(axis=None):
            remedy = "eh.evaluate(run, splits=25) divides, trains and evaluates again and again"
            warnings.warn(f"{TOO_FEW}: {remedy}", stacklevel=3)
        return table

    # ---- plots -------------------------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """`metrics`."""
        return self.metrics

    def figures(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Save the figures of the main place into a folder, as PDF; returns their paths.

        Example:
            >>> [path.name for path in eh.load("runs/hf").evaluation.figures("figures")]
            ['calibration.pdf', 'decision_curve.pdf', 'incidence.pdf']
        """
        drawn = {
            "calibration": self.plot_calibration(),
            "decision_curve": self.plot_decision_curve(),
            "incidence": self.plot_incidence(),
        }
        return paper.save(drawn, Path(folder))

    def plot_calibration(
        self,
        horizon: str | float | None = None,
        *,
        cause: str | None = None,
        landmark: str | float | None = None,
        ax: "paper.Axes | None" = None,
    ) -> "paper.Axes":
        """Observed against predicted risk by a horizon, with the strongest baseline in grey; returns the axes.

        Args:
            horizon: As in `"1y"`; default: the main one.
            cause: Default: the first.
            landmark: Default: the first.
            ax: Axes of matplotlib; default: new ones.

        Example:
            >>> eh.load("runs/hf").evaluation.plot_calibration("1y").get_title(loc="left")
            'hf by 1y'
        """
        place, title = self._place(horizon, cause, landmark)
        rows = rows_at(self.result["smooth_calibration"], **place)
        return paper.calibration(rows, title=title, ax=ax)

    def plot_decision_curve(
        self,
        horizon: str | float | None = None,
        *,
        cause: str | None = None,
        landmark: str | float | None = None,
        ax: "paper.Axes | None" = None,
    ) -> "paper.Axes":
        """Net benefit over the threshold from which one would act; as `plot_calibration`, and returns the axes.

        Example:
            >>> eh.load("runs/hf").evaluation.plot_decision_curve("1y").get_xlabel()
            'act from a risk of'
        """
        place, title = self._place(horizon, cause, landmark)
        rows = rows_at(self.result["decision"], **place)
        return paper.decision(rows, title=title, ax=ax)

    def plot_incidence(
        self,
        *,
        cause: str | None = None,
        landmark: str | float | None = None,
        ax: "paper.Axes | None" = None,
    ) -> "paper.Axes":
        """Observed and predicted cumulative incidence by groups of risk, with numbers at risk: the report's figure.

        The curves go up to the main horizon. There are at most four groups of equal size, and fewer where a group
        would have fewer than 11 people with the event, or without.

        Args:
            cause: Default: the first.
            landmark: Default: the first.
            ax: Axes of matplotlib; default: new ones.

        Example:
            >>> ax = eh.load("runs/hf").evaluation.plot_incidence()
            >>> ax.get_ylabel()
            'cumulative incidence'
        """
        place, title = self._place(None, cause, landmark)
        rows = rows_at(self.result["incidence"], **place)
        if not rows:
            raise EhrseqError(
                "there are no curves by risk group at this landmark",
                where=str(self.folder),
                fix="name another landmark",
            )
        return paper.incidence(rows[0], title=title, ax=ax)

    def _points(
        self,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[str],
        horizon: str | float | None,
        cause: str | None,
        landmark: str | float | None,
    ) -> pd.DataFrame:
        """The curves of one place as a frame, one row a model and point."""
        place, title = self._place(horizon, cause, landmark)
        table = pd.DataFrame(rows_at(rows, **place), columns=["model", *columns])
        points = table.explode([*columns], ignore_index=True)
        points = points.astype(dict.fromkeys(columns, np.float64))
        if points[[*columns]].iloc[:, 1:].isna().all(axis=None):
            warnings.warn(f"too few people had the event to show {title}", stacklevel=4)
        return points

    # ---- what it is ----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        split, name = self.result["split"].replace("_", "-"), self.result["data"]["name"]
        c = main_c(self.result)
        return f"Evaluation({str(self.folder)!r}, evaluated on {split} of {name}: C {c})"

    # ---- what was evaluated ----------------------------------------------------------------------------------------

    def _place(
        self, horizon: str | float | None, cause: str | None, landmark: str | float | None
    ) -> tuple[dict[str, Any], str]:
        """Landmark, cause and horizon of a figure, and its title.

        Raises:
            EhrseqError: One of them was not evaluated.
        """
        days, cause = self.result["main"]["horizon_days"], cause or self.result["causes"][0]
        if horizon is not None:
            days = known_day("horizon", horizon, self.result["horizons_days"])
        refuse_unknown("cause", [cause], self.result["causes"])
        since = self._landmark(landmark)
        later = "" if since == 0 else f", {format_days(since)} after the index"
        place = {"landmark": since, "cause": cause, "horizon": float(days)}
        return place, f"{cause} by {format_days(days)}{later}"

    def _landmark(self, landmark: str | float | None) -> float:
        """Days from the index to a landmark; None: the main one."""
        if landmark is None:
            return float(self.result["main"]["landmark_days"] or 0.0)
        return known_day("landmark", landmark, self.result["landmarks_days"])

    @property
    def _own_run(self) -> Run:
        if self._run is None:
            raise EhrseqError(
                "the outcomes of scored predictions are not kept",
                where=str(self.folder),
                fix="use your own file of predictions, with the cohort.parquet of ehrseq prepare",
            )
        return self._run

    @cached_property
    def _records(self) -> TaskRecords:
        """Who was evaluated, with labels."""
        run = self._own_run
        if self._data is None:
            prepared = run.prepared(self._prepared)
            return Population.of_split(prepared, run.task, self.result["split"]).records
        with meds_folder(self._data) as folder:
            return read_external(run, folder).population.records
