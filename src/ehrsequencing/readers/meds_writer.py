"""Write a reader's rows, which come in any order, as a MEDS data set, with bounded memory.

Rows are first spilled to buckets by split and hashed subject, so that a bucket holds all rows of its subjects and fits
in memory. Then each bucket is cleaned, sorted and written.
"""

import base64
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from meds import schema as meds

from ehrsequencing.config import SplitsConfig
from ehrsequencing.core.arrays import hash_u64
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import write_json
from ehrsequencing.readers.cleaning_rules import cleaned
from ehrsequencing.readers.import_report import ImportReport
from ehrsequencing.readers.rows import (
    UNUSABLE,
    CodeFacts,
    Role,
    conformed,
    encoded,
    rows_schema,
    taken,
)
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.meds import IMPORT_SETTINGS, SPLITS
from ehrsequencing.records.splits import hash_splits

BUCKETS = 64  # of each split
FLUSH_ROWS = 500_000  # rows held before they are spilled, and the least that a shard is cut from
REPORT = "import_report.json"
OPEN_YEAR = 2050  # an end before this year is never taken for "not ended yet"
# ends of stays on the last day of any: so many, and so many times those of a day before, are people still there
FEWEST_ENDS, MORE_ENDS, LATEST_DAYS = 5, 3, 60
YEAR_GAP = 10  # dates after so many years without a row are taken for wrong


class MedsWriter:
    """Takes a reader's rows, and writes the data set on `finish`. `Import.writer` opens and finishes it.

    Attributes:
        code_facts: Given the codes that were written, returns what is known of them, of their ancestors, and maybe of
            other codes, which are ignored. A reader that knows descriptions or parents sets it.
        settings: What `prepare` and `check` need not be told again: see `records/prepare.py`.
    """

    def __init__(self, folder: Path, report: ImportReport, encounter: pa.DataType) -> None:
        self.folder, self.report, self.schema = folder, report, rows_schema(encounter)
        self.code_facts: Callable[[set[str]], Mapping[str, CodeFacts]] = lambda seen: {}
        self.settings: dict[str, Any] = {}
        self._texts = pa.array([], pa.string())  # codes by their number in spilled rows
        self._code = self.schema.get_field_index("code")
        self._spilled = self.schema.set(self._code, pa.field("code", pa.int32()))
        self._spill = folder / "spill"
        self._spill.mkdir()
        (folder / "metadata").mkdir()
        self._waiting: list[pa.Table] = []
        self._bucket_rows: Counter[int] = Counter()
        self._open: dict[int, pa.RecordBatchFileWriter] = {}
        self._days: Counter[int] = Counter()  # rows by day since 1970, without births and deaths
        self._stops: Counter[int] = Counter()  # the same, of ends
        self._ends: Counter[int] = Counter()  # the same, of ends of hospital stays of acute care

    def add(self, rows: pa.Table) -> None:
        """Take rows with the columns of `rows_schema`; an absent column is null."""
        rows = conformed(rows, self.schema, self.report)
        is_event = ~np.isin(
            rows["role"].to_numpy(), (UNUSABLE, Role.PERSON, Role.STATIC, Role.DEATH)
        )
        times = rows["time"].filter(pa.array(is_event))
        for days, moments in (
            (self._days, times),
            (self._stops, rows["end"].filter(pa.array(is_event))),
            (self._ends, rows["end"].filter(pc.fill_null(rows["inpatient"], False))),
        ):
            counts = pc.value_counts(pc.divide(moments.drop_null().cast(pa.int64()), DAY_US))
            for day in counts.to_pylist():
                days[day["values"]] += day["counts"]
        coded = encoded(rows["code"])
        texts = coded.dictionary.cast(pa.string())
        new = texts.filter(pc.invert(pc.is_in(texts, self._texts))).drop_null()
        self._texts = pa.concat_arrays([self._texts, pc.unique(new)])
        numbers = pc.index_in(texts, self._texts).take(coded.indices)
        self._waiting.append(rows.set_column(self._code, self._spilled.field(self._code), numbers))
        if sum(map(len, self._waiting)) >= FLUSH_ROWS:
            self._flush()

    def _flush(self) -> None:
        """Spill the waiting rows to the buckets of their subjects."""
        rows = pa.concat_tables([self._spilled.empty_table(), *self._waiting])
        self._waiting = []
        subject = pc.fill_null(rows["subject_id"], 0).to_numpy()
        bucket = (hash_u64(subject.view(np.uint64)) % np.uint64(BUCKETS)).astype(np.uint8)
        bucket += hash_splits(subject, SplitsConfig()).astype(np.uint8) * BUCKETS
        n = len(SPLITS) * BUCKETS
        bucket[rows["role"].to_numpy() == UNUSABLE] = n
        order = np.argsort(bucket, kind="stable")  # of one byte: a radix sort
        edges = np.searchsorted(bucket[order], np.arange(n + 1))
        columns = [taken(column.combine_chunks(), order[: edges[-1]]) for column in rows.columns]
        rows = pa.table(columns, schema=self._spilled)
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
        report, open_after_us = self.report, _open_after_us(self._days)
        every = self._days.keys() | self._stops.keys()
        inside = [day for day in every if open_after_us and day * DAY_US < open_after_us]
        drawn_us = max(inside, default=0) * DAY_US if inside else None
        last, before = max(self._ends, default=0), sorted(self._ends)[-LATEST_DAYS - 1 : -1]
        ended, usual = self._ends[last], max((self._ends[day] for day in before), default=0)
        if before and ended >= max(FEWEST_ENDS, MORE_ENDS * usual):
            report.cautions.append(
                f"{ended:,} hospital stays end on the day of the last end, far more than on any day before: if the "
                "records were drawn on that day, these people were still there; say so in the source, as discharged_to"
            )
        splits: list[pa.Table] = []
        seen: set[str] = set()
        for split, rows in self._groups():
            made = cleaned(rows, report, open_after_us=open_after_us, drawn_us=drawn_us)
            subjects = pc.unique(made["subject_id"])
            if not len(subjects):
                continue
            seen.update(made["code"].chunk(0).dictionary.to_pylist())
            if made["encounter_id"].null_count < len(made):
                self.settings["visits"] = {"by": "encounter", "column": "encounter_id"}
            splits.append(pa.table({"subject_id": subjects, "split": [split] * len(subjects)}))
            _write_data(self.folder / "data" / split / f"{report.shards}.parquet", made)
            report.shards += 1
            report.rows += len(made)
            report.subjects += len(subjects)
        shutil.rmtree(self._spill)
        for table_counts in report.tables.values():
            table_counts.check()
        if not splits:
            raise EhrseqError(
                "no subject with a timed row is left",
                where=f"the {report.source} source",
                fix="check that the tables of persons and events belong together",
            )
        report.codes = len(seen)
        table = pa.concat_tables(splits).sort_by("subject_id")
        table = meds.SubjectSplitSchema.align(table)
        pq.write_table(table, self.folder / meds.subject_splits_filepath)
        self._write_codes(seen)
        card = {
            "dataset_name": f"imported from {self.report.source}",
            "etl_name": f"ehrseq import {self.report.source}",
            "etl_version": version("ehrsequencing"),
            "meds_version": version("meds"),
            "other_extension_columns": ["encounter_id", "date_only"],
            IMPORT_SETTINGS: self.settings,
        }
        write_json(self.folder / meds.dataset_metadata_filepath, card)
        write_json(self.folder / "metadata" / REPORT, self.report.as_json())

    def _groups(self) -> Iterator[tuple[str, pa.Table]]:
        """Splits and rows with their codes: those of neighbouring buckets, joined until they are enough for a shard."""
        for place, split in enumerate(SPLITS):
            last = (place + 1) * BUCKETS - 1
            group: list[int] = []
            for number in range(place * BUCKETS, last + 1):
                group += [number] if number in self._open else []
                is_enough = sum(self._bucket_rows[n] for n in group) >= FLUSH_ROWS
                if group and (is_enough or number == last):
                    parts = []
                    for member in group:
                        with pa.OSFile(str(self._spill / f"{member}.arrow")) as file:
                            parts.append(pa.ipc.open_stream(file).read_all())
                    rows = pa.concat_tables(parts)
                    numbers = rows["code"].combine_chunks()
                    codes = pa.DictionaryArray.from_arrays(numbers, self._texts)
                    yield split, rows.set_column(self._code, "code", codes)
                    group = []

    def _write_codes(self, seen: set[str]) -> None:
        """Write the codes that were written, and their ancestors, with what is known of them."""
        facts = self.code_facts(seen)
        codes, queue = set[str](), list(seen)
        while queue:
            code = queue.pop()
            if code not in codes:
                codes.add(code)
                queue.extend(up for up in facts.get(code, CodeFacts()).parents if up in facts)
        known = [facts.get(code, CodeFacts()) for code in sorted(codes)]
        columns = {
            "code": sorted(codes),
            "description": [fact.description for fact in known],
            "parent_codes": [fact.parents or None for fact in known],
        }
        table = pa.table(columns, schema=meds.CodeMetadataSchema.schema())
        pq.write_table(table, self.folder / meds.code_metadata_filepath)


