"""The same question by command, in Python, in the report and in the explorer: one number, under one name."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ehrsequencing as eh
from ehrsequencing.metrics.registry import METRICS
from helpers.command_line import ehrseq


def test_a_risk_and_what_a_code_adds_to_it(here: Path, tmp_path: Path) -> None:
    run = eh.load("runs/hf")
    risk = run.predict("meds/", horizons=["1y"]).set_index("subject_id")["hf_1y"]

    done = ehrseq("predict", "runs/hf", "meds", "--at", "last", "--horizons", "1y", "--out", tmp_path / "p.csv")
    assert done.exit_code == 0, done.output
    written = pd.read_csv(tmp_path / "p.csv").query("cause == 'hf' and horizon_days == 365.25")
    np.testing.assert_allclose(written.set_index("subject_id").risk[risk.index], risk, atol=1e-6)

    explorer = run.explore("meds/", tmp_path / "e.html", patients=12)
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
    own, compared = explorer.codes_of(0), 0
    for edit in range(*removals.edit_offsets[:2]):
        codes = own.get(int(removals.target[edit]), ())
        if len(codes) == 1:
            without = explorer.removed[removals.answer_offsets[edit + 1] - 1, 0, horizon]
            assert shown[0] - without == pytest.approx(why[codes[0]], abs=2e-6)
            compared += 1
    assert compared > 2


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
