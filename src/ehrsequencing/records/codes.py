"""Code patterns of task files: exact, prefix (`ICD10CM//I50*`), regex (`re:`), or descent (`under:`); codes by text.

A pattern may be followed by a condition on the event's number: `LAB//HbA1c >= 6.5`, with a blank on either side of the
sign. `find_codes` hides counts of 1 to 10 people of real data, and the number of rows of such a code. It names a code
of fewer than 5 people only if `metadata/codes.parquet` lists it, as messages about task files do.
"""

import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.config import DataConfig, StudyConfig, TaskConfig
from ehrsequencing.core.arrays import Bools
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.outputs import MANIFEST, SIMULATION, is_json_of
from ehrsequencing.records.events import BIRTH, DEATH, Events, OfCodes
from ehrsequencing.records.meds import MedsReader
from ehrsequencing.records.parquet_rows import is_text, read_table

_CONDITION = re.compile(
    r"(?P<code>.*\S) +(?P<sign>>=|<=|>|<|=) +(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
)
_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}


def code_type(code: str) -> str:
    """The type of a MEDS code: the text before its first `//` (`LAB`, `DX` …), or nothing.

    >>> code_type("LAB//HbA1c"), code_type("Weight (Lbs)")
    ('LAB', '')
    """
    head, separator, _ = code.partition("//")
    return head if separator else ""


def read_parents(data: Path) -> dict[str, list[str]]:
    """Parents of each code, from `metadata/codes.parquet`; empty where there is none.

    Parents are lists of codes; plain text is one parent. A code with several rows has the parents of all of them.

    Raises:
        EhrseqError: The file is damaged, it has no column of codes, or a column is no text.
    """
    found: dict[str, list[str]] = {}
    for code, parents in _rows_of_codes(data, "parent_codes"):
        known = found.setdefault(code, [])
        for name in [parents] if isinstance(parents, str) else parents or ():
            if name and name not in known:
                known.append(name)
    return found


def read_descriptions(data: Path) -> dict[str, str]:
    """Description of each code, from `metadata/codes.parquet`; empty where there is none. The first of several counts.

    Raises:
        EhrseqError: As of `read_parents`.
    """
    found: dict[str, str] = {}
    for code, text in _rows_of_codes(data, "description"):
        if text:
            found.setdefault(code, text)
    return found


def _rows_of_codes(data: Path, column: str) -> list[tuple[str, Any]]:
    """Every code of `metadata/codes.parquet` with its cell in another column; None where that is missing."""
    path = data / "metadata" / "codes.parquet"
    if not path.is_file():
        return []
    table = read_table(path)
    for name in ("code", column):
        if table.column_names.count(name) > 1:
            what = f"has the column {name!r} twice"
            raise EhrseqError(what, where=str(path), fix="keep one of them")
    if "code" not in table.column_names:
        raise EhrseqError("has no column 'code'", where=str(path), fix="see the MEDS schema")
    codes = _texts(table["code"], "code", path)
    cells = [None] * len(codes)
    if column in table.column_names:
        cells = _texts(table[column], column, path)
    return [(code, cell) for code, cell in zip(codes, cells, strict=True) if code]


def _texts(column: pa.ChunkedArray, name: str, path: Path) -> list[Any]:
    """A column of text, or of parents as lists of text."""
    kind, types = column.type, pa.types
    if name == "parent_codes" and (types.is_list(kind) or types.is_large_list(kind)):
        kind = kind.value_type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (is_text(kind) or types.is_null(kind)):
        what = f"column {name!r} has type {column.type}"
        raise EhrseqError(what, where=str(path), fix="write strings, or lists of them as parents")
    values: list[Any] = column.to_pylist()
    return values


def split_condition(pattern: str) -> tuple[str, str, float] | None:
    """Code pattern, sign and number of a pattern with a condition; None for a plain one.

    >>> split_condition("LAB//HbA1c >= 6.5"), split_condition("BMI>=30")
    (('LAB//HbA1c', '>=', 6.5), None)
    """
    match = _CONDITION.fullmatch(pattern)
    return (match["code"], match["sign"], float(match["number"])) if match else None


