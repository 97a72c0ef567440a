"""The input of every check (run, prepared set, original records, a sample of subjects) and its output, a `Finding`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from ehrsequencing.audit.source import Source
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT, count_text
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords, joined

SPLITS = ("train", "tuning", "held_out")
Verdict = Literal["passed", "warning", "leak", "not_tested"]


@dataclass(frozen=True)
class Finding:
    """The answer of one check."""

    # `not_tested` where the check could not be made or could not have failed; never `passed` then. `warning` where
    # somebody who knows the records must look: it may be a leak, or honest knowledge
    verdict: Verdict
    reason: str  # what was seen, in plain words; no patient's value, id or date
    # how many subjects, rows, perturbations … were looked at
    tested: dict[str, int] = field(default_factory=dict)
    # the number that decided, rounded; None where there is none, or it counts fewer than 11
    measured: float | None = None
    bound: float | None = None  # what it had to keep to
    suspects: tuple[int, ...] = ()  # tokens without which the Cox model is fitted again


def judge(leaks: int, *, of: int, what: str, clean: str, tested: dict[str, int]) -> Finding:
    """The verdict of a count that must be zero.

    Args:
        leaks: How many violations.
        of: How many things were looked at; none means that nothing was tested.
        what: The violation, for "N of M …".
        clean: The reason of a pass.
        tested: Counts to show.
    """
    if not of:
        return Finding("not_tested", "there was nothing to look at", tested)
    if leaks:
        measured = float(leaks) if leaks >= SMALLEST_COUNT else None
        reason = f"{count_text(leaks)} of {count_text(of)} {what}"
        return Finding("leak", reason, tested, measured, 0.0)
    return Finding("passed", clean, tested, 0.0, 0.0)


@dataclass(frozen=True)
class Check:
    """One question to a run."""

    name: str  # as in `audit.json`
    question: str
    make: Callable[["AuditData"], Finding]
    needs_records: bool = False  # the original ones; without them it is not tested


class AuditData:
    """A run with all that it was made from; its network computes in float64, so that rounding moves no prediction."""

    def __init__(
        self, run: Run, prepared: Prepared, *, split: str, subjects: int, seed: int
    ) -> None:
        if split not in SPLITS:
            raise EhrseqError(
                f"{split!r} is no split", where="--split", fix=f"use {', '.join(SPLITS)}"
            )
        if subjects < 1:
            raise EhrseqError("leaves no subject to check", where="--subjects", fix="use 1 or more")
        self.run, self.task, self.vocabulary = run, run.task, run.vocabulary
        self.model = run.model.double()
        self.prepared, self.split = prepared, split
        self.subjects, self.seed = subjects, seed
        self.records: dict[str, TaskRecords] = {
            name: prepared.records(self.task.name, name) for name in SPLITS
        }
        if not len(self.records[split]):
            raise EhrseqError(
                f"nobody in {split} has a prediction time",
                where=self.task.name,
                fix="see ehrseq check",
            )
        self.source: Source  # where it could be read
        self.why_no_source: str | None = "the records were not read"

    def rng(self, purpose: int) -> np.random.Generator:
        """Noise of one check: the same whatever other checks do."""
        return np.random.default_rng([self.seed, purpose])

    @cached_property
    def sample(self) -> dict[str, Ints]:
        """Split → its subjects, drawn at random among those with a prediction time; length has no say."""
        drawn = {}
        for number, (name, records) in enumerate(self.records.items()):
            able = np.flatnonzero(np.diff(records.rows.row_offsets) > 0)
            drawn[name] = np.sort(self.rng(number).permutation(able)[: self.subjects])
        return drawn

    @cached_property
    def asked(self) -> TaskRecords:
        """Visits and prediction times of the drawn subjects of the audited split."""
        return self.records[self.split].take(self.sample[self.split])

    @cached_property
    def fitted(self) -> TaskRecords:
        """The training and tuning subjects together, whose outcomes the searches for suspicious codes use."""
        parts = [self.records[name] for name in SPLITS[:2]]
        timelines = joined([part.timelines for part in parts])
        return TaskRecords(timelines, joined([part.rows for part in parts]))

    def code_name(self, token: int, people: int) -> str:
        """A code for a reason, unless fewer than 11 people have it."""
        if people < SMALLEST_COUNT:
            return "a code of too few people to be named"
        return repr(self.vocabulary.tokens[token])

    def read_source(self, folder: Path | None) -> None:
        """Read the original records, by default where `prepare` found them; a failure is then noted in `why_no_source`.

        Raises:
            EhrseqError: A folder was named, and its records cannot be read or are not those that were prepared.
        """
        place = folder or Path(self.prepared.manifest.get("data_path", ""))
        try:
            ids = [self.records[name].timelines.subject_id[self.sample[name]] for name in SPLITS]
            self.source = Source.read(
                self.run, self.prepared, place, wanted=np.unique(np.concatenate(ids))
            )
            self.why_no_source = None
        except EhrseqError as error:
            if folder is not None:
                raise
            self.why_no_source = f"the records cannot be used any more ({error.what})"
