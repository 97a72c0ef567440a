"""New people beside a run's training people: a broken feed, another mix of patients, a cut extract, or no alarm."""

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import ehrsequencing as eh
from ehrsequencing.api.evaluate import evaluate
from ehrsequencing.api.run import TrainedRun
from ehrsequencing.config import DriftConfig, TaskConfig, VisitsConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, sha256
from ehrsequencing.core.outputs import read_manifest, save_manifest
from ehrsequencing.prediction.drift import NO_REFERENCE, Drift, compare
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.meds import MedsReader
from ehrsequencing.records.people import PEOPLE, People
from ehrsequencing.records.prepared import REFERENCE
from ehrsequencing.records.survey import survey
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.records.vocabulary_fit import VocabularyFit
from helpers.command_line import ehrseq, refused
from helpers.meds import DAY_US, Row, write_meds
from helpers.settings import TINY

YEAR_US = round(365.25 * DAY_US)
Numbers = Callable[[np.random.Generator], float]
GLUCOSE: Numbers = lambda rng: rng.normal(100, 20)  # noqa: E731
LOGNORMAL: Numbers = lambda rng: np.exp(rng.normal(4, 0.5))  # noqa: E731
CONSTANT: Numbers = lambda rng: 7.25  # noqa: E731
ZEROS: Numbers = lambda rng: max(rng.normal(-1, 1), 0.0)  # noqa: E731


def rows_of(people: int, number: Numbers, *, factor: float = 1, seed: int = 0, each: int = 3) -> list[Row]:
    rng, rows = np.random.default_rng(seed), []
    for subject in range(1, people + 1):
        rows += [Row(subject, day * DAY_US, "LAB//X", factor * number(rng)) for day in range(each)]
        rows += [Row(subject, DAY_US, "DX//A"), *([Row(subject, DAY_US, "DX//B")] if subject % 3 else [])]
    return rows


def fitted(folder: Path, rows: list[Row], *settings: str) -> Vocabulary:
    study = load_study(None, list(settings))
    fit = VocabularyFit(study.vocabulary, study.values, excluded=CodeMatcher([]))
    for events in MedsReader(write_meds(folder, rows)):
        fit.update(events, events.subjects[1], np.ones(len(events), dtype=bool))
    fit.finish().save(folder)
    return Vocabulary.load(folder)


def compared(folder: Path, vocabulary: Vocabulary, rows: list[Row], *, outcome: str = "OUTCOME") -> Drift:
    """As of a shared run, which holds a vocabulary and nothing of its training people."""
    found = survey(MedsReader(write_meds(folder, rows)), lambda: People(vocabulary, CodeMatcher([]), VisitsConfig()))
    task = TaskConfig.model_validate(TASK | {"outcome": {"event": outcome}})
    run: Any = SimpleNamespace(vocabulary=vocabulary, training_people=None, why_no_people="is missing", task=task)
    return compare(found.part, run, parents={}, limits=DriftConfig())


@pytest.mark.parametrize("mode", ["polynomial", "bins", "interpolate"])
@pytest.mark.parametrize("number", [GLUCOSE, LOGNORMAL, CONSTANT])
@pytest.mark.parametrize(("people", "enough"), [(200, 11), (30, 5)])
def test_numbers_of_another_unit_are_said(mode: str, number: Numbers, people: int, enough: int, tmp_path: Path) -> None:
    settings = (f"values.mode={mode}", f"vocabulary.min_subjects={enough}")
    vocabulary = fitted(tmp_path / "own", rows_of(people, number), *settings)
    assert not compared(tmp_path / "same", vocabulary, rows_of(40, number, seed=1)).is_alarm
    for factor in (1 / 18, 18):
        found = compared(tmp_path / f"{factor}", vocabulary, rows_of(40, number, factor=factor, seed=1))
        assert found.verdict.startswith("The feed looks broken: ")
        assert "compare the units of LAB//X (" in found.verdict
    scaled = rows_of(40, number, factor=18)
    few_numbers = [row for row in scaled if row.code != "LAB//X" or (row.subject < 7 and row.time)]
    assert not compared(tmp_path / "few", vocabulary, few_numbers).is_alarm  # 12 numbers
    few_people = [row for row in scaled if row.code != "LAB//X" or row.subject < 11]
    assert "LAB//X" not in str(compared(tmp_path / "ten", vocabulary, few_people).verdict)


