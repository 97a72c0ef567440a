"""`prepare`: MEDS → packed arrays and labels on disk, in two passes.

The first pass reads the shards, fits vocabulary and scales on training subjects, and keeps the fixed rows on disk, at
16 bytes a row. The second pass encodes one range of subjects after another. Memory holds some shards, whatever the
number of subjects.
"""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.core.arrays import Ints, hash_u64
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    refuse_overlap,
    remembered,
    sha256,
    write_json,
    write_settings,
)
from ehrsequencing.core.made_of import FORMULAS, differing, made_of
from ehrsequencing.core.outputs import PREPARED, complete_folder, write_manifest
from ehrsequencing.core.version import __version__
from ehrsequencing.records.attrition import Tally, nobody_left
from ehrsequencing.records.codes import (
    other_spellings,
)
from ehrsequencing.records.deaths import DOUBTFUL, refuse_undated
from ehrsequencing.records.events import (
    ranges,
)
from ehrsequencing.records.follow_up import (
    bounds_text,
    compare_end,
    count_beyond,
    undated_bounds,
)
from ehrsequencing.records.labels import write_cohort
from ehrsequencing.records.meds import (
    IMPORT_SETTINGS,
    SPLITS,
    data_name,
    find_shards,
    parquet_files,
    read_card,
)
from ehrsequencing.records.outcomes import choose_outcomes
from ehrsequencing.records.people import PEOPLE, measures_to_keep
from ehrsequencing.records.prepared import SECTIONS, Prepared, simulation_faults, write_reference
from ehrsequencing.records.scales import number_warnings
from ehrsequencing.records.shards import (
    CODES,
    KEPT,
    OUTCOMES,
    PROCESSES,
    RANGE_ROWS,
    EncodedShard,
    FirstPass,
    ShardWork,
    call_in_order,
    count_rows,
    joblib_backend,
)
from ehrsequencing.records.splits import (
    require_room,
    split_source,
)
from ehrsequencing.records.survey import (
    Part,
    Progress,
    Steps,
    Survey,
    survey,
)
from ehrsequencing.records.timelines import (
    ArrayAppender,
    Timelines,
    open_arrays,
)


def prepare(
    data: Path,
    out: Path,
    *,
    study: StudyConfig,
    tasks: Sequence[TaskConfig],
    overwrite: bool = False,
    progress: Progress | None = None,
    processes: int | None = None,
    engine: str = PROCESSES,
    allow_empty: bool = False,
) -> None:
    """Turn a MEDS data set into packed arrays and labels.

    Args:
        data: Folder of the data set.
        out: Folder to make.
        study: How visits are cut, values read and the vocabulary built.
        tasks: The questions.
        overwrite: Whether an earlier prepared set there that nobody has changed is replaced.
        progress: Called with (pieces of work done, pieces to do): shards to read, then ranges of subjects to encode.
        processes: Over how many processes to spread the shards; by default all cores, and one for small data. The
            result is the same, byte for byte. Inside `joblib.parallel_config` the default is that backend.
        engine: Where that work runs: `processes`, or a cluster as `dask://HOST:PORT`. Same bytes, too.
        allow_empty: Whether a task may keep nobody.

    Raises:
        EhrseqError: Data or task cannot be used; nothing is left behind.
    """
    refuse_overlap(out, data)
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise EhrseqError("two tasks have the same name", where=", ".join(names), fix="rename one")
    if engine != PROCESSES:  # its machines have other working folders
        data, out = data.resolve(), out.resolve()
    work = ShardWork.of_study(data, study, tasks)
    with (
        joblib_backend(engine, processes, work.reader.shards) as jobs,
        complete_folder(out, PREPARED, overwrite=overwrite) as folder,
    ):
        facts = fill(folder, work, jobs=jobs, progress=progress, allow_empty=allow_empty)
        write_manifest(folder, facts)


def content_of(data: Path, study: StudyConfig, tasks: Sequence[TaskConfig]) -> dict[str, str]:
    """What a prepared set of these records, settings and tasks is made of, as its manifest notes it.

    The records are read again only if the size or the time of a file has changed since they were read last.

    Raises:
        EhrseqError: The data cannot be used.
    """
    files = sorted([*find_shards(data), *(data / "metadata").glob("*"), *_index_files(tasks)])
    key = {
        "formulas": FORMULAS,
        "data": str(data.resolve()),
        "files": [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files],
        "settings": [one.model_dump(mode="json") for one in (study, *tasks)],
    }
    return remembered(key, lambda: _made_of(ShardWork.of_study(data, study, tasks)))


