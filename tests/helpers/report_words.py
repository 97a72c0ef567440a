"""Sentences of the report by themselves, as its templates print them."""

import html
from typing import Any

from ehrsequencing.reporting import verdict
from ehrsequencing.reporting.report import environment
from ehrsequencing.reporting.scores import Scores


def sentence(macro: str, case: Any) -> str:
    """What a macro of `sentences.html.jinja` says of a case."""
    module = environment().get_template("sentences.html.jinja").module
    return html.unescape(" ".join(str(getattr(module, macro)(case)).split()))


def compared(scores: Scores) -> str:
    """The summary's comparison with the strongest baseline."""
    return sentence("compared", verdict.compared(scores))


def how_well(scores: Scores) -> str:
    """The summary's sentences about ranking, error and calibration."""
    return sentence("how_well", verdict.how_well(scores))


def not_for(scores: Scores) -> str:
    """The summary's list of uses that the numbers do not support."""
    return sentence("not_for", verdict.not_for(scores))


def checklist() -> Any:
    """The lists of the checklist: `trials_item`, `filled_items`."""
    return environment().get_template("checklist_items.jinja").module
