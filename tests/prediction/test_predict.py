"""Prediction in use: the same answers as on prepared data, whatever comes later in the record."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from meds.schema import LabelSchema

from ehrsequencing.config import DataConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.predict import Moment, NewRecords, Request, predict
from ehrsequencing.prediction.predict_some import predict_labels
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.events import parse_date_us
from ehrsequencing.records.labels import read_boolean_labels
from ehrsequencing.records.prepared import Prepared
from helpers.command_line import ehrseq
from helpers.meds import DAY_US, us
from helpers.rows import risk_of_rows

MOMENT = ("kind", "index_time", "days_since_index")
Key = tuple[int, int, str, float]


def read(path: Path) -> dict[Key, float]:
    table = pq.read_table(path)
    assert table.schema.names == [
        "subject_id",
        "prediction_time",
        "cause",
        "horizon_days",
        "risk",
        *MOMENT,
        "start_days",
    ]
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
        records = prepared.records("simulated", split)
        rows = records.rows
        risk = risk_of_rows(run.model, records, horizons_days=run.task.horizons)
        for r in range(0, len(rows), 7):
            key = (int(records.subject_id[r]), int(rows.prediction_us[r]))
            for e, cause in enumerate(run.task.causes):
                for h, horizon in enumerate(run.task.horizons):
                    assert answers[(*key, cause, horizon)] == pytest.approx(float(risk[r, e, h]), abs=1e-5)


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
    predict(sim_run, sim_data, tmp_path / "p.parquet", Request(at="last"))
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
    predict(sim_run, sim_data, tmp_path / "now.parquet", Request(at=date, horizons_days=[90.0, 700.0]))
    predict(
        sim_run,
        truncated(sim_data, tmp_path / "then", parse_date_us(date)),
        tmp_path / "then.parquet",
        Request(at=date, horizons_days=[90.0, 700.0]),
    )
    now, then = read(tmp_path / "now.parquet"), read(tmp_path / "then.parquet")
    assert now.keys() == then.keys()
    assert {key[1] for key in now} == {parse_date_us(date)}
    assert {key[3] for key in now} == {90.0, 700.0}
    assert max(abs(now[key] - then[key]) for key in now) < 1e-5


# ---- where the data ends ---------------------------------------------------------------------------------------------


@pytest.fixture
def few(sim_data: Path, tmp_path: Path) -> Path:
    """The held-out subjects, as data of their own."""
    (tmp_path / "few" / "data").mkdir(parents=True)
    shards = [pq.read_table(path, partitioning=None) for path in (sim_data / "data" / "held_out").glob("*.parquet")]
    pq.write_table(pa.concat_tables(shards), tmp_path / "few" / "data" / "0.parquet")
    return tmp_path / "few"


def table_of(data: Path) -> pa.Table:
    return pq.read_table(data / "data" / "0.parquet", partitioning=None)


def last_us(data: Path) -> int:
    return int(pc.max(table_of(data)["time"].cast(pa.int64())).as_py())


def with_rows(data: Path, *rows: tuple[int, int, str]) -> Path:
    """Add rows (subject, time, code)."""
    old = table_of(data)
    columns = dict(zip(("subject_id", "time", "code"), map(list, zip(*rows, strict=True)), strict=True))
    new = {f.name: pa.array(columns.get(f.name, [None] * len(rows))).cast(f.type) for f in old.schema}
    pq.write_table(pa.concat_tables([old, pa.table(new)]), data / "data" / "0.parquet")
    return data


def asked_by_age(run: Run, years: int) -> Run:
    """The run, asked from an age on."""
    run.task = run.task.model_copy(update={"index": type(run.task.index).model_validate({"age": f"{years}y"})})
    return run


def test_moments_after_the_datas_end_have_no_answer_and_are_counted(sim_run: Path, few: Path) -> None:
    """An index by age that half of the people reach only in the future."""
    birth = table_of(few).filter(pc.field("code") == "MEDS_BIRTH")["time"].cast(pa.int64()).to_numpy()
    years = int(np.median((last_us(few) - birth) / (365.25 * DAY_US)))
    records = NewRecords(asked_by_age(Run(sim_run), years), few)
    found = [records.encoder.encode(*one).rows for one in records.prediction_times(Moment())]
    assert max(int(rows.prediction_us.max()) for rows in found) <= last_us(few)
    assert records.subjects == len(birth)
    assert 5 < records.late == records.moments - sum(map(len, found))
    newest = [records.encoder.encode(*one).rows for one in records.prediction_times(Moment("last"))]
    assert max(int(rows.prediction_us.max()) for rows in newest) <= last_us(few)


def test_the_terminal_tells_what_has_no_answer(
    sim_run: Path, few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, said = Run.__init__, list[str]()

    def born_later(run: Run, folder: Path) -> None:
        real(run, folder)
        asked_by_age(run, 70)

    monkeypatch.setattr(Run, "__init__", born_later)
    predict(sim_run, few, tmp_path / "p.parquet", Request(say=said.append))
    assert any("prediction times lie after the data's end and are left out; data.extracted=" in text for text in said)
    assert any("subjects have no prediction" in text for text in said)
    monkeypatch.setattr(Run, "__init__", lambda run, folder: (real(run, folder), asked_by_age(run, 119))[0])
    with pytest.raises(EhrseqError, match=r"all \d+ prediction times lie after the data's end"):
        predict(sim_run, few, tmp_path / "none.parquet")
    assert not (tmp_path / "none.parquet").exists()


def test_a_lone_late_row_moves_nothing(sim_run: Path, few: Path, tmp_path: Path) -> None:
    predict(sim_run, few, tmp_path / "clean.parquet")
    codes, said = table_of(few).select(["subject_id", "code"]).to_pylist(), list[str]()
    dead = {row["subject_id"] for row in codes if row["code"] == "MEDS_DEATH"}
    who = next(row["subject_id"] for row in codes if row["subject_id"] not in dead)
    predict(
        sim_run, with_rows(few, (who, us("2099-12-31"), "NEW")), tmp_path / "late.parquet", Request(say=said.append)
    )
    assert read(tmp_path / "late.parquet") == read(tmp_path / "clean.parquet")
    assert any(text.startswith("left out: 1 rows of 1 subjects, in 2099, after ") for text in said)


def test_a_day_after_the_datas_end_needs_a_declared_end(sim_run: Path, few: Path, tmp_path: Path) -> None:
    out, end = tmp_path / "p.parquet", last_us(few)
    soon, later = (str(np.datetime64(end + days * DAY_US, "us"))[:10] for days in (20, 400))
    assert predict(sim_run, few, out, Request(at=soon)) > 0, "today, a little after the last row"
    with pytest.raises(EhrseqError, match="more than 31 days after the data's last row") as error:
        predict(sim_run, few, out, Request(at=later, overwrite=True))
    assert "data.extracted=" in error.value.fix
    predict(sim_run, few, out, Request(at=later, facts=DataConfig(extracted=later), overwrite=True))
    assert {key[1] for key in read(out)} == {parse_date_us(later)}
    with pytest.raises(EhrseqError, match=r"lies after data\.extracted"):
        predict(sim_run, few, out, Request(at="2200-01-01", overwrite=True, facts=DataConfig(extracted=later)))


# ---- horizons, foreign codes, files ----------------------------------------------------------------------------------


def renamed(data: Path, share: float) -> Path:
    """So large a share of the rows that make tokens gets codes that nobody knows."""
    table = table_of(data)
    codes, n = table["code"].to_pylist(), 0
    tokens = [k for k, code in enumerate(codes) if code not in ("MEDS_BIRTH", "MEDS_DEATH", "END_OF_FOLLOWUP")]
    for n in tokens[: round(share * len(tokens))]:
        codes[n] = f"ELSEWHERE//{n}"
    place = table.column_names.index("code")
    pq.write_table(table.set_column(place, "code", pa.array(codes)), data / "data" / "0.parquet")
    return data


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_the_unknown_share_is_told(sim_run: Path, few: Path, tmp_path: Path, share: float) -> None:
    said: list[str] = []
    predict(sim_run, renamed(few, share), tmp_path / "p.parquet", Request(say=said.append))
    if share == 0.3:  # the codes that fewer people have say more than their share
        assert said[0].startswith("warning: Another mix of patients, or a part of the feed is missing")
        return
    (told,) = [text for text in said if "code that the run does not know" in text]
    assert told.startswith("warning") == (share > 0.5)
    rate = float(told.removeprefix("warning: ").split("%")[0]) / 100
    assert share <= rate <= share + 0.05


def test_records_of_which_nearly_nothing_is_known_are_refused(sim_run: Path, few: Path, tmp_path: Path) -> None:
    table = renamed(few, 0.98)
    with pytest.raises(EhrseqError, match=r"of the rows have a code that the run does not know") as error:
        predict(sim_run, table, tmp_path / "p.parquet")
    assert "--force" in error.value.fix
    assert not (tmp_path / "p.parquet").exists()


def test_one_persons_many_new_codes_refuse_nothing(sim_run: Path, few: Path, tmp_path: Path) -> None:
    table, said = table_of(few), list[str]()
    who, when = int(table["subject_id"][9].as_py()), int(table["time"].cast(pa.int64())[9].as_py())
    many = [(who, when, f"ELSEWHERE//{n}") for n in range(20 * len(table))]
    assert predict(sim_run, with_rows(few, *many), tmp_path / "p.parquet", Request(at="last", say=said.append)) > 0
    (told,) = [text for text in said if "code that the run does not know" in text]
    assert told.startswith("warning: 9")


@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz"])
def test_csv_holds_what_parquet_holds(sim_run: Path, few: Path, tmp_path: Path, name: str) -> None:
    for out in (tmp_path / name, tmp_path / "p.parquet"):
        predict(sim_run, few, out, Request(at="last"))
    table, text = pq.read_table(tmp_path / "p.parquet"), pyarrow.csv.read_csv(tmp_path / name)
    assert text.column_names == table.column_names
    assert text["subject_id"].to_pylist() == table["subject_id"].to_pylist()
    assert text["prediction_time"].cast(pa.timestamp("us")).to_pylist() == table["prediction_time"].to_pylist()
    assert text["risk"].to_numpy() == pytest.approx(table["risk"].to_numpy(), rel=1e-6)
    assert set(text["start_days"].to_pylist()) == {0.0}
    assert not list(tmp_path.glob(".tmp*"))


@pytest.mark.parametrize(
    ("name", "asked", "says"),
    [
        ("p.xlsx", {}, "does not end in a format"),
        ("p.parquet.txt", {}, "does not end in a format"),
        ("p.parquet", {"at": "yesterday"}, "is not a date"),
        ("p.parquet", {"at": "2026-13-45"}, "date"),
        ("p.parquet", {"horizons_days": [30.0, 1e6]}, "beyond"),
        ("p.parquet", {"horizons_days": [0.0]}, "positive"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    sim_run: Path, sim_data: Path, tmp_path: Path, name: str, asked: dict[str, Any], says: str
) -> None:
    with pytest.raises(EhrseqError, match=says):
        predict(sim_run, sim_data, tmp_path / name, Request(**asked))
    assert not list(tmp_path.iterdir())


# ---- risks at the moments of MEDS labels, in the format of MEDS-DEV --------------------------------------------------


@pytest.fixture(scope="module")
def risks(sim_run: Path, sim_data: Path, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """What predict says at each subject's index, and of everybody at risk at one later day."""
    out = tmp_path_factory.mktemp("risks")
    predict(sim_run, sim_data, out / "all.parquet", Request(horizons_days=[90.0, 365.0]))
    every = pq.read_table(out / "all.parquet")
    first = every.group_by("subject_id", use_threads=False).aggregate([("prediction_time", "min")])
    first = first.rename_columns(["subject_id", "prediction_time"])
    day = str(np.sort(first["prediction_time"].to_numpy())[-30].astype("datetime64[D]"))
    predict(sim_run, sim_data, out / "day.parquet", Request(at=day, horizons_days=[90.0, 365.0]))
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
    nobody = pa.table(
        {
            "subject_id": [10**9],
            "prediction_time": moments["prediction_time"].combine_chunks()[:1],
            "boolean_value": [True],
        }
    )
    folder = tmp_path_factory.mktemp("labels")
    for name, part in (("train/0", table[:50]), ("held_out/0", table[50:]), ("held_out/1", nobody)):
        (folder / name).parent.mkdir(exist_ok=True)
        pq.write_table(part, folder / f"{name}.parquet")
    return folder


