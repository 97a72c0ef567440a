"""Reads the report's page: tags, text and figures; and single sentences, as its templates print them."""

import html
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from typing import Any

from ehrsequencing.reporting.wording import environment


class Page(HTMLParser):
    """Checks nesting while it collects tags, attributes and text."""

    VOID = frozenset({"meta", "link", "br", "img", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def svgs(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)]


def sentence(macro: str, case: Any) -> str:
    """What a macro of `sentences.html.jinja` says of a case."""
    module = environment().get_template("sentences.html.jinja").module
    return html.unescape(" ".join(str(getattr(module, macro)(case)).split()))


def checklist() -> Any:
    """The lists of the checklist: `trials_item`, `filled_items`."""
    return environment().get_template("checklist_items.jinja").module
