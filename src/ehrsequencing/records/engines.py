"""Where the work on shards runs: processes of this machine, or a cluster of Dask, Ray or Spark.

Dask and Ray are called through joblib. Spark is called as it is, since its backend for joblib does not work.

A cluster needs a file system that all its machines see at the same paths, since shards are read and kept rows are
written where the work is done.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import joblib

from ehrsequencing.errors import EhrseqError
from ehrsequencing.spark import spark_session

PROCESSES = "processes"
_WAIT_SECONDS = 20  # for the scheduler of a cluster to answer
_PATTERN = re.compile(r"(dask|ray|spark)://(\S+)")
_PACKAGES = {"dask": "distributed", "ray": "ray", "spark": "pyspark"}
CallAll = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]  # a function and items → results in their order


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
                raise EhrseqError(f"needs {_PACKAGES[self.kind]}", where=f"--engine {self.kind}", fix=fix) from error
            yield call_all

    def unreachable(self) -> EhrseqError:
        """The error of a cluster that does not answer."""
        fix = "check the address, and that the scheduler runs the same package versions"
        return EhrseqError("no scheduler answers", where=f"--engine {self.kind}, {self.address}", fix=fix)


def _address(kind: str, place: str) -> str:
    """The address as the package writes it; `local` is a cluster on this machine."""
    if place == "local" or kind == "spark":
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


@contextmanager
def _ray(address: str) -> Iterator[CallAll]:
    import ray
    from ray.util.joblib import register_ray

    try:
        ray.init(None if address == "local" else address, ignore_reinit_error=True, log_to_driver=False)
    except (ConnectionError, TimeoutError, RuntimeError) as error:
        raise Engine("ray", address).unreachable() from error
    register_ray()
    try:
        with joblib.parallel_config("ray", n_jobs=-1):
            yield _by_joblib
    finally:
        ray.shutdown()


@contextmanager
def _spark(address: str) -> Iterator[CallAll]:
    with ExitStack() as stack:
        try:
            context = stack.enter_context(spark_session(address)).sparkContext
        except ConnectionError as error:
            raise Engine("spark", address).unreachable() from error
        yield lambda function, items: list(context.parallelize(items, len(items)).map(function).collect())


_CONNECT: dict[str, Callable[[str], AbstractContextManager[CallAll]]] = {"dask": _dask, "ray": _ray, "spark": _spark}
