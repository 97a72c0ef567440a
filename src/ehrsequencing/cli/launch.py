"""`--devices N` of train, predict and evaluate: one process for each device, and one message where several fail.

The command that a person types starts N copies of itself, which find one another through the environment variables of
torchrun, and waits for them. A signal that it gets goes to all. When one copy fails, the others are ended. Under
torchrun, which sets these variables itself, nothing is started here.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from types import FrameType
from typing import TYPE_CHECKING

import typer

from ehrsequencing.cli.console import BY_SIGNAL, as_parts, current
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.signals import number_of

if TYPE_CHECKING:
    from ehrsequencing.training.processes import Processes

# what torchrun sets
RENDEZVOUS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
PORT = 29_500  # of process 0, where several machines meet and MASTER_PORT is not set
LAUNCHED = "EHRSEQ_LAUNCHED"  # set in the copies that this file starts
GRACE_SECONDS = 10.0  # for the others to end by themselves once one has failed
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def launches(devices: int, nodes: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this command must start the processes: it is asked for several, and is none of them itself.

    Raises:
        EhrseqError: torchrun started another number of processes.
    """
    asked, is_one = devices * nodes, all(name in environment for name in RENDEZVOUS)
    if is_one and asked > 1 and environment["WORLD_SIZE"] != str(asked):
        what = f"asks for {asked} processes, but {environment['WORLD_SIZE']} were started"
        raise EhrseqError(what, where="--devices and --nodes", fix="leave them out under torchrun")
    return asked > 1 and not is_one


