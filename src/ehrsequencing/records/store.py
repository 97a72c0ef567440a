"""Arrays of a prepared set on disk: one `.npy` file a field, appended to while it is made, read by memory map."""

from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ehrsequencing.core.arrays import ArrayWriter
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.labels import LABELS, label_table
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.timelines import OutcomeEvents, TaskRows, Timelines

_COHORT_CHUNK = 20_000  # subjects in one row group of `cohort.parquet`
_DTYPES: dict[str, Any] = {
    "subject_id": np.int64,
    "birth_us": np.int64,
    "start_us": np.int64,
    "end_us": np.int64,
    "age_years": np.float32,
    "delta_days": np.float32,
    "codes": np.int32,
    "values": np.float32,
    "static_codes": np.int32,
    "prediction_us": np.int64,
    "index_us": np.int64,
    "is_query": np.bool_,
    "visits_before": np.int32,
    "unfinished_codes": np.int32,
    "duration_days": np.float64,
    "entry_days": np.float32,
    "cause": np.int8,
    "carry_codes": np.int32,
    "carry_values": np.float32,
    "outcome_codes": np.int32,
    "outcome_us": np.int64,
}
# in the file a plain string: its schema is not stored as Arrow's
_WORD = pa.dictionary(pa.int8(), pa.string())
_COHORT = pa.schema(
    [
        ("subject_id", pa.int64()),
        ("index_time", pa.timestamp("us")),
        ("prediction_time", pa.timestamp("us")),
        ("kind", _WORD),
        ("duration_days", pa.float64()),
        ("cause", pa.int8()),
        ("split", _WORD),
    ]
)
# whose few values make a dictionary
_FEW = [
    "index_time",
    "kind",
    "cause",
    "split",
    "boolean_value",
    "integer_value",
]
Arrays = TypeVar("Arrays", Timelines, TaskRows, OutcomeEvents)


class ArrayAppender:
    """Open `.npy` files, one a field; the arrays of some subjects after another are appended to them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._writers: dict[Path, dict[str, ArrayWriter]] = {}

    def append(self, folder: Path, arrays: Timelines | TaskRows | OutcomeEvents) -> None:
        """Append every field to its file under `folder`; offsets go on where those before ended."""
        if folder not in self._writers:
            self._writers[folder] = {
                field.name: self._open(folder, field.name, arrays) for field in fields(arrays)
            }
        for name, writer in self._writers[folder].items():
            rows = getattr(arrays, name)
            if name.endswith("_offsets"):
                rows = rows[1:] + writer.last
            if len(rows):
                writer.append(rows)

    def _open(
        self, folder: Path, name: str, arrays: Timelines | TaskRows | OutcomeEvents
    ) -> ArrayWriter:
        is_offsets = name.endswith("_offsets")
        dtype = np.int64 if is_offsets else _DTYPES[name]
        writer = self._stack.enter_context(
            ArrayWriter(folder / f"{name}.npy", dtype, getattr(arrays, name).shape[1:])
        )
        if is_offsets:
            writer.append(np.zeros(1, np.int64))
        return writer


def open_arrays(kind: type[Arrays], folder: Path) -> Arrays:
    """Memory-map every field of an array class; empty files cannot be mapped and are loaded."""

    def load(path: Path) -> NDArray[Any]:
        try:
            # `memmap` slices slowly
            array: NDArray[Any] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        except ValueError:
            array = np.load(path, allow_pickle=False)
        except OSError as error:
            raise EhrseqError("cannot be read", where=str(path), fix="prepare again") from error
        return array

    return kind(**{field.name: load(folder / f"{field.name}.npy") for field in fields(kind)})


def write_cohort(folder: Path, task: str) -> None:
    """Write `cohort.parquet` and `labels.parquet` from the stored arrays: by split, subject and time."""
    place = folder / "tasks" / task
    # three times as fast
    few = {
        "use_dictionary": _FEW,
        "write_statistics": False,
        "store_schema": False,
    }
    with (
        pq.ParquetWriter(place / "cohort.parquet", _COHORT, **few) as writer,
        pq.ParquetWriter(place / "labels.parquet", LABELS, **few) as labels,
    ):
        for split in SPLITS:
            subject_ids = np.load(folder / "visits" / split / "subject_id.npy")
            for start in range(0, len(subject_ids), _COHORT_CHUNK):
                # mapped anew each time: pages that were read would stay
                rows = open_arrays(TaskRows, place / split)
                bounds = rows.row_offsets[start : start + _COHORT_CHUNK + 1]
                subject_id = np.repeat(subject_ids[start : start + _COHORT_CHUNK], np.diff(bounds))
                part = slice(bounds[0], bounds[-1])
                prediction_us, cause = rows.prediction_us[part], rows.cause[part]
                duration_days = rows.duration_days[part]
                labels.write_table(label_table(subject_id, prediction_us, duration_days, cause))
                columns = [
                    pa.array(subject_id),
                    pa.array(rows.index_us[part]).cast(pa.timestamp("us")),
                    pa.array(prediction_us).cast(pa.timestamp("us")),
                    pa.DictionaryArray.from_arrays(
                        rows.is_query[part].view(np.int8), ["visit", "query"]
                    ),
                    pa.array(duration_days),
                    pa.array(cause),
                    pa.DictionaryArray.from_arrays(np.zeros(len(subject_id), np.int8), [split]),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=_COHORT))
