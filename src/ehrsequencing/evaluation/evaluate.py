"""Judge a run: every metric with intervals over subjects, beside baselines on the very same subjects.

The result is one JSON mapping (`metrics.json`), long where it is a table; the report is drawn from nothing else.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ehrsequencing import __version__
from ehrsequencing.config import EvaluationConfig, TaskConfig, format_days
from ehrsequencing.errors import EhrseqError
from ehrsequencing.evaluation import tables
from ehrsequencing.evaluation.baselines import Baseline, fit_baselines
from ehrsequencing.evaluation.bootstrap import bootstrap_subjects, percentile_interval
from ehrsequencing.evaluation.calibration import calibration_intercept_slope
from ehrsequencing.evaluation.metrics import integrated_brier, metric_table
from ehrsequencing.evaluation.oracle import (
    EARLY_DAYS,
    Truth,
    hazard_rmse_per_year,
    mechanism_shares,
    oracle_gap,
    risk_errors,
)
from ehrsequencing.evaluation.scored import ScoredRows
from ehrsequencing.predict import Run, nll_of_rows, risk_of_rows
from ehrsequencing.records.check import task_warnings
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.storage import MANIFEST, read_json, write_json, write_manifest
from ehrsequencing.training.loop import labels_digest

OURS, ORACLE = "ehrsequencing", "true hazards"
_NAMES = {"wolbers_c": "c", "auc": "auc", "brier": "brier", "ipa": "ipa", "observed_over_expected": "oe"}
_GRID_POINTS = 12  # of the integrated Brier score
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Scope:
    """The rows that are compared together: one landmark, or all prediction times (landmark None)."""

    landmark_days: float | None
    rows: NDArray[np.int64]


class Evaluation:
    """One run on one split.

    Args:
        run: The trained run.
        prepared: The prepared set that it was trained on.
        split: Which split to judge it on.
        settings: Baselines, resamples, seed.
    """

    def __init__(self, run: Run, prepared: Prepared, split: str, *, settings: EvaluationConfig) -> None:
        self.run, self.prepared, self.split, self.settings = run, prepared, split, settings
        self.task: TaskConfig = run.task
        if prepared.vocabulary.digest != run.vocabulary.digest or _labels_changed(run, prepared):
            mend = "evaluate with the prepared set that the run was trained on"
            raise EhrseqError("is not what this run was trained on", where=str(prepared.folder), mend=mend)
        self.timelines, self.rows = prepared.timelines(split), prepared.rows(self.task.name, split)
        if not len(self.rows):
            raise EhrseqError(f"nobody in {split} has a prediction time", where=self.task.name, mend="see ehrseq check")
        self.duration, self.cause = np.asarray(self.rows.duration_days), np.asarray(self.rows.cause).astype(np.int64)
        self.horizons = np.array(self.task.horizons)
        spaced = np.linspace(0, self.horizons[-1], _GRID_POINTS + 1)[1:]
        self.grid = np.unique(np.r_[spaced, self.horizons])
        self.warnings: list[str] = []
        self.truth = self._read_truth()
        self.scopes = self._scopes()

    def _scopes(self) -> list[_Scope]:
        scopes = [_Scope(days, np.flatnonzero(self.rows.at_landmark(days))) for days in self.task.landmarks]
        for scope in scopes:
            if not len(scope.rows):
                self.warnings.append(f"Nobody was at risk {format_days(scope.landmark_days or 0)} after the index.")
        scopes = [scope for scope in scopes if len(scope.rows)]
        if any(len(scope.rows) == len(self.rows) for scope in scopes):
            return scopes
        return [*scopes, _Scope(None, np.arange(len(self.rows)))]

    def result(self, *, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
        """Everything that `metrics.json` holds."""
        if self.run.is_visit_head:
            return self._visit_head_result()
        progress("risk curves")
        risks = {OURS: self._risk(self.grid)}
        missing = int(np.isnan(risks[OURS][:, 0, 0]).sum())
        if missing:
            raise EhrseqError(
                f"{missing} prediction times have no prediction", where=self.split, mend="report this as a bug"
            )
        chosen = np.arange(len(self.rows))
        for baseline in self._baselines(progress):
            risks[baseline.name] = baseline.risk(self.timelines, self.rows, chosen, self.grid)
        if self.truth is not None and self.truth.known.all():
            risks[ORACLE] = self.truth.risk(self.grid)
        progress("metrics and intervals")
        metrics = [row for scope in self.scopes for row in self._scope_metrics(scope, risks)]
        metrics += self._nll_metrics()
        self._warn()
        at_horizons = {name: self._at_horizons(risk) for name, risk in risks.items()}
        scored = [self._scored(scope, at_horizons) for scope in self.scopes]
        return self._frame() | {
            "models": list(risks),
            "metrics": metrics,
            "at_risk": [tables.at_risk(s, self.task.causes) for s in scored if s.landmark_days is not None],
            "calibration": [row for s in scored for row in tables.calibration(s, self.task.causes)],
            "risk_distribution": [row for s in scored for row in tables.distribution(s, self.task.causes, model=OURS)],
            "trajectories": tables.trajectories(
                self.rows, at_horizons[OURS], self.task, wanted=self.settings.trajectories
            ),
            "oracle": self._oracle(),
            "warnings": self.warnings,
        }

    def _scored(self, scope: _Scope, at_horizons: dict[str, Floats]) -> tables.Scored:
        risk = {name: values[scope.rows] for name, values in at_horizons.items()}
        return tables.Scored(
            scope.landmark_days, self.duration[scope.rows], self.cause[scope.rows], self.horizons, risk
        )

    def _baselines(self, progress: Callable[[str], None]) -> list[Baseline]:
        splits = [(self.prepared.timelines(s), self.prepared.rows(self.task.name, s)) for s in ("train", "tuning")]
        return fit_baselines(
            self.settings.baselines, task=self.task, vocabulary=self.run.vocabulary,
            train=splits[0], tuning=splits[1], seed=self.settings.seed,
            progress=lambda name: progress(f"baseline: {name}"),
        )  # fmt: skip

    # ---- metrics -----------------------------------------------------------------------------------------------

    def _resamples(self, scope: _Scope) -> NDArray[np.int32]:
        """(resamples, n) multiplicities of the scope's rows; the same subjects are drawn for every model and scope."""
        subjects = np.arange(len(self.timelines))
        blocks = list(bootstrap_subjects(subjects, self.settings.bootstrap, self.settings.seed))
        return np.concatenate(blocks)[:, self.rows.subject[scope.rows]]

    def _at_horizons(self, risk: Floats) -> Floats:
        return np.clip(risk[:, :, np.searchsorted(self.grid, self.horizons)], 0.0, 1.0)

    def _scope_metrics(self, scope: _Scope, risks: dict[str, Floats]) -> list[dict[str, Any]]:
        """Long rows: point and interval of every metric, model, cause and horizon at one landmark."""
        duration, cause = self.duration[scope.rows], self.cause[scope.rows]
        weights = self._resamples(scope) if self.settings.bootstrap else None
        out: list[dict[str, Any]] = []
        for model, risk in risks.items():
            here = risk[scope.rows]
            point = metric_table(duration, cause, self._at_horizons(here), self.horizons)
            block = None
            if weights is not None:
                block = metric_table(duration, cause, self._at_horizons(here), self.horizons, weights=weights)
            for name, short in _NAMES.items():
                low, high = percentile_interval(block[name]) if block is not None else (np.nan * point[name],) * 2
                out += self._long(model, scope, short, point[name], low, high)
            out += self._curve_metrics(model, scope, here, weights)
        return out

    def _curve_metrics(
        self, model: str, scope: _Scope, risk: Floats, weights: NDArray[np.int32] | None
    ) -> list[dict[str, Any]]:
        """Integrated Brier score and calibration slope."""
        duration, cause = self.duration[scope.rows], self.cause[scope.rows]
        grid = ScoredRows.of(duration, cause, np.clip(risk, 0.0, 1.0), self.grid)
        ibs = integrated_brier(grid)[:, None]
        low = high = np.full_like(ibs, np.nan)
        if weights is not None and scope.landmark_days is not None:
            parts = np.array_split(weights, max(1, len(weights) * len(duration) // 2_000_000))
            blocks = [ScoredRows.of(duration, cause, np.clip(risk, 0, 1), self.grid, weights=w) for w in parts]
            low, high = percentile_interval(np.concatenate([integrated_brier(b) for b in blocks])[:, :, None])
        out = self._long(model, scope, "ibs", ibs, low, high, horizons=[None])
        if model in (OURS, ORACLE):
            slope = calibration_intercept_slope(ScoredRows.of(duration, cause, self._at_horizons(risk), self.horizons))[
                1
            ]
            out += self._long(model, scope, "slope", slope, np.nan * slope, np.nan * slope)
        return out

    def _long(
        self, model: str, scope: _Scope, metric: str, value: Floats, low: Floats, high: Floats,
        horizons: Sequence[float | None] | None = None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        chosen = list(self.horizons) if horizons is None else horizons
        return [
            tables.metric_row(
                model, scope.landmark_days, metric, value[e, h], cause=name, horizon_days=horizon,
                low=low[e, h], high=high[e, h],
            )
            for e, name in enumerate(self.task.causes)
            for h, horizon in enumerate(chosen)
        ]  # fmt: skip

    def _nll_metrics(self) -> list[dict[str, Any]]:
        self.nll = nll_of_rows(self.run.model, self.timelines, self.rows, code_types=self.run.code_types)
        found = {OURS: self.nll}
        if self.truth is not None and self.truth.known.all():
            found[ORACLE] = self.truth.nll(self.rows)
        return [
            tables.metric_row(name, s.landmark_days, "nll", np.nanmean(nll[s.rows]), cause=self.task.causes[0])
            for s in self.scopes
            for name, nll in found.items()
        ]

    # ---- words and counts --------------------------------------------------------------------------------------

    def _frame(self) -> dict[str, Any]:
        attrition = self.prepared.attrition(self.task.name)
        history = [json.loads(line) for line in (self.run.folder / "history.jsonl").read_text().splitlines()]
        splits = {name: part["steps"][-1]["subjects"] for name, part in attrition["splits"].items()}
        return {
            "title": self.task.name, "run": self.run.folder.name, "split": self.split,
            "created": date.today().isoformat(),
            "versions": {"ehrsequencing": __version__, "torch": torch.__version__},
            "task": self.task.model_dump(mode="json"), "question": question(self.task),
            "data": {
                "name": self.run.manifest["data"], "subjects": splits,
                "visits": {name: len(self.prepared.timelines(name).start_us) for name in splits},
                "prediction_times": {name: part["prediction_times"] for name, part in attrition["splits"].items()},
            },
            "causes": list(self.task.causes), "horizons_days": self.horizons.tolist(),
            "landmarks_days": list(self.task.landmarks), "attrition": attrition["steps"],
            "events": {name: part["events"] for name, part in attrition["splits"].items()},
            "history": [{**row, "train_loss": row["train_nll"]} for row in history],
            "config": self.run.study.model_dump(mode="json"), "oracle": None,
        }  # fmt: skip

    def _warn(self) -> None:
        attrition = self.prepared.attrition(self.task.name)
        self.warnings += task_warnings(self.task, attrition)
        if attrition["splits"][self.split]["events"][self.task.causes[0]] < 50:
            self.warnings.append(f"Fewer than 50 subjects of {self.split} had the event: the intervals are wide.")
        for scope in self.scopes:
            last = float(self.duration[scope.rows].max())
            for horizon in self.horizons[self.horizons > last]:
                self.warnings.append(
                    f"The follow-up ends before {format_days(float(horizon))}: that horizon is refused."
                )

    def _risk(self, horizons_days: Floats) -> Floats:
        """The run's risks (R, E, H) by some horizons."""
        run = self.run
        risk = risk_of_rows(
            run.model, self.timelines, self.rows, horizons_days=horizons_days, code_types=run.code_types
        )
        return risk.astype(np.float64)

    def _read_truth(self) -> Truth | None:
        path = self.prepared.manifest.get("data_path")
        if path is None or self.run.is_visit_head:
            return None
        return Truth.read(Path(path), self.timelines, self.rows, causes=self.task.causes)

    def _oracle(self) -> dict[str, Any] | None:
        """The run beside the truth of a simulation: likelihood, risks, hazards, mechanisms."""
        truth, causes = self.truth, self.task.causes
        if truth is None:
            return None
        gap = oracle_gap(
            self.nll, truth.nll(self.rows), train=self.prepared.rows(self.task.name, "train"), rows=self.rows,
            edges_days=self.run.study.model.edges_days, n_causes=len(causes),
        )  # fmt: skip
        if gap["beats_oracle_z"] > 3:
            self.warnings.append("The model beats the true hazards by more than three standard errors: it is leaking.")
        early = np.array([EARLY_DAYS])
        return gap | {
            "name": ORACLE,
            "risks": risk_errors(
                self._risk(self.horizons), truth.risk(self.horizons), causes=causes, horizons_days=self.horizons
            ),
            "hazard_rmse_per_year": hazard_rmse_per_year(self._risk(truth.edges_days[1:]), truth, causes=causes),
            "mechanisms": mechanism_shares(
                self._risk(early)[:, 0, 0], truth.risk(early)[:, 0, 0], truth, np.asarray(self.rows.subject)
            ),
        }

    def _visit_head_result(self) -> dict[str, Any]:
        """The `visit` head has no calendar: only its likelihood and its mean hazard can be judged."""
        nll = nll_of_rows(self.run.model, self.timelines, self.rows, code_types=self.run.code_types)
        hazard = risk_of_rows(
            self.run.model, self.timelines, self.rows, horizons_days=[], code_types=self.run.code_types
        )[:, 0, 0]
        answered = ~np.isnan(hazard)
        last = np.r_[np.diff(self.rows.subject) != 0, True] & (self.cause == 1)
        rows = {"nll": float(np.nanmean(nll)), "oe": float(last[answered].sum() / hazard[answered].sum())}
        self.warnings.append(
            "The visit head gives the risk of the event before the next visit. It has no calendar, so that metrics at "
            "horizons do not apply; use head=horizon for them."
        )
        self._warn()
        metrics = [
            tables.metric_row(OURS, None, name, value, cause=self.task.causes[0]) for name, value in rows.items()
        ]
        empty: dict[str, Any] = {k: [] for k in ("at_risk", "calibration", "risk_distribution", "trajectories")}
        return self._frame() | empty | {"models": [OURS], "metrics": metrics, "warnings": self.warnings}


def evaluate(
    run_folder: Path,
    *,
    split: str = "held_out",
    prepared: Path | None = None,
    settings: EvaluationConfig | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Judge a run and write its `metrics.json`.

    Args:
        run_folder: A finished run.
        split: `train`, `tuning` or `held_out`.
        prepared: The prepared set, where it is no longer where training found it.
        settings: Baselines and resamples; default: those of the run.
        progress: Called with the name of each stage.

    Returns:
        What was written.

    Raises:
        EhrseqError: The run or its prepared set cannot be used.
    """
    run = Run(run_folder)
    folder = prepared or Path(run.manifest["prepared"])
    if not folder.is_dir():
        raise EhrseqError("the prepared set has moved", where=str(folder), mend="name it with --prepared")
    result = Evaluation(run, Prepared(folder), split, settings=settings or run.study.evaluation).result(
        progress=progress
    )
    add_to_run(run_folder, "metrics.json", lambda path: write_json(path, result))
    return result


def add_to_run(folder: Path, name: str, write: Callable[[Path], None]) -> None:
    """Write a file into a finished run, so that the run is valid at every moment: unlist, write, list."""
    manifest = read_json(folder / MANIFEST)
    listed = [folder / file for file in manifest.pop("files") if file != name]
    write_manifest(folder, manifest, files=listed)
    write(folder / name)
    write_manifest(folder, manifest, files=[*listed, folder / name])


def question(task: TaskConfig) -> str:
    """The task as a sentence."""
    index = task.index
    if index.code is not None:
        start = f"{'each' if index.which == 'every' else 'the first'} {' or '.join(index.code)}"
        start = f"{format_days(index.after)} after {start}" if index.after else start
    elif index.first_visit:
        start = "the first visit"
    else:
        start = f"age {format_days(index.age)}" if index.age is not None else str(index.date)
    horizons = ", ".join(format_days(days) for days in task.horizons)
    competing = f", with {' and '.join(task.competing)} as competing event" if task.competing else ""
    who = f"Who will have {' or '.join(task.outcome)} within {horizons}"
    return f"{who}, asked from {start} on and at every later visit{competing}?"


def _labels_changed(run: Run, prepared: Prepared) -> bool:
    return run.task.name not in prepared.tasks or labels_digest(prepared, run.task.name) != run.manifest["labels"]
