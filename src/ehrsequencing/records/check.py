"""`ehrseq check`: what is in a data set, what `prepare` would fix or refuse, and what a task makes of it.

Reads the way `prepare` reads, and writes nothing. Problems come by kind, with a count and the file and row of one
example, never a value.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.config import StudyConfig, TaskConfig, format_days
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.attrition import Tally, attrition_lines, task_warnings
from ehrsequencing.records.codes import excluded_codes, read_parents
from ehrsequencing.records.cohort import Cohort, CohortBuilder, CohortRows
from ehrsequencing.records.data_end import LateRows
from ehrsequencing.records.encoding import age_years, bare_rows
from ehrsequencing.records.events import BIRTH, DAY_US, STATIC
from ehrsequencing.records.fixes import FIXES, FixLog
from ehrsequencing.records.meds import SPLITS, MedsReader
from ehrsequencing.records.outcomes import OutcomeChoice, judge_outcomes, subjects_with_event
from ehrsequencing.records.splits import split_lookup, split_source
from ehrsequencing.records.survey import Progress, Steps, TrainingFit, survey
from ehrsequencing.records.timelines import OutcomeEvents
from ehrsequencing.records.visits import Record, Visits, make_record
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
        own = {
            name: getattr(self, name)
            for name in ("attrition", "events_within", "known_at", "warnings")
        }
        return {"name": self.task.name, **own}


@dataclass(frozen=True)
class DataCheck:
    """What is in a data set."""

    # counts about the data set; empty where it is refused
    facts: dict[str, Any] = field(default_factory=dict)
    # how often each fix of `FIXES` would be applied, and where first
    fixes: FixLog = field(default_factory=FixLog)
    tasks: list[TaskCheck] = field(default_factory=list)  # what each task makes of it
    # why `prepare` would refuse; empty where it would not
    refused: list[EhrseqError] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Content of `ehrseq check --out FILE`."""
        fixes = [
            {
                "kind": name,
                "what": FIXES[name],
                "count": count,
                "example": self.fixes.places.get(name),
            }
            for name, count in self.fixes.items()
        ]
        refused = [
            {"what": error.what, "where": error.where, "fix": error.fix} for error in self.refused
        ]
        return {
            **self.facts,
            "fixes": fixes,
            "refused": refused,
            "tasks": [task.as_json() for task in self.tasks],
        }


def check_data(
    data: Path, *, study: StudyConfig, tasks: Sequence[TaskConfig], progress: Progress | None = None
) -> DataCheck:
    """Read a data set the way `prepare` would, and count.

    Returns:
        The facts; where `prepare` would refuse, the reasons instead, at most one a shard.
    """
    try:
        reader = MedsReader(data, study.data, study.visits)
    except EhrseqError as error:
        return DataCheck(refused=[error])
    try:
        return _count(reader, study=study, tasks=tasks, progress=progress)
    except EhrseqError as error:
        return _diagnose(reader, error)


def _diagnose(reader: MedsReader, error: EhrseqError) -> DataCheck:
    """Go on after the first refusal: each shard on its own."""
    reader.fixes, refused = FixLog(), [error]
    for path in reader.shards:
        try:
            reader.read(path)
        except EhrseqError as other:
            refused += [other] if str(other) != str(error) else []
    return DataCheck(fixes=reader.fixes, refused=refused)


