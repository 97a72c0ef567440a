"""A fortnight of a hospital, from the lines of docs/production.md: import, list, watch, one alarm, update."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ehrsequencing as eh
from helpers.command_line import ehrseq
from helpers.settings import TINY

MAP = """
subject: id
time: when
death: died
static: {sex: SEX}
midnight: when
events:
  - {code: DISCHARGE, code_from: ward}
  - {code: LAB//GLUCOSE, value: glucose}
"""
TASK = """
name: death
index: {code: "DISCHARGE//*", which: every}
outcome: {death: MEDS_DEATH}
censoring: {dataset_end: true}
horizons: [30d, 60d]
"""
PAGE = Path(__file__).parents[1] / "docs" / "production.md"
NIGHTLY, UPDATE = (
    [shlex.split(line)[1:] for line in block.strip().splitlines()]
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
)
START, CHANGE = pd.Timestamp("2024-01-01"), 301  # the day from which six times as many die


def stays() -> pd.DataFrame:
    """Nine discharges a day, one a person."""
    rng, n = np.random.default_rng(5), 3_000
    day = np.sort(rng.uniform(0, 330, n))
    ward = rng.choice(["A", "B"], n)
    hazard = np.where(ward == "B", 0.006, 0.002)
    until = np.maximum(CHANGE - day, 0)
    needed = rng.exponential(size=n)
    gap = np.where(needed < hazard * until, needed / hazard, until + (needed - hazard * until) / (6 * hazard))
    rows = pd.DataFrame({"id": np.arange(n) + 1, "when": day, "died": day + gap, "ward": ward})
    rows["sex"], rows["glucose"] = rng.choice(["F", "M"], n), rng.normal(110, 20, n)
    for name in ("when", "died"):
        rows[name] = (START + pd.to_timedelta(rows[name].round(3), unit="D")).dt.floor("s")
    return rows


def known(rows: pd.DataFrame, day: float) -> pd.DataFrame:
    """What was known on a day."""
    now = START + pd.Timedelta(days=day)
    some = rows[rows.when <= now].copy()
    some["died"] = some.died.where(some.died <= now)
    return some


@pytest.fixture(scope="module")
def fortnight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here, rows = tmp_path_factory.mktemp("fortnight"), stays()
    (here / "map.yaml").write_text(MAP)
    (here / "task.yaml").write_text(TASK)
    known(rows, 280).to_csv(here / "past.csv", index=False)
    for words in (
        ("import", "csv", here / "past.csv", "--map", here / "map.yaml", here / "past"),
        ("prepare", here / "past", "--task", here / "task.yaml", "--out", here / "prepared"),
        ("train", here / "prepared", "--out", here / "run", *TINY),
    ):
        done = ehrseq(*words)
        assert done.exit_code == 0, done.output
    return here


def test_the_fortnight_of_the_page(fortnight: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fortnight)
    rows, codes = stays(), list[int]()
    for night in range(300, 315, 2):
        known(rows, night).to_csv("tonight.csv", index=False)
        imported, listed, watched = (ehrseq(*words, "--json") for words in NIGHTLY)
        assert (imported.exit_code, listed.exit_code) == (0, 0), listed.output
        assert watched.exit_code in (0, 4), watched.output
        codes.append(watched.exit_code)
        told = json.loads(watched.stdout)
        assert told["result"]["alarm"] == (watched.exit_code == 4)
    assert codes == sorted(codes)  # it stays
    first = codes.index(4)
    assert first > 1  # nobody was woken before anything had changed, and its day was closed
    assert told["result"]["since"] >= "2024-10-28"
    assert told["result"]["action"] == "update"
    assert told["next"] == "ehrseq update run meds --out updated"
    page = Path("monitor.html").read_text()
    assert page.count("<svg") == 3
    assert "More events than predicted" in page
    assert "src=" not in page
    metrics = dict(line.split() for line in Path("monitor.prom").read_text().splitlines()[1:])
    assert float(metrics["ehrseq_monitor_alarm"]) == 1.0
    for words in UPDATE:
        done = ehrseq(*words)
        assert done.exit_code == 0, done.output
    assert eh.load("updated").manifest["update"]["death"]["method"] != "none"
