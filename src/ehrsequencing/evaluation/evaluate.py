"""Evaluate a source of risks: every metric with intervals over subjects, beside baselines on the same subjects.

A run (or a file of predictions) and the subjects to evaluate it on go in. One mapping with long tables of rows comes
out; the report is made from it. This file puts together what the others compute: `risk_source` (what is evaluated),
`comparison` (rows that are compared together), `estimates` (metrics and differences), `curves`, `context`, `examples`,
`oracle`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.baselines.base import Baseline, FittingData
from ehrsequencing.baselines.fit import Fitted, fit_baselines, what_is_missing
from ehrsequencing.config import EvaluationConfig
from ehrsequencing.core.arrays import Floats, Ints, row_blocks, scratch, selected
from ehrsequencing.core.disclosure import INDIVIDUAL
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import write_json
from ehrsequencing.evaluation import results
from ehrsequencing.evaluation.comparison import (
    ORACLE,
    Comparison,
    draw_subjects,
    fewer_draws,
    main_place,
)
from ehrsequencing.evaluation.context import Context, read_tripod
from ehrsequencing.evaluation.curves import (
    calibration_rows,
    decision_rows,
    incidence_rows,
    smooth_rows,
)
from ehrsequencing.evaluation.estimates import (
    difference_rows,
    metric_rows,
    nll_row,
    over_time_rows,
    scope_estimates,
)
from ehrsequencing.evaluation.examples import code_effects, trajectories, wanted_trajectories
from ehrsequencing.evaluation.oracle import (
    oracle_table,
    oracle_warnings,
    truth_of,
)
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.recalibration import before_and_after, recalibrate
from ehrsequencing.evaluation.results import SHARED, add_result, without_few
from ehrsequencing.evaluation.risk_source import RiskSource, RunRisks, nll_of_curves
from ehrsequencing.evaluation.subgroups import groups_of_rows, subgroup_rows
from ehrsequencing.evaluation.trained_baselines import (
    known_baselines,
    likelihood_of_parts,
    parts_alone,
    rivals_of,
)
from ehrsequencing.evaluation.weights import Weights
from ehrsequencing.metrics.censoring import conditional_risk
from ehrsequencing.metrics.hazards import expected_events
from ehrsequencing.prediction.run import RECALIBRATION, Run, add_to_run, require_room
from ehrsequencing.records.prepared import Prepared

GRID_POINTS = 12  # of the integrated Brier score
Say = Callable[[str], None]


class Evaluation:
    """One source of risks on the population that it is evaluated on.

    Args:
        source: What is evaluated: a trained run, or another source of risks.
        population: The subjects to evaluate it on.
        prepared: The prepared set that a run was trained on, where baselines are fitted; None where it is gone, and
            then there are none.
        settings: Baselines, resamples, seed.
        train_censoring: Whether the censoring weights come from the training subjects at risk at the same landmark,
            and not from the population.
        beside: Others that answer at the same prediction times; each stands in the place of a baseline.

    Raises:
        EhrseqError: The prepared set is another one, or nobody has a prediction time.
    """

    def __init__(
        self,
        source: Run | RiskSource,
        population: Population,
        *,
        prepared: Prepared | None,
        settings: EvaluationConfig,
        train_censoring: bool = False,
        beside: Sequence[RiskSource] = (),
    ) -> None:
        self.source: RiskSource = RunRisks(source) if isinstance(source, Run) else source
        self.run, self.task, self.ours = self.source.run, self.source.task, self.source.name
        self.population, self.prepared, self.settings = population, prepared, settings
        self.beside, self.train_censoring = beside, train_censoring
        if prepared is None and (train_censoring or settings.censoring == "cox"):
            fix = "name the prepared set of the run with --prepared, or use evaluation.censoring=kaplan-meier"
            raise EhrseqError(
                "censoring weights need the training subjects", where=self.source.where, fix=fix
            )
        if prepared is not None and self.run is not None:
            self.run.require_own(prepared)
        self.context = Context(self.source, population, prepared)
        self.records, self.rows = population.records, population.records.rows
        if not len(self.rows):
            where = f"task {self.task.name}, {population.split}"
            raise EhrseqError("nobody has a prediction time", where=where, fix="see ehrseq check")
        self.duration, self.cause = self.rows.duration_days, self.rows.cause.astype(np.int64)
        self.horizons = np.array(self.task.horizons)
        spaced = np.linspace(0, self.horizons[-1], GRID_POINTS + 1)[1:]
        self.every_day = np.unique(np.r_[spaced, self.horizons])
        self.grid = self.every_day if self.source.is_curve else self.horizons
        # where risks are known: between two of these days a hazard counts as constant, as it is between two edges
        edges = np.array([edge for edge in self.source.edges_days if edge < self.horizons[-1]])
        self.every_knot = np.unique(np.r_[self.every_day, edges])
        self.knots = self.every_knot if self.source.is_curve else self.horizons
        self.truth, notes = truth_of(population, self.task)
        self.warnings = [*population.warnings(), *notes]
        self.oracle = self.truth if self.truth is not None and self.truth.known.all() else None
        self.fitted: list[Fitted] = []
        trials = settings.tuning_trials
        self.trials = self.source.study.evaluation.tuning_trials if trials is None else trials

    def result(self, *, progress: Say = lambda _: None) -> dict[str, Any]:
        """The exact result: everything that the report is drawn from.

        Args:
            progress: Called with the name of each stage.
        """
        risks = self._risks(progress)
        comparisons = list(self._comparisons(risks, self.horizons))
        causes = self.task.causes
        strongest = self._strongest
        metrics, differences = self._metrics(risks, comparisons, progress)
        parts = [part for one in comparisons for part in one.parts() if len(part)]
        drawn = ("smooth_calibration", "calibration", "decision")
        curves: dict[str, list[dict[str, Any]]] = {name: [] for name in drawn}
        for number, part in enumerate(parts, start=1):
            progress(f"calibration, decision curves, {number} of {len(parts)}")
            smooth, indices = smooth_rows(part, causes, models=strongest, seed=self.settings.seed)
            curves["smooth_calibration"] += smooth
            metrics += indices
            curves["calibration"] += calibration_rows(part, causes, models=strongest)
            at = self.settings.decision_thresholds
            curves["decision"] += decision_rows(part, causes, models=strongest, thresholds=at)
        progress("subgroups, inputs, checks, codes that move the risk")
        main = main_place(comparisons, self.ours)
        self.warnings += self.context.warnings(comparisons)
        return (
            self.context.frame()
            | self.context.surroundings(
                comparisons, settings=self.settings, trials=self.trials, main=main
            )
            | curves
            | {
                "main": {"landmark_days": main[0], "horizon_days": main[1]},
                "models": list(risks),
                "strongest": strongest[1] if len(strongest) > 1 else None,
                "baselines": [
                    {"model": f.model.name, "tuning_nll": results.number(f.tuning_nll)}
                    for f in self.fitted
                ],
                "metrics": without_few(metrics),
                "differences": without_few(differences),
                "at_risk": [
                    results.at_risk(s, causes) for s in comparisons if s.landmark_days is not None
                ],
                "subgroups": [row for one in comparisons for row in self._subgroups(one)],
                "trajectories": trajectories(
                    self.source,
                    self.population,
                    selected(
                        risks[self.ours], slice(None), np.searchsorted(self.knots, self.horizons)
                    ),
                    wanted=wanted_trajectories(self.population, self.settings),
                    horizon_days=main[1],
                ),
                "incidence": self._incidence(risks, main[1]),
                "tripod": read_tripod(self.settings.tripod),
                "codes": code_effects(
                    self.run, self.population, settings=self.settings, horizon_days=main[1]
                ),
                "oracle": self._oracle(),
                "blend": results.blend(self.run, self.likelihood_of_parts()),
                "warnings": self.warnings,
            }
        )

    @property
    def _strongest(self) -> list[str]:
        """Ours, and the strongest baseline where there is one."""
        return [self.ours, *(one.model.name for one in self.fitted[:1])]

    def _incidence(self, risks: Mapping[str, Floats], horizon_days: float) -> list[dict[str, Any]]:
        """Incidence by risk group at each landmark, up to the main horizon."""
        return [
            row
            for grid in self._comparisons({self.ours: risks[self.ours]}, self.grid)
            if grid.landmark_days is not None and grid.followed(horizon_days).any()
            for row in incidence_rows(
                grid, self.task.causes, model=self.ours, horizon_days=horizon_days
            )
        ]

    def metric_rows(self, *, progress: Say = lambda _: None) -> list[dict[str, Any]]:
        """Only the long rows of `metrics`, also of few people, without the indices of the smooth curves."""
        risks = self._risks(progress)
        return self._metrics(risks, list(self._comparisons(risks, self.horizons)), progress)[0]

    def _risks(self, progress: Say) -> dict[str, Floats]:
        """Model → (R, causes, knots), given no event in the blanking period; ours, then baselines, strongest first."""
        progress("risk curves")
        risks = {self.ours: self.source.risk(self.records, self.knots)}
        self.fitted = self._baselines(progress)
        # a baseline's sums depend a little on the days asked for
        column = np.searchsorted(self.every_knot, self.knots)
        for model in self._others():
            risks[model.name] = self._of_baseline(model, self.every_knot, column)
        risks |= {other.name: other.risk(self.records, self.knots) for other in self.beside}
        if self.oracle is not None:
            risks[ORACLE] = conditional_risk(
                self.oracle.risk, self.knots, start_days=self.task.blanking
            )
        for risk in risks.values():
            np.clip(risk, 0.0, 1.0, out=risk)  # these arrays are large, and belong to nobody else
        return risks

    def _of_baseline(
        self, model: Baseline, days: Floats, columns: Ints | slice = slice(None)
    ) -> Floats:
        """(R, causes, columns) a baseline's risks, those of the columns among the days."""
        every, width = np.arange(len(self.rows)), len(days[columns])
        out = scratch(len(every), len(self.task.causes), width)
        for some in row_blocks(len(every)):
            found = model.risk(self.records, every[some], days, start_days=self.task.blanking)
            out[some] = found[:, :, columns]
        return out

    def _baselines(self, progress: Say) -> list[Fitted]:
        if self.prepared is None:
            return []
        self.warnings += filter(None, [what_is_missing(self.settings.baselines)])
        return fit_baselines(
            self.settings.baselines,
            self._fitting_data,
            trials=self.trials,
            more=rivals_of(self.run, self.prepared),
            known=known_baselines(self.run, seed=self.settings.seed, trials=self.trials),
            progress=lambda name: progress(f"baseline: {name}"),
        )

    def _others(self) -> list[Baseline]:
        """Baselines, strongest first; then the parts of a blend that are none of them."""
        return [*(one.model for one in self.fitted), *parts_alone(self.run, self.fitted)]

    @cached_property
    def _fitting_data(self) -> FittingData:
        assert self.prepared is not None  # only then is anything fitted
        return FittingData(
            self.task,
            self.source.vocabulary,
            self.context.records("train"),
            self.context.records("tuning"),
            self.source.edges_days,
            self.settings.seed,
            enough=self.prepared.study.vocabulary.min_subjects,
            recalibration=self.source.study.training.recalibration,
            dataset_end_us=int(self.prepared.manifest["dataset_end_us"]),
        )

    def likelihood_of_parts(self) -> dict[str, float]:
        """Part of a blend → mean NLL of tuning subjects; nothing without them, or of another source."""
        return (
            {}
            if self.prepared is None
            else likelihood_of_parts(self.run, self.fitted, self.context.records("tuning"))
        )

    def _comparisons(self, risks: Mapping[str, Floats], days: Floats) -> Iterator[Comparison]:
        """Rows that are compared together, with the risks by `days`: the horizons, or the grid, which is not copied."""
        places: list[tuple[float | None, Ints]] = []
        for landmark in self.task.landmarks:
            at = np.flatnonzero(self.rows.at_landmark(landmark))
            if len(at):
                places.append((landmark, at))
        whole = any(len(at) == len(self.rows) for _, at in places)
        if not (self.population.only_landmarks or whole):
            places.append((None, np.arange(len(self.rows))))
        column = np.searchsorted(self.knots, days)
        for place, at in places:
            rows = slice(None) if place is None else at
            yield Comparison(
                place,
                self.rows.subject[at],
                self.duration[at],
                self.cause[at],
                days,
                {name: selected(risk, rows, column) for name, risk in risks.items()},
                fewer_draws(self._draws, len(at)),
                self._weights.at(place, at),
                self._weights.potential[at],
                self._expected(risks, rows) if days is self.horizons else {},
            )

    def _expected(self, risks: Mapping[str, Floats], rows: Ints | slice) -> dict[str, Floats]:
        """Model → (r, causes, horizons), events that it expects of each row while it is under observation."""
        start = self.task.blanking
        late = np.flatnonzero(self.knots > start)
        return {
            name: expected_events(
                selected(risk, rows, late),
                self.knots[late],
                duration_days=self.duration[rows],
                horizons_days=self.horizons,
                start_days=start,
            )
            for name, risk in risks.items()
        }

    @cached_property
    def _draws(self) -> NDArray[np.uint8]:
        return draw_subjects(
            len(self.records.timelines), self.settings.bootstrap, self.settings.seed
        )

    @cached_property
    def _weights(self) -> Weights:
        train = self.context.records("train") if self.train_censoring else None
        fitting = self._fitting_data if self.settings.censoring == "cox" else None
        return Weights(self.population, self.task, train=train, fitting=fitting)

    def _metrics(
        self, risks: Mapping[str, Floats], comparisons: list[Comparison], progress: Say
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Rows of `metrics` and of `differences`."""
        metrics: list[dict[str, Any]] = []
        differences: list[dict[str, Any]] = []
        rivals = [name for name in risks if name not in (self.ours, ORACLE)]
        for comparison, on_grid in zip(
            comparisons, self._comparisons(risks, self.grid), strict=True
        ):
            estimates = scope_estimates(comparison, self.task.causes, progress=progress)
            metrics += metric_rows(comparison, estimates)
            if self.source.is_curve:
                metrics += over_time_rows(
                    on_grid, self.task.causes, self.horizons, strongest=self._strongest
                )
            differences += difference_rows(comparison, estimates, ours=self.ours, rivals=rivals)
        likelihoods, cause = self._likelihoods(), self.task.causes[0]
        for comparison in comparisons:
            days = comparison.landmark_days
            rows = slice(None) if days is None else self.records.at_landmark(days)
            nll = {name: found[rows] for name, found in likelihoods.items()}
            for name, own in nll.items():
                metrics.append(nll_row(comparison, own, model=name, cause=cause))
                if name in rivals:
                    less = nll[self.ours] - own
                    differences.append(nll_row(comparison, less, model=name, cause=cause))
        return metrics, differences

    def _likelihoods(self) -> dict[str, Floats]:
        """Model → (R,) NLL of every prediction time; no model has one where the source has none.

        Each by its own hazards (baselines on the run's grid), or, for a source that is known at some knots only, all
        by curves through their risks there.
        """
        self.nll, every = self.source.nll(self.records), np.arange(len(self.rows))
        knots, start = self.source.knots_days, self.task.blanking
        if self.nll is None:
            return {}
        found = {self.ours: self.nll}
        if knots is None:
            found |= {model.name: model.nll(self.records, every) for model in self._others()}
            return found | ({} if self.oracle is None else {ORACLE: self.oracle.nll(self.rows)})
        risks = {model.name: self._of_baseline(model, knots) for model in self._others()}
        risks |= {other.name: other.risk(self.records, knots) for other in self.beside}
        if self.oracle is not None:
            risks[ORACLE] = conditional_risk(self.oracle.risk, knots, start_days=start)
        through, notes = nll_of_curves(risks, knots, self.rows, start_days=start)
        self.warnings += notes
        return found | through

    def _subgroups(self, comparison: Comparison) -> list[dict[str, Any]]:
        if comparison.landmark_days is None:
            return []
        at, kinds = self.records.at_landmark(comparison.landmark_days), self.settings.subgroups
        groups = groups_of_rows(self.records, self.source.vocabulary, chosen=at, kinds=kinds)
        return subgroup_rows(comparison, groups, self.task.causes, model=self.ours)

    def _oracle(self) -> dict[str, Any] | None:
        if self.truth is None or self.prepared is None:
            return None
        found: dict[str, Any] = {"name": ORACLE}
        if isinstance(self.source, RunRisks) and self.nll is not None:
            train = self.context.records("train").rows
            found = oracle_table(self.truth, self.source, self.records, self.nll, train=train)
            self.warnings += oracle_warnings(found)
        return found


def evaluate(
    run_folder: Path,
    *,
    split: str = "held_out",
    prepared: Path | None = None,
    settings: EvaluationConfig | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Evaluate a run and write its `metrics.json`; beside it, for real people, `metrics-individual.json`.

    Args:
        run_folder: A finished run.
        split: `train`, `tuning` or `held_out`.
        prepared: The prepared set, where it is no longer where training found it.
        settings: Baselines and resamples; default: those of the run.
        progress: Called with the name of each stage.

    Returns:
        The exact result, counts of few people included: not for sharing unless the data is simulated.

    Raises:
        EhrseqError: The run or its prepared set cannot be used.
    """
    run = Run(run_folder)
    source = RunRisks(run)
    require_room(run_folder, SHARED, INDIVIDUAL, "report.html", "report-details.html")
    store = run.prepared(prepared)
    settings = settings or run.study.evaluation
    population = Population.of_split(store, run.task, split).drawn(settings)
    fitted = recalibrate(run, store) if settings.recalibrate else None
    evaluation = Evaluation(source, population, prepared=store, settings=settings)
    result = evaluation.result(progress=progress)
    if fitted is not None:
        landmark = result["main"]["landmark_days"]
        recalibration = before_and_after(run, fitted, population, landmark_days=landmark)
        result["recalibration"] = recalibration
        add_to_run(run_folder, RECALIBRATION, lambda path: write_json(path, recalibration))
    add_result(result, run_folder)
    return result
