"""Where the work on shards runs: processes of this machine, or a cluster of Dask, Ray or Spark.

Dask is called through joblib. Ray and Spark are called as they are: a task of Ray is done again when its worker dies,
which joblib's backend for Ray does not ask for, and the backend for Spark does not work.

A cluster needs a file system that all its machines see at the same paths, since shards are read and kept rows are
written where the work is done.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import joblib

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.ports import check_answer
from ehrsequencing.core.spark import spark_session

PROCESSES = "processes"
_LOCAL = "local"  # a cluster on this machine, for as long as it is needed
_WAIT_SECONDS = 20  # for the scheduler of a cluster to answer
_REPEATS = 3  # of a task of Ray whose worker died, as with Spark
_PATTERN = re.compile(r"(dask|ray|spark)://(\S+)")
_PACKAGES = {"dask": "distributed", "ray": "ray", "spark": "pyspark"}
# a function and items → results in their order
CallAll = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


@dataclass(frozen=True)
class Engine:
    """What runs the work on shards.

    Attributes:
        kind: `processes`, `dask`, `ray` or `spark`.
        address: Of the cluster's scheduler, as that package writes it; empty for processes.
    """

    kind: str = PROCESSES
    address: str = ""

    @classmethod
    def of(cls, text: str) -> "Engine":
        """Read `processes`, `KIND://HOST:PORT` for Dask, Ray and Spark, `ray://local`, or `spark://local`.

        >>> Engine.of("dask://10.0.0.7:8786")
        Engine(kind='dask', address='tcp://10.0.0.7:8786')

        Raises:
            EhrseqError: Anything else.
        """
        if text == PROCESSES:
            return cls()
        if (match := _PATTERN.fullmatch(text)) is None:
            fix = "use processes, dask://HOST:PORT, ray://HOST:PORT or spark://HOST:PORT"
            raise EhrseqError(f"{text!r} is no engine", where="--engine", fix=fix)
        kind, place = match.groups()
        return cls(kind, _address(kind, place))

    @property
    def is_cluster(self) -> bool:
        """Whether the work runs outside this process's own children."""
        return self.kind != PROCESSES

    @contextmanager
    def connected(self) -> Iterator[CallAll]:
        """A function that calls another one on the cluster, for each of some items.

        Raises:
            EhrseqError: The package is not installed, or the cluster does not answer.
        """
        with ExitStack() as stack:
            try:
                call_all = stack.enter_context(_CONNECT[self.kind](self.address))
            except ImportError as error:
                fix = f"pip install 'ehrsequencing[{self.kind}]'"
                raise EhrseqError(
                    f"needs {_PACKAGES[self.kind]}", where=f"--engine {self.kind}", fix=fix
                ) from error
            yield call_all

    def unreachable(self) -> EhrseqError:
        """The error of a cluster that does not answer."""
        fix = "check the address, and that the scheduler runs the same package versions"
        if self.kind == "ray":
            fix += "; a cluster with tokens needs RAY_AUTH_MODE=token and its token here, too"
        return EhrseqError(
            "no scheduler answers", where=f"--engine {self.kind}, {self.address}", fix=fix
        )


def _address(kind: str, place: str) -> str:
    """The address as the package writes it; `local` is a cluster on this machine."""
    if place == _LOCAL or kind == "spark":
        return place
    return f"tcp://{place}" if kind == "dask" else f"{kind}://{place}"


def _by_joblib(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return list(joblib.Parallel()(joblib.delayed(function)(item) for item in items))


@contextmanager
def _dask(address: str) -> Iterator[CallAll]:
    from distributed import Client

    try:
        connect: Callable[..., Any] = Client
        client = connect(address, timeout=_WAIT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise Engine("dask", address).unreachable() from error
    with client, joblib.parallel_config("dask", client=client, n_jobs=-1):
        yield _by_joblib


def _called(function: Callable[[Any], Any], item: Any) -> Any:
    return function(item)


@contextmanager
def _ray(address: str) -> Iterator[CallAll]:
    # a Ray of its own would report its use to its makers
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    def call_all(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        task, shared = ray.remote(max_retries=_REPEATS)(_called), ray.put(function)
        return list(ray.get([task.remote(shared, item) for item in items]))

    if ray.is_initialized():  # of whoever called us, in a notebook: it stays open
        yield call_all
        return
    try:
        _start_ray(address)
    except (ConnectionError, TimeoutError, RuntimeError) as error:
        raise Engine("ray", address).unreachable() from error
    try:
        yield call_all
    finally:
        ray.shutdown()


def _start_ray(address: str) -> None:
    """Start a Ray here, or connect to a cluster, with a second try: its proxy at times hangs at its first client."""
    import ray

    start = partial(ray.init, address, log_to_driver=False, logging_level="ERROR")
    if address == _LOCAL:
        start(include_dashboard=False)
        return
    check_answer(address.removeprefix("ray://"))
    with warnings.catch_warnings(action="ignore"):  # they say what the error says
        try:
            start()
        except ConnectionError:
            start()


@contextmanager
def _spark(address: str) -> Iterator[CallAll]:
    with ExitStack() as stack:
        try:
            context = stack.enter_context(spark_session(address)).sparkContext
        except ConnectionError as error:
            raise Engine("spark", address).unreachable() from error
        yield lambda function, items: list(
            context.parallelize(items, len(items)).map(function).collect()
        )


_CONNECT: dict[str, Callable[[str], AbstractContextManager[CallAll]]] = {
    "dask": _dask,
    "ray": _ray,
    "spark": _spark,
}
