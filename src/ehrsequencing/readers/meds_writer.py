"""Write a reader's rows, which come in any order, as a MEDS data set, with bounded memory.

Rows are first spilled to buckets by hashed subject, so that a bucket holds all rows of its subjects and fits in memory.
Then each bucket is cleaned, sorted, and written to the splits of its subjects.
"""

import base64
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from meds import schema as meds

from ehrsequencing.config import SplitsConfig
from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import write_json
from ehrsequencing.readers.cleaning_rules import cleaned, role_mask, taken, usable_rows
from ehrsequencing.readers.code_numbers import CodeNumbers
from ehrsequencing.readers.import_report import ImportReport
from ehrsequencing.readers.moments import NO_TIME, micros
from ehrsequencing.readers.rows import Role, rows_schema
from ehrsequencing.records.events import DAY_US, hash_u64
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.splits import hash_splits

BUCKETS = 128
FLUSH_ROWS = 500_000  # rows held before they are spilled, and the least that a shard is cut from
REPORT = "import_report.json"
OPEN_YEAR = 2050  # an end before this year is never taken for "not ended yet"
YEAR_GAP = 10  # dates after so many years without a row are taken for wrong
_LAYOUT = {
    "use_dictionary": ["subject_id", "code", "text_value"],  # whose values recur within a file
    "write_statistics": ["subject_id", "time"],  # which queries choose rows by
    "store_schema": False,  # `_write_data` stores another
}


class CodeFacts(NamedTuple):
    """A code's entry in `codes.parquet`."""

    description: str | None = None
    parents: tuple[str, ...] = ()


