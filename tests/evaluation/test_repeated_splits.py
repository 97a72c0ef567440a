"""Repeated splits: the corrected interval against its formula, cells counted by hand, and a resumable command."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ehrsequencing as eh
from ehrsequencing.config import EvaluationConfig, SplitsConfig, TaskConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json
from ehrsequencing.evaluation import pooling, repeated_splits as module
from ehrsequencing.evaluation.comparison import OURS
from ehrsequencing.evaluation.evaluate import Evaluation
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.repeated_splits import Again, corrected_interval, repeated_splits, summarise
from ehrsequencing.evaluation.rivals import Evaluated, fit_rivals
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.events import DAY_US, parse_date_us
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.splits import sites_of
from ehrsequencing.results.result_types import place_of
from ehrsequencing.simulate.dataset import simulate
from helpers.cohorts import moment
from helpers.meds import Row, write_meds
from helpers.recorded import of_split
from helpers.training import Interrupted

QUICK = EvaluationConfig(baselines="none", bootstrap=0)
T_975 = {1: 12.7062047364, 2: 4.3026527297, 4: 2.7764451052, 24: 2.0638985616}  # of a printed table


@pytest.mark.parametrize("count", [2, 3, 5, 25])
@given(data=st.data())
def test_the_interval_is_that_of_nadeau_and_bengio(count: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.floats(-5, 5), min_size=count, max_size=count))
    train, test = data.draw(st.integers(1, 1000)), data.draw(st.integers(1, 1000))
    mean, low, high = corrected_interval(values, test / train)
    expected = sum(values) / count
    variance = sum((value - expected) ** 2 for value in values) / (count - 1)
    half = T_975[count - 1] * math.sqrt((1 / count + test / train) * variance)
    assert mean == pytest.approx(expected, abs=1e-9)
    assert (low, high) == pytest.approx((expected - half, expected + half), abs=1e-6)


def test_undefined_splits() -> None:
    assert np.isnan(corrected_interval([np.nan, np.nan], 0.25)).all()
    assert np.isnan(corrected_interval([1.0] * 9 + [np.nan], 0.25)).all()  # one in ten is too many
    mean, low, high = corrected_interval([1.0, 3.0] * 12 + [np.nan], 0.25)
    assert mean == 2.0
    assert (low, high) == corrected_interval([1.0, 3.0] * 12, 0.25)[1:]
    mean, low, high = corrected_interval([1.0], 0.25)
    assert mean == 1.0
    assert np.isnan([low, high]).all()


def test_differences_are_paired_over_the_splits() -> None:
    splits = [
        of_split(seed, {(OURS, 0.0, "d", 30.0, "c"): ours, ("Cox", 0.0, "d", 30.0, "c"): cox}, train=80)
        for seed, ours, cox in ((1, 0.8, 0.7), (2, 0.9, 0.6), (3, 0.7, 0.65))
    ]
    table = summarise(splits)
    assert [row["model"] for row in table["rows"]] == [OURS, "Cox"]
    (difference,) = table["differences"]
    assert difference["model"] == "Cox"
    assert difference["values"] == pytest.approx([0.1, 0.3, 0.05])
    # mean .15, s² = .0175, t_2 = 4.3027: ± 4.3027 · sqrt((1/3 + 1/4) · .0175)
    assert difference["low"] == pytest.approx(0.15 - 0.43473, abs=1e-4)
    assert difference["high"] == pytest.approx(0.15 + 0.43473, abs=1e-4)
    # paired, not the interval of two independent means
    assert difference["high"] - difference["low"] != pytest.approx(table["rows"][0]["high"] - table["rows"][0]["low"])


@pytest.fixture(scope="module")
def run(sim_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the run: its splits are written into it."""
    out = tmp_path_factory.mktemp("splits") / "run"
    shutil.copytree(sim_run, out)
    return out


@pytest.fixture(scope="module")
def table(run: Path) -> dict[str, object]:
    return repeated_splits(run, splits=3, settings=QUICK)


