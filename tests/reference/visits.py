"""Visits by plain loops over raw rows: reading, fixing and grouping, the first half of the oracle in `records.py`."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from ehrsequencing.config import TaskConfig, VisitsConfig
from helpers.meds import DAY_US, Row, us

Token = tuple[str, float | None]
Group = list[tuple[int, Row]]  # rows of a visit to be, with their times


def once(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what a rule says of the present subject: loops over its moments ask again and again."""

    @wraps(rule)
    def answer(records: "VisitRecords", subject: int, *others: Any) -> Any:
        if records.present != subject:
            records.present, records.kept = subject, {}
        key = (rule, *map(id, others))
        if key not in records.kept:
            records.kept[key] = rule(records, subject, *others), others  # kept too, so that ids stay theirs
        return records.kept[key][0]

    return answer


class Visit(NamedTuple):
    """A visit: first and last moment of its token-making rows, and its codes in sorted order."""

    start: int
    end: int
    codes: list[Token]


class VisitRecords:
    """The records of a data set, as the tasks that are prepared together see them.

    Args:
        rows: Raw rows in the order of the file.
        tasks: All tasks of one `prepare`: the censoring codes of each are silent for all.
        visits: How visits are cut.
        parents: `parent_codes` of each code.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        tasks: Sequence[TaskConfig] = (),
        visits: VisitsConfig | None = None,
        *,
        parents: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.tasks, self.settings, self.parents = tasks, visits or VisitsConfig(), parents or {}
        self.present: int | None = None
        self.kept: dict[tuple[Any, ...], Any] = {}
        raw: dict[int, list[Row]] = {}
        for row in rows:
            raw.setdefault(row.subject, []).append(row)
        fixed = {subject: self.fixed(raw[subject]) for subject in sorted(raw)}
        self.records = {subject: part for subject, part in fixed.items() if any(row.time is not None for row in part)}
        self.latest = max((time for each in self.records for time, _ in self.timed(each)), default=0)
        self.cut: dict[int, list[Visit]] = {}  # visits, once they are asked for

    # ---------------------------------------------------------------------------------------------- reading and fixing

    def fixed(self, rows: list[Row]) -> list[Row]:
        """Clean one subject's rows, sorted by time with static rows first and ties as they came.

        In this order: values that are no numbers (NaN, ±inf, 1e38 and beyond) are dropped and their codes kept; rows of
        a year ≤ 1900 (births excepted) or 9999 are dropped; of identical rows the first is kept; rows before the birth,
        then rows after the (first) death, are dropped. Rows at the very instant of the death stay. A code that does
        nothing but end a follow-up is put at the death: who has one after it is not without one.
        """
        rows = [row._replace(value=self.number(row.value)) for row in rows]
        early, late = us("1901-01-01"), us("9999-01-01")
        rows = [r for r in rows if r.time is None or (r.time < late and (r.time >= early or r.code == "MEDS_BIRTH"))]
        rows = list(dict.fromkeys(rows))
        births = [row.time for row in rows if row.code == "MEDS_BIRTH" and row.time is not None]
        rows = [row for row in rows if row.time is None or not births or row.time >= births[0]]
        deaths = [row.time for row in rows if row.code == "MEDS_DEATH" and row.time is not None]
        rows = [
            row._replace(time=min(deaths))
            if row.time is not None and self.after_death(row.time, deaths) and self.only_ends(row.code)
            else row
            for row in rows
        ]
        rows = [row for row in rows if row.time is None or not self.after_death(row.time, deaths)]
        return sorted(rows, key=lambda row: (row.time is not None, row.time or 0))

    def only_ends(self, code: str) -> bool:
        """Say whether a code ends a follow-up and is no index, start or cause of any task."""
        ends = ["END_OF_FOLLOWUP", "OBSERVATION_PERIOD_END"]
        others: list[str] = []
        for task in self.tasks:
            ends += task.censoring.code or ()
            others += [*(task.index.code or ()), *(task.censoring.start or ())]
            others += [pattern for patterns in task.patterns.values() for pattern in patterns]
        return self.matches(code, ends) and not self.matches(code, [other.partition(" ")[0] for other in others])

    def after_death(self, time: int, deaths: list[int]) -> bool:
        """Say whether a row is dropped because it comes after the first `MEDS_DEATH`."""
        return bool(deaths) and time > min(deaths)

    def number(self, value: float | None) -> float | None:
        """Keep a usable value."""
        return None if value is None or not math.isfinite(value) or abs(value) >= 1e38 else value

    def matches(self, code: str, patterns: Iterable[str]) -> bool:
        """Match exactly, by prefix (`A*`), by regex on the whole code (`re:`), or by descent (`under:`, itself too)."""
        for pattern in patterns:
            if pattern.startswith("re:"):
                found = re.fullmatch(pattern[3:], code) is not None
            elif pattern.startswith("under:"):
                found = self.descends(code, pattern[6:])
            elif pattern.endswith("*"):
                found = code.startswith(pattern[:-1])
            else:
                found = code == pattern
            if found:
                return True
        return False

    def descends(self, code: str, ancestor: str) -> bool:
        """Climb the parents of a code."""
        seen, above = set(), [code]
        while above:
            at = above.pop()
            if at == ancestor:
                return True
            if at not in seen:
                seen.add(at)
                above.extend(self.parents.get(at, ()))
        return False

    def means(self, row: Row, patterns: Iterable[str]) -> bool:
        """Match a row: its code, and its number where a pattern has a condition (`LAB >= 6.5`, with the blanks)."""
        for pattern in patterns:
            words = pattern.rsplit(" ", 2)
            if len(words) == 3 and words[1] in ("<", "<=", ">", ">=", "="):
                if self.matches(row.code, [words[0]]) and self.fulfils(row.value, words[1], float(words[2])):
                    return True
            elif self.matches(row.code, [pattern]):
                return True
        return False

    def fulfils(self, value: float | None, sign: str, number: float) -> bool:
        """Compare as MEDS stores numbers, in float32; no number fulfils no condition."""
        if value is None:
            return False
        stored, limit = float(np.float32(value)), float(np.float32(number))
        signs = {"<": stored < limit, "<=": stored <= limit, ">": stored > limit, ">=": stored >= limit}
        return signs.get(sign, stored == limit)

    def silent(self, code: str) -> bool:
        """Codes that make no token, no visit and no visit end. Outcome codes are not silent, `MEDS_DEATH` always is."""
        patterns = [*self.settings.ignore]
        for task in self.tasks:
            patterns += task.censoring.code or ()
        return code in ("MEDS_BIRTH", "MEDS_DEATH") or self.matches(code, patterns)

    @once
    def timed(self, subject: int) -> Group:
        """All rows with a time, silent ones too."""
        return [(row.time, row) for row in self.records[subject] if row.time is not None]

    def birth(self, subject: int) -> int | None:
        """Birth, where known."""
        return next((time for time, row in self.timed(subject) if row.code == "MEDS_BIRTH"), None)

    # ------------------------------------------------------------------------------------------------------ visits (§1)

    def tokens(self, subject: int) -> Group:
        """Rows that make tokens, and therefore visits."""
        return [(time, row) for time, row in self.timed(subject) if not self.silent(row.code)]

    def static_codes(self, subject: int) -> list[str]:
        """Codes without a time, each once."""
        return sorted({row.code for row in self.records[subject] if row.time is None and not self.silent(row.code)})

    def visits(self, subject: int) -> list[Visit]:
        """Cut visits; `start` and `end` are the first and last moment of the visit's own token-making rows."""
        if subject not in self.cut:
            self.cut[subject] = self.cut_visits(self.tokens(subject))
        return self.cut[subject]

    def cut_visits(self, rows: Group) -> list[Visit]:
        """Cut one subject's rows by the rule of the settings."""
        made = [Visit(*self.span(group), self.code_set([row for _, row in group])) for group in self.groups(rows)]
        return sorted(made, key=lambda visit: visit[:2])

    def groups(self, rows: Group) -> list[Group]:
        """The rows of each visit, in any order."""
        if self.settings.by == "encounter":
            return self.by_encounter(rows)
        return self.by_gap(rows) if self.settings.by == "gap" else self.keyed(rows, self.window)

    def code_set(self, rows: list[Row]) -> list[Token]:
        """Codes of a visit: identical codes without a value count once, valued events each count."""
        plain: set[Token] = {(row.code, None) for row in rows if row.value is None}
        valued: list[Token] = [(row.code, row.value) for row in rows if row.value is not None]
        return sorted([*plain, *valued], key=lambda token: (token[0], token[1] is not None, token[1] or 0.0))

    def window(self, time: int) -> int:
        """Name of the day or window, counted from midnight of 1970-01-01; earlier times count downwards (floor)."""
        return time // (round(self.settings.window * DAY_US) if self.settings.by == "window" else DAY_US)

    def new_after_gap(self, previous: int, time: int) -> bool:
        """`gap`: a new visit after H hours without a token-making row; exactly H hours are H hours."""
        return time - previous >= round(self.settings.gap * DAY_US)

    def by_gap(self, rows: Group) -> list[Group]:
        """Cut where the gap says so."""
        groups: list[Group] = []
        for time, row in rows:
            if not groups or self.new_after_gap(groups[-1][-1][0], time):
                groups.append([])
            groups[-1].append((time, row))
        return groups

    def by_encounter(self, rows: Group) -> list[Group]:
        """Rows of one id are an encounter; encounters that overlap merge; a row without an id joins the encounter whose
        [start, end] holds it (the earlier of two that touch there), else its calendar day; a day's visit that overlaps
        an encounter merges with it.
        """
        ids: dict[str, Group] = {}
        for time, row in rows:
            if row.encounter is not None:
                ids.setdefault(row.encounter, []).append((time, row))
        encounters = sorted(self.merged(list(ids.values())), key=self.span)
        spans = [self.span(group) for group in encounters]
        loose: Group = []
        for time, row in rows:
            if row.encounter is None:
                holders = [n for n, (start, end) in enumerate(spans) if self.holds(start, end, time)]
                (encounters[holders[0]] if holders else loose).append((time, row))
        return self.merged_days(encounters, self.keyed(loose, lambda time: time // DAY_US))

    def holds(self, start: int, end: int, time: int) -> bool:
        """Say whether an encounter's span holds a row without an id."""
        return start <= time <= end

    def merged_days(self, encounters: list[Group], days: list[Group]) -> list[Group]:
        """Merge days' visits with the encounters they overlap."""
        return self.merged([*encounters, *days])

    def merged(self, groups: list[Group]) -> list[Group]:
        """Merge groups that overlap, and whatever these overlap: two that only touch are one if a third joins them."""
        left, made = list(groups), []
        while left:
            members = [left.pop()]
            for member in members:  # grows while it is walked
                near = [group for group in left if self.overlap(self.span(group), self.span(member))]
                left = [group for group in left if group not in near]
                members += near
            made.append(sorted((pair for group in members for pair in group), key=lambda pair: pair[0]))
        return made

    def overlap(self, a: tuple[int, int], b: tuple[int, int]) -> bool:
        """Share more than a single instant, or one lies inside the other (borders included)."""
        shared = min(a[1], b[1]) - max(a[0], b[0])
        return shared > 0 or (b[0] <= a[0] and a[1] <= b[1]) or (a[0] <= b[0] and b[1] <= a[1])

    def span(self, group: Group) -> tuple[int, int]:
        """First and last moment of some rows."""
        return min(time for time, _ in group), max(time for time, _ in group)

    def keyed(self, rows: Group, key: Callable[[int], int]) -> list[Group]:
        """Group rows by a function of their time."""
        groups: dict[int, Group] = {}
        for time, row in rows:
            groups.setdefault(key(time), []).append((time, row))
        return list(groups.values())