@pytest.mark.parametrize(("number", "factor"), [(GLUCOSE, 1.2), (LOGNORMAL, 2.0), (ZEROS, 1000.0)])
def test_a_small_part_outside_is_no_alarm(number: Numbers, factor: float, tmp_path: Path) -> None:
    vocabulary = fitted(tmp_path / "own", rows_of(200, number))
    assert not compared(tmp_path / "new", vocabulary, rows_of(40, number, factor=factor, seed=1)).is_alarm


def test_numbers_of_one_group_of_people_have_no_percentiles(tmp_path: Path) -> None:
    vocabulary = fitted(tmp_path / "own", rows_of(15, GLUCOSE, each=1))
    assert not compared(tmp_path / "same", vocabulary, rows_of(40, GLUCOSE, seed=1)).is_alarm


@pytest.mark.parametrize("mode", ["polynomial", "none"])
def test_a_common_code_that_nobody_has_is_said_without_a_reference_too(mode: str, tmp_path: Path) -> None:
    vocabulary = fitted(tmp_path / "own", rows_of(200, GLUCOSE), f"values.mode={mode}")
    rows = rows_of(40, GLUCOSE, seed=1)
    without = [row for row in rows if row.code != "DX//B"]
    assert not compared(tmp_path / "same", vocabulary, rows).is_alarm
    found = compared(tmp_path / "without", vocabulary, without)
    assert found.verdict == "The feed looks broken: nobody has DX//B (60% in training, 0% here)."  # 67 %, rounded down
    assert found.notes == [NO_REFERENCE.format(PEOPLE, "is missing")]
    # nobody has had it yet
    assert not compared(tmp_path / "outcome", vocabulary, without, outcome="DX//B").is_alarm
    few = compared(tmp_path / "few", vocabulary, [row for row in without if row.subject <= 27])
    assert (few.verdict, few.is_alarm) == ("Not compared: fewer than 30 people are too few to say.", False)


def test_shares_are_rounded_so_that_no_count_can_be_read_off(tmp_path: Path) -> None:
    many = fitted(tmp_path / "many", rows_of(199, GLUCOSE))
    assert dict(zip(many.codes, many.share.tolist(), strict=True)) == {"DX//A": 1.0, "DX//B": 0.6, "LAB//X": 1.0}
    few = fitted(tmp_path / "few", rows_of(40, GLUCOSE))
    assert dict(zip(few.codes, few.share.tolist(), strict=True)) == {"DX//A": 1.0, "DX//B": 0.5, "LAB//X": 1.0}


# ---- a hospital, its run, and what may happen to its feed ------------------------------------------------------------

TASK = {
    "name": "t",
    "index": {"code": "ENTRY"},
    "outcome": {"event": "EVENT"},
    "censoring": {"dataset_end": True},
    "horizons": ["90d"],
}
LABS = {"LOINC//2345-7//mg/dL": 110, "LOINC//2160-0//mg/dL": 1.0, "LAB//K": 4.2, "CREA": 80}


def hospital(people: int, *, seed: int, age: float = 60, years: float = 6, first: int = 1) -> list[Row]:
    """People with some visits a year, of some years each; half of them are women."""
    rng, rows = np.random.default_rng(seed), []
    for subject in range(first, first + people):
        start = round(rng.uniform(30, 31) * YEAR_US)
        rows += [Row(subject, None, "SEX//F" if rng.random() < 0.5 else "SEX//M"), Row(subject, start, "ENTRY")]
        rows.append(Row(subject, start - round(rng.normal(age, 8) * YEAR_US), "MEDS_BIRTH"))
        times = np.sort(rng.uniform(0, rng.uniform(0.5, 1) * years, 3 + rng.poisson(3 * years)))
        for time in (start + times * YEAR_US).astype(np.int64).tolist():
            rows += [Row(subject, time, code, middle * rng.lognormal(0, 0.2)) for code, middle in LABS.items()]
            rows += [Row(subject, time, f"DX//{name}") for name in "ABCD" if rng.random() < 0.04]
        if rng.random() < 0.4:
            rows.append(Row(subject, start + round(rng.uniform(0.1, 1) * YEAR_US), "EVENT"))
    return rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("hospital")
    (here / "task.yaml").write_text(json.dumps(TASK))
    ehrseq(
        "prepare", write_meds(here / "meds", hospital(400, seed=0)), "--task", here / "task.yaml", "--out", here / "p"
    )
    ehrseq("train", here / "p", "--out", here / "run", *TINY)
    return here / "run"


def without(rows: list[Row], *codes: str) -> list[Row]:
    return [row for row in rows if not row.code.startswith(codes)]


