"""Tables and commands tell the effects, small groups are hidden; mutants of all are caught."""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from ehrsequencing.api.run import TrainedRun
from ehrsequencing.core.arrays import hash_u64
from ehrsequencing.core.disclosure import shareable_count
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.examples import trajectories
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.rivals import Evaluated
from ehrsequencing.explain import (
    Edit,
    Question,
    SubjectRecord,
    change,
    deletion,
    deletions,
    edited_risks,
    record as question_module,
    subject_records,
)
from ehrsequencing.explain.tables import CHANGE, OF_RANGE, explain_cohort
from ehrsequencing.prediction.predict import NewRecords
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.events import Events
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from helpers.command_line import ehrseq
from helpers.explained import record_of_events


def mutant_of_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries keep the summaries of the whole record."""
    encode = question_module.encode_copies

    def stale(vocabulary: Any, record: SubjectRecord, kept: Any, rows: Any) -> TaskRecords:
        whole = encode(vocabulary, record, np.ones_like(kept), rows)
        found = encode(vocabulary, record, kept, rows)
        names = ("carry_offsets", "carry_codes", "carry_values")
        vars(found.rows).update({name: getattr(whole.rows, name) for name in names})
        return found

    monkeypatch.setattr(question_module, "encode_copies", stale)


def mutant_of_the_last_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A code is struck in the last visit only."""
    kept_rows = question_module.kept_rows

    def last_only(record: SubjectRecord, edits: Any) -> Any:
        visits, kept = record.record.visits, kept_rows(record, edits)
        for rows in kept:
            rows[visits.event[visits.visit < len(visits) - 1]] = True
        return kept

    monkeypatch.setattr(question_module, "kept_rows", last_only)


def deleted_by_hand(run: Run, record: SubjectRecord, code: str) -> tuple[Any, Any]:
    """Risks as of the last moment of a record without a code: by an edit, and of the record that never had the code."""
    events, moment = record.record.events, int(record.moments.prediction_us[-1]) + 1
    asked = record_of_events(run, events, as_of_us=moment)
    without = events.take(events.code != record.code_number[code])
    alone = edited_risks(run, record_of_events(run, without, as_of_us=moment), [Edit()])
    return edited_risks(run, asked, [Edit(codes=[code])])[0], alone[0]


def marker_of(people: list[SubjectRecord]) -> SubjectRecord:
    """A record with a numeric code at several visits, and never as the first or the last row of one."""
    for record in people:
        holders = [own for own in record.codes if "LAB//MARKER" in own]
        if len(holders) > 2 and all("LAB//MARKER" not in (own[0], own[-1]) for own in holders):
            return record
    raise AssertionError


def test_a_query_carries_the_summaries_of_the_edited_record(runs: dict[str, Run], people: list[SubjectRecord]) -> None:
    record = marker_of(people)
    for run in runs.values():
        np.testing.assert_allclose(*deleted_by_hand(run, record, "LAB//MARKER"), atol=1e-6)


@pytest.mark.parametrize("mutate", [mutant_of_summaries, mutant_of_the_last_visit])
def test_a_wrong_deletion_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None],
    runs: dict[str, Run],
    people: list[SubjectRecord],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    found, truth = deleted_by_hand(runs["network"], marker_of(people), "LAB//MARKER")
    assert np.abs(found - truth).max() > 1e-5


