"""A record with very many codes is explained in part, with bounded work; all others are explained as a whole."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ehrsequencing.explain import Question, SubjectRecord, change, deletion, deletions, record as question_module
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.events import Events
from helpers.explained import record_of_events

MANY = 500


def with_codes(run: Run, record: SubjectRecord, number: int) -> SubjectRecord:
    """The record as of its last prediction time, with so many codes that nobody else has just before it."""
    events, last = record.record.events, int(record.prediction_us[-1])
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
