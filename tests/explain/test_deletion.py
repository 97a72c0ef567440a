"""Effects of deletions, and the table of a change: their signs, their sums, and broken versions that are caught."""

import itertools
import math

import numpy as np
import pytest

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.explain import Edit, SubjectRecord, change, deletion, edited_risks
from ehrsequencing.explain.question import Question
from ehrsequencing.prediction.run import Run


@pytest.mark.parametrize("kind", ["network", "ensemble", "blend"])
def test_effects_are_risk_with_minus_risk_without(kind: str, runs: dict[str, Run], record: SubjectRecord) -> None:
    question = Question.for_run(runs[kind], cause="death", horizon_days=365.25)
    found = deletion(question, record, paired_codes=3)
    codes = (*record.known_codes(), *record.static_codes)
    assert sorted(effect.code or "" for effect in found.of_kind("code")) == sorted(codes)
    assert len(found.of_kind("visit")) == record.visits_before[-1]
    assert len(found.of_kind("pair")) == 3
    pair = found.of_kind("pair")[0]
    assert pair.code is not None
    assert pair.other is not None
    asked = [Edit(), Edit(codes=[pair.code]), Edit(codes=[pair.other]), Edit(codes=[pair.code, pair.other])]
    with_all, *without = edited_risks(runs[kind], record, asked, rows=[-1], horizons_days=[365.25])[:, 0, 1, 0]
    assert found.risk == pytest.approx(with_all, abs=1e-6)
    first, second, both = with_all - np.array(without, dtype=np.float64)
    assert pair.effect == pytest.approx(both, abs=1e-6)
    assert pair.interaction == pytest.approx(both - first - second, abs=1e-6)


def test_a_visits_effect_is_that_of_all_its_codes_there(runs: dict[str, Run], record: SubjectRecord) -> None:
    question = Question.for_run(runs["network"])
    for effect in deletion(question, record, kinds=["visit"]).effects[:3]:
        assert effect.visit is not None
        every = Edit(code_at=[(effect.visit, code) for code in record.codes[effect.visit]])
        risks = edited_risks(
            runs["network"], record, [Edit(), every], rows=[-1], horizons_days=[question.horizon_days or 0.0]
        )
        assert effect.effect == pytest.approx(float(risks[0, 0, 0, 0] - risks[1, 0, 0, 0]), abs=1e-6)


def test_nothing_after_the_prediction_time_has_an_effect(runs: dict[str, Run], record: SubjectRecord) -> None:
    row = len(record.moments) // 2
    found = deletion(Question.for_run(runs["network"]), record, row=row, kinds=["code", "visit", "code in visit"])
    assert {effect.visit for effect in found.effects} - {None} == set(range(int(record.visits_before[row])))
    assert sum(effect.count for effect in found.of_kind("visit")) == int(record.known_rows(row).sum())


@pytest.mark.parametrize("kind", ["network", "ensemble", "blend"])
def test_the_rows_of_a_change_add_up(kind: str, runs: dict[str, Run], people: list[SubjectRecord]) -> None:
    question, sizes = Question.for_run(runs[kind]), set()
    for record in [one for one in people if len(one.moments) > 1][:6]:
        for row in (1, -1):
            found = change(question, record, row=row)
            assert sum(one.change for one in found.rows) == pytest.approx(found.now - found.before, abs=1e-6)
            risks = edited_risks(
                runs[kind], record, [Edit()], rows=[row - 1, row], horizons_days=[question.horizon_days or 0.0]
            )
            np.testing.assert_allclose([found.before, found.now], risks[0, :, 0, 0], atol=1e-6)
            sizes.add(found.is_exact)
    assert sizes == {True, False}


def test_exact_shapley_values_are_the_mean_over_all_orders(runs: dict[str, Run], people: list[SubjectRecord]) -> None:
    """A slow reference: add the new codes one by one in every order."""
    question, checked = Question.for_run(runs["network"]), 0
    for record in people:
        if len(record.moments) < 2 or not 2 <= len(new := set(record.codes[int(record.visits_before[-1]) - 1])) <= 4:
            continue
        found, visit = change(question, record), int(record.visits_before[-1]) - 1
        gains = dict.fromkeys(new, 0.0)
        for order in itertools.permutations(new):
            steps = [Edit(code_at=[(visit, code) for code in order[k:]]) for k in range(len(order) + 1)]
            risks = edited_risks(
                runs["network"], record, steps, rows=[-1], horizons_days=[question.horizon_days or 0.0]
            )[:, 0, 0, 0]
            for code, gain in zip(order, np.diff(risks.astype(np.float64)), strict=True):
                gains[code] += float(gain) / math.factorial(len(new))
        own = {one.code: one.change for one in found.rows[1:]}
        assert own == pytest.approx(gains, abs=1e-6)
        checked += 1
        if checked == 3:
            return
    assert checked


def test_the_first_prediction_time_has_no_change(runs: dict[str, Run], record: SubjectRecord) -> None:
    with pytest.raises(EhrseqError, match="first prediction time"):
        change(Question.for_run(runs["network"]), record, row=0)
    with pytest.raises(EhrseqError, match="no such cause"):
        Question.for_run(runs["network"], cause="gout")
