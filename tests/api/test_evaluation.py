"""A run in Python: predictions equal those of the command, frames go in and out, and errors say how to go on."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ehrsequencing as eh
from ehrsequencing.api import paper
from ehrsequencing.api.evaluation import EvaluationResult
from ehrsequencing.config import load_study
from ehrsequencing.config.files import load_task
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.made_of import differing
from ehrsequencing.evaluation.context import Context
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.rivals import Evaluated
from ehrsequencing.evaluation.subgroups import cohort_table
from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.prediction.predict import Request, predict
from ehrsequencing.records.prepare import content_of
from helpers.command_line import ehrseq
from helpers.explorer_page import codes_of


class Stream:
    """A frame of a library that is known by the Arrow protocol alone, as polars is."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def test_predictions_are_those_of_the_command(here: Path, tmp_path: Path) -> None:
    predict(
        here / "runs" / "hf", here / "meds", tmp_path / "p.parquet", Request(at="last", horizons_days=[90.0, 365.25])
    )
    long = pq.read_table(tmp_path / "p.parquet").to_pandas()
    wide = eh.load(str(here / "runs" / "hf")).predict(here / "meds", horizons=["90d", 365.25], progress=False)
    answers = ["subject_id", "prediction_time", "hf_90d", "hf_1y", "death_90d", "death_1y"]
    assert list(wide) == [*answers, "kind", "index_time", "days_since_index"]
    assert wide.subject_id.is_unique
    for column in answers[2:]:
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
        (lambda run: run.explain("meds/", subject=1, kind="organ"), "no kind"),
        (lambda run: run.evaluation.plot_calibration("3y"), "3y was not evaluated .use one of 1y, 2y"),
        (lambda run: run.evaluation.plot_incidence(cause="hff"), "no cause 'hff' .use one of hf, death"),
    ],
)
def test_an_error_says_how_to_go_on(here: Path, call: Any, says: str) -> None:
    with pytest.raises(EhrseqError, match=says):
        call(eh.load("runs/hf"))


def test_a_missing_library_is_named_with_its_extra(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EhrseqError, match=r"matplotlib: is not installed .*pip install -e .*notebook"):
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
    assert differing(other.manifest["made_of"], first.manifest["made_of"]) == ["vocabulary.min_subjects"]
    assert len(other.vocabulary) < tokens
    index = tmp_path / "index" / "a.parquet"  # a folder of files, as other tools write them
    index.parent.mkdir()
    task = load_task(here / "task.yaml").model_dump() | {"index": {"file": str(index.parent)}}
    cached = []
    for day in (1, 1, 2):
        when = pd.Series([pd.Timestamp(2010, 1, day)]).astype("datetime64[us]")
        pd.DataFrame({"subject_id": [1], "prediction_time": when}).to_parquet(index)
        cached.append(content_of(here / "meds", load_study(None), [eh.TaskConfig.model_validate(task)]))
    assert cached[0] == cached[1]
    assert differing(cached[1], cached[2]) == ["index_files"]
    (other.folder / "vocabulary.json").write_text("{}")  # damaged: neither believed nor replaced
    with pytest.raises(EhrseqError, match="has changed since it was written"):
        eh.prepare("meds/", "task.yaml", vocabulary={"min_subjects": 12}, **new)


# ---- the same question by command, in Python, in the report and in the explorer: one number, under one name ----------


def test_a_risk_and_what_a_code_adds_to_it(here: Path, tmp_path: Path) -> None:
    run = eh.load("runs/hf")
    risk = run.predict("meds/", horizons=["1y"]).set_index("subject_id")["hf_1y"]

    done = ehrseq("predict", "runs/hf", "meds", "--at", "last", "--horizons", "1y", "--out", tmp_path / "p.csv")
    assert done.exit_code == 0, done.output
    written = pd.read_csv(tmp_path / "p.csv").query("cause == 'hf' and horizon_days == 365.25")
    np.testing.assert_allclose(written.set_index("subject_id").risk[risk.index], risk, atol=1e-6)

    explorer = run.explore("meds/", tmp_path / "e.html", subjects=12)
    patients, year = explorer.gathered.patients, int(np.searchsorted(explorer.curve_days, 365.25))
    shown = patients.risk[patients.row_offsets[1:] - 1, 0, year]
    np.testing.assert_allclose(shown, risk[patients.subject_id], atol=1e-6)

    subject = int(patients.subject_id[0])
    why = run.explain("meds/", subject=subject, horizon="1y", kind="code").set_index("code")["change_in_risk"]
    asked = ("explain", "runs/hf", "meds", "--subject", subject, "--horizon", "1y", "--out", tmp_path / "why.csv")
    told = json.loads(ehrseq(*asked, "--json").stdout)["result"]
    assert told["question"] == "hf by 1y"
    assert told["risk"] == pytest.approx(risk[subject], abs=1e-6)
    table = pd.read_csv(tmp_path / "why.csv").query("kind == 'code'").set_index("code")["change_in_risk"]
    np.testing.assert_allclose(table[why.index], why, atol=1e-6)

    removals, horizon = explorer.removals, run.task.horizons.index(365.25)
    assert removals is not None
    own, compared = codes_of(explorer, 0), 0
    for edit in range(*removals.edit_offsets[:2]):
        codes = own.get(int(removals.target[edit]), ())
        if len(codes) == 1:
            without = explorer.removed[removals.answer_offsets[edit + 1] - 1, 0, horizon]
            assert shown[0] - without == pytest.approx(why[codes[0]], abs=2e-6)
            compared += 1
    assert compared > 2


