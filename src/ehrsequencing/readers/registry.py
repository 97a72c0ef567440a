"""The source formats of `ehrseq import`, and the set-up that all imports share.

A format is one module in this folder. It has a function that reads a source and adds rows to a MEDS writer; the
decorator `reader` registers it as a command of `ehrseq import` and makes it callable as `import_NAME(source, out)`.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from zoneinfo import ZoneInfo

import pyarrow as pa

from ehrsequencing.config import ImportConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import refuse_overlap
from ehrsequencing.core.outputs import IMPORTED, complete_folder, write_manifest
from ehrsequencing.readers.cells import Block, count_dates, date_order
from ehrsequencing.readers.import_report import ImportReport, TableCounts
from ehrsequencing.readers.meds_writer import MedsWriter
from ehrsequencing.readers.table_files import SourceTable

__all__ = ["Import", "reader"]

Progress = Callable[[int, int], None]


class Import:
    """One import: its settings, its report (printed and saved at the end), and the writer of its output."""

    def __init__(
        self,
        format: str,
        out: Path,
        settings: ImportConfig,
        progress: Progress | None,
        *,
        overwrite: bool = False,
    ) -> None:
        self.settings, self.report = settings, ImportReport(format)
        self.zone = None if settings.time_zone is None else ZoneInfo(settings.time_zone)
        self._out, self._overwrite = out, overwrite
        self._progress, self._steps = progress, 1

    @contextmanager
    def writer(self, source: Path | None, *, encounter: pa.DataType) -> Iterator[MedsWriter]:
        """A writer whose data set appears at the output folder when the block succeeds; else nothing changes there.

        Args:
            source: The folder or file that is read; None for a server.
            encounter: Type of `encounter_id`.

        Raises:
            EhrseqError: The output folder holds something else, or overlaps the source; or no row is left, of a table
                or of all.
        """
        refuse_overlap(self._out, *([source] if source is not None else []))
        with complete_folder(self._out, IMPORTED, overwrite=self._overwrite) as folder:
            writer = MedsWriter(folder, self.report, encounter)
            writer.settings |= {
                name: getattr(self.settings, name) for name in ("known", "provisional")
            }
            if self.zone is not None:
                writer.settings["time_zone"] = str(self.zone)
            yield writer
            writer.finish()
            write_manifest(folder, {**IMPORTED.facts, "source": self.report.source})
        self._tick(self._steps)

    def tables(self, names: Sequence[str]) -> Iterator[TableCounts]:
        """The counts of each table, one after another; the reader reads the table in the body of its loop.

        Raises:
            EhrseqError: Every row of a table was lost, or every cell of a column that it needs.
        """
        for number in self.files(len(names)):
            counts = self.report.table(names[number])
            yield counts
            counts.check()

    def files(self, count: int) -> Iterator[int]:
        """The numbers of files or tables; each step of the loop is one of the progress bar."""
        self._steps = count + 1
        for number in range(count):
            yield number
            self._tick(number + 1)

    def survey(
        self,
        tables: Sequence[SourceTable],
        counts: TableCounts,
        dates: Sequence[str],
        look: Callable[[Block], None] = lambda block: None,
        others: Sequence[str] = (),
        *,
        decimal: str = ".",
        written: str | None = None,
    ) -> dict[str, str]:
        """A first pass over a table: count its lost lines, and find the order of dates in its columns of text.

        Args:
            tables: The table's files.
            counts: Its account.
            dates: Columns of dates.
            look: Looks at each block.
            others: Other columns that it looks at.
            decimal: Decimal mark of numbers that it looks at.
            written: The order of its dates, or how they are written, where that is known.

        Raises:
            EhrseqError: The dates of a column are ambiguous, or the table cannot be read.
        """
        orders: dict[str, Counter[str]] = {}
        for table in tables:
            texts = [name for name in dates if name.lower() in table.texts]
            columns = [*texts, *others]
            if not columns and table.lost_rows is not None:  # its rows are to be counted
                columns = [*table.names][:1]
            for block in table.blocks(columns):
                look(Block(block, TableCounts(counts.name, 0), decimal=decimal))
                for name in texts:
                    orders.setdefault(name, Counter()).update(count_dates(block[name]))
            if table.lost_rows is not None:
                lost, line = table.lost_rows()
                counts.lose_lines(table.file or "", lost, line)
                self.report.counts["malformed_line"] += lost
        where, setting = tables[0].where, written or self.settings.dates
        if setting is not None and "%" in setting:
            return dict.fromkeys(orders, setting)
        return {
            name: date_order(cells, setting, where=f"{where}, column {name}")
            for name, cells in orders.items()
        }

    def blocks(
        self,
        tables: Sequence[SourceTable],
        counts: TableCounts,
        columns: Sequence[str],
        dates: dict[str, str],
        *,
        decimal: str = ".",
    ) -> Iterator[Block]:
        """The rows of a table's files, block by block, with the account of their cells."""
        for table in tables:
            counts.parts.append((counts.rows_in, table.file))
            for rows in table.blocks(columns):
                yield Block(rows, counts, dates=dates, zone=self.zone, decimal=decimal)

    def _tick(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, self._steps)