class MedsWriter:
    """Takes a reader's rows, and writes the data set on `finish`. `Import.writer` opens and finishes it.

    Attributes:
        code_facts: Given the codes that were written, returns what is known of them, of their ancestors, and maybe of
            other codes, which are ignored. A reader that knows descriptions or parents sets it.
    """

    def __init__(self, folder: Path, report: ImportReport, encounter: pa.DataType) -> None:
        self.folder, self.report, self.schema = folder, report, rows_schema(encounter)
        self.code_facts: Callable[[set[str]], Mapping[str, CodeFacts]] = lambda seen: {}
        self._codes = CodeNumbers()
        self._spilled = pa.schema(
            [f.with_type(pa.int32()) if f.name == "code" else f for f in self.schema]
        )
        self._spill = folder / "spill"
        self._spill.mkdir()
        self._waiting: list[tuple[pa.Table, Bools]] = []  # rows, and which of them are usable
        self._bucket_rows = np.zeros(BUCKETS, dtype=np.int64)
        self._open: dict[int, pa.RecordBatchFileWriter] = {}
        self._years: Counter[int] = Counter()  # rows by year, without births and deaths

    def add(self, rows: pa.Table) -> None:
        """Take rows with the columns of `rows_schema`; an absent column is null."""
        rows, usable = usable_rows(rows, self.schema, self.report)
        self._count_years(rows, usable)
        place = rows.schema.get_field_index("code")
        rows = rows.set_column(place, self._spilled.field(place), self._codes.of(rows["code"]))
        self._waiting.append((rows, usable))
        if sum(len(rows) for rows, _ in self._waiting) >= FLUSH_ROWS:
            self._flush()

    def _count_years(self, rows: pa.Table, usable: Bools) -> None:
        time_us = micros(rows["time"])[
            usable & ~role_mask(rows, Role.PERSON, Role.STATIC, Role.DEATH)
        ]
        time_us = time_us[time_us != NO_TIME]
        if len(time_us):
            days = time_us // DAY_US
            first = int(days.min())
            found = np.bincount(days - first)
            met = np.flatnonzero(found)
            years = (met + first).astype("datetime64[D]").astype("datetime64[Y]").astype(
                np.int64
            ) + 1970
            for year, rows_of_day in zip(years.tolist(), found[met].tolist(), strict=True):
                self._years[year] += rows_of_day

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables([rows for rows, _ in self._waiting])
        usable = np.concatenate([usable for _, usable in self._waiting])
        self._waiting = []
        subject = pc.fill_null(rows["subject_id"], 0).to_numpy()
        bucket = (hash_u64(subject.view(np.uint64)) % np.uint64(BUCKETS)).astype(np.uint8)
        bucket[~usable] = BUCKETS
        order = np.argsort(bucket, kind="stable")  # of one byte: a radix sort
        edges = np.searchsorted(bucket[order], np.arange(BUCKETS + 1))
        order = order[: edges[-1]]
        rows = pa.table(
            [taken(column.combine_chunks(), order) for column in rows.columns], schema=self._spilled
        )
        for number in np.flatnonzero(np.diff(edges)).tolist():
            part = rows.slice(edges[number], edges[number + 1] - edges[number])
            if number not in self._open:
                self._open[number] = pa.ipc.new_stream(
                    str(self._spill / f"{number}.arrow"), self._spilled
                )
            self._open[number].write_table(part)
            self._bucket_rows[number] += len(part)

    def finish(self) -> None:
        """Clean and write the data, then the metadata.

        Raises:
            EhrseqError: No subject is left, or no row of a table that has rows.
        """
        self._flush()
        for writer in self._open.values():
            writer.close()
        seen: set[str] = set()
        splits: list[pa.Table] = []
        row_counts, open_after_us = self.report.row_counts, _open_after_us(self._years)
        codes = self._codes.texts
        for shard, group in enumerate(self._groups()):
            rows = self._with_codes(
                pa.concat_tables([self._read(number) for number in group]), codes
            )
            made = cleaned(
                rows, self.report.counts, row_counts, open_after_us=open_after_us, group=_split_of
            )
            seen.update(made["code"].chunk(0).dictionary.to_pylist())
            splits.append(self._write_shard(made, shard))
        shutil.rmtree(self._spill)
        for table_counts in row_counts.tables.values():
            table_counts.check()
        self.report.subjects = sum(map(len, splits))
        if not self.report.subjects:
            fix = "check that the tables of persons and events belong together"
            raise EhrseqError(
                "no subject with a timed row is left",
                where=f"the {self.report.source} source",
                fix=fix,
            )
        table = pa.concat_tables(splits).sort_by("subject_id")
        _write(self.folder / meds.subject_splits_filepath, meds.SubjectSplitSchema.align(table))
        self._write_codes(_with_ancestors(self.code_facts(seen), seen), seen)
        self._write_card()

    def _groups(self) -> Iterator[list[int]]:
        """Neighbouring buckets, joined until they hold enough rows for a shard."""
        group: list[int] = []
        for number in sorted(self._open):
            group.append(number)
            if self._bucket_rows[group].sum() >= FLUSH_ROWS:
                yield group
                group = []
        if group:
            yield group

    def _read(self, number: int) -> pa.Table:
        with pa.OSFile(str(self._spill / f"{number}.arrow")) as file:
            return pa.ipc.open_stream(file).read_all()

    def _with_codes(self, rows: pa.Table, codes: pa.Array) -> pa.Table:
        place = rows.schema.get_field_index("code")
        numbers = rows["code"].combine_chunks()
        return rows.set_column(place, "code", pa.DictionaryArray.from_arrays(numbers, codes))

    def _write_shard(self, made: pa.Table, shard: int) -> pa.Table:
        """Write cleaned rows, which come split by split, to their files; returns the split of each subject."""
        subject = made["subject_id"].to_numpy()
        first = np.flatnonzero(np.r_[True, subject[1:] != subject[:-1]][: len(subject)])
        ids = subject[first]
        split = _split_of(ids)
        edges = np.r_[first, len(subject)][np.searchsorted(split, np.arange(len(SPLITS) + 1))]
        for number, name in enumerate(SPLITS):
            part = made.slice(edges[number], edges[number + 1] - edges[number])
            if len(part):
                _write_data(self.folder / "data" / name / f"{shard}.parquet", part)
                self.report.shards += 1
        self.report.rows += len(made)
        return pa.table({"subject_id": ids, "split": pa.array(SPLITS).take(pa.array(split))})

    def _write_codes(self, facts: Mapping[str, CodeFacts], seen: set[str]) -> None:
        codes = sorted({*facts, *seen})
        nothing = CodeFacts()
        known = [facts.get(code, nothing) for code in codes]
        columns = {
            "code": codes,
            "description": [fact.description for fact in known],
            "parent_codes": [fact.parents or None for fact in known],
        }
        _write(
            self.folder / meds.code_metadata_filepath,
            pa.table(columns, schema=meds.CodeMetadataSchema.schema()),
        )
        self.report.codes = len(seen)

    def _write_card(self) -> None:
        card = {
            "dataset_name": f"imported from {self.report.source}",
            "etl_name": f"ehrseq import {self.report.source}",
            "etl_version": version("ehrsequencing"),
            "meds_version": version("meds"),
            "other_extension_columns": ["encounter_id", "date_only"],
        }
        meds.DatasetMetadataSchema.validate(card)
        write_json(self.folder / meds.dataset_metadata_filepath, card)
        write_json(self.folder / "metadata" / REPORT, self.report.as_json())