@pytest.mark.parametrize("code", ["LAB//MARKER", "LAB//OTHER"])
def test_table_1_has_the_newest_numbers_and_who_has_none(code: str, here: Path) -> None:
    """Against the rows themselves: quantiles are those of a scale, within its steps."""
    ev, rows = eh.load("runs/hf").evaluation, eh.read_meds("meds/")
    people = ev.outcomes(landmark=0)
    numbers = rows[rows.code == code].merge(people[["subject_id", "prediction_time"]], on="subject_id")
    numbers = numbers[numbers.time <= numbers.prediction_time].sort_values("time", kind="stable")
    newest = numbers.groupby("subject_id").numeric_value.last()
    frame = ev.table1().frame
    cell = frame.loc[f"{code}, median (quartiles)", "held-out"]
    shown = [float(number) for number in re.findall(r"[\d.]+", cell)]
    expected = newest.quantile([0.5, 0.25, 0.75])
    np.testing.assert_allclose(shown, expected, atol=0.02 * np.ptp(newest))
    unknown = len(people) - len(newest)
    assert frame.loc[f"{code} unknown, n (%)", "held-out"].startswith(f"{unknown} (")
    run, prepared = eh.load("runs/hf"), eh.load("prepared")
    population = replace(Population.of_split(prepared, run.task, "held_out"), is_simulated=False)
    table = cohort_table(Context(Evaluated.of_run(run), population, prepared), 0.0)
    assert table is not None
    shared = dict(table["rows"])[f"{code} unknown, n (%)"]
    assert shared[1:] == (["<11", "15 (25)"] if unknown else ["0 (0)"] * 2)  # 4 of 45, 12 of 61
    assert ev.table1().frame.index.tolist() == [name for name, _ in table["rows"]]


def test_how_accurate_the_run_is(here: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree("runs/hf", tmp_path / "hf"))
    done = ehrseq("evaluate", folder)
    assert done.exit_code == 0, done.output
    ev = eh.load(folder).evaluation
    main = ev.result["main"]
    rows = ev.metrics[(ev.metrics.cause == "hf") & (ev.metrics.horizon_days == main["horizon_days"])]
    (c,) = rows[(rows.metric == "c") & (rows.landmark == "0d")].value
    name = METRICS["c"].name
    assert name in ev.table2().frame.columns
    assert ev.table2().frame[name].iloc[0].startswith(f"{c:.2f}")
    assert f"{c:.3f}" in done.stdout
    assert f" {name} " in done.stdout
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert f"{c:.2f}" in report
    assert f"{c:.2f}" in repr(eh.load(folder))
    assert eh.metrics.concordance(
        *(ev.outcomes()[key] for key in ("duration_days", "cause", "hf_2y")), horizon=main["horizon_days"]
    ) == pytest.approx(c)


# ---- figures and tables of real people hold nothing of fewer than 11 of them -----------------------------------------


def test_an_evaluation_of_real_people_tells_no_more_than_the_report(here: Path) -> None:
    """The example's result, taken for one of real people: 61 subjects, of whom few die."""
    run = eh.load("runs/hf")
    exact = run.evaluation
    real = EvaluationResult({**exact.result, "data": {**exact.result["data"], "simulated": False}}, run.folder, run=run)
    told = {str(count) for count in real.metrics.events.dropna()}
    assert "<11" in told
    assert not told & {str(n) for n in range(1, 11)}
    few = real.metrics[real.metrics.events.astype(str) == "<11"]
    assert few.value.isna().all()
    assert [text.get_text() for text in real.plot_incidence(cause="death").texts] == ["too few events"]
    with pytest.warns(UserWarning, match="too few people had the event"):
        assert real.calibration(cause="death").empty
    with pytest.warns(UserWarning, match="too few people had the event"):
        assert real.operating_points(cause="death").empty
    groups = real.subgroups().set_index("events")
    assert groups.filter(regex="oe|auc|brier").loc["<11"].isna().all(axis=None)


def test_what_the_figures_show_is_there_as_frames(here: Path) -> None:
    evaluation = eh.load("runs/hf").evaluation
    curve, ax = evaluation.calibration("1y"), evaluation.plot_calibration("1y")
    assert list(curve) == ["model", "predicted", "observed", "low", "high"]
    assert ax.lines[0].get_ydata().tolist() == curve.observed.tolist()
    assert len(ax.patches) == 10
    points, ax = evaluation.operating_points("1y"), evaluation.plot_decision_curve("1y")
    assert ax.lines[0].get_ydata().tolist() == points.net_benefit.tolist()
    assert points.flagged.is_monotonic_decreasing
    assert points.sensitivity.is_monotonic_decreasing
    first = points.iloc[3]
    odds = first.threshold / (1 - first.threshold)
    assert first.flagged * (first.ppv - (1 - first.ppv) * odds) == pytest.approx(first.net_benefit)
    some = points[points.flagged < 1]
    assert (some.flagged_low <= some.flagged).all()
    assert (some.flagged <= some.flagged_high).all()


def test_the_figure_of_a_notebook_has_the_numbers_of_the_report(here: Path) -> None:
    evaluation = eh.load("runs/hf").evaluation
    row = next(row for row in evaluation.result["incidence"] if row["cause"] == "hf" and row["landmark_days"] == 0)
    ax = evaluation.plot_incidence(cause="hf")
    drawn = [list(line.get_ydata()) for line in ax.lines]
    assert [group["predicted"] for group in row["groups"]] == drawn[1::2]
    told = [text.get_text() for text in ax.texts]
    assert all(str(count) in told for group in row["groups"] for count in group["at_risk"])


def test_calibration_without_any_curve_says_so() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    ax = paper.calibration([], title="death by 2y")
    assert paper.TOO_FEW in [text.get_text() for text in ax.texts]
    assert ax.get_title(loc="left") == "death by 2y"
