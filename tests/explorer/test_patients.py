"""What the page holds is what the records and `predict` say; what it must not hold is not in it."""

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

import ehrsequencing as eh
from ehrsequencing.config import DataConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.explorer import ExplorerSettings, page
from ehrsequencing.explorer.codes import RARE, Explorer, collect
from ehrsequencing.explorer.page import differences, hundredths, pack, quantised, rounded_floats, zigzag
from ehrsequencing.prediction.predict import Moment, NewRecords, RiskPredictor
from ehrsequencing.prediction.run import Run
from helpers.command_line import ehrseq
from helpers.explorer_page import ReadPage, codes_of, read_page, unpacked
from helpers.report_page import Page
from helpers.settings import examples

EXCLUDED = {"MEDS_BIRTH", "MEDS_DEATH", "DX//OUTCOME", "END_OF_FOLLOWUP"}  # these make no token


@pytest.fixture(scope="module")
def read(explorer_page: str) -> ReadPage:
    return read_page(explorer_page)


def rows_of(data: Path, subject: int) -> list[dict[str, Any]]:
    """The rows of a subject, read without any code of ours."""
    rows = [
        row
        for path in sorted((data / "data").rglob("*.parquet"))
        for row in pq.read_table(path, filters=[("subject_id", "=", subject)]).to_pylist()
    ]
    return sorted((row for row in rows if row["time"] is not None), key=lambda row: row["time"])


def test_the_record_of_a_page_is_the_record_of_the_data(explorer: Explorer, read: ReadPage, sim_data: Path) -> None:
    found, names = read.patients, [code["name"] for code in read.about["codes"]]
    for patient in (0, 7, 29):
        rows = rows_of(sim_data, int(explorer.gathered.patients.subject_id[patient]))
        by_day: dict[Any, dict[str, float | None]] = {}
        for row in rows:
            if row["code"] not in EXCLUDED:
                by_day.setdefault(row["time"].date(), {})[row["code"]] = row["numeric_value"]
        first, last = found["visit_offsets"][patient : patient + 2]
        shown: list[dict[str, float]] = []
        for visit in range(first, last):
            items = range(*found["item_offsets"][visit : visit + 2])
            shown.append({names[found["item_code"][k]]: float(found["item_value"][k]) for k in items})
        known = [{c: v for c, v in codes.items() if c in names} for codes in by_day.values()]
        told = [{c: v for c, v in codes.items() if c not in {RARE, *EXCLUDED}} for codes in shown]
        assert [set(codes) for codes in told if codes] == [set(codes) for codes in known if codes]
        for mine, theirs in zip((c for c in told if c), (c for c in known if c), strict=True):
            for code, value in theirs.items():
                assert np.isnan(mine[code]) if value is None else mine[code] == pytest.approx(value, rel=2e-4)


def test_risks_are_those_of_predict(explorer: Explorer, read: ReadPage, sim_data: Path) -> None:
    run = explorer.run
    asked, horizons = RiskPredictor(run), read.about["horizons_days"]
    points = [read.about["curve_days"].index(day) for day in horizons]
    place = {subject: s for s, subject in enumerate(explorer.gathered.patients.subject_id.tolist())}
    checked = 0
    for risks in asked.answers(NewRecords(run, sim_data), Moment("all")):
        for patient in place.values():
            own = np.flatnonzero(risks.subject_id == explorer.gathered.patients.subject_id[patient])
            start, stop = read.patients["row_offsets"][patient : patient + 2]
            for k, row in zip(own, range(start, stop), strict=bool(len(own))):
                mine = [[read.risk(row, c, p) for p in points] for c in range(len(read.about["causes"]))]
                assert np.abs(mine - risks.risk[k]).max() < 1e-4
                checked += 1
    assert checked == len(read.patients["row_day"])


def struck(data: Path, out: Path, subject: int, codes: set[str]) -> Path:
    """A data set of one subject, without the rows of some codes."""
    parts = [
        pq.read_table(path, filters=[("subject_id", "=", subject)])
        for path in sorted((data / "data").rglob("*.parquet"))
    ]
    table = next(part for part in parts if len(part))
    kept = [code not in codes for code in table["code"].to_pylist()]
    shutil.rmtree(out, ignore_errors=True)
    (out / "data").mkdir(parents=True)
    shutil.copytree(data / "metadata", out / "metadata")
    pq.write_table(table.filter(kept), out / "data" / "0.parquet")
    return out


def moves_a_visit(rows: list[dict[str, Any]], codes: set[str]) -> bool:
    """Whether a visit would begin or end at another time without some codes, or be gone.

    Striking keeps visits at their times, where records without the rows have other ones.
    """
    for day in {row["time"].date() for row in rows}:
        own = [row for row in rows if row["time"].date() == day and row["code"] not in EXCLUDED]
        left = [row["time"] for row in own if row["code"] not in codes]
        times = [row["time"] for row in own]
        if own and (not left or (min(left), max(left)) != (min(times), max(times))):
            return True
    return False


