"""What is said of new records that differ from the training data: another unit, a code that nobody has."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.api.evaluate import evaluate
from ehrsequencing.api.run import TrainedRun
from ehrsequencing.config import VisitsConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.drift import differences
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.meds import MedsReader
from ehrsequencing.records.survey import TokenRows, survey
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.records.vocabulary_fit import VocabularyFit
from helpers.command_line import ehrseq
from helpers.meds import DAY_US, Row, write_meds

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


def said(folder: Path, vocabulary: Vocabulary, rows: list[Row], *, outcome: str = "OUTCOME") -> list[str]:
    reader = MedsReader(write_meds(folder, rows), None, VisitsConfig())
    return differences(survey(reader, lambda: TokenRows(vocabulary, CodeMatcher([]))).part, [CodeMatcher([outcome])])


@pytest.mark.parametrize("mode", ["polynomial", "bins", "interpolate"])
@pytest.mark.parametrize("number", [GLUCOSE, LOGNORMAL, CONSTANT])
@pytest.mark.parametrize(("people", "enough"), [(200, 11), (30, 5)])
def test_numbers_of_another_unit_are_said(mode: str, number: Numbers, people: int, enough: int, tmp_path: Path) -> None:
    settings = (f"values.mode={mode}", f"vocabulary.min_subjects={enough}")
    vocabulary = fitted(tmp_path / "own", rows_of(people, number), *settings)
    assert said(tmp_path / "same", vocabulary, rows_of(40, number, seed=1)) == []
    for factor in (1 / 18, 18):
        (text,) = said(tmp_path / f"{factor}", vocabulary, rows_of(40, number, factor=factor, seed=1))
        assert "compare the units of LAB//X (" in text
    assert said(tmp_path / "few", vocabulary, rows_of(6, number, factor=18)) == []  # 18 numbers
    assert said(tmp_path / "gone", vocabulary, [row._replace(value=None) for row in rows_of(40, number)]) == []


@pytest.mark.parametrize(("number", "factor"), [(GLUCOSE, 1.3), (LOGNORMAL, 2.0), (ZEROS, 1000.0)])
def test_a_small_part_outside_is_no_alarm(number: Numbers, factor: float, tmp_path: Path) -> None:
    vocabulary = fitted(tmp_path / "own", rows_of(200, number))
    assert said(tmp_path / "new", vocabulary, rows_of(40, number, factor=factor, seed=1)) == []


def test_numbers_of_one_group_of_people_have_no_percentiles(tmp_path: Path) -> None:
    vocabulary = fitted(tmp_path / "own", rows_of(15, GLUCOSE, each=1))
    assert said(tmp_path / "same", vocabulary, rows_of(40, GLUCOSE, seed=1)) == []


@pytest.mark.parametrize("mode", ["polynomial", "none"])
def test_a_common_code_that_nobody_has_is_said(mode: str, tmp_path: Path) -> None:
    vocabulary = fitted(tmp_path / "own", rows_of(200, GLUCOSE), f"values.mode={mode}")
    rows = rows_of(40, GLUCOSE, seed=1)
    without = [row for row in rows if row.code != "DX//B"]
    assert said(tmp_path / "same", vocabulary, rows) == []
    (text,) = said(tmp_path / "without", vocabulary, without)
    assert "compare the names of DX//B (60%)" in text  # 67 %, rounded down
    assert said(tmp_path / "outcome", vocabulary, without, outcome="DX//B") == []  # nobody has had it yet
    renamed = [row._replace(code="LAB//X//mmol/L") if row.value is not None else row for row in rows]
    assert "LAB//X (100%)" in said(tmp_path / "unit", vocabulary, renamed)[0]
    assert said(tmp_path / "few", vocabulary, [row for row in without if row.subject <= 10]) == []
    rare = fitted(tmp_path / "rare", [row for row in rows_of(200, GLUCOSE) if row.code != "DX//B" or row.subject < 90])
    assert said(tmp_path / "rare without", rare, without) == []


def test_shares_are_rounded_so_that_no_count_can_be_read_off(tmp_path: Path) -> None:
    many = fitted(tmp_path / "many", rows_of(199, GLUCOSE))
    assert dict(zip(many.codes, many.share.tolist(), strict=True)) == {"DX//A": 1.0, "DX//B": 0.6, "LAB//X": 1.0}
    few = fitted(tmp_path / "few", rows_of(40, GLUCOSE))
    assert dict(zip(few.codes, few.share.tolist(), strict=True)) == {"DX//A": 1.0, "DX//B": 0.5, "LAB//X": 1.0}


def test_a_vocabulary_without_shares_is_read(tmp_path: Path) -> None:
    vocabulary = fitted(tmp_path, rows_of(200, GLUCOSE))
    object.__setattr__(vocabulary, "share", np.zeros(0))
    vocabulary.save(tmp_path)
    read = Vocabulary.load(tmp_path)
    assert read.digest == vocabulary.digest
    assert said(tmp_path / "new", read, [row for row in rows_of(40, GLUCOSE) if row.code != "DX//B"]) == []


# ---- where it is said ------------------------------------------------------------------------------------------------

TASK = {
    "name": "t",
    "index": {"code": "ENTRY"},
    "outcome": {"event": "EVENT"},
    "censoring": {"dataset_end": True},
    "horizons": ["90d"],
}


def hospital(folder: Path, factor: float = 1, entry: str = "ENTRY") -> Path:
    rows = rows_of(60, GLUCOSE, factor=factor)
    for subject in range(1, 61):
        rows += [Row(subject, 0, entry), Row(subject, (100 + subject) * DAY_US, "EVENT" if subject % 2 else "DX//A")]
    return write_meds(folder, rows)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("hospital")
    (here / "task.yaml").write_text(json.dumps(TASK))
    ehrseq("prepare", hospital(here / "meds"), "--task", here / "task.yaml", "--out", here / "prepared")
    small = ["model.size=small", "training.epochs=1", "training.blend=false"]
    ehrseq("train", here / "prepared", "--out", here / "run", *small)
    return here / "run"


def test_predict_and_evaluate_warn(run: Path, tmp_path: Path) -> None:
    other, own = hospital(tmp_path / "other", 1 / 18), hospital(tmp_path / "own")
    trained = TrainedRun(run)
    with pytest.warns(UserWarning, match=r"compare the units of LAB//X \(100%\)"):
        trained.predict(other, progress=False)
    for name, data in (("other", other), ("own", own)):
        given = {"bootstrap": 2, "baselines": "none", "report": False, "progress": False}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = evaluate(run, data=data, out=tmp_path / f"out-{name}", **given)  # type: ignore[arg-type]
        texts = [str(one.message) for one in caught]
        assert any("compare the units of LAB//X" in text for text in texts) == (name == "other")
        assert any("compare the units of LAB//X" in text for text in found.result["warnings"]) == (name == "other")


@pytest.mark.filterwarnings("ignore:nobody has a code")  # ENTRY
@pytest.mark.parametrize("at", ["last", "all", "1970-01-05", "1960-01-01"])
def test_people_without_a_prediction_time_are_an_error(at: str, run: Path, tmp_path: Path) -> None:
    other = hospital(tmp_path / "other", entry="ELSEWHERE")
    with pytest.raises(EhrseqError, match="nobody has a prediction time") as caught:
        TrainedRun(run).predict(other, at=at, progress=False)
    assert (caught.value.where, "ehrseq check" in caught.value.fix) == (str(other), True)


def test_a_day_before_everything_is_an_error_and_a_shard_of_nobody_is_none(run: Path, tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match="nobody has a prediction time"):
        TrainedRun(run).predict(hospital(tmp_path / "own"), at="1960-01-01", progress=False)
    rows = [Row(1, 0, "DX//A"), Row(2, 0, "ENTRY"), Row(2, DAY_US, "DX//A"), Row(1, DAY_US, "LAB//X", 100.0)]
    found = TrainedRun(run).predict(write_meds(tmp_path / "two", rows, shards=2), progress=False)
    assert found["subject_id"].tolist() == [2]
