"""Which outcomes are common enough, and the files of their events and names in a prepared set and in a run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, write_json
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.events import BIRTH, DEATH
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.outcomes import renumbered, subjects_with_event
from ehrsequencing.records.store import ArrayAppender, open_arrays
from ehrsequencing.records.timelines import OutcomeEvents, TaskRows

OUTCOMES_FILE = "outcomes.json"  # of a task and of a run: the codes, in the order of their numbers
_CHUNK = 20_000  # subjects looked at together


@dataclass(frozen=True)
class OutcomeChoice:
    """Which of the codes that a task's patterns match are outcomes, and why the others are not.

    Attributes:
        chosen: (C,) places of the outcomes among all codes, in the order of their names.
        rare: How many codes have an event in fewer training subjects than `min_subjects`.
        ends: How many are births, deaths, causes of the task or censoring codes.
        unmatched: Patterns that match no code.
    """

    chosen: Ints
    rare: int
    ends: int
    unmatched: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """For `attrition.json`."""
        own = {"rare": self.rare, "ends": self.ends, "unmatched": list(self.unmatched)}
        return {"kept": len(self.chosen), **own}

    def require(self, task: TaskConfig) -> None:
        """Refuse a task without any outcome.

        Raises:
            EhrseqError: No code is common enough.
        """
        if not len(self.chosen):
            assert task.outcomes is not None
            what = f"no code has an event in {task.outcomes.min_subjects} training subjects"
            fix = "lower outcomes.min_subjects, or correct outcomes.codes"
            raise EhrseqError(what, where=f"task {task.name}, outcomes", fix=fix)


def judge_outcomes(
    task: TaskConfig, codes: Sequence[str], subjects: Ints, parents: Mapping[str, list[str]]
) -> OutcomeChoice:
    """Choose the outcomes of a task.

    Args:
        task: With `outcomes`.
        codes: All codes of the data set.
        subjects: (len(codes),) training subjects with an event of each after a prediction time.
        parents: Of each code.
    """
    assert task.outcomes is not None
    ends = [*task.patterns.values(), *([task.censoring.code] if task.censoring.code else [])]
    matchers = [CodeMatcher(patterns, parents=parents) for patterns in ends]
    excluded = np.array(
        [code in (BIRTH, DEATH) or any(one(code) for one in matchers) for code in codes], dtype=bool
    )
    asked = {pattern: CodeMatcher([pattern], parents=parents) for pattern in task.outcomes.codes}
    matched = {
        pattern: np.array([one(code) for code in codes], dtype=bool)
        for pattern, one in asked.items()
    }
    any_of = np.logical_or.reduce(list(matched.values()))
    chosen = np.flatnonzero((subjects >= task.outcomes.min_subjects) & any_of & ~excluded)
    return OutcomeChoice(
        np.array(sorted(chosen.tolist(), key=lambda k: codes[k]), dtype=np.int64),
        rare=int((any_of & ~excluded).sum()) - len(chosen),
        ends=int((any_of & excluded).sum()),
        unmatched=tuple(pattern for pattern, hits in matched.items() if not hits.any()),
    )


def choose_outcomes(
    folder: Path,
    found: Path,
    task: TaskConfig,
    codes: Sequence[str],
    parents: Mapping[str, list[str]],
) -> OutcomeChoice:
    """Keep the outcomes that enough training subjects have after a prediction time, and write their events.

    Args:
        folder: The task's folder in a prepared set that is being made, with the task's prediction times.
        found: Folder with the events of each split; their numbers are places in `codes`.
        task: With `outcomes`.
        codes: All codes of the data set.
        parents: Of each code.

    Returns:
        What was chosen.

    Raises:
        EhrseqError: No code is common enough.
    """
    assert task.outcomes is not None
    subjects = np.zeros(len(codes), dtype=np.int64)
    for events, rows in _chunks(folder / "train", found / "train"):
        subjects += subjects_with_event(
            events, rows, n_outcomes=len(codes), recur=task.outcomes.kind == "next"
        )
    choice = judge_outcomes(task, codes, subjects, parents)
    choice.require(task)
    chosen = choice.chosen
    numbers = np.full(len(codes), -1, dtype=np.int32)
    numbers[chosen] = np.arange(len(chosen))
    with ExitStack() as stack:
        writer = ArrayAppender(stack)
        for split in SPLITS:
            for events, _ in _chunks(folder / split, found / split):
                writer.append(folder / split, renumbered(events, numbers))
    write_json(folder / OUTCOMES_FILE, {"codes": [codes[k] for k in chosen.tolist()]})
    return choice


def _chunks(rows: Path, events: Path) -> Iterator[tuple[OutcomeEvents, TaskRows]]:
    """Events and prediction times of some subjects after others; of no subjects where there are none."""
    found, asked = open_arrays(OutcomeEvents, events), open_arrays(TaskRows, rows)
    for start in range(0, max(len(found.outcome_offsets) - 1, 1), _CHUNK):
        part = slice(start, min(start + _CHUNK, len(found.outcome_offsets) - 1))
        yield found.take(part), asked.take(part)


def read_outcomes(folder: Path) -> list[str]:
    """The codes of a task's or a run's outcomes; a code's place is its number."""
    found = read_json(folder / OUTCOMES_FILE)
    codes = found.get("codes") if isinstance(found, dict) else None
    if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
        raise EhrseqError(
            "holds no list of codes", where=str(folder / OUTCOMES_FILE), fix="make the folder again"
        )
    return list(codes)
