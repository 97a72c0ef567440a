"""Frames in and out: pandas, polars or Arrow. MEDS data may be a folder or a frame of MEDS rows."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import private_folder, write_json

Frames = Literal["pandas", "polars", "arrow"]
MEDS_COLUMNS = ("subject_id", "time", "code", "numeric_value")
_EXTRA = "pip install 'ehrsequencing[notebook]'"


def required(name: str, *, what: str) -> Any:
    """A library of the extra `notebook`, imported.

    Raises:
        EhrseqError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        fix = _EXTRA if name.split(".")[0] in ("pandas", "matplotlib") else f"pip install {name}"
        raise EhrseqError(
            f"{what} need {name}, which is not installed", where="ehrsequencing", fix=fix
        ) from error


def checked_frames(frames: str) -> str:
    """The name of a kind of frame.

    Raises:
        EhrseqError: There is none of that name.
    """
    if frames not in get_args(Frames):
        raise EhrseqError(
            f"{frames!r} is no kind of frame", where="frames", fix="use pandas, polars or arrow"
        )
    return frames


def is_path(data: object) -> bool:
    """Whether data is named by its path."""
    return isinstance(data, str | os.PathLike)


def kind_of(data: object, default: str) -> str:
    """The kind of a frame; `default` for a path or another source of Arrow data."""
    library = type(data).__module__.split(".")[0]
    return {"pandas": "pandas", "polars": "polars", "pyarrow": "arrow"}.get(library, default)


def as_table(frame: Any) -> pa.Table:
    """A frame of any kind as an Arrow table.

    Raises:
        EhrseqError: It is no frame.
    """
    if isinstance(frame, pa.Table):
        return frame
    if kind_of(frame, "") == "pandas":
        return pa.Table.from_pandas(frame, preserve_index=False)
    if kind_of(frame, "") == "polars" and hasattr(frame, "collect"):
        frame = frame.collect()
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.table(frame)
    fix = "give a path, or a frame of pandas, polars or Arrow"
    raise EhrseqError(f"{type(frame).__name__} is no frame", where="data", fix=fix)


def as_frame(columns: Mapping[str, Any] | pa.Table, frames: str) -> Any:
    """Columns as a frame of a kind.

    >>> as_frame({"subject_id": [1, 2], "risk": [0.1, 0.2]}, "arrow").column_names
    ['subject_id', 'risk']
    """
    table = (
        columns
        if isinstance(columns, pa.Table)
        else pa.table({k: _array(v) for k, v in columns.items()})
    )
    if checked_frames(frames) == "arrow":
        return table
    if frames == "polars":
        return required("polars", what="frames of polars").from_arrow(table)
    required("pandas", what="tables")
    return table.to_pandas()


def times(moments_us: Any) -> pa.Array:
    """Microseconds since 1970 as times; the smallest integer, which stands for no time, as null."""
    moments = np.asarray(moments_us, dtype=np.int64)
    return pa.array(moments, pa.timestamp("us"), mask=moments == np.iinfo(np.int64).min)


def _array(values: Any) -> Any:
    return values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)


@contextmanager
def meds_folder(data: Any) -> Iterator[Path]:
    """The folder of MEDS data: its path as it is, or a frame of MEDS rows written to a temporary folder.

    The temporary folder can be read by its owner only, and is gone after the block.

    Raises:
        EhrseqError: It is neither, or a frame lacks a column.
    """
    if is_path(data):
        yield Path(data)
        return
    table = as_table(data)
    missing = [name for name in MEDS_COLUMNS[:3] if name not in table.column_names]
    if missing:
        what = f"the frame has no column {missing[0]!r}"
        raise EhrseqError(
            what, where="data", fix=f"give it the columns of MEDS: {', '.join(MEDS_COLUMNS)}"
        )
    with private_folder() as place:
        folder = place / "frame"
        (folder / "data").mkdir(parents=True)
        pq.write_table(table.replace_schema_metadata(), folder / "data" / "0.parquet")
        write_json(folder / "metadata" / "dataset.json", {"dataset_name": "frame"})
        yield folder
