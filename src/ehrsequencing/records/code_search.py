"""Finds codes by text: in the codes of a data set and in their descriptions, with how many subjects have each.

For real people, a count from 1 to 10 is hidden, and so is the number of rows of such a code. A code of fewer than 5
subjects is named only if `metadata/codes.parquet` lists it, as in messages about task files.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from ehrsequencing.config import DataConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.outputs import MANIFEST, SIMULATION, is_json_of
from ehrsequencing.records.codes import CodeMatcher, read_descriptions, read_parents
from ehrsequencing.records.events import Events
from ehrsequencing.records.meds import MedsReader

# subjects behind a count that is shown (`minimum_counts`, which records may not import)
SMALLEST_COUNT = 11
FEWEST_NAMED = 5  # subjects of a code that is named though no metadata lists it
_HIDDEN = f"<{SMALLEST_COUNT}"


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
            (`ICD10CM//E11*`, `re:…`, `under:…`).
        settings: The section `data`.
        progress: Called with shards done and to do.

    Raises:
        EhrseqError: Nothing fits; the message has words that come close.
    """
    reader, descriptions, parents = (
        MedsReader(data, settings),
        read_descriptions(data),
        read_parents(data),
    )
    fits = _filter(text, descriptions, parents)
    rows, subjects = Counter[str](), Counter[str]()
    every: set[str] = set()
    for number, path in enumerate(reader.shards, start=1):
        events = reader.read(path)
        _count(events, fits, rows, subjects)
        every.update(events.codes)
        if progress is not None:
            progress(number, len(reader.shards))
    listed = {*descriptions, *parents}
    is_real = not is_json_of(data / MANIFEST, SIMULATION)
    found = [
        _shown(code, descriptions.get(code, ""), subjects[code], rows[code], is_real=is_real)
        for code in {*subjects, *filter(fits, listed)}
        if not is_real or code in listed or subjects[code] >= FEWEST_NAMED
    ]
    if not found:
        known = listed | {code for code in every if not is_real}
        raise EhrseqError(
            f"no code fits {text!r}",
            where=str(data),
            fix=_what_comes_close(text, known, descriptions),
        )
    return sorted(found, key=_order)


def _filter(
    text: str, descriptions: Mapping[str, str], parents: Mapping[str, list[str]]
) -> Callable[[str], bool]:
    """Whether a code fits a text."""
    if not text.strip():
        raise EhrseqError("is empty", where="TEXT", fix="give a word of a code or a description")
    if text.startswith(("re:", "under:")) or text.endswith("*"):
        return CodeMatcher([text], parents=parents)
    words = text.casefold().split()

    def fits(code: str) -> bool:
        place = f"{code} {descriptions.get(code, '')}".casefold()
        return all(word in place for word in words)

    return fits


def _count(
    events: Events, fits: Callable[[str], bool], rows: Counter[str], subjects: Counter[str]
) -> None:
    """Add a shard's rows and subjects of every code that fits. A subject has all rows in one shard."""
    wanted = np.fromiter((fits(code) for code in events.codes), dtype=bool, count=len(events.codes))
    if not wanted.any():
        return
    at = np.flatnonzero(wanted[events.code])
    owner, n = events.subjects[1][at].astype(np.int64), len(events.codes)
    pairs = np.unique(owner * n + events.code[at])
    for counter, codes in ((rows, events.code[at]), (subjects, pairs % n)):
        counts = np.bincount(codes, minlength=n)
        counter.update({events.codes[k]: int(counts[k]) for k in np.flatnonzero(counts)})


def _shown(code: str, description: str, subjects: int, rows: int, *, is_real: bool) -> FoundCode:
    if is_real and 0 < subjects < SMALLEST_COUNT:
        return FoundCode(code, description, _HIDDEN, None)
    return FoundCode(code, description, subjects, rows)


def _order(found: FoundCode) -> tuple[float, str]:
    """By what is shown alone, so that the order tells nothing of a hidden count."""
    return (-found.subjects if isinstance(found.subjects, int) else -0.5), found.code


def _what_comes_close(text: str, codes: Iterable[str], descriptions: Mapping[str, str]) -> str:
    words = {
        word
        for known in (*codes, *descriptions.values())
        for word in re.findall(r"\w{3,}", known.casefold())
    }
    near = [
        match
        for word in text.casefold().split()
        for match in get_close_matches(word, sorted(words), n=2)
    ]
    return (
        f"did you mean {' or '.join(dict.fromkeys(near))}?"
        if near
        else "try a shorter word, or part of a code"
    )
