"""Settings: durations, overrides, unknown names, the task language's own rules."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

from ehrsequencing.config import TaskConfig, format_days, load_study, load_task, parse_days
from ehrsequencing.config.files import FORMER
from ehrsequencing.core.errors import EhrseqError

TASKS = Path(__file__).parents[2] / "examples" / "tasks"


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
        ("model.dimm=3", r"unknown setting 'model.dimm'.*did you mean model\.dim\?"),
        ("epochs=3", r"did you mean training\.epochs\?"),
        ("training.dropout=0.1", r"did you mean model\.dropout\?"),
        ("xyzzy=1", "known here: data, "),
        ("model.dim=wide", "model.dim"),
        ("model.dim=30", "multiple of heads"),
        ("modelling.dim=3", "unknown setting 'modelling'"),
        ("nonsense", "write section.key=value"),
        ("model.dim=[", "YAML"),
        ("training.distillation=1.5", "training.distillation"),
        ("model.position=[codes]", "model.position"),
        ("model.head=max", "model.head"),
    ],
)
def test_a_wrong_setting_is_named(override: str, message: str) -> None:
    with pytest.raises(EhrseqError, match=message):
        load_study(None, override.split())


@pytest.mark.parametrize("name", ["mimic4_demo", "nafld", "physionet2012", "pbc2"])
def test_the_example_tasks_are_valid(name: str) -> None:
    assert load_task(TASKS / f"{name}.yaml").name == name


def test_dates_stay_text_and_damage_is_located(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text("name: t\nindex: {date: 2015-01-01}\noutcome: {a: A}\nhorizons: [1y]\n")
    assert load_task(path).index.date == "2015-01-01"
    path.write_text("name: t\nindex: {date\n")
    with pytest.raises(EhrseqError, match="line"):
        load_task(path)


@pytest.mark.parametrize(
    ("title", "horizons", "named"),
    [
        ("Readmission within 30 days", ["7d", "30d", "90d"], 30.0),
        ("1-year mortality", ["90d", "1y"], 365.25),
        ("Death within a year after 48 hours of intensive care", ["30d", "360d"], 360.0),
        ("Six-month readmission", ["30d", "180d"], 180.0),
        ("Heart failure", ["1y", "2y"], None),
        ("Death within two weeks", ["7d", "1y"], None),
        (None, ["7d", "30d"], 30.0),
    ],
)
def test_the_title_names_the_main_horizon(title: str | None, horizons: list[str], named: float | None) -> None:
    task = {"name": "death_30d", "index": {"first_visit": True}, "outcome": {"death": "D"}, "horizons": horizons}
    assert TaskConfig.model_validate({**task, "title": title}).main_horizon == named
    assert TaskConfig.model_validate({**task, "title": title, "main": horizons[0]}).main_horizon == parse_days(
        horizons[0]
    )
    with pytest.raises(ValueError, match="main must be one of the horizons"):
        TaskConfig.model_validate({**task, "main": "3y"})


@pytest.mark.parametrize("setting", FORMER)
def test_a_setting_that_has_left_is_read_where_it_asked_for_nothing(setting: str, tmp_path: Path) -> None:
    section, _, name = setting.rpartition(".")
    file = tmp_path / "config.yaml"
    for value in FORMER[setting]:
        file.write_text(yaml.safe_dump({section: {name: value}, "visits": {"by": "gap"}}))
        assert load_study(file) == load_study(None, ["visits.by=gap"])
        with pytest.raises(EhrseqError, match=rf"unknown setting '{setting}' \(leave it out"):
            load_study(None, [f"{setting}={value}"])
    file.write_text(yaml.safe_dump({section: {name: "something else"}}))
    with pytest.raises(EhrseqError, match=rf"unknown setting '{setting}' \(leave it out"):
        load_study(file)


def test_a_finished_run_is_read_whatever_it_asked_for_while_it_was_made(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"training": {"ema": 0.999, "epochs": 3}}))
    assert load_study(tmp_path / "config.yaml", is_of_run=True).training.epochs == 3
