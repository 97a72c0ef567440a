"""Scores and tables of the league: `ehrseq score`'s function on the files of each task, and Markdown."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.accuracy._league_tasks import FOREIGN, NAMES, OURS, Place
from bench.accuracy.contenders.exchange import FACTS, PREDICTIONS
from ehrsequencing.config import format_days
from ehrsequencing.core.files import digest, read_json, sha256, write_json
from ehrsequencing.evaluation.comparison import ORACLE
from ehrsequencing.evaluation.population import people
from ehrsequencing.evaluation.score import score

COLUMNS = {"nll": "NLL", "ipa": "IPA", "c": "C", "oe": "O/E"}
COMPARED = ("nll", "ipa", "c")
DIGITS = {"nll": 4, "oe": 2}  # of the others: 3
SCORES_FORMAT = 2
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Scored:
    """One division of one task.

    Attributes:
        place: Which.
        facts: Model → its `facts.json`, of the models that are done.
        metrics: Long rows of `metrics.json`, all models.
        differences: Our model → long rows of ours minus each other model, as far as they were computed.
    """

    place: Place
    facts: Mapping[str, Row]
    metrics: Sequence[Row]
    differences: Mapping[str, Sequence[Row]]

    def _tuning(self, models: Mapping[str, Any]) -> str | None:
        done = {name: self.facts[name].get("tuning_nll") for name in models if name in self.facts}
        known = {name: value for name, value in done.items() if value is not None}
        return min(known, key=known.__getitem__) if known else None

    @property
    def strongest(self) -> str | None:
        """The foreign model with the lowest tuning NLL; one without a likelihood cannot be it."""
        return self._tuning(FOREIGN)

    @property
    def ours(self) -> str | None:
        """The one of ours with the lowest tuning NLL."""
        return self._tuning(OURS)

    def cell(self, model: str, metric: str) -> Row | None:
        """The value of one model's metric at the landmark and horizon that are shown."""
        if metric == "nll" and not self.facts.get(model, {"is_curve": True})["is_curve"]:
            return None
        return self._find(self.metrics, NAMES.get(model, model), metric)

    def gap(self, ours: str, model: str, metric: str) -> Row | None:
        """One of ours minus another model."""
        if metric == "nll" and not self.facts[model]["is_curve"]:
            return None
        return self._find(self.differences.get(ours, ()), NAMES[model], metric)

    def _find(self, rows: Sequence[Row], model: str, metric: str) -> Row | None:
        landmark, horizon = self.place.one.shown_days
        wanted = (
            model,
            metric,
            landmark,
            None if metric == "nll" else horizon,
            self.place.question.causes[0],
        )
        keys = ("model", "metric", "landmark_days", "horizon_days", "cause")
        return next((row for row in rows if tuple(row[key] for key in keys) == wanted), None)


def score_place(place: Place, *, resamples: int) -> Scored:
    """Score every file of one division together; what was scored of the same files before is read again."""
    done = {
        model: read_json(place.folder / model / FACTS)
        for model in NAMES
        if (place.folder / model / FACTS).is_file()
    }
    nothing = Scored(place, done, [], {})
    if not done:
        return nothing
    files = {model: place.folder / model / PREDICTIONS for model in done}
    mark = digest(
        [SCORES_FORMAT, resamples, {model: sha256(path) for model, path in files.items()}]
    )
    kept = place.folder / "scores.json"
    found = read_json(kept) if kept.is_file() else {}
    if not isinstance(found, dict) or found.get("mark") != mark:
        found = {"mark": mark, **_scores(place, nothing, files, resamples=resamples)}
        write_json(kept, found, owner_only=True)
    return Scored(place, done, found["metrics"], found["differences"])


def _scores(
    place: Place, done: Scored, files: Mapping[str, Any], *, resamples: int
) -> dict[str, Any]:
    """Metrics of all models, the differences of ours to all, and those of our other model to the strongest rival."""
    study = place.study("evaluation.baselines=none", f"evaluation.bootstrap={resamples}")
    prepared = place.prepared()

    def together(first: str, others: Sequence[str]) -> dict[str, Any]:
        result, _ = score(
            files[first],
            place.records,
            place.question,
            out=place.folder / f"score-{first}",
            name=NAMES[first],
            study=study,
            prepared=prepared.folder,
            beside={NAMES[other]: files[other] for other in others},
        )
        return result

    first = done.ours or done.strongest or next(iter(files))
    result = together(first, [model for model in files if model != first])
    differences = {first: result["differences"]}
    second = next((model for model in OURS if model in files and model != first), None)
    if second is not None and done.strongest is not None:
        differences[second] = together(second, [done.strongest])["differences"]
    return {"metrics": result["metrics"], "differences": differences}


# ---- tables ----------------------------------------------------------------------------------------------------------


def number(metric: str, row: Row | None, *, signed: bool = False) -> str:
    """`value (low to high)`, a dash where it is undefined."""
    if row is None or row["value"] is None:
        return "–"
    form = f"{'+' if signed else ''}.{DIGITS.get(metric, 3)}f"
    if row["low"] is None:
        return f"{row['value']:{form}}"
    return f"{row['value']:{form}} ({row['low']:{form}} to {row['high']:{form}})"


