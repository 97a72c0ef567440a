"""SIGINT, SIGTERM and SIGHUP as exceptions, so that a command that is told to stop cleans up or saves first.

A batch system sends SIGTERM before it kills, and a terminal that closes sends SIGHUP. Both raise `Stopped` where the
program stands. A training loop notes them instead, finishes its step, saves a checkpoint and then leaves.
"""

import ctypes
import platform
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Stopped(KeyboardInterrupt):
    """A signal told the program to stop.

    Args:
        number: Of the signal.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


def number_of(error: BaseException) -> int:
    """The signal that an interruption comes from."""
    return error.number if isinstance(error, Stopped) else int(signal.SIGINT)


def raise_at_signals() -> None:
    """Make SIGTERM and SIGHUP raise `Stopped` where they would end the process at once; call it in the main thread."""
    for number in _SIGNALS:
        if (
            signal.getsignal(number) is signal.SIG_DFL
        ):  # not where somebody ignores it, as nohup does
            signal.signal(number, _raise)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


class Stop:
    """Whether somebody has asked to stop."""

    def __init__(self) -> None:
        self._number: int | None = None

    def note(self, number: int, frame: FrameType | None) -> None:
        """Note a signal; a second one stops at once."""
        if self._number is not None:
            raise KeyboardInterrupt
        self._number = number

    def leave_if_asked(self, before: Callable[[], Any] = lambda: None) -> None:
        """Raise `Stopped` if a signal has come: a moment at which everything can be saved.

        Args:
            before: Called first.
        """
        if self._number is not None:
            before()
            raise Stopped(self._number)


@contextmanager
def noted_signals() -> Iterator[Stop]:
    """Only note signals, until `leave_if_asked` or the end of the block; in another thread than the main one, nothing.

    Raises:
        Stopped: At the end of the block, for a signal that came after the last question.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    noted = {n: handler for n, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in noted:
        signal.signal(number, stop.note)
    try:
        yield stop
    finally:
        for number, handler in noted.items():
            signal.signal(number, handler)
    stop.leave_if_asked()


# ---- the memory that this process keeps ------------------------------------------------------------------------------


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # names of malloc.h
_KEEP_BYTES, _MMAP_BYTES = 1 << 30, 1 << 29


def keep_freed_memory() -> bool:
    """Let the C library keep up to 1 GiB of freed memory; no number changes.

    Returns:
        Whether it will: with glibc alone. Elsewhere, and where the environment sets the thresholds, nothing is done.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES) and mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES))


def give_back_freed_memory() -> None:
    """Let the C library return what is free now between blocks that are in use: with glibc, elsewhere nothing."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
