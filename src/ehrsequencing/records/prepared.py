"""A prepared set on disk: its settings, tasks, vocabulary and memory-mapped arrays.

PREPARED/config.yaml  vocabulary.json  vocabulary.safetensors  manifest.json
PREPARED/visits/SPLIT/*.npy            the fields of `Timelines`
PREPARED/tasks/NAME/task.yaml  cohort.parquet  attrition.json
PREPARED/tasks/NAME/SPLIT/*.npy        the fields of `TaskRows`
PREPARED/people.json                   what the training people are like
PREPARED/reference.json  reference/    made-up people, and their arrays
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import numpy as np

from ehrsequencing.config import StudyConfig, TaskConfig, VisitsConfig, load_study, load_task
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, read_json, sha256, write_json
from ehrsequencing.core.outputs import (
    MANIFEST,
    PREPARED,
    SIMULATION,
    is_json_of,
    read_manifest,
    read_sealed,
    require_facts,
)
from ehrsequencing.records.account import Attrition, Reference
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.cohort import CohortRows
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.events import BIRTH, DAY_US, Events
from ehrsequencing.records.meds import find_shards
from ehrsequencing.records.outcomes import read_outcomes
from ehrsequencing.records.splits import cut_us
from ehrsequencing.records.timelines import (
    ArrayAppender,
    OutcomeEvents,
    TaskRecords,
    TaskRows,
    Timelines,
    open_arrays,
)
from ehrsequencing.records.visits import make_record
from ehrsequencing.records.vocabulary import Vocabulary

SECTIONS = {"data", "visits", "values", "vocabulary", "splits"}  # the settings of `prepare`
# which arrays belong to which part of a run's identity; all others belong to the visits
_PARTS = {"codes": "codes", "static_codes": "codes", "values": "values"}
_FACTS = {"data": str, "excluded": list, "fixes": dict, "tasks": list, "vocabulary": str}


class Prepared:
    """A prepared set on disk; arrays are memory-mapped."""

    def __init__(self, folder: Path, *, verify: bool = True) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder, what=PREPARED.what, verify=verify)
        if self.manifest.get("kind") != PREPARED.name:
            raise EhrseqError(
                f"is not {PREPARED.what}", where=str(folder), fix="make one with ehrseq prepare"
            )
        require_facts(folder, self.manifest, _FACTS)
        self.tasks: list[str] = list(self.manifest["tasks"])  # their names
        self._read: dict[str, TaskConfig] = {}

    @cached_property
    def study(self) -> StudyConfig:
        """Settings that made this set."""
        return load_study(self.folder / "config.yaml")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Tokens and scales."""
        return Vocabulary.load(self.folder)

    def folder_of(self, task: str) -> Path:
        """The folder of a task's files."""
        if task not in self.tasks:
            known = ", ".join(self.tasks) or "none: give --task to ehrseq prepare"
            raise EhrseqError(
                f"has no task {task!r}", where=str(self.folder), fix=f"tasks here: {known}"
            )
        return self.folder / "tasks" / task

    def task(self, name: str) -> TaskConfig:
        """A task by its name."""
        if name not in self._read:
            self._read[name] = load_task(self.folder_of(name) / "task.yaml")
        return self._read[name]

    def only_task(self) -> str:
        """The name of the only task."""
        if len(self.tasks) != 1:
            known = ", ".join(self.tasks) or "none: give --task to ehrseq prepare"
            raise EhrseqError(
                "which task?",
                where=str(self.folder),
                fix=f"name one with --task; tasks here: {known}",
            )
        return self.tasks[0]

    def attrition(self, name: str) -> Attrition:
        """Counts of a task, step by step."""
        return read_json(self.folder_of(name) / "attrition.json")

    def identity(self, task: str) -> dict[str, str]:
        """Digests of what a run on a task learns from: its vocabulary, labels, codes, values and visits.

        They come from the hashes of the files, so that they cost nothing.
        """
        hashes: dict[str, dict[str, str]] = {"labels": {}, "codes": {}, "values": {}, "visits": {}}
        for name, file_hash in sorted(self.manifest["files"].items()):
            if name.startswith(f"tasks/{task}/"):
                hashes["labels"][name] = file_hash
            elif name.startswith("visits/"):
                hashes[_PARTS.get(Path(name).stem, "visits")][name] = file_hash
        return {
            "vocabulary": self.manifest["vocabulary"],
            **{part: digest(hashed) for part, hashed in hashes.items()},
        }

    def cut_us(self, split: str) -> int:
        """When everything of a split ends by design, because the splits are by date; `NEVER` elsewhere."""
        return cut_us(self.study.splits, split)

    def timelines(self, split: str) -> Timelines:
        """Visits of a split."""
        return open_arrays(Timelines, self.folder / "visits" / split)

    def rows(self, task: str, split: str) -> TaskRows:
        """Prediction times and labels of a task in a split."""
        return open_arrays(TaskRows, self.folder_of(task) / split)

    def records(self, task: str, split: str) -> TaskRecords:
        """Visits of a split, with prediction times and labels of a task."""
        return TaskRecords(self.timelines(split), self.rows(task, split))

    def outcomes(self, task: str) -> list[str]:
        """The codes of a task's outcomes, in the order of their numbers; none where it asks about its causes only."""
        return [] if self.task(task).outcomes is None else read_outcomes(self.folder_of(task))

    def outcome_records(self, task: str, split: str) -> TaskRecords:
        """As `records`, to be labelled with the task's outcomes too, where it has some."""
        records, outcomes = self.records(task, split), self.task(task).outcomes
        if outcomes is None:
            return records
        events = open_arrays(OutcomeEvents, self.folder_of(task) / split)
        return TaskRecords(records.timelines, records.rows, events)


