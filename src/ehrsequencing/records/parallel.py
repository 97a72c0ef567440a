"""Where the work of `prepare` is done: in this process, in several, or on a Dask cluster; joblib spreads it.

Results come in the order of their items, so any number of processes makes the same bytes.
"""

import itertools
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import joblib
import pyarrow as pa
import pyarrow.parquet as pq
from joblib.externals.loky.process_executor import BrokenProcessPool

from ehrsequencing.core.errors import EhrseqError, install

PROCESSES = "processes"
_ROWS_PER_PROCESS = 10_000_000  # with fewer, a process costs more than it saves (docs/scale.md)
_CALLS_AT_ONCE = 16  # per process: their results may wait in memory together
_WAIT_SECONDS = 20  # for the scheduler of a cluster to answer


def count_rows(shards: Sequence[Path]) -> int:
    """Rows in all files together, as their footers say."""
    return sum(pq.read_metadata(path).num_rows for path in shards)


@contextmanager
def joblib_backend(engine: str, processes: int | None, shards: Sequence[Path]) -> Iterator[int]:
    """Choose the backend of joblib; yields how many calls may run at once, 1: all in this process.

    Args:
        engine: `processes`, or `dask://HOST:PORT`.
        processes: How many; None lets a backend that the caller chose (`joblib.parallel_config`)
            decide, else the rows.
        shards: The files to spread.

    Raises:
        EhrseqError: There is no such engine, its package is not installed, or no cluster answers.
    """
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # a process imports nothing of this folder
    if engine != PROCESSES:
        with _dask_client(engine) as client, joblib.parallel_config("dask", client=client):
            yield max(2, joblib.effective_n_jobs(-1))  # one core of a cluster is not this process
    elif processes is None and joblib.effective_n_jobs(None) > 1:
        yield joblib.effective_n_jobs(None)
    else:
        wanted = processes or min(joblib.cpu_count(), 1 + count_rows(shards) // _ROWS_PER_PROCESS)
        count = min(wanted, len(shards))
        ending: dict[str, Any] = {"initializer": _end_with, "initargs": (os.getpid(),)}
        with joblib.parallel_config("loky", n_jobs=count, inner_max_num_threads=1, **ending):
            yield count


def _dask_client(engine: str) -> Any:
    if (match := re.fullmatch(r"dask://(\S+)", engine)) is None:
        raise EhrseqError(
            f"{engine!r} is no engine", where="--engine", fix="use processes or dask://HOST:PORT"
        )
    try:
        from distributed import Client
    except ImportError as error:
        raise EhrseqError(
            "needs distributed", where="--engine dask", fix=install("dask")
        ) from error
    connect: Callable[..., Any] = Client
    try:
        return connect(f"tcp://{match[1]}", timeout=_WAIT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise EhrseqError(
            "no scheduler answers",
            where=f"--engine {engine}",
            fix="check the address, and that the scheduler runs the same package versions",
        ) from error


def call_in_order(
    work: Any, method: str, items: Iterable[tuple[Any, ...]], *, jobs: int
) -> Iterator[Any]:
    """Call a method of `work` for each item; results come in the items' order.

    Args:
        work: Has a `key`, since a process keeps the last work, and the `folder` of the results.
        method: Its name.
        items: The arguments of each call.
        jobs: How many calls may run at once; 1: in this process.

    Raises:
        EhrseqError: What a call raises, or a process was killed.
    """
    if jobs == 1:
        yield from (getattr(work, method)(*item) for item in items)
        return
    remaining = iter(items)
    try:
        while block := list(itertools.islice(remaining, _CALLS_AT_ONCE * jobs)):
            calls = (joblib.delayed(_call)(work, method, item) for item in block)
            results = joblib.Parallel(n_jobs=jobs, return_as="generator", batch_size=1)(calls)
            try:
                for result in results:
                    if isinstance(result, EhrseqError):
                        raise result
                    yield result
            finally:
                with warnings.catch_warnings():  # joblib tells of calls that it cancels
                    warnings.simplefilter("ignore", UserWarning)
                    results.close()
    except BrokenProcessPool as error:
        raise EhrseqError(
            "a process was killed during its work",
            where="prepare",
            fix="if memory ran out, use fewer cores (taskset -c 0 ehrseq prepare …): each has a process",
        ) from error


_last: Any = None  # of a worker process: what it has read and looked up stays


def _call(work: Any, method: str, item: tuple[Any, ...]) -> Any:
    """Runs in a worker. An error is returned: raised, the first in time would end the work, not the first in order."""
    global _last
    pa.set_cpu_count(1)  # the processes share the cores already
    if _last is None or _last.key != work.key:
        _last = work
    if not work.folder.is_dir():
        raise EhrseqError(
            "a machine of the cluster does not see the output folder",
            where="--engine",
            fix="name an --out on a file system that all machines of the cluster share",
        )
    try:
        return getattr(_last, method)(*item)
    except EhrseqError as error:
        return error


def _end_with(parent: int) -> None:
    """Make a worker end when its parent has: a command that was killed leaves no process with patients in memory."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
