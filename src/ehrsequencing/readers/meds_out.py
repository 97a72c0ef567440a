"""Rows of any reader → a MEDS data set on disk, with bounded memory.

Rows may come in any order. They are spilled to buckets by hashed subject, so that a bucket holds its subjects whole and
fits in memory; then each bucket is settled, sorted, and written under the split of its subjects.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from meds import schema as meds

from ehrsequencing.config import SplitsConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.readers.account import Account, among, distinct
from ehrsequencing.readers.rows import RULES, Counts, Progress, Role, clean_codes, rows_schema
from ehrsequencing.readers.settle import role_mask, settle
from ehrsequencing.records.events import hash_u64
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.splits import hash_splits
from ehrsequencing.storage import IMPORTED, complete_folder, refuse_overlap, write_json, write_manifest

BUCKETS = 128
FLUSH_ROWS = 500_000  # rows held before they are spilled, and the least that a shard is cut from
REPORT = "import_report.json"
OPEN_YEAR = 2050  # ends before it are never open
YEAR_GAP = 10  # years without a row that part wrong dates from the data


@dataclass(frozen=True)
class CodeFacts:
    """What `codes.parquet` tells of a code."""

    description: str | None = None
    parents: tuple[str, ...] = ()


@dataclass
class ImportReport:
    """What an import read, fixed and wrote; no patient's value.

    Attributes:
        source: Kind of the source: omop or synthea.
        tables: Rows read of each table.
        missing: Known tables that the source lacks.
        notes: What else the analyst should know.
        cautions: What the analyst has to look at before going on, besides rows that were lost.
        counts: How often each rule of `RULES` was applied.
        account: Rows in, rows out and rows dropped of each table.
        rows, subjects, codes, shards: What was written.
    """

    source: str
    tables: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counter)
    account: Account = field(default_factory=Account)
    rows: int = 0
    subjects: int = 0
    codes: int = 0
    shards: int = 0

    def as_json(self) -> dict[str, Any]:
        """The report for `metadata/import_report.json`."""
        rules = {name: {"rows": n, "rule": RULES[name]} for name, n in sorted(self.counts.items()) if n}
        written = {"subjects": self.subjects, "rows": self.rows, "codes": self.codes, "shards": self.shards}
        read = {"source": self.source, "tables": self.tables, "missing": self.missing}
        rows = {name: table.as_json() for name, table in self.account.tables.items()}
        told = {"rules": rules, "notes": self.notes, "warnings": self.warnings()}
        return read | {"rows": rows, "written": written} | told

    def warnings(self) -> list[str]:
        """What the analyst has to look at before going on."""
        return self.cautions + [line for table in self.account.tables.values() for line in table.warnings()]

    def lines(self) -> list[str]:
        """The report for a terminal."""
        read = ", ".join(f"{name} {rows:,}" for name, rows in self.tables.items())
        out = [f"read: {read}"]
        out += [f"not there: {', '.join(self.missing)}"] if self.missing else []
        out += [line for table in self.account.tables.values() for line in table.lines()]
        out += [f"rule: {n:,} {RULES[name]}" for name, n in sorted(self.counts.items()) if n]
        out += [f"note: {note}" for note in self.notes]
        return [*out, f"wrote {self.rows:,} rows, {self.subjects:,} subjects, {self.codes:,} codes"]


class MedsWriter:
    """Takes a reader's rows, and makes the data set of them on `finish`. Open it with `meds_writer`.

    Args:
        folder: Folder to fill, empty.
        report: Counted up.
        encounter: Type of the encounter's name.
    """

    def __init__(self, folder: Path, report: ImportReport, encounter: pa.DataType) -> None:
        self.folder, self.report, self.schema = folder, report, rows_schema(encounter)
        self._spill = folder / "spill"
        self._spill.mkdir()
        self._waiting: list[pa.Table] = []
        self._bucket_rows = np.zeros(BUCKETS, dtype=np.int64)
        self._open: dict[int, pa.RecordBatchFileWriter] = {}
        self._years: Counter[int] = Counter()  # rows by the year of their time, but for births

    def add(self, rows: pa.Table) -> None:
        """Take rows with the columns of `rows_schema`; columns that are absent are null."""
        columns = [
            rows[f.name].cast(f.type, safe=False) if f.name in rows.column_names else pa.nulls(len(rows), f.type)
            for f in self.schema
        ]
        self._waiting.append(self._usable(pa.table(columns, schema=self.schema)))
        if sum(map(len, self._waiting)) >= FLUSH_ROWS:
            self._flush()

    def _usable(self, rows: pa.Table) -> pa.Table:
        """Without rows that cannot be placed: no subject, no code, no time."""
        counts = self.report.counts
        clean = clean_codes(rows["code"])
        counts["fixed_code"] += pc.sum(pc.not_equal(clean, rows["code"])).as_py() or 0
        rows = rows.set_column(rows.schema.get_field_index("code"), "code", clean)
        self._count_years(rows)
        needs_code = ~role_mask(rows, Role.OBSERVED, Role.PERSON)
        needs_time = ~role_mask(rows, Role.PERSON, Role.STATIC)
        bare = np.asarray(pc.fill_null(pc.equal(rows["code"], ""), True))
        left, source = np.ones(len(rows), dtype=bool), rows["source"].to_numpy()
        for name, bad in (
            ("no_person", np.asarray(rows["subject_id"].is_null())),
            ("no_code", bare & needs_code),
            ("no_time", np.asarray(rows["time"].is_null()) & needs_time),
        ):
            lost = left & bad
            counts[name] += int(lost.sum())
            left &= ~bad
            if lost.any():  # a source row that made several rows is lost with the last of them
                self.report.account.drop(name, source[lost & ~among(source, distinct(source[left]))])
        return rows if left.all() else rows.filter(pa.array(left))

    def _count_years(self, rows: pa.Table) -> None:
        times = rows["time"].filter(pa.array(~role_mask(rows, Role.PERSON, Role.STATIC))).drop_null()
        if len(times):
            years = times.to_numpy().astype("datetime64[Y]").astype(np.int64) + 1970
            found = np.bincount(years - years.min())
            self._years.update({int(years.min()) + i: int(found[i]) for i in np.flatnonzero(found).tolist()})

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting = []
        subject = rows["subject_id"].to_numpy()
        bucket = (hash_u64(subject.view(np.uint64)) % np.uint64(BUCKETS)).astype(np.int64)
        order = np.argsort(bucket, kind="stable")
        rows, edges = rows.take(pa.array(order)), np.searchsorted(bucket[order], np.arange(BUCKETS + 1))
        for number in np.flatnonzero(np.diff(edges)).tolist():
            part = rows.slice(edges[number], edges[number + 1] - edges[number])
            if number not in self._open:
                self._open[number] = pa.ipc.new_stream(str(self._spill / f"{number}.arrow"), self.schema)
            self._open[number].write_table(part)
            self._bucket_rows[number] += len(part)

    def finish(self, facts: Callable[[set[str]], Mapping[str, CodeFacts]], progress: Progress | None = None) -> None:
        """Settle and write the data, then the metadata.

        Args:
            facts: Given the codes that were written, tells what is known of them and of their ancestors.
            progress: Called with buckets done and to do.

        Raises:
            EhrseqError: Nobody is left, or nothing of a table that is not empty.
        """
        self._flush()
        for writer in self._open.values():
            writer.close()
        seen: set[str] = set()
        splits: list[pa.Table] = []
        account, open_after_us = self.report.account, _open_after_us(self._years)
        for shard, group in enumerate(self._groups()):
            rows = pa.concat_tables([self._read(number) for number in group])
            made = settle(rows, self.report.counts, account, open_after_us=open_after_us)
            seen.update(pc.unique(made["code"]).to_pylist())
            splits.append(self._write_shard(made, shard))
            if progress is not None:
                progress(max(group) + 1, BUCKETS)
        shutil.rmtree(self._spill)
        for lost in account.tables.values():
            lost.check()
        self.report.subjects = sum(map(len, splits))
        if not self.report.subjects:
            fix = "check that the tables of persons and events belong together"
            raise EhrseqError("no subject with a timed row is left", where=f"the {self.report.source} source", fix=fix)
        table = pa.concat_tables(splits).sort_by("subject_id")
        _write(self.folder / meds.subject_splits_filepath, meds.SubjectSplitSchema.align(table))
        self._write_codes(facts(seen), seen)
        self._write_card()

    def _groups(self) -> Iterator[list[int]]:
        """Neighbouring buckets, put together until they hold enough rows for a shard."""
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

    def _write_shard(self, made: pa.Table, shard: int) -> pa.Table:
        """Write settled rows under their splits; the split of each subject."""
        ids = np.unique(made["subject_id"].to_numpy())
        split, row_split = (hash_splits(x, SplitsConfig()) for x in (ids, made["subject_id"].to_numpy()))
        for number, name in enumerate(SPLITS):
            part = made.filter(pa.array(row_split == number))
            if len(part):
                _write(self.folder / "data" / name / f"{shard}.parquet", meds.DataSchema.align(part))
                self.report.shards += 1
        self.report.rows += len(made)
        return pa.table({"subject_id": ids, "split": pa.array(SPLITS).take(pa.array(split))})

    def _write_codes(self, facts: Mapping[str, CodeFacts], seen: set[str]) -> None:
        codes = sorted({*facts, *seen})
        known = [facts.get(code, CodeFacts()) for code in codes]
        columns = {
            "code": codes,
            "description": [fact.description for fact in known],
            "parent_codes": [list(fact.parents) or None for fact in known],
        }
        _write(self.folder / meds.code_metadata_filepath, pa.table(columns, schema=meds.CodeMetadataSchema.schema()))
        self.report.codes = len(seen)

    def _write_card(self) -> None:
        card = {
            "dataset_name": f"imported from {self.report.source}",
            "etl_name": f"ehrseq import {self.report.source}",
            "etl_version": version("ehrsequencing"),
            "meds_version": version("meds"),
            "other_extension_columns": ["encounter_id"],
        }
        meds.DatasetMetadataSchema.validate(card)
        write_json(self.folder / meds.dataset_metadata_filepath, card)
        write_json(self.folder / "metadata" / REPORT, self.report.as_json())


def _open_after_us(years: Mapping[int, int]) -> int | None:
    """The moment after which an end says that there is none yet, as 2099-12-31 does.

    It lies at the end of the year that follows the data's last, and not before `OPEN_YEAR`: dates that were shifted
    into the future, as MIMIC's are, keep their ends. The last year is that of starts, events and deaths, reached from
    the year with the most rows without a gap of more than `YEAR_GAP`, so that a single wrong date does not move it.
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


@contextmanager
def meds_writer(
    out: Path, report: ImportReport, source: Path | None, *, encounter: pa.DataType
) -> Iterator[MedsWriter]:
    """A writer whose data set stands at `out` when the block succeeds; else `out` stays as it was.

    Raises:
        EhrseqError: `out` holds something else, or overlaps the source (a folder or a file; None for a server).
    """
    refuse_overlap(out, *([source] if source is not None else []))
    with complete_folder(out, IMPORTED) as folder:
        writer = MedsWriter(folder, report, encounter)
        yield writer
        write_manifest(folder, {**IMPORTED.facts, "source": report.source})


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
