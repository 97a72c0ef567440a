"""Criteria for entering a cohort: which indexes pass, by nothing but the rows stamped up to them."""

from collections.abc import Mapping

import numpy as np

from ehrsequencing.config import EligibilityConfig, HistoryCode, format_days
from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.events import BIRTH, DAY_US, STATIC, first_time
from ehrsequencing.records.visits import Record, count_at_or_before

MAX_AGE_DAYS = 120 * 365.25  # beyond it an age is unknown, as everywhere


class Eligibility:
    """A task's criteria for its indexes.

    Args:
        rules: The criteria; None lets every index pass.
        parents: Parents of each code, for `under:` patterns.

    Attributes:
        steps: What an index must have to pass each criterion, in order.
        must_have: Each rule with its matcher.
        must_not_have: Each rule with its matcher.
    """

    def __init__(
        self, rules: EligibilityConfig | None, *, parents: Mapping[str, list[str]] | None = None
    ) -> None:
        self.steps = eligibility_steps(rules)
        self.rules = rules or EligibilityConfig()
        self.must_have, self.must_not_have = (
            [(rule, CodeMatcher(rule.code, parents=parents)) for rule in wanted]
            for wanted in (self.rules.must_have, self.rules.must_not_have)
        )

    def passed(self, record: Record, owner: Ints, moment_us: Ints) -> Ints:
        """How many criteria each index passes before the first that it fails; `len(steps)` where it passes all.

        Args:
            record: The shard.
            owner: (I,) subject row of each index.
            moment_us: (I,) the indexes.
        """
        holds = []
        if self.rules.history > 0:
            holds.append(self._has_history(record, owner, moment_us))
        if self.rules.min_age is not None or self.rules.max_age is not None:
            holds.append(self._has_age(record.birth_us[owner], moment_us))
        holds += [_has(*codes, record, owner, moment_us) for codes in self.must_have]
        holds += [~_has(*codes, record, owner, moment_us) for codes in self.must_not_have]
        if not holds:
            return np.zeros(len(owner), dtype=np.int64)
        return np.asarray(np.cumprod(np.stack(holds), axis=0).sum(axis=0))

    def _has_history(self, record: Record, owner: Ints, moment_us: Ints) -> Bools:
        is_row = ~record.events.is_code(BIRTH)
        first_us = first_time(record.events, is_row, record.subject, len(record.birth_us))[owner]
        known = (first_us != STATIC) & (first_us <= moment_us)
        history_us = moment_us - np.where(known, first_us, 0)
        return np.asarray(known & (history_us >= round(self.rules.history * DAY_US)))

    def _has_age(self, birth_us: Ints, moment_us: Ints) -> Bools:
        """Whether the age at each index is known and within the range."""
        known = (birth_us != STATIC) & (birth_us <= moment_us)
        age_us = moment_us - np.where(known, birth_us, 0)
        low, high = self.rules.min_age or 0.0, self.rules.max_age
        inside = (age_us >= round(low * DAY_US)) & (age_us <= round(MAX_AGE_DAYS * DAY_US))
        return np.asarray(known & inside & (high is None or age_us < round((high or 0.0) * DAY_US)))


def eligibility_steps(rules: EligibilityConfig | None) -> tuple[str, ...]:
    """The criteria in words, one attrition step each, in the order in which they are applied."""
    if rules is None:
        return ()
    steps = []
    if rules.history > 0:
        steps.append(f"with {format_days(rules.history)} of history before the index")
    if rules.min_age is not None or rules.max_age is not None:
        low = f"of {format_days(rules.min_age)} or older" if rules.min_age is not None else ""
        high = f"younger than {format_days(rules.max_age)}" if rules.max_age is not None else ""
        steps.append(f"{' and '.join(filter(None, (low, high)))} at the index")
    steps += [f"with {_in_words(rule)}" for rule in rules.must_have]
    steps += [f"without {_in_words(rule)}" for rule in rules.must_not_have]
    return tuple(steps)


def _in_words(rule: HistoryCode) -> str:
    times = f"{rule.count} times " if rule.count > 1 else ""
    when = "up to the index"
    if rule.within is not None:
        when = f"within {format_days(rule.within)} before the index"
    return f"{times}{' or '.join(rule.code)} {when}"


def _has(
    rule: HistoryCode, matcher: CodeMatcher, record: Record, owner: Ints, moment_us: Ints
) -> Bools:
    """Which indexes have `count` such events in `[index - within, index]`; codes without a time are ever."""
    subject, time_us = record.subject, record.events.time_us
    chosen = matcher.events(record.events)
    rows = np.flatnonzero(chosen & (time_us != STATIC))
    found, _ = count_at_or_before(subject[rows], time_us[rows], owner, moment_us)
    if rule.within is not None:
        start_us = moment_us - round(rule.within * DAY_US)
        found -= count_at_or_before(subject[rows], time_us[rows], owner, start_us - 1)[0]
    else:
        timeless = subject[chosen & (time_us == STATIC)]
        found += np.bincount(timeless, minlength=len(record.subject_id))[owner]
    return np.asarray(found >= rule.count)