def test_an_attribute_and_a_number_are_compared_with_another_value(runs: dict[str, Run], sim_data: Path) -> None:
    """Against copies of the records whose rows are changed in place."""
    question = Question.for_run(runs["network"])
    found = explain_cohort(question, NewRecords(runs["network"], sim_data), subjects=40, bootstrap=50)
    assert found.subjects == 40
    rows = {row["code"]: row for row in found.table.to_pylist()}
    assert not {"SEX//F", "SEX//M"} <= set(rows)  # one contrast
    records = {one.subject_id: one for one in subject_records(NewRecords(runs["network"], sim_data))}
    ids = np.array(list(records))
    people = [records[who] for who in ids[np.argsort(hash_u64(ids.astype(np.uint64)))[:40]].tolist()]
    (lab,) = [code for code, row in rows.items() if row["against"] == OF_RANGE][:1]
    sexes, numbers, newest = [], [], []
    for one in people:
        events = one.record.events
        static = one.codes_of(one.static_rows)
        sex = ["SEX//F" in static, "SEX//M" in static]
        assert sum(sex) == 1
        female, male = (events.codes.index(name) for name in ("SEX//F", "SEX//M"))
        has_sex = np.isin(events.code, [female, male])
        sexes.append([changed(question, one, code=np.where(has_sex, k, events.code)) for k in (female, male)])
        own = np.flatnonzero(one.known_rows() & (events.code == events.codes.index(lab)) & ~np.isnan(events.value))
        if len(own):
            newest.append((one, own[-1]))
    limits = np.percentile([one.record.events.value[row] for one, row in newest], [90, 10])
    for one, row in newest:
        values = [one.record.events.value.copy() for _ in limits]
        for value, limit in zip(values, limits, strict=True):
            value[row] = limit
        numbers.append([changed(question, one, value=value) for value in values])
    for code, risks in (("SEX//F", sexes), (lab, numbers)):
        row = rows[code]
        effect = np.diff(np.array(risks)[:, ::-1]).mean()
        assert row["change_in_risk"] == pytest.approx(effect, abs=1e-6)
        assert row["low"] <= row["change_in_risk"] <= row["high"]
        assert int(row["carriers"]) == shareable_count(len(risks))
    assert min(int(row["carriers"]) for row in rows.values()) >= 11
    assert all(int(row["carriers"]) <= 36 for row in rows.values() if row["against"] is None)


def changed(question: Question, record: SubjectRecord, **arrays: Any) -> float:
    """The last risk of a record whose rows have other codes or values."""
    events = replace(record.record.events, **arrays)
    other = replace(record, record=replace(record.record, events=events))
    return float(question.of_copies(other, [np.ones(len(events), dtype=bool)], rows=[-1])[0, 0, 0])


