"""Code patterns of task files: exact, prefix (`ICD10CM//I50*`), regex (`re:`), or descent (`under:`).

A pattern may be followed by a condition on the event's number: `LAB//HbA1c >= 6.5`, with a blank on either side of the
sign.
"""

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.core.arrays import Bools
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.events import (
    BIRTH,
    DEATH,
    DOUBTFUL_DEATH,
    STAY_MARKS,
    UNDATED_DEATH,
    Events,
    OfCodes,
)
from ehrsequencing.records.parquet_rows import is_text, read_table

PROVISIONAL = "//provisional"  # the ending of a diagnosis that is not confirmed
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
    parents_of: dict[str, list[str]] = {}
    for code, parents in _rows_of_codes(data, "parent_codes"):
        names = [parents] if isinstance(parents, str) else parents or ()
        known = parents_of.get(code, [])
        parents_of[code] = list(dict.fromkeys([*known, *filter(None, names)]))
    return parents_of


def read_descriptions(data: Path) -> dict[str, str]:
    """Description of each code, from `metadata/codes.parquet`; empty where there is none. The first of several counts.

    Raises:
        EhrseqError: As of `read_parents`.
    """
    rows = _rows_of_codes(data, "description")
    return {code: text for code, text in reversed(rows) if text}


def _rows_of_codes(data: Path, column: str) -> list[tuple[str, Any]]:
    """Every code of `metadata/codes.parquet` with its cell in another column; None where that is missing."""
    path = data / "metadata" / "codes.parquet"
    if not path.is_file():
        return []
    table, columns = read_table(path), list[list[Any]]()
    for name in ("code", column):
        count = table.column_names.count(name)
        if count > 1 or (name == "code" and not count):
            raise EhrseqError(
                f"has the column {name!r} {'twice' if count else 'nowhere'}",
                where=str(path),
                fix="give it once; see the MEDS schema",
            )
        cells = table[name] if count else pa.nulls(len(table))
        kind = cells.type
        if name == "parent_codes" and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            kind = kind.value_type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (is_text(kind) or pa.types.is_null(kind)):
            raise EhrseqError(
                f"column {name!r} has type {cells.type}",
                where=str(path),
                fix="write strings, or lists of them as parents",
            )
        columns.append(cells.to_pylist())
    return [(code, cell) for code, cell in zip(*columns, strict=True) if code]


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
        confirmed: Whether diagnoses that are not confirmed match only a pattern that names them so.

    Attributes:
        by_value: The patterns with a condition on a number.
        mask: (C,) which of a shard's codes match, whatever their number.
    """

    def __init__(
        self,
        patterns: Iterable[str],
        *,
        parents: Mapping[str, list[str]] | None = None,
        confirmed: bool = False,
    ) -> None:
        self.confirmed = confirmed
        self.patterns = tuple(patterns)
        self._cache: dict[str, bool] = {}
        self.mask = OfCodes(self._mask)
        conditions = {pattern: split_condition(pattern) for pattern in self.patterns}
        self.by_value = tuple(pattern for pattern, condition in conditions.items() if condition)
        self.plain = [pattern for pattern, condition in conditions.items() if not condition]
        self._conditions = [condition for condition in conditions.values() if condition]
        self._codes = [*self.plain, *(code for code, _, _ in self._conditions)]
        roots = [pattern for pattern in self._codes if pattern.startswith("under:")]
        children = defaultdict[str, list[str]](list)
        for code, above in (parents or {}).items() if roots else ():
            for one in above:
                children[one].append(code)
        # each pattern → the ontology code that it names, and all codes below that one
        self._below = dict[str, set[str]]()
        for pattern in roots:
            root = pattern.removeprefix("under:")
            self._below[pattern] = {root} | reachable(root, children)
        for pattern in self._codes:
            if pattern.startswith("re:"):
                _regex(pattern)

    def __call__(self, code: str) -> bool:
        """Whether a code matches any pattern, whatever its number."""
        cached = self._cache.get(code)
        return bool(self._mask((code,))[0]) if cached is None else cached

    def _mask(self, codes: tuple[str, ...]) -> Bools:
        fresh = tuple(code for code in codes if code not in self._cache)
        if fresh:
            self._cache.update(zip(fresh, self._match(self._codes, fresh).tolist(), strict=True))
        return np.fromiter((self._cache[code] for code in codes), dtype=bool, count=len(codes))

    def _match(self, patterns: Sequence[str], codes: tuple[str, ...]) -> Bools:
        """(C,) which codes match any of some patterns without conditions."""
        exact = {p for p in patterns if not p.startswith(("re:", "under:"))}
        starts = tuple(p[:-1] for p in exact if p.endswith("*"))
        below = set[str]().union(*(self._below.get(pattern, ()) for pattern in patterns))
        named = (c in exact or c.startswith(starts) or c in below for c in codes)
        out = np.fromiter(named, dtype=bool, count=len(codes))
        for pattern in patterns:
            if pattern.startswith("re:"):
                text = pa.array(codes, pa.large_string())
                out |= np.asarray(pc.match_substring_regex(text, _regex(pattern)))
        sure = [pattern for pattern in patterns if PROVISIONAL[2:] in pattern]
        if self.confirmed and len(sure) < len(patterns):
            unsure = np.fromiter((c.endswith(PROVISIONAL) for c in codes), bool, count=len(codes))
            if unsure.any():
                out &= ~unsure
                out[unsure] = self._match(sure, tuple(np.array(codes)[unsure].tolist()))
        return out

    def events(self, events: Events) -> Bools:
        """(n,) which events match: their code, and where a pattern has a condition, their number; no number is none."""
        if not self._conditions:
            return np.asarray(self.mask(events.codes)[events.code])
        out = self._match(self.plain, events.codes)[events.code]
        for code, sign, number in self._conditions:
            # Values are float32 on disk, so the threshold is too: a stored 6.1 is not below `6.1`. NaN holds nothing.
            holds = _SIGNS[sign](events.value, np.float32(number))
            out |= self._match([code], events.codes)[events.code] & holds
        return np.asarray(out)

    def refuse_conditions(self, where: str) -> None:
        """Refuse patterns with a condition on a number, where a code counts whatever its number."""
        if self.by_value:
            raise EhrseqError(
                f"a condition on a number is not possible in {where}",
                where=self.by_value[0],
                fix="name codes",
            )

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
        fix = what_comes_close(wanted, suggest) or "no code of the data comes close"
        if not self.by_value and re.search(r"[<>]=?", self.patterns[0]):
            fix += (
                "; a condition on a number has blanks on either side of its sign: LAB//HbA1c >= 6.5"
            )
        if any(pattern.startswith("under:") for pattern in self.plain):
            fix += "; under: needs parent_codes in metadata/codes.parquet"
        raise EhrseqError(
            f"no code of the data matches {', '.join(self.patterns)}", where=where, fix=fix
        )


def reachable(code: str, links: Mapping[str, list[str]]) -> set[str]:
    """Everything that can be reached from a code, without itself."""
    queue, seen = [code], {code}
    while queue:
        fresh = [other for other in links.get(queue.pop(), ()) if other not in seen]
        seen.update(fresh)
        queue.extend(fresh)
    return seen - {code}


def excluded_codes(
    study: StudyConfig, tasks: Sequence[TaskConfig], parents: Mapping[str, list[str]]
) -> CodeMatcher:
    """Codes that make no token, no visit and no visit end (docs/records.md)."""
    censoring = [code for task in tasks for code in task.censoring.code or ()]
    quiet = [
        BIRTH,
        DEATH,
        UNDATED_DEATH,
        DOUBTFUL_DEATH,
        *STAY_MARKS,
        *censoring,
        *study.visits.ignore,
    ]
    matcher = CodeMatcher(quiet, parents=parents)
    matcher.refuse_conditions("censoring.code and visits.ignore")
    return matcher


def _regex(pattern: str) -> str:
    """A pattern `re:…` for whole codes, for RE2: its time grows with the length of a code, whatever the pattern.

    Raises:
        EhrseqError: It is no regular expression of RE2, which has no look-around and no back-references.
    """
    whole = rf"\A(?:{pattern.removeprefix('re:')})\z"
    try:
        pc.match_substring_regex(pa.array([""]), whole)
    except pa.ArrowInvalid as error:
        text = str(error).partition(": ")[2] or "it is not valid"
        raise EhrseqError(
            f"is not a regular expression: {text}",
            where=pattern,
            fix="correct it; look-around, as in (?!, and back-references, as in \\1, are not possible",
        ) from error
    return whole


def other_spellings(named: Iterable[CodeMatcher], common: Iterable[str]) -> list[str]:
    """Codes that differ from a named one in dots, case or blanks only, and that no pattern matches.

    >>> other_spellings([CodeMatcher(["ICD10//E11.9"]), CodeMatcher(["I50*"])], ["ICD10//E119", "ICD10//E118", "i50.1"])
    ['ICD10//E119', 'i50.1']
    """
    named = list(named)
    patterns = [p for one in named for p in one.plain if not p.startswith(("re:", "under:"))]
    exact = {_spelling(pattern) for pattern in patterns if not pattern.endswith("*")}
    beginnings = tuple(_spelling(p.rstrip("*")) for p in patterns if p.endswith("*"))
    alike = [c for c in common if _spelling(c) in exact or _spelling(c).startswith(beginnings)]
    return [code for code in alike if not any(one(code) for one in named)]


def _spelling(code: str) -> str:
    """A code without what one writes in different ways."""
    return re.sub(r"[.\s]", "", code).casefold()


def what_comes_close(wanted: str, known: Iterable[str]) -> str:
    """A hint with known words like a wanted one, or that hold it."""
    words = sorted(set(known))
    close = get_close_matches(wanted, words, n=3, cutoff=0.5)
    close += [word for word in words if wanted.lower() in word.lower() and word not in close]
    return f"what comes close: {', '.join(close[:3])}" if close else ""