def require_made_of(prepared: Prepared, data: Path) -> None:
    """Refuse records that do not give a prepared set, whatever they are called.

    Raises:
        EhrseqError: Names what differs.
    """
    made = content_of(data, prepared.study, [prepared.task(name) for name in prepared.tasks])
    if other := differing(made, prepared.manifest.get("made_of")):
        what = f"holds other records than those that {prepared.folder} was made from"
        raise EhrseqError(
            f"{what} (what differs: {', '.join(other)})",
            where=str(data),
            fix="name those records, or prepare, train and evaluate these in folders of their own",
        )


def _index_files(tasks: Sequence[TaskConfig]) -> list[Path]:
    """The files of index times that tasks name."""
    named = [Path(task.index.file) for task in tasks if task.index.file is not None]
    return [file for path in named for file in (parquet_files(path) if path.is_dir() else [path])]


def _made_of(work: ShardWork, surveyed: "Survey[Any] | None" = None) -> dict[str, str]:
    """What the set is made of: rows as they are read, whatever their files; and what decides beside them."""
    surveyed_ = surveyed or survey(work.reader, Part)
    ids, split = surveyed_.subject_id, work.lookup(surveyed_.subject_id)
    tasks = {task.name: task.model_dump(mode="json") for task in work.tasks}
    settings = work.study.model_dump(mode="json", include=SECTIONS)
    return made_of(
        records=surveyed_.days.content,
        parents_of_codes=sorted(work.parents.items()),  # as one part: its keys are codes
        splits_of_subjects=hash_u64(ids.view(np.uint64) ^ split.astype(np.uint64)).sum().item(),
        index_files=[sha256(path) for path in _index_files(work.tasks)],
        tasks=list(tasks),
        **{f"task {name}": task for name, task in tasks.items()},
        **settings,
    )