@dataclass(frozen=True)
class Reader:
    """A source format."""

    name: str  # as in `ehrseq import NAME`
    help: str  # what the format is, for `--help`
    source: str  # what SOURCE may be, for `--help`
    read: Callable[[str, Import], None]  # reads SOURCE and writes its rows through an `Import`
    needs_map: bool = False  # whether the command has the option `--map`

    def __call__(
        self,
        source: str | Path,
        out: Path,
        *,
        settings: ImportConfig | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> ImportReport:
        """Import a source.

        Args:
            source: As `source` of the format says.
            out: Folder to make.
            settings: How to read the source, where the source does not tell.
            overwrite: Whether an earlier import there that nobody has changed is replaced.
            progress: Called with steps done and to do.

        Returns:
            What was read, fixed and written; also in `OUT/metadata/import_report.json`.

        Raises:
            EhrseqError: The source cannot be read, a column is missing or ambiguous, nothing is left of a table, or
                the disk refuses.
        """
        # who opens a pipe waits for ever; names of files are not said, for they may be a patient's
        for place, folders, files in os.walk(source):
            folders[:] = [name for name in folders if not name.startswith(".")]
            if not all(name.startswith(".") or Path(place, name).is_file() for name in files):
                raise EhrseqError(
                    "holds a pipe, a socket, a device or a link to nothing",
                    where=place,
                    fix="list it with ls -l, and remove what is no file or make it one",
                )
        job = Import(self.name, out, settings or ImportConfig(), progress, overwrite=overwrite)
        self.read(str(source), job)
        return job.report


_READERS: dict[str, Reader] = {}


def reader(
    name: str,
    *,
    help: str,
    source: str,
    needs_map: bool = False,
) -> Callable[[Callable[[str, Import], None]], Reader]:
    """Decorate the function of a format: register it, and make it a `Reader`; see there for the arguments.

    Raises:
        EhrseqError: Another function has this name.
    """

    def register(read: Callable[[str, Import], None]) -> Reader:
        taken = _READERS[name].read if name in _READERS else read
        if (taken.__module__, taken.__qualname__) != (read.__module__, read.__qualname__):
            raise EhrseqError(
                "is the name of another format",
                where=f"@reader({name!r})",
                fix="choose another name",
            )
        _READERS[name] = Reader(name, help, source, read, needs_map)
        return _READERS[name]

    return register


def all_readers() -> dict[str, Reader]:
    """Every source format by name: those of the modules in this folder, and those registered elsewhere."""
    for module in iter_modules([str(Path(__file__).parent)], "ehrsequencing.readers."):
        import_module(module.name)
    return dict(sorted(_READERS.items()))
