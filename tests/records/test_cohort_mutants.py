"""Rules of cohorts, broken one by one: every broken oracle must differ from the store on the hand-counted records."""

from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.config import TaskConfig
from helpers.cohorts import HandMade, broken_rules, differences
from helpers.hand_counted import HAND_COUNTED
from helpers.meds import HOUR_US, Row
from reference.records import Records, Visit

HAND = HandMade(HAND_COUNTED)


class PredictsAtTheEvent(Records):
    def exposed(self, moment: int, end: int, blanking: int) -> bool:
        return end >= moment + blanking


class BlanksExactlyNot(Records):
    def exposed(self, moment: int, end: int, blanking: int) -> bool:
        return end > moment and end >= moment + blanking


class CensorsFirst(Records):
    def event_counts(self, event: int, censored: int) -> bool:
        return event < censored


class CompetingFirst(Records):
    def precedence(self, cause: int) -> int:
        return -cause


class KeepsPrevalent(Records):
    def prevalent(self, event: int, index: int) -> bool:
        return False


class KeepsPrevalentAtTheIndex(Records):
    def prevalent(self, event: int, index: int) -> bool:
        return event < index


class TakesTheLastIndex(Records):
    def chosen(self, times: list[int], which: str) -> list[int]:
        return times[-1:] if which == "first" else times


class TakesEveryIndex(Records):
    def chosen(self, times: list[int], which: str) -> list[int]:
        return times


class ReplacesAnExcludedIndex(Records):
    def chosen(self, times: list[int], which: str) -> list[int]:
        return times

    def valid_indexes(self, subject: int, task: TaskConfig) -> list[int]:
        return super().chosen(super().valid_indexes(subject, task), task.index.which)


class StartsAtTheFirstVisitsStart(Records):
    def first_visit_moment(self, visit: Visit) -> int:
        return visit.start


class PredictsAtVisitStarts(Records):
    def visit_moment(self, visit: Visit) -> int:
        return visit.start if visit.start > visit.end - HOUR_US * 12 else visit.end


class LeavesVisitsUnderWayOut(Records):
    def visit_counts(self, visit: Visit, index: int) -> bool:
        return visit.start > index


class LetsVisitsWin(Records):
    def add_query(self, moments: dict[int, str], moment: int) -> None:
        moments.setdefault(moment, "query")


class AsksNoLandmark(Records):
    def moments(self, subject: int, task: TaskConfig, valid: list[int]) -> dict[int, str]:
        return super().moments(subject, task.model_copy(update={"landmarks": ()}), valid)


class BelongsToTheFirstIndex(Records):
    def owner(self, valid: list[int], moment: int) -> int:
        return min(valid)


class CutsAtTheNextIndex(Records):
    def censoring(self, subject: int, task: TaskConfig, index: int) -> int | None:
        ends = [other for other in self.indexes(subject, task) if other > index]
        return min(filter(None, [super().censoring(subject, task, index), *ends]), default=None)


class CensorsAfterTheIndexOnly(Records):
    def censors(self, time: int, index: int) -> bool:
        return time > index


class CensorsBeforeTheIndexToo(Records):
    def censors(self, time: int, index: int) -> bool:
        return True


class EndsWithTheOwnRecord(Records):
    def dataset_end(self, subject: int) -> int:
        return max(time for time, _ in self.timed(subject))


class EndsWithTheLastToken(Records):
    def last_event(self, subject: int) -> int | None:
        return max((time for time, _ in self.tokens(subject)), default=None)


class FollowsTheDead(Records):
    def deaths(self, subject: int) -> list[int]:
        return []


class CensorsByNoCode(Records):
    def censoring(self, subject: int, task: TaskConfig, index: int) -> int | None:
        settings_ = task.censoring.model_copy(update={"code": None})
        return super().censoring(subject, task.model_copy(update={"censoring": settings_}), index)


class DropsTheDeathsOwnMoment(Records):
    def fixed(self, rows: list[Row]) -> list[Row]:
        deaths = {row.time for row in rows if row.code == "MEDS_DEATH"}
        return [row for row in super().fixed(rows) if row.time not in deaths or row.code == "MEDS_DEATH"]


class CensoringMakesVisits(Records):
    def silent(self, code: str) -> bool:
        return code != "CENS" and super().silent(code)


class IgnoredCodesMakeVisits(Records):
    def silent(self, code: str) -> bool:
        return code != "IGN" and super().silent(code)


class DeathMakesVisits(Records):
    def silent(self, code: str) -> bool:
        return code != "MEDS_DEATH" and super().silent(code)


class OutcomesMakeNoVisits(Records):
    def silent(self, code: str) -> bool:
        return code == "OUT" or super().silent(code)


class MatchesPrefixesExactly(Records):
    def matches(self, code: str, patterns: Any) -> bool:
        return super().matches(code, [pattern.removesuffix("*") for pattern in patterns])


class ClimbsOneStep(Records):
    def descends(self, code: str, ancestor: str) -> bool:
        return ancestor in self.parents.get(code, ())


MUTANTS = broken_rules(globals())


@pytest.mark.parametrize("mutant", MUTANTS, ids=[kind.__name__ for kind in MUTANTS])
def test_a_broken_rule_is_seen(mutant: type[Records], hand_store: Path) -> None:
    records = HAND.records(mutant)
    assert any(differences(hand_store, task, records, HAND.splits) for task in HAND.tasks)