def test_removals_are_what_predict_says_of_deleted_rows(
    explorer: Explorer, read: ReadPage, sim_data: Path, tmp_path: Path
) -> None:
    """Random edits of codes that move no visit; more of them in `make test-all`."""
    chance, patients, asked = np.random.default_rng(0), explorer.gathered.patients, RiskPredictor(explorer.run)
    end = NewRecords(explorer.run, sim_data).end_us
    compared, gap, wanted, n_shown = 0, 0.0, examples(48), len(explorer.shown.names)
    for edit in chance.permutation(len(read.removals["target"])).tolist():
        target, patient = int(read.removals["target"][edit]), 0
        patient = int(np.searchsorted(read.removals["edit_offsets"], edit, side="right")) - 1
        if target >= n_shown:
            continue
        codes, subject = set(codes_of(explorer, patient)[target]), int(patients.subject_id[patient])
        if moves_a_visit(rows_of(sim_data, subject), codes):
            continue
        alone = struck(sim_data, tmp_path / "alone", subject, codes)
        facts = DataConfig.model_validate({"extracted": str(np.datetime64(end, "us"))[:10]})
        records = NewRecords(explorer.run, alone, facts)
        answers = next(asked.answers(records, Moment("all")))
        if not len(answers.subject_id):  # the index was struck
            continue
        assert len(answers.subject_id) == np.diff(patients.row_offsets)[patient]
        start = int(read.removals["first_row"][edit])
        for number in range(start, len(answers.subject_id)):
            gap = max(gap, float(np.abs(read.removed(edit, number) - answers.risk[number]).max()))
        compared += 1
        if compared == wanted:
            break
    assert compared == wanted
    assert gap < 1e-4


def test_every_recorded_code_and_visit_can_be_struck(explorer: Explorer, read: ReadPage) -> None:
    patients, n_shown = read.patients, len(read.about["codes"])
    for patient in range(len(explorer.gathered.patients)):
        last = patients["row_day"][patients["row_offsets"][patient + 1] - 1]
        wanted = set()
        for number, visit in enumerate(range(*patients["visit_offsets"][patient : patient + 2])):
            if patients["visit_day"][visit] <= last:
                wanted.add(n_shown + number)
                wanted |= set(patients["item_code"][slice(*patients["item_offsets"][visit : visit + 2])].tolist())
        own = slice(*read.removals["edit_offsets"][patient : patient + 2])
        assert set(read.removals["target"][own].tolist()) == wanted


# ---- what is not in the page --------------------------------------------------------------------------------------


def test_no_id_and_no_date_is_in_the_page(explorer: Explorer, explorer_page: str, read: ReadPage) -> None:
    ids = explorer.gathered.patients.subject_id
    assert ids.tolist() != sorted(ids.tolist())  # their order tells nothing
    for array in (*read.patients.values(), *read.removals.values()):
        assert len(array) != len(ids) or array.tolist() != ids.tolist()
    outside = re.sub(r'id="(patients|removals)">[^<]*<', "", explorer_page)
    assert not re.search(r"\b(19|20)\d\d-\d\d", outside)
    assert "subject" not in json.dumps(read.about)
    assert not [path for path in (explorer.run.folder.as_posix(), "/tmp/") if path in outside]


def test_another_page_has_another_order(explorer: Explorer, sim_data: Path) -> None:
    again = collect(NewRecords(explorer.run, sim_data), ExplorerSettings(subjects=30, what_if=False))
    assert again.gathered.patients.subject_id.tolist() != explorer.gathered.patients.subject_id.tolist()
    assert again.removals is None


def test_codes_of_few_patients_have_no_name(explorer: Explorer, sim_data: Path) -> None:
    few = collect(NewRecords(explorer.run, sim_data), ExplorerSettings(subjects=30, fewest=25, what_if=False))
    text, patients = page(few), few.gathered.patients
    found = read_page(text)
    names = {code["name"] for code in found.about["codes"]}
    carriers: dict[str, set[int]] = {}
    for patient in range(len(patients)):
        for codes in codes_of(few, patient).values():
            for code in codes:
                carriers.setdefault(code, set()).add(patient)
        static = patients.static_code[slice(*patients.static_offsets[patient : patient + 2])]
        for code in static.tolist():
            carriers.setdefault(few.gathered.codes[code], set()).add(patient)
    assert names - {RARE} == {code for code, own in carriers.items() if len(own) >= 25}
    assert RARE in names
    hidden = [code for code, own in carriers.items() if len(own) < 25]
    assert not [code for code in hidden if f'"{code}"' in text]
    rare = [code["name"] for code in found.about["codes"]].index(RARE)
    assert np.isnan(found.patients["item_value"][found.patients["item_code"] == rare]).all()


def test_ages_over_ninety_are_ninety(explorer: Explorer, read: ReadPage) -> None:
    known = read.patients["age"][read.patients["age"] < 65535]
    assert len(known)
    assert known.max() <= 900


