"""A MEDS data set of strangers → a plain copy, made by a child process with limits of memory and time (`limited.py`).

The child decodes some rows at a time, checks them, and writes the columns that ehrseq uses as plain Parquet of its own.
The command then reads the copy only. Types stay: what is wrong with the rows is found there, by the usual checks.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ehrsequencing.config import DataConfig, DialectConfig, VisitsConfig, parse_json
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import private_folder, refuse_overlap, write_bytes, write_json
from ehrsequencing.core.limited import Limits, in_limited_child
from ehrsequencing.core.outputs import PLAIN_COPY, complete_folder, write_manifest
from ehrsequencing.records.meds import find_shards, listed
from ehrsequencing.records.parquet_rows import damaged

_METADATA = {
    "codes.parquet": ("code", "description", "parent_codes"),
    "subject_splits.parquet": ("subject_id", "split"),
}
_CARD = "dataset.json"
_CARD_BYTES = 1 << 20
_BATCH_ROWS = 1 << 16
_DAMAGED = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowIndexError,
    pa.ArrowKeyError,
    pa.ArrowTypeError,
)


@contextmanager
def plain_copy(
    data: Path,
    *,
    facts: DataConfig | None = None,
    visits: VisitsConfig | None = None,
    keep: Path | None = None,
    limits: Limits | None = None,
) -> Iterator[Path]:
    """Yield the folder of a plain copy of a data set.

    Args:
        data: A MEDS data set.
        facts: Names of its columns.
        visits: The column of encounters, where visits need it.
        keep: Folder to make; default: a temporary folder, which is removed at the end.
        limits: Of the child process.

    Raises:
        EhrseqError: The data set is none, or is damaged, or is larger than the limits when it is decoded.
    """
    limits = limits or Limits()
    dialect = (facts.dialect if facts is not None else None) or DialectConfig()
    columns = [dialect.subject_id, dialect.time, dialect.code, dialect.numeric_value]
    columns += [visits.column] if visits is not None and visits.by == "encounter" else []
    if keep is not None:
        refuse_overlap(keep, data)
        with complete_folder(keep, PLAIN_COPY) as folder:
            _copy(data, folder, columns, limits)
            write_manifest(folder, {**PLAIN_COPY.facts, "source": data.name})
        yield keep
        return
    with private_folder() as place:
        folder = place / data.resolve().name
        folder.mkdir()
        _copy(data, folder, columns, limits)
        yield folder


def _copy(data: Path, out: Path, columns: Sequence[str], limits: Limits) -> None:
    """Copy every file that ehrseq reads, each in a child of its own."""
    shards = find_shards(data)  # looks at names only
    work = [(path, list(columns)) for path in shards]
    work += [
        (path, list(_METADATA[path.name]))
        for path in listed(data / "metadata")
        if path.name in _METADATA
    ]
    files = [[str(path), str(out / path.relative_to(data)), wanted] for path, wanted in work]
    in_limited_child(
        "rewrite", {"files": files, "limits": asdict(limits)}, where=str(data), limits=limits
    )
    _copy_card(data / "metadata" / _CARD, out / "metadata" / _CARD)


def _copy_card(card: Path, out: Path) -> None:
    """The name of the data set, without what else its file says."""
    if not card.is_file():
        return
    if card.stat().st_size > _CARD_BYTES:
        raise EhrseqError("is too large", where=str(card), fix=f"it may have {_CARD_BYTES:,} bytes")
    try:
        told = parse_json(card.read_bytes())
    except ValueError as error:
        raise EhrseqError("is no JSON", where=str(card), fix="correct or remove it") from error
    name = told.get("dataset_name") if isinstance(told, dict) else None
    write_json(out, {"dataset_name": name} if isinstance(name, str) else {})


def rewrite(*, files: Sequence[tuple[str, str, list[str]]], limits: dict[str, Any]) -> int:
    """In the child: decode Parquet files and write some columns of them anew.

    Args:
        files: Of each file its path, that of the copy, and the columns to keep where they are.
        limits: Those of `Limits`.

    Returns:
        The number of rows.

    Raises:
        EhrseqError: A file is damaged, or larger than the limit when it is decoded.
    """
    pa.set_cpu_count(1)
    return sum(
        _rewrite(Path(source), Path(out), columns, Limits(**limits))
        for source, out, columns in files
    )


def _rewrite(source: Path, out: Path, columns: Sequence[str], limits: Limits) -> int:
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False) as file:
            kept = pa.schema(
                [_plain(field) for field in file.schema_arrow if field.name in columns]
            )
            if len(set(kept.names)) < len(kept.names):
                raise EhrseqError(
                    "has two columns of one name",
                    where=str(source),
                    fix="rename or remove one of them",
                )
            sink = pa.BufferOutputStream()
            with pq.ParquetWriter(sink, kept) as writer:
                rows = _rewrite_rows(file, writer, kept, source, limits)
        write_bytes(out, sink.getvalue().to_pybytes())
    except pa.ArrowMemoryError as error:
        raise MemoryError from error
    except _DAMAGED as error:
        raise damaged(source) from error
    return rows


def _rewrite_rows(
    file: pq.ParquetFile, writer: pq.ParquetWriter, kept: pa.Schema, source: Path, limits: Limits
) -> int:
    rows, size = 0, 0
    for batch in file.iter_batches(_BATCH_ROWS, columns=kept.names, use_threads=False):
        batch.validate(full=True)
        plain = pa.record_batch(
            [_cast(batch.column(field.name), field) for field in kept], schema=kept
        )
        size += plain.nbytes
        rows += len(plain)
        if size > limits.shard_bytes:
            what = (
                f"its rows take more than {limits.shard_bytes / 2**30:g} GiB when they are decoded"
            )
            fix = (
                "do not trust it; if you do, split it into smaller files, or leave out --untrusted"
            )
            raise EhrseqError(what, where=str(source), fix=fix)
        writer.write_batch(plain)
    return rows


def _plain(field: pa.Field) -> pa.Field:
    """A column without dictionary and without metadata."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return pa.field(field.name, kind)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    return (
        column.dictionary_decode()
        if pa.types.is_dictionary(column.type)
        else column.cast(field.type)
    )
