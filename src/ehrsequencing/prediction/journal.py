"""The journal of a list: what was predicted each night, kept until the outcomes are known (docs/production.md).

A folder with one Parquet file a night, which is added and never changed. A row is a prediction, journalled once:

    person            HMAC-SHA256 of the subject's id with the owner's key, its first 24 digits
    prediction_time   and index_time, as in the file of risks
    known_time        the data's end on that night: from then on the prediction counts
    hazard            (causes · bins) per day, of the grid in the file's metadata

The key lies outside the folder, and only its owner may read it. Without it nobody is found again.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Floats32, Ints, hash_u64
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    atomic_path,
    disk_errors,
    locked,
    write_bytes,
)
from ehrsequencing.core.outputs import JOURNAL
from ehrsequencing.prediction.prediction_file import Risks, with_notes
from ehrsequencing.prediction.run import Run

ID_DIGITS = 24
_PERSON = pa.binary(ID_DIGITS)
_TIMES = ("prediction_time", "index_time", "known_time")
_NOTES = ("key", "known", "run", "edges")  # of a night's file
_WAIT = 600.0  # seconds for another writer
Persons = NDArray[np.bytes_]
Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Night:
    """A file of the journal: when it was written, by which run, and the grid of its hazards."""

    path: Path
    known_us: int
    run: str  # its fingerprint
    edges_days: tuple[float, ...]


@dataclass
class Journal:
    """A journal and its key.

    Args:
        folder: The journal; it need not be there yet.
        key_file: Default: the folder's name with `.key`, beside it. It is made where there is no journal yet.

    Raises:
        EhrseqError: The key is lost, wrong or readable by others, or lies in the folder.
    """

    folder: Path
    key_file: Path | str | os.PathLike[str] | None = None
    nights: list[Night] = field(init=False)

    def __post_init__(self) -> None:
        self.key_file = Path(self.key_file or self.folder.with_name(f"{self.folder.name}.key"))
        if Path(os.path.realpath(self.key_file)).is_relative_to(os.path.realpath(self.folder)):
            raise EhrseqError(
                "the key lies in the journal that it protects",
                where=str(self.key_file),
                fix="name a file outside it by --key",
            )
        paths = sorted(self.folder.glob("[0-9]*.parquet")) if self.folder.is_dir() else []
        self.key = _read_key(self.key_file, self.folder, is_new=not paths)
        self.nights = sorted(
            map(self._night, paths), key=lambda night: (night.known_us, night.path)
        )

    def _night(self, path: Path) -> Night:
        """The metadata of a file, which must be of this key."""
        try:
            notes = {k.decode(): v.decode() for k, v in pq.read_schema(path).metadata.items()}
            of = {name: notes[f"ehrsequencing.{name}"] for name in _NOTES}
            edges = tuple(map(float, of["edges"].split(",")))
            night = Night(path, int(of["known"]), of["run"], edges)
        except (OSError, pa.ArrowException, ValueError, KeyError, AttributeError) as error:
            raise EhrseqError(
                "is damaged, or no night of a journal",
                where=str(path),
                fix="restore it from a copy of the journal, or move it out of the folder",
            ) from error
        if not hmac.compare_digest(of["key"], self._mark):
            raise EhrseqError(
                "is not the key of this journal",
                where=str(self.key_file),
                fix="name the key that it was begun with by --key; a lost key means a new journal",
            )
        return night

    @property
    def _mark(self) -> str:
        return hmac.new(self.key, b"ehrsequencing journal", hashlib.sha256).hexdigest()[:32]

    def persons(self, subject_id: Ints) -> Persons:
        """(n,) what the journal calls each subject."""
        ids, place = np.unique(subject_id, return_inverse=True)
        called = [
            hmac.new(self.key, str(one).encode(), hashlib.sha256).hexdigest()[:ID_DIGITS]
            for one in ids.tolist()
        ]
        return np.array(called, dtype=f"S{ID_DIGITS}")[place]

    def rows(self, version: str, persons: Persons) -> dict[str, Any]:
        """The predictions of one version of a run for some persons, as arrays by column."""
        wanted = pa.array(persons.tolist(), _PERSON)
        tables = (pq.read_table(night.path) for night in self.nights if night.run == version)
        kept = [one.filter(pc.is_in(one["person"], value_set=wanted)) for one in tables]
        table = pa.concat_tables(kept).combine_chunks()
        width, hazard = (
            table.schema.field("hazard").type.list_size,
            table["hazard"].combine_chunks(),
        )
        return {
            **{name: table[name].cast(pa.int64()).to_numpy() for name in _TIMES},
            "person": _persons(table),
            "hazard": hazard.flatten().to_numpy().reshape(-1, width).astype(np.float64),
        }

    @contextmanager
    def writer(self, run: Run, end_us: int) -> Iterator[Callable[[Risks], None]]:
        """Add a night by what is yielded. Its file appears when everything is written, and not at all after an error.

        Raises:
            EhrseqError: The data ends before the newest night, or another process writes for too long.
        """
        with locked(self.folder, wait_seconds=_WAIT):
            self.__post_init__()  # another process may have added a night meanwhile
            if self.nights and end_us < self.nights[-1].known_us:
                raise EhrseqError(
                    "these records end before the newest night of the journal",
                    where=str(self.folder),
                    fix="predict for newer records, or leave out --journal; "
                    "dates that are shifted must be shifted alike every night",
                )
            edges_days = run.predictor.edges_days
            edges = ",".join(map(repr, map(float, edges_days)))
            values = (self._mark, str(end_us), run.fingerprint, edges)
            hazard = pa.list_(pa.float32(), len(run.task.causes) * (len(edges_days) + 1))
            times = [(name, pa.timestamp("us")) for name in _TIMES]
            schema = with_notes(
                pa.schema([("person", _PERSON), *times, ("hazard", hazard)]),
                dict(zip(_NOTES, values, strict=True)),
                kind=JOURNAL,
            )
            day = str(np.datetime64(end_us, "us").astype("datetime64[D]"))
            path = self.folder / f"{day}-{secrets.token_hex(4)}.parquet"
            # sorted hashes of the predictions that this version has journalled: 8 bytes each
            parts = [np.zeros(0, np.uint64)]
            for night in self.nights:
                if night.run == run.fingerprint:
                    kept = pq.read_table(night.path, columns=["person", "prediction_time"])
                    made_us = kept["prediction_time"].cast(pa.int64()).to_numpy()
                    parts.append(_hashes(_persons(kept), made_us))
            known = np.sort(np.concatenate(parts))
            with (
                atomic_path(path, owner_only=True) as temporary,
                pq.ParquetWriter(temporary, schema) as file,
            ):
                yield partial(self._add, file, schema, end_us, known)

    def _add(self, file: Any, schema: pa.Schema, end_us: int, known: Hashes, risks: Risks) -> None:
        """Append predictions, which hold hazards and indexes, to a night's file; those that are known are left out."""
        persons, made_us = self.persons(risks.subject_id), risks.prediction_us
        index_us, of_rows = cast(tuple[Ints, Floats32], (risks.index_us, risks.hazards))
        new = ~np.isin(_hashes(persons, made_us), known)
        times = (made_us, index_us, np.maximum(end_us, made_us))
        hazards, width = pa.array(of_rows[new].ravel()), schema.field("hazard").type.list_size
        columns = [
            pa.array(persons[new].tolist(), _PERSON),
            *(pa.array(one[new]).cast(pa.timestamp("us")) for one in times),
            pa.FixedSizeListArray.from_arrays(hazards, width),
        ]
        file.write_table(pa.Table.from_arrays(columns, schema=schema))


