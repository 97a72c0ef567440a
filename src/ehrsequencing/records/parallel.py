"""Where the work of `prepare` is done: in this process, in several, or on a cluster.

The results are the same and come in the same order: other processes write plain arrays into files of the folder that is
being made, and the first process adds them up, or appends them to files, in order.
"""

import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from joblib.externals.loky import get_reusable_executor

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.process import keep_freed_memory
from ehrsequencing.records.engines import CallAll, Engine
from ehrsequencing.records.plain_results import read_result, write_result
from ehrsequencing.records.shard_work import KEPT, ShardWork

_ROWS_PER_PROCESS = 10_000_000  # with fewer, a process costs more than it saves (docs/scale.md)
_WAITING = 4  # results a process that may wait to be taken
_ON_CLUSTER = 64  # results of a cluster that may wait to be taken
_SHARDS_AT_ONCE = 8  # that one call of the first pass takes at most
# of the first pass at least, so that all processes end at about the same time
_CALLS_PER_PROCESS = 6
_TRIES = 3
_HERE = Engine()
_IDLE = 30  # seconds after which a process without work ends
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
Result = TypeVar("Result")


def count_rows(shards: Sequence[Path]) -> int:
    """Rows in all files together, as their footers say."""
    return sum(pq.read_metadata(path).num_rows for path in shards)


