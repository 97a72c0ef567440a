"""The input of every check (run, prepared set, original records, who is there twice) and its output, a `Finding`."""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Floats32, Ints
from ehrsequencing.core.disclosure import (
    SMALLEST_COUNT,
    count_text,
    shareable_count,
)
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.predict import Encoder
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.history import fit_feature_spec, history_features
from ehrsequencing.records.codes import read_parents
from ehrsequencing.records.events import STATIC, Events
from ehrsequencing.records.labels import IndexTimes
from ehrsequencing.records.meds import SPLITS, LateRows, MedsReader
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.splits import known_until
from ehrsequencing.records.survey import count_days
from ehrsequencing.records.timelines import TaskRecords, joined
from ehrsequencing.records.visits import make_record
from ehrsequencing.records.vocabulary_fit import VocabularyFit
from ehrsequencing.results.result_types import Verdict


@dataclass(frozen=True)
class Source:
    """The MEDS records that a set was prepared from."""

    encoder: Encoder  # encodes records as the run's training data was
    fit: VocabularyFit  # codes and values of the training subjects of the prepared set
    records: dict[int, Events]  # events of each sampled subject, by id
    dataset_end_us: int  # last timestamp, or the date of extraction

    @classmethod
    def read(cls, run: Run, prepared: Prepared, folder: Path, *, wanted: Ints) -> "Source":
        """One pass over the shards.

        Raises:
            EhrseqError: The records cannot be read, or are not those that were prepared.
        """
        study, manifest = prepared.study, prepared.manifest
        reader = MedsReader(folder, study.data, study)
        late = manifest.get("late_rows")
        reader.late = LateRows(**late) if late else None  # left out as when the set was prepared
        parents = read_parents(folder)
        encoder = Encoder(run, parents)
        fit = VocabularyFit(study.vocabulary, study.values, excluded=encoder.excluded)
        training, tuning = (prepared.timelines(name).subject_id for name in SPLITS[:2])
        cut_us, cut = prepared.cut_us("train"), {*training.tolist(), *tuning.tolist()}
        marks = [one for one in (encoder.builder.censoring_codes,) if one is not None]
        records: dict[int, Events] = {}
        subjects = 0
        end_us = STATIC
        for events in reader:
            ids, row = np.unique(events.subject_id, return_inverse=True)
            fit.update(events, row, np.isin(ids, training)[row] & (events.time_us < cut_us))
            subjects += len(ids)
            end_us = max(end_us, count_days(events, reader.late).last_us)
            some = events.take(np.isin(events.subject_id, wanted))
            ids, first = np.unique(some.subject_id, return_index=True)
            bounds = np.r_[first, len(some)].tolist()
            for who, low, high in zip(ids.tolist(), bounds, bounds[1:], strict=False):
                part = some.take(np.arange(low, high))
                is_cut = who in cut  # as `prepare` cut it
                records[who] = known_until(part, cut_us, marks=marks) if is_cut else part
        if reader.declared_us is not None:
            end_us = reader.declared_us
        if (
            subjects != manifest["subjects"]
            or end_us != manifest["dataset_end_us"]
            or len(records) < len(wanted)
        ):
            raise EhrseqError(
                "these are not the records that were prepared",
                where=str(folder),
                fix="name the records that were prepared with --data",
            )
        return cls(encoder, fit, records, end_us)

    def encode(self, parts: list[Events], ids: Ints, *, end_us: int, labelled: bool) -> TaskRecords:
        """Records of one subject each, encoded as `prepare` (with labels) and predictions in use encode records.

        Args:
            parts: The records; they become subjects 0, 1, 2 …
            ids: (n,) whose they are, for a task whose index times stand in a file.
            end_us: End of the data.
            labelled: Whether follow-up ends and outcomes are looked for.
        """
        run, builder = self.encoder.run, copy(self.encoder.builder)
        record = make_record(join(parts), excluded=self.encoder.excluded, settings=run.study.visits)
        if builder.index_times is not None:
            builder.index_times = IndexTimes(*builder.index_times.of(ids))
        cohort = builder.build(record, dataset_end_us=end_us, labelled=labelled)
        return self.encoder.encode(record, cohort.rows)


def join(parts: list[Events]) -> Events:
    """Records under new ids 0, 1, 2 … in one; they may come from shards that number their codes differently."""
    number: dict[str, int] = {}
    codes = [
        np.array(
            [number.setdefault(code, len(number)) for code in part.codes] or [0], dtype=np.int32
        )[part.code]
        for part in parts
    ]
    encounters = [part.encounter for part in parts if part.encounter is not None]
    return Events(
        subject_id=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        time_us=np.concatenate([part.time_us for part in parts]),
        code=np.concatenate(codes),
        codes=tuple(number),
        value=np.concatenate([part.value for part in parts]),
        encounter=np.concatenate(encounters) if encounters else None,
        beyond=np.flatnonzero([bool(np.isin(part.subject_id[:1], part.beyond)) for part in parts]),
    )


KINDS = ("static", "count", "last")  # of features that are searched
FAMILY = "family"  # codes with one beginning, counted together
MOST_FAMILIES = 200
MOST_CODES, MOST_STATIC, MOST_PEOPLE = 1000, 200, 10_000
FEWEST_CARRIERS = SMALLEST_COUNT  # of a code that is found; whoever is found is named


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
        measured = float(shareable_count(leaks) or 0) if leaks >= SMALLEST_COUNT else None
        return Finding(
            "leak", f"{count_text(leaks)} of {count_text(of)} {what}", tested, measured, 0.0
        )
    return Finding("passed", clean, tested, 0.0, 0.0)


