"""Taking turns: processes of different environments, timed by themselves, one at a time. Standard library only.

A worker prepares, says hello, then waits; `run.py` asks one worker after another to do a turn of work, so that all
contenders meet the same weather on a shared machine. What a peer's package prints goes to stderr.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

LEAST_CPU_SECONDS = 0.25  # of a turn: what is shorter is done again


def serve(work: Callable[[], int], facts: Mapping[str, Any]) -> None:
    """The worker's side: say hello with `facts`, then do a turn for every line on stdin.

    Args:
        work: One pass over all batches; returns the number of subjects. A turn is one pass, or several short ones.
        facts: What the hello says about the worker.
    """
    start_mib = _reset_peak()
    _reply(facts)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        subjects = work()
        while time.process_time() - cpu < LEAST_CPU_SECONDS:
            subjects += work()
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        peak_mib = _status_mib("VmHWM") - start_mib
        _reply(
            {
                "subjects": subjects,
                "seconds": seconds,
                "cpu_seconds": cpu_seconds,
                "peak_mib": peak_mib,
            }
        )


class Worker:
    """The driver's side of one worker process.

    Args:
        command: What to run; its script calls `serve`.
        environment: Of the process.
        log: File for what it prints.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        reading, writing = os.pipe()
        self._replies = os.fdopen(reading)
        try:
            with log.open("wb") as printed:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=printed,
                    stderr=printed,
                    text=True,
                    pass_fds=[writing],
                    env={**environment, "TURNS_REPLY_FD": str(writing)},
                )
        except FileNotFoundError as error:
            raise WorkerError(
                f"{command[0]} is not there: python bench/speed/peers/install.py"
            ) from error
        finally:
            os.close(writing)
        self.facts = self._receive()

    def turn(self) -> dict[str, float]:
        """Let it do one turn: subjects, seconds, cpu_seconds, peak_mib above the start."""
        assert self._process.stdin is not None
        with suppress(
            BrokenPipeError
        ):  # of a worker that has ended: there is no reply either, and its log says why
            self._process.stdin.write("turn\n")
            self._process.stdin.flush()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        line = self._replies.readline()
        if not line:
            self._process.wait()
            last = [
                text for text in self.log.read_text(errors="replace").splitlines() if text.strip()
            ][-1:]
            raise WorkerError(
                f"exit {self._process.returncode}: {''.join(last)[:300]} (see {self.log})"
            )
        reply: dict[str, Any] = json.loads(line)
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._replies.close()


class WorkerError(Exception):
    """A worker ended before it had answered; the message says how."""


def _reply(message: Mapping[str, Any]) -> None:
    os.write(int(os.environ["TURNS_REPLY_FD"]), (json.dumps(message) + "\n").encode())


def _reset_peak() -> float:
    """Forget the peak of memory so far (Linux); returns what is resident now, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status_mib("VmRSS")


def _status_mib(name: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0]) / 1024
