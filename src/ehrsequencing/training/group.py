"""Joining the processes that work together: the environment variables of torchrun, and who reports an error."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.training.network import interface
from ehrsequencing.training.processes import Processes

COME_TOGETHER = timedelta(minutes=15)  # until all processes have started
WAIT = timedelta(hours=4)  # for one another: process 0 alone recalibrates and writes
LAST_WORDS = timedelta(seconds=10)  # for process 0 to say that all were told to stop
_REPORT = "ehrseq-report"  # key of the report of the first process that fails


@dataclass(frozen=True)
class Group:
    """The processes, and the store through which they know who failed first.

    Attributes:
        processes: This one among the others.
        store: Through which they tell.
        has_own_store: Whether process 0 keeps it, and not torchrun.
    """

    processes: Processes
    store: Store
    has_own_store: bool = True

    def report(self, text: str) -> str | None:
        """Tell the others what went wrong here.

        Returns:
            None if nobody failed before: then this process prints. Else what the first one told; empty if it cannot
            be asked any more, because process 0 has ended.
        """
        own = f"{self.processes.rank} {text}"
        try:
            first = self.store.compare_set(_REPORT, "", own).decode()
        except RuntimeError:
            return ""
        return None if first == own else first.partition(" ")[2]

    def wait_for_first(self) -> None:
        """Return when process 0 has left, so that its last words are not cut off; at most `LAST_WORDS` later.

        Its store ends with it. Under torchrun the store is not its own, and nothing can be waited for.
        """
        if self.has_own_store:
            with suppress(RuntimeError):
                self.store.wait(["ehrseq-never"], LAST_WORDS)


@contextmanager
def joined(environment: Mapping[str, str] = os.environ, *, gpus: bool = True) -> Iterator[Group]:
    """Join the others, and part from them at the end of the block.

    Args:
        environment: Has RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as torchrun sets them.
        gpus: Whether each process takes a GPU where there are some; False for work that is done on CPUs.

    Raises:
        EhrseqError: A variable is no number, there are fewer GPUs than processes, or not all processes came.
    """
    processes = Processes(
        *(number(environment, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    )
    found = torch.cuda.device_count() if gpus and torch.cuda.is_available() else 0
    if found and processes.local_rank >= found:
        what = f"process {processes.rank} is number {processes.local_rank + 1} of its machine, which has {found} GPU(s)"
        raise EhrseqError(what, where="--devices", fix="start one process for each GPU")
    if found:
        torch.cuda.set_device(processes.local_rank)
    address, port = environment.get("MASTER_ADDR", ""), number(environment, "MASTER_PORT")
    of_torchrun = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = TCPStore(
            address, port, processes.count, processes.is_first and not of_torchrun, COME_TOGETHER
        )
        own = PrefixStore(f"ehrseq-{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        backend = "nccl" if found else "gloo"
        if not found and "GLOO_SOCKET_IFNAME" not in environment:
            name = interface(own, environment, rank=processes.rank, local_rank=processes.local_rank)
            if name is not None:
                os.environ["GLOO_SOCKET_IFNAME"] = name
        dist.init_process_group(
            backend, store=own, rank=processes.rank, world_size=processes.count, timeout=WAIT
        )
    except RuntimeError as error:
        what = f"not all of the {processes.count} processes could be reached"
        fix = "check that all machines run the command, and reach that address and port"
        raise EhrseqError(
            what, where=f"MASTER_ADDR={address}, MASTER_PORT={port}", fix=fix
        ) from error
    try:
        yield Group(processes, own, not of_torchrun)
    finally:
        dist.destroy_process_group()


def number(environment: Mapping[str, str], name: str) -> int:
    """An environment variable that must be a whole number.

    Raises:
        EhrseqError: It is not.
    """
    text = environment.get(name, "")
    if not text.isascii() or not text.isdigit():
        what = (
            f"the environment variable {name} is {text!r} and not a number"
            if text
            else f"{name} is not set"
        )
        fix = "start the processes with --devices or with torchrun"
        raise EhrseqError(what, where="environment", fix=fix)
    return int(text)