def verdict(metric: str, row: Row | None) -> str:
    """What the interval of a difference allows one to say of ours."""
    if row is None or row["value"] is None or row["low"] is None:
        return "no interval"
    if row["low"] <= 0 <= row["high"]:
        return "?"  # the interval holds 0
    return "better" if (row["low"] > 0) != (metric == "nll") else "worse"


def task_table(one: Scored) -> str:
    """One division of one task: every model, with the difference of ours to it."""
    place, ours = one.place, one.ours
    landmark, horizon = place.one.shown_days
    settings = " ".join([*place.one.settings, *place.more])
    chosen = f"`{settings}`" if settings else "the defaults"
    said = "simulation seed" if place.one.world is not None else "split seed"
    size = f", {place.subjects:,} subjects simulated" if place.one.world is not None else ""
    lines = [
        f"### {place.task}\n",
        f"{place.one.records[0].upper()}{place.one.records[1:]}{size}; {said} {place.seed}. {_outcome(place)} within "
        f"{format_days(horizon)}, predicted {format_days(landmark)} after the index. {_held_out(one)}"
        f"Settings of ours: {chosen}.\n",
        f"| model | trials | CPU s | tuning NLL | {' | '.join(COLUMNS.values())} | {_against(ours)} |",
        "|---" * (6 + len(COLUMNS)) + "|",
    ]
    for model in sorted(NAMES, key=lambda name: _tuning_order(one, name)):
        if model not in one.facts:
            lines.append(f"| {NAMES[model]} |" + " not run |" + " |" * (4 + len(COLUMNS)))
            continue
        facts = one.facts[model]
        mark = " (strongest rival)" if model == one.strongest else ""
        loss = "–" if facts.get("tuning_nll") is None else f"{facts['tuning_nll']:.4f}"
        cells = [number(metric, one.cell(model, metric)) for metric in COLUMNS]
        gaps = (
            ["", ""]
            if ours in (None, model)
            else [
                number(metric, one.gap(ours, model, metric), signed=True) for metric in ("nll", "c")
            ]
        )
        tried = f"{facts['trials']}/{facts['of_trials']}"
        cpu = "–" if facts["cpu_seconds"] is None else f"{facts['cpu_seconds']:.0f}"
        lines.append(
            f"| {NAMES[model]}{mark} | {tried} | {cpu} | {loss} | {' | '.join([*cells, *gaps])} |"
        )
    if one.cell(ORACLE, "c") is not None:
        cells = [number(metric, one.cell(ORACLE, metric)) for metric in COLUMNS]
        lines.append(f"| *true hazards* | | | | {' | '.join(cells)} | | |")
    return "\n".join(lines)


def _against(ours: str | None) -> str:
    name = "ours" if ours is None else NAMES[ours]
    return f"{name} − this, NLL | {name} − this, C"


def _outcome(place: Place) -> str:
    cause = place.question.causes[0]
    return f"{cause[0].upper()}{cause[1:]}"


def _held_out(one: Scored) -> str:
    shown = [one.cell(model, "c") for model in one.facts]
    row = next((row for row in shown if row is not None), None)
    if row is None:
        return ""
    events = people(row["events"])
    return f"{people(row['subjects'])} held-out subjects at risk, {events[0].lower() + events[1:]} with the event. "


def _tuning_order(one: Scored, model: str) -> tuple[int, float]:
    """Models by tuning NLL; then those without a likelihood; then what was not run."""
    if model not in one.facts:
        return 2, 0.0
    loss = one.facts[model].get("tuning_nll")
    return (1, 0.0) if loss is None else (0, loss)


def summary_table(scored: Sequence[Scored]) -> str:
    """One row for each division of a task: the strongest rival, and ours minus it."""
    lines = [
        f"| task | strongest rival | ours | {' | '.join(f'ours − rival, {COLUMNS[metric]}' for metric in COMPARED)} "
        "| not run |",
        "|---" * (4 + len(COMPARED)) + "|",
    ]
    for one in scored:
        absent = ", ".join(NAMES[model] for model in NAMES if model not in one.facts) or "–"
        if len(absent.split(", ")) == len(NAMES):
            lines.append(f"| {one.place.task} | not run |" + " |" * (1 + len(COMPARED)) + " all |")
            continue
        rival = one.strongest
        for ours in [model for model in OURS if model in one.facts] or [None]:
            found = {
                metric: None if ours is None or rival is None else one.gap(ours, rival, metric)
                for metric in COMPARED
            }
            cells = [
                f"{number(metric, row, signed=True)} *{verdict(metric, row)}*"
                if row is not None
                else "–"
                for metric, row in found.items()
            ]
            names = "–" if rival is None else NAMES[rival], "–" if ours is None else NAMES[ours]
            lines.append(f"| {one.place.task} | {' | '.join([*names, *cells])} | {absent} |")
    return "\n".join(lines)


def page_text(scored: Sequence[Scored], *, date: str) -> str:
    """Everything between the markers of the page."""
    versions: dict[str, str] = {}
    for one in scored:
        for facts in one.facts.values():
            versions |= facts["versions"]
    told = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    parts = [
        f"Printed on {date}. Python {platform.python_version()}; {told or 'nothing has run'}.",
        "## Ours beside the strongest rival",
        summary_table(scored),
        "## Every task",
        *(task_table(one) for one in scored if one.facts),
    ]
    return "\n\n".join(part for part in parts if part)