def _split_of(subject_id: Ints) -> Ints:
    """(n,) the number of each subject's split."""
    return hash_splits(subject_id, SplitsConfig()).astype(np.int64)


def _open_after_us(years: Mapping[int, int]) -> int | None:
    """The time after which an end means "not ended yet", as 2099-12-31 does; None without any row.

    It is the end of the year after the data's last year, and not before `OPEN_YEAR`, so that dates shifted into the
    future (MIMIC's) keep their ends. The last year is the last one with starts or events that is reached from
    the year with the most rows without a gap of more than `YEAR_GAP` years, so that a single wrong date does not count.
    """
    if not years:
        return None
    last = max(years, key=lambda year: (years[year], year))
    for year in sorted(year for year in years if year > last):
        if year - last > YEAR_GAP:
            break
        last = year
    first_day = np.datetime64(str(max(last + 2, OPEN_YEAR)), "D")
    return int(first_day.astype("datetime64[us]").astype(np.int64)) - 1


def _with_ancestors(facts: Mapping[str, CodeFacts], codes: set[str]) -> dict[str, CodeFacts]:
    """The facts of some codes and of all their ancestors."""
    out: dict[str, CodeFacts] = {}
    queue = list(codes)
    while queue:
        code = queue.pop()
        if code in facts and code not in out:
            out[code] = facts[code]
            queue.extend(facts[code].parents)
    return out


def _write_data(path: Path, rows: pa.Table) -> None:
    """Write MEDS rows whose codes are of a dictionary. Parquet takes it as it is, which saves half of the time.

    The file says that its codes are plain text, as MEDS wants them, and holds no code without a row.
    """
    code = rows["code"].combine_chunks()
    number = code.indices.to_numpy()
    used = np.flatnonzero(np.bincount(number, minlength=len(code.dictionary)))
    rank = np.zeros(len(code.dictionary), dtype=np.int32)
    rank[used] = np.arange(len(used))
    code = pa.DictionaryArray.from_arrays(
        pa.array(rank[number]), code.dictionary.take(pa.array(used))
    )
    place = rows.schema.get_field_index("code")
    plain = meds.DataSchema.align(
        rows.slice(0, 0).set_column(place, "code", pa.array([], pa.string()))
    ).schema
    rows = rows.set_column(place, "code", code).select(plain.names)
    rows = rows.cast(plain.set(plain.get_field_index("code"), pa.field("code", code.type)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, rows.schema, **_LAYOUT) as writer:
        writer.add_key_value_metadata({b"ARROW:schema": base64.b64encode(plain.serialize())})
        writer.write_table(rows)


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
