"""`score`: what does not fit is refused, and what is left out is counted."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.comparison import NETWORK, ORACLE
from ehrsequencing.prediction.predict import predict
from ehrsequencing.predictors.fit import BASELINES
from ehrsequencing.records.prepare import prepare
from helpers.command_line import ehrseq, refused
from helpers.score import Score, first

REFUSED: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "column": (lambda t: t.drop(columns="risk"), "has no column 'risk'"),
    "type": (lambda t: t.assign(subject_id="someone"), "column 'subject_id' has type"),
    "empty": (lambda t: t.assign(horizon_days=np.nan), "have no horizon_days"),
    "zone": (lambda t: t.assign(prediction_time=t["prediction_time"].dt.tz_localize("UTC")), "has a time zone"),
    "percent": (lambda t: t.assign(risk=100 * t["risk"]), "risks are outside 0..1"),
    "nan": (lambda t: t.assign(risk=t["risk"].mask(t.index == 3)), "1 rows have no risk"),
    "negative": (lambda t: t.assign(risk=t["risk"].mask(t.index == 3, -0.1)), "1 risks are outside 0..1"),
    "twice": (lambda t: pd.concat([t, t.head(2)]), "2 rows have the subject, prediction time, cause and horizon"),
    "a cell": (lambda t: t.drop(index=5), "1 prediction times lack the risk of some cause"),
    "cause": (lambda t: t[t["cause"] != first(t, "cause")], "has no risk of"),
    "horizon": (lambda t: t[t["horizon_days"] != first(t, "horizon_days")], "has no risk within"),
    "negative horizon": (lambda t: pd.concat([t, t.head(1).assign(horizon_days=-3.0)]), "not numbers of days after"),
    "start": (lambda t: t.assign(start_days=7.0), "its risks are given no event for 7d"),
    "starts": (lambda t: t.assign(start_days=np.arange(len(t)) % 2.0), "has 2 different start_days"),
    "nobody": (lambda t: t.assign(subject_id=-1 - t["subject_id"]), "has no prediction for anybody of the cohort"),
    "one missing": (
        lambda t: t[t["subject_id"] != first(t, "subject_id")],
        "prediction times at a landmark (0d, 1y after the index) have no prediction",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_evaluated_is_refused(frame: pd.DataFrame, scored: Score, case: str, tmp_path: Path) -> None:
    change, words = REFUSED[case]
    with pytest.raises(EhrseqError) as error:
        scored(change(frame))
    assert words in str(error.value)
    assert not (tmp_path / "p-score").exists()


def test_blanking_needs_risks_that_are_given_it(frame: pd.DataFrame, scored: Score, task: TaskConfig) -> None:
    later = task.model_copy(update={"blanking": 10.0})
    with pytest.raises(EhrseqError, match=r"task.blanking differs"):
        scored(frame, task=later)
    with pytest.raises(EhrseqError, match="does not tell from when its risks count"):
        scored(frame.drop(columns="start_days"), task=later, prepared=None)


def test_a_prepared_set_of_other_records_is_refused_whatever_its_name(
    frame: pd.DataFrame, scored: Score, sim_data: Path, task: TaskConfig, tiny_study: StudyConfig, tmp_path: Path
) -> None:
    """Records of the same people, under the same name, without one row."""
    other = Path(shutil.copytree(sim_data, tmp_path / "other" / sim_data.name))
    (other / "manifest.json").unlink()
    shard = sorted((other / "data").rglob("*.parquet"))[0]
    table = pq.read_table(shard, partitioning=None)
    pq.write_table(table.slice(0, len(table) - 1), shard)
    prepare(other, tmp_path / "set", study=tiny_study, tasks=[task])
    with pytest.raises(EhrseqError, match=r"holds other records .*what differs: records"):
        scored(frame, prepared=tmp_path / "set")


def test_risks_that_were_predicted_from_other_records_are_refused(
    sim_run: Path, sim_data: Path, task_file: Path, tmp_path: Path
) -> None:
    """A file that ehrseq predict wrote knows its records; a CSV of any model does not."""
    other = Path(shutil.copytree(sim_data, tmp_path / "other"))
    (other / "manifest.json").unlink()
    shard = sorted((other / "data").rglob("*.parquet"))[0]
    table = pq.read_table(shard, partitioning=None)
    place = table.schema.get_field_index("numeric_value")
    doubled = pc.multiply(table["numeric_value"], 2).cast(table.schema.field(place).type)
    pq.write_table(table.set_column(place, table.schema.field(place), doubled), shard)
    for name in ("p.parquet", "p.csv"):
        predict(sim_run, other, tmp_path / name)
    quick = ("--task", task_file, "--baselines", "none", "evaluation.bootstrap=0")
    assert "predicted from other records" in refused("score", tmp_path / "p.parquet", sim_data, *quick)
    assert ehrseq("score", tmp_path / "p.parquet", other, *quick, "--out", tmp_path / "own").exit_code == 0
    assert ehrseq("score", tmp_path / "p.csv", sim_data, *quick, "--out", tmp_path / "any").exit_code == 0


def test_names_and_files_that_do_not_fit_are_refused(
    frame: pd.DataFrame, scored: Score, sim_data: Path, task_file: Path, tmp_path: Path
) -> None:
    for name in (ORACLE, NETWORK, *BASELINES):
        with pytest.raises(EhrseqError, match="name of another model"):
            scored(frame, name=name)
    with pytest.raises(EhrseqError, match="is no split"):
        scored(frame, split="test")
    assert "does not end in a format" in refused("score", tmp_path / "p.txt", sim_data, "--task", task_file)
    assert "cannot be read" in refused("score", tmp_path / "none.csv", sim_data, "--task", task_file)
    (tmp_path / "no.parquet").write_text("subject_id")
    assert "cannot be read as Parquet" in refused("score", tmp_path / "no.parquet", sim_data, "--task", task_file)


def test_what_is_ignored_is_counted(frame: pd.DataFrame, scored: Score, predicted: Path) -> None:
    plain = scored(frame)
    extra = frame.head(40).assign(cause="unheard of")
    found = scored(pd.concat([frame, extra]).sample(frac=1, random_state=1))  # in any order
    assert "Rows of 1 causes that the task does not have are ignored." in found["warnings"]
    assert found["metrics"] == [{**row} for row in plain["metrics"]]
    everybody = scored(pd.read_parquet(predicted))
    told = " ".join(everybody["warnings"])
    assert "of the file are not evaluated (another split" in told
    assert everybody["metrics"] == plain["metrics"]


def test_risks_that_are_no_incidences_have_no_likelihood(frame: pd.DataFrame, scored: Score, task: TaskConfig) -> None:
    early = frame[frame["horizon_days"] == task.horizons[0]]
    falling = pd.concat([frame, *(early.assign(horizon_days=float(days)) for days in (1, 2, 3))])
    fine = falling.assign(risk=falling["risk"] * np.minimum(falling["horizon_days"] / task.horizons[0], 1))
    assert any(row["metric"] == "nll" for row in scored(fine)["metrics"])
    bad = fine.assign(risk=np.where(fine["horizon_days"] == 1, 0.3, fine["risk"]))
    over_one = fine.assign(risk=np.minimum(0.4 + 0.3 * fine["horizon_days"] / task.horizons[-1], 0.7))
    for found in (scored(bad), scored(over_one)):
        assert any("these are no cumulative incidences" in text for text in found["warnings"])
        assert not any(row["metric"] in ("nll", "ibs") for row in found["metrics"])
    flat = scored(fine.assign(risk=0.2))
    assert any("predicted curve is flat" in text for text in flat["warnings"])
    assert not any(row["metric"] == "nll" for row in flat["metrics"])
