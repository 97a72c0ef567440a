"""Code patterns of task files: exact, prefix (`ICD10CM//I50*`), regex (`re:`), or descent (`under:`)."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.errors import EhrseqError
from ehrsequencing.records.meds import BIRTH, DEATH, read_table


def code_type(code: str) -> str:
    """The type of a MEDS code: what stands before its first `//` (`LAB`, `DX` …), or nothing.

    >>> code_type("LAB//HbA1c"), code_type("Weight (Lbs)")
    ('LAB', '')
    """
    head, separator, _ = code.partition("//")
    return head if separator else ""


def read_parents(data: Path) -> dict[str, list[str]]:
    """Parents of each code, from `metadata/codes.parquet`; empty where there is none."""
    path = data / "metadata" / "codes.parquet"
    if not path.is_file():
        return {}
    table = read_table(path)
    if "code" not in table.column_names:
        raise EhrseqError("has no column 'code'", where=str(path), mend="see the MEDS schema")
    codes = table["code"].to_pylist()
    parents = table["parent_codes"].to_pylist() if "parent_codes" in table.column_names else [None] * len(codes)
    return {code: list(up or ()) for code, up in zip(codes, parents, strict=True) if code}


class CodeMatcher:
    """Decides which codes a list of patterns means.

    Args:
        patterns: Patterns of a task file; a code matches when any pattern does.
        parents: Parents of each code, for `under:`.
    """

    def __init__(self, patterns: Iterable[str], *, parents: Mapping[str, list[str]] | None = None) -> None:
        self.patterns = tuple(patterns)
        self._parents = parents or {}
        self._cache: dict[str, bool] = {}
        self._exact = frozenset(p for p in self.patterns if not p.startswith(("re:", "under:")))
        self._prefixes = tuple(p[:-1] for p in self._exact if p.endswith("*"))
        self._roots = frozenset(p.removeprefix("under:") for p in self.patterns if p.startswith("under:"))
        self._regexes = [_compile(p.removeprefix("re:")) for p in self.patterns if p.startswith("re:")]

    def __call__(self, code: str) -> bool:
        """Whether a code matches any pattern."""
        found = self._cache.get(code)
        if found is None:
            found = code in self._exact or code.startswith(self._prefixes) if self._prefixes else code in self._exact
            found = found or any(r.fullmatch(code) for r in self._regexes) or self._descends(code)
            self._cache[code] = found
        return found

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

    def mask(self, codes: tuple[str, ...]) -> NDArray[np.bool_]:
        """(C,) which of the codes match."""
        return np.fromiter((self(code) for code in codes), dtype=bool, count=len(codes))

    def require(self, known: Collection[str], *, suggest: Collection[str], where: str) -> None:
        """Refuse patterns that mean no known code at all, and say which codes come close.

        Args:
            known: Every code of the data set.
            suggest: Codes common enough to be named in a message.
            where: The setting that holds the patterns.
        """
        if any(self(code) for code in (*known, BIRTH, DEATH)):
            return
        wanted = self.patterns[0].removeprefix("re:").removeprefix("under:").rstrip("*")
        close = difflib.get_close_matches(wanted, sorted(set(suggest)), n=3, cutoff=0.5)
        close += [c for c in sorted(set(suggest)) if wanted.lower() in c.lower() and c not in close][: 3 - len(close)]
        mend = f"codes that come close: {', '.join(close)}" if close else "no code of the data comes close"
        raise EhrseqError(f"no code of the data matches {', '.join(self.patterns)}", where=where, mend=mend)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise EhrseqError(f"is not a regular expression: {error}", where=f"re:{pattern}", mend="correct it") from error
