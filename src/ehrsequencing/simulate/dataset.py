"""The files of a simulation: a MEDS data set, its truth, and the task that asks for it.

Shards are written as they are made, so that memory does not grow with the number of subjects. The folder appears when
it is complete, with a manifest.
"""

from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from meds import schema as meds

from ehrsequencing.core.arrays import Floats, Ints, hash_u64
from ehrsequencing.core.files import write_bytes, write_json
from ehrsequencing.core.outputs import SIMULATION, complete_folder, write_manifest
from ehrsequencing.simulate.codes import (
    DEATH_CODE,
    END_OF_FOLLOW_UP,
    ENROLMENT,
    OUTCOME_CODE,
    CodeTable,
)
from ehrsequencing.simulate.process import MECHANISMS, Process, SimulationConfig
from ehrsequencing.simulate.records import (
    BLOCK,
    DAY_US,
    TRUTH_STREAM,
    PredictionTimes,
    random_stream,
    simulate_block,
)
from ehrsequencing.simulate.truth import grid_days, horizons, true_curves

CAUSES = ("outcome", "death")  # the task's names, in the order of every axis of causes
SPLITS = (meds.train_split, meds.tuning_split, meds.held_out_split)
SHARD_SUBJECTS = 10_000
_DEFAULT = SimulationConfig()
# the task that the truth answers
_TASK = f"""\
# Time from enrolment, and from the end of every later visit, to the outcome; death competes.
name: simulated
title:      Outcome of simulated patients, with death competing
index:      {{{{code: {ENROLMENT}, which: first}}}}
outcome:    {{{{{CAUSES[0]}: {OUTCOME_CODE}}}}}
competing:  {{{{{CAUSES[1]}: {DEATH_CODE}}}}}
censoring:  {{{{code: {END_OF_FOLLOW_UP}}}}}
horizons:   [{{horizons}}]
main:       {{main}}
landmarks:  [0d]
"""

_ASKED = [("subject_id", pa.int64()), ("prediction_time", pa.timestamp("us"))]
_PREDICTION = [*_ASKED, ("cause", pa.string())]
_RISKS = pa.schema(
    [
        *_PREDICTION,
        ("horizon_days", pa.float64()),
        ("risk", pa.float32()),
        ("risk_se", pa.float32()),
    ]
)
_HAZARDS = pa.schema(
    [
        *_PREDICTION,
        ("start_days", pa.float64()),
        ("stop_days", pa.float64()),
        ("hazard", pa.float64()),
    ]
)

_RATIOS = pa.schema([*_ASKED, ("mechanism", pa.string()), ("log_hazard_ratio", pa.float32())])


