"""The file of predictions: one row per prediction time, cause and horizon, as Parquet or CSV. Written and read here."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.csv as pc
import pyarrow.parquet as pq

from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_unpacked
from ehrsequencing.core.outputs import (
    PREDICTIONS,
    Kind,
    of_another_version,
    output_file,
)
from ehrsequencing.core.version import __version__
from ehrsequencing.records.encoding import KINDS
from ehrsequencing.records.events import DAY_US

SUFFIXES = (".parquet", ".csv", ".csv.gz")
_COLUMNS = pa.schema(
    [
        ("subject_id", pa.int64()),
        ("prediction_time", pa.timestamp("us")),
        ("cause", pa.string()),
        ("horizon_days", pa.float64()),
        ("risk", pa.float32()),
        ("kind", pa.string()),  # of the prediction time, one of `moment.KINDS`
        ("index_time", pa.timestamp("us")),
        ("days_since_index", pa.float64()),
        ("start_days", pa.float64()),
    ],
)
_MOMENT = ("kind", "index_time", "days_since_index")


def require_suffix(
    out: Path, suffixes: tuple[str, ...] = SUFFIXES, *, what: str = "predictions"
) -> None:
    """Refuse a file name whose ending is not that of a format for predictions, or for something else."""
    if not out.name.endswith(suffixes):
        raise EhrseqError(
            f"does not end in a format for {what}",
            where=str(out),
            fix=f"end its name with {', '.join(suffixes[:-1])} or {suffixes[-1]}",
        )


def columns_of_moment(
    kind: Ints | None, index_us: Ints | None, prediction_us: Ints, now_us: int
) -> dict[str, pa.Array]:
    """What n prediction times are, as three columns: null where it is not known; `now_us` as of `prediction_file`."""
    columns = [pa.nulls(len(prediction_us)) for _ in _MOMENT]
    if kind is not None and index_us is not None:
        days = (now_us - index_us) / DAY_US
        columns = [pa.array(KINDS).take(pa.array(kind)), pa.array(index_us), pa.array(days)]
    return {n: c.cast(_COLUMNS.field(n).type) for n, c in zip(_MOMENT, columns, strict=True)}


FORMULA_START = r"[=+@\t\r-]"  # of a cell that a spreadsheet would run
BANDS = [("low", pa.float32()), ("high", pa.float32())]  # additional columns for an ensemble


@dataclass(frozen=True)
class Risks:
    """Predictions at n prediction times."""

    subject_id: Ints  # (n,)
    prediction_us: Ints  # (n,)
    risk: Floats32  # (n, causes, horizons)
    # as `risk`: lower end of the band over an ensemble's members; None for one model
    low: Floats32 | None = None
    high: Floats32 | None = None  # the upper end
    kind: Ints | None = None  # (n,) a place in `moment.KINDS`; None where it is not known
    index_us: Ints | None = None  # (n,)
    now_us: int | None = None  # the date that is asked about, else the data's end
    hazards: Floats32 | None = None  # (n, causes, bins) per day; where they are journalled


def without_formulas(text: pa.Array) -> pa.Array:
    """Texts of a CSV file, with a quote before what a spreadsheet would run as a formula."""
    return compute.replace_substring_regex(text, f"^({FORMULA_START})", r"'\1")


@dataclass
class PredictionWriter:
    """A file of predictions that is written.

    Attributes:
        causes: Names of the causes.
        horizons_days: None for a horizon that is not a number of days (the `visit` head).
        start_days: Risks are conditional on no event for this long after the prediction time.
        now_us: The moment until which `days_since_index` counts.
        is_banded: Whether the file has the columns `low` and `high`.
    """

    causes: Sequence[str]
    horizons_days: Sequence[float | None]
    start_days: float
    now_us: int
    is_banded: bool = False

    @contextmanager
    def opened(self, out: Path, made_by: Mapping[str, str], *, overwrite: bool) -> Iterator[None]:
        """Write to a file. It appears when it is complete, and not at all after an error.

        Args:
            out: Ends with `.parquet`, `.csv` or `.csv.gz`.
            made_by: What a Parquet file notes in its metadata, each under `ehrsequencing.NAME`.
            overwrite: As of `refuse_existing`.
        """
        require_suffix(out)
        columns = pa.schema([*_COLUMNS, *BANDS]) if self.is_banded else _COLUMNS
        self._schema = with_notes(columns, made_by)
        self._causes = pa.array(self.causes, pa.string())
        with ExitStack() as stack:
            path = stack.enter_context(output_file(out, PREDICTIONS, overwrite=overwrite))
            if out.name.endswith(".parquet"):
                writer = pq.ParquetWriter(path, self._schema)
            else:
                self._causes = without_formulas(self._causes)
                compression = "gzip" if out.name.endswith(".gz") else None
                stream = stack.enter_context(pa.output_stream(path, compression=compression))
                writer = pc.CSVWriter(stream, self._schema)
            self._file = stack.enter_context(writer)
            yield

    def write(self, risks: Risks) -> None:
        """Append predictions."""
        n, n_causes, n_horizons = risks.risk.shape
        times = (risks.subject_id, risks.prediction_us, risks.kind, risks.index_us)
        self.write_rows(
            [np.repeat(own, n_causes * n_horizons) for own in times if own is not None],
            np.tile(np.repeat(np.arange(n_causes), n_horizons), n),
            np.tile(np.arange(n_horizons), n * n_causes),
            risks.risk.reshape(-1),
            *(band.reshape(-1) for band in (risks.low, risks.high) if band is not None),
        )

    def write_rows(
        self,
        times: Sequence[Ints],
        cause: Ints,
        horizon: Ints,
        risk: Floats32,
        *bands: Floats32,
    ) -> None:
        """Append single risks; `cause` and `horizon` are places in `causes` and `horizons_days`.

        `times` are of each risk the subject's id, the prediction time and, where they are known, the place of its kind
        in `moment.KINDS` and its index.
        """
        subject_id, prediction_us, *known = times
        kind, index_us = known or (None, None)
        horizons = pa.array(self.horizons_days, pa.float64())
        columns = [
            pa.array(subject_id),
            pa.array(prediction_us).cast(pa.timestamp("us")),
            self._causes.take(pa.array(cause)),
            horizons.take(pa.array(horizon)),
            pa.array(risk.astype(np.float32)),
            *columns_of_moment(kind, index_us, prediction_us, self.now_us).values(),
            pa.array(np.full(len(risk), self.start_days)),
            *map(pa.array, bands),
        ]
        self._file.write_table(pa.Table.from_arrays(columns, schema=self._schema))


def with_notes(
    schema: pa.Schema, made_by: Mapping[str, str], *, kind: Kind = PREDICTIONS
) -> pa.Schema:
    """A schema whose metadata tells kind, version and what made the file, each under `ehrsequencing.NAME`."""
    notes = {"kind": kind.name, "version": __version__, **made_by}
    return schema.with_metadata({f"ehrsequencing.{name}": note for name, note in notes.items()})


@dataclass(frozen=True)
class RiskTable:
    """A file of predictions, as it was read: n rows in the file's order.

    Attributes:
        subject_id: (n,).
        prediction_us: (n,) microseconds since 1970.
        causes: Names of the causes, once each.
        cause: (n,) position in `causes`.
        horizon_days: (n,).
        risk: (n,) as in the file, whatever it says.
        start_days: Risks are given no event for so long; None where the file does not tell.
        made_from: Digest of the rows from which ehrseq predicted; None where the file does not tell.
    """

    subject_id: Ints
    prediction_us: Ints
    causes: list[str]
    cause: Ints
    horizon_days: Floats
    risk: Floats
    start_days: float | None
    made_from: str | None = None

    def __len__(self) -> int:
        return len(self.risk)


def read_predictions(path: Path) -> RiskTable:
    """Read a file of predictions that any model may have made.

    Args:
        path: Parquet, CSV or CSV.gz with the columns `subject_id`, `prediction_time`, `cause`, `horizon_days`, `risk`
            and, if it has it, `start_days`. Other columns are left alone.

    Raises:
        EhrseqError: It cannot be read, lacks a column, or a column has another type or empty cells.
    """
    require_suffix(path)
    table = _read(path)
    columns = {
        name: _column(
            table, name, _COLUMNS.field(name).type if name != "risk" else pa.float64(), path
        )
        for name in ("subject_id", "prediction_time", "cause", "horizon_days", "risk")
    }
    start = None
    if "start_days" in table.column_names:
        starts = compute.unique(_column(table, "start_days", pa.float64(), path)).to_pylist()
        if len(starts) > 1:
            raise EhrseqError(
                f"has {len(starts)} different start_days",
                where=str(path),
                fix="all risks must be given no event for the same time",
            )
        start = float(starts[0]) if starts else None
    names = columns["cause"].combine_chunks()
    if not path.name.endswith(".parquet"):
        names = compute.replace_substring_regex(names, f"^'({FORMULA_START})", r"\1")
    cause = names.dictionary_encode()
    return RiskTable(
        columns["subject_id"].to_numpy(),
        columns["prediction_time"].cast(pa.int64()).to_numpy(),
        cause.dictionary.to_pylist(),
        cause.indices.to_numpy().astype(np.int64),
        columns["horizon_days"].to_numpy(),
        columns["risk"].to_numpy(),
        start,
        (table.schema.metadata or {}).get(b"ehrsequencing.data", b"").decode(errors="replace")
        or None,
    )


def _read(path: Path) -> pa.Table:
    """The whole table; of CSV, columns of text that must be numbers are refused later, not by Arrow with the value."""
    try:
        if path.name.endswith(".parquet"):
            table = pq.read_table(path)
            version = (table.schema.metadata or {}).get(b"ehrsequencing.version", b"").decode()
            if version and version.partition(".")[0] != __version__.partition(".")[0]:
                raise of_another_version(version, path)
            return table
        return pc.read_csv(pa.BufferReader(read_unpacked(path)))
    except OSError as error:
        raise EhrseqError(
            "cannot be read", where=str(path), fix=error.strerror or "check the path"
        ) from error
    except pa.ArrowException as error:
        kind = "Parquet" if path.name.endswith(".parquet") else "CSV"
        raise EhrseqError(
            f"cannot be read as {kind}", where=str(path), fix="write the file again"
        ) from error


def _column(table: pa.Table, name: str, kind: pa.DataType, path: Path) -> pa.ChunkedArray:
    """A column as one type. No message repeats a value."""
    if table.column_names.count(name) != 1:
        what = (
            f"has no column {name!r}"
            if name not in table.column_names
            else f"has two columns {name!r}"
        )
        needed = "subject_id, prediction_time, cause, horizon_days and risk"
        raise EhrseqError(what, where=str(path), fix=f"it needs {needed}, once each")
    column = table[name]
    if column.null_count:
        why = "; the visit head predicts no risk in days" if name == "horizon_days" else ""
        raise EhrseqError(
            f"{column.null_count:,} rows have no {name}{why}",
            where=str(path),
            fix="fill them in, or leave these rows out",
        )
    if (
        pa.types.is_timestamp(kind)
        and pa.types.is_timestamp(column.type)
        and column.type.tz is not None
    ):
        raise EhrseqError(
            "prediction_time has a time zone, and the times of MEDS have none",
            where=str(path),
            fix="convert it to the clock of the records, and drop the zone",
        )
    try:
        return column.cast(kind, safe=not pa.types.is_timestamp(kind))
    except pa.ArrowException as error:
        raise EhrseqError(
            f"column {name!r} has type {column.type}, not {kind}", where=str(path), fix="convert it"
        ) from error