# ---- the page as a document ---------------------------------------------------------------------------------------


def test_the_policy_names_the_hash_of_the_only_script_and_style(explorer_page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', explorer_page)[1]  # type: ignore[index]
    policy = policy.replace("&#39;", "'")
    for tag, name in (('script type="module"', "script-src"), ("style", "style-src")):
        inside = re.findall(rf"<{tag}>(.*?)</{tag.split()[0]}>", explorer_page, flags=re.DOTALL)
        assert len(inside) == 1
        assert f"{name} 'sha256-{base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", re.sub(r">[A-Za-z0-9+/=]{1000,}<", "", explorer_page))
    assert not [name for _, name, _ in Page(explorer_page).attributes if name.startswith("on")]


HOSTILE = (
    "</script><script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "\x1b[31mred",
    "\u202egnitirw",
    "<!--",
)


def test_hostile_names_stay_text(explorer: Explorer) -> None:
    names = (*HOSTILE, *explorer.shown.names[len(HOSTILE) :])
    evil = replace(explorer, shown=replace(explorer.shown, names=names, words=names))
    text = page(evil)
    assert Page(text).tags == Page(page(explorer)).tags
    told = [code["name"] for code in read_page(text).about["codes"]][: len(HOSTILE)]
    assert told[:2] == list(HOSTILE[:2])
    assert "\x1b" not in text
    assert "\u202e" not in text


# ---- the file and the command -------------------------------------------------------------------------------------


def test_the_command_writes_the_page(sim_run: Path, sim_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "explorer.html"
    done = ehrseq(
        "explore", str(sim_run), str(sim_data), "--out", str(out), "--subjects", "6", "--fewest", "1", "--json"
    )
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["wrote"] == {"explorer": str(out)}
    assert told["result"]["patients"] == 6
    assert told["result"]["what_if"] == len(read_page(out.read_text()).removals["target"])
    assert out.stat().st_mode & 0o077 == 0  # patients: for the owner only


@pytest.mark.parametrize("wrong", [{"subjects": 0}, {"fewest": 0}, {"megabytes": 0.0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, Any], sim_run: Path, sim_data: Path) -> None:
    with pytest.raises(EhrseqError, match=f"explore, {next(iter(wrong))}"):
        eh.load(sim_run).explore(sim_data, **wrong)


def test_a_small_file_answers_the_latest_prediction_only(explorer: Explorer, sim_data: Path) -> None:
    small = ExplorerSettings(subjects=5, fewest=1, megabytes=0.001)
    found = collect(NewRecords(Run(explorer.run.folder), sim_data), small)
    assert found.latest_only
    rows = np.diff(found.gathered.patients.row_offsets)
    owner = np.repeat(np.arange(5), np.diff(found.removals.edit_offsets))
    assert (found.removals.first_row == rows[owner] - 1).all()
    assert found.removals.answers == len(found.removals)


# ---- what is packed into a page comes out of it again, and risks stay within 1e-4 of what they were ------------------


RISKS = arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1))
WHOLE = arrays(np.int64, st.integers(1, 40), elements=st.integers(-(2**31) + 1, 2**31 - 1))


@given(RISKS)
def test_a_stored_risk_is_near_the_risk(risk: np.ndarray) -> None:
    stored = (quantised(risk) / 65535) ** 2
    assert np.abs(stored - risk).max() <= 1.6e-5
    small = (risk < 0.01) & (risk > 1e-6)
    assert (np.abs(stored - risk)[small] <= 2e-2 * risk[small]).all()


@given(WHOLE, RISKS, arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32)))
def test_what_is_packed_comes_out_again(whole: np.ndarray, risk: np.ndarray, numbers: np.ndarray) -> None:
    steps = np.sort(np.abs(whole) % 10**9)
    given_arrays = {
        "steps": differences(steps),
        "risk": differences(quantised(risk), 16),
        "numbers": numbers,
        "change": zigzag(quantised(risk).astype(np.int64) - 30_000, 16),
        "bytes": (whole % 256).astype(np.uint8),
    }
    listed, text = pack(given_arrays, {"steps": "differences", "risk": "differences", "change": "zigzag"})
    found = unpacked(text, listed)
    assert found["steps"].tolist() == steps.tolist()
    assert found["risk"].tolist() == quantised(risk).tolist()
    assert ((found["change"].astype(np.int64) + 30_000) % 65536).tolist() == quantised(risk).tolist()
    assert found["bytes"].tolist() == (whole % 256).tolist()
    assert np.array_equal(found["numbers"], numbers, equal_nan=True)


def test_days_and_numbers_keep_what_is_shown() -> None:
    assert hundredths(np.array([0.004, 12.345, np.nan])).tolist() == [0, 1234, -1]
    numbers = np.array([0.1, 98.63, -7.5e8, np.nan], dtype=np.float32)
    assert np.allclose(rounded_floats(numbers), numbers, rtol=1.3e-4, equal_nan=True)
