"""External validation: evaluates a run on data that it has never seen, and writes a folder with `metrics.json`.

Nothing is fitted on the new data. The run's task makes the labels and its vocabulary the tokens. Baselines are
fitted on the run's own training subjects.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import DataConfig, DriftConfig, EvaluationConfig
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, private_folder, read_json, refuse_overlap
from ehrsequencing.core.made_of import differing, made_of
from ehrsequencing.core.outputs import (
    EXTERNAL,
    MANIFEST,
    complete_folder,
    is_json_of,
    write_manifest,
)
from ehrsequencing.evaluation.context import evaluation_made_of
from ehrsequencing.evaluation.evaluate import evaluate_predictors
from ehrsequencing.evaluation.population import Population, people
from ehrsequencing.evaluation.results import write_result
from ehrsequencing.evaluation.rivals import Evaluated
from ehrsequencing.prediction.drift import Drift, compare
from ehrsequencing.prediction.predict import Encoder
from ehrsequencing.prediction.run import Run, opened, refuse_shared
from ehrsequencing.records.attrition import Tally
from ehrsequencing.records.codes import CodeMatcher, read_parents
from ehrsequencing.records.events import BIRTH, DEATH
from ehrsequencing.records.meds import LateRows, MedsReader, data_name
from ehrsequencing.records.people import People
from ehrsequencing.records.prepared import Prepared, is_simulation
from ehrsequencing.records.survey import survey
from ehrsequencing.records.timelines import (
    ArrayAppender,
    TaskRecords,
    TaskRows,
    Timelines,
    open_arrays,
)
from ehrsequencing.records.visits import make_record
from ehrsequencing.results.result_types import Exact

SPLIT = "external"
_CHUNK = 5_000  # subjects put in order at a time
MOST_CODES = 15
MUCH_UNKNOWN = 0.1  # above the share in training: worth a warning


@dataclass(frozen=True)
class External:
    """Data that a run has never seen, encoded as its own training data was."""

    population: Population  # prediction times, labels and counts
    unknown: dict[str, int]  # codes that the run does not know → subjects
    unmatched: list[str]  # settings of the task whose codes match nothing here
    drift: Drift  # beside the training people
    late: LateRows | None  # rows that were left out, long after all others
    made_of: dict[str, str]  # its rows
    people: People  # what their records are like


def read_external(
    run: Run,
    data: Path,
    *,
    facts: DataConfig | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> External:
    """Encode and label other MEDS data for a run. The arrays are mapped from temporary files.

    Args:
        run: The trained run.
        data: Folder of the data set.
        facts: What its files do not tell (its date of extraction).
        progress: Called with the name of each stage.

    Raises:
        EhrseqError: The data cannot be read, or the task's index, outcome or end of follow-up is not in it.
    """
    reader = MedsReader(data, facts, run.study)
    progress("reading the new data")
    parents, task = read_parents(data), run.task
    encoder = Encoder(run, parents)
    surveyed = survey(reader, lambda: People(run.vocabulary, encoder.excluded, run.study.visits))
    codes, unknown = surveyed.part.subjects, surveyed.part.unknown(run.vocabulary, encoder.excluded)
    named = {
        "index.code": task.index.code,
        "censoring.code": task.censoring.code,
        "censoring.start": task.censoring.start,
        **{f"outcome.{cause}": patterns for cause, patterns in task.outcome.items()},
        **{f"competing.{cause}": patterns for cause, patterns in task.competing.items()},
    }
    there = (*codes, *parents, BIRTH, DEATH)
    unmatched = [
        f"{name}: {', '.join(patterns)}"
        for name, patterns in named.items()
        if patterns and not any(map(CodeMatcher(patterns, parents=parents), there))
    ]
    if any(not text.startswith("competing.") for text in unmatched):
        whole = sum(not encoder.excluded(code) for code in codes)
        known = f"{len(unknown)} of its {whole} codes are unknown to the run"
        what = f"the run's task {task.name} matches nothing here ({'; '.join(unmatched)})"
        raise EhrseqError(
            f"{what}, and {known}",
            where=str(data),
            fix="map its codes to those of the data that the run was trained on",
        )
    end_us, tally = surveyed.end_us, Tally(task)

    def parts() -> Iterator[TaskRecords]:
        for events in reader:
            record = make_record(events, excluded=encoder.excluded, settings=run.study.visits)
            cohort = encoder.builder.build(record, dataset_end_us=end_us)
            no_split = np.zeros(len(record.subject_id), dtype=np.int8)
            tally.add_cohort(cohort, no_split, record)
            yield replace(encoder.encode(record, cohort.rows), outcomes=None)

    with private_folder() as folder:  # its files may be removed while they are mapped
        records = _mapped(parts(), folder / "by-shard")
        order = np.argsort(records.timelines.subject_id, kind="stable")
        if (np.diff(order) != 1).any():  # how shards were cut decides nothing
            some = (records.take(order[k : k + _CHUNK]) for k in range(0, len(order), _CHUNK))
            records = _mapped(some, folder / "by-id")
    counts = tally.as_json()
    counts["splits"] = {SPLIT: counts["splits"]["train"]}  # where the tally put everybody
    population = Population(
        split=SPLIT,
        data=data_name(data),
        records=records,
        attrition=counts,
        source=data,
        is_simulated=is_simulation(data),
        dataset_end_us=end_us,
    )
    return External(
        population,
        unknown,
        unmatched,
        compare(surveyed.part, run, parents=parents, limits=DriftConfig()),
        late=reader.late,
        made_of=made_of(records=surveyed.days.content),
        people=surveyed.part,
    )


def _mapped(parts: Iterable[TaskRecords], folder: Path) -> TaskRecords:
    """All parts, one after another, mapped from files in a folder."""
    with ExitStack() as stack:
        appender = ArrayAppender(stack)
        for part in parts:
            appender.append(folder / "visits", part.timelines)
            appender.append(folder / "rows", part.rows)
    lines = open_arrays(Timelines, folder / "visits")
    return TaskRecords(lines, open_arrays(TaskRows, folder / "rows"))


def validate(
    run: Run | Path,
    data: Path,
    *,
    out: Path | None = None,
    prepared: Path | None = None,
    settings: EvaluationConfig | None = None,
    facts: DataConfig | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    draw: Callable[[Exact, Path], None] = lambda result, folder: None,
) -> tuple[Exact, Path]:
    """Evaluate a run on other data and write the result into a folder of its own, which appears when complete.

    Args:
        run: A finished run, or its folder.
        data: A MEDS data set that it has not seen.
        out: The folder; default: `RUN/external-NAME`, by the data set's name. An earlier validation there is replaced.
        prepared: The run's own prepared set, where it is no longer where training found it. Baselines are fitted on
            its training subjects; without it there are none.
        settings: Baselines and resamples; default: those of the run.
        facts: What the data set's files do not tell.
        overwrite: Whether an earlier output there that nobody has changed is replaced.
        progress: Called with the name of each stage.
        say: Called with what to look at before the result is believed.
        draw: Called with the result and the folder that is being written, to add a report.

    Returns:
        The exact result, and the folder.

    Raises:
        EhrseqError: Run or data cannot be used, or nobody there has a prediction time.
    """
    run = opened(run)
    evaluated = Evaluated.of_run(run)
    settings = settings or run.study.evaluation
    is_updated = "update" in run.manifest
    if is_updated and prepared is not None:
        run.prepared(prepared)  # refuses
    own = prepared or Path(run.manifest["prepared"])
    store = Prepared(own) if own.is_dir() and not is_updated else None
    if store is None and prepared is not None:
        raise EhrseqError(
            "the prepared set is not there",
            where=str(own),
            fix="name the set that the run was trained on with --prepared",
        )
    if out is None:
        refuse_shared(run.folder, run.manifest)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", data_name(data))
    folder = out or run.folder / f"external-{name}"
    refuse_overlap(folder, data)
    with complete_folder(folder, EXTERNAL, overwrite=overwrite or out is None) as temporary:
        external = read_external(run, data, facts=facts, progress=progress)
        is_there = is_json_of(folder / MANIFEST, EXTERNAL)
        noted = read_json(folder / MANIFEST).get("made_of") if is_there else external.made_of
        if out is None and not overwrite and differing(external.made_of, noted):
            raise EhrseqError(
                f"holds the validation of other records, which are called {name} too",
                where=str(folder),
                fix="name another folder with --out, or replace it with --overwrite",
            )
        if not external.drift.passes:
            say(f"warning: {external.drift.verdict}")
        external = replace(external, population=external.population.drawn(settings))
        result = evaluate_predictors(
            evaluated, external.population, prepared=store, settings=settings, progress=progress
        )
        summary, warnings = _summary(run, external, store, result["inputs"]["by_split"])
        result["made_of"] = evaluation_made_of(
            run, SPLIT, settings, data=external.made_of, baselines=store is not None
        )
        result |= {"external": summary, "warnings": [*warnings, *result["warnings"]]}
        write_result(result, temporary)
        draw(result, temporary)
        made = {"run": run.fingerprint, "made_of": external.made_of}
        write_manifest(temporary, {**EXTERNAL.facts, **made})
    return result, folder


def _summary(
    run: Run, external: External, store: Prepared | None, inputs: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The `external` key of `metrics.json`, and what a reader must be warned of; `inputs` are rates by split."""
    population, seen, warnings = external.population, None, list[str]()
    rate, there = (inputs.get(split, {}).get("unknown_token_rate") for split in (SPLIT, "train"))
    if store is None:
        why = "the prepared set is gone. Name it with --prepared."
        if "update" in run.manifest:
            why = "the run was updated for other people than those that baselines would learn from."
        warnings.append(f"There are no baselines: {why}")
    else:
        own = [store.timelines(split).subject_id for split in ("train", "tuning")]
        seen = int(np.isin(population.records.timelines.subject_id, np.concatenate(own)).sum())
    if not differing(external.made_of, run.manifest.get("made_of")):
        warnings.append(
            "The run was updated with these very people: it fits them better than people whom it has not seen. "
            "What it gained on unseen people stands in its manifest, under update."
        )
    if (rate or 0.0) > (there or 0.0) + MUCH_UNKNOWN:
        warnings.append(
            "Far more tokens are unknown to the run than in training: it cannot use what it does not know."
        )
    warnings += [] if external.drift.passes else [external.drift.verdict]
    if seen:
        warnings.append(
            f"{people(seen)} subject ids also occur in the run's training data: if they are the same "
            "people, this is not external validation."
        )
    if external.late is not None:
        warnings.append(
            "A few rows come long after all others. They do not move the data's end. Set data.extracted "
            "to state it."
        )
    warnings += [f"No code of the data matches the task's {text}." for text in external.unmatched]
    unknown: list[dict[str, Any]] = [
        {"code": code, "subjects": count}
        for code, count in external.unknown.items()
        if count >= SMALLEST_COUNT
    ]
    return {
        "data": population.data,
        "subjects": population.counts["steps"][-1]["subjects"],
        "unknown_token_rate": rate,
        "training_unknown_token_rate": there,
        "new_codes": unknown[:MOST_CODES],
        "unmatched": external.unmatched,
        "drift": external.drift.as_json(),
        "seen_in_training": seen,
        "people": digest(external.made_of),
    }, warnings