def test_each_split_is_the_whole_way_anew(
    run: Path, table: dict[str, object], sim_data: Path, sim_prepared: Path, tmp_path: Path
) -> None:
    assert table["seeds"] == [1234, 1235, 1236]
    store, one = Prepared(sim_prepared), Run(run)
    sets = []
    for number, seed in enumerate((1234, 1235, 1236)):
        of_run = {name: getattr(one.study, name) for name in ("task", "model", "training", "evaluation")}
        study = module.split_study(store.study.model_copy(update=of_run), seed)
        prepare(sim_data, tmp_path / str(seed), study=study, tasks=[one.task])
        again, folder = Prepared(tmp_path / str(seed)), run / "splits" / f"seed-{seed}"
        (own,) = folder.glob("*/")
        assert not (own / "prepared").exists()
        parts = {s: set(np.asarray(again.timelines(s).subject_id).tolist()) for s in ("train", "tuning", "held_out")}
        assert sum(map(len, parts.values())) == 300
        assert len(set().union(*parts.values())) == 300
        sets.append(parts["held_out"])
        assert table["held_out_subjects"][number] <= len(parts["held_out"])
        member = Run(own / "run")
        assert member.vocabulary.digest == again.vocabulary.digest  # fitted anew
        assert member.manifest["labels"] != one.manifest["labels"]
        assert member.study.training == one.study.training
        rows = Evaluation(
            member,
            Population.of_split(again, member.task, "held_out"),
            prepared=again,
            settings=QUICK,
            train_censoring=True,
            fitted=fit_rivals(Evaluated.of_run(member), again, QUICK),
        ).tables()[0]
        stored = json.loads((folder / "rows.json").read_text())
        assert stored["metrics"] == rows
        values = {(place_of(row), row["model"], row["metric"]): row["value"] for row in rows}
        for row in table["rows"]:
            assert row["values"][number] == values.get((place_of(row), row["model"], row["metric"]))
    sizes = [len(s) for s in sets]
    assert 30 < min(sizes) <= max(sizes) < 90
    shifted = {i + 1 for i in sets[1]}
    assert len(shifted & sets[0]) < 0.6 * min(sizes)  # not one pattern moved along the ids


