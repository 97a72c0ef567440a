"""Scores and tables of the league: `ehrseq score`'s function on the files of each division, and Markdown."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.accuracy._league_tasks import FOREIGN, NAMES, LandmarkRows, Place, knots_days
from bench.accuracy._real_numbers import cell, seeds_of, verdict
from bench.accuracy.contenders.exchange import (
    COHORT_SHARE,
    FACTS,
    PREDICTIONS,
    cohort_hazard,
    incidences,
    nll_through,
)
from ehrsequencing.config import format_days
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, read_json, sha256, write_json
from ehrsequencing.evaluation.comparison import ORACLE
from ehrsequencing.evaluation.repeated_splits import corrected_interval
from ehrsequencing.evaluation.score import score

COLUMNS = {"nll": "NLL", "ipa": "IPA", "c": "C", "oe": "O/E"}
COMPARED = ("nll", "ipa", "c")
SCORES_FORMAT = 4
MIXED = "mixed.parquet"
Row = Mapping[str, Any]
Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Scored:
    """One division of one task.

    Attributes:
        place: Which.
        facts: Model → its `facts.json`, of the models that are done.
        metrics: Long rows of `metrics.json`, all models.
        failure: Why its files could not be scored together.
    """

    place: Place
    facts: Mapping[str, Row]
    metrics: Sequence[Row] = ()
    failure: str = ""

    def value(self, model: str, metric: str) -> float:
        """One model's metric at the landmark and horizon that are shown; NaN where it is undefined."""
        if metric == "nll" and not self.facts.get(model, {"is_curve": True})["is_curve"]:
            return math.nan
        landmark, horizon = self.place.one.shown_days
        at = None if metric == "nll" else horizon
        wanted = NAMES.get(model, model), metric, landmark, at, self.place.question.causes[0]
        keys = ("model", "metric", "landmark_days", "horizon_days", "cause")
        found = (row["value"] for row in self.metrics if tuple(row[key] for key in keys) == wanted)
        value = next(found, None)
        return math.nan if value is None else float(value)


def score_place(place: Place) -> Scored:
    """Score every file of one division together; what was scored of the same files before is read again.

    The intervals of the league are over divisions, so that no resamples are drawn here.
    """
    done = {
        model: read_json(place.folder / model / FACTS)
        for model in NAMES
        if (place.folder / model / FACTS).is_file()
    }
    if not done:
        return Scored(place, done)
    written = {model: sha256(place.folder / model / PREDICTIONS) for model in done}
    mark = digest([SCORES_FORMAT, written])
    kept = place.folder / "scores.json"
    stored = read_json(kept) if kept.is_file() else {}
    if not isinstance(stored, dict) or stored.get("mark") != mark:
        losses = mix_with_cohort(place, done)
        first, *others = done
        try:
            result, _ = score(
                place.folder / first / MIXED,
                place.records,
                place.question,
                out=place.folder / f"score-{first}",
                name=NAMES[first],
                study=place.study("evaluation.baselines=none", "evaluation.bootstrap=0"),
                prepared=place.prepared().folder,
                beside={NAMES[other]: place.folder / other / MIXED for other in others},
                overwrite=True,
            )
        except EhrseqError as error:
            return Scored(place, {}, failure=str(error))
        stored = {"mark": mark, "tuning_nll": losses, "metrics": result["metrics"]}
        write_json(kept, stored, owner_only=True)
    facts = {
        model: {**row, "tuning_nll": stored["tuning_nll"][model]} for model, row in done.items()
    }
    return Scored(place, facts, stored["metrics"])


