"""Ways to spoil a clean MEDS data set, and commands that must never show a patient: for `test_bad_inputs.py`."""

import datetime as dt
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from typer.testing import Result

from helpers import command_line
from helpers.meds import DAY_US, Row, record, us, write_meds

FIRST_ID, START = 912_000_100, us("2019-03-17")
SHARD = "data/train/0.parquet"  # subjects 0 to 19, of whom every third dies
SPLIT_FILE = "metadata/subject_splits.parquet"
VALUE, TEXT, RARE = 713.25, "Mr Secret", "RARE//Q7J"
CANARIES = ("9120001", "2019-", str(START), "713.25", TEXT, RARE)  # ids, dates, a value, a note, a code of one subject
TASK = "name: t\nindex: {first_visit: true}\noutcome: {death: MEDS_DEATH}\nhorizons: [10d]\n"
TINY = (
    "model.dim=16",
    "model.heads=2",
    "model.layers=1",
    "training.epochs=1",
    "training.min_steps=2",
    "training.blend=false",
    "training.distillation=0",
)


def clean_rows(n: int = 30) -> list[Row]:
    text = f"- SEX//F, -25000 MEDS_BIRTH, 0 A, 3 LAB//X={VALUE}, 9 B, 20 C"
    rows = [record(FIRST_ID + s, text + (", 30 MEDS_DEATH" if s % 3 == 0 else ""), start=START) for s in range(n)]
    return [*itertools.chain(*rows), Row(FIRST_ID + 1, START + 9 * DAY_US, RARE)]


def write_clean(folder: Path) -> Path:
    splits = {FIRST_ID + s: "train" if s < 20 else "tuning" if s < 25 else "held_out" for s in range(30)}
    return write_meds(folder, clean_rows(), splits=splits)


def ehrseq(*arguments: object) -> Result:
    """Run a command. Whatever it does, it shows no traceback, no patient and leaves no temporary file."""
    result = command_line.ehrseq(*arguments)
    assert result.exit_code in (0, 1, 2), result.stderr  # 3 is an error that nobody expected
    for canary in CANARIES:
        assert canary not in result.output, canary
    return result


def done(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.output


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("ehrseq: ")]
    return line


# ---- how a clean data set is spoiled ------------------------------------------------------------------------------

Change = Callable[[Path], None]


def edit(change: Callable[[pa.Table], pa.Table], file: str = SHARD, **options: Any) -> Change:
    def spoil(data: Path) -> None:
        pq.write_table(change(pq.read_table(data / file, partitioning=None)), data / file, **options)

    return spoil


def column(name: str, make: Callable[[pa.ChunkedArray], Any], file: str = SHARD) -> Change:
    return edit(lambda t: t.set_column(t.column_names.index(name), name, make(t[name])), file)


def every_shard(*changes: Change) -> Change:
    """Apply changes of `SHARD` to each shard in turn."""

    def spoil(data: Path) -> None:
        keep = data / "kept.parquet"
        for split in ("tuning", "held_out"):
            shutil.move(data / SHARD, keep)
            shutil.move(data / f"data/{split}/0.parquet", data / SHARD)
            for change in changes:
                change(data)
            shutil.move(data / SHARD, data / f"data/{split}/0.parquet")
            shutil.move(keep, data / SHARD)
        for change in changes:
            change(data)

    return spoil


def cell(name: str, row: int, value: object) -> Change:
    def change(old: pa.ChunkedArray) -> pa.Array:
        if isinstance(value, int):  # beyond what Python's datetime can hold
            return pa.array([value if n == row else x for n, x in enumerate(old.cast(pa.int64()).to_pylist())]).cast(
                old.type
            )
        return pa.array([value if n == row else x for n, x in enumerate(old.to_pylist())], old.type)

    return column(name, change)


def insert(*rows: tuple[int, dt.datetime | None, str] | tuple[int, dt.datetime | None, str, float]) -> Change:
    """Add rows (number of the subject, time, code, value) where MEDS wants them."""

    def change(table: pa.Table) -> pa.Table:
        new = [
            {"subject_id": FIRST_ID + s, "time": time, "code": code, "numeric_value": value[0] if value else None}
            for s, time, code, *value in rows
        ]
        everything = table.to_pylist() + new
        everything.sort(key=lambda r: (r["subject_id"], r["time"] is not None, r["time"] or dt.datetime.min))
        return pa.Table.from_pylist(everything, schema=table.schema)

    return edit(change)


def only(keep: Callable[[dict[str, Any]], bool]) -> Change:
    return edit(lambda t: pa.Table.from_pylist([r for r in t.to_pylist() if keep(r)], schema=t.schema))


def new_code(code: str) -> Change:
    """Every B becomes another code."""
    return column("code", lambda c: pa.array([code if x == "B" else x for x in c.to_pylist()], c.type))


def day(n: float) -> dt.datetime:
    return dt.datetime(2019, 3, 17) + dt.timedelta(days=n)


def together(*changes: Change) -> Change:
    def spoil(data: Path) -> None:
        for change in changes:
            change(data)

    return spoil


def move_half_of_a_record(data: Path) -> None:
    table = pq.read_table(data / SHARD, partitioning=None)
    pq.write_table(table.slice(0, len(table) - 2), data / SHARD)
    pq.write_table(table.slice(len(table) - 2), data / "data/train/1.parquet")


def damage(change: Callable[[bytes], bytes]) -> Change:
    def spoil(data: Path) -> None:
        (data / SHARD).write_bytes(change((data / SHARD).read_bytes()))

    return spoil


def link_out(data: Path) -> None:
    outside = data.parent / "outside.parquet"
    shutil.move(data / SHARD, outside)
    (data / SHARD).symlink_to(outside)


def link_folder_out(data: Path) -> None:
    shutil.move(data / "data/train", data.parent / "train")
    (data / "data/train").symlink_to(data.parent / "train")


def broken_link(place: str) -> Change:
    def spoil(data: Path) -> None:
        path = data / place
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.symlink_to("nowhere")

    return spoil


def file_in_place(place: str) -> Change:
    def spoil(data: Path) -> None:
        shutil.rmtree(data / place)
        (data / place).write_bytes(b"PAR1")

    return spoil


def nothing(data: Path) -> None:
    """Leave the data as it is."""


def one_subject(data: Path) -> None:
    for split in ("tuning", "held_out"):
        shutil.rmtree(data / "data" / split)
    only(lambda r: r["subject_id"] == FIRST_ID)(data)
    edit(lambda t: t.slice(0, 1), SPLIT_FILE)(data)