def simulate(
    out: Path,
    *,
    subjects: int,
    seed: int,
    truth: Literal["held_out", "all"] = "held_out",
    config: SimulationConfig = _DEFAULT,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a simulated MEDS data set with its true hazards and its task.

    The same seed and settings give the same bytes, and a subject's record does not depend on how many others there are.

    Args:
        out: Folder to make.
        subjects: How many, 1 or more; their ids are 1, 2, ….
        seed: 0 or more.
        truth: Whose truth to compute: that of all subjects takes about seven times as long.
        config: The knobs of the mechanisms.
        overwrite: Whether an earlier simulation there that nobody has changed is replaced.
        progress: Called with the number of subjects done and the number to do.

    Raises:
        EhrseqError: `out` holds something else, or the disk refuses.
    """
    process, codes = Process(config), CodeTable(config)
    with complete_folder(out, SIMULATION, overwrite=overwrite) as folder:
        with ExitStack() as open_files:
            data = folder / meds.data_subdirectory
            shards = [_ShardWriter(data / split, open_files) for split in SPLITS]
            truths = _TruthWriter(folder, config, open_files)
            for start in range(0, subjects, BLOCK):
                number = start // BLOCK
                block = simulate_block(
                    process, codes, seed=seed, block=number, subjects=min(BLOCK, subjects - start)
                )
                split = split_of(block.subject_id)
                row_split = split_of(block.events["subject_id"].to_numpy())
                for which, shard in enumerate(shards):
                    rows = block.events.filter(pa.array(row_split == which))
                    shard.add(int((split == which).sum()), rows)
                times = block.prediction_times
                if truth == "held_out":
                    times = times.take(
                        np.equal(split_of(times.subject_id), SPLITS.index(meds.held_out_split))
                    )
                truths.add(process, times, random_stream(seed, number, TRUTH_STREAM))
                if progress is not None:
                    progress(start + len(block.subject_id), subjects)
        names = [*horizons(config.follow_up_max_years, config.last_horizon_years)]
        asked = _TASK.format(horizons=", ".join(names), main=names[-1])
        write_bytes(folder / "task.yaml", asked.encode())
        subject_id = np.arange(1, subjects + 1)
        split = pa.array(SPLITS).take(pa.array(split_of(subject_id)))
        splits = pa.table({"subject_id": subject_id, "split": split})
        (folder / meds.subject_splits_filepath).parent.mkdir()
        pq.write_table(meds.SubjectSplitSchema.align(splits), folder / meds.subject_splits_filepath)
        code_table = pa.table(codes.ontology(), schema=meds.CodeMetadataSchema.schema())
        meds.CodeMetadataSchema.validate(code_table)
        pq.write_table(code_table, folder / meds.code_metadata_filepath)
        card = {
            "dataset_name": "ehrsequencing simulation",
            "dataset_version": "1",
            "etl_name": "ehrseq simulate",
            "etl_version": "1",
            "meds_version": version("meds"),
        }
        meds.DatasetMetadataSchema.validate(card)
        write_json(folder / meds.dataset_metadata_filepath, card)
        facts = simulation_facts(subjects, seed, truth, config)
        write_manifest(folder, {**SIMULATION.facts, **facts})


def simulation_facts(
    subjects: int, seed: int, truth: str, config: SimulationConfig
) -> dict[str, object]:
    """What tells one simulation from another, for its manifest."""
    settings = config.model_dump(mode="json")
    return {"subjects": subjects, "seed": seed, "truth": truth, "settings": settings}


def split_of(subject_id: Ints) -> Ints:
    """Number of each subject's split in `SPLITS`: 70, 15 and 15 % by a hash of the id (splitmix64)."""
    percent = hash_u64(subject_id.astype(np.uint64)) % np.uint64(100)
    return np.searchsorted(np.array([70, 85]), percent.astype(np.int64), side="right")


class _ShardWriter:
    """Writes one split's subjects as they come, about `SHARD_SUBJECTS` to a file."""

    def __init__(self, folder: Path, open_files: ExitStack) -> None:
        self._folder, self._shards, self._subjects = folder, 0, 0
        self._file: pq.ParquetWriter | None = None
        self._closing = open_files.enter_context(ExitStack())

    def add(self, subjects: int, events: pa.Table) -> None:
        """Write the rows of so many more subjects."""
        if not subjects:
            return
        table = meds.DataSchema.align(events)
        if self._subjects + subjects > SHARD_SUBJECTS:
            self._closing.close()
            self._file, self._subjects, self._shards = None, 0, self._shards + 1
        if self._file is None:
            path = self._folder / f"{self._shards}.parquet"
            self._file = self._closing.enter_context(_parquet_writer(path, table.schema))
        self._file.write_table(table)
        self._subjects += subjects


class _TruthWriter:
    """Computes and writes the three files of the truth, a block of subjects at a time."""

    def __init__(self, out: Path, config: SimulationConfig, open_files: ExitStack) -> None:
        self._edges_days = grid_days(config.follow_up_max_years)
        self._horizons_days = np.array(
            list(horizons(config.follow_up_max_years, config.last_horizon_years).values())
        )
        self._risks = open_files.enter_context(_parquet_writer(out / "truth.parquet", _RISKS))
        self._hazards = open_files.enter_context(
            _parquet_writer(out / "truth_hazards.parquet", _HAZARDS)
        )
        self._ratios = open_files.enter_context(
            _parquet_writer(out / "truth_mechanisms.parquet", _RATIOS)
        )

    def add(self, process: Process, asked: PredictionTimes, rng: np.random.Generator) -> None:
        """Compute and write the truth at more prediction times."""
        edges = self._edges_days
        curves = true_curves(
            process,
            asked.lives,
            asked.evidence,
            day_fraction=asked.time_us % DAY_US / DAY_US,
            edges_days=edges,
            rng=rng,
        )
        at = np.searchsorted(edges, self._horizons_days)
        self._risks.write_table(
            _long_table(
                asked,
                _RISKS,
                horizon_days=self._horizons_days,
                risk=curves.incidence[:, :, at],
                risk_se=curves.incidence_se[:, :, at],
            )
        )
        self._hazards.write_table(
            _long_table(
                asked,
                _HAZARDS,
                start_days=edges[:-1],
                stop_days=edges[1:],
                hazard=curves.hazards_per_day(edges),
            )
        )
        log_ratios = process.log_ratios(asked.lives)  # (mechanisms, R)
        count, rows = log_ratios.shape
        columns = {
            "subject_id": np.repeat(asked.subject_id, count),
            "prediction_time": pa.array(np.repeat(asked.time_us, count)).cast(pa.timestamp("us")),
            "mechanism": pa.array(MECHANISMS).take(pa.array(np.tile(np.arange(count), rows))),
            "log_hazard_ratio": log_ratios.T.ravel().astype(np.float32),
        }
        self._ratios.write_table(pa.table(columns, schema=_RATIOS))


def _long_table(asked: PredictionTimes, schema: pa.Schema, **columns: Floats) -> pa.Table:
    """Rows by prediction time, then cause, then the last axis; (2, R, K) columns vary, (K,) columns repeat."""
    rows, last = len(asked.subject_id), len(next(iter(columns.values())))
    per_row = len(CAUSES) * last
    shape = (rows, len(CAUSES), last)
    arrays: dict[str, Any] = {
        "subject_id": np.repeat(asked.subject_id, per_row),
        "prediction_time": np.repeat(asked.time_us, per_row),
        "cause": pa.array(CAUSES).take(
            pa.array(np.tile(np.repeat(np.arange(len(CAUSES)), last), rows))
        ),
    }
    for name, values in columns.items():
        arrays[name] = np.broadcast_to(
            values.swapaxes(0, 1) if values.ndim == 3 else values, shape
        ).ravel()
    return pa.table(
        [pa.array(arrays[field.name]).cast(field.type) for field in schema], schema=schema
    )


def _parquet_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    path.parent.mkdir(parents=True, exist_ok=True)
    return pq.ParquetWriter(path, schema)