def renamed(rows: list[Row], **names: str) -> list[Row]:
    return [row._replace(code=names.get(row.code, row.code)) for row in rows]


NEW = hospital(120, seed=1)
WOMEN = {row.subject for row in NEW if row.code == "SEX//F"}
BROKEN = {
    "× 18": ([r._replace(value=None if r.value is None else 18 * r.value) for r in NEW], "compare the units of "),
    "÷ 18": ([r._replace(value=None if r.value is None else r.value / 18) for r in NEW], "compare the units of "),
    "one × 88": (
        [r._replace(value=88 * r.value) if r.code == "LAB//K" and r.value else r for r in NEW],
        "compare the units of LAB//K (100%)",
    ),
    "no laboratory": (without(NEW, "LAB", "LOINC", "CREA"), "no row has a code of the kind "),
    "no diagnoses": (without(NEW, "DX"), "no row has a code of the kind DX ("),
    "one code": (without(NEW, "DX//C"), "nobody has DX//C ("),
    "no numbers": ([r._replace(value=None) for r in NEW], "no row has a number of "),
    "another unit": (
        renamed(NEW, **{"LOINC//2345-7//mg/dL": "LOINC//2345-7//mmol/L"}),
        "the unit of LOINC//2345-7 changed (mg/dL is gone, mmol/L is new)",
    ),
    "a unit appears": (
        renamed(NEW, **{"LAB//K": "LAB//K//mmol/L"}),
        "the unit of LAB//K changed (no unit is gone, mmol/L is new)",
    ),
    "a unit disappears": (
        renamed(NEW, **{"LOINC//2160-0//mg/dL": "LOINC//2160-0"}),
        "the unit of LOINC//2160-0 changed (mg/dL is gone, no unit is new)",
    ),
    "on a Tuesday": (
        [
            r._replace(code="LOINC//2345-7//mmol/L")
            if r.code == "LOINC//2345-7//mg/dL" and (r.time or 0) > 34 * YEAR_US
            else r
            for r in NEW
        ],
        "the unit of LOINC//2345-7 changed (mmol/L is new)",
    ),
    "a new name": (renamed(NEW, **{"DX//A": "ICD//A"}), "the run does not know ICD//A ("),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_feed_is_named(name: str, run: Path, tmp_path: Path) -> None:
    rows, words = BROKEN[name]
    found = eh.drift(run, write_meds(tmp_path / "new", rows), progress=False)
    assert found.is_alarm
    assert found.verdict.startswith("The feed looks broken: ")
    assert words in found.verdict


MIXES = {
    "older": (hospital(120, seed=2, age=75), "age at the last visit, in years ("),
    "women": ([r for r in NEW if r.subject in WOMEN], "SEX//M ("),
    "healthy": (
        [r for r in NEW if not r.code.startswith("DX") or (r.subject % 5 == 0)],
        "more or fewer people have DX//",
    ),
}


@pytest.mark.parametrize("name", MIXES)
def test_another_mix_of_patients_is_told_from_a_broken_feed(name: str, run: Path, tmp_path: Path) -> None:
    rows, words = MIXES[name]
    data = write_meds(tmp_path / "new", rows)
    found = eh.drift(run, data, progress=False)
    why = "or a part of the feed is missing" if name == "healthy" else "and no sign of a broken feed"
    assert found.verdict.startswith(f"Another mix of patients, {why}: ")
    assert words in found.verdict
    assert ehrseq("drift", run, data).exit_code == 4
    assert ehrseq("drift", run, data, "drift.people=1").exit_code == 0


def test_no_alarm_on_people_like_those_of_the_training(run: Path, tmp_path: Path) -> None:
    for seed in range(20):
        rows = hospital((30, 60, 120)[seed % 3], seed=100 + seed)
        found = eh.drift(run, write_meds(tmp_path / f"{seed}", rows), progress=False)
        assert found.verdict == "No alarm: these people are like the training people.", seed


@pytest.mark.parametrize("years", [1, 2])
def test_a_cut_extract_is_named_and_judged_by_rates_a_year(years: int, run: Path, tmp_path: Path) -> None:
    rows = [row for row in NEW if row.time is None or row.code == "MEDS_BIRTH" or row.time > (35 - years) * YEAR_US]
    found = eh.drift(run, write_meds(tmp_path / "new", rows), progress=False)
    assert found.histories is not None
    assert found.verdict.startswith("The extract is cut (half of the histories are shorter than ")
    assert not found.is_alarm
    thin = [row for row in rows if row.code == "MEDS_BIRTH" or (row.time or 0) // DAY_US % 4 == 0]
    assert (
        "there are fewer visits a year (" in eh.drift(run, write_meds(tmp_path / "thin", thin), progress=False).verdict
    )


def test_nothing_about_few_people_is_named(run: Path, tmp_path: Path) -> None:
    few = [
        *NEW,
        *(Row(k, 33 * YEAR_US, "DX//RARE", 1.0) for k in range(1, 11)),
        Row(11, 33 * YEAR_US, "LAB//K//odd", 1.0),
    ]
    found = eh.drift(run, write_meds(tmp_path / "few", few), progress=False)
    text = json.dumps(found.as_json()) + found.verdict
    assert "RARE" not in text
    assert "odd" not in text
    one = [row for row in NEW if row.code != "DX//D" or row.subject <= 9]
    rows = {r.name: r for r in eh.drift(run, write_meds(tmp_path / "one", one), progress=False).differences or []}
    assert rows["DX//D"].here is None
    assert rows["DX//D"].texts[1] == "hidden"


def test_a_run_holds_rounded_counts_of_codes_of_100_people_and_a_shared_one_shares(run: Path, tmp_path: Path) -> None:
    kept = read_json(run / PEOPLE)
    assert kept["people"] % 5 == 0
    assert {n % 5 for n, _ in kept["codes"].values()} == {0}
    assert min(n for n, _ in kept["codes"].values()) >= 100
    assert {len(knots) for knots in kept["measures"].values()} == {129}
    assert {*kept["risks"]} == {"all", "index", "last"}
    ehrseq("export", run, "--out", tmp_path / "shared")
    shared = read_json(tmp_path / "shared" / PEOPLE)
    assert shared["people"] in (100, 200, 500)
    assert shared["people"] <= kept["people"]
    for code, (had, _) in kept["codes"].items():
        assert abs(shared["codes"][code][0] / shared["people"] - had / kept["people"]) < 0.04, code
    for name, knots in kept["measures"].items():
        assert [shared["measures"][name][k] for k in (0, 64, 128)] == [knots[k] for k in (0, 64, 128)], name
        assert np.ptp(np.diff(shared["measures"][name][:9])) <= 0.0021, "straight between every eighth"
    out = tmp_path / "list.csv"
    for name, exit_code in (("× 18", 4), ("own", 0)):
        data = write_meds(tmp_path / name, NEW if name == "own" else BROKEN[name][0])
        assert ehrseq("drift", tmp_path / "shared", data).exit_code == exit_code
        asked = ("predict", tmp_path / "shared", data, "--at", "index", "--out", out, "--strict", "--overwrite")
        done = ehrseq(*asked)
        assert done.exit_code == exit_code, done.output
        assert out.is_file() == (exit_code == 0)


def spoilt(name: str, how: str, run: Path, folder: Path) -> Path:
    """A copy of a run without a file, or with one byte of it changed."""
    copy = Path(shutil.copytree(run, folder))
    content = (copy / name).read_bytes()
    (copy / name).unlink()
    if how == "changed":
        (copy / name).write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    return copy


@pytest.mark.parametrize(("how", "says"), [("missing", "is missing"), ("changed", "has changed since it was written")])
def test_nobody_is_alike_who_was_not_compared(how: str, says: str, run: Path, tmp_path: Path) -> None:
    """Without what the training people were like, and without reference risks: said, and shut if --strict."""
    data = write_meds(tmp_path / "own", NEW)
    copy = spoilt(PEOPLE, how, run, tmp_path / "run")
    why = f"people.json of the run {says}"
    told = json.loads((done := ehrseq("drift", copy, data, "--json")).stdout)
    assert done.exit_code == 4
    assert (told["result"]["alarm"], told["result"]["passes"]) == (False, False)
    assert "No alarm" not in done.output
    assert why in told["result"]["verdict"]
    assert told["warnings"] == [told["result"]["verdict"]]
    assert told["warnings"][0].startswith("Not compared, so nothing says that these people are like")
    with pytest.warns(UserWarning, match=why):
        TrainedRun(copy).predict(data, progress=False)
    for name in (PEOPLE, REFERENCE):
        copy, out = spoilt(name, how, run, tmp_path / f"run-{name}"), tmp_path / f"{name}.csv"
        done = ehrseq("predict", copy, data, "--out", out, "--strict", "--json")
        assert (done.exit_code, out.exists()) == (4, False), name
        told = json.loads(done.stdout)
        assert any(name in text and says in text for text in told["warnings"]), name
        for path in told["wrote"].values():
            assert says in Path(path).read_text(), path
        listed = ehrseq("predict", copy, data, "--out", out, "--overwrite", "--json")
        assert (listed.exit_code, out.exists()) == (0, True)
        assert any(name in text and says in text for text in json.loads(listed.stdout)["warnings"]), name


def test_risks_at_other_horizons_are_not_compared(run: Path, tmp_path: Path) -> None:
    data, out = write_meds(tmp_path / "own", NEW), tmp_path / "risks.csv"
    other = ehrseq("predict", run, data, "--out", out, "--strict", "--horizons", "30d", "--json")
    assert (other.exit_code, out.exists()) == (4, False)
    assert "add 90d to the horizons" in json.loads(other.stdout)["warnings"][-1]
    both = ehrseq("predict", run, data, "--out", out, "--strict", "--horizons", "30d,90d", "--overwrite", "--json")
    assert both.exit_code == 0, both.output
    assert any(
        row["name"] == "risk of event by 90d" for row in json.loads(both.stdout)["result"]["drift"]["differences"]
    )


@pytest.mark.parametrize("damage", [{}, [], {"people": 5}, {"measures": {"rows": [1, 2]}}, {"codes": {"A": "many"}}])
def test_a_damaged_reference_is_one_line(damage: Any, run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    whole = read_json(copy / PEOPLE)
    (copy / PEOPLE).write_text(json.dumps(whole | damage if damage and isinstance(damage, dict) else damage))
    data = write_meds(tmp_path / "new", hospital(40, seed=5))
    manifest = read_manifest(copy, what="a run")
    save_manifest(copy, {**manifest, "files": manifest["files"] | {PEOPLE: sha256(copy / PEOPLE)}})
    if damage != {"people": 5}:
        assert "people.json: is damaged" in refused("drift", copy, data)


def test_the_command_says_in_json_what_it_found(run: Path, tmp_path: Path) -> None:
    data = write_meds(tmp_path / "new", BROKEN["another unit"][0])
    done = ehrseq("drift", run, data, "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["exit_code"], told["error"]) == (4, 4, None)
    assert told["result"]["alarm"] is True
    assert told["result"]["differences"][0]["kind"] == "unit"
    found = eh.drift(run, data, progress=False)
    assert "the unit of LOINC//2345-7 changed" in str(found)
    assert len(str(found).splitlines()) <= 10
    assert found.to_frame().iloc[0].kind == "unit"
    assert "is not a folder" in refused("drift", run, tmp_path / "nowhere")
    assert "drift.people" in refused("drift", run, data, "drift.people=2")


def test_the_command_needs_no_torch(run: Path, tmp_path: Path) -> None:
    data = write_meds(tmp_path / "new", hospital(40, seed=3))
    script = (
        "import sys; from ehrsequencing.cli.app import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "assert 'torch' not in sys.modules"
    )
    arguments = ("drift", str(run), str(data))
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True)


# ---- where else it is said ----------------------------------------------------------------------------------


def test_predict_and_evaluate_warn(run: Path, tmp_path: Path) -> None:
    other, own = write_meds(tmp_path / "other", BROKEN["one × 88"][0]), write_meds(tmp_path / "own", NEW)
    with pytest.warns(UserWarning, match=r"compare the units of LAB//K \(100%\)"):
        TrainedRun(run).predict(other, progress=False)
    for name, data in (("other", other), ("own", own)):
        given = {"bootstrap": 2, "baselines": "none", "report": False, "progress": False}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = evaluate(run, data=data, out=tmp_path / f"out-{name}", **given)  # type: ignore[arg-type]
        texts = [str(one.message) for one in caught]
        assert any("compare the units of LAB//K" in text for text in texts) == (name == "other")
        assert any("compare the units of LAB//K" in text for text in found.result["warnings"]) == (name == "other")
        shared = read_json(tmp_path / f"out-{name}" / "metrics.json")["external"]["drift"]
        assert shared["alarm"] == (name == "other")


def test_strict_writes_the_page_and_the_json_and_no_list(run: Path, tmp_path: Path) -> None:
    data = write_meds(tmp_path / "new", BROKEN["another unit"][0])
    out = tmp_path / "tonight" / "risks.csv"
    done = ehrseq("predict", run, data, "--at", "index", "--out", out, "--strict", "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["exit_code"]) == (4, 4)
    assert told["wrote"] == {"page": str(out.with_suffix(".html")), "summary": str(out.with_suffix(".json"))}
    assert sorted(path.name for path in out.parent.iterdir()) == ["risks.html", "risks.json"]
    assert "there is no list. The feed looks broken: the unit of LOINC//2345-7 changed" in told["warnings"][-1]
    fine = ehrseq("predict", run, write_meds(tmp_path / "own", NEW), "--out", out, "--strict", "--overwrite")
    assert fine.exit_code == 0, fine.output
    assert out.is_file()


def test_risks_beyond_those_of_the_run_are_another_mix(run: Path, tmp_path: Path) -> None:
    content = read_json(run / PEOPLE)
    kept = Run(run)
    high = content | {"risks": {at: [1 - k / 1000 for k in range(129, 0, -1)] for at in content["risks"]}}
    vars(kept)["training_people"] = high
    from ehrsequencing.prediction.predict import Request
    from ehrsequencing.reporting.risk_list import write_list

    found, drift, _ = write_list(kept, write_meds(tmp_path / "own", NEW), tmp_path / "r.csv", Request(at="index"))
    assert "risk of event by 90d (" in drift.verdict
    assert found["above"] == {"prediction_times": 0, "people": 0}


@pytest.mark.filterwarnings("ignore:The feed looks broken")  # ENTRY
@pytest.mark.parametrize("at", ["last", "all", "2001-01-05", "1990-01-01"])
def test_people_without_a_prediction_time_are_an_error(at: str, run: Path, tmp_path: Path) -> None:
    other = write_meds(tmp_path / "other", renamed(NEW, ENTRY="ELSEWHERE"))
    with pytest.raises(EhrseqError, match="nobody has a prediction time") as caught:
        TrainedRun(run).predict(other, at=at, progress=False)
    assert (caught.value.where, "ehrseq check" in caught.value.fix) == (str(other), True)


# ---- real records ------------------------------------------------------------------------------------

REAL = {
    "pbc2": ("ENROLLMENT", "0d", "LAB//", "SIGN//", ()),
    "nafld": ("INDEX", "0d", "LAB//", "DX//", ()),
    "physionet2012": ("ICU_ADMISSION", "48h", "VITAL_OR_LAB//", None, ("visits.by=window", "visits.window=1h")),
}


@pytest.mark.parametrize(
    "name", ["pbc2", *(pytest.param(name, marks=pytest.mark.slow) for name in REAL if name != "pbc2")]
)
def test_held_out_people_of_real_records_raise_no_alarm_and_broken_copies_do(
    name: str, real_data: Path, tmp_path: Path
) -> None:
    index, after, laboratory, diagnoses, visits = REAL[name]
    task = {"name": "t", "index": {"code": index, "after": after}, "outcome": {"death": "MEDS_DEATH"}}
    (tmp_path / "t.yaml").write_text(
        json.dumps(task | {"censoring": {"code": "END_OF_FOLLOWUP"}, "horizons": ["360d"]})
    )
    data = real_data / f"{name}_meds"
    assert ehrseq("prepare", data, "--task", tmp_path / "t.yaml", "--out", tmp_path / "p", *visits).exit_code == 0
    assert ehrseq("train", tmp_path / "p", "--out", tmp_path / "run", *TINY, "training.epochs=1").exit_code == 0
    every = pa.concat_tables(map(pq.read_table, sorted((data / "data" / "held_out").glob("*.parquet"))))
    ids = every["subject_id"].unique().to_numpy()

    def drift(rows: pa.Table) -> Drift:
        (tmp_path / "new" / "data").mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.replace_schema_metadata(), tmp_path / "new" / "data" / "0.parquet")
        return eh.drift(tmp_path / "run", tmp_path / "new", progress=False)

    for seed in range(20):
        some = np.random.default_rng(seed).choice(ids, min(30 * (1 + seed % 4), len(ids)), replace=False)
        found = drift(every.filter(pc.is_in(every["subject_id"], pa.array(some))))
        assert found.verdict == "No alarm: these people are like the training people.", seed
    rows = every.filter(pc.is_in(every["subject_id"], pa.array(ids[:300])))
    place = rows.column_names.index("numeric_value")
    scaled = rows.set_column(place, "numeric_value", pc.multiply(rows["numeric_value"], pa.scalar(18, pa.float32())))
    assert "compare the units of" in drift(scaled).verdict
    for kind in filter(None, (laboratory, diagnoses)):
        missing = rows.filter(pc.invert(pc.starts_with(rows["code"], kind)))
        assert f"no row has a code of the kind {kind[:-2]} (" in drift(missing).verdict
