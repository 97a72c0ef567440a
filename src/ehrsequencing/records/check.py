"""`ehrseq check`: what is in a data set, what `prepare` would fix or refuse, and what a task makes of it.

Reads the way `prepare` reads, and writes nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import StudyConfig, TaskConfig, format_days
from ehrsequencing.records.attrition import Tally, attrition_lines, task_warnings
from ehrsequencing.records.codes import excluded_codes, read_parents
from ehrsequencing.records.cohort import CohortBuilder, CohortRows
from ehrsequencing.records.encoding import age_years
from ehrsequencing.records.events import BIRTH, DAY_US, STATIC
from ehrsequencing.records.fixes import FIXES
from ehrsequencing.records.meds import SPLITS, LateRows, MedsReader
from ehrsequencing.records.splits import split_lookup, split_source
from ehrsequencing.records.survey import Progress, Steps, TrainingFit, survey
from ehrsequencing.records.visits import Record, make_record
from ehrsequencing.records.vocabulary_fit import VocabularyFit

LONG_VISIT_DAYS = 30
FEW_KNOWN = 0.1  # share of the training subjects' rows with a token, below which a model learns next to nothing
FEW_FOLLOWED = 0.1  # share of subjects whose state at a horizon is known, below which its risk can hardly be evaluated


@dataclass(frozen=True)
class TaskCheck:
    """What a task makes of the data.

    Attributes:
        task: The question.
        attrition: Content of `attrition.json`.
        events_within: Per cause and horizon: subjects with that event so soon after their first prediction time.
        known_at: Per horizon: subjects followed so long after their first prediction time, or with an event before.
    """

    task: TaskConfig
    attrition: dict[str, Any]
    events_within: dict[str, dict[str, int]]
    known_at: dict[str, int]

    @property
    def warnings(self) -> list[str]:
        """What may make the task unsafe to learn from."""
        subjects = sum(self.attrition["events"].values())
        out = task_warnings(self.task, self.attrition)
        had = sum(
            s["excluded"] for s in self.attrition["steps"] if "at or before the index" in s["step"]
        )
        if had:
            out.append(
                f"{had:,} subjects have an outcome or competing code at or before their index and are left out. If "
                "such a code also records history, name one for new events only."
            )
        for horizon, known in self.known_at.items():
            if subjects and known < FEW_FOLLOWED * subjects:
                out.append(
                    f"Follow-up is shorter than the horizon {horizon}: what happened by then is known of {known:,} of "
                    f"{subjects:,} subjects."
                )
        return out

    def as_json(self) -> dict[str, Any]:
        """For other programs."""
        names = ("attrition", "events_within", "known_at", "warnings")
        return {"name": self.task.name, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class DataCheck:
    """What is in a data set."""

    facts: dict[str, Any]
    fixes: Counter[str]  # how often each fix of `FIXES` would be applied
    tasks: list[TaskCheck]  # what each task makes of it

    def __str__(self) -> str:
        return format_check(self)

    def as_json(self) -> dict[str, Any]:
        """Content of `ehrseq check --out FILE`."""
        fixes = [
            {"kind": name, "what": FIXES[name], "count": count}
            for name, count in self.fixes.items()
            if count
        ]
        return {**self.facts, "fixes": fixes, "tasks": [task.as_json() for task in self.tasks]}


def check_data(
    data: Path, *, study: StudyConfig, tasks: Sequence[TaskConfig], progress: Progress | None = None
) -> DataCheck:
    """Read a data set the way `prepare` would, and count.

    Raises:
        EhrseqError: `prepare` would refuse the data or a task.
    """
    reader, parents = MedsReader(data, study.data, study.visits), read_parents(data)
    excluded = excluded_codes(study, tasks, parents)
    lookup = split_lookup(data, study=study, tasks=tasks, excluded=excluded, parents=parents)
    builders = [CohortBuilder(task, parents=parents) for task in tasks]
    tick = Steps(reader, len(reader.shards), progress)

    def new_fit() -> TrainingFit:
        settings, values = study.vocabulary, study.values
        return TrainingFit(
            VocabularyFit(settings, values, excluded=excluded, parents=parents), lookup
        )

    found = survey(reader, new_fit, tick)
    fit, end_us = found.part.fit, reader.end_us(found.days)
    fixes, reader.fixes = reader.fixes, Counter()  # the second pass fixes the same again
    fixes["absent_split"] = lookup.absent(found.subject_id)
    for builder in builders:
        builder.require_known([*fit.number, *parents], suggest=[*fit.common_codes(), *parents])
        builder.require_subjects(found.subject_id)

    counts, tallies = Counter[str](), [_TaskTally(task) for task in tasks]
    years = set[int]()
    for path in reader.shards:
        record = make_record(reader.read(path), excluded=excluded, settings=study.visits)
        split = lookup(record.subject_id)
        counts.update(_count(record))
        of_split = np.bincount(split, minlength=len(SPLITS)).tolist()
        counts.update(dict(zip(SPLITS, of_split, strict=True)))
        years.update(_years(record))
        visits = record.visits
        fixes["old_age"] += age_years(visits.start_us, record.birth_us[visits.subject])[1]
        for builder, tally in zip(builders, tallies, strict=True):
            cohort = builder.build(record, dataset_end_us=end_us)
            fixes["after_censoring"] += cohort.after_censoring
            tally.attrition.add_cohort(cohort, split, visits)
            tally.add(cohort.rows)
        tick()
    known = fit.known_share(fit.finish())
    min_subjects = study.vocabulary.min_subjects
    facts = {
        "subjects": {name: counts[name] for name in ("all", *SPLITS, "without_birth")},
        "splits": split_source(data, study.splits),
        "rows": {
            "all": counts["rows"],
            "static": counts["static"],
            "with_number": counts["valued"],
            "shards": len(reader.shards),
        },
        "years": [min(years), max(years)] if years else [],
        "late_rows": asdict(reader.late) if reader.late else None,
        "codes": {
            "all": len(fit.number),
            "tokens": len(fit.common_codes()),
            "known_training_rows": known,
            "min_subjects": min_subjects,
        },
        "visits": {
            "all": counts["visits"],
            f"over_{LONG_VISIT_DAYS}_days": counts["long"],
            "per_subject": round(counts["visits"] / max(counts["all"], 1), 2),
            "rows_per_visit": round(counts["visit_rows"] / max(counts["visits"], 1), 2),
        },
        "warnings": vocabulary_warnings(known, min_subjects=min_subjects),
    }
    return DataCheck(facts, fixes, [tally.result() for tally in tallies])


def _count(record: Record) -> dict[str, int]:
    events, visits = record.events, record.visits
    length_us = visits.end_us - visits.start_us
    return {
        "all": len(record.subject_id),
        "without_birth": int(np.sum(record.birth_us == STATIC)),
        "rows": len(events),
        "static": int(np.sum(events.time_us == STATIC)),
        "valued": int(np.sum(~np.isnan(events.value))),
        "visits": len(visits),
        "visit_rows": len(visits.event),
        "long": int(np.sum(length_us > LONG_VISIT_DAYS * DAY_US)),
    }


def _years(record: Record) -> list[int]:
    """Years in which anybody but a newborn has a row."""
    events = record.events
    lived = events.time_us[(events.time_us != STATIC) & ~events.is_code(BIRTH)]
    days = np.unique(lived // DAY_US).astype("datetime64[D]")
    return [int(year) + 1970 for year in np.unique(days.astype("datetime64[Y]")).astype(int)]


class _TaskTally:
    def __init__(self, task: TaskConfig) -> None:
        self.task, self.attrition = task, Tally(task)
        self.within = np.zeros((len(task.causes), len(task.horizons)), dtype=np.int64)
        self.known = np.zeros(len(task.horizons), dtype=np.int64)

    def add(self, rows: CohortRows) -> None:
        _, first = np.unique(rows.subject, return_index=True)
        duration, cause = rows.duration_days[first], rows.cause[first]
        for k, horizon_days in enumerate(self.task.horizons):
            seen = cause[(duration <= horizon_days) & (cause > 0)]
            self.within[:, k] += np.bincount(seen, minlength=len(self.task.causes) + 1)[1:]
            self.known[k] += int(np.sum((cause > 0) | (duration >= horizon_days)))

    def result(self) -> TaskCheck:
        horizons = [format_days(days) for days in self.task.horizons]
        within = {
            cause: dict(zip(horizons, row, strict=True))
            for cause, row in zip(self.task.causes, self.within.tolist(), strict=True)
        }
        known = dict(zip(horizons, self.known.tolist(), strict=True))
        return TaskCheck(self.task, self.attrition.as_json(), within, known)


def vocabulary_warnings(known: float | None, *, min_subjects: int) -> list[str]:
    """What may make a vocabulary useless, from the share of the training subjects' rows that have a token."""
    if known is None or known >= FEW_KNOWN:
        return []
    return [
        f"Only {known:.1%} of the training subjects' rows have a token; a model cannot use the other rows. A code "
        f"needs vocabulary.min_subjects={min_subjects} training subjects: set a smaller number (which protects people "
        "less), group rare codes with vocabulary.rollup=on, or map the codes to a coarser vocabulary."
    ]


