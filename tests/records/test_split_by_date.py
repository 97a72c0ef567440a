"""A split by date is a temporal validation: training and tuning know nothing from the date on."""

from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.population import Population
from ehrsequencing.records.labels import potential_days
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from helpers.cohorts import a_task, moment, study
from helpers.meds import DAY_US, Row, record, write_meds

FROM, CUT = "2020-06-16", moment(110) // DAY_US * DAY_US  # day 110
ENDS = {
    "a code": {"code": "END"},
    "the data's end": {"dataset_end": True},
    "an age": {"age": "40y"},
    "the last event": {},
}


def people(n: int = 240) -> list[Row]:
    """Subject s has its index on day s / 2; an event 20 or 100 days later, or none; a late code from day 115 on."""
    rows = []
    for s in range(n):
        at = s / 2
        text = f"-7305 MEDS_BIRTH, {at} A, {at} IDX, {at + 10} A, {at + 150} A"
        text += {0: "", 1: f", {at + 20} OUT", 2: f", {at + 100} OUT"}[s % 3]
        text += f", {max(at + 5, 115.0)} LATE, {at + 180} END, {at + 400} A"
        rows += record(s, text)
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_meds(tmp_path_factory.mktemp("by-date") / "data", people(), shards=2)


def prepared_set(data: Path, out: Path, task: TaskConfig) -> Prepared:
    config = study("splits.by=date", f"splits.from={FROM}", "vocabulary.min_subjects=1")
    prepare(data, out, study=config, tasks=[task])
    return Prepared(out)


@pytest.mark.parametrize("end", ENDS)
def test_nothing_of_training_and_tuning_lies_after_the_date(end: str, data: Path, tmp_path: Path) -> None:
    task = a_task(censoring=ENDS[end], horizons=["30d", "60d"])
    store = prepared_set(data, tmp_path / "out", task)
    events = 0
    for split in ("train", "tuning"):
        records = store.records("t", split)
        rows = records.rows
        ends = rows.prediction_us + np.round(rows.duration_days * DAY_US).astype(np.int64)
        assert len(rows)
        assert records.timelines.end_us.max() < CUT
        assert ends.max() <= CUT
        events += int((rows.cause > 0).sum())
        potential = potential_days(records, task, store.manifest["dataset_end_us"], store.cut_us(split))
        assert (rows.duration_days <= potential + 1e-9).all()
        early = np.asarray(rows.cause == 0) & (ends < CUT)
        assert not early.any(), "everybody without an event was followed until the date"
        assert Population.of_split(store, task, split).cut_us == CUT
    assert events
    assert "LATE" not in store.vocabulary.tokens
    held_out = store.records("t", "held_out")
    assert held_out.rows.prediction_us.min() >= CUT
    assert store.cut_us("held_out") > store.manifest["dataset_end_us"]


def test_a_later_mark_tells_that_somebody_is_under_observation_and_no_more(data: Path, tmp_path: Path) -> None:
    """Whoever has an END before the index and one after the date is still observed at an index between them."""
    rows = people()
    again = [Row(s, moment(s / 2 - 1), "END") for s in range(1, 240)]
    both = write_meds(tmp_path / "both", [*rows, *again], shards=2)
    task = a_task(censoring=ENDS["a code"], horizons=["30d"])
    counts = [len(prepared_set(one, tmp_path / f"of-{one.name}", task).rows("t", "train")) for one in (data, both)]
    assert counts[0] == counts[1]


def test_a_horizon_that_nobody_can_be_followed_for_is_refused_with_the_date_that_allows_it(
    data: Path, tmp_path: Path
) -> None:
    with pytest.raises(EhrseqError, match=r"nobody of train can be followed for 200d before 2020-06-16 .*2020-09-14"):
        prepared_set(data, tmp_path / "out", a_task(horizons=["30d", "200d"]))
    assert moment(200) // DAY_US == int(np.datetime64("2020-09-14", "D").astype(int))