def mix_with_cohort(place: Place, models: Mapping[str, Row]) -> dict[str, float | None]:
    """Write each model's curves with a hundredth of the training cohort's incidence in them; each one's tuning NLL.

        F'_e(t | x) = .99 F_e(t | x) + .01 π_e F(t)      π_e: the cause's share of all events

    Files have float32: of somebody whose survival is all but used up nothing is left for later intervals, and one
    event there would make a mean infinite. All models are mixed alike, ours too.

    Returns:
        Model → mean NLL of the mixed curves at the landmarks of tuning subjects; None without curves.
    """
    prepared, task = place.prepared(), place.question
    train, tuning = (LandmarkRows.of(prepared, task, split) for split in ("train", "tuning"))
    seen = train.column("duration_days"), train.column("cause").astype(np.int64)
    own = tuning.column("duration_days"), tuning.column("cause").astype(np.int64)
    days = knots_days(*seen, task.horizons)
    cumulative = cohort_hazard(*seen, causes=len(task.causes), grid_days=days)
    any_cause = incidences(cumulative[np.newaxis])[0].sum(axis=0)
    # each cause's share of all events, so that no interval is without one of them
    share = np.bincount(seen[1], minlength=len(task.causes) + 1)[1:] / np.count_nonzero(seen[1])
    cohort = share[:, np.newaxis] * any_cause  # (causes, K)
    losses: dict[str, float | None] = {}
    for model, facts in models.items():
        table = pq.read_table(place.folder / model / PREDICTIONS)
        losses[model] = None
        if facts["is_curve"]:
            risk = table["risk"].to_numpy().reshape(-1, *cohort.shape)  # tuning rows come first
            risk = (1 - COHORT_SHARE) * risk.astype(np.float64) + COHORT_SHARE * cohort
            losses[model] = nll_through(risk[: len(own[0])], days, *own)
            column = pa.array(risk.reshape(-1).astype(np.float32))
            table = table.set_column(table.schema.get_field_index("risk"), "risk", column)
        pq.write_table(table, place.folder / model / MIXED)
    return losses


@dataclass(frozen=True)
class Answered:
    """All divisions of one task, with what they say together; a model counts on those where it ran."""

    each: Sequence[Scored]

    @property
    def place(self) -> Place:
        """The first of them."""
        return self.each[0].place

    def of(self, model: str) -> list[Scored]:
        """Those where a model is done."""
        return [one for one in self.each if model in one.facts]

    @property
    def strongest(self) -> str | None:
        """The foreign model with the lowest mean tuning NLL, of those on every division with a result of ours.

        One without a likelihood cannot be it.
        """
        ours = self.of("blend") or [one for one in self.each if one.facts]
        means = {}
        for model in FOREIGN:
            known = [one.facts.get(model, {}).get("tuning_nll") for one in ours]
            if known and None not in known:
                means[model] = float(np.mean(known))
        return min(means, key=means.__getitem__) if means else None

    def mean(self, model: str, metric: str) -> Interval:
        """A model's metric; NaN where one division lacks it. No limits: most of its spread is the divisions'."""
        values = [
            one.value(model, metric) for one in (self.each if model == ORACLE else self.of(model))
        ]
        return float(np.mean(values)), math.nan, math.nan

    def gap(self, model: str, other: str, metric: str) -> Interval:
        """A model minus another, paired by division, with the interval of Nadeau and Bengio.

        Simulated worlds are drawn anew for each division, so that their divisions share nobody.
        """
        both = [one for one in self.of(model) if other in one.facts]
        sizes = [one.facts[model]["subjects"] for one in both]
        held_out = sum(size["held_out"] / (size["train"] + size["tuning"]) for size in sizes)
        ratio = 0.0 if self.place.one.world is not None or not both else held_out / len(both)
        return corrected_interval(
            [one.value(model, metric) - one.value(other, metric) for one in both], ratio
        )