def _count(
    reader: MedsReader,
    *,
    study: StudyConfig,
    tasks: Sequence[TaskConfig],
    progress: Progress | None,
) -> DataCheck:
    """The survey, then a pass that counts visits and applies the tasks."""
    parents = read_parents(reader.data)
    excluded = excluded_codes(study, tasks, parents)
    lookup = split_lookup(reader.data, study=study, tasks=tasks, excluded=excluded, parents=parents)
    tick = Steps(reader, len(reader.shards), progress)

    def new_fit() -> TrainingFit:
        return TrainingFit(
            VocabularyFit(study.vocabulary, study.values, excluded=excluded, parents=parents),
            lookup,
        )

    found = survey(reader, new_fit, tick)
    fit, end_us = found.part.fit, reader.end_us(found.days)
    fixes, reader.fixes = reader.fixes, FixLog()  # the second pass fixes the same again
    fixes.note("absent_split", lookup.absent(found.subject_id), lookup.path)
    builders = [CohortBuilder(task, parents=parents) for task in tasks]
    for builder in builders:
        builder.require_known([*fit.number, *parents], suggest=[*fit.common_codes(), *parents])
        builder.require_subjects(found.subject_id)
    known = fit.known_share(fit.finish())
    counts, tallies = _Counts(fit), [_TaskTally(task) for task in tasks]
    for path in reader.shards:
        record = make_record(reader.read(path), excluded=excluded, settings=study.visits)
        split = lookup(record.subject_id)
        fixes.note("old_age", counts.add(record, split), path)
        for builder, tally in zip(builders, tallies, strict=True):
            cohort = builder.build(record, dataset_end_us=end_us)
            fixes.note("after_censoring", cohort.after_censoring, path)
            tally.add(cohort, split, record.visits)
            if builder.outcomes is not None:
                tally.add_outcomes(
                    builder.outcomes.find(record),
                    fit.numbers(record.events.codes),
                    cohort.rows,
                    split,
                )
        tick()
    facts = counts.facts(len(reader.shards)) | {"splits": split_source(reader.data, study.splits)}
    facts["codes"] |= {"known_training_rows": known, "min_subjects": study.vocabulary.min_subjects}
    facts["warnings"] = vocabulary_warnings(known, min_subjects=study.vocabulary.min_subjects)
    facts["late_rows"] = asdict(reader.late) if reader.late else None
    results, refused = [], []
    for tally in tallies:
        choice = tally.outcome_choice(list(fit.number), parents)
        results.append(tally.result(choice))
        try:
            if choice is not None:
                choice.require(tally.task)
        except EhrseqError as error:
            refused.append(error)
    return DataCheck(facts, fixes, results, refused)


class _Spread:
    """Distribution of a count: exact, in memory that grows with the largest count only."""

    def __init__(self) -> None:
        self.histogram = np.zeros(1, dtype=np.int64)

    def add(self, counts: Ints) -> None:
        more = np.bincount(counts, minlength=len(self.histogram))
        more[: len(self.histogram)] += self.histogram
        self.histogram = more

    def summary(self) -> dict[str, float]:
        """Mean, median, 5 % and 95 % points (the smallest count that so many do not exceed), and the most."""
        n, counts = int(self.histogram.sum()), np.arange(len(self.histogram))
        below = np.cumsum(self.histogram)
        points = {
            name: int(np.searchsorted(below, max(q * n, 1), side="left")) if n else 0
            for name, q in (("median", 0.5), ("p05", 0.05), ("p95", 0.95))
        }
        mean = float((self.histogram * counts).sum() / max(n, 1))
        return {
            "mean": round(mean, 2),
            **points,
            "most": int(counts[self.histogram > 0].max(initial=0)),
        }


