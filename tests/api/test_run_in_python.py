"""A run in Python: predictions equal those of the command, frames go in and out, and errors say how to go on."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ehrsequencing as eh
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.predict import predict


class Stream:
    """A frame of a library that is known by the Arrow protocol alone, as polars is."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def test_predictions_are_those_of_the_command(here: Path, tmp_path: Path) -> None:
    predict(here / "runs" / "hf", here / "meds", tmp_path / "p.parquet", at="last", horizons_days=[90.0, 365.25])
    long = pq.read_table(tmp_path / "p.parquet").to_pandas()
    wide = eh.load(str(here / "runs" / "hf")).predict(here / "meds", horizons=["90d", 365.25], progress=False)
    assert list(wide) == ["subject_id", "prediction_time", "hf_90d", "hf_1y", "death_90d", "death_1y"]
    assert wide.subject_id.is_unique
    for column in list(wide)[2:]:
        cause, horizon = column.split("_")
        own = long[(long.cause == cause) & (long.horizon_days == {"90d": 90.0, "1y": 365.25}[horizon])]
        assert own.subject_id.tolist() == wide.subject_id.tolist()
        np.testing.assert_array_equal(own.risk.to_numpy(), wide[column].to_numpy().astype(np.float32))


def test_records_may_be_a_folder_or_a_frame_of_any_library(here: Path) -> None:
    run, rows = eh.load("runs/hf"), eh.read_meds("meds/")
    from_folder = run.predict("meds/", horizons="1y", progress=False).sort_values("subject_id", ignore_index=True)
    for frame in (rows.sample(frac=1, random_state=0), Stream(pa.Table.from_pandas(rows))):
        risk = run.predict(frame, horizons="1y", progress=False)
        pd.testing.assert_frame_equal(risk.sort_values("subject_id", ignore_index=True), from_folder)


def test_attention_is_the_softmax_of_each_visit(here: Path) -> None:
    run, rows = eh.load("runs/hf"), eh.read_meds("meds/")
    table = run.attention("meds/")
    sums = table.groupby(["subject_id", "time"])["weight"].sum()
    np.testing.assert_allclose(sums, 1.0, atol=1e-5)
    assert (table.weight > 0).all()
    known = rows.groupby("subject_id").code.agg(set)
    for subject, own in table.groupby("subject_id"):
        assert {code for code in own.code if not code.startswith("[UNK")} <= known[subject]
    one = int(table.subject_id.iloc[-1])
    pd.testing.assert_frame_equal(
        run.attention("meds/", subject=one), table[table.subject_id == one].reset_index(drop=True)
    )


def test_a_plot_takes_axes_and_gives_them_back(here: Path) -> None:
    from matplotlib import pyplot

    run = eh.load("runs/hf")
    outcomes = run.evaluation.outcomes()
    had = int(outcomes[outcomes.event == "hf"].subject_id.iloc[0])
    ax = pyplot.subplots()[1]
    assert run.plot_risk("meds/", subject=had, ax=ax) is ax
    told = [text.get_text() for text in ax.texts]
    assert "hf happened" in told
    assert "today" in told


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda run: run.predict(3), "int is no frame .give a path, or a frame"),
        (lambda run: run.predict(pd.DataFrame({"subject_id": [1]})), "no column 'time'"),
        (lambda run: run.predict("meds/", horizons="soon"), "'soon' is not a duration"),
        (lambda run: run.attention("meds/", subject=-1), "no such subject"),
        (lambda run: run.plot_risk("meds/", subject=-1), "no such subject"),
        (lambda run: run.evaluation.plot_calibration("3y"), "3y was not evaluated .use one of 1y, 2y"),
        (lambda run: run.evaluation.plot_incidence(cause="hff"), "no cause 'hff' .use one of hf, death"),
    ],
)  # fmt: skip
def test_an_error_says_how_to_go_on(here: Path, call: Any, says: str) -> None:
    with pytest.raises(EhrseqError, match=says):
        call(eh.load("runs/hf"))


def test_a_missing_library_is_named_with_its_extra(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EhrseqError, match=r"matplotlib: is not installed .pip install 'ehrseq.*notebook"):
        eh.load("runs/hf").evaluation.plot_calibration()


def test_prepare_is_cached_by_content(here: Path, tmp_path: Path) -> None:
    first = eh.prepare("meds/", "task.yaml", out=tmp_path / "p", progress=False)
    tokens, made = len(first.vocabulary), (first.folder / "manifest.json").stat().st_mtime_ns
    again = eh.prepare(str(here / "meds"), "task.yaml", out=tmp_path / "p", progress=False)
    assert (again.folder / "manifest.json").stat().st_mtime_ns == made
    with pytest.raises(EhrseqError, match="is there already"):
        eh.prepare("meds/", "task.yaml", out=tmp_path / "p", progress=False, vocabulary={"min_subjects": 12})
    new: dict[str, Any] = {"out": tmp_path / "p", "overwrite": True, "progress": False}
    other = eh.prepare("meds/", "task.yaml", vocabulary={"min_subjects": 12}, **new)
    assert other.manifest["content"] != first.manifest["content"]
    assert len(other.vocabulary) < tokens
    (other.folder / "vocabulary.json").write_text("{}")  # damaged: neither believed nor replaced
    with pytest.raises(EhrseqError, match="has changed since it was written"):
        eh.prepare("meds/", "task.yaml", vocabulary={"min_subjects": 12}, **new)
