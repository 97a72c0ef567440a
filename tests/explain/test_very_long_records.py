"""A record with very many codes is explained in part, with bounded work; all others are explained as a whole."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.api.run import TrainedRun
from ehrsequencing.explain import Question, SubjectRecord, change, deletion, deletions, record as question_module
from ehrsequencing.explain.tables import explain_cohort
from ehrsequencing.prediction.predict import NewRecords
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.events import Events
from helpers.command_line import ehrseq
from helpers.explained import record_of_events

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
