"""Progress for Python: a bar under a notebook's cell, a line in a terminal, nothing in a log."""

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

Tick = Callable[..., None]
_PATIENCE, _EVERY = 1.0, 0.2  # seconds until it appears, and between two updates


@contextmanager
def progress_bar(label: str, *, show: bool = True) -> Iterator[Tick]:
    """A function `tick(done, total, text)` that shows how far the work is; it leaves nothing behind.

    Args:
        label: What is done.
        show: False for no output at all.
    """
    output = _output() if show else None
    started = shown = time.monotonic()

    def tick(done: int, total: int, text: str = label) -> None:
        nonlocal shown
        now = time.monotonic()
        if output is not None and now - started > _PATIENCE and now - shown > _EVERY:
            output(text, done / max(total, 1))
            shown = now

    try:
        yield tick
    finally:
        if output is not None and shown > started:
            output(None, 1.0)


@contextmanager
def stages(label: str, *, show: bool = True) -> Iterator[Callable[[str], None]]:
    """The same for work that names its stages, whose number is not known."""
    done = 0
    with progress_bar(label, show=show) as tick:

        def stage(name: str) -> None:
            nonlocal done
            tick(done, max(done + 1, 8), name)
            done += 1

        yield stage


def _output() -> Callable[[str | None, float], None] | None:
    """Where progress goes: a notebook's cell, a terminal, or nowhere."""
    if "IPython" in sys.modules and _in_kernel():
        return _Cell()
    return _line if sys.stderr.isatty() else None


def _in_kernel() -> bool:
    shell = import_module("IPython.core.getipython").get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


class _Cell:
    """A bar in the output of a notebook's cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, text: str | None, share: float) -> None:
        ipython: Any = import_module("IPython.display")
        bar = f'<progress value="{share:.3f}" max="1"></progress> {html.escape(text or "")}'
        page = ipython.HTML(bar if text is not None else "")
        if self._handle is None:
            self._handle = ipython.display(page, display_id=True)
        else:
            self._handle.update(page)


def _line(text: str | None, share: float) -> None:
    """One line of a terminal, written again and again; the last call clears it."""
    print(
        "\r\x1b[K" + ("" if text is None else f"{text[:70]} {share:4.0%}"),
        end="",
        file=sys.stderr,
        flush=True,
    )