def fill(
    folder: Path, work: ShardWork, *, jobs: int, progress: Progress | None, allow_empty: bool
) -> dict[str, Any]:
    """Write everything of a prepared set but its manifest into a folder; returns the manifest's facts."""
    work.folder, reader = folder, work.reader
    n_ranges = 1 + count_rows(reader.shards) // RANGE_ROWS
    tick = Steps(reader, n_ranges, progress)

    # shards → rows with reasons, and what the vocabulary is fitted on
    surveyed = survey(reader, lambda: FirstPass(work, jobs), tick)
    fit, fixes = surveyed.part.fit, Counter(reader.fixes)
    codes = list(fit.number)
    known, suggest = [*codes, *work.parents], [*fit.common_codes(), *work.parents]
    for builder in work.builders:
        builder.require_known(known, surveyed.subject_id, suggest=suggest)
    vocabulary = fit.finish()
    vocabulary.save(folder)
    write_json(folder / KEPT / CODES, codes)

    # rows → visits, prediction times and labels, encoded
    ends = partial(compare_end, surveyed.days, surveyed.end_us)
    beyond = count_beyond(reader, work.builders)
    tallies = {
        task.name: Tally(task, ends(stated=task.censoring.date) | beyond[task.name])
        for task in work.tasks
    }
    for builder in work.builders:
        named = (builder.index_codes, *builder.cause_codes, builder.censoring_codes)
        spellings = other_spellings(filter(None, named), fit.common_codes())
        people = {code: int(fit.subjects[fit.number[code]]) for code in spellings}
        tallies[builder.task.name].other_spellings = people
        tallies[builder.task.name].follow_up.update(
            {
                f"{when} {name}": reader.people[f"{when} {builder.task.name} {name}"]
                for when in ("before", "after")
                for name in builder.task.causes
            }
        )
    doubtful, undated = list[Ints](), list[tuple[Ints, Ints]]()
    items = ((shards, surveyed.end_us) for shards in ranges(surveyed.part.kept, n_ranges))
    with ExitStack() as stack:
        writer = ArrayAppender(stack)
        for pieces in call_in_order(work, "encode", items, jobs=jobs):
            for piece in pieces:
                fixes.update(piece.fixes)
                doubtful.append(piece.doubtful)
                undated.append(piece.undated)
                _append(piece, folder, tallies, writer)
            tick()
    while tick.done < tick.total:  # there may be fewer ranges
        tick()

    # each task's files
    for builder in work.builders:
        tally = tallies[builder.task.name]
        tally.undated = undated_bounds(folder, builder, undated)
        if tally.undated is not None:
            refuse_undated(tally.task, tally.follow_up, bounds_text(tally.task, tally.undated))
    for task in work.tasks:
        nobody = nobody_left(task, tallies[task.name].as_json())
        if nobody is not None and not allow_empty:
            raise EhrseqError(nobody[0], where=f"task {task.name}", fix=nobody[1])
        if work.study.splits.by == "date" and not allow_empty:
            require_room(folder / "tasks", task, work.study.splits, surveyed.end_us)
    for task in work.tasks:
        place, choice = folder / "tasks" / task.name, None
        if task.outcomes is not None:
            events = folder / KEPT / OUTCOMES / task.name
            choice = choose_outcomes(place, events, task, codes, work.parents)
        write_cohort(folder, task.name)
        write_settings(place / "task.yaml", task)
        write_json(place / "attrition.json", tallies[task.name].as_json(choice))
    ids = np.unique(np.concatenate([np.zeros(0, np.int64), *doubtful]))
    if len(ids):  # whose death is in doubt, for the owner of the records
        pq.write_table(pa.table({"subject_id": ids}), folder / DOUBTFUL)
    shutil.rmtree(folder / KEPT)
    training = open_arrays(Timelines, folder / "visits" / "train")
    kept = measures_to_keep(fit.carriers_to_keep(), training, vocabulary, end_us=surveyed.end_us)
    write_json(folder / PEOPLE, kept)
    write_reference(folder, vocabulary, work.excluded, work.study.visits)
    write_settings(folder / "config.yaml", work.study, only=SECTIONS)
    fixes["absent_split"] = work.lookup.absent(surveyed.subject_id)
    return {
        **_facts(work, surveyed),
        "vocabulary": vocabulary.digest,
        "tasks": [task.name for task in work.tasks],
        "calendar": ends(),
        "known_training_rows": fit.known_share(vocabulary),
        "numbers": number_warnings(fit.number, fit.numbers_kept.by_key(), fit.numbered.tolist()),
        "fixes": {name: count for name, count in fixes.items() if count},
    }


def _facts(work: ShardWork, surveyed: "Survey[FirstPass]") -> dict[str, Any]:
    """What the manifest says of the data set and the settings."""
    reader, days = work.reader, surveyed.days
    faults = simulation_faults(reader.data)
    return {
        **PREPARED.facts,
        "version": __version__,
        "data": data_name(reader.data),
        "data_path": str(reader.data.resolve()),
        "simulated": faults == [],
        "changed_simulation": faults or [],
        "subjects": len(surveyed.subject_id),
        "rows": {
            "all": int(days.rows.sum() + days.births.sum()) + days.static,
            "static": days.static,
            "with_number": days.with_number,
            "shards": len(reader.shards),
        },
        "import": read_card(reader.data).get(IMPORT_SETTINGS, {}),
        "years": days.years,
        "codes": len(surveyed.part.fit.number),
        "dataset_end_us": surveyed.end_us,
        "late_rows": asdict(reader.late) if reader.late else None,
        "splits": split_source(reader.data, work.study.splits),
        "made_of": _made_of(work, surveyed),
        "excluded": list(work.excluded.patterns),
    }


def _append(
    shard: EncodedShard, folder: Path, tallies: Mapping[str, Tally], writer: ArrayAppender
) -> None:
    for split, timelines in zip(SPLITS, shard.visits, strict=True):
        writer.append(folder / "visits" / split, timelines)
    for tally, parts, outcomes in shard.tasks:
        name = tally.task.name
        tallies[name].merge(tally)
        for split, rows in zip(SPLITS, parts, strict=True):
            writer.append(folder / "tasks" / name / split, rows)
        for split, of_split in zip(SPLITS, outcomes, strict=False):
            writer.append(folder / KEPT / OUTCOMES / name / split, of_split)