def launch(command: str, devices: int, nodes: int = 1) -> int:
    """Run this machine's processes to their end.

    Args:
        command: That they run, as in `train`.
        devices: How many.
        nodes: How many machines run this command; NODE_RANK (or SLURM_NODEID) tells which one this is.

    Returns:
        The exit code: that of the first process that failed, else 0.

    Raises:
        EhrseqError: The environment lacks what several machines need, or a process was killed.
    """
    words = [sys.executable, "-m", "ehrsequencing", *sys.argv[1:]]
    copies: list[subprocess.Popen[bytes]] = []
    with forwarded(copies) as told:
        for variables in environments(devices, nodes):
            # A session of its own: Ctrl-C in the terminal then reaches it once, from here.
            copies.append(
                subprocess.Popen(
                    words,
                    env={**os.environ, **variables},
                    stdin=subprocess.PIPE,
                    stdout=None if variables["RANK"] == "0" else subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        failed = first_to_fail(copies)
        # who was told to stop saves first
        end(copies, None if failed is None or told else GRACE_SECONDS)
    if failed is None:
        return 0
    code = copies[failed].returncode
    if -code in told:  # it was told to stop, and once more while it ended
        return BY_SIGNAL - code
    if code < 0:
        name = signal.Signals(-code).name
        again = "repeat the command with --resume" if command == "train" else "use fewer --devices"
        what, fix = (
            f"process {failed} on this machine was ended by {name}",
            f"SIGKILL often means too little memory; {again}",
        )
        raise EhrseqError(what, where=f"ehrseq {command}", fix=fix)
    return code


def environments(
    devices: int, nodes: int, environment: Mapping[str, str] = os.environ
) -> list[dict[str, str]]:
    """The variables of torchrun for each process of this machine.

    Raises:
        EhrseqError: Several machines, and nothing says which one this is or where process 0 is.
    """
    node = environment.get("NODE_RANK", environment.get("SLURM_NODEID", "0" if nodes == 1 else ""))
    address = "127.0.0.1" if nodes == 1 else environment.get("MASTER_ADDR", "")
    if not (node.isascii() and node.isdigit() and int(node) < nodes) or not address:
        what = f"{nodes} machines need NODE_RANK (0 to {nodes - 1}) and MASTER_ADDR (that of machine 0)"
        raise EhrseqError(
            what,
            where="--nodes",
            fix="set them on each machine, or use torchrun or Slurm: docs/scale.md",
        )
    port = str(free_port()) if nodes == 1 else environment.get("MASTER_PORT", str(PORT))
    threads = (
        max(1, len(os.sched_getaffinity(0)) // devices) if hasattr(os, "sched_getaffinity") else 1
    )
    shared = {
        "WORLD_SIZE": str(devices * nodes),
        "LOCAL_WORLD_SIZE": str(devices),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", str(threads)),
        LAUNCHED: "1",
        # we tell who has ended, in one line
        "TORCH_CPP_LOG_LEVEL": environment.get("TORCH_CPP_LOG_LEVEL", "FATAL"),
    }
    if nodes == 1 and sys.platform == "linux":
        shared["GLOO_SOCKET_IFNAME"] = environment.get("GLOO_SOCKET_IFNAME", "lo")
    first = int(node) * devices
    return [
        {**shared, "RANK": str(first + place), "LOCAL_RANK": str(place)} for place in range(devices)
    ]


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def first_to_fail(copies: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait until one has failed, and tell which, or until all have ended well."""
    while True:
        codes = [copy.poll() for copy in copies]
        failed = [place for place, code in enumerate(codes) if code]
        if failed:
            # the others only lost contact with it
            killed = [place for place in failed if (codes[place] or 0) < 0]
            return (killed or failed)[0]
        if None not in codes:
            return None
        time.sleep(0.1)


def end(copies: Sequence[subprocess.Popen[bytes]], seconds: float | None) -> None:
    """Wait for processes to end by themselves, so long at most; then tell them to clean up and end; then kill them."""
    if seconds:
        _wait(copies, seconds, then=subprocess.Popen.terminate)
    _wait(copies, seconds, then=subprocess.Popen.kill)
    for copy in copies:
        copy.wait()


def _wait(
    copies: Sequence[subprocess.Popen[bytes]],
    seconds: float | None,
    *,
    then: Callable[[subprocess.Popen[bytes]], None],
) -> None:
    until = None if seconds is None else time.monotonic() + seconds
    for copy in copies:
        try:
            copy.wait(None if until is None else max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            then(copy)


@contextmanager
def forwarded(copies: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Send the signals that this process gets to all copies, which save and end; gives the list of these signals.

    After the block, what is left is killed.
    """
    told: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        told.append(number)
        for copy in copies:
            if copy.poll() is None:
                copy.send_signal(number)

    before = {number: signal.getsignal(number) for number in _FORWARDED}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, forward)
    try:
        yield told
    finally:
        end(copies, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- inside one of the processes -------------------------------------------------------------------------------------


@contextmanager
def one_of_several(
    environment: Mapping[str, str] = os.environ, *, gpus: bool = True
) -> Iterator["Processes | None"]:
    """Join the other processes; None where the environment names none. Process 0 prints, and one reports an error.

    Args:
        environment: As torchrun sets it.
        gpus: Whether each process takes a GPU where there are some.
    """
    if environment.get("WORLD_SIZE", "1") == "1" or not all(
        name in environment for name in RENDEZVOUS
    ):
        yield None
        return
    from ehrsequencing.training.group import joined
    from ehrsequencing.training.processes import LostContact

    if LAUNCHED in environment:
        threading.Thread(target=_stop_without_parent, daemon=True).start()
    if environment["RANK"] != "0":
        current().json, current().quiet = False, True
    with joined(environment, gpus=gpus) as group:
        try:
            with ExitStack() as silence:
                if not group.processes.is_first:
                    nowhere = silence.enter_context(open(os.devnull, "w"))
                    silence.enter_context(redirect_stdout(nowhere))
                    silence.enter_context(redirect_stderr(nowhere))
                yield group.processes
        except KeyboardInterrupt as stop:  # all leave together, and process 0 says so
            if group.processes.is_first:
                raise
            group.wait_for_first()
            raise typer.Exit(BY_SIGNAL + number_of(stop)) from stop
        except Exception as error:
            parts, code = as_parts(error)
            first = group.report(json.dumps(parts))
            if first is None and not (isinstance(error, LostContact) and LAUNCHED in environment):
                raise
            current().error = json.loads(first) if first else parts
            # the process that started this one knows how the other one ended
            current().json &= first is not None
            raise typer.Exit(code) from error


def _stop_without_parent() -> None:
    """Save and end when the process that started this one has ended: its end of the pipe is closed then."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