class _Counts:
    """Facts about the records, summed over shards."""

    def __init__(self, fit: VocabularyFit) -> None:
        self.fit, self.counts = fit, Counter[str]()
        self.visits_per_subject, self.codes_per_visit = _Spread(), _Spread()
        self.splits = np.zeros(len(SPLITS), dtype=np.int64)
        # per code
        self.rows, self.valued = (np.zeros(len(fit.number), dtype=np.int64) for _ in range(2))
        self.first_us, self.last_us = np.iinfo(np.int64).max, np.iinfo(np.int64).min

    def add(self, record: Record, split: NDArray[np.int8]) -> int:
        """Add a shard and each subject's split (S,); returns at how many visits the age is over 120."""
        events, visits = record.events, record.visits
        timed = events.time_us != STATIC
        lived = events.time_us[timed & ~events.is_code(BIRTH)]
        self.first_us = int(lived.min(initial=self.first_us))
        self.last_us = int(lived.max(initial=self.last_us))
        number = np.array([self.fit.number[code] for code in events.codes], dtype=np.int64)
        code = number[events.code] if len(number) else np.zeros(0, np.int64)
        self.rows += np.bincount(code, minlength=len(self.rows))
        self.valued += np.bincount(code[~np.isnan(events.value)], minlength=len(self.rows))
        self.splits += np.bincount(split, minlength=len(SPLITS))
        self.visits_per_subject.add(np.bincount(visits.subject, minlength=len(record.subject_id)))
        pairs = np.unique(np.stack([visits.visit, code[visits.event]]), axis=1)
        self.codes_per_visit.add(np.bincount(pairs[0], minlength=len(visits)))
        self.counts["without_birth"] += int(np.sum(record.birth_us == STATIC))
        self.counts["static"] += int(np.sum(~timed))
        self.counts["visits"] += len(visits)
        self.counts["long"] += int(
            np.sum(visits.end_us - visits.start_us > LONG_VISIT_DAYS * DAY_US)
        )
        return age_years(visits.start_us, record.birth_us[visits.subject])[1]

    def facts(self, shards: int) -> dict[str, Any]:
        """The facts as JSON."""
        rows, valued = int(self.rows.sum()), int(self.valued.sum())
        numeric = self.valued > 0
        return {
            "subjects": {
                "all": int(self.splits.sum()),
                **dict(zip(SPLITS, self.splits.tolist(), strict=True)),
                "without_birth": self.counts["without_birth"],
            },
            "rows": {"all": rows, "static": self.counts["static"], "shards": shards},
            "codes": {"all": int(np.sum(self.rows > 0)), "tokens": len(self.fit.common_codes())},
            "years": [_year(self.first_us), _year(self.last_us)]
            if self.first_us <= self.last_us
            else [],
            "visits": {
                "all": self.counts["visits"],
                f"over_{LONG_VISIT_DAYS}_days": self.counts["long"],
                "per_subject": self.visits_per_subject.summary(),
                "codes_per_visit": self.codes_per_visit.summary(),
            },
            "values": {
                "share_of_rows": round(valued / max(rows, 1), 4),
                "codes": int(numeric.sum()),
                "share_of_their_rows": round(valued / max(int(self.rows[numeric].sum()), 1), 4),
            },
        }


class _TaskTally:
    """A task's counts, summed over shards."""

    def __init__(self, task: TaskConfig) -> None:
        self.task, self.tally = task, Tally(task)
        self.within = np.zeros((len(task.causes), len(task.horizons)), dtype=np.int64)
        self.known = np.zeros(len(task.horizons), dtype=np.int64)
        self.with_outcome = Counter[
            int
        ]()  # place of a code → training subjects with an event of it

    def add(self, cohort: Cohort, split: NDArray[np.int8], visits: Visits) -> None:
        """Add a shard: its cohort, each subject's split (S,), and the visits."""
        self.tally.add_cohort(cohort, split, visits)
        _, first = np.unique(cohort.rows.subject, return_index=True)
        duration, cause = cohort.rows.duration_days[first], cohort.rows.cause[first]
        for k, horizon_days in enumerate(self.task.horizons):
            seen = cause[(duration <= horizon_days) & (cause > 0)]
            self.within[:, k] += np.bincount(seen, minlength=len(self.task.causes) + 1)[1:]
            self.known[k] += int(np.sum((cause > 0) | (duration >= horizon_days)))

    def add_outcomes(
        self, events: OutcomeEvents, numbers: Ints, rows: CohortRows, split: NDArray[np.int8]
    ) -> None:
        """Add a shard's events of many outcomes.

        Args:
            events: Their numbers are places among the shard's codes.
            numbers: (c,) place of each of these codes among all.
            rows: The prediction times.
            split: (S,) of each subject.
        """
        assert self.task.outcomes is not None
        train = np.flatnonzero(split == SPLITS.index("train"))
        asked = bare_rows(rows, len(split)).take(train)
        recur = self.task.outcomes.kind == "next"
        counts = subjects_with_event(
            events.take(train), asked, n_outcomes=len(numbers), recur=recur
        )
        self.with_outcome.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))

    def outcome_choice(
        self, codes: Sequence[str], parents: Mapping[str, list[str]]
    ) -> OutcomeChoice | None:
        """Which codes are outcomes; None where the task asks about its causes only."""
        if self.task.outcomes is None:
            return None
        subjects = np.array([self.with_outcome[k] for k in range(len(codes))], dtype=np.int64)
        return judge_outcomes(self.task, codes, subjects, parents)

    def result(self, outcomes: OutcomeChoice | None = None) -> TaskCheck:
        """The counts under their names."""
        horizons = [format_days(days) for days in self.task.horizons]
        within = {
            cause: dict(zip(horizons, row, strict=True))
            for cause, row in zip(self.task.causes, self.within.tolist(), strict=True)
        }
        return TaskCheck(
            self.task,
            self.tally.as_json(outcomes),
            within,
            dict(zip(horizons, self.known.tolist(), strict=True)),
        )