class CodeMatcher:
    """Decides which codes, and which events, a list of patterns means.

    Args:
        patterns: Patterns of a task file; a code matches when any pattern does.
        parents: Parents of each code, for `under:`.
    """

    def __init__(
        self, patterns: Iterable[str], *, parents: Mapping[str, list[str]] | None = None
    ) -> None:
        self.patterns = tuple(patterns)
        self._parents = parents or {}
        self._cache: dict[str, bool] = {}
        # (C,) which of a shard's codes match, whatever their number
        self.mask = OfCodes(self._mask)
        found = [(pattern, split_condition(pattern)) for pattern in self.patterns]
        self.by_value = tuple(pattern for pattern, condition in found if condition is not None)
        plain = [pattern for pattern, condition in found if condition is None]
        self._exact = frozenset(p for p in plain if not p.startswith(("re:", "under:")))
        self._prefixes = tuple(p[:-1] for p in self._exact if p.endswith("*"))
        self._roots = frozenset(p.removeprefix("under:") for p in plain if p.startswith("under:"))
        self._regexes = [_regex(p.removeprefix("re:")) for p in plain if p.startswith("re:")]
        # Values are float32 on disk, so the threshold is too: a stored 6.1 is not below `6.1`.
        self._conditions = [
            (CodeMatcher([code], parents=parents), _SIGNS[sign], np.float32(number))
            for code, sign, number in (condition for _, condition in found if condition is not None)
        ]

    def __call__(self, code: str) -> bool:
        """Whether a code matches any pattern, whatever its number."""
        found = self._cache.get(code)
        return bool(self._mask((code,))[0]) if found is None else found

    def _plain(self, codes: tuple[str, ...]) -> Bools:
        exact, starts = self._exact, self._prefixes
        named = (
            c in exact or (bool(starts) and c.startswith(starts)) or self._descends(c)
            for c in codes
        )
        out = np.fromiter(named, dtype=bool, count=len(codes))
        for regex in self._regexes:
            out |= np.asarray(pc.match_substring_regex(pa.array(codes, pa.large_string()), regex))
        return out

    def _descends(self, code: str) -> bool:
        if not self._roots:
            return False
        queue, seen = [code], {code}
        while queue:
            here = queue.pop()
            if here in self._roots:
                return True
            fresh = [up for up in self._parents.get(here, ()) if up not in seen]
            seen.update(fresh)
            queue.extend(fresh)
        return False

    def _mask(self, codes: tuple[str, ...]) -> Bools:
        fresh = tuple(code for code in codes if code not in self._cache)
        if fresh:
            found = self._plain(fresh)
            for matcher, _, _ in self._conditions:
                found |= matcher._mask(fresh)
            self._cache.update(zip(fresh, found.tolist(), strict=True))
        return np.fromiter((self._cache[code] for code in codes), dtype=bool, count=len(codes))

    def events(self, events: Events) -> Bools:
        """(n,) which events match: their code, and where a pattern has a condition, their number; no number is none."""
        if not self._conditions:
            return np.asarray(self.mask(events.codes)[events.code])
        out = self._plain(events.codes)[events.code]
        for matcher, holds, number in self._conditions:
            # NaN holds nothing
            out |= matcher.mask(events.codes)[events.code] & holds(events.value, number)
        return np.asarray(out)

    def require(self, known: Collection[str], *, suggest: Collection[str], where: str) -> None:
        """Refuse patterns that mean no known code at all, and say why, or which codes come close.

        Args:
            known: Every code of the data set.
            suggest: Codes common enough to be named in a message.
            where: The setting that holds the patterns.
        """
        if self._mask((*known, BIRTH, DEATH)).any():
            return
        wanted = re.split(r" *[<>]=? *", self.patterns[0])[0].rstrip("*").rpartition(":")[2]
        fix = _what_comes_close(wanted, suggest) or "no code of the data comes close"
        if not self.by_value and re.search(r"[<>]=?", self.patterns[0]):
            fix += (
                "; a condition on a number has blanks on either side of its sign: LAB//HbA1c >= 6.5"
            )
        if self._roots:
            fix += "; under: needs parent_codes in metadata/codes.parquet"
        raise EhrseqError(
            f"no code of the data matches {', '.join(self.patterns)}", where=where, fix=fix
        )


def excluded_codes(
    study: StudyConfig, tasks: Sequence[TaskConfig], parents: Mapping[str, list[str]]
) -> CodeMatcher:
    """Codes that make no token, no visit and no visit end (SCIENCE.md §1)."""
    censoring = [code for task in tasks for code in task.censoring.code or ()]
    matcher = CodeMatcher([BIRTH, DEATH, *censoring, *study.visits.ignore], parents=parents)
    if matcher.by_value:
        what = "a condition on a number is not possible in censoring.code and visits.ignore"
        fix = "name codes: they make no token, whatever their number"
        raise EhrseqError(what, where=matcher.by_value[0], fix=fix)
    return matcher


def _regex(pattern: str) -> str:
    """A pattern for whole codes, for RE2: its time grows with the length of a code, whatever the pattern.

    Raises:
        EhrseqError: It is no regular expression of RE2, which has no look-around and no back-references.
    """
    whole = rf"\A(?:{pattern})\z"
    try:
        pc.match_substring_regex(pa.array([""]), whole)
    except pa.ArrowInvalid as error:
        text = str(error).partition(": ")[2] or "it is not valid"
        fix = "correct it; look-around, as in (?!, and back-references, as in \\1, are not possible"
        raise EhrseqError(
            f"is not a regular expression: {text}", where=f"re:{pattern}", fix=fix
        ) from error
    return whole


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
    rows, subjects = Counter[str](), Counter[str]()
    for number, path in enumerate(reader.shards, start=1):
        events = reader.read(path)
        pairs = np.unique(np.stack([events.code.astype(np.int64), events.subject_id]), axis=1)
        for counter, codes in ((rows, events.code), (subjects, pairs[0])):
            counts = np.bincount(codes, minlength=len(events.codes)).tolist()
            counter.update(dict(zip(events.codes, counts, strict=True)))
        if progress is not None:
            progress(number, len(reader.shards))
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
        close = [_what_comes_close(word, words) for word in text.casefold().split()]
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


def _what_comes_close(wanted: str, known: Iterable[str]) -> str:
    """A hint with known words like a wanted one, or that hold it."""
    words = sorted(set(known))
    close = get_close_matches(wanted, words, n=3, cutoff=0.5)
    close += [word for word in words if wanted.lower() in word.lower() and word not in close]
    return f"what comes close: {', '.join(close[:3])}" if close else ""
