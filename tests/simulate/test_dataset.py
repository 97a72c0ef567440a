"""The simulated files: valid MEDS, a function of the seed alone, with stays."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from meds import schema as meds

import ehrsequencing as eh
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.simulate import SimulationConfig, dataset, simulate
from ehrsequencing.simulate.records import BLOCK

Row = tuple[Any, str, float | None]  # time (None: static), code, value
QUICK = SimulationConfig(truth_futures=4)


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
        assert codes[-1] in {"MEDS_DEATH", "END_OF_FOLLOWUP"}
        assert sum(code in {"MEDS_DEATH", "END_OF_FOLLOWUP"} for code in codes) == 1
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
    lengths, open_ended = [], 0
    for shard in shards(tmp_path / "out"):
        table = pq.read_table(shard)
        assert table.schema.field("hadm_id").type == pa.int64()
        stays: dict[int, list[dict[str, Any]]] = defaultdict(list)
        ends, visits = {}, defaultdict(set)
        for row in table.to_pylist():
            if row["code"] in {"MEDS_DEATH", "END_OF_FOLLOWUP"}:
                ends[row["subject_id"]] = row["time"]
            elif row["hadm_id"] is not None:
                assert row["hadm_id"] // 10_000 == row["subject_id"]
                stays[row["hadm_id"]].append(row)
            elif row["time"] is not None and row["code"] not in {"MEDS_BIRTH", "DX//OUTCOME", "ENROLLMENT"}:
                visits[row["subject_id"]].add(row["time"].date())
        for rows in stays.values():
            by_code = {row["code"]: row["time"] for row in rows}
            admitted, discharged = by_code["STAY//ADMISSION"], by_code["STAY//DISCHARGE"]
            subject = rows[0]["subject_id"]
            assert {row["code"] for row in rows if row["time"].date() == admitted.date() != discharged.date()} <= {
                "STAY//ADMISSION",
                "LAB//OTHER",
            }
            assert not any(admitted.date() <= day <= discharged.date() for day in visits[subject])
            open_ended += discharged == ends[subject]
            if discharged != ends[subject]:
                assert admitted.date() < discharged.date()
                assert {row["time"].date() for row in rows} == {admitted.date(), discharged.date()}
                assert len(rows) > 2
                lengths.append((discharged.date() - admitted.date()).days)
        assert {row["code"] for row in table.to_pylist() if row["hadm_id"] is None}.isdisjoint(
            {"STAY//ADMISSION", "STAY//DISCHARGE"}
        )
    assert open_ended > 3
    assert abs(np.mean(lengths) - 20) < 4 * np.std(lengths) / np.sqrt(len(lengths)) + 0.5  # the end of the study cuts
