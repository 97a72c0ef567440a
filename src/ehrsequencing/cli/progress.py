"""Progress on stderr: a bar in a terminal, and a plain line every 15 seconds where the output goes to a file or pipe.

A bar appears when the work takes longer than two seconds. `--quiet` shows none. While a bar is in the terminal's last
line, everything that is printed goes above it (`output.above_bar`).
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ehrsequencing.cli.output import above_bar, current, plain, say

if TYPE_CHECKING:
    from ehrsequencing.training.progress import Progress

BAR_AFTER, LINE_EVERY = 2.0, 15.0  # seconds


class Work:
    """One piece of work: what is done so far, and how people are told.

    Args:
        label: What it is called until somebody says more.
    """

    def __init__(self, label: str) -> None:
        self.text, self.done, self.total = label, 0, 0
        self.started = time.monotonic()
        self._over = threading.Event()
        self._shown = ExitStack()
        self._bar: Any = None
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def __enter__(self) -> "Work":
        if not current().quiet:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._shown.close()

    def tick(self, done: int, total: int, text: str = "") -> None:
        """Say how many pieces are done of how many, and what comes next; a total of 0 is one that nobody knows."""
        self.done, self.total, self.text = done, total, plain(text or self.text)
        if self._bar is not None:
            self._bar()

    def _show(self) -> None:
        """Show the progress until the work is over; runs in a thread, so that a long step is no silence."""
        if not is_terminal():
            while not self._over.wait(LINE_EVERY):
                say(self.line(), err=True)
        elif not self._over.wait(BAR_AFTER):
            self._start_bar()

    def line(self) -> str:
        """The progress as one line of plain text."""
        share = f" {self.done / self.total:.0%}," if self.total else ""
        return f"{self.text}:{share} {_duration(time.monotonic() - self.started)} so far"

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column
        from rich.text import Text

        console = Console(stderr=True)
        bar_width = 20 if console.width >= 100 else 10
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=bar_width),
            TextColumn("{task.fields[share]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
        )
        progress = Progress(
            *columns,
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=True,
            refresh_per_second=4,
        )
        task = progress.add_task(self.text, total=None, share="")
        progress.tasks[0].start_time = self.started  # by the same clock

        def update() -> None:
            share = f"{self.done / self.total:4.0%}" if self.total else ""
            # the last column stays free: Ctrl-C prints ^C there
            room = max(console.width - bar_width - 26, 10)
            text = self.text if len(self.text) <= room else f"{self.text[: room - 1]}…"
            progress.update(
                task, description=text, completed=self.done, total=self.total or None, share=share
            )

        update()
        self._shown.enter_context(progress)
        self._shown.enter_context(above_bar(lambda text: console.print(Text(text), soft_wrap=True)))
        self._bar = update


def is_terminal() -> bool:
    """Whether stderr is a terminal in which a bar can move."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> _duration(42.3), _duration(130), _duration(7500)
    ('42 s', '2 min 10 s', '2 h 5 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def bar(label: str) -> Iterator[Callable[..., None]]:
    """Progress of work that counts its pieces: gives a function of pieces done, pieces in all, and what comes next."""
    with Work(label) as work:
        yield work.tick


@contextmanager
def stages(label: str) -> Iterator[Callable[[str], None]]:
    """Progress of work that only names its stages."""
    with Work(label) as work:
        yield lambda name: work.tick(0, 0, name)


@contextmanager
def training_bar(
    label: str = "training", tuning: str = "tuning NLL"
) -> Iterator[Callable[["Progress"], None]]:
    """Progress of training; prints a line at the end of every epoch, with the loss on the tuning split as `tuning`."""
    with Work(label) as work:

        def show(p: "Progress") -> None:
            who = f"model {p.member} of {p.members}, " if p.members > 1 else ""
            epochs = (p.member - 1) * p.epochs + p.epoch
            text = f"{who}epoch {p.epoch:>{len(str(p.epochs))}} of {p.epochs}: loss {p.loss:.4f}"
            speed = f"{p.subjects_per_second:.0f} subjects/s"
            if p.ended:
                told = f"{text}, {tuning} {p.tuning_nll:.4f}{', best so far' if p.best else ''}"
                if not current().quiet:
                    say(told, err=True)
            work.tick(
                (epochs - 1) * p.steps + p.step,
                p.members * p.epochs * p.steps,
                f"{text}, {speed}",
            )

        yield show
