"""Files that may leave the hospital: their writer takes only what `core.disclosure` has redacted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ehrsequencing.core.files import write_bytes, write_json


class Shareable(dict[str, Any]):
    """Content that may leave the hospital: only this module makes it."""

    def drawn(self, draw: "Callable[[Shareable], str]") -> "Page":
        """The page that a function draws from it."""
        return Page(draw(self))


class Page(str):
    """A page that was drawn from shareable content alone."""


def write_shareable(path: Path, content: Shareable | Page) -> None:
    """Write a file that may leave the hospital: JSON, or a page.

    Raises:
        TypeError: The content has not been redacted.
    """
    if isinstance(content, Page):
        write_bytes(path, content.encode())
    elif isinstance(content, Shareable):
        write_json(path, content)
    else:
        raise TypeError("a file that may be shared holds what has been redacted")
