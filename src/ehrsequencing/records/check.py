"""`ehrseq check`: what is in a data set, what would be mended, and what a task makes of it. Writes nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.records.codes import read_parents
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.meds import MENDS, SECOND_US, SPLITS, STATIC, MedsReader, SplitLookup, parse_date_us
from ehrsequencing.records.prepared import Progress, Tally, excluded_codes, first_pass
from ehrsequencing.records.timelines import make_record
from ehrsequencing.records.vocabulary import VocabularyFit

FEW_EVENTS = 100


@dataclass(frozen=True)
class DataCheck:
    """What `check_data` found.

    Attributes:
        facts: Counts about the data set, by their label.
        mends: How often each mend of `MENDS` would be applied.
        tasks: Each task with its attrition.
    """

    facts: dict[str, str]
    mends: dict[str, int]
    tasks: list[tuple[TaskConfig, dict[str, Any]]]


def check_data(
    data: Path, *, study: StudyConfig, tasks: Sequence[TaskConfig], progress: Progress | None = None
) -> DataCheck:
    """Read a data set the way `prepare` would, and count.

    Args:
        data: Folder of the data set.
        study: How visits are cut and the vocabulary built.
        tasks: The questions, if any.
        progress: Called with (shards read, shards to read) over both passes.

    Raises:
        EhrseqError: `prepare` would refuse this data set or task.
    """
    column = study.visits.column if study.visits.by == "encounter" else None
    reader = MedsReader(data, study.data, encounter_column=column)
    lookup, parents = SplitLookup(data, study.splits), read_parents(data)
    excluded = excluded_codes(study, tasks, parents)
    fit = VocabularyFit(study.vocabulary, study.values, excluded=excluded)
    done = Counter[str]()

    def tick() -> None:
        done["shards"] += 1
        if progress is not None:
            progress(done["shards"], 2 * len(reader.shards))

    subject_ids, end_us = first_pass(reader, lookup, fit, tick)
    mends = Counter(reader.mends)
    mends["absent_split"] = lookup.absent(subject_ids)
    builders = [CohortBuilder(task, parents=parents) for task in tasks]
    for builder in builders:
        builder.require_known([*fit.number, *parents], suggest=[*fit.common_codes(), *parents])
    end_us = parse_date_us(study.data.extracted) if study.data.extracted else end_us
    tallies = [Tally(task) for task in tasks]
    counts, visits_per_subject, start_us = Counter[str](), [], np.iinfo(np.int64).max
    splits = np.zeros(len(SPLITS), dtype=np.int64)
    for events in reader:
        record = make_record(events, excluded=excluded, settings=study.visits)
        timed = events.time_us[events.time_us != STATIC]
        start_us = min(start_us, int(timed.min(initial=start_us)))
        counts["rows"] += len(events)
        counts["valued"] += int((~np.isnan(events.value)).sum())
        counts["visits"] += len(record.visits)
        counts["visit events"] += len(record.visits.event)
        visits_per_subject.append(np.bincount(record.visits.subject, minlength=len(record.subject_id)))
        split = lookup(record.subject_id)
        splits += np.bincount(split, minlength=len(SPLITS))
        for builder, tally in zip(builders, tallies, strict=True):
            cohort = builder.build(
                events, record.subject, record.visits, birth_us=record.birth_us, dataset_end_us=end_us
            )
            mends["after_censoring"] += cohort.after_censoring
            tally.add_cohort(cohort, split)
        tick()
    per_subject = np.concatenate(visits_per_subject)
    facts = {
        "subjects": f"{len(subject_ids):,} ({', '.join(f'{n:,} {s}' for s, n in zip(SPLITS, splits, strict=True))})",
        "rows": f"{counts['rows']:,} in {len(reader.shards)} shards",
        "with a number": f"{counts['valued'] / max(counts['rows'], 1):.0%} of the rows",
        "codes": f"{len(fit.number):,}, of which {len(fit.common_codes()):,} become tokens",
        "years": f"{_year(start_us)} to {_year(end_us)}",
        "visits": f"{counts['visits']:,}, median {np.median(per_subject):g} a subject, most {per_subject.max():,}",
        "events a visit": f"{counts['visit events'] / max(counts['visits'], 1):.1f} on average",
    }
    results = [(task, tally.as_json()) for task, tally in zip(tasks, tallies, strict=True)]
    return DataCheck(facts, {name: n for name, n in mends.items() if n}, results)


def format_check(found: DataCheck) -> str:
    """The check as text for a terminal."""
    lines = [f"{label:>14}  {text}" for label, text in found.facts.items()]
    lines += mend_lines(found.mends) or ["nothing to mend"]
    for task, attrition in found.tasks:
        lines += attrition_lines(task, attrition)
    return "\n".join(lines)


def mend_lines(mends: Mapping[str, int]) -> list[str]:
    """What was mended, one line a kind."""
    return [f"mended: {count:,} {MENDS[name]}" for name, count in mends.items()]


def attrition_lines(task: TaskConfig, attrition: Mapping[str, Any]) -> list[str]:
    """A task's attrition, step by step, its events, and warnings."""
    lines = [f"task {task.name}"]
    first, *steps = attrition["steps"]
    lines.append(f"{first['subjects']:>10,}  {first['step']}")
    lines += [f"{s['subjects']:>10,}  {s['step']} (−{s['excluded']:,})" for s in steps if s["excluded"]]
    lines.append(f"{attrition['prediction_times']:>10,}  prediction times, {attrition['queries']:,} of them queries")
    for name, part in attrition["splits"].items():
        events = ", ".join(f"{count:,} {outcome}" for outcome, count in part["events"].items())
        lines.append(f"{part['prediction_times']:>10,}  in {name}: {events}")
    return lines + [f"warning: {text}" for text in task_warnings(task, attrition)]


def task_warnings(task: TaskConfig, attrition: Mapping[str, Any]) -> list[str]:
    """What may make a task unsafe to learn from."""
    out = []
    trained = attrition["splits"]["train"]["events"][task.causes[0]]
    if trained < FEW_EVENTS:
        out.append(f"Fewer than {FEW_EVENTS} training subjects had the event: expect an unstable model.")
    if attrition["outcomes_that_end_the_record"]:
        out.append(
            "The task names no end of follow-up, so each subject's last event ends it, and some outcomes are that "
            "last event: deaths are counted, survival after the last visit is not. Risks are too high."
        )
    return out


def _year(time_us: int) -> int:
    return datetime.fromtimestamp(time_us / SECOND_US, tz=UTC).year