def simulation_faults(data: Path, *, parts: Sequence[str] = ("data/", "truth")) -> list[str] | None:
    """Files of a simulation that its manifest does not list as they are; None where there is no such manifest."""
    if not is_json_of(data / MANIFEST, SIMULATION):
        return None
    files = read_sealed(data / MANIFEST).get("files", {})
    named = {data / name: files[name] for name in files if name.startswith(tuple(parts))}
    found = {*named, *(find_shards(data) if "data/" in parts else ())}
    return sorted(
        path.relative_to(data).as_posix()
        for path in found
        if not path.is_file() or sha256(path) != named.get(path)
    )


def is_simulation(data: Path) -> bool:
    """Whether records are a simulation's: its manifest names them all, and they and its truth are as it says."""
    return simulation_faults(data) == []


# ---- reference records: made-up people whose risks a run keeps ----
# So a moved answer is noticed before it is used. `prepare` draws and encodes them. No row of a patient is among them:
# codes are drawn from the vocabulary, numbers by the mean and deviation of each code.
# of a prepared set: the records, column by column, and the folder of their arrays; of a run: with their risks
REFERENCE, ARRAYS = "reference.json", "reference"
_SHAPE = (20, 16)  # people, and rows of each


def write_reference(
    folder: Path, vocabulary: Vocabulary, excluded: CodeMatcher, visits: VisitsConfig
) -> None:
    """Draw the records, and write them and their arrays into the folder of a prepared set."""
    columns = draw_reference(vocabulary)
    write_json(folder / REFERENCE, columns)
    records = encode_reference(columns, vocabulary, excluded, visits)
    with ExitStack() as stack:
        writer = ArrayAppender(stack)
        writer.append(folder / ARRAYS / "visits", records.timelines)
        writer.append(folder / ARRAYS / "rows", records.rows)


def draw_reference(vocabulary: Vocabulary) -> Reference:
    """Columns of the records: each person has a birth, a code that no run knows, and codes of the vocabulary."""
    random, known = np.random.default_rng(0), len(vocabulary.codes)
    place = random.integers(0, known + 1, _SHAPE)
    place[:, :2] = known + 1, known
    gaps = random.integers(-20, 45, _SHAPE).clip(0) ** 2  # short ones are frequent
    days = np.cumsum(gaps, axis=1)
    code = np.array([*vocabulary.codes, "MADE_UP//UNKNOWN", BIRTH])[place]
    # the row of each code among the means; the last row is added for codes without numbers
    scale = np.r_[vocabulary.scale[vocabulary.n_unknown :][:known], -1, -1][place]
    mean, sd = (np.r_[numbers, 0.0][scale] for numbers in (vocabulary.mean, vocabulary.sd))
    return {
        "subject": np.indices(_SHAPE)[0].ravel().tolist(),
        "day": days.ravel().tolist(),
        "code": code.ravel().tolist(),
        "value": (mean + sd * random.standard_normal(_SHAPE)).ravel().tolist(),
    }


def encode_reference(
    columns: Reference, vocabulary: Vocabulary, excluded: CodeMatcher, visits: VisitsConfig
) -> TaskRecords:
    """The records with a prediction time at the end of every visit; every other person is asked by a query there."""
    codes, code = np.unique(np.array(columns["code"], dtype=str), return_inverse=True)
    subject, day = (np.array(one, dtype=np.int64) for one in (columns["subject"], columns["day"]))
    value, alone = np.array(columns["value"], np.float32), np.full(len(code), -1, np.int32)
    events = Events(
        subject, day * DAY_US, code.astype(np.int32), tuple(codes.tolist()), value, alone
    )
    record = make_record(events, excluded=excluded, settings=visits)
    own, nothing = record.visits, np.zeros(len(record.visits))
    rows = CohortRows(
        subject=own.subject,
        prediction_us=own.end_us,
        index_us=own.start_us,
        is_query=own.subject % 2 == 0,
        visits_before=1 + np.arange(len(own)) - np.searchsorted(own.subject, own.subject),
        duration_days=nothing,
        cause=nothing.astype(np.int8),
        entry_days=nothing,
    )
    timelines = encode_timelines(record, vocabulary)[0]
    return TaskRecords(timelines, encode_rows(record, rows, vocabulary))
