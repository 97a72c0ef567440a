"""`ehrseq prepare --worker i/n`: any number of processes, on any machines, that make one prepared set together.

Each worker does what nobody has done or claimed, and then puts the results together if nobody else does that already.
It keeps nothing of its own: a worker that died is simply started again.
"""

import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, refuse_overlap, sha256
from ehrsequencing.core.outputs import PREPARED, complete_folder, refuse_existing
from ehrsequencing.core.owners import this_process
from ehrsequencing.core.version import __version__
from ehrsequencing.records.engines import PROCESSES
from ehrsequencing.records.parallel import Workers
from ehrsequencing.records.prepared import SECTIONS, PrepareJob
from ehrsequencing.records.shard_work import ShardWork
from ehrsequencing.records.shared_work import SharedWork
from ehrsequencing.records.survey import Progress

_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0  # seconds between two looks at what others do
_ASSEMBLY = "assembly"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Share:
    """Worker `number` of `total`: where it begins, so that workers seldom want the same piece."""

    number: int
    total: int

    @classmethod
    def of(cls, text: str) -> "Share":
        """Read i/n.

        >>> Share.of("2/8")
        Share(number=2, total=8)

        Raises:
            EhrseqError: It is not written so, or i is not from 1 to n.
        """
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            fix = "write i/n with i from 1 to n, as --worker 1/8"
            raise EhrseqError(f"{text!r} is no worker", where="--worker", fix=fix)
        return cls(int(match[1]), int(match[2]))

    def order(self, pieces: int) -> list[int]:
        """All pieces, this worker's own first."""
        first = (self.number - 1) * pieces // self.total
        return [*range(first, pieces), *range(first)]


def share_of(worker: str, engine: str) -> Share:
    """The share of `--worker`.

    Raises:
        EhrseqError: It is not i/n, or an engine is named, too.
    """
    if engine != PROCESSES:
        fix = "leave one of them out: each worker is one process"
        raise EhrseqError("cannot go with --engine", where="--worker", fix=fix)
    return Share.of(worker)


class SharedWorkers(Workers):
    """Does the pieces of work that no other worker has done, and takes the results of the others."""

    def __init__(self, work: ShardWork, shared: SharedWork, share: Share) -> None:
        super().__init__(work, 1)
        self.shared, self.share, self._passes = shared, share, 0

    @property
    def are_here(self) -> bool:
        """False: even one worker alone goes by the results in the shared folder."""
        return False

    def kept_path(self, number: int) -> Path:
        """Where the first pass keeps the rows of a shard: each worker has names of its own."""
        return self.shared.folder / "rows" / f"{self._passes}-{number}-{this_process()}.rows"

    def calls(self, shards: int) -> Iterator[slice]:
        """One for each shard: the pieces must be the same for all workers, however many they are."""
        return (slice(number, number + 1) for number in range(shards))

    def in_order(
        self,
        method: Callable[..., Result],
        items: Iterable[tuple[Any, ...]],
        *,
        mapped: bool = False,
    ) -> Iterator[Result]:
        """Call a method of `ShardWork` for each item that has no result, then yield all results in order."""
        for piece in self.help(method, items):
            yield self.shared.load(piece)

    def help(
        self,
        method: Callable[..., Any],
        items: Iterable[tuple[Any, ...]],
        tick: Callable[[], None] = lambda: None,
    ) -> list[str]:
        """Work until all items have a result; returns their names. `tick` is called for each of them."""
        todo = list(items)
        pieces = [f"{self._passes}-{method.__name__}-{number}" for number in range(len(todo))]
        self._passes += 1
        left, wait = self.share.order(len(todo)), _FIRST_WAIT
        while left:
            missing = [
                number for number in left if not self._done(pieces[number], method, todo[number])
            ]
            if len(missing) < len(left):
                wait = _FIRST_WAIT
            elif missing:
                time.sleep(wait)  # others work on them, or have died, which shows at the next look
                wait = min(2 * wait, _LONGEST_WAIT)
            for _ in range(len(left) - len(missing)):
                tick()
            left = missing
        return pieces

    def _done(self, piece: str, method: Callable[..., Any], item: tuple[Any, ...]) -> bool:
        """Whether a piece is done, after doing it if nobody else does."""
        if self.shared.has(piece):
            return True
        with self.shared.claim(piece) as is_mine:
            if is_mine and not self.shared.has(piece):
                self.shared.save(piece, method(self.work, *item))
        return is_mine


def prepare_as_worker(
    data: Path,
    out: Path,
    share: Share,
    *,
    study: StudyConfig,
    tasks: Sequence[TaskConfig],
    progress: Progress | None = None,
) -> bool:
    """Do a part of `prepare`, together with others; the result is the same, byte for byte, as that of one process.

    Args:
        data: Folder of the data set.
        out: Folder to make, on a file system that all workers share. OUT.work, beside it, holds the unfinished work.
        share: Which worker this is.
        study: As of `prepare`, the same for all workers.
        tasks: The same.
        progress: As of `prepare`.

    Returns:
        Whether this worker has put the set together; False if it was complete already, or another one does it.

    Raises:
        EhrseqError: As `prepare`; or OUT.work holds work on other data or settings.
    """
    out = out.resolve()  # workers may have other working folders
    refuse_overlap(out, data)
    refuse_existing(out, PREPARED)
    job = PrepareJob(data, study, tasks, progress)
    shared = SharedWork(out, _identity(job))
    with shared.unless_done():
        if not shared.is_done:
            with tempfile.TemporaryDirectory(dir=shared.folder, prefix="worker-") as own:
                workers = SharedWorkers(job.work(Path(own)), shared, share)
                workers.help(ShardWork.encode, job.items(job.fit(Path(own), workers)), job.tick)
            return _put_together(shared, share, data, out, study, tasks)
    return False


def _put_together(
    shared: SharedWork,
    share: Share,
    data: Path,
    out: Path,
    study: StudyConfig,
    tasks: Sequence[TaskConfig],
) -> bool:
    """Make the set of the results, unless another worker does or has done it."""
    with shared.claim(_ASSEMBLY) as is_mine:
        if not is_mine or shared.is_done:
            return False
        job = PrepareJob(data, study, tasks)
        with complete_folder(out, PREPARED) as folder:
            workers = SharedWorkers(job.work(folder), shared, share)
            job.write(folder, workers, job.fit(folder, workers))
        shared.finish()
        return True


def _identity(job: PrepareJob) -> str:
    """Digest of what goes in; shards are known by size and time of their last change: hashing would read them whole."""
    metadata = [path for path in sorted((job.data / "metadata").glob("*")) if path.is_file()]
    indexes = [Path(task.index.file) for task in job.tasks if task.index.file is not None]
    shards = [
        (str(path.resolve()), found.st_size, found.st_mtime_ns)
        for path in job.reader.shards
        for found in [path.stat()]
    ]
    settings = [
        job.study.model_dump(mode="json", include=SECTIONS),
        [t.model_dump(mode="json") for t in job.tasks],
    ]
    return digest(
        [
            __version__,
            settings,
            shards,
            [(str(path), sha256(path)) for path in (*metadata, *indexes)],
        ]
    )
