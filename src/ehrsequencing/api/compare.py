"""`compare`: runs side by side on the same people; `compare_risks`: any models' risks on plain arrays; `pool_sites`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from ehrsequencing.api.evaluation import EvaluationResult
from ehrsequencing.api.paper import PaperTable, accuracy_table, long_table
from ehrsequencing.api.progress import stages
from ehrsequencing.config import EvaluationConfig, format_days
from ehrsequencing.core.arrays import Floats, detached
from ehrsequencing.core.elsewhere import Hinted
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.text import day_of
from ehrsequencing.evaluation.comparison import Comparison, draw_subjects
from ehrsequencing.evaluation.curves import decision_rows, smooth_rows
from ehrsequencing.evaluation.dropout import weighted_by_risks
from ehrsequencing.evaluation.estimates import (
    difference_rows,
    estimate,
    long_rows,
    metric_rows,
    scope_estimates,
)
from ehrsequencing.evaluation.evaluate import Evaluation
from ehrsequencing.evaluation.population import OnOwnRecords, Population, in_common
from ehrsequencing.evaluation.results import without_few
from ehrsequencing.evaluation.rivals import Evaluated
from ehrsequencing.metrics.censoring import aalen_johansen, checked_outcome
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.metrics.plain import whole_causes
from ehrsequencing.prediction.run import Run, opened
from ehrsequencing.results.redaction import redact_rows
from ehrsequencing.results.result_types import Exact

_MEANS = ("c", "ipa", "nll")
_MOST_LINES = 10  # that a comparison prints
_ROUNDING = 1e-6  # of risks that add up to 1


@dataclass(frozen=True, repr=False)
class RunComparison(Hinted):
    """Several runs on the same people.

    Attributes:
        result: The task, its main landmark and horizon (`main_place`), and the long rows of `metrics` and
            `differences`, as in `metrics.json`.
        subjects: How many people all runs answer for, as it may be shared: a rounded number, or `<11`.
        groups: Run → its group: its name in the mapping, else the settings in which the runs differ, but the seed.
        seeds: Run → the seed of its training.
    """

    result: dict[str, Any]
    subjects: int | str
    groups: pd.Series
    seeds: pd.Series

    @property
    def causes(self) -> tuple[str, ...]:
        """Names of the causes, the cause of interest first."""
        return tuple(self.result["task"].causes)

    @property
    def metrics(self) -> pd.DataFrame:
        """One row for each run, landmark, cause, horizon and metric, with its 95 % interval."""
        return long_table(self.result["metrics"], "model")

    def to_frame(self) -> pd.DataFrame:
        """`metrics`."""
        return self.metrics

    def to_latex(self, path: str | os.PathLike[str] | None = None) -> str:
        """`table()` in LaTeX, which is also written to `path`."""
        return self.table().to_latex(path)

    @property
    def differences(self) -> pd.DataFrame:
        """The first run minus each other one, paired."""
        return long_table(self.result["differences"], "against")

    @property
    def by_settings(self) -> pd.DataFrame:
        """Runs of one group together, that is over seeds: how many, mean and standard deviation.

        Of C, IPA and NLL for the first cause at the main landmark and horizon; the index names what differs.
        """
        return self._values().groupby(self.groups, sort=False).agg(["count", "mean", "std"])

    @property
    def paired(self) -> pd.DataFrame:
        """The first group minus each other one, run by run of the same seed: how many pairs, mean, sd, 95 % interval.

        The interval is Student's over seeds: how much training varies on these people. `differences` has intervals
        over people.
        """
        values = self._values().set_index(
            [self.groups.rename("against"), self.seeds.rename("seed")]
        )
        first, *others = self.groups.unique()
        gaps = pd.concat(
            {one: values.loc[first] - values.loc[one] for one in others}, names=["against"]
        )
        grouped = gaps.dropna().groupby("against", sort=False)
        pairs, mean, sd = grouped.count(), grouped.mean(), grouped.std()
        half = stats.t.ppf(0.975, pairs - 1) * sd / np.sqrt(pairs)
        columns = {"pairs": pairs, "mean": mean, "sd": sd, "low": mean - half, "high": mean + half}
        return (
            pd.concat(columns, axis=1).stack(future_stack=True).rename_axis(["against", "metric"])
        )

    def runs(self) -> list[dict[str, Any]]:
        """For each run its group, its seed, and C, IPA and NLL: what `by_settings` and `paired` are made of."""
        table = self._values().assign(group=self.groups, seed=self.seeds)
        return cast(
            list[dict[str, Any]], table.astype(object).where(table.notna(), None).to_dict("records")
        )

    def _values(self) -> pd.DataFrame:
        """C, IPA and NLL of each run for the first cause at the main landmark and horizon."""
        landmark, horizon = self.result["main"]
        rows = pd.DataFrame(self.result["metrics"]).fillna(
            {"landmark_days": -1, "horizon_days": -1}
        )
        rows = rows[rows.landmark_days.eq(-1 if landmark is None else landmark)]
        rows = rows[rows.cause.eq(self.causes[0]) & rows.horizon_days.isin([horizon, -1])]
        values = rows.pivot(index="model", columns="metric", values="value")
        values = values.reindex(index=self.groups.index, columns=_MEANS)
        return values.astype(np.float64)

    def means(self) -> PaperTable:
        """Mean ± standard deviation over the runs of each group, for a paper: `.to_latex()`."""
        frame = pd.DataFrame(
            {
                f"{row['c', 'count']:.0f} × {label}": {
                    name: f"{row[name, 'mean']:.3f} ± {row[name, 'std']:.3f}".replace(" ± nan", "")
                    for name in _MEANS
                }
                for label, row in self.by_settings.iterrows()
            }
        ).T
        return PaperTable(frame, f"RunComparison on {self.subjects} subjects, mean ± sd over runs")

    def __repr__(self) -> str:
        lines = [f"{self.means().caption}:"]
        for label, row in self.means().frame.iterrows():
            lines.append(f"{label}: {', '.join(f'{name} {text}' for name, text in row.items())}")
        return "\n".join(lines[:_MOST_LINES])

    def table(self) -> PaperTable:
        """The runs beside one another, for the first cause at the main landmark and horizon."""
        landmark, horizon = self.result["main"]
        place = {"landmark": landmark, "cause": self.causes[0], "horizon": horizon}
        title = f"{place['cause']} by {format_days(place['horizon'])}"
        return accuracy_table(self.result, place, title=title)


def compare(
    runs: Sequence[str | os.PathLike[str] | Run]
    | Mapping[str, str | os.PathLike[str] | Run | Sequence[str | os.PathLike[str] | Run]],
    *,
    split: str = "held_out",
    bootstrap: int = 500,
    seed: int = 0,
    progress: bool = True,
) -> RunComparison:
    """Compare trained runs of one task on the same people: models, settings or seeds, side by side and paired.

    For risks in arrays take `compare_risks`, for a file of predictions `score`.

    Args:
        runs: Two runs or more, or their folders; differences are the first minus each other one. A mapping from names
            to runs, or to lists of runs such as those of several seeds, names the groups that are averaged.
        split: Whose people; those whom all runs answer for are compared.
        bootstrap: Resamples of people for the intervals.
        seed: Of the resamples.
        progress: Whether to show a bar.

    Raises:
        EhrseqError: There is one run only, tasks differ, or no person is in this split of all runs.

    Example:
        >>> import ehrsequencing as eh
        >>> comparison = eh.compare(["runs/hf", "runs/hf"], bootstrap=20, progress=False)
        >>> comparison.metrics.model.unique().tolist()
        ['hf', 'hf 2']
    """
    by_name = runs if isinstance(runs, Mapping) else {"": [] if isinstance(runs, str) else runs}
    given = [
        (name, opened(run))
        for name, some in by_name.items()
        for run in (some if isinstance(some, Sequence) and not isinstance(some, str) else [some])
    ]
    known = [run for _, run in given]
    if len(known) < 2:
        raise EhrseqError(
            "compares two runs or more",
            where="compare",
            fix="name them in a list, as in [run, other]",
        )
    task, stores = known[0].task, [run.prepared() for run in known]
    for run in known:
        if run.task != task:
            fix = "train on one task file"
            raise EhrseqError("has another task", where=str(run.folder), fix=fix)
    with stages("comparing", show=progress) as stage:
        records = [store.records(task.name, split) for store in stores]
        population, places = in_common(Population.of_split(stores[0], task, split), known, records)
        first, *others = _names(known)
        predictors = [
            OnOwnRecords(run.predictor, own, place)
            for run, own, place in zip(known, records, places, strict=True)
        ]
        evaluation = Evaluation(
            replace(Evaluated.of_run(known[0]), name=first, predictor=predictors[0]),
            population,
            prepared=None,
            settings=EvaluationConfig(baselines="none", bootstrap=bootstrap, seed=seed),
            beside=dict(zip(others, predictors[1:], strict=True)),
        )
        metrics, differences, main = evaluation.tables(progress=stage)
    result_ = {
        "main": main,
        "metrics": without_few(metrics),
        "differences": without_few(differences),
        "subjects": len(np.unique(population.records.rows.subject)),
    }
    is_simulated = all(run.manifest.get("simulated") for run in known)
    result = redact_rows(result_, is_simulated=is_simulated)
    names = [first, *others]
    groups = _groups(known, names)
    if isinstance(runs, Mapping):
        groups = pd.Series([name for name, _ in given], index=names)
    seeds = pd.Series([run.study.training.seed for run in known], index=names)
    return RunComparison({**result, "task": task}, result["subjects"], groups, seeds)


def _groups(runs: Sequence[Run], names: Sequence[str]) -> pd.Series:
    """Run → the settings in which the runs differ, but the seed, in one text."""
    rows = []
    for run in runs:
        row = {"trained": run.trained}
        for section in ("visits", "values", "vocabulary", "model", "training"):
            own = getattr(run.study, section).model_dump(mode="json")
            row |= {f"{section}.{name}": str(value) for name, value in own.items()}
        rows.append(row)
    table = pd.DataFrame(rows, index=list(names)).drop(columns="training.seed")
    pairs = table.loc[:, table.nunique() > 1].to_dict("index")
    texts = {
        run: ", ".join(f"{name}={value}" for name, value in own.items() if value)
        for run, own in pairs.items()
    }
    return pd.Series(texts).replace("", "settings alike")


class RiskComparison(EvaluationResult):
    """What `compare_risks` found: the tables and plots of an evaluation at one horizon. Exact, so not for sharing."""

    def to_latex(self, path: str | os.PathLike[str] | None = None) -> str:
        """`table2()` in LaTeX, which is also written to `path`."""
        return self.table2().to_latex(path)

    def __repr__(self) -> str:
        return str(self.table2())


def compare_risks(
    risks: Mapping[str, ArrayLike],
    time: ArrayLike,
    cause: ArrayLike,
    *,
    horizon: str | float,
    subject: ArrayLike | None = None,
    thresholds: Sequence[float] = (),
    bootstrap: int = 500,
    seed: int = 0,
) -> RiskComparison:
    """Compare the risks of any models, given as plain arrays: what R's `riskRegression::Score` does.

    For trained runs take `compare`, for a file of predictions on MEDS records `score`. Metrics are those of
    `eh.metrics`, corrected for censoring by inverse-probability weighting; intervals resample subjects, and differences
    are paired, the first model minus each other one. AUC, Brier score and IPA equal those of `Score` with
    `cens.model="km"`, which leaves out whoever is censored exactly at the horizon; here they count as event-free.
    Where leaving depends on the risks (each row being somebody else, and 50 of them leaving before the horizon), all
    weights go by them: `result["dropout"]` says so, and `result["marginal"]` has the numbers without.

    Args:
        risks: Name → (n,) risk of the event of interest by the horizon, or (n, causes), the risk of each cause; or a
            frame with a column a model. A cause without risks gets its share of what the others leave, as observed.
        time: (n,) days to the event or to censoring.
        cause: (n,) 0 = censored, 1 = the event of interest, 2 … = competing events (or True and False).
        horizon: As in `"1y"`, or a number of days.
        subject: (n,) whose row it is; default: each row is somebody else.
        thresholds: Of the decision curve and the operating points; default: spread over the first model's risks.
        bootstrap: Resamples of subjects; 0: no intervals.
        seed: Of the resamples.

    Returns:
        The comparison, with `metrics`, `differences`, `calibration()` and `operating_points()` as frames,
        `plot_calibration()`, `plot_decision_curve()`, `table2()` and `to_latex()`.

    Raises:
        EhrseqError: Times, causes or risks are impossible or do not fit together.

    Example:
        >>> import numpy as np
        >>> import ehrsequencing as eh
        >>> rng = np.random.default_rng(0)
        >>> risk = rng.uniform(0.05, 0.6, 400)
        >>> time = np.where(rng.random(400) < risk, rng.uniform(1, 300, 400), 400)
        >>> found = eh.compare_risks({"mine": risk, "noise": rng.permutation(risk)}, time, time < 400, horizon=365)
        >>> found.differences.query("metric == 'auc'").value.round(2).tolist()
        [0.27]
    """
    if not isinstance(risks, Mapping) and not hasattr(risks, "columns"):
        raise EhrseqError(
            "expected risks by the models' names",
            where="risks",
            fix="write {'mine': risk}, or give a frame with a column a model",
        )
    codes = whole_causes(cause)
    n_causes = max(int(codes.max(initial=0)), 1)
    duration, codes, _ = checked_outcome(time, codes, n_causes, None)
    days = np.array([day_of(horizon)])
    observed = aalen_johansen(duration, codes, n_causes=n_causes).at(days)
    # model → (n, causes, 1); a cause that a model does not answer for takes what is left, as is observed
    given = dict[str, Floats]()
    for name in getattr(risks, "columns", risks):
        risk = detached(risks[name]).astype(np.float64)
        own = risk.reshape(-1, risk.shape[-1] if risk.ndim > 1 else 1)
        if len(own) != len(duration) or own.shape[1] > n_causes:
            fix = "give one risk a row, or one for each cause"
            raise EhrseqError("does not fit the times", where=name, fix=fix)
        if not ((own >= 0).all() and (own.sum(axis=1) <= 1 + _ROUNDING).all()):
            raise EhrseqError(
                "has risks that are missing, outside 0 to 1, or of all causes together above 1",
                where=name,
                fix="give a probability in every row",
            )
        known, others = np.split(observed[:, 0], [own.shape[1]])
        left = np.maximum(1.0 - own.sum(axis=1, keepdims=True), 0.0) / (1.0 - known.sum())
        given[name] = np.concatenate([own, left * others], axis=1)[:, :, None]
    owner = (
        np.arange(len(duration)) if subject is None else np.unique(subject, return_inverse=True)[1]
    )
    draws = draw_subjects(int(owner.max()) + 1, bootstrap, seed)
    scope = Comparison(0.0, owner.reshape(-1), duration, codes, days, given, draws)
    if len(owner) != len(duration) or not given:
        raise EhrseqError(
            "does not fit the times",
            where="subject, risks",
            fix="give a subject for each row, and at least one model",
        )
    scope, dropout, marginal = weighted_by_risks(
        scope, names=["event"], seed=seed, alone=subject is None
    )
    return RiskComparison(
        cast(Exact, _tables(scope, seed, thresholds) | {"dropout": dropout, "marginal": marginal}),
        Path("compare_risks"),
    )


def _tables(scope: Comparison, seed: int, thresholds: Sequence[float]) -> dict[str, Any]:
    """What the tables and plots of an evaluation need, of models on arrays: the first against each other one."""
    first, *others = models = [*scope.risk]
    names, day = ["event"], scope.horizons_days
    estimates = scope_estimates(scope, names)
    curves, indices = smooth_rows(scope, names, models=models, seed=seed)
    for name in models:
        distance = estimate(scope, name, _distance_at_horizon)["aj"]
        at = {"model": name, "cause": names[0], "metric": "aj"}
        indices += long_rows(scope, distance.of_cause(0), **at)
    acted = np.ravel(thresholds).tolist()
    return {
        "individual": "nothing is redacted",
        "data": {"name": "arrays"},
        "split": "all rows",
        "main": {"landmark_days": 0.0, "horizon_days": float(day[0])},
        "causes": names,
        "models": models,
        "landmarks_days": [0.0],
        "horizons_days": day.tolist(),
        "metrics": metric_rows(scope, estimates) + indices,
        "differences": difference_rows(scope, estimates, ours=first, rivals=others),
        "smooth_calibration": curves,
        "subgroups": [],
        "incidence": [],
        "decision": decision_rows(scope, names, models=models, thresholds=acted),
    }


def _distance_at_horizon(rows: ScoredRows) -> dict[str, Floats]:
    """How far the mean risk is from the observed incidence by the horizon; no risk is known before it."""
    mean = (rows.weights @ rows.risk[:, :, 0] / rows.total_weight[:, None])[:, :, None]
    return {"aj": np.abs(rows.finish(mean - rows.observed_risk))}


def _names(runs: Sequence[Run]) -> list[str]:
    """The folders' names, numbered where two are alike."""
    names: list[str] = []
    for run in runs:
        name, number = run.folder.resolve().name, 1
        while name in names:
            number += 1
            name = f"{run.folder.resolve().name} {number}"
        names.append(name)
    return names
