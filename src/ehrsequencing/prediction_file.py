"""Writes the file of predictions: one row per prediction time, cause and horizon, as Parquet or CSV."""

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from ehrsequencing.arrays import Floats32, Ints
from ehrsequencing.errors import EhrseqError
from ehrsequencing.output_kinds import PREDICTIONS, is_parquet_of, parquet_mark
from ehrsequencing.storage import atomic_path

SUFFIXES = (".parquet", ".csv", ".csv.gz")
_COLUMNS = pa.schema(
    [
        ("subject_id", pa.int64()),
        ("prediction_time", pa.timestamp("us")),
        ("cause", pa.string()),
        ("horizon_days", pa.float64()),
        ("risk", pa.float32()),
        ("start_days", pa.float64()),
    ],
    metadata=parquet_mark(PREDICTIONS),
)
BANDS = [("low", pa.float32()), ("high", pa.float32())]  # additional columns for an ensemble


@dataclass(frozen=True)
class Risks:
    """Predictions at n prediction times."""

    subject_id: Ints  # (n,)
    prediction_us: Ints  # (n,)
    risk: Floats32  # (n, causes, horizons)
    low: Floats32 | None = None  # as `risk`: lower end of the band over an ensemble's members; None for one model
    high: Floats32 | None = None  # the upper end

    def __len__(self) -> int:
        return len(self.subject_id)


def require_suffix(out: Path) -> None:
    """Refuse a file name whose ending is not that of a format for predictions."""
    if not out.name.endswith(SUFFIXES):
        fix = f"end its name with {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise EhrseqError("does not end in a format for predictions", where=str(out), fix=fix)


def is_predictions(path: Path) -> bool:
    """Whether `ehrseq predict` wrote a file: it is Parquet of that kind, or CSV with the same header."""
    if path.name.endswith(".parquet"):
        return is_parquet_of(path, PREDICTIONS)
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
            header = file.readline(1000).decode().strip().replace('"', "").split(",")
    except (OSError, EOFError, UnicodeDecodeError):
        return False
    return header in (_COLUMNS.names, [*_COLUMNS.names, *(name for name, _ in BANDS)])


class PredictionWriter:
    """Appends predictions to an open file of Parquet or CSV; arguments as of `prediction_file`."""

    def __init__(
        self,
        file: Any,
        schema: pa.Schema,
        *,
        causes: Sequence[str],
        horizons_days: Sequence[float | None],
        start_days: float,
    ) -> None:
        self._file, self.schema = file, schema
        self.causes, self.horizons_days, self.start_days = list(causes), list(horizons_days), start_days

    def write(self, risks: Risks) -> None:
        """Append predictions."""
        n, n_horizons = len(risks), len(self.horizons_days)
        repeat = len(self.causes) * n_horizons
        columns = [
            pa.array(np.repeat(risks.subject_id, repeat)),
            pa.array(np.repeat(risks.prediction_us, repeat)).cast(pa.timestamp("us")),
            pa.array(np.tile(np.repeat(np.array(self.causes, dtype=object), n_horizons), n).tolist(), pa.string()),
            pa.array(self.horizons_days * (len(self.causes) * n), pa.float64()),
            pa.array(risks.risk.reshape(-1)),
            pa.array(np.full(n * repeat, self.start_days)),
        ]
        columns += [pa.array(band.reshape(-1)) for band in (risks.low, risks.high) if band is not None]
        self._file.write_table(pa.Table.from_arrays(columns, schema=self.schema))


@contextmanager
def prediction_file(
    out: Path, *, causes: Sequence[str], horizons_days: Sequence[float | None], start_days: float, banded: bool
) -> Iterator[PredictionWriter]:
    """Open a file of predictions for writing. It appears when it is complete, and not at all after an error.

    Args:
        out: Ends with `.parquet`, `.csv` or `.csv.gz`.
        causes: Names of the causes.
        horizons_days: None for a horizon that is not a number of days (the `visit` head).
        start_days: Risks are conditional on no event for this long after the prediction time.
        banded: Whether the file has the columns `low` and `high`.
    """
    require_suffix(out)
    schema = pa.schema([*_COLUMNS, *BANDS], metadata=_COLUMNS.metadata) if banded else _COLUMNS
    with atomic_path(out) as temporary, _open(temporary, schema, out.name) as file:
        yield PredictionWriter(file, schema, causes=causes, horizons_days=horizons_days, start_days=start_days)


@contextmanager
def _open(path: Path, schema: pa.Schema, name: str) -> Iterator[Any]:
    if name.endswith(".parquet"):
        with pq.ParquetWriter(path, schema) as file:
            yield file
        return
    compression = "gzip" if name.endswith(".gz") else None
    with pa.output_stream(path, compression=compression) as stream, pc.CSVWriter(stream, schema) as file:
        yield file