@pytest.mark.parametrize(("cause", "horizon"), [(None, 365.0), ("death", 90.0)])
def test_each_label_gets_the_risk_that_predict_gives(
    sim_run: Path, sim_data: Path, risks: pa.Table, labels: Path, tmp_path: Path, cause: str | None, horizon: float
) -> None:
    said: list[str] = []
    out = tmp_path / "predictions.parquet"
    count = predict_labels(
        sim_run, sim_data, out, Request(horizons_days=[horizon], say=said.append), labels=labels, cause=cause
    )
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
        "two different labels": pa.concat_tables(
            [table, table[:1].set_column(2, "boolean_value", pc.invert(table[:1]["boolean_value"]))]
        ),
    }
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
        (("--labels", labels), "labels would do nothing in the format share"),
        (("--format", "meds-dev"), "needs data and labels"),
        ((*of_meds, "--license", "MIT"), "license would do nothing in the format meds-dev"),
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
    asked, labels = Request(horizons_days=[365.0]), tmp_path / "labels.parquet"
    with pytest.raises(EhrseqError, match=r"nobody has a prediction time|no label has a risk"):
        predict_labels(sim_run, sim_data, tmp_path / "p.parquet", asked, labels=labels)
    with pytest.raises(EhrseqError, match=r"does not end in \.parquet"):
        predict_labels(sim_run, sim_data, tmp_path / "p.csv", asked, labels=labels)
    assert [path.name for path in tmp_path.iterdir()] == ["labels.parquet"]
