"""Where the work on shards runs: processes of this machine, or a cluster of Dask or Ray, through joblib.

A cluster needs a file system that all its machines see at the same paths, since shards are read and kept rows are
written where the work is done.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import joblib

from ehrsequencing.errors import EhrseqError

PROCESSES = "processes"
_WAIT_SECONDS = 20  # for the scheduler of a cluster to answer
_PATTERN = re.compile(r"(dask|ray)://(\S+)")
_PACKAGES = {"dask": "distributed", "ray": "ray"}


@dataclass(frozen=True)
class Engine:
    """What runs the work on shards.

    Attributes:
        kind: `processes`, `dask` or `ray`.
        address: Of the cluster's scheduler, as that package writes it; empty for processes.
    """

    kind: str = PROCESSES
    address: str = ""

    @classmethod
    def of(cls, text: str) -> "Engine":
        """Read `processes`, `dask://HOST:PORT`, `ray://HOST:PORT`, or `ray://local`.

        >>> Engine.of("dask://10.0.0.7:8786")
        Engine(kind='dask', address='tcp://10.0.0.7:8786')

        Raises:
            EhrseqError: Anything else.
        """
        if text == PROCESSES:
            return cls()
        if (match := _PATTERN.fullmatch(text)) is None:
            fix = "use processes, dask://HOST:PORT or ray://HOST:PORT"
            raise EhrseqError(f"{text!r} is no engine", where="--engine", fix=fix)
        kind, place = match.groups()
        return cls(kind, _address(kind, place))

    @property
    def is_cluster(self) -> bool:
        """Whether the work runs outside this process's own children."""
        return self.kind != PROCESSES

    @contextmanager
    def connected(self) -> Iterator[None]:
        """A connection, which joblib uses inside.

        Raises:
            EhrseqError: The package is not installed, or the cluster does not answer.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(_CONNECT[self.kind](self.address))
            except ImportError as error:
                fix = f"pip install 'ehrsequencing[{self.kind}]'"
                raise EhrseqError(f"needs {_PACKAGES[self.kind]}", where=f"--engine {self.kind}", fix=fix) from error
            yield

    def unreachable(self) -> EhrseqError:
        """The error of a cluster that does not answer."""
        fix = "check the address, and that the scheduler runs the same package versions"
        return EhrseqError("no scheduler answers", where=f"--engine {self.kind}, {self.address}", fix=fix)


def _address(kind: str, place: str) -> str:
    """The address as the package writes it; `local` is a cluster on this machine."""
    if place == "local":
        return place
    return f"tcp://{place}" if kind == "dask" else f"{kind}://{place}"


@contextmanager
def _dask(address: str) -> Iterator[None]:
    from distributed import Client

    try:
        connect: Callable[..., Any] = Client
        client = connect(address, timeout=_WAIT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise Engine("dask", address).unreachable() from error
    with client, joblib.parallel_config("dask", client=client, n_jobs=-1):
        yield


@contextmanager
def _ray(address: str) -> Iterator[None]:
    import ray
    from ray.util.joblib import register_ray

    try:
        ray.init(None if address == "local" else address, ignore_reinit_error=True, log_to_driver=False)
    except (ConnectionError, TimeoutError, RuntimeError) as error:
        raise Engine("ray", address).unreachable() from error
    register_ray()
    try:
        with joblib.parallel_config("ray", n_jobs=-1):
            yield
    finally:
        ray.shutdown()


_CONNECT: dict[str, Callable[[str], AbstractContextManager[None]]] = {"dask": _dask, "ray": _ray}
