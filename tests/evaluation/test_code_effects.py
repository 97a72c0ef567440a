"""Effects of codes for the report: those of the evaluated subjects alone, nothing that tells of few people."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.config import EvaluationConfig
from ehrsequencing.evaluation.examples import CHANGED, GONE, RARE, code_effects
from ehrsequencing.evaluation.population import Population
from ehrsequencing.explain import Question, deletion, subject_records
from ehrsequencing.explain.tables import OF_RANGE
from ehrsequencing.prediction.predict import Moment, NewRecords
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.reporting.report import render
from ehrsequencing.results.redaction import redact
from helpers.metrics_json import example

FOUND = {
    "cause": "death",
    "horizon_days": 365.25,
    "subjects": 200,
    "risk": 0.123,
    "reason": None,
    "codes": [
        {
            "code": "DX//<b>",
            "description": "Heart & failure",
            "against": None,
            "share": 0.4,
            "effect": 0.03,
            "low": 0.02,
            "high": 0.04,
        },
        {
            "code": "RX//A",
            "description": None,
            "against": "RX//Z",
            "share": 1.0,
            "effect": -0.02,
            "low": -0.03,
            "high": -0.01,
        },
        {
            "code": "RX//B",
            "description": None,
            "against": None,
            "share": 0.1,
            "effect": 0.01,
            "low": -0.01,
            "high": 0.03,
        },
    ],
}


def middle(run: Run) -> float:
    return run.task.horizons[len(run.task.horizons) // 2]


def asked(subjects: int, *, bootstrap: int = 0) -> EvaluationConfig:
    return EvaluationConfig(explained_subjects=subjects, bootstrap=bootstrap)


@pytest.fixture(scope="module")
def population(sim_prepared: Path) -> Population:
    store = Prepared(sim_prepared)
    return Population.of_split(store, store.task(store.only_task()), "held_out")


def test_codes_of_records_that_changed_in_place_have_no_effects(sim_run: Path, population: Population) -> None:
    assert population.made_from
    other = replace(population, made_from="0" * 16)
    found = code_effects(Run(sim_run), other, settings=asked(20), horizon_days=middle(Run(sim_run)))
    assert found == {"codes": [], "reason": CHANGED}


def test_the_answers_for_some_subjects_are_those_of_the_whole_data(sim_run: Path, sim_data: Path) -> None:
    run = Run(sim_run)
    whole = {one.subject_id: one for one in subject_records(NewRecords(run, sim_data))}
    chosen = frozenset(sorted(whole)[3:40:4])
    alone = {one.subject_id: one for one in subject_records(NewRecords(run, sim_data, only=chosen))}
    assert set(alone) == chosen
    for subject, one in alone.items():
        np.testing.assert_array_equal(one.prediction_us, whole[subject].prediction_us)
        assert one.codes == whole[subject].codes
    times = NewRecords(run, sim_data, only=frozenset())
    assert sum(len(rows) for _, rows in times.prediction_times(Moment("all"))) == 0


def test_effects_are_means_over_evaluated_carriers(sim_run: Path, sim_data: Path, population: Population) -> None:
    run = Run(sim_run)
    found = code_effects(run, population, settings=asked(10_000, bootstrap=20), horizon_days=middle(run))
    assert found is not None
    ids = population.records.timelines.subject_id
    own = frozenset(ids[np.unique(population.records.rows.subject)].tolist())
    people = list(subject_records(NewRecords(run, sim_data, only=own)))
    question = Question.for_run(run)
    effects = [{e.code: e.effect for e in deletion(question, one, kinds=["code"]).effects} for one in people]
    assert len(found["codes"]) > 5
    assert any(row["against"] == OF_RANGE for row in found["codes"])
    for row in (row for row in found["codes"] if row["against"] is None):
        carried = [own[row["code"]] for own in effects if row["code"] in own]
        assert 11 <= len(carried) <= 0.9 * len(people)
        assert row["effect"] == pytest.approx(np.mean(carried), abs=1e-7)  # the network's sums are float32
        counted = min(max(15, round(len(carried) / 5) * 5), len(people))
        without = len(people) - counted
        share = None if 0 < without < 11 else counted / len(people)
        assert row["share"] == pytest.approx(share, abs=5e-4)
        assert row["low"] <= row["effect"] <= row["high"]

    sizes = [abs(row["effect"]) for row in found["codes"]]
    assert sizes == sorted(sizes, reverse=True)


def test_a_reason_stands_where_nothing_is_explained(sim_run: Path, population: Population, tmp_path: Path) -> None:
    run = Run(sim_run)
    assert code_effects(run, population, settings=asked(0), horizon_days=middle(run)) is None
    for source in (None, Path("/nowhere")):
        found = code_effects(run, replace(population, source=source), settings=asked(5), horizon_days=middle(run))
        assert found == {"codes": [], "reason": GONE}
    changed = replace(population, source=tmp_path)  # its shards were deleted
    for of, subjects, reason in ((changed, 5, CHANGED), (population, 10, RARE)):  # of ten, no code has 11 carriers
        found = code_effects(run, of, settings=asked(subjects), horizon_days=middle(run))
        assert found is not None
        assert (found["codes"], found["reason"]) == ([], reason)
        metrics = {**example(), "codes": found}
        assert reason in render(metrics)
        assert "The codes that move the risk" not in render(metrics, "report.html")
        assert redact(metrics)["codes"]["reason"] == reason


def test_both_pages_name_the_codes() -> None:
    metrics = {**example(), "codes": FOUND}
    answer, details = render(metrics, "report.html"), render(metrics)
    assert "Heart &amp; failure" in answer
    assert "vs without it" in answer
    assert "RX//A, vs RX//Z: +" not in answer
    assert answer.count('class="bar faint"') >= len(FOUND["codes"])
    number = {**FOUND["codes"][0], "code": "LAB//A", "description": None, "against": OF_RANGE}
    metrics = {**example(), "codes": {**FOUND, "codes": [number]}}
    assert "high vs low" in render(metrics, "report.html")
    assert "LAB//A at its 90th rather than its 10th percentile" in render(metrics)
    for words in ("DX//&lt;b&gt;", "100%", "+1.00 (−1.00 to +3.00)", "Attention weights"):
        assert words in details
    assert "The codes that move the risk" not in render(example(), "report.html")
    assert "ehrseq explain RUN DATA" in render(example())