# ---- tables ----------------------------------------------------------------------------------------------------------


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def task_table(task: Answered) -> str:
    """One task: every model that ran, and what our blend is better or worse than it."""
    place = task.place
    landmark, horizon = place.one.shown_days
    settings = " ".join([*place.one.settings, *place.more])
    chosen = f"`{settings}`" if settings else "the defaults"
    done = [{"seed": one.place.seed} for one in task.each if one.facts]
    seeds = f"seed{'s' if len(done) > 1 else ''} {seeds_of(done)}"
    size = f", {place.subjects:,} subjects simulated" if place.one.world is not None else ""
    cause = place.question.causes[0]
    head = ["model", "divisions", "trials", "CPU s", "tuning NLL", *COLUMNS.values()]
    against = ["our blend − this, NLL", "our blend − this, C"]
    lines = [
        f"### {place.task}\n",
        f"{place.one.records[0].upper()}{place.one.records[1:]}{size}; {seeds}. {cause[0].upper()}{cause[1:]} "
        f"within {format_days(horizon)}, predicted {format_days(landmark)} after the index. "
        f"Settings of ours: {chosen}.\n",
        _line([*head, *against]),
        "|---" * (len(head) + len(against)) + "|",
    ]
    ran = {model: task.of(model) for model in NAMES if task.of(model)}
    for model in sorted(ran, key=lambda name: _tuning(ran[name], name)):
        facts = [one.facts[model] for one in ran[model]]
        mark = " (strongest rival)" if model == task.strongest else ""
        seconds = [fact["cpu_seconds"] for fact in facts if fact["cpu_seconds"] is not None]
        loss = _tuning(ran[model], model)
        gaps = (
            ["", ""]
            if model == "blend"
            else [
                cell(metric, task.gap("blend", model, metric), signed=True)
                for metric in ("nll", "c")
            ]
        )
        lines.append(
            _line(
                [
                    f"{NAMES[model]}{mark}",
                    str(len(facts)),
                    f"{min(fact['trials'] for fact in facts)}/{facts[0]['of_trials']}",
                    f"{np.mean(seconds):.0f}" if seconds else "–",
                    f"{loss:.4f}" if math.isfinite(loss) else "–",
                    *(cell(metric, task.mean(model, metric)) for metric in COLUMNS),
                    *gaps,
                ]
            )
        )
    if math.isfinite(task.mean(ORACLE, "nll")[0]):
        truth = [cell(metric, task.mean(ORACLE, metric)) for metric in COLUMNS]
        lines.append(_line(["*true hazards*", "", "", "", "", *truth, "", ""]))
    return "\n".join(lines)


def _tuning(divisions: Sequence[Scored], model: str) -> float:
    """Mean tuning NLL; infinite for a model without a likelihood."""
    losses = [one.facts[model].get("tuning_nll") for one in divisions]
    known = [loss for loss in losses if loss is not None]
    return float(np.mean(known)) if known else math.inf


def summary_table(tasks: Sequence[Answered]) -> str:
    """Our blend and our trees with Cox against the strongest rival of each task, and the first against the second."""
    head = ["task", "divisions", "difference"]
    lines = [
        _line([*head, *(COLUMNS[metric] for metric in COMPARED)]),
        "|---" * (len(head) + len(COMPARED)) + "|",
    ]
    for task in tasks:
        rival, done = task.strongest, len(task.of("blend"))
        pairs = [("blend", rival), ("blend", "stacked"), ("stacked", rival)]
        if not done:
            lines.append(
                _line([task.place.task, "not run", *[""] * (len(head) + len(COMPARED) - 2)])
            )
            continue
        for model, other in pairs:
            if other is None or not task.of(other):
                continue
            gaps = {metric: task.gap(model, other, metric) for metric in COMPARED}
            lines.append(
                _line(
                    [
                        task.place.task,
                        str(len([one for one in task.of(model) if other in one.facts])),
                        f"{NAMES[model]} − {NAMES[other]}",
                        *(
                            f"{cell(metric, one, signed=True)} *{verdict(metric, one)}*"
                            for metric, one in gaps.items()
                        ),
                    ]
                )
            )
    return "\n".join(lines)


def page_text(scored: Sequence[Scored], *, date: str) -> str:
    """Everything between the markers of the page."""
    versions: dict[str, str] = {}
    for one in scored:
        for facts in one.facts.values():
            versions |= facts["versions"]
    told = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    tasks = [Answered(list(some)) for _, some in groupby(scored, key=lambda one: one.place.task)]
    parts = [
        f"Printed on {date}. Python {platform.python_version()}; {told or 'nothing has run'}.",
        "## Ours beside the strongest rival",
        summary_table(tasks),
        "## Every task",
        *(task_table(task) for task in tasks if any(one.facts for one in task.each)),
    ]
    return "\n\n".join(part for part in parts if part)
