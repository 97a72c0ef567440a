"""Settings: durations, overrides, unknown names, the task language's own rules."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ehrsequencing.config import ModelConfig, TaskConfig, format_days, load_study, load_task, parse_days, validated
from ehrsequencing.errors import EhrseqError

TASKS = Path(__file__).parents[1] / "examples" / "tasks"


@given(st.integers(1, 10_000), st.sampled_from("hdwy"))
def test_durations_read_back(number: int, unit: str) -> None:
    days = parse_days(f"{number}{unit}")
    assert days == number * {"h": 1 / 24, "d": 1, "w": 7, "y": 365.25}[unit]
    assert parse_days(format_days(days)) == pytest.approx(days, rel=1e-5)


@pytest.mark.parametrize("text", ["30", "30 days", "-3d", "d", "1m", ""])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_days(text)


def test_overrides_win_over_the_file_and_sizes_expand(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("model: {size: small, layers: 3}\ntraining: {seed: 1}\n")
    study = load_study(path, ["training.seed=7", "model.dropout=0.3"])
    assert (study.training.seed, study.model.dim, study.model.layers, study.model.dropout) == (7, 64, 3, 0.3)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.dimm=3", "unknown setting 'model.dimm'.*dim"),
        ("model.dim=wide", "model.dim"),
        ("model.dim=30", "multiple of heads"),
        ("modelling.dim=3", "unknown setting 'modelling'"),
        ("nonsense", "write section.key=value"),
        ("model.dim=[", "YAML"),
        ("model.head=visit model.causes=2", "model.head"),
        ("training.ema=1.5", "training.ema"),
    ],
)
def test_a_wrong_setting_is_named(override: str, message: str) -> None:
    with pytest.raises(EhrseqError, match=message):
        load_study(None, [override])


def test_head_visit_has_one_cause_and_no_grid() -> None:
    with pytest.raises(EhrseqError, match="one hazard per visit"):
        validated(ModelConfig, {"head": "visit", "causes": 2}, where="test")


@pytest.mark.parametrize("name", ["mimic4_demo", "nafld", "physionet2012", "pbc2"])
def test_the_example_tasks_are_valid(name: str) -> None:
    assert load_task(TASKS / f"{name}.yaml").name == name


TASK = {"name": "t", "index": {"code": "I"}, "outcome": {"a": "A"}, "horizons": ["1y"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": {"code": "I", "age": "50y"}}, "exactly one"),
        ({"index": {"code": "I", "which": "last"}}, "first"),
        ({"index": {"date": "1.1.2015"}}, "ISO date"),
        ({"outcome": {}}, "outcome"),
        ({"competing": {"a": "B"}}, "both outcome and competing"),
        ({"horizons": ["2y", "1y"]}, "rising"),
        ({"horizons": [365]}, "not a duration"),
        ({"landmarks": ["1y", "1y"]}, "rising"),
        ({"landmarks": []}, "landmarks"),
        ({"censoring": {"date": "2020-01-01", "dataset_end": True}}, "at most one"),
        ({"name": "../x"}, "name"),
        ({"outcomes": {}}, "unknown setting 'outcomes'"),
    ],
)
def test_a_wrong_task_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(EhrseqError, match=message):
        validated(TaskConfig, TASK | change, where="task.yaml")


def test_dates_stay_text_and_damage_is_located(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text("name: t\nindex: {date: 2015-01-01}\noutcome: {a: A}\nhorizons: [1y]\n")
    assert load_task(path).index.date == "2015-01-01"
    path.write_text("name: t\nindex: {date\n")
    with pytest.raises(EhrseqError, match="line"):
        load_task(path)
    path.write_text("!!python/object/apply:os.system ['true']\n")
    with pytest.raises(EhrseqError, match="YAML"):
        load_task(path)
