"""Evaluate a predictor: every metric with intervals over subjects, beside baselines on the same subjects.

From data to the result in one line: a `Population` and `{name: Predictor}` give one table of rows for each landmark
 (`comparison`), rows give estimates with intervals over people (`estimates`, `curves`, `subgroups`), and all of
it goes into one result, which `results` writes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from ehrsequencing.config import EvaluationConfig
from ehrsequencing.core.arrays import Floats, selected
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.signals import give_back_freed_memory
from ehrsequencing.evaluation import population as follow_up, results
from ehrsequencing.evaluation.comparison import NETWORK, ORACLE, Comparison, main_place
from ehrsequencing.evaluation.context import Context, evaluation_made_of, read_tripod
from ehrsequencing.evaluation.curves import (
    decision_rows,
    incidence_rows,
    ratio_rows,
    smooth_rows,
)
from ehrsequencing.evaluation.estimates import (
    difference_rows,
    hazards_rows,
    metric_rows,
    nll_row,
    over_time_rows,
    scope_estimates,
)
from ehrsequencing.evaluation.examples import SIMULATED_TRAJECTORIES, trajectories
from ehrsequencing.evaluation.oracle import TrueHazards, oracle_table, oracle_warnings, truth_of
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.rivals import (
    Evaluated,
    ModelRows,
    declared,
    fit_rivals,
    likelihoods,
    trials_of,
)
from ehrsequencing.evaluation.subgroups import cohort_table, groups_of_rows, subgroup_rows
from ehrsequencing.prediction.run import Run, opened, require_room
from ehrsequencing.predictors.fit import Fitted
from ehrsequencing.predictors.from_file import FromFile
from ehrsequencing.predictors.predictor import Predictor, risks_and_likelihoods
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.results.redaction import INDIVIDUAL
from ehrsequencing.results.result_types import Exact, MetricRow, PlaceRow

GRID_POINTS = 12  # of the integrated Brier score
Say = Callable[[str], None]
Rows = list[MetricRow[int]]


class Evaluation:
    """One predictor on the population that it is evaluated on, beside others.

    Args:
        evaluated: A trained run, or another predictor.
        population: The subjects to evaluate it on.
        prepared: The prepared set that a run was trained on; None where it is gone.
        settings: Resamples, seed.
        fitted: Baselines, the strongest first (`fit_rivals`).
        beside: Others that answer at the same prediction times, by name.
        train_censoring: Whether the censoring weights come from the training subjects at risk at the same landmark,
            and not from the population.

    Raises:
        EhrseqError: The prepared set is another one, or nobody has a prediction time.
    """

    def __init__(
        self,
        evaluated: Run | Evaluated,
        population: Population,
        *,
        prepared: Prepared | None,
        settings: EvaluationConfig,
        fitted: Sequence[Fitted] = (),
        beside: Mapping[str, Predictor] | None = None,
        train_censoring: bool = False,
    ) -> None:
        if isinstance(evaluated, Run):
            evaluated = Evaluated.of_run(evaluated)
        self.source = evaluated
        self.run, self.task, self.ours = self.source.run, self.source.task, self.source.name
        self.population, self.prepared, self.settings = population, prepared, settings
        self.fitted, self.train_censoring = fitted, train_censoring
        if prepared is None and train_censoring:
            raise EhrseqError(
                "censoring weights need the training subjects",
                where=self.source.where,
                fix="name the prepared set of the run with --prepared",
            )
        if prepared is not None and self.run is not None:
            self.run.require_own(prepared)
        self.context = Context(self.source, population, prepared)
        self.records, self.rows = population.records, population.records.rows
        if not len(self.rows):
            raise EhrseqError(
                "nobody has a prediction time",
                where=f"task {self.task.name}, {population.split}",
                fix="see ehrseq check",
            )
        self.horizons = self.grid = self.knots = np.array(self.task.horizons)
        if self.source.is_curve:
            last = self.horizons[-1]
            spaced = np.linspace(0, last, GRID_POINTS + 1)[1:]
            self.grid = np.union1d(spaced, self.horizons)
            # where risks are known: between two of these days a hazard counts as constant, as between two edges
            predictors = [self.source.predictor, *(beside or {}).values()]
            edges = [edge for one in predictors for edge in one.edges_days if edge < last]
            self.knots = np.union1d(self.grid, edges)
        self.truth, notes = truth_of(population, self.task)
        self.warnings = [*population.warnings(), *notes]
        self.trials = trials_of(self.source, settings)
        self.known_nll: dict[str, Floats] = {}  # by model, found with the risks
        # ours, and the strongest baseline where there is one
        self.strongest = [self.ours, *(one.model.name for one in fitted[:1])]
        # in order: ours, the baselines with the strongest first, the blend's other parts, others' files, the truth
        self.predictors: dict[str, Predictor] = {self.ours: self.source.predictor}
        self.predictors |= {one.model.name: one.model for one in fitted}
        if self.run is not None and self.run.blend is not None:
            for part in self.run.blend.shares[0]:
                name = NETWORK if part.name == "network" else part.name
                self.predictors.setdefault(name, part)
        self.predictors |= beside or {}
        if self.truth is not None and self.truth.known.all():
            self.predictors[ORACLE] = TrueHazards(self.truth)

    # ---- from the predictors to the rows ---------------------------------------------------------------------------

    def risks(
        self, predictors: Mapping[str, Predictor], progress: Say = lambda _: None
    ) -> dict[str, Floats]:
        """Model → (R, causes, knots), given no event in the blanking period."""
        progress("risk curves")
        start = self.task.blanking
        risks, nll = risks_and_likelihoods(predictors, self.records, self.knots, start_days=start)
        self.known_nll |= nll
        for risk in risks.values():
            np.clip(risk, 0.0, 1.0, out=risk)  # these arrays are large, and belong to nobody else
        if predictors is self.predictors:
            progress("drop-out given the history")
            self.table.learn_dropout(risks, self.source.vocabulary)
        return risks

    @cached_property
    def table(self) -> ModelRows:
        """The rows; all models must be there."""
        train = None
        if self.train_censoring and self.prepared is not None:
            records = self.prepared.records(self.task.name, "train")
            train = records, self.prepared.cut_us("train")
        return ModelRows(
            self.population,
            self.task,
            self.settings,
            self.horizons,
            self.knots,
            [name for name, one in self.predictors.items() if isinstance(one, FromFile)],
            train,
        )

    # ---- from the rows to the numbers ------------------------------------------------------------------------------

    def tables(
        self, *, progress: Say = lambda _: None
    ) -> tuple[Rows, Rows, tuple[float | None, float]]:
        """Rows of `metrics` and `differences`, also of few people, and the main place."""
        risks = self.risks(self.predictors, progress)
        comparisons = list(self.table.comparisons(risks, self.horizons))
        rows = self._metrics(risks, comparisons, progress)
        return *rows, main_place(comparisons, self.ours, self.task.main_horizon)

    def _metrics(
        self,
        risks: Mapping[str, Floats],
        comparisons: Sequence[Comparison],
        progress: Say,
    ) -> tuple[Rows, Rows]:
        """Rows of `metrics` and of `differences`."""
        metrics: Rows = []
        differences: Rows = []
        causes = self.task.causes
        rivals = [name for name in risks if name not in (self.ours, ORACLE)]
        strongest = {name: risks[name] for name in self.strongest}
        for comparison, on_grid, fine in zip(
            comparisons,
            self.table.comparisons(risks, self.grid),
            self.table.comparisons(strongest, self.knots),
            strict=True,
        ):
            estimates = scope_estimates(comparison, causes, progress=progress)
            metrics += metric_rows(comparison, estimates)
            metrics += hazards_rows(comparison, causes)
            if self.source.is_curve:
                metrics += over_time_rows(on_grid, causes, self.horizons, fine=fine)
            differences += difference_rows(comparison, estimates, ours=self.ours, rivals=rivals)
        self.nll, notes = likelihoods(
            self.predictors, self.known_nll, self.source.knots_days, self.records, self.task
        )
        self.warnings += notes
        for comparison in comparisons:
            days = comparison.landmark_days
            rows = slice(None) if days is None else self.records.at_landmark(days)
            for name, nll in self.nll.items():
                metrics.append(nll_row(comparison, nll[rows], model=name, cause=causes[0]))
                if name in rivals:
                    less = self.nll[self.ours][rows] - nll[rows]
                    differences.append(nll_row(comparison, less, model=name, cause=causes[0]))
        return metrics, differences

    # ---- the result ------------------------------------------------------------------------------------------------

    def result(self, *, progress: Say = lambda _: None) -> Exact:
        """The exact result: everything that the report is drawn from.

        Args:
            progress: Called with the name of each stage.
        """
        risks = self.risks(self.predictors, progress)
        comparisons = list(self.table.comparisons(risks, self.horizons))
        main = main_place(comparisons, self.ours, self.task.main_horizon)
        metrics, differences = self._metrics(risks, comparisons, progress)
        give_back_freed_memory()
        smooth, indices, decision = self._curves(comparisons, progress)
        give_back_freed_memory()
        progress("subgroups, checks")
        self.warnings += self.table.warnings(comparisons)
        self.warnings += self.context.warnings(comparisons)
        causes, strongest = self.task.causes, self.strongest
        at_landmarks = [one for one in comparisons if one.landmark_days is not None]
        # every model without the history, where the others go by it; no intervals
        by_history, marginal = self.table.is_by_history, list[MetricRow[int]]()
        alone = self.table.comparisons(risks, self.horizons, marginal=True) if by_history else ()
        for one in (one.without_resamples() for one in alone):
            marginal += metric_rows(one, scope_estimates(one, causes))
        content = {
            **self.context.frame(),
            "smooth_calibration": smooth,
            "decision": decision,
            "main": {"landmark_days": main[0], "horizon_days": main[1]},
            "models": list(risks),
            "declared": declared(self.task, main, strongest[1:]),
            "estimators": {"oe": "risks" if self.table.without_hazards else "hazards"},
            "dropout": None if self.table.dropout is None else self.table.dropout.as_part(),
            "marginal": results.without_few(marginal),
            "strongest": strongest[1] if len(strongest) > 1 else None,
            "baselines": [
                {"model": one.model.name, "tuning_nll": results.number(one.tuning_nll)}
                for one in self.fitted
            ],
            "metrics": results.without_few(metrics + indices),
            "differences": results.without_few(differences),
            "table1": cohort_table(self.context, main[0] or 0.0),
            "at_risk": [follow_up.at_risk(one, causes) for one in at_landmarks],
            "follow_up": [follow_up.follow_up(one) for one in at_landmarks],
            "smallest_g": follow_up.smallest_g(comparisons),
            "subgroups": [row for one in at_landmarks for row in self._subgroups(one)],
            "incidence": self._incidence(risks[self.ours], main[1]),
            "ratios": self._ratios(risks[self.ours]) if self.source.is_curve else [],
            "trajectories": trajectories(
                self.source,
                self.population,
                selected(risks[self.ours], slice(None), np.searchsorted(self.knots, self.horizons)),
                wanted=SIMULATED_TRAJECTORIES * self.context.is_simulated,
                horizon_days=main[1],
            ),
            "checks": self.context.checks(trials=self.trials),
            "tripod": read_tripod(self.settings.tripod),
            "oracle": self._oracle(),
            "blend": results.blend(self.run),
            "warnings": self.warnings,
            "made_of": None,  # told by who knows all of it
        }
        return cast(Exact, content)

    def _curves(
        self, comparisons: Sequence[Comparison], progress: Say
    ) -> tuple[list[PlaceRow], Rows, list[PlaceRow]]:
        """Calibration curves, the metrics of smooth calibration, and decision curves."""
        causes, models = self.task.causes, self.strongest
        smooth: list[PlaceRow] = []
        indices: Rows = []
        decision: list[PlaceRow] = []
        parts = [part for one in comparisons for part in one.alone(*models).parts() if len(part)]
        for number, part in enumerate(parts, start=1):
            progress(f"calibration, decision curves, {number} of {len(parts)}")
            drawn, metrics = smooth_rows(part, causes, models=models, seed=self.settings.seed)
            smooth += drawn
            indices += metrics
            at = self.settings.decision_thresholds
            decision += decision_rows(part, causes, models=models, thresholds=at)
        return smooth, indices, decision

    def _incidence(self, risk: Floats, horizon_days: float) -> list[PlaceRow]:
        """Incidence by risk group at each landmark, up to the main horizon."""
        rows: list[PlaceRow] = []
        for one in self.table.comparisons({self.ours: risk}, self.grid):
            if one.landmark_days is not None and one.followed(horizon_days).any():
                rows += incidence_rows(
                    one, self.task.causes, model=self.ours, horizon_days=horizon_days
                )
        return rows

    def _ratios(self, risk: Floats) -> list[dict[str, Any]]:
        """O/E by fifth of the bins of ours, up to the last horizon, and by tenth of risk."""
        last = self.horizons[-1]
        edges = np.r_[[edge for edge in self.source.predictor.edges_days if edge < last], last]
        ends = np.array([bins[-1] for bins in np.array_split(edges, 5) if len(bins)])
        start = self.task.blanking
        ends = ends[ends > start]
        return ratio_rows(risk, self.knots, self.rows, ends_days=ends, start_days=start)

    def _subgroups(self, comparison: Comparison) -> list[PlaceRow]:
        at = self.records.at_landmark(comparison.landmark_days or 0)
        groups = groups_of_rows(self.records, self.source.vocabulary, chosen=at)
        return subgroup_rows(comparison, groups, self.task.causes, model=self.ours)

    def _oracle(self) -> dict[str, Any] | None:
        if self.truth is None:
            return None
        if self.run is None:
            return {"name": ORACLE}
        table = oracle_table(self.truth, self.source.predictor, self.records, self.nll[self.ours])
        self.warnings += oracle_warnings(table)
        return table


def evaluate_predictors(
    source: Evaluated,
    population: Population,
    *,
    prepared: Prepared | None,
    settings: EvaluationConfig,
    beside: Mapping[str, Predictor] | None = None,
    progress: Say = lambda _: None,
) -> Exact:
    """Evaluate what answers on a population, beside baselines.

    Arguments as of `Evaluation`; without a prepared set there are no baselines.
    """
    rivals = fit_rivals(source, prepared, settings, progress)
    evaluation = Evaluation(
        source, population, prepared=prepared, settings=settings, fitted=rivals, beside=beside
    )
    return evaluation.result(progress=progress)


def evaluate(
    run: Run | Path,
    *,
    split: str = "held_out",
    prepared: Path | None = None,
    settings: EvaluationConfig | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Exact:
    """Evaluate a run and write its `metrics.json`; beside it, for real people, `metrics-individual.json`.

    That of another split than the held-out one is written into `RUN/evaluations/SPLIT`.

    Args:
        run: A finished run, or its folder.
        split: `train`, `tuning` or `held_out`.
        prepared: The prepared set, where it is no longer where training found it.
        settings: Baselines and resamples; default: those of the run.
        progress: Called with the name of each stage.

    Returns:
        The exact result, counts of few people included: not for sharing unless the data is simulated.

    Raises:
        EhrseqError: The run or its prepared set cannot be used.
    """
    run = opened(run)
    place = results.place_in_run(split)
    names = (results.SHARED, INDIVIDUAL, *results.DRAWN)
    require_room(run.folder, *(place + name for name in names))
    store = run.prepared(prepared)
    settings = settings or run.study.evaluation
    earlier = results.read_for_owner(run.folder, place)
    result = evaluate_predictors(
        Evaluated.of_run(run),
        Population.of_split(store, run.task, split).drawn(settings),
        prepared=store,
        settings=settings,
        progress=progress,
    )
    result["made_of"] = evaluation_made_of(run, split, settings)
    if earlier is not None and settings.tripod is None:
        result["tripod"] = earlier["tripod"]  # what people answered stays
    results.add_result(result, run.folder)
    return result