def _persons(table: pa.Table) -> Persons:
    return np.array(table["person"].to_pylist(), dtype=f"S{ID_DIGITS}")


def _hashes(persons: Persons, prediction_us: Ints) -> Hashes:
    """A number of 64 bits for each person and prediction time."""
    words = np.ascontiguousarray(persons).view(np.uint64).reshape(len(persons), ID_DIGITS // 8)
    return hash_u64(hash_u64(words[:, 0]) ^ words[:, 1] ^ hash_u64(prediction_us.view(np.uint64)))


def _read_key(path: Path, folder: Path, *, is_new: bool) -> bytes:
    """The key; a new one where there is no journal yet.

    Raises:
        EhrseqError: It is lost, readable by others, or no key.
    """
    if is_new:
        with locked(folder, wait_seconds=_WAIT):  # two writers make one key
            if not path.exists():
                write_bytes(path, secrets.token_hex(32).encode() + b"\n", owner_only=True)
    fix = "restore it, or begin a new journal: without its key nobody in this one is found again"
    if not path.is_file():
        raise EhrseqError("the key of the journal is not there", where=str(path), fix=fix)
    if path.stat().st_mode & 0o077:
        raise EhrseqError(
            "others may read the key of the journal", where=str(path), fix=f"chmod 600 {path}"
        )
    with disk_errors("cannot be read", path):
        text = path.read_bytes().strip()
    if len(text) != 64:
        raise EhrseqError("is no key of a journal", where=str(path), fix=fix)
    return text
