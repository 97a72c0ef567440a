"""Sentences of the report by themselves, as its templates print them."""

import html
from typing import Any

from ehrsequencing.reporting.report import environment


def sentence(macro: str, case: Any) -> str:
    """What a macro of `sentences.html.jinja` says of a case."""
    module = environment().get_template("sentences.html.jinja").module
    return html.unescape(" ".join(str(getattr(module, macro)(case)).split()))


def checklist() -> Any:
    """The lists of the checklist: `trials_item`, `filled_items`."""
    return environment().get_template("checklist_items.jinja").module
