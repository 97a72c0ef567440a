"""The mechanisms of the simulation: each moves the hazards by its knob, is written in the record, and can be off."""

from collections import defaultdict
from datetime import date, datetime
from typing import Any

import numpy as np
import pytest

from ehrsequencing.simulate.codes import CodeTable
from ehrsequencing.simulate.lives import NEVER_DAYS, Draws, Lives
from ehrsequencing.simulate.process import MECHANISMS, Process
from ehrsequencing.simulate.records import simulate_block
from helpers.simulate import busy_world, courses_of


def one_life(**state: float) -> Lives:
    """A healthy woman of sixty on the day of a visit long after the one before: nothing on record moves her hazards."""
    standing = {
        **dict.fromkeys(("male", "in_stay", "discharged", "has_pair", "matched", "has_order", "has_lab"), False),
        **dict.fromkeys(("chronic", "enrolment_day", "now", "day", "pair_score", "lab"), 0.0),
        **dict.fromkeys(("pairs", "order_sign"), 0),
        "age_days": 60 * 365.25,
        "visit_rate": -np.log(0.99),
        "frailty": 1.0,
        "gap_days": 500.0,
        "order_code": -1,
        "acute_day": -float(NEVER_DAYS),
    }
    assert set(state) <= set(standing)
    return Lives(**{name: np.array([state.get(name, value)], dtype=type(value)) for name, value in standing.items()})


def hazards_read_off(record: list[dict[str, Any]], p: datetime) -> tuple[list[float], dict[str, float]]:
    """Log hazards of the day after p, and each mechanism's part, from raw rows up to p by a plain loop."""
    codes = [row["code"] for row in record if row["time"] is None or row["time"] <= p]
    birth = next(row["time"] for row in record if row["code"] == "MEDS_BIRTH")
    days: dict[date, set[str]] = defaultdict(set)
    marker = 0.0
    for row in record:
        if row["time"] is not None and row["code"] != "MEDS_BIRTH" and row["time"] <= p:
            days[row["time"].date()].add(row["code"])
            if row["code"] == "LAB//MARKER":
                marker = (row["numeric_value"] - 100) / 15
    signs, order = [], []  # newest first
    for day in sorted(days, reverse=True):
        a = [code[-2:] for code in days[day] if code.startswith("DX//A")]
        b = [code[-2:] for code in days[day] if code.startswith("RX//B")]
        assert len(a) == len(b) <= 1
        signs += [1 if a == b else -1] if a else []
        order += [code[-1] for code in days[day] if code.startswith("PROC//ORDER")]
    arrivals = [day for day in sorted(days) if "STAY//DISCHARGE" not in days[day]]  # days on which something began
    before = [day for day in days if day < arrivals[-1]]
    gap = (arrivals[-1] - max(before)).days if before else 10**5
    acute = [day for day in days if "DX//FLARE" in days[day]]
    halved = (p.date() - max(acute)).days // 60 if acute else 4
    age, male = (p.date() - birth.date()).days / 365.25, "SEX//M" in codes
    chronic = {int(code[-2:]) for code in codes if code.startswith("DX//CHRONIC")}
    turn = "".join(reversed(order[:2]))
    parts = {
        "pair": sum(0.8**m * s - np.log(np.cosh(0.8**m)) for m, s in enumerate(signs)),
        "gap": 0.8 * (gap < 60),
        "order": 0.8 * (turn in {"AB", "BC", "CA"}) - 0.8 * (turn in {"BA", "CB", "AC"}),
        "decay": 1.2 / 2**halved if halved < 4 else 0.0,
        "chronic": sum(0.5 * 2 * (c + 1) / 9 for c in chronic),
        "age": 0.35 * (age - 60) / 10,
        "sex": 0.2 * male,
        "lab": 0.3 * marker,
    }
    parts["order"] -= np.log(np.cosh(0.8)) * (parts["order"] != 0)
    death = np.log(0.012 / 365.25) + 0.6 * (age - 60) / 10 + 0.3 * male
    return [np.log(0.027 / 365.25) + sum(parts.values()), death], parts


