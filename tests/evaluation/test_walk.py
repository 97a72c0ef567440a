"""Walking through time and over sites: who trains and who is tested in each step, and the pooled table."""

from pathlib import Path

import numpy as np
import pytest

import ehrsequencing as eh
from ehrsequencing.config import SplitsConfig
from ehrsequencing.core.files import read_json
from ehrsequencing.evaluation import pooling
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.repeated_splits import Again
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.events import DAY_US, parse_date_us
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.splits import sites_of
from helpers.cohorts import moment
from helpers.meds import Row, write_meds


@pytest.fixture(scope="module")
def again(sim_run: Path) -> Again:
    return Again.of_run(Run(sim_run), data=None, prepared=None, settings=None)


def test_windows_are_disjoint_and_everybody_in_them_can_be_followed(again: Again) -> None:
    horizon, end_us = 90.0, again.store.manifest["dataset_end_us"]
    steps = pooling._windows_of(again, horizon)
    assert 2 <= len(steps) <= 5
    starts = [parse_date_us(step.study.splits.from_date or "") for step in steps]
    assert starts == sorted(set(starts))
    assert [step.until_us for step in steps[:-1]] == starts[1:]
    latest = again.run.task.landmarks[-1]
    own = [again.store.rows("simulated", split) for split in SPLITS]
    firsts = [rows.row_offsets[:-1][np.diff(rows.row_offsets) > 0] for rows in own]
    first_us = np.concatenate([rows.index_us[at] for rows, at in zip(own, firsts, strict=True)])
    for step, start in zip(steps, starts, strict=True):
        inside = first_us[(first_us >= start) & (first_us < step.until_us)]
        assert len(inside) >= 40
        assert inside.max() + (horizon + latest) * DAY_US <= end_us
        assert first_us.min() + horizon * DAY_US <= start  # training has room for the horizon
        assert step.study.task.horizons == (90.0,)


def test_a_step_trains_on_nobody_whom_it_tests(again: Again, tmp_path: Path) -> None:
    step = pooling._windows_of(again, 90.0)[0]
    task = step.study.task
    assert task is not None
    prepare(again.records, tmp_path / "set", study=step.study, tasks=[task])
    store = Prepared(tmp_path / "set")
    whole = Population.of_split(store, task, "held_out")
    tested = whole.take(whole.indexed_before(step.until_us)).records
    trained = np.concatenate([store.timelines(split).subject_id for split in ("train", "tuning")])
    assert len(tested)
    assert not np.isin(tested.timelines.subject_id, trained).any()
    assert tested.rows.index_us.max() < step.until_us
    assert max(store.rows("simulated", split).prediction_us.max() for split in ("train", "tuning")) < store.cut_us(
        "train"
    )


def test_sites_are_counted_by_people(tmp_path: Path) -> None:
    rows = [Row(s, moment(0), "A", encounter="north" if s % 3 else "south") for s in range(30)]
    rows += [Row(1, moment(1), "A", encounter="south"), Row(2, moment(1), "A")]
    data = write_meds(tmp_path / "data", rows, shards=2, column="site")
    asked = SplitsConfig(by="site", column="site", held_out_sites=("north",))
    assert sites_of(data, asked) == {"north": 20, "south": 11}


@pytest.mark.slow
def test_a_walk_is_pooled_into_one_table(sim_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pooling.MOST_STEPS, "date", 3)
    eh.evaluate(sim_run, walk="date", baselines="none", bootstrap=30, progress=False, report=False)
    found = read_json(sim_run / "walk" / "date" / "pooled.json")
    assert len(found["steps"]) == len(found["sites"]) >= 2
    assert {row["metric"] for row in found["rows"]} >= {"c", "oe"}
    assert "descriptive" in (sim_run / "walk" / "date" / "pooled.html").read_text()


def test_a_run_without_sites_says_how_to_name_them(again: Again) -> None:
    with pytest.raises(eh.EhrseqError, match=r"which column names the site .*splits.by=site"):
        pooling._sites(again)
