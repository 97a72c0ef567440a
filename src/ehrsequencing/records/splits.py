"""Splits: which subjects a model is trained, tuned and evaluated on.

In: a data set and the section `splits` of its study. Out: a `SplitLookup`, from subject id to split. Splits by folder,
date or site need a pass over the records of their own, since the vocabulary is fitted on training subjects only.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ehrsequencing.config import SplitsConfig, StudyConfig, TaskConfig, format_days
from ehrsequencing.core.arrays import Bools, Ints, hash_u64
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.events import (
    BIRTH,
    DAY_US,
    NEVER,
    Events,
    first_time,
    opens_run,
    parse_date_us,
)
from ehrsequencing.records.meds import SPLITS, MedsReader, find_shards, refuse_scattered
from ehrsequencing.records.parquet_rows import columns_of, read_subjects, read_table, subject_ids
from ehrsequencing.records.timelines import TaskRows, open_arrays
from ehrsequencing.records.visits import make_record

SplitSource = Literal["file", "folders", "hash", "date", "site"]
Assigned = tuple[Ints, NDArray[np.int8]]  # sorted subject ids, and the position in `SPLITS` of each
_FILE = Path("metadata", "subject_splits.parquet")
_OTHER_SPLITS = ("test", "val", "valid", "validation", "dev", "tune", "holdout", "training")


class SplitLookup:
    """The split of every subject."""

    def __init__(self, settings: SplitsConfig, assigned: Assigned | None, path: Path) -> None:
        self.settings, self.assigned, self.path = settings, assigned, path

    def __call__(self, subject_ids: Ints) -> NDArray[np.int8]:
        """(S,) position in `SPLITS` of each subject.

        Raises:
            EhrseqError: A subject has no split.
        """
        if self.assigned is None:
            return hash_splits(subject_ids, self.settings)
        ids, split = self.assigned
        position = np.minimum(np.searchsorted(ids, subject_ids), len(ids) - 1)
        missing = int(np.sum(ids[position] != subject_ids)) if len(ids) else len(subject_ids)
        if missing:
            raise EhrseqError(
                f"{missing} subjects of the data have no split",
                where=str(self.path),
                fix="add them, or use splits.by=hash",
            )
        return split[position]

    def absent(self, subject_ids: Ints) -> int:
        """How many subjects have a split but are not among these."""
        return 0 if self.assigned is None else int(np.sum(~np.isin(self.assigned[0], subject_ids)))


def cut_us(settings: SplitsConfig, split: str) -> int:
    """When everything of a split ends by design: with `splits.by=date` training and tuning end at the date."""
    if settings.by != "date" or split == "held_out":
        return int(NEVER)
    return parse_date_us(settings.from_date or "")


def known_until(events: Events, until_us: int, *, marks: Sequence[CodeMatcher]) -> Events:
    """The rows before a moment; whoever has later ones was under observation until then.

    Args:
        events: Of whole subjects.
        until_us: The moment.
        marks: Codes that end a time under observation: of later ones it is known that they lie ahead, and no more.
    """
    late, is_mark = events.time_us >= until_us, np.zeros(len(events), dtype=bool)
    for codes in marks:
        is_mark |= codes.events(events)
    followed = np.unique(events.subject_id[late & ~events.is_code(BIRTH)])
    cut = replace(
        events,
        time_us=np.minimum(events.time_us, until_us),
        beyond=np.union1d(events.beyond, followed),
    )
    return cut.take(~late | is_mark)


def cut_by_design(
    events: Events, lookup: SplitLookup, marks: Sequence[CodeMatcher], dataset_end_us: int
) -> Iterator[tuple[Events, int]]:
    """Events of whole subjects with the end of their data: the held-out ones, and those that are cut (`cut_us`)."""
    end_us = cut_us(lookup.settings, "train")
    if end_us >= dataset_end_us:
        yield events, dataset_end_us
        return
    subject_id, subject = events.subjects
    is_held_out = (lookup(subject_id) == SPLITS.index("held_out"))[subject]
    yield known_until(events.take(~is_held_out), end_us, marks=marks), end_us
    yield events.take(is_held_out), dataset_end_us


def require_room(tasks: Path, task: TaskConfig, settings: SplitsConfig, end_us: int) -> None:
    """Refuse a horizon for which nobody of a split can be followed, since its records end before by design.

    Args:
        tasks: Folder of the tasks' rows.
        task: One of them.
        settings: By date.
        end_us: Of the data.
    """
    longest_us = round(task.horizons[-1] * DAY_US)
    for split in ("train", "held_out"):
        rows = open_arrays(TaskRows, tasks / task.name / split)
        first_us, last_us = (
            rows.prediction_us.min(initial=NEVER),
            min(cut_us(settings, split), end_us),
        )
        if len(rows) and last_us - first_us < longest_us:
            since, until = (date_of(int(x)) for x in (first_us + longest_us, end_us - longest_us))
            allowed = f"from {since} on" if split == "train" else f"until {until}"
            longest = format_days(task.horizons[-1])
            raise EhrseqError(
                f"nobody of {split} can be followed for {longest} before {date_of(last_us)}",
                where=f"task {task.name}, splits.from",
                fix=f"choose a date {allowed}, or leave that horizon out",
            )


def date_of(moment_us: int) -> str:
    """The day of a moment, as in `2015-01-31`."""
    return str(np.datetime64(moment_us, "us").astype("datetime64[D]"))


def hash_splits(subject_ids: Ints, settings: SplitsConfig) -> NDArray[np.int8]:
    """Split by a hash of the subject id, so that the same subject is always in the same split.

    The random seed is hashed itself before it moves the ids. Otherwise the seeds 1, 2, 3 … would shift one pattern
    along consecutive ids. Seed 0 moves nothing.
    """
    seeds = hash_u64(np.array([0, settings.seed % 2**64], dtype=np.uint64))
    unit = hash_u64(subject_ids.view(np.uint64) + (seeds[1:] - seeds[:1])) / 2.0**64
    return np.searchsorted(
        [settings.train, settings.train + settings.tuning], unit, side="right"
    ).astype(np.int8)


def split_lookup(
    data: Path,
    *,
    study: StudyConfig,
    tasks: Sequence[TaskConfig],
    excluded: CodeMatcher,
    parents: Mapping[str, list[str]],
) -> SplitLookup:
    """The split of every subject, by the rule that the study names.

    Raises:
        EhrseqError: The records lack what the rule needs.
    """
    assigned, settings, ids = None, study.splits, list[Ints]()
    match split_source(data, settings):
        case "file":
            assigned = _from_file(data / _FILE)
        case (
            "folders"
        ):  # MEDS' convention: the shards of `data/train/` and the others are those splits
            shards = find_shards(data)
            for path in shards:
                rows = read_subjects(path)
                ids.append(np.unique(rows[opens_run(rows)]))  # few runs are left to sort
            refuse_scattered(ids, shards)
            split = [SPLITS.index(_folder(path, data)) for path in shards]
            assigned = _sorted(np.concatenate(ids), np.repeat(split, [len(part) for part in ids]))
        case "date":
            # held out: whose first index of any task, or without one first record, is at that date or later. No outcome
            # decides: an index counts whether or not anything is known after it
            builders = [CohortBuilder(task, parents=parents) for task in tasks]
            is_late = list[Bools]()
            for events in MedsReader(data, study.data, study):
                record = make_record(events, excluded=excluded, settings=study.visits)
                first_us = np.full(len(record.subject_id), NEVER)
                for builder in builders:
                    asked = builder.build(record, dataset_end_us=int(NEVER), labelled=False).rows
                    np.minimum.at(first_us, asked.subject, asked.index_us)
                is_row = ~events.is_code(BIRTH)
                start_us = first_time(events, is_row, record.subject, len(first_us))
                first_us = np.where(first_us == NEVER, start_us, first_us)
                ids.append(record.subject_id)
                is_late.append(first_us >= parse_date_us(settings.from_date or ""))
            assigned = _assigned(ids, is_late, settings)
        case "site":
            assigned = _by_site(data, settings)
    return SplitLookup(settings, assigned, data / _FILE)


def split_source(data: Path, settings: SplitsConfig) -> SplitSource:
    """Where the splits come from: `splits.by=file` takes the file, else MEDS' folders of shards, else the hash.

    Raises:
        EhrseqError: Some shards lie in the folder of a split and others do not, so that these have none.
    """
    if settings.by != "file":
        return settings.by
    if (data / _FILE).is_file():
        return "file"
    shards = find_shards(data)
    outside = [path for path in shards if _folder(path, data) not in SPLITS]
    if len(outside) == len(shards):
        return "hash"
    if outside:
        raise EhrseqError(
            f"lies outside of data/{{{','.join(SPLITS)}}}, where other shards are, and there is no file of splits",
            where=str(outside[0]),
            fix="move it into the folder of its split, or use splits.by=hash",
        )
    return "folders"


def _from_file(path: Path) -> Assigned:
    table = read_table(path)
    if not {"subject_id", "split"} <= set(table.column_names):
        raise EhrseqError(
            "needs the columns subject_id and split", where=str(path), fix="see the MEDS schema"
        )
    ids = subject_ids(table["subject_id"], path).to_numpy()
    words = table["split"].combine_chunks().dictionary_encode()
    number = [SPLITS.index(word) if word in SPLITS else -1 for word in words.dictionary.to_pylist()]
    place = pc.fill_null(words.indices, len(number)).to_numpy(zero_copy_only=False)
    split = np.array([*number, -1], dtype=np.int8)[place]
    if len(unknown := np.flatnonzero(split < 0)):
        word = words[int(unknown[0])].as_py()
        shown = f" {word!r}" if word in _OTHER_SPLITS else ""  # anything else may be a patient's
        raise EhrseqError(
            f"unknown split{shown}",
            where=f"{path}, row {unknown[0]}",
            fix=f"use {', '.join(SPLITS)}",
        )
    ids, split = _sorted(ids, split)
    opens = opens_run(ids)
    if (opens_run(ids, split) & ~opens).any():
        raise EhrseqError(
            "a subject is in two splits", where=str(path), fix="keep one row per subject"
        )
    return ids[opens], split[opens]


def _folder(path: Path, data: Path) -> str:
    """Where below `DATA/data` a shard lies: `train` for `train/0.parquet`, `train/a/0.parquet` and `train.parquet`."""
    return path.relative_to(data / "data").parts[0].removesuffix(".parquet")


def _by_site(data: Path, settings: SplitsConfig) -> Assigned:
    """Held out: subjects with any row at one of `splits.held_out_sites`, so that none of them is trained on."""
    column, sites = settings.column or "", set(settings.held_out_sites or ())
    ids, is_there, seen = [], [], set[str]()
    for path in find_shards(data):
        row_subject = read_subjects(path)
        if column not in columns_of(path):
            raise EhrseqError(
                f"has no column {column!r}", where=str(path), fix="name the site's in splits.column"
            )
        cells = read_table(path, [column])[column]
        try:
            site = cells.cast(pa.string())
        except pa.ArrowException as error:
            raise EhrseqError(
                f"column {column!r} has type {cells.type}",
                where=str(path),
                fix="sites are text or whole numbers",
            ) from error
        at_site = pc.fill_null(pc.is_in(site, value_set=pa.array(sites, pa.string())), False)
        seen.update(pc.unique(site.filter(at_site)).to_pylist())
        subject_id, row = np.unique(row_subject, return_inverse=True)
        ids.append(subject_id)
        is_there.append(np.bincount(row, weights=at_site.to_numpy(), minlength=len(subject_id)) > 0)
    if unseen := sorted(sites - seen):
        raise EhrseqError(
            f"no row has the site {unseen[0]!r}",
            where=f"splits.held_out_sites, column {column}",
            fix="write sites as the column does",
        )
    return _assigned(ids, is_there, settings)


def sites_of(data: Path, settings: SplitsConfig) -> dict[str, int]:
    """How many subjects have a row at each site, by name; many come first."""
    pairs = set[tuple[str, int]]()
    for path in find_shards(data):
        cells = read_table(path, [settings.column or ""]).column(0).cast(pa.string()).to_pylist()
        pairs |= set(zip(cells, read_subjects(path).tolist(), strict=True))
    people = Counter(site for site, _ in pairs if site is not None)
    return dict(people.most_common())


def _assigned(ids: list[Ints], held_out: list[Bools], settings: SplitsConfig) -> Assigned:
    """Split the subjects that are not held out by their hash into training and tuning, in the study's shares."""
    everyone, is_held_out = np.concatenate(ids), np.concatenate(held_out)
    whole = settings.train + settings.tuning
    shares = settings.model_copy(
        update={"train": settings.train / whole, "tuning": settings.tuning / whole}
    )
    split = np.minimum(hash_splits(everyone, shares), 1)
    return _sorted(everyone, np.where(is_held_out, SPLITS.index("held_out"), split))


def _sorted(ids: Ints, split: NDArray[np.generic]) -> Assigned:
    order = np.argsort(ids, kind="stable")
    return ids[order], split[order].astype(np.int8)