@pytest.mark.slow
def test_finished_splits_are_kept_and_interrupted_ones_go_on(
    run: Path, table: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "run"
    shutil.copytree(run, other, ignore=shutil.ignore_patterns("splits"))

    def stop(done: int, total: int, what: str) -> None:
        if done == 1 and "training" in what:
            raise Interrupted

    with pytest.raises(Interrupted):
        repeated_splits(other, splits=3, settings=QUICK, progress=stop)
    assert not (other / "splits" / "repeated_splits.json").exists()
    assert (other / "splits" / "seed-1234" / "rows.json").is_file()
    before = (other / "splits" / "seed-1234" / "rows.json").stat().st_mtime_ns
    assert repeated_splits(other, splits=3, settings=QUICK) == table
    assert (other / "splits" / "seed-1234" / "rows.json").stat().st_mtime_ns == before

    edited = json.loads((other / "splits" / "seed-1234" / "rows.json").read_text())
    edited["metrics"][0]["value"] = 0.999
    (other / "splits" / "seed-1234" / "rows.json").write_text(json.dumps(edited))
    assert repeated_splits(other, splits=3, settings=QUICK) == table  # that split is made again
    summary = other / "splits" / "repeated_splits.json"
    result = {"data": {"simulated": True}, "warnings": [], "split": "held_out"}
    assert module.add_splits(Run(other), result)["repeated_splits"] == table
    for spoilt in (summary.read_text().replace('"splits": 3', '"splits": 30'), "[]", "{", '"text"'):
        summary.write_text(spoilt)
        added = module.add_splits(Run(other), result)
        assert "repeated_splits" not in added
        assert "repeated_splits.json is damaged" in added["warnings"][0]

    def nothing_to_do(*arguments: object, **options: object) -> None:
        raise AssertionError

    monkeypatch.setattr(module, "prepare", nothing_to_do)
    monkeypatch.setattr(module, "fit", nothing_to_do)
    assert repeated_splits(run, splits=3, settings=QUICK) == table
    assert json.loads((run / "splits" / "repeated_splits.json").read_text())["repeated_splits"] == table
    two = repeated_splits(run, splits=2, settings=QUICK.model_copy(update={"bootstrap": 7}))
    assert two["seeds"] == [1234, 1235]
    with pytest.raises(AssertionError):  # other baselines are other numbers
        repeated_splits(run, splits=2, settings=QUICK.model_copy(update={"baselines": "fast"}))
    assert repeated_splits(run, splits=3, settings=QUICK) == table  # and stands there for who comes next


def test_other_models_are_trained_anew(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same settings, what another version of the models left in a split's folder is not taken."""
    one, records = Run(run), Path(Prepared(Path(Run(run).manifest["prepared"])).manifest["data_path"])
    study = one.study.model_copy(update={"task": one.task})
    folder, trained = tmp_path / "seed-5", []

    class Made(Exception):
        pass

    def fits(plan: object, out: Path, *, resume: bool) -> None:
        trained.append(out.parent.name)
        raise Made

    monkeypatch.setattr(module, "fit", fits)
    mine = ["202611280050", "made-of-my-paper", "notes"]  # what somebody keeps there stays
    for name in mine:
        (folder / name / "run").mkdir(parents=True)
        (folder / name / "run" / "mine.txt").write_text("mine")
    for models in (1, 1, 2):
        monkeypatch.setattr("ehrsequencing.core.made_of.FORMULAS", models)
        with pytest.raises(Made):
            module.one_split(records, folder, division=module.random_division(study, 5), settings=QUICK)
    first, again, other = trained
    assert first == again != other
    assert sorted(path.name for path in folder.iterdir()) == sorted([other, *mine])
    assert all((folder / name / "run" / "mine.txt").read_text() == "mine" for name in mine)


def test_an_evaluation_in_python_holds_the_splits_of_its_run(run: Path, table: dict[str, object]) -> None:
    """With a report and without one, in what is returned and in `metrics.json`."""
    for report in (False, True):
        found = eh.evaluate(run, bootstrap=0, baselines="none", report=report, progress=False)
        assert found.result["repeated_splits"] == table
        assert json.loads((run / "metrics.json").read_text())["repeated_splits"] == table
    main = found.result["main"]
    paper = found.table2(main["horizon_days"], landmark=main["landmark_days"] or 0.0)
    assert "means over 3 random splits" in paper.caption
    place = (main["landmark_days"] or 0.0, found.result["causes"][0], main["horizon_days"])
    rows = [row for row in table["rows"] if place_of(row) == place and row["metric"] == "c"]
    for row in rows:
        assert row["mean"] is None or paper.frame.loc[row["model"], "C"].startswith(f"{row['mean']:.2f}")
    assert [row["model"] for row in rows] == paper.frame.index.tolist()


def test_what_cannot_be_split_is_said(run: Path, sim_data: Path, sim_task: TaskConfig, tmp_path: Path) -> None:
    assert repeated_splits(run, splits=3, data=sim_data, settings=QUICK)["splits"] == 3
    prepare(sim_data, tmp_path / "set", study=Run(run).study, tasks=[sim_task])
    simulate(tmp_path / "other", subjects=300, seed=9)
    nowhere = tmp_path / "nowhere"
    refused: list[tuple[dict[str, Any], str]] = [
        ({"splits": 2, "prepared": tmp_path / "set"}, "not what this run was trained on"),
        ({"splits": 1}, "needs two"),
        ({"splits": 2, "first_seed": -1}, "is not a seed"),
        ({"splits": 2, "data": nowhere}, "records have moved"),
        # whatever is kept
        ({"splits": 3, "data": tmp_path / "other", "settings": QUICK}, r"other records than .*what differs: records"),
        ({"splits": 2, "prepared": nowhere}, "prepared set has moved"),
    ]
    for asked, says in refused:
        with pytest.raises(EhrseqError, match=says):
            repeated_splits(run, **asked)


# ---- walking through time and over sites: who trains and who is tested in each step, and the pooled table ------------


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