@pytest.mark.parametrize("background", [4.0, 0.0])
def test_every_hazard_can_be_read_off_the_record(background: float) -> None:
    """A plain loop over raw rows recovers each prediction time's state, hence its hazards; nothing later is needed."""
    config = busy_world(stay_visit_share=0.2, background_per_visit=background)
    process = Process(config)
    block = simulate_block(process, CodeTable(config), seed=11, block=2, subjects=60)
    rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in block.events.to_pylist():
        rows[row["subject_id"]].append(row)
    asked = block.prediction_times
    true, ratios = process.hazards_per_day(asked.lives), process.log_ratios(asked.lives)
    for r in range(len(asked.subject_id)):
        p = np.datetime64(int(asked.time_us[r]), "us").item()
        expected, parts = hazards_read_off(rows[int(asked.subject_id[r])], p)
        np.testing.assert_allclose(np.log(true[:, r]), expected, atol=2e-6)  # the marker is a 32-bit float
        np.testing.assert_allclose(ratios[:, r], [parts[name] for name in MECHANISMS], atol=2e-6)
    assert len(asked.subject_id) > 300
    assert (np.abs(ratios).max(axis=1) > 0.1).all()
    assert asked.lives.in_stay.sum() > 20


def test_visits_come_each_day_with_the_subjects_own_chance() -> None:
    """Geometric gaps: mean 1/π, and P(gap > k) = (1 − π)^k; the appointment cuts only the gap that it ends."""
    process = Process(busy_world(visit_effect=0, stay_visit_share=0))
    n, rng = 40_000, np.random.default_rng(0)
    lives = one_life().take(np.zeros(n, dtype=int))
    gaps = process.advance(lives, Draws.fresh(rng, n)).gap_days
    for days in (0, 1, 30, 100, 300):
        expected = 0.99**days
        assert abs((gaps > days).mean() - expected) <= 4 * np.sqrt(expected * (1 - expected) / n)
    appointment = one_life(enrolment_day=100).take(np.zeros(n, dtype=int))
    moved = process.advance(appointment, Draws.fresh(np.random.default_rng(0), n))
    np.testing.assert_array_equal(moved.gap_days, np.minimum(gaps, 100))


def test_sickness_brings_visits_and_drop_out_by_their_knobs() -> None:
    process = Process(busy_world(lab_effect=0.5, visit_effect=0.4, stay_visit_share=0))
    sick = one_life(lab=2.0, chronic=1.0, acute_day=0, gap_days=3)
    np.testing.assert_allclose(process.sickness(sick), 0.5 * 2 + 1.0 + 1.2)
    np.testing.assert_allclose(process._visit_multiplier(sick), np.exp(0.4 * 3.2))
    np.testing.assert_allclose(process._visit_multiplier(one_life(pair_score=3, pairs=4, order_sign=1, gap_days=3)), 1)

    def trends(**knobs: float) -> tuple[float, float]:
        """Correlations of sickness at enrolment with visits per year afterwards, and with having dropped out."""
        process, courses = courses_of(3000, drop_out_per_year=0.1, **knobs)
        enrols = courses.visits.day == courses.visits.enrolment_day
        sickness = process.sickness(courses.visits.take(enrols))
        observed = courses.censoring_day - courses.visits.enrolment_day[enrols]
        alive = np.minimum(courses.death_days, courses.censoring_day) - courses.censoring_day + observed
        after = np.bincount(courses.subject[courses.visits.day > courses.visits.enrolment_day], minlength=3000)
        dropped = courses.first_day + courses.censoring_day < 18_262
        return np.corrcoef(sickness, after / (alive + 30))[0, 1], np.corrcoef(sickness, dropped)[0, 1]

    assert max(np.abs(trends(visit_effect=0, drop_out_effect=0))) < 0.06
    assert min(trends()) > 0.12
