"""An edited record is answered as a record from which the rows were really deleted, by every kind of run."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.core.arrays import Floats32
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.explain import (
    Edit,
    Question,
    SubjectRecord,
    edited_risks,
    record as question_module,
    subject_record,
    subject_records,
)
from ehrsequencing.explain.record import Copies, kept_rows, predict_copies
from ehrsequencing.prediction.predict import Moment, NewRecords, RiskPredictor
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.timelines import TaskRecords
from helpers.explained import record_of_events

KINDS = ("network", "ensemble", "blend")
MINUTE_US = 60_000_000
TASK_CODES = ("ENROLLMENT", "DX//OUTCOME", "MEDS_DEATH", "MEDS_BIRTH", "END_OF_FOLLOWUP")
Risks = dict[tuple[int, int], Floats32]


def predicted(run: Run, data: Path, at: str = "all") -> Risks:
    """What `predict` says, by subject and prediction time."""
    asked = RiskPredictor(run)
    found: Risks = {}
    for risks in asked.answers(NewRecords(run, data), Moment(at)):
        keys = zip(risks.subject_id.tolist(), risks.prediction_us.tolist(), strict=True)
        found |= dict(zip(keys, risks.risk, strict=True))
    return found


def drawn_edit(record: SubjectRecord, rng: np.random.Generator) -> Edit:
    """A random edit that leaves the first and the last row of every visit, and what the task is made of."""
    ends = {code for codes in record.codes for code in (codes[0], codes[-1])} | set(TASK_CODES)
    known = record.codes_of(record.known_rows()) + record.codes_of(record.static_rows)
    everywhere = [code for code in known if code not in ends]
    codes = {code for code in everywhere if rng.random() < 0.3}
    places = set()
    for visit, own in enumerate(record.codes):
        places |= {(visit, code) for code in own if code not in (own[0], own[-1], *TASK_CODES) and rng.random() < 0.3}
    return Edit(codes=frozenset(codes), code_at=frozenset(places))


def really_deleted(data: Path, out: Path, records: list[SubjectRecord], chosen: list[Edit]) -> Path:
    """The data set without the rows that the edits strike."""
    struck = set()
    for record, edit in zip(records, chosen, strict=True):
        events = record.record.events
        visit = np.full(len(events), -1)
        visit[record.record.visits.event] = record.record.visits.visit
        for time_us, code, number in zip(events.time_us.tolist(), events.code.tolist(), visit.tolist(), strict=True):
            name = events.codes[code]
            if name in edit.codes or (number, name) in edit.code_at or number in edit.visits:
                struck.add((record.subject_id, time_us, name))
    for path in (data / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        times = [np.iinfo(np.int64).min if t is None else t for t in table["time"].cast(pa.int64()).to_pylist()]
        keys = zip(table["subject_id"].to_pylist(), times, table["code"].to_pylist(), strict=True)
        target = out / path.relative_to(data)
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.filter(pa.array([key not in struck for key in keys])), target)
    return out


@pytest.fixture(scope="module")
def people(runs: dict[str, Run], sim_data: Path) -> list[SubjectRecord]:
    return list(subject_records(NewRecords(runs["network"], sim_data)))[::12]


@pytest.fixture(scope="module")
def drawn(people: list[SubjectRecord]) -> list[Edit]:
    rng = np.random.default_rng(0)
    return [drawn_edit(record, rng) for record in people]


@pytest.fixture(scope="module")
def without(
    sim_data: Path, people: list[SubjectRecord], drawn: list[Edit], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return really_deleted(sim_data, tmp_path_factory.mktemp("without"), people, drawn)


def worst(run: Run, people: list[SubjectRecord], chosen: list[Edit], truth: Risks) -> float:
    """The largest difference of an edited risk from the truth."""
    most = 0.0
    for record, edit in zip(people, chosen, strict=True):
        found = edited_risks(run, record, [edit])[0]
        for moment, risk in zip(record.moments.prediction_us.tolist(), found, strict=True):
            most = max(most, float(np.abs(risk - truth[record.subject_id, moment]).max()))
    return most


@pytest.mark.parametrize("kind", KINDS)
def test_an_edited_record_is_the_record_without_these_rows(
    kind: str, runs: dict[str, Run], people: list[SubjectRecord], drawn: list[Edit], without: Path
) -> None:
    run, truth = runs[kind], predicted(runs[kind], without)
    assert worst(run, people, drawn, truth) < 1e-6
    assert worst(run, people, [Edit() for _ in people], truth) > 1e-3  # the edits do move risks


def test_the_empty_edit_is_what_predict_says(runs: dict[str, Run], people: list[SubjectRecord], sim_data: Path) -> None:
    for run in runs.values():
        assert worst(run, people[:8], [Edit()] * 8, predicted(run, sim_data)) < 1e-6
    record, run = people[0], runs["network"]
    alone = edited_risks(run, record, [Edit()])
    np.testing.assert_array_equal(alone[0], RiskPredictor(run).answer(own_records(run, sim_data, record)).risk)


def own_records(run: Run, data: Path, record: SubjectRecord) -> TaskRecords:
    records = NewRecords(run, data)
    for one in records.prediction_times(Moment("all")):
        encoded = records.encoder.encode(*one)
        place = np.flatnonzero(encoded.timelines.subject_id == record.subject_id)
        if len(place):
            return encoded.take(place)
    raise AssertionError


def moment_within_a_visit(record: SubjectRecord) -> int | None:
    """A moment in a visit between the first and the last prediction time, where there is one."""
    first, last = record.moments.prediction_us[[0, -1]].tolist()
    visits = record.record.visits
    for start_us, end_us in zip(visits.start_us.tolist(), visits.end_us.tolist(), strict=True):
        if start_us > first and end_us <= last and end_us - start_us > MINUTE_US:
            return int(start_us + end_us) // 2
    return None


def test_a_query_within_a_visit_sees_what_is_left_of_it(
    runs: dict[str, Run], people: list[SubjectRecord], sim_data: Path, tmp_path: Path
) -> None:
    """As of a moment in a visit: the same rows known, summaries included, as if the others had never been written."""
    checked = 0
    for run in (runs["network"], runs["blend"]):
        for record in people[:12]:
            moment = moment_within_a_visit(record)
            if moment is None:
                continue
            events = record.record.events
            asked = record_of_events(run, events, as_of_us=moment)
            visit = int(asked.moments.visits_before[0])
            whole = edited_risks(run, asked, [Edit(), Edit(visits=[visit])])
            early = record.record.visits.event[record.record.visits.visit == visit]
            left = np.setdiff1d(np.arange(len(events)), early)
            really = edited_risks(run, record_of_events(run, events.take(left), as_of_us=moment), [Edit()])
            np.testing.assert_allclose(whole[1], really[0], atol=1e-6)
            checked += bool(np.abs(whole[0] - whole[1]).max() > 1e-6)
    assert checked > 3


def test_a_visit_without_codes_keeps_its_prediction_time(runs: dict[str, Run], people: list[SubjectRecord]) -> None:
    record = next(record for record in people if len(record.record.visits) > 3)
    everything = Edit(visits=range(len(record.record.visits)))
    found = edited_risks(runs["network"], record, [everything, Edit()])
    assert found.shape == (2, len(record.moments.prediction_us), 2, len(runs["network"].task.horizons))
    assert np.isfinite(found).all()


def test_an_edit_of_a_later_visit_changes_no_earlier_risk(runs: dict[str, Run], people: list[SubjectRecord]) -> None:
    for run in runs.values():
        record = max(people, key=lambda record: len(record.moments.prediction_us))
        last = int(record.moments.visits_before[-1]) - 1
        whole, edited = edited_risks(run, record, [Edit(), Edit(visits=[last])])
        earlier = record.moments.visits_before <= last
        np.testing.assert_allclose(whole[earlier], edited[earlier], atol=1e-6)
        assert np.abs(whole - edited).max() > 1e-5


def test_many_edits_are_answered_in_parts_with_the_same_risks(
    runs: dict[str, Run], people: list[SubjectRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = max(people, key=lambda record: len(record.record.visits))
    chosen = [Edit(codes=[code]) for code in record.codes_of(record.known_rows())]
    at_once = edited_risks(runs["network"], record, chosen, rows=[0, -1], horizons_days=[100.0])
    monkeypatch.setattr(question_module, "ROWS_AT_ONCE", 2 * len(record.record.events))
    np.testing.assert_allclose(
        edited_risks(runs["network"], record, chosen, rows=[0, -1], horizons_days=[100.0]), at_once, atol=1e-6
    )
    assert at_once.shape == (len(chosen), 2, 2, 1)


@pytest.mark.parametrize("at_once", [1, 300, 400_000])
def test_copies_of_many_people_are_answered_together_as_one_by_one(
    at_once: int, runs: dict[str, Run], people: list[SubjectRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Question.for_run(runs["blend"])
    asked = [
        Copies(record, kept_rows(record, [Edit(codes=[code]) for code in codes]), [0, -1][: 1 + k % 2])
        for k, record in enumerate(people[:4])
        for codes in [record.codes_of(record.known_rows())]
    ]
    alone = [question.of_copies(one.record, one.kept, rows=one.rows) for one in asked]
    monkeypatch.setattr(question_module, "ROWS_AT_ONCE", at_once)
    together = list(predict_copies(question.run.vocabulary, iter(asked), predict=question.answer))
    assert [part.shape for part in together] == [part.shape for part in alone]
    for part, own in zip(together, alone, strict=True):
        np.testing.assert_allclose(part, own, atol=1e-5)
    assert np.ptp([part[0, 0, 0] for part in alone]) > 1e-3  # the answers of one are not those of another


def test_a_subject_that_is_not_there_is_an_error(runs: dict[str, Run], sim_data: Path) -> None:
    with pytest.raises(EhrseqError, match="no such subject"):
        subject_record(NewRecords(runs["network"], sim_data), 10**9)
