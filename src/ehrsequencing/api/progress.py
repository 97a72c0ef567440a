"""Progress for commands and Python: a bar in a terminal, elsewhere a plain line every 15 seconds.

A bar appears when the work takes longer than two seconds, and leaves nothing behind. While it is in the terminal's last
line, `print_line` prints above it. A command whose stderr is no terminal puts time and level before each
line there, and `--log FILE` keeps all lines so.
"""

import inspect
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ehrsequencing.core.errors import EhrseqError

if TYPE_CHECKING:
    from ehrsequencing.training.loop import Progress

Tick = Callable[..., None]  # (pieces done, pieces in all, what comes next)
Callback = Callable[[dict[str, float | None]], object]  # called with the row of an epoch
BAR_AFTER, LINE_EVERY = 2.0, 15.0  # seconds
# control sequences of a terminal: CSI, OSC, then all others
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_bars: list[Callable[[str], None]] = []  # the last one prints a line above the bar that is shown
_logs: list[TextIO] = []  # files that get every line


def plain(text: str) -> str:
    r"""Text without escape sequences, control characters and invisible ones, which codes and file names may hold.

    >>> plain("a\x1b[31mb\x07c")
    'abc'
    """
    return "".join(
        c
        for c in _ESCAPES.sub("", text)
        if c.isprintable() or c in "\n\t" or "\ud800" <= c <= "\udfff"
    )


stamps = False  # whether lines on stderr get their time and level


def print_line(text: str, *, err: bool = True, level: str = "INFO", show: bool = True) -> None:
    """Print a line without anything that could change the terminal, above the bar if there is one.

    The file of the log gets it too, and it alone where `show` is false.
    """
    line = plain(text)
    stamp = f"{datetime.now().astimezone().isoformat(timespec='seconds')} {level} "
    stamped = stamp + line.replace("\n", f"\n{stamp}")
    for file in _logs:
        print(stamped, file=file, flush=True)
    if not show:
        return
    if _bars and (err or sys.stdout.isatty()):
        _bars[-1](line)
    elif err:
        print(stamped if stamps else line, file=sys.stderr, flush=True)
    else:
        print(line, flush=True)


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Add every line of a command to a file, those too that `--quiet` and `--json` drop.

    Raises:
        EhrseqError: Something else is there, or it cannot be written.
    """
    with path.open("a+", encoding="utf-8", errors="backslashreplace") as file:
        file.seek(0)
        if not re.match(r"$|\d{4}-\d\d-\d\dT", file.readline(20)):
            raise EhrseqError(
                "is there already, and no log", where=str(path), fix="name another file"
            )
        _logs.append(file)
        try:
            yield
        finally:
            _logs.remove(file)


@dataclass
class Work:
    """One piece of work: what is done so far, and how people see it.

    Attributes:
        text: What it is called until `tick` says more.
        may_end_early: Whether the total is the most that can come, as with an early stop.
        first: When the first piece was counted, and how many were done; None before any.
    """

    text: str
    started: float  # on the clock of `time.monotonic`
    may_end_early: bool = False
    done: int = 0
    total: int = 0
    first: tuple[float, int] | None = None
    over: threading.Event = field(default_factory=threading.Event)
    shown: ExitStack = field(default_factory=ExitStack)  # the bar in the terminal
    draw: Callable[[], None] | None = None

    def tick(self, done: int, total: int, text: str = "") -> None:
        """Say how many pieces are done of how many, and what comes next; a total of 0 is unknown."""
        # what came before, as trees before a network, says nothing of the pieces
        if total and not self.total:
            self.first = time.monotonic(), done
        self.done, self.total, self.text = done, total, plain(text or self.text)
        if self.draw is not None:
            self.draw()

    def line(self) -> str:
        """The progress as one line of plain text."""
        spent = time.monotonic() - self.started
        if not (self.done and self.total):
            return f"{self.text}: {_duration(spent)} so far"
        text = f"{self.text}: {self.done / self.total:.0%}, {_duration(spent)} so far"
        since, done = self.first or (self.started, 0)
        if self.done <= done:
            return text
        left = (time.monotonic() - since) * (self.total - self.done) / (self.done - done)
        about = "at most about" if self.may_end_early else "about"
        return f"{text}, {about} {_duration(left)} left"

    def watch(self) -> None:
        """Show the progress until the work is over; runs in a thread, so that a long step is not silent."""
        if not (sys.stderr.isatty() and os.environ.get("TERM") != "dumb"):
            while not self.over.wait(LINE_EVERY):
                print_line(self.line())
        if self.over.wait(BAR_AFTER):  # also where it was watched so
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn as Left,
        )
        from rich.table import Column
        from rich.text import Text

        console = Console(stderr=True)
        words = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
        columns = (words, BarColumn(20), TimeElapsedColumn(), Left(compact=True))
        progress = Progress(*columns, console=console, transient=True, redirect_stdout=False)
        task = progress.add_task(self.text, total=None)
        progress.tasks[0].start_time = self.started  # by the same clock

        def update() -> None:
            progress.update(
                task, description=self.text, completed=self.done, total=self.total or None
            )

        def print_above(text: str) -> None:
            console.print(Text(text), soft_wrap=True)

        update()
        self.shown.enter_context(progress)
        _bars.append(print_above)
        self.shown.callback(_bars.remove, print_above)
        self.draw = update


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
def bar(label: str, *, may_end_early: bool = False, show: bool = True) -> Iterator[Tick]:
    """Progress of work that counts its pieces, by `tick` of `Work`; without `show` nobody sees it."""
    work = Work(label, time.monotonic(), may_end_early)
    thread = threading.Thread(target=work.watch, name="progress", daemon=True)
    if show:
        thread.start()
    try:
        yield work.tick
    finally:
        work.over.set()
        if show:
            thread.join()
        work.shown.close()


@contextmanager
def stages(label: str, *, show: bool = True) -> Iterator[Callable[[str], None]]:
    """Progress of work that only names its stages."""
    with bar(label, show=show) as tick:
        yield lambda name: tick(0, 0, name)


@contextmanager
def training_bar(
    label: str = "training",
    *,
    word: str = "NLL",
    show: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Iterator[Callable[["Progress"], None]]:
    """Progress of training: a bar, at the end of every epoch a line, and its row for each callback; `word` is the loss.

    Raises:
        EhrseqError: A callback cannot be called with one argument.
    """
    loss = word.lower()
    try:
        for callback in callbacks:
            inspect.signature(callback).bind({})
    except TypeError as error:
        raise EhrseqError(
            "each is a function of one argument, the row of an epoch",
            where="fit, callbacks",
            fix=f"write callbacks=[lambda row: print(row['epoch'], row['tuning_{loss}'])]",
        ) from error
    with bar(label, may_end_early=True, show=show) as tick:

        def report(p: "Progress") -> None:
            who = f"model {p.member} of {p.members}, " if p.members > 1 else ""
            text = f"{who}epoch {p.epoch:>{len(str(p.epochs))}} of {p.epochs}"
            if p.loss is not None:
                text += f": loss {p.loss:.4f}"
            if p.ended and show:
                best = ", best so far" if p.best else ""
                print_line(f"{text}, tuning {word} {p.tuning_nll:.4f}{best}")
            epochs = (p.member - 1) * p.epochs + p.epoch
            done = (epochs - 1) * p.steps + p.step
            tick(done, p.members * p.epochs * p.steps, text)
            losses = {f"train_{loss}": p.loss, f"tuning_{loss}": p.tuning_nll}
            for callback in callbacks if p.ended else ():
                callback({"epoch": p.epoch, **losses, "best": p.best, "member": p.member})

        yield report
