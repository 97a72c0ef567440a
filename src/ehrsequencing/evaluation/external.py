"""External validation: the run's model, vocabulary, bins, visits and task on data that it has never seen.

Nothing is fitted there. Labels are made by the run's task on the new records, tokens by the run's vocabulary; baselines
come from the run's own training subjects.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.arrays import Ints
from ehrsequencing.config import DataConfig, EvaluationConfig, TaskConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.evaluation.drift import input_rates
from ehrsequencing.evaluation.evaluate import Evaluation
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.recalibration import before_and_after, recalibrate
from ehrsequencing.evaluation.results import write_result
from ehrsequencing.metrics.minimum_counts import SMALLEST_COUNT
from ehrsequencing.records.codes import CodeMatcher, read_parents
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.data_end import DayCounts, LateRows
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.events import DEATH
from ehrsequencing.records.meds import BIRTH, MedsReader
from ehrsequencing.records.parallel import Tally
from ehrsequencing.records.prepared import Prepared, data_name
from ehrsequencing.records.record import Record, make_record
from ehrsequencing.records.timelines import TaskRows, joined, take_rows, take_timelines
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.run import Run
from ehrsequencing.storage import EXTERNAL, complete_folder, refuse_overlap, write_manifest

SPLIT = "external"
MOST_CODES = 15
MUCH_UNKNOWN = 0.1  # above the share in training: worth a warning


@dataclass(frozen=True)
class Survey:
    """What is in the new data, before anything is made of it.

    Attributes:
        subject_id: (S,) sorted.
        days: Rows by day, of which the last tells the data's end.
        subjects_with: How many subjects have each code.
        parents: Parents of each code.
    """

    subject_id: Ints
    days: DayCounts
    subjects_with: Counter[str]
    parents: dict[str, list[str]]

    @classmethod
    def of(cls, reader: MedsReader) -> "Survey":
        """One pass over the shards.

        Raises:
            EhrseqError: No subject, or one in two shards.
        """
        ids, days, having = list[Ints](), list[DayCounts](), Counter[str]()
        for events in reader:
            ids.append(np.unique(events.subject_id))
            days.append(DayCounts.of(events))
            pairs = np.unique(np.stack([events.code.astype(np.int64), events.subject_id]), axis=1)
            for code, count in zip(*np.unique(pairs[0], return_counts=True), strict=True):
                having[events.codes[code]] += int(count)
        every = np.sort(np.concatenate(ids))
        if not len(every):
            raise EhrseqError("holds no subject with a timed row", where=str(reader.data), fix="check the data set")
        if np.any(every[1:] == every[:-1]):
            where = str(reader.data / "data")
            raise EhrseqError("a subject is in two shards", where=where, fix="keep each subject's rows in one file")
        return cls(every, DayCounts.added(days), having, read_parents(reader.data))

    def unknown_codes(self, vocabulary: Vocabulary, excluded: CodeMatcher) -> dict[str, int]:
        """Codes that make a token which training did not know → subjects, the most frequent first."""
        codes = tuple(code for code, _ in self.subjects_with.most_common() if not excluded(code))
        unknown = vocabulary.is_unknown(vocabulary.ids(codes))
        return {code: self.subjects_with[code] for code, is_new in zip(codes, unknown, strict=True) if is_new}

    def unmatched(self, task: TaskConfig) -> list[str]:
        """Settings of the task whose codes match nothing here, as `outcome.death: CODE`."""
        named = {"index.code": task.index.code, "censoring.code": task.censoring.code}
        named |= {f"outcome.{cause}": patterns for cause, patterns in task.outcome.items()}
        named |= {f"competing.{cause}": patterns for cause, patterns in task.competing.items()}
        known = (*self.subjects_with, *self.parents, BIRTH, DEATH)
        out = []
        for name, patterns in named.items():
            if patterns and not any(map(CodeMatcher(patterns, parents=self.parents), known)):
                out.append(f"{name}: {', '.join(patterns)}")
        return out


@dataclass(frozen=True)
class External:
    """Data that a run has never seen, encoded as its own training data was.

    Attributes:
        judged: Prediction times, labels and counts.
        survey: What is in the data.
        unknown: Codes that the run does not know → subjects.
        unmatched: Settings of the task whose codes match nothing here.
        late: Rows that were left out, long after all others.
    """

    judged: Population
    survey: Survey
    unknown: dict[str, int]
    unmatched: list[str]
    late: LateRows | None


def read_external(
    run: Run, data: Path, *, facts: DataConfig | None = None, progress: Callable[[str], None] = lambda _: None
) -> External:
    """Encode and label other MEDS data for a run; held in memory.

    Args:
        run: The trained run.
        data: Folder of the data set.
        facts: What its files do not tell (its date of extraction).
        progress: Called with the name of each stage.

    Raises:
        EhrseqError: The data cannot be read, or the task's index, outcome or end of follow-up is not in it.
    """
    column = run.study.visits.column if run.study.visits.by == "encounter" else None
    reader = MedsReader(data, facts, encounter_column=column)
    progress("reading the new data")
    survey, excluded, task = reader.settle(lambda: Survey.of(reader)), run.excluded(data), run.task
    unknown, unmatched = survey.unknown_codes(run.vocabulary, excluded), survey.unmatched(task)
    _refuse_foreign(run, data, survey, unknown=unknown, unmatched=unmatched)
    end_us, builder, tally = reader.end_us(survey.days), CohortBuilder(task, parents=survey.parents), Tally(task)
    visits, rows = [], []
    for events in reader:
        record = make_record(events, excluded=excluded, settings=run.study.visits)
        visits.append(encode_timelines(record, run.vocabulary)[0])
        rows.append(_labelled(record, builder, tally, run.vocabulary, end_us))
    timelines, task_rows = joined(visits), joined(rows)
    order = np.argsort(timelines.subject_id, kind="stable")  # does not depend on how shards were cut
    counts = tally.as_json()
    attrition = {**counts, "splits": {SPLIT: counts["splits"]["train"]}}  # where the tally put everybody
    judged = Population(
        split=SPLIT, data=data_name(data), timelines=take_timelines(timelines, order),
        rows=take_rows(task_rows, order), attrition=attrition, source=data,
    )  # fmt: skip
    return External(judged, survey, unknown, unmatched, late=reader.late)


def _labelled(record: Record, builder: CohortBuilder, tally: Tally, vocabulary: Vocabulary, end_us: int) -> TaskRows:
    cohort = builder.build(
        record.events, record.subject, record.visits, birth_us=record.birth_us, dataset_end_us=end_us
    )
    tally.add_cohort(cohort, np.zeros(len(record.subject_id), dtype=np.int8), record.visits)
    return encode_rows(record, cohort.rows, vocabulary)


def _refuse_foreign(run: Run, data: Path, survey: Survey, *, unknown: dict[str, int], unmatched: list[str]) -> None:
    """Data that lacks the index, the outcome or the end of follow-up cannot be judged; say how foreign it is."""
    needed = [text for text in unmatched if not text.startswith("competing.")]
    if not needed:
        return
    excluded = run.excluded(data)
    codes = [code for code in survey.subjects_with if not excluded(code)]
    known = f"{len(unknown)} of its {len(codes)} codes are unknown to the run"
    what = f"the run's task {run.task.name} matches nothing here ({'; '.join(unmatched)}), and {known}"
    fix = "map its codes to those of the data that the run was trained on"
    raise EhrseqError(what, where=str(data), fix=fix)


def validate(
    run_folder: Path,
    data: Path,
    *,
    out: Path | None = None,
    prepared: Path | None = None,
    settings: EvaluationConfig | None = None,
    facts: DataConfig | None = None,
    progress: Callable[[str], None] = lambda _: None,
    draw: Callable[[dict[str, Any], Path], None] = lambda result, folder: None,
) -> tuple[dict[str, Any], Path]:
    """Judge a run on other data and write its metrics into a folder of its own, which appears when complete.

    Args:
        run_folder: A finished run.
        data: A MEDS data set that it has not seen.
        out: The folder; default: `RUN/external-NAME`, by the data set's name. An earlier validation there is replaced.
        prepared: The run's own prepared set, where it is no longer where training found it. Baselines are fitted on
            its training subjects; without it there are none.
        settings: Baselines and resamples; default: those of the run.
        facts: What the data set's files do not tell.
        progress: Called with the name of each stage.
        draw: Called with the result and the folder that is being written, to add a report.

    Returns:
        The exact result, and the folder.

    Raises:
        EhrseqError: Run or data cannot be used, or nobody there has a prediction time.
    """
    run = Run(run_folder)
    settings = settings or run.study.evaluation
    own = prepared or Path(run.manifest["prepared"])
    if prepared is not None and not prepared.is_dir():
        raise EhrseqError("is no folder", where=str(prepared), fix="name the run's prepared set with --prepared")
    store = Prepared(own) if own.is_dir() else None
    if store is None and settings.recalibrate:
        fix = "name it with --prepared, or leave out --recalibrate"
        raise EhrseqError("the prepared set has moved: its tuning split is needed", where=str(own), fix=fix)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", data_name(data))
    folder = out or run_folder / f"external-{name}"
    refuse_overlap(folder, data)
    with complete_folder(folder, EXTERNAL) as temporary:
        found = read_external(run, data, facts=facts, progress=progress)
        evaluation = Evaluation(run, found.judged, prepared=store, settings=settings)
        summary, warnings = _summary(run, found, store, wanted=settings.baselines != "none")
        result = evaluation.result(progress=progress)
        result |= {"external": summary, "warnings": [*warnings, *result["warnings"]]}
        if store is not None and settings.recalibrate:
            result["recalibration"] = before_and_after(run, recalibrate(run, store), found.judged)
        write_result(result, temporary)
        draw(result, temporary)
        write_manifest(temporary, {**EXTERNAL.facts, "run": run.manifest.get("fingerprint")})
    return result, folder


def _summary(run: Run, found: External, store: Prepared | None, *, wanted: bool) -> tuple[dict[str, Any], list[str]]:
    """The `external` key of `metrics.json`, and what a reader must be warned of."""
    judged, task = found.judged, run.task
    rate = input_rates(judged.timelines, judged.rows, run.vocabulary)["unknown_token_rate"]
    there, seen = None, None
    if store is not None:
        training = store.timelines("train"), store.rows(task.name, "train")
        there = input_rates(*training, run.vocabulary)["unknown_token_rate"]
        own = [np.asarray(store.timelines(split).subject_id) for split in ("train", "tuning")]
        seen = int(np.isin(judged.timelines.subject_id, np.concatenate(own)).sum())
    baselines = "fitted on the run's own training subjects" if wanted else "not asked for"
    warnings = []
    if store is None:
        baselines = "none: the prepared set that the run was trained on is gone"
        warnings.append(f"There are no baselines: {run.manifest['prepared']} is gone. Name it with --prepared.")
    if rate is not None and rate > (there or 0.0) + MUCH_UNKNOWN:
        warnings.append(f"{rate:.0%} of the tokens are unknown to the run: it cannot use what it does not know.")
    if seen:
        many = f"{seen:,}" if seen >= SMALLEST_COUNT else f"Fewer than {SMALLEST_COUNT}"
        text = f"{many} subject ids also occur in the run's training data: if they are the same people, this is not"
        warnings.append(f"{text} external validation.")
    if found.late is not None:
        warnings.append(
            f"A few rows come after {found.late.gap_days:,} days without any row. They were left out and do not move "
            "the data's end; data.extracted would tell it."
        )
    warnings += [f"No code of the data matches the task's {text}." for text in found.unmatched]
    counts = judged.counts
    return {
        "data": judged.data, "subjects": counts["steps"][-1]["subjects"], "all_subjects": len(judged.timelines),
        "prediction_times": counts["prediction_times"], "events": counts["events"],
        "unknown_token_rate": rate, "training_unknown_token_rate": there,
        "new_codes": [
            {"code": code, "subjects": count} for code, count in found.unknown.items() if count >= SMALLEST_COUNT
        ][:MOST_CODES],
        "unmatched": found.unmatched, "seen_in_training": seen, "baselines": baselines,
    }, warnings  # fmt: skip