@dataclass(frozen=True)
class Check:
    """One question to a run."""

    name: str  # as in `audit.json`
    question: str
    make: Callable[["AuditData"], Finding]
    needs_records: bool = False  # the original ones; without them it is not tested


@dataclass(frozen=True)
class Known:
    """What is known of P training and tuning people, and what came: at their first and at their last prediction time.

    Features are `static CODE`, `count CODE`, `last CODE`, and counts of families; their tokens come after all codes.
    """

    tokens: Ints  # (F,) of the features' codes
    kind: NDArray[np.str_]  # (F,) `static`, `count` or `last`
    row: tuple[Ints, Ints]  # (P,) prediction times: first, last
    features: tuple[Floats32, Floats32]  # (P, F) at each, NaN = not known

    @classmethod
    def of(cls, data: "AuditData") -> "Known":
        """Of some people at random where they are many."""
        records = data.fitted
        columns = fit_feature_spec(
            records, data.vocabulary, max_codes=MOST_CODES, max_static_codes=MOST_STATIC
        )
        offsets = records.rows.row_offsets
        people = data.rng(21).permutation(np.flatnonzero(np.diff(offsets) > 0))[:MOST_PEOPLE]
        rows = offsets[np.sort(people)], offsets[np.sort(people) + 1] - 1
        names = [name.partition(" ") for name in columns.names]
        some = [k for k, name in enumerate(names) if name[0] in KINDS]
        first, last = (
            history_features(records, chosen=row, columns=columns)[:, some] for row in rows
        )
        of = {data.vocabulary.tokens[k]: k for k in (*columns.codes, *columns.static_codes)}
        tokens = np.array([of[names[k][2]] for k in some], dtype=np.int64)
        # how many rows of each family, which have the tokens after all codes, the people have by then
        lines, size, n_visits = (
            records.timelines,
            len(data.vocabulary),
            len(records.timelines.start_us),
        )
        visit = np.repeat(np.arange(n_visits), np.diff(lines.visit_offsets))
        together = np.zeros((2, len(people), len(data.families)), dtype=np.float32)
        for place, (_, members) in enumerate(data.families):
            of_visit = np.bincount(visit[np.isin(lines.codes, members)], minlength=n_visits)
            until = np.r_[0, np.cumsum(of_visit)]
            for moment, row in enumerate(rows):
                start = lines.subject_offsets[records.rows.subject[row]]
                stop = start + records.rows.visits_before[row]
                together[moment, :, place] = until[stop] - until[start]
        tokens = np.r_[tokens, size + np.arange(len(data.families))]
        kinds = [*(names[k][0] for k in some), *[FAMILY] * len(data.families)]
        first, last = (
            np.column_stack([a, b]) for a, b in zip((first, last), together, strict=True)
        )
        return cls(tokens, np.array(kinds), rows, (first, last))

    def frequent(self, *kinds: str) -> Ints:
        """Numbers of the features of some kinds that enough people have at first, the most frequent ones."""
        people = (np.nan_to_num(self.features[0]) != 0).sum(axis=0)
        usable = np.isin(self.kind, kinds) & (people >= FEWEST_CARRIERS)
        ranked = np.argsort(np.where(usable, -people, 0), kind="stable")
        return np.sort(ranked[: min(int(usable.sum()), MOST_STATIC)])

    def shown(self, data: "AuditData", columns: Sequence[int]) -> str:
        """Names of the codes of some features, unless few people have them."""
        people = (np.nan_to_num(self.features[1][:, columns]) != 0).sum(axis=0).tolist()
        named = zip(self.tokens[columns].tolist(), people, strict=True)
        return ", ".join(dict.fromkeys(data.code_name(*one) for one in named))


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
        self.model = run.model.double() if run.study.training.network else None
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

    @cached_property
    def known(self) -> Known:
        """What is known of the training and tuning subjects at their first and at their last prediction times."""
        return Known.of(self)

    @cached_property
    def families(self) -> list[tuple[str, Ints]]:
        """Codes with one beginning, up to their first or their last `//`: name and tokens, rare codes included."""
        vocabulary, members = self.vocabulary, dict[str, set[int]]()
        for token, name in enumerate(vocabulary.codes, start=vocabulary.n_unknown):
            beginnings = {name.partition("//")[0], name.rpartition("//")[0]} if "//" in name else ()
            for beginning in beginnings:
                members.setdefault(beginning, set()).add(token)
        for place, kind in enumerate(vocabulary.kinds, start=2):  # the unknown tokens of each kind
            members.setdefault(kind, set()).add(place)
        distinct = {tuple(sorted(tokens)): name for name, tokens in members.items() if tokens}
        large = [
            (f"{name}//*", np.array(some))
            for some, name in distinct.items()
            if len(some) > 1 or some[0] < vocabulary.n_unknown
        ]
        return large[:MOST_FAMILIES]

    def members(self, tokens: Iterable[int]) -> tuple[int, ...]:
        """Tokens with the members of the families among them."""
        size = len(self.vocabulary)
        found = [self.families[t - size][1].tolist() if t >= size else [t] for t in tokens]
        return tuple(sorted({one for some in found for one in some}))

    def code_name(self, token: int, people: int) -> str:
        """A code, or a family, for a reason, unless fewer than 11 people have it."""
        few = "a code of too few people to be named"
        return few if people < SMALLEST_COUNT else repr(self.name_of(token))

    def name_of(self, token: int) -> str:
        """A code, or a family."""
        size = len(self.vocabulary)
        return self.families[token - size][0] if token >= size else self.vocabulary.tokens[token]

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
