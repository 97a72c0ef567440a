"""Risks at the moments of MEDS labels, in the format of MEDS-DEV."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from meds.schema import LabelSchema

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.predict import predict
from ehrsequencing.prediction.predict_labels import predict_labels
from ehrsequencing.records.labels import read_boolean_labels
from helpers.command_line import ehrseq


@pytest.fixture(scope="module")
def risks(sim_run: Path, sim_data: Path, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """What predict says at each subject's index, and of everybody at risk at one later day."""
    out = tmp_path_factory.mktemp("risks")
    predict(sim_run, sim_data, out / "all.parquet", horizons_days=[90.0, 365.0])
    every = pq.read_table(out / "all.parquet")
    first = every.group_by("subject_id", use_threads=False).aggregate([("prediction_time", "min")])
    first = first.rename_columns(["subject_id", "prediction_time"])
    day = str(np.sort(first["prediction_time"].to_numpy())[-30].astype("datetime64[D]"))
    predict(sim_run, sim_data, out / "day.parquet", at=day, horizons_days=[90.0, 365.0])
    at_index = every.join(first, ["subject_id", "prediction_time"], join_type="inner")
    return pa.concat_tables([at_index.select(every.column_names), pq.read_table(out / "day.parquet")])


@pytest.fixture(scope="module")
def labels(risks: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labels at two in three of these moments, in two files, and one of somebody who has no records."""
    moments = risks.group_by(["subject_id", "prediction_time"], use_threads=False).aggregate([])
    chosen = np.random.default_rng(0).permutation(len(moments))
    moments = moments.take(chosen[: len(moments) * 2 // 3])
    value = np.random.default_rng(1).random(len(moments)) < 0.3
    table = moments.append_column("boolean_value", pa.array(value))
    nobody = pa.table({
        "subject_id": [10**9], "prediction_time": moments["prediction_time"].combine_chunks()[:1],
        "boolean_value": [True],
    })  # fmt: skip
    folder = tmp_path_factory.mktemp("labels")
    for name, part in (("train/0", table[:50]), ("held_out/0", table[50:]), ("held_out/1", nobody)):
        (folder / name).parent.mkdir(exist_ok=True)
        pq.write_table(part, folder / f"{name}.parquet")
    return folder


@pytest.mark.parametrize(("cause", "horizon"), [(None, 365.0), ("death", 90.0)])
def test_each_label_gets_the_risk_that_predict_gives(
    sim_run: Path,
    sim_data: Path,
    risks: pa.Table,
    labels: Path,
    tmp_path: Path,
    cause: str | None,
    horizon: float,
) -> None:
    said: list[str] = []
    out = tmp_path / "predictions.parquet"
    count = predict_labels(sim_run, sim_data, out, labels=labels, cause=cause, horizons_days=[horizon], say=said.append)
    found = pq.read_table(out)
    LabelSchema.validate(found.select(["subject_id", "prediction_time", "boolean_value"]))
    wanted = risks.filter(
        pc.and_(pc.equal(risks["cause"], cause or "outcome"), pc.equal(risks["horizon_days"], horizon))
    )
    keys = ["subject_id", "prediction_time"]
    joined = found.join(wanted, keys).join(pq.read_table(labels).rename_columns([*keys, "label"]), keys)
    assert len(joined) == len(found) == count == len(read_boolean_labels(labels).value) - 1
    probability = joined["predicted_boolean_probability"].to_numpy()
    np.testing.assert_allclose(probability, joined["risk"].to_numpy(), atol=1e-6)
    assert np.ptp(probability) > 1e-4  # far more than that: a mixed-up row would be seen
    assert joined["boolean_value"].equals(joined["label"])
    assert (joined["predicted_boolean_value"].to_numpy() == (probability >= 0.5)).all()
    assert any("1 of" in text and "no prediction" in text for text in said)
    assert found.schema.field("predicted_boolean_probability").type == pa.float64()


def test_labels_that_say_nothing_are_refused(labels: Path, tmp_path: Path) -> None:
    table = pq.read_table(labels)
    bad = {
        "no column boolean_value": table.drop_columns("boolean_value"),
        "not true or false": table.set_column(2, "boolean_value", pa.array([1] * len(table))),
        "two different labels": pa.concat_tables([
            table, table[:1].set_column(2, "boolean_value", pc.invert(table[:1]["boolean_value"])),
        ]),
    }  # fmt: skip
    for says, broken in bad.items():
        pq.write_table(broken, tmp_path / "labels.parquet")
        with pytest.raises(EhrseqError, match=says):
            read_boolean_labels(tmp_path / "labels.parquet")
    assert len(read_boolean_labels(labels).value) == len(table)
    pq.write_table(pa.concat_tables([table, table]), tmp_path / "labels.parquet")
    assert len(read_boolean_labels(tmp_path / "labels.parquet").value) == len(table)


def test_options_that_do_not_fit_are_one_line(sim_run: Path, sim_data: Path, labels: Path, tmp_path: Path) -> None:
    of_meds = ("--format", "meds-dev", "--labels", labels)
    for words, says in (
        (("--format", "csv"), "is not a choice"),
        (("--labels", labels), "does not belong to the format share"),
        (("--format", "meds-dev"), "needs data and labels"),
        ((*of_meds, "--license", "MIT"), "does not belong to the format meds-dev"),
        ((*of_meds, "--cause", "flu", "--horizon", "90d"), "is no cause of the run"),
        (of_meds, "one horizon"),
    ):
        done = ehrseq("export", sim_run, sim_data, "--out", tmp_path / "p.parquet", *words)
        assert done.exit_code == 2, done.output
        assert says in done.stderr
        assert not (tmp_path / "p.parquet").exists()


def test_labels_of_nobody_in_the_records_leave_no_file(sim_run: Path, sim_data: Path, tmp_path: Path) -> None:
    """Moments of somebody who has no records have no risk. And the file must be one that MEDS-DEV reads."""
    moment = pa.array([np.datetime64("2016-01-01", "us")])
    nobody = pa.table({"subject_id": [10**9], "prediction_time": moment, "boolean_value": [True]})
    pq.write_table(nobody, tmp_path / "labels.parquet")
    asked: dict[str, Any] = {"labels": tmp_path / "labels.parquet", "horizons_days": [365.0]}
    with pytest.raises(EhrseqError, match=r"nobody has a prediction time|no label has a risk"):
        predict_labels(sim_run, sim_data, tmp_path / "p.parquet", **asked)
    with pytest.raises(EhrseqError, match=r"does not end in \.parquet"):
        predict_labels(sim_run, sim_data, tmp_path / "p.csv", **asked)
    assert [path.name for path in tmp_path.iterdir()] == ["labels.parquet"]
