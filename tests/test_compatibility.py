"""What earlier versions wrote is read, and gives the same risks; `tests/helpers/compatibility.py` made it."""

import csv
from pathlib import Path

import pytest

from ehrsequencing.core.files import read_json
from ehrsequencing.prediction.predict import predict
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared

MADE = sorted(path for path in (Path(__file__).parent / "compatibility").iterdir() if path.is_dir())


def risks(path: Path) -> dict[tuple[str, ...], float]:
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    keys = ("subject_id", "prediction_time", "cause", "horizon_days")
    return {tuple(row[key] for key in keys): float(row["risk"]) for row in rows}


@pytest.mark.parametrize("made", MADE, ids=lambda path: path.name)
def test_an_earlier_run_predicts_as_it_did(made: Path, tmp_path: Path) -> None:
    predict(made / "run", made / "data", tmp_path / "risks.csv", at="last")
    before, now = risks(made / "risks.csv"), risks(tmp_path / "risks.csv")
    assert len(before) > 10
    assert now == pytest.approx(before, abs=1e-6)


@pytest.mark.parametrize("made", MADE, ids=lambda path: path.name)
def test_an_earlier_prepared_set_is_that_of_its_run(made: Path) -> None:
    prepared = Run(made / "run").prepared(made / "prepared")
    assert isinstance(prepared, Prepared)
    assert sum(len(prepared.records(prepared.only_task(), split)) for split in ("train", "tuning", "held_out")) > 10


def test_the_fixtures_name_no_machine() -> None:
    for made in MADE:
        for name in ("prepared", "run"):
            paths = [v for v in read_json(made / name / "manifest.json").values() if str(v).startswith("/")]
            assert [path for path in paths if not path.startswith("/made/")] == []


def test_the_fixtures_are_small() -> None:
    assert MADE
    for made in MADE:
        assert sum(path.stat().st_size for path in made.rglob("*") if path.is_file()) < 200_000