_SPLIT_WORDS = {
    "file": "by metadata/subject_splits.parquet",
    "folders": "by the folders data/{train,tuning,held_out}, since there is no metadata/subject_splits.parquet",
    "hash": "by hashed subject id",
    "date": "by the date of the index",
    "site": "by site",
}


def format_check(found: DataCheck) -> str:
    """The check as text for a terminal."""
    lines = [f"{label:>14}  {text}" for label, text in _fact_lines(found.facts)]
    lines += [f"warning: {text}" for text in found.facts["warnings"]]
    lines += fix_lines(found.fixes) or ["nothing to fix"]
    for task in found.tasks:
        lines += attrition_lines(task.task, task.attrition, warnings=task.warnings)
        lines += _horizon_lines(task)
    return "\n".join(lines)


def _fact_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    subjects, rows, codes = facts["subjects"], facts["rows"], facts["codes"]
    visits = facts["visits"]
    by_split = ", ".join(f"{subjects[name]:,} {name}" for name in SPLITS)
    births = f"{subjects['without_birth']:,} without a birth"
    shards = f"in {rows['shards']:,} shards; {rows['static']:,} without a time, {rows['with_number']:,} with a number"
    long = visits[f"over_{LONG_VISIT_DAYS}_days"]
    longer = f"; {long:,} longer than {LONG_VISIT_DAYS} days" if long else ""
    each = f"{visits['per_subject']:,} a subject, with {visits['rows_per_visit']:,} rows each"
    lines = [
        ("subjects", f"{subjects['all']:,} ({by_split}); {births}"),
        ("splits", _SPLIT_WORDS[facts["splits"]]),
        ("rows", f"{rows['all']:,} {shards}"),
        ("years", " to ".join(map(str, facts["years"])) or "no row but births"),
        ("codes", f"{codes['all']:,}, of which {codes['tokens']:,} become tokens"),
        ("visits", f"{visits['all']:,}{longer}; on average {each}"),
    ]
    if late := facts["late_rows"]:
        text = f"{LateRows(**late).text}: they do not move the data's end"
        lines.append(("left out", text))
    return lines


def fix_lines(fixes: Mapping[str, int]) -> list[str]:
    """What was fixed, one line a kind."""
    return [f"fixed: {count:,} {FIXES[name]}" for name, count in fixes.items() if count]


def _horizon_lines(task: TaskCheck) -> list[str]:
    """Events per cause and horizon, counted from each subject's first prediction time."""
    rows = {"subjects with an event within": list(task.known_at)}
    rows |= {
        cause: [f"{n:,}" for n in within.values()] for cause, within in task.events_within.items()
    }
    rows["state known"] = [f"{n:,}" for n in task.known_at.values()]
    width = max(map(len, rows))
    return [
        f"  {label:<{width}}" + "".join(f"{cell:>9}" for cell in cells)
        for label, cells in rows.items()
    ]
