"""`bench p12`: the challenge's text files become MEDS."""

from __future__ import annotations

import random
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq

from bench.accuracy import p12

OUTCOMES = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death"


def write_stays(folder: Path, ends: dict[int, str], *, rng: random.Random) -> None:
    """Invented stays: those who die have a high creatinine; one stay has no measurement."""
    (folder / "set-a").mkdir(parents=True)
    for subject, end in ends.items():
        lines = [
            "Time,Parameter,Value",
            f"00:00,RecordID,{subject}",
            "00:00,Age,70",
            "00:00,Gender,-1",
            "00:00,ICUType,3",
            "00:00,Weight,-1",
        ]
        if end != "empty":
            level = 4.0 if end.endswith("1") else 1.0
            lines += [f"{hour:02d}:30,Creatinine,{level + rng.random():.2f}" for hour in (1, 13, 30)]
        (folder / "set-a" / f"{subject}.txt").write_text("\n".join(lines) + "\n")
    rows = [f"{subject},6,8,{'5,-1,0' if end == 'empty' else end}" for subject, end in ends.items()]
    (folder / "Outcomes-a.txt").write_text("\n".join([OUTCOMES, *rows]) + "\n")


def test_text_files_become_meds(tmp_path: Path) -> None:
    write_stays(tmp_path, {132540: "9,4,1", 132539: "7,-1,0", 132541: "empty"}, rng=random.Random(0))
    p12.write_meds([tmp_path / "set-a"], tmp_path / "meds")
    rows = pq.read_table(tmp_path / "meds" / "data" / "0.parquet").to_pylist()
    assert {row["subject_id"] for row in rows} == {132539, 132540}  # without the stay that was never measured
    died = [(row["time"], row["code"]) for row in rows if row["subject_id"] == 132540]
    assert died[0] == (None, "ICUTYPE//3")  # no sex and no weight: they are unknown
    assert died[1:3] == [(datetime(1930, 1, 1), "MEDS_BIRTH"), (datetime(2000, 1, 1), "ICU_ADMISSION")]
    assert [code for _, code in died[3:]] == ["OBS//Creatinine"] * 3 + ["IN_HOSPITAL_DEATH"]
    assert died[-2][0] == datetime(2000, 1, 2, 6, 30)
    assert died[-1][0] == datetime(2000, 1, 5, 1)  # day 4
    assert (rows[-1]["time"], rows[-1]["code"]) == (datetime(2000, 1, 5, 1), "IN_HOSPITAL_DEATH")
    assert next(row["time"] for row in rows if row["code"] == "DISCHARGE_ALIVE") == datetime(2000, 1, 8, 1)
