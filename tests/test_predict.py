"""Prediction in use: the same answers as on prepared data, whatever comes later in the record."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ehrsequencing.errors import EhrseqError
from ehrsequencing.predict import Run, nll_of_rows, predict, risk_of_rows
from ehrsequencing.records.meds import parse_date_us
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.storage import read_json, write_json
from meds_helpers import DAY_US

Key = tuple[int, int, str, float]


def read(path: Path) -> dict[Key, float]:
    table = pq.read_table(path)
    assert table.schema.names == ["subject_id", "prediction_time", "cause", "horizon_days", "risk"]
    times = table["prediction_time"].cast(pa.int64()).to_pylist()
    keys = zip(
        table["subject_id"].to_pylist(),
        times,
        table["cause"].to_pylist(),
        table["horizon_days"].to_pylist(),
        strict=True,
    )
    return dict(zip(keys, table["risk"].to_pylist(), strict=True))


@pytest.fixture(scope="module")
def answers(sim_run: Path, sim_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Key, float]:
    out = tmp_path_factory.mktemp("predictions") / "deep" / "p.parquet"
    count = predict(sim_run, sim_data, out)
    found = read(out)
    run = Run(sim_run)
    assert len(found) == count * len(run.task.causes) * len(run.task.horizons)
    return found


def test_predictions_hold_every_prepared_prediction_time_with_the_same_risk(
    sim_run: Path, sim_prepared: Path, answers: dict[Key, float]
) -> None:
    run, prepared = Run(sim_run), Prepared(sim_prepared)
    for split in ("train", "tuning", "held_out"):
        timelines, rows = prepared.timelines(split), prepared.rows("simulated", split)
        risk = risk_of_rows(run.model, timelines, rows, horizons_days=run.task.horizons)
        for r in range(0, len(rows), 7):
            key = (int(timelines.subject_id[rows.subject[r]]), int(rows.prediction_us[r]))
            for e, cause in enumerate(run.task.causes):
                for h, horizon in enumerate(run.task.horizons):
                    assert answers[(*key, cause, horizon)] == pytest.approx(float(risk[r, e, h]), abs=1e-5)


def test_use_knows_no_censoring(sim_prepared: Path, answers: dict[Key, float]) -> None:
    """Someone who was censored is still asked about at later visits; nobody is after an outcome."""
    cohort = pq.read_table(sim_prepared / "tasks" / "simulated" / "cohort.parquet")
    assert len({key[:2] for key in answers}) >= len(cohort)


def truncated(data: Path, out: Path, until_us: int) -> Path:
    """The data set as it stood at a moment."""
    for path in (data / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        keep = pc.or_kleene(pc.is_null(table["time"]), pc.less_equal(table["time"].cast(pa.int64()), until_us))
        target = out / path.relative_to(data)
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.filter(keep), target)
    return out


def test_later_records_change_no_earlier_answer(
    sim_run: Path, sim_data: Path, answers: dict[Key, float], tmp_path: Path
) -> None:
    moments = sorted({key[1] for key in answers})
    until = moments[len(moments) // 2]
    predict(sim_run, truncated(sim_data, tmp_path / "then", until), tmp_path / "p.parquet")
    then = read(tmp_path / "p.parquet")
    # A visit of the last day may go on after the cut: its end, and so its row, is then another one.
    known = {key for key in then if key in answers and key[1] <= until}
    assert len(known) > 0.9 * sum(key[1] <= until - DAY_US for key in answers)
    assert max(abs(then[key] - answers[key]) for key in known) < 1e-5


def test_last_is_each_subjects_newest(sim_run: Path, sim_data: Path, answers: dict[Key, float], tmp_path: Path) -> None:
    predict(sim_run, sim_data, tmp_path / "p.parquet", at="last")
    newest: dict[int, int] = {}
    for subject, time, *_ in answers:
        newest[subject] = max(newest.get(subject, time), time)
    last = read(tmp_path / "p.parquet")
    assert {key[:2] for key in last} == set(newest.items())
    assert all(risk == pytest.approx(answers[key], abs=1e-5) for key, risk in last.items())


def test_as_of_a_day_asks_everybody_then_at_risk_and_uses_nothing_later(
    sim_run: Path, sim_data: Path, tmp_path: Path
) -> None:
    times = pa.concat_tables([pq.read_table(p) for p in (sim_data / "data").rglob("*.parquet")])["time"]
    late = int(pc.quantile(times.cast(pa.int64()), 0.7)[0].as_py())
    date = str(np.datetime64(late, "us"))[:10]
    predict(sim_run, sim_data, tmp_path / "now.parquet", at=date, horizons_days=[90.0, 700.0])
    predict(sim_run, truncated(sim_data, tmp_path / "then", parse_date_us(date)), tmp_path / "then.parquet", at=date,
            horizons_days=[90.0, 700.0])  # fmt: skip
    now, then = read(tmp_path / "now.parquet"), read(tmp_path / "then.parquet")
    assert now.keys() == then.keys()
    assert {key[1] for key in now} == {parse_date_us(date)}
    assert {key[3] for key in now} == {90.0, 700.0}
    assert max(abs(now[key] - then[key]) for key in now) < 1e-5


def test_risk_rises_with_the_horizon_and_sums_below_one(answers: dict[Key, float]) -> None:
    curves: dict[tuple[int, int], dict[str, list[float]]] = {}
    for (subject, time, cause, _), risk in answers.items():
        curves.setdefault((subject, time), {}).setdefault(cause, []).append(risk)
    for causes in curves.values():
        assert all(np.all(np.diff(curve) >= -1e-7) for curve in causes.values())
        assert sum(curve[-1] for curve in causes.values()) <= 1 + 1e-6


def test_nll_of_rows_is_the_mean_that_training_saw(sim_run: Path, sim_prepared: Path) -> None:
    run, prepared = Run(sim_run), Prepared(sim_prepared)
    rows = prepared.rows("simulated", "tuning")
    nll = nll_of_rows(run.model, prepared.timelines("tuning"), rows)
    assert nll.mean() == pytest.approx(run.manifest["tuning_nll"], rel=1e-5)


@pytest.mark.parametrize("at", ["yesterday", "2026", "2026-13-45"])
def test_an_impossible_moment_is_refused(sim_run: Path, sim_data: Path, tmp_path: Path, at: str) -> None:
    with pytest.raises(EhrseqError):
        predict(sim_run, sim_data, tmp_path / "p.parquet", at=at)
    assert not list(tmp_path.iterdir())


def test_a_run_whose_parts_do_not_belong_together_is_refused(sim_run: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(sim_run, copy)
    vocabulary = read_json(copy / "vocabulary.json")
    vocabulary["tokens"][-1] = "OTHER//CODE"
    write_json(copy / "vocabulary.json", vocabulary)
    with pytest.raises(EhrseqError, match="has changed"):
        Run(copy)
    (copy / "manifest.json").unlink()
    with pytest.raises(EhrseqError, match="finished run"):
        Run(copy)
