"""Codes of a data set by text.

Counts of 1 to 10 people of real data are hidden, and the number of rows of such a code. A code of fewer than 5 people
is named only if `metadata/codes.parquet` lists it, as in messages about task files.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ehrsequencing.config import DataConfig
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.outputs import MANIFEST, SIMULATION, is_json_of
from ehrsequencing.records.codes import (
    CodeMatcher,
    read_descriptions,
    read_parents,
    what_comes_close,
)
from ehrsequencing.records.meds import MedsReader
from ehrsequencing.records.survey import CodeCounts

FEWEST_NAMED = 5  # subjects of a code that is named though no metadata lists it


@dataclass(frozen=True)
class FoundCode:
    """A code that fits a text.

    Attributes:
        code: As the data has it.
        description: From `metadata/codes.parquet`; empty without one.
        subjects: Who have it: a number, or `<11`.
        rows: Its rows; None where `subjects` is hidden.
    """

    code: str
    description: str
    subjects: int | str
    rows: int | None


def find_codes(
    data: Path,
    text: str,
    *,
    settings: DataConfig | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[FoundCode]:
    """Codes that fit a text, those with most subjects first, hidden ones after them by name, unused ones last.

    Args:
        data: Folder of a MEDS data set.
        text: Words that all occur in the code or its description, whatever their case; or a pattern of task files
            (`ICD10CM//E11*`, `re:…`, `under:…`). Empty: all codes.
        settings: The section `data`.
        progress: Called with shards done and to do.

    Raises:
        EhrseqError: Nothing fits; the message has words that come close.
    """
    reader, descriptions = MedsReader(data, settings), read_descriptions(data)
    parents = read_parents(data)
    fits = _filter(text, descriptions, parents)
    counts = CodeCounts()
    for number, path in enumerate(reader.shards, start=1):
        counts.add(reader.read(path))
        if progress is not None:
            progress(number, len(reader.shards))
    rows, subjects = counts.rows, counts.subjects
    listed = {*descriptions, *parents}
    is_real = not is_json_of(data / MANIFEST, SIMULATION)
    found = []
    for code in filter(fits, {*subjects, *listed}):
        people = subjects[code]
        if is_real and code not in listed and people < FEWEST_NAMED:
            continue
        few = is_real and 0 < people < SMALLEST_COUNT
        description = descriptions.get(code, "")
        shown = (f"<{SMALLEST_COUNT}", None) if few else (people, rows[code])
        found.append(FoundCode(code, description, *shown))
    if not found:
        known = listed if is_real else listed.union(subjects)
        words = re.findall(r"\w{3,}", " ".join([*known, *descriptions.values()]).casefold())
        close = [what_comes_close(word, words) for word in text.casefold().split()]
        fix = "; ".join(filter(None, close)) or "try a shorter word, or part of a code"
        raise EhrseqError(f"no code fits {text!r}", where=str(data), fix=fix)
    # by what is shown alone, so that the order tells nothing of a hidden count
    return sorted(
        found,
        key=lambda one: (-one.subjects if isinstance(one.subjects, int) else -0.5, one.code),
    )


def _filter(
    text: str, descriptions: Mapping[str, str], parents: Mapping[str, list[str]]
) -> Callable[[str], bool]:
    """Whether a code fits a text."""
    if text.startswith(("re:", "under:")) or text.endswith("*"):
        return CodeMatcher([text], parents=parents)
    words = text.casefold().split()

    def fits(code: str) -> bool:
        place = f"{code} {descriptions.get(code, '')}".casefold()
        return all(word in place for word in words)

    return fits