def test_the_moves_of_the_reports_patients_add_up(runs: dict[str, Run], sim_prepared: Path) -> None:
    run = runs["network"]
    population = Population.of_split(Prepared(sim_prepared), run.task, "held_out")
    risk = run.predictor.risk(population.records, run.task.horizons)
    middle = run.task.horizons[len(run.task.horizons) // 2]
    rows = trajectories(Evaluated.of_run(run), population, risk, wanted=2, horizon_days=middle)
    moves = [move for row in rows for move in row["moves"]]
    assert moves
    for row in rows:
        for move in row["moves"]:
            at = row["times_days"].index(move["day"])
            assert at <= row["now"]
            middle = len(run.task.horizons) // 2
            assert move["after"] == pytest.approx(row["curves"]["outcome"][at][middle], abs=1e-4)
            assert sum(part["change"] for part in move["parts"]) == pytest.approx(
                move["after"] - move["before"], abs=1e-3
            )


def test_the_command_explains_a_subject_and_a_cohort(
    sim_run: Path, sim_data: Path, record: SubjectRecord, tmp_path: Path
) -> None:
    out = tmp_path / "why.csv"
    done = ehrseq("explain", sim_run, sim_data, "--subject", record.subject_id, "--horizon", "1y", "--out", out)
    assert done.exit_code == 0, done.output
    assert "rows add up" in done.stdout
    assert "association in the model" in done.stdout
    assert all(
        len(line) <= 100 for line in done.stdout.splitlines() if "/" not in line
    )  # paths are as long as they are
    table = pa.csv.read_csv(out).to_pylist()
    assert {row["kind"] for row in table} == {"code", "visit", "code in visit", CHANGE}
    cohort = tmp_path / "cohort.parquet"
    told = json.loads(ehrseq("explain", sim_run, sim_data, "--subjects", 25, "--out", cohort, "--json").stdout)
    assert told["result"]["subjects"] == 25
    assert pq.read_table(cohort).num_rows
    again = ehrseq("explain", sim_run, sim_data, "--subject", record.subject_id, "--out", cohort, "--overwrite")
    assert again.exit_code == 0, again.output


def test_the_command_refuses_what_it_cannot_explain(sim_run: Path, sim_data: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "notes.csv"
    foreign.write_text("years,of,work\n")
    for given in (
        ["--subject", 10**9],
        ["--cause", "gout"],
        ["--horizon", "soon"],
        ["--horizon", "90y"],
        ["--out", foreign],
        ["--out", tmp_path / "why.txt"],
    ):
        done = ehrseq("explain", sim_run, sim_data, *given)
        assert done.exit_code == 2, done.output
        assert str(10**9) not in done.output
    assert foreign.read_text() == "years,of,work\n"


@pytest.mark.parametrize("kind", ["network", "ensemble", "blend"])
def test_effects_are_risk_with_minus_risk_without(kind: str, runs: dict[str, Run], record: SubjectRecord) -> None:
    question = Question.for_run(runs[kind], cause="death", horizon_days=365.25)
    found = deletion(question, record)
    of_codes = {effect.code: effect.effect for effect in found.effects if effect.kind == "code"}
    codes = (*record.codes_of(record.known_rows()), *record.codes_of(record.static_rows))
    assert {*of_codes} == {*codes}
    assert sum(effect.kind == "visit" for effect in found.effects) == record.moments.visits_before[-1]
    asked = [Edit(), *(Edit(codes=[code]) for code in of_codes)]
    with_all, *without = edited_risks(runs[kind], record, asked, rows=[-1], horizons_days=[365.25])[:, 0, 1, 0]
    assert found.risk == pytest.approx(with_all, abs=1e-6)
    assert [*of_codes.values()] == pytest.approx(with_all - np.array(without, dtype=np.float64), abs=1e-6)


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
    assert {effect.visit for effect in found.effects} - {None} == set(range(int(record.moments.visits_before[row])))
    assert sum(effect.count for effect in found.effects if effect.kind == "visit") == int(record.known_rows(row).sum())


@pytest.mark.parametrize("kind", ["network", "ensemble", "blend"])
def test_the_rows_of_a_change_add_up(kind: str, runs: dict[str, Run], people: list[SubjectRecord]) -> None:
    question = Question.for_run(runs[kind])
    for record in [one for one in people if len(one.moments) > 1][:6]:
        for row in (1, -1):
            before, now, parts = change(question, record, row=row)
            assert sum(one.change for one in parts) == pytest.approx(now - before, abs=1e-6)
            risks = edited_risks(
                runs[kind], record, [Edit()], rows=[row - 1, row], horizons_days=[question.horizon_days or 0.0]
            )
            np.testing.assert_allclose([before, now], risks[0, :, 0, 0], atol=1e-6)


def test_exact_shapley_values_are_the_mean_over_all_orders(runs: dict[str, Run], people: list[SubjectRecord]) -> None:
    """A slow reference: add the new codes one by one in every order."""
    question, checked = Question.for_run(runs["network"]), 0
    for record in people:
        visit = int(record.moments.visits_before[-1]) - 1
        if len(record.moments) < 2 or not 2 <= len(new := set(record.codes[visit])) <= 4:
            continue
        _, _, parts = change(question, record)
        gains = dict.fromkeys(new, 0.0)
        for order in itertools.permutations(new):
            steps = [Edit(code_at=[(visit, code) for code in order[k:]]) for k in range(len(order) + 1)]
            risks = edited_risks(
                runs["network"], record, steps, rows=[-1], horizons_days=[question.horizon_days or 0.0]
            )[:, 0, 0, 0]
            for code, gain in zip(order, np.diff(risks.astype(np.float64)), strict=True):
                gains[code] += float(gain) / math.factorial(len(new))
        own = {one.code: one.change for one in parts[1:]}
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


# ---- records with very many codes ------------------------------------------------------------------------------------


MANY = 500


def with_codes(run: Run, record: SubjectRecord, number: int) -> SubjectRecord:
    """The record as of its last prediction time, with so many codes that nobody else has just before it."""
    events, last = record.record.events, int(record.moments.prediction_us[-1])
    time = np.r_[events.time_us, np.full(number, last)]
    order = np.argsort(time, kind="stable")
    longer = Events(
        subject_id=np.full(len(order), events.subject_id[0]),
        time_us=time[order],
        code=np.r_[events.code, len(events.codes) + np.arange(number, dtype=np.int32)][order],
        codes=(*events.codes, *(f"BIG//{k}" for k in range(number))),
        value=np.r_[events.value, np.full(number, np.nan, np.float32)][order],
    )
    return record_of_events(run, longer, as_of_us=last + 1)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the copies that were encoded, batch by batch."""
    encode, found = question_module.encode_copies, list[int]()

    def counted(vocabulary: Any, record: SubjectRecord, kept: Any, rows: Any) -> Any:
        found.append(kept.size)
        return encode(vocabulary, record, kept, rows)

    monkeypatch.setattr(question_module, "encode_copies", counted)
    return found


def test_work_does_not_grow_with_the_square_of_the_codes(
    runs: dict[str, Run], record: SubjectRecord, encoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Question.for_run(runs["network"])
    monkeypatch.setattr(deletions, "MOST_ROWS", 20_000)
    for number in (MANY, 2 * MANY):
        long = with_codes(runs["network"], record, number)
        rows, before = len(long.record.events), sum(encoded)
        found = deletion(question, long)
        assert found.is_part
        assert sum(encoded) - before <= 3 * 20_000 + 2 * rows
    assert max(encoded) <= question_module.ROWS_AT_ONCE


def test_known_codes_come_first_and_have_the_same_effects(
    runs: dict[str, Run], record: SubjectRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    question, long = Question.for_run(runs["network"]), with_codes(runs["network"], record, 30)
    whole = {effect.code: effect for effect in deletion(question, long, kinds=["code"]).effects}
    words = runs["network"].vocabulary
    known = [code for code in whole if code in words.index]
    room = len(known) + 5
    monkeypatch.setattr(deletions, "MOST_ROWS", room * len(long.record.events))
    found = deletion(question, long, kinds=["code"])
    assert found.is_part
    tried = {effect.code: effect for effect in found.effects}
    assert len(tried) == room
    assert set(known) < set(tried)
    assert {f"BIG//{k}" for k in range(26, 30)} <= set(tried)  # the newest of the others, after codes without a time
    for code, effect in tried.items():
        assert effect == replace(whole[code], effect=effect.effect, log_hazard=effect.log_hazard)
        assert effect.effect == pytest.approx(whole[code].effect, abs=1e-6)


def test_a_change_in_part_adds_up_too(
    runs: dict[str, Run], people: list[SubjectRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Question.for_run(runs["network"])
    monkeypatch.setattr(deletions, "MOST_CODES", 3)
    monkeypatch.setattr(deletions, "MOST_ROWS", 1)
    shared = 0
    for record in people[:10]:
        for row in range(1, len(record.moments)):
            before, now, parts = change(question, record, row=row)
            assert sum(part.change for part in parts) == pytest.approx(now - before, abs=1e-6)
            assert len(parts) <= 1 + 3
            shared += any(part.codes > 1 for part in parts)
    assert shared


def test_commands_and_reports_say_that_it_is_a_part(
    sim_run: Path, sim_data: Path, people: list[SubjectRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, who = TrainedRun(sim_run), people[0].subject_id
    for subject in ((), ("--subject", who)):
        assert (
            "Not every code"
            not in ehrseq(
                "explain", sim_run, sim_data, "--subjects" if not subject else "-q", *subject or ("12",)
            ).stderr
        )
    monkeypatch.setattr(deletions, "MOST_ROWS", 100)
    for words in (("--subjects", 12), ("--subject", who, "-q")):
        done = ehrseq("explain", sim_run, sim_data, *words)
        assert done.exit_code == 0, done.output
        assert "warning: Not every code of a very long record was removed" in done.stderr
    with pytest.warns(UserWarning, match="Not every code of a very long record"):
        run.explain(sim_data, subject=who, progress=False)
    assert explain_cohort(Question.for_run(run), NewRecords(run, sim_data), subjects=12, bootstrap=0).is_part