def vocabulary_warnings(known: float | None, *, min_subjects: int) -> list[str]:
    """What may make a vocabulary useless, from the share of the training subjects' rows that have a token."""
    if known is None or known >= FEW_KNOWN:
        return []
    return [
        f"Only {known:.1%} of the training subjects' rows have a token; a model cannot use the other rows. A code "
        f"needs vocabulary.min_subjects={min_subjects} training subjects: set a smaller number (which protects people "
        "less), group rare codes with vocabulary.rollup=on, or map the codes to a coarser vocabulary."
    ]


def _year(time_us: int) -> int:
    return int(np.datetime64(time_us, "us").astype("datetime64[Y]").astype(np.int64)) + 1970


_SPLIT_WORDS = {
    "file": "by metadata/subject_splits.parquet",
    "folders": "by the folders data/{train,tuning,held_out}, since there is no metadata/subject_splits.parquet",
    "hash": "by hashed subject id",
    "date": "by the date of the index",
    "site": "by site",
}


def format_check(found: DataCheck) -> str:
    """The check as text for a terminal."""
    lines = (
        [f"{label:>14}  {text}" for label, text in _fact_lines(found.facts)] if found.facts else []
    )
    lines += [f"warning: {text}" for text in found.facts.get("warnings", ())]
    lines += fix_lines(found.fixes)
    lines += ["nothing to fix"] if found.facts and not found.fixes else []
    kinds: dict[str, list[EhrseqError]] = {}
    for error in found.refused:
        kinds.setdefault(error.what, []).append(error)
    for what, errors in (
        kinds.items() if len(found.refused) > 1 else ()
    ):  # the command itself ends with the first
        others = f" and {len(errors) - 1:,} other places" if len(errors) > 1 else ""
        lines.append(f"refused: {what}; {errors[0].where}{others} ({errors[0].fix})")
    for task in found.tasks:
        lines += attrition_lines(task.task, task.attrition, warnings=task.warnings)
        lines += _horizon_lines(task)
    return "\n".join(lines)


def _fact_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    subjects, rows, codes, visits, values = (
        facts[k] for k in ("subjects", "rows", "codes", "visits", "values")
    )
    by_split, late = ", ".join(f"{subjects[name]:,} {name}" for name in SPLITS), facts["late_rows"]
    long = f"; {visits[f'over_{LONG_VISIT_DAYS}_days']:,} longer than {LONG_VISIT_DAYS} days"
    return [
        (
            "subjects",
            f"{subjects['all']:,} ({by_split}); {subjects['without_birth']:,} without a birth",
        ),
        ("splits", _SPLIT_WORDS[facts["splits"]]),
        (
            "rows",
            f"{rows['all']:,} in {rows['shards']:,} shards; {rows['static']:,} without a time",
        ),
        ("years", " to ".join(map(str, facts["years"])) or "no row but births"),
        *(
            [("left out", f"{LateRows(**late).text}: they do not move the data's end")]
            if late
            else []
        ),
        ("codes", f"{codes['all']:,}, of which {codes['tokens']:,} become tokens"),
        ("visits", f"{visits['all']:,}{long if visits[f'over_{LONG_VISIT_DAYS}_days'] else ''}"),
        ("per subject", f"{_spread(visits['per_subject'])} visits"),
        ("per visit", f"{_spread(visits['codes_per_visit'])} distinct codes"),
        (
            "numbers",
            f"in {values['share_of_rows']:.0%} of the rows; {values['codes']:,} codes have them, in "
            f"{values['share_of_their_rows']:.0%} of their rows",
        ),
    ]


def _spread(s: Mapping[str, float]) -> str:
    return f"median {s['median']:,}, 90 % from {s['p05']:,} to {s['p95']:,}, at most {s['most']:,}"


def fix_lines(fixes: Mapping[str, int]) -> list[str]:
    """What was fixed, one line a kind, with the place of an example where it is known."""
    places = fixes.places if isinstance(fixes, FixLog) else {}
    first = {name: f"; first in {where}" for name, where in places.items()}
    return [f"fixed: {count:,} {FIXES[name]}{first.get(name, '')}" for name, count in fixes.items()]


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