def _open_after_us(days: Mapping[int, int]) -> int | None:
    """The time after which an end means "not ended yet", as 2099-12-31 does; None without any row.

    It is the end of the year after the data's last year, and not before `OPEN_YEAR`, so that dates shifted into the
    future (MIMIC's) keep their ends. The last year is the last one with starts or events that is reached from
    the year with the most rows without a gap of more than `YEAR_GAP` years, so that a single wrong date does not count.
    """
    years = Counter[int]()
    for day, rows in days.items():
        years[np.datetime64(day, "D").astype("datetime64[Y]").astype(int) + 1970] += rows
    if not years:
        return None
    last = max(years, key=lambda year: (years[year], year))
    for year in sorted(years):
        if last < year <= last + YEAR_GAP:
            last = year
    first_day = np.datetime64(str(max(last + 2, OPEN_YEAR)), "D")
    return int(first_day.astype("datetime64[us]").astype(np.int64)) - 1


def _write_data(path: Path, rows: pa.Table) -> None:
    """Write MEDS rows whose codes are of a dictionary. Parquet takes it as it is, which saves half of the time.

    The file says that its codes are plain text, as MEDS wants them.
    """
    place, code = rows.schema.get_field_index("code"), rows["code"]
    none = rows.slice(0, 0).set_column(place, "code", pa.array([], pa.string()))
    plain = meds.DataSchema.align(none).schema
    rows = rows.select(plain.names)
    rows = rows.cast(plain.set(plain.get_field_index("code"), pa.field("code", code.type)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(
        path,
        rows.schema,
        use_dictionary=["subject_id", "code", "text_value"],  # whose values recur within a file
        write_statistics=["subject_id", "time"],  # which queries choose rows by
        store_schema=False,
    ) as writer:
        writer.add_key_value_metadata({b"ARROW:schema": base64.b64encode(plain.serialize())})
        writer.write_table(rows)