def count_processes(shards: Sequence[Path], processes: int | None) -> int:
    """How many processes to use: as many as asked for, or all cores where there is enough for each to do."""
    if processes is None:
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        processes = min(cores, 1 + count_rows(shards) // _ROWS_PER_PROCESS)
    elif processes < 1:
        raise EhrseqError(
            "at least one process is needed", where=f"processes={processes}", fix="leave it out"
        )
    return min(processes, len(shards))


class Workers:
    """Calls methods of `ShardWork` in other processes or on a cluster; with one process, in this one.

    Args:
        work: Whose methods are called. Each process gets it once, when it starts.
        processes: How many; of a cluster, how many calls wait there at once for each shard that is taken.
        engine: Where they run.
    """

    def __init__(self, work: ShardWork, processes: int, engine: Engine = _HERE) -> None:
        self.work, self.processes, self.engine = work, processes, engine

    @property
    def are_here(self) -> bool:
        """Whether the calls run in this process, one after another."""
        return self.processes == 1 and not self.engine.is_cluster

    def kept_path(self, number: int) -> Path:
        """Where the first pass keeps the rows of a shard."""
        return self.work.folder / KEPT / f"{number}.rows"

    def calls(self, shards: int) -> Iterator[slice]:
        """The shards of each call of the first pass: every process gets as many calls, of about as many shards.

        Samples are bounded, so that of several shards is hardly larger than that of one: fewer calls return less.
        """
        most = max(1, min(_SHARDS_AT_ONCE, shards // (_CALLS_PER_PROCESS * self.processes)))
        rounds = math.ceil(shards / (most * self.processes))
        bounds = np.linspace(0, shards, min(shards, rounds * self.processes) + 1).astype(int)
        return itertools.starmap(slice, itertools.pairwise(bounds.tolist()))

    def in_order(
        self,
        method: Callable[..., Result],
        items: Iterable[tuple[Any, ...]],
        *,
        mapped: bool = False,
    ) -> Iterator[Result]:
        """Call a method of `ShardWork` for each item; results come in the items' order.

        Args:
            method: Of `ShardWork`.
            items: The arguments of each call.
            mapped: Whether arrays may be read-only and lie in files (`read_result`), for results that are soon dropped.

        Raises:
            EhrseqError: What the first failing item raises, or a process was killed.
        """
        if self.are_here:
            yield from (method(self.work, *item) for item in items)
            return
        if self.engine.is_cluster:
            yield from self._on_cluster(method.__name__, iter(items))
            return
        with _killed():
            yield from self._in_processes(method.__name__, iter(items), mapped)

    @contextmanager
    def beside(self, method: Callable[..., None], *item: Any) -> Iterator[None]:
        """Call a method of `ShardWork` while the block runs, if there are processes here that can; else after it.

        Raises:
            EhrseqError: What the method raises, or its process was killed.
        """
        if self.processes == 1 or self.engine.is_cluster:
            yield
            method(self.work, *item)
            return
        with _killed():
            call = self._executor().submit(_call, method.__name__, item)
            try:
                yield
            finally:
                wait([call])
            if (error := call.result()) is not None:
                raise error

    def _executor(self) -> Any:
        """The processes, started where they are not running."""
        return get_reusable_executor(
            self.processes,
            timeout=_IDLE,
            initializer=_start,
            initargs=(self.work,),
            env=_ONE_THREAD,
        )

    def _in_processes(
        self, method: str, items: Iterator[tuple[Any, ...]], mapped: bool
    ) -> Iterator[Any]:
        """Results come through files: through a pipe, both processes would copy them, and wait for each other."""
        folder = self.work.folder / KEPT
        folder.mkdir(exist_ok=True)
        executor = self._executor()
        waiting = deque[tuple[Path, Future[EhrseqError | None]]]()
        try:
            for number, item in enumerate(items):
                path = folder / f"{number}.result"
                waiting.append((path, executor.submit(_call, method, item, path)))
                if len(waiting) >= _WAITING * self.processes:
                    yield _taken(*waiting.popleft(), mapped)
            while waiting:
                yield _taken(*waiting.popleft(), mapped)
        finally:
            # after an error: nobody writes there any more
            wait([call for _, call in waiting if not call.cancel()])

    def _on_cluster(self, method: str, items: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        """Results come through files here too: a cluster would hold those of a block in the memory of one process."""
        folder = self.work.folder / KEPT
        folder.mkdir(exist_ok=True)
        call = partial(_call_on, self.work, method)
        calls = ((item, folder / f"{method}-{number}.result") for number, item in enumerate(items))
        with self.engine.connected() as call_all:
            while block := list(itertools.islice(calls, _ON_CLUSTER)):
                errors = self._block(call_all, call, block)
                yield from (
                    _result(error, path) for error, (_, path) in zip(errors, block, strict=True)
                )

    def _block(
        self,
        call_all: CallAll,
        call: Callable[[Any], EhrseqError | None],
        block: Sequence[tuple[Any, Path]],
    ) -> list[EhrseqError | None]:
        """Some calls on the cluster, again where machines were lost in between: each writes the same files again."""
        for _ in range(_TRIES):
            try:
                return call_all(call, block)
            except Exception as error:  # each package has its own for workers that die
                last = error
        fix = "look at the log of the cluster's workers; --engine processes uses this machine"
        raise EhrseqError(
            "the cluster failed", where=f"--engine {self.engine.kind}", fix=fix
        ) from last


@contextmanager
def _killed() -> Iterator[None]:
    """A clear error where a process was killed."""
    try:
        yield
    except BrokenProcessPool as error:
        fix = "if memory ran out, let it use fewer cores (taskset -c 0 ehrseq prepare …): each has a process"
        raise EhrseqError(
            "a process was killed during its work", where="prepare", fix=fix
        ) from error


def _result(error: EhrseqError | None, path: Path, *, mapped: bool = False) -> Any:
    """The result of a call that has ended."""
    if error is not None:
        raise error
    result = read_result(path, mapped=mapped)
    path.unlink()
    return result


def _taken(path: Path, call: "Future[EhrseqError | None]", mapped: bool) -> Any:
    """The result of a call, when it is there."""
    return _result(call.result(), path, mapped=mapped)


_work: ShardWork  # of a worker process


def _start(work: ShardWork) -> None:
    """Runs first in a worker."""
    global _work
    _work = work
    pa.set_cpu_count(1)  # the processes share the cores already
    keep_freed_memory()


def _call_on(
    work: ShardWork, method: str, call: tuple[tuple[Any, ...], Path]
) -> EhrseqError | None:
    """Runs on a cluster, where a call may be repeated: it writes only files of its own, with the same bytes each time.

    Args:
        work: Whose method is called.
        method: Its name.
        call: Its arguments, and the file that gets its result.
    """
    item, path = call
    pa.set_cpu_count(1)
    if not work.folder.is_dir():
        fix = "name an --out on a file system that all machines of the cluster share"
        return EhrseqError(
            "a machine of the cluster does not see the output folder", where="--engine", fix=fix
        )
    # a late repetition must not empty what is being read
    part = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        write_result(getattr(work, method)(*item), part)
    except EhrseqError as error:
        return error
    part.replace(path)
    return None


def _call(method: str, item: tuple[Any, ...], path: Path | None = None) -> EhrseqError | None:
    """Runs in a worker, and writes the result to a file, if it is to have one.

    An error is returned, so that the first item's is raised, not the first in time.
    """
    try:
        result = getattr(_work, method)(*item)
        if path is not None:
            write_result(result, path)
    except EhrseqError as error:
        return error
    return None
