"""Labels of many outcomes, against the records read by loops."""

import datetime as dt
import random
from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.config import OutcomesConfig, StudyConfig, TaskConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.outcomes import already_had, outcome_labels
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from helpers.meds import DAY_US, SPLITS, STARTS, Row, write_meds

CODES = ("DX//a", "DX//b", "DX//c", "DX//rare", "LAB//x", "OUT")


def drawn_rows(seed: int, *, subjects: int = 60) -> list[Row]:
    """Records of some days, with codes that recur, share their instants, and come before and after the index."""
    draw, rows = random.Random(seed), list[Row]()
    for subject in range(subjects):
        for day in sorted(draw.sample(range(30), draw.randint(2, 12))):
            names = draw.sample(CODES[:3] + CODES[4:5], draw.randint(1, 3))
            rows += [Row(subject, STARTS[1] + day * DAY_US + draw.choice((0, 3_600_000_000)), name) for name in names]
        if draw.random() < 0.4:
            rows.append(Row(subject, STARTS[1] + draw.randint(10, 30) * DAY_US, "OUT"))
    return [*rows, Row(0, STARTS[1] + 29 * DAY_US, "DX//rare")]


def prepared(folder: Path, rows: list[Row], *, blanking: float = 0.0, codes: str = "DX//*") -> Prepared:
    subjects = sorted({row.subject for row in rows})
    splits = {subject: SPLITS[0 if k % 4 < 2 else k % 4 - 1] for k, subject in enumerate(subjects)}
    data = write_meds(folder / "data", rows, splits=splits, shards=2)
    index = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=STARTS[1] + 3 * DAY_US)
    task = TaskConfig.model_validate(
        {
            "name": "t",
            "index": {"date": str(index.date())},
            "outcome": {"out": "OUT"},
            "horizons": ["10d"],
            "landmarks": ["0d", "4d"],
            "blanking": blanking,
            "outcomes": {"codes": [codes, "OUT"], "min_subjects": 5},
        }
    )
    study = StudyConfig.model_validate({"vocabulary": {"min_subjects": 1}})
    prepare(data, folder / "set", study=study, tasks=[task], processes=1)
    return Prepared(folder / "set")


@pytest.mark.parametrize("blanking", [0.0, 2.0])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_labels_are_those_of_the_records(tmp_path: Path, blanking: float, seed: int) -> None:
    """Every pair of a prediction time and an outcome: no entry, an event at its instant, or not at risk."""
    rows = drawn_rows(seed)
    store = prepared(tmp_path, rows, blanking=blanking)
    codes = store.outcomes("t")
    assert codes == ["DX//a", "DX//b", "DX//c"], "neither a rare code, nor a code of a cause, nor one that nobody named"
    events = total = 0
    for split in SPLITS:
        records = store.outcome_records("t", split)
        assert records.outcomes is not None
        listed = outcome_labels(records.outcomes, records.rows, np.arange(len(records)))
        found = dict(
            zip(zip(listed.row.tolist(), listed.code.tolist(), strict=True), listed.days.tolist(), strict=True)
        )
        assert len(found) == len(listed.row), "a pair stands once"
        for r, subject in enumerate(records.subject_id.tolist()):
            p, stop = int(records.rows.prediction_us[r]), float(records.rows.duration_days[r])
            for c, code in enumerate(codes):
                days = [
                    (row.time - p) / DAY_US for row in rows if (row.subject, row.code) == (subject, code) and row.time
                ]
                first = min(days, default=np.inf)
                expected = None if first > stop else first if first > blanking else 0.0
                assert found.get((r, c)) == (None if expected is None else pytest.approx(expected)), (split, r, code)
                events, total = events + (expected is not None and expected > 0), total + 1
    assert 50 < events < total


def test_had_before_is_what_has_no_risk(tmp_path: Path) -> None:
    """Without labels, as for new records: the pairs that the labels call not at risk (without blanking)."""
    records = prepared(tmp_path, drawn_rows(3)).outcome_records("t", "train")
    assert records.outcomes is not None
    listed = outcome_labels(records.outcomes, records.rows, np.arange(len(records)))
    row, code = already_had(records.outcomes, records.rows)
    without = listed.days == 0
    assert set(zip(row.tolist(), code.tolist(), strict=True)) == set(
        zip(listed.row[without].tolist(), listed.code[without].tolist(), strict=True)
    )


def test_outcomes_that_nobody_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match=r"no code has an event in 5 training subjects"):
        prepared(tmp_path / "few", drawn_rows(1), codes="DX//rare")
    with pytest.raises(EhrseqError, match=r"a condition on a number is not possible in task t, outcomes.codes"):
        prepared(tmp_path / "number", drawn_rows(1), codes="LAB//x > 3")


def test_outcomes_need_causes_that_end_a_record() -> None:
    asked = {"name": "t", "index": {"first_visit": True}, "outcome": {"out": "OUT"}, "horizons": ["1y"]}
    outcomes = OutcomesConfig(codes=("DX//*",))
    with pytest.raises(ValueError, match="leave recurrent"):
        TaskConfig.model_validate({**asked, "recurrent": True, "outcomes": outcomes.model_dump()})
