"""The simulated files: valid MEDS, a function of the seed alone, with stays."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from meds import schema as meds

import ehrsequencing as eh
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.simulate import SimulationConfig, dataset, simulate
from ehrsequencing.simulate.records import BLOCK

Row = tuple[Any, str, float | None]  # time (None: static), code, value
QUICK = SimulationConfig(truth_futures=4)
ENDS = ["MEDS_DEATH", "END_OF_FOLLOWUP"]


def shards(out: Path) -> list[Path]:
    return sorted((out / "data").glob("*/*.parquet"))


def rows_by_subject(out: Path, *, known: int | None = None) -> dict[int, list[Row]]:
    """(time, code, value) rows of every subject, in file order."""
    found: dict[int, list[Row]] = defaultdict(list)
    for shard in shards(out):
        table = pq.read_table(shard)
        columns = (table[name].to_pylist() for name in ("subject_id", "time", "code", "numeric_value"))
        for subject_id, time, code, value in zip(*columns, strict=True):
            if known is None or subject_id <= known:
                found[subject_id].append((time, code, value))
    return dict(found)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("simulated") / "made" / "with parents"
    simulate(out, subjects=600, seed=3, config=QUICK)
    return out


def test_the_files_are_valid_meds(data: Path) -> None:
    for shard in shards(data):
        meds.DataSchema.validate(pq.read_table(shard))
    splits = pq.read_table(data / meds.subject_splits_filepath)
    meds.SubjectSplitSchema.validate(splits)
    codes = pq.read_table(data / meds.code_metadata_filepath)
    meds.CodeMetadataSchema.validate(codes)
    card = json.loads((data / meds.dataset_metadata_filepath).read_text())
    meds.DatasetMetadataSchema.validate(card)
    assert card["meds_version"].startswith("0.4")

    where = {
        subject: shard for shard in shards(data) for subject in set(pq.read_table(shard)["subject_id"].to_pylist())
    }
    assert sorted(where) == list(range(1, 601))
    assert {s: where[s].parent.name for s in where} == dict(
        zip(splits["subject_id"].to_pylist(), splits["split"].to_pylist(), strict=True)
    )
    listed = codes["code"].to_pylist()
    assert len(set(listed)) == len(listed)
    assert {code for rows in rows_by_subject(data).values() for _, code, _ in rows} <= set(listed)


def test_a_record_begins_with_birth_and_ends_with_death_or_the_end_of_follow_up(data: Path) -> None:
    for rows in rows_by_subject(data).values():
        codes = [code for _, code, _ in rows]
        assert codes[1] == "MEDS_BIRTH"
        assert codes[-1] in ENDS
        assert sum(code in ENDS for code in codes) == 1
        assert codes.count("ENROLLMENT") == 1
        assert codes.count("DX//OUTCOME") <= 1
        enrolled = rows[codes.index("ENROLLMENT")][0]
        same_day = [time for time, _, _ in rows[1:] if time.date() == enrolled.date()]
        assert enrolled == max(same_day)
        if "DX//OUTCOME" in codes:
            assert rows[codes.index("DX//OUTCOME")][0] > enrolled


def test_same_seed_same_bytes_and_another_seed_others(data: Path, tmp_path: Path) -> None:
    simulate(tmp_path / "again", subjects=600, seed=3, config=QUICK)
    files = [path.relative_to(data) for path in data.rglob("*") if path.is_file()]
    assert all((data / file).read_bytes() == (tmp_path / "again" / file).read_bytes() for file in files)
    simulate(tmp_path / "other", subjects=600, seed=4, config=QUICK)
    shard = Path("data/train/0.parquet")
    assert (data / shard).read_bytes() != (tmp_path / "other" / shard).read_bytes()


def test_words_change_the_names_of_codes_and_nothing_else(data: Path, tmp_path: Path) -> None:
    simulate(tmp_path / "words", subjects=600, seed=3, config=QUICK.model_copy(update={"words": True}))
    for name in ("truth.parquet", "truth_hazards.parquet", "truth_mechanisms.parquet", "task.yaml"):
        assert (tmp_path / "words" / name).read_bytes() == (data / name).read_bytes(), name
    codes = pq.read_table(tmp_path / "words" / "metadata" / "codes.parquet").to_pydict()
    before = {}
    for word, text in zip(codes["code"], codes["description"], strict=True):
        was = re.search(r"\((\w+//\w+)\)$", text)
        before[word] = was.group(1) if was else word
    assert before["LAB//Creatinine"] == "LAB//MARKER"
    assert len(set(before.values())) == len(before)
    found, plain = rows_by_subject(tmp_path / "words"), rows_by_subject(data)

    def key(row: Row) -> tuple[str, ...]:
        return tuple(map(str, row))

    for subject, rows in found.items():
        again = [(time, before[code], value) for time, code, value in rows]
        assert sorted(again, key=key) == sorted(plain[subject], key=key)


def test_a_subject_depends_neither_on_the_number_of_others_nor_on_the_shards(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "SHARD_SUBJECTS", 40)
    fewer, subjects = tmp_path / "fewer", BLOCK + 44
    simulate(fewer, subjects=subjects, seed=3, config=QUICK)
    assert rows_by_subject(fewer) == rows_by_subject(data, known=subjects)
    assert len(list((fewer / "data" / "train").iterdir())) == 2


@pytest.mark.parametrize("wrong", [{"subjects": 0}, {"seed": -1}])
def test_senseless_arguments_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(EhrseqError, match=next(iter(wrong))):
        eh.simulate(tmp_path / "out", **{"subjects": 5, "seed": 0, **wrong})
    assert not (tmp_path / "out").exists()


def test_a_stay_is_an_admission_and_a_discharge_that_holds_everything_else(tmp_path: Path) -> None:
    config = SimulationConfig(truth_futures=4, stay_visit_share=0.3, stay_days=20, outcome_per_year=0.3)
    simulate(tmp_path / "out", subjects=400, seed=0, config=config)
    rows = pq.read_table(tmp_path / "out" / "data").to_pandas()
    inside = rows[rows.hadm_id.notna()]
    assert (inside.hadm_id // 10_000 == inside.subject_id).all()
    bounds = {
        name: inside[inside.code == f"STAY//{name}"].set_index("hadm_id").time.dt.normalize()
        for name in ("ADMISSION", "DISCHARGE")
    }
    admitted, discharged = bounds["ADMISSION"], bounds["DISCHARGE"].reindex(bounds["ADMISSION"].index)
    ends = rows[rows.code.isin(ENDS)].set_index("subject_id").time.dt.normalize()
    closed = discharged != ends[admitted.index // 10_000].to_numpy()
    assert (~closed).sum() > 3
    day, hadm = inside.time.dt.normalize(), inside.hadm_id
    assert ((day == hadm.map(admitted)) | (day == hadm.map(discharged))).all()
    out = rows[rows.hadm_id.isna() & ~rows.code.isin(["MEDS_BIRTH", "DX//OUTCOME", "ENROLLMENT", *ENDS])]
    both = out.drop(columns="hadm_id").merge(inside[["subject_id", "hadm_id"]].drop_duplicates(), on="subject_id")
    visit = both.time.dt.normalize()
    assert not ((visit >= both.hadm_id.map(admitted)) & (visit <= both.hadm_id.map(discharged))).any()
    days = (discharged - admitted)[closed].dt.days
    assert abs(days.mean() - 20) < 4 * days.sem() + 0.5  # the end of the study cuts
