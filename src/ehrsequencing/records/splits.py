"""Splits that the records decide: by the date of the index (temporal validation) or by site (external validation).

Both need a pass over the records of their own, since the vocabulary is fitted on training subjects only.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ehrsequencing.config import SplitsConfig, StudyConfig, TaskConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.records.cohort import NEVER, CohortBuilder
from ehrsequencing.records.meds import (
    BIRTH,
    SPLITS,
    MedsReader,
    SplitLookup,
    find_shards,
    first_time,
    hash_splits,
    parse_date_us,
    read_table,
)
from ehrsequencing.records.timelines import make_record

HELD_OUT = SPLITS.index("held_out")


def split_lookup(
    data: Path,
    *,
    study: StudyConfig,
    tasks: Sequence[TaskConfig],
    excluded: Callable[[str], bool],
    parents: Mapping[str, list[str]],
) -> SplitLookup:
    """The split of every subject, by whatever rule the study names.

    Args:
        data: Folder of the data set.
        study: Its `splits` section, and how records become visits.
        tasks: The tasks whose indexes `splits.by=date` asks about.
        excluded: Codes that make no visit.
        parents: Parents of each code.

    Raises:
        EhrseqError: The records lack what the rule needs.
    """
    if study.splits.by == "date":
        assigned = _by_date(data, study=study, tasks=tasks, excluded=excluded, parents=parents)
    elif study.splits.by == "site":
        assigned = _by_site(data, study.splits)
    else:
        return SplitLookup(data, study.splits)
    return SplitLookup(data, study.splits, assigned=assigned)


def _by_date(
    data: Path,
    *,
    study: StudyConfig,
    tasks: Sequence[TaskConfig],
    excluded: Callable[[str], bool],
    parents: Mapping[str, list[str]],
) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """Held out: whose first index of any task falls on `splits.from` or later; without one, whose record starts there.

    Outcome-free: an index counts if it could be asked at, whether or not anything is known after it.
    """
    from_us = parse_date_us(study.splits.from_date or "")
    column = study.visits.column if study.visits.by == "encounter" else None
    builders = [CohortBuilder(task, parents=parents) for task in tasks]
    ids, is_late = [], []
    for events in MedsReader(data, study.data, encounter_column=column):
        record = make_record(events, excluded=excluded, settings=study.visits)
        first_us = np.full(len(record.subject_id), NEVER)
        for builder in builders:
            rows = builder.build(
                events, record.subject, record.visits, birth_us=record.birth_us, dataset_end_us=int(NEVER),
                labelled=False,
            ).rows  # fmt: skip
            np.minimum.at(first_us, rows.subject, rows.index_us)
        start_us = first_time(events, ~events.is_code(BIRTH), record.subject, len(record.subject_id))
        ids.append(record.subject_id)
        is_late.append(np.where(first_us == NEVER, start_us, first_us) >= from_us)
    return _assigned(ids, is_late, study.splits)


def _by_site(data: Path, settings: SplitsConfig) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """Held out: who has any row at one of `splits.held_out_sites`, so that no such person is learned from."""
    column, sites = settings.column or "", pa.array(settings.held_out_sites or (), pa.string())
    ids, is_there, seen = [], [], set[str]()
    for path in find_shards(data):
        try:
            names = pq.read_schema(path).names
        except (pa.ArrowException, OSError) as error:
            mend = "the file is damaged: fetch it again"
            raise EhrseqError("cannot be read as Parquet", where=str(path), mend=mend) from error
        if column not in names:
            raise EhrseqError(f"has no column {column!r}", where=str(path), mend="name the site's in splits.column")
        table = read_table(path, ["subject_id", column])
        if not pa.types.is_integer(table["subject_id"].type) or table["subject_id"].null_count:
            raise EhrseqError("a subject_id is no whole number", where=str(path), mend="see the MEDS schema")
        site = table[column].cast(pa.string())
        at_site = pc.fill_null(pc.is_in(site, value_set=sites), False).to_numpy(zero_copy_only=False)
        seen.update(pc.unique(site.filter(pa.array(at_site))).to_pylist())
        subject_id, row = np.unique(table["subject_id"].cast(pa.int64()).to_numpy(), return_inverse=True)
        ids.append(subject_id)
        is_there.append(np.bincount(row, weights=at_site, minlength=len(subject_id)) > 0)
    unseen = sorted(set(settings.held_out_sites or ()) - seen)
    if unseen:
        where = f"splits.held_out_sites, column {column}"
        raise EhrseqError(f"no row has the site {unseen[0]!r}", where=where, mend="write sites as the column does")
    return _assigned(ids, is_there, settings)


def _assigned(
    ids: Sequence[NDArray[np.int64]], held_out: Sequence[NDArray[np.bool_]], settings: SplitsConfig
) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """Sorted ids and splits; those not held out train or tune by their hash, in the shares of the settings."""
    everyone, is_held_out = np.concatenate(ids), np.concatenate(held_out)
    order = np.argsort(everyone, kind="stable")
    everyone, is_held_out = everyone[order], is_held_out[order]
    whole = settings.train + settings.tuning
    shares = settings.model_copy(update={"train": settings.train / whole, "tuning": settings.tuning / whole})
    split = np.minimum(hash_splits(everyone, shares), 1)
    return everyone, np.where(is_held_out, HELD_OUT, split).astype(np.int8)
