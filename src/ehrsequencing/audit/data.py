"""The input of every check (run, prepared set, original records, a sample of subjects) and its output, a `Finding`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from ehrsequencing.audit.source import Source
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT, shareable_count
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.visits import count_at_or_before


class Presence:
    """Which rows see a token: all rows of a subject after the visit that has it first; static ones always."""

    def __init__(self, records: TaskRecords) -> None:
        timelines, rows = records.timelines, records.rows
        everyone = np.arange(len(timelines))
        visits = np.diff(timelines.subject_offsets)
        place = np.arange(int(visits.sum())) - np.repeat(timelines.subject_offsets[:-1], visits)
        codes = np.diff(timelines.visit_offsets)
        subject = np.r_[
            np.repeat(np.repeat(everyone, visits), codes),
            np.repeat(everyone, np.diff(timelines.static_offsets)),
        ]
        token = np.r_[timelines.codes, timelines.static_codes].astype(np.int64)
        nth = np.r_[np.repeat(place, codes), np.full(len(timelines.static_codes), -1)]
        order = np.lexsort((nth, token, subject))
        subject, token, nth = subject[order], token[order], nth[order]
        opens = np.r_[True, (np.diff(subject) != 0) | (np.diff(token) != 0)][: len(order)]
        subject, self.token, nth = subject[opens], token[opens], nth[opens]
        before, first = count_at_or_before(
            rows.subject, rows.visits_before.astype(np.int64), subject, nth
        )
        self.start, self.stop = first + before, rows.row_offsets[subject + 1]

    def weight_with(self, weight: Floats, n_tokens: int) -> Floats:
        """(V,) weight of the rows that see each token."""
        seen = np.r_[0.0, np.cumsum(weight)]
        return np.asarray(
            np.bincount(self.token, weights=seen[self.stop] - seen[self.start], minlength=n_tokens)
        )


SPLITS = ("train", "tuning", "held_out")
# whose labels the looks for telling codes use: most carriers are there
FITTED = (
    "train",
    "tuning",
)
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
    # the number that decided; None where there is none, or it counts fewer than 11
    measured: float | None = None
    bound: float | None = None  # what it had to keep to


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
        return Finding(
            "leak", f"{count_text(leaks)} of {count_text(of)} {what}", tested, measured, 0.0
        )
    return Finding("passed", clean, tested, 0.0, 0.0)


def count_text(count: int) -> str:
    """A count for a reason: `1,312`, or `<11`, since audit.json may be shared."""
    return f"{shown:,}" if isinstance(shown := shareable_count(count), int) else str(shown)


def no_source(data: "AuditData") -> Finding:
    """The verdict of a check that needs the records where they cannot be reached."""
    return Finding("not_tested", data.why_no_source)


@dataclass(frozen=True)
class Check:
    """One question to a run."""

    name: str  # as in `audit.json`
    question: str
    make: Callable[["AuditData"], Finding]


class AuditData:
    """A run with all that it was made from."""

    def __init__(
        self, run: Run, prepared: Prepared, *, split: str, subjects: int, seed: int
    ) -> None:
        if split not in SPLITS:
            raise EhrseqError(
                f"{split!r} is no split", where="--split", fix=f"use {', '.join(SPLITS)}"
            )
        if subjects < 1:
            raise EhrseqError("leaves no subject to check", where="--subjects", fix="use 1 or more")
        self.run, self.prepared, self.split, self.subjects, self.seed = (
            run,
            prepared,
            split,
            subjects,
            seed,
        )
        self.task, self.vocabulary, self.model = run.task, run.vocabulary, run.model
        self.records: dict[str, TaskRecords] = {
            name: prepared.records(self.task.name, name) for name in SPLITS
        }
        if not len(self.records[split]):
            raise EhrseqError(
                f"nobody in {split} has a prediction time",
                where=self.task.name,
                fix="see ehrseq check",
            )
        self.source: Source | None = None
        # how far a changed past moves an answer, once that was asked
        self.reaction: float | None = None
        self.why_no_source = "the records were not read"

    def rng(self, purpose: int) -> np.random.Generator:
        """Noise of one check: the same whatever other checks do."""
        return np.random.default_rng([self.seed, purpose])

    @cached_property
    def sample(self) -> dict[str, Ints]:
        """Split → its subjects, drawn at random among those with a prediction time; length has no say."""
        drawn = {}
        for number, name in enumerate(SPLITS):
            able = np.flatnonzero(np.diff(self.records[name].rows.row_offsets) > 0)
            chosen = self.rng(number).permutation(able)[: self.subjects]
            drawn[name] = np.sort(chosen)
        return drawn

    @cached_property
    def asked(self) -> TaskRecords:
        """Visits and prediction times of the drawn subjects of the audited split."""
        return self.records[self.split].take(self.sample[self.split])

    @cached_property
    def presence(self) -> dict[str, Presence]:
        """Which prediction times of each split see which token."""
        return {name: Presence(self.records[name]) for name in SPLITS}

    def read_source(self, folder: Path | None) -> None:
        """Read the original records, by default where `prepare` found them; a failure is then noted in `why_no_source`.

        Raises:
            EhrseqError: A folder was named, and its records cannot be read or are not those that were prepared.
        """
        place = folder or Path(self.prepared.manifest.get("data_path", ""))
        try:
            ids = [self.records[name].timelines.subject_id[self.sample[name]] for name in SPLITS]
            self.source = Source.read(self.prepared, place, wanted=np.unique(np.concatenate(ids)))
        except EhrseqError as error:
            if folder is not None:
                raise
            self.why_no_source = f"the records cannot be used any more ({error.what})"

    @cached_property
    def base_token(self) -> Ints:
        """(V,) the plain token behind each joint or summary token (`CODE//Q3`, `LAST//CODE`); itself otherwise."""
        return self.vocabulary.base
