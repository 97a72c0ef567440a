"""Settings: durations, overrides, unknown names, the task language's own rules."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, strategies as st

from ehrsequencing.config import (
    BadText,
    StudyConfig,
    TaskConfig,
    format_days,
    load_study,
    load_task,
    parse_days,
    parse_json,
    validated,
)
from ehrsequencing.config.files import COMMANDS, FORMER
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, read_json_lines
from ehrsequencing.core.text import parse_yaml
from helpers.command_line import TASK, ehrseq, refused
from helpers.meds import record, write_meds

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


# ---- settings that are not what they should be -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [row for s in range(40) for row in record(s, "0 A, 3 B=2, 9 A" + (", 30 MEDS_DEATH" if s % 3 else ""))]
    return write_meds(tmp_path_factory.mktemp("odd") / "data", rows)


# ---- shapes ----------------------------------------------------------------------------------------------------------


SHAPES = {
    "nothing": ("", "mapping"),
    "a list": ("[1, 2]", "mapping"),
    "a number": ("3", "mapping"),
    "two documents": ("a: 1\n---\nb: 2", "not valid YAML"),
    "a section that is a number": ("visits: 3", "visits: must hold settings"),
    "a section that is a list": ("model: [1]", "model: must hold settings"),
    "a size that is a list": ("model: {size: [1]}", "model.size"),
    "a dialect that is a number": ("dialect: 3", "dialect and data"),
    "two dialects, one a list": ("data: [1]\ndialect: {time_zone: UTC}", "dialect and data"),
    "data that is a list": ("data: [2]\ndialect: {time_zone: UTC}", "dialect and data"),
    "a task that is a list": ("task: []", "task: must hold settings"),
    "an outcome that is a list": ("task: {name: t, index: {code: A}, outcome: [D], horizons: [1y]}", "task.outcome"),
    "horizons that are no list": ("task: {name: t, index: {code: A}, outcome: {d: D}, horizons: 1y}", "must be a list"),
    "a key that is a number": ("1: 2", "unknown setting '1'"),
    "a key that is a list": ("? [1, 2]\n: 3", "not valid YAML"),
    "a key twice": ("model: {dim: 64, layers: 2, dim: 32}", "line 1: has the key 'dim' twice"),
    "a section twice": ("model: {dim: 64}\nvisits: {}\nmodel: {layers: 2}", "line 3: has the key 'model' twice"),
    "lists in lists": ("[" * 2_000, "nested too deeply"),
    "mappings in mappings": ("a: " + "{a: " * 2_000, "nested too deeply"),
    "an alias": ("a: &a [x]\nb: *a", "line 2: has an alias"),
    "an alias to itself": ("a: &a [*a]", "has an alias"),
    "a long text": ("a: " + "x" * 1_000_000, "longer than"),
    "a tag that is no number": ("!!int x", "not valid YAML"),
    "a tag that is no time": ("a: !!timestamp x", "not valid YAML"),
    "a tag that is no truth": ("a: !!bool x", "not valid YAML"),
    "a tag that runs code": ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    "a control character": ("a: \x01", "not valid YAML"),
    "a number of 6,000 digits": ("training: {epochs: " + "9" * 6_000 + "}", "not valid YAML"),
    "a seed beyond any generator": ("training: {seed: " + "9" * 400 + "}", "training.seed"),
    "not a number": ("training: {learning_rate: .nan}", "training.learning_rate"),
    "infinite": ("training: {weight_decay: .inf}", "training.weight_decay"),
    "not UTF-8": ("visits: {by: d\udce4y}", "not UTF-8"),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_an_odd_study_file_is_one_line_that_names_it(data: Path, tmp_path: Path, kind: str) -> None:
    text, says = SHAPES[kind]
    path = tmp_path / "study.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    line = refused("prepare", data, "--config", path, "--out", tmp_path / "set")
    assert says in line
    assert str(path) in line
    assert not (tmp_path / "set").exists()


def test_an_odd_task_file_and_an_odd_override_are_one_line(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(TASK + "horizons: [2y]\n")
    assert "line 5: has the key 'horizons' twice" in refused("check", data, "--task", path)
    for odd in ("visits.ignore={a: 1, a: 2}", "visits.ignore=" + "[" * 2_000, "visits.ignore=!!int x", "visits={"):
        assert "after the equals sign" in refused("check", data, odd)


def test_numbers_are_decimal(tmp_path: Path) -> None:
    said = "{a: 59:59, b: 1:30.5, c: 0x1f, d: -1_000, e: 1.5e+3, f: .inf, g: 0b11, h: 017, i: 0}"
    want = {"a": "59:59", "b": "1:30.5", "c": 31, "d": -1000, "e": 1500.0, "f": np.inf, "g": 3, "h": "017", "i": 0}
    assert parse_yaml(said) == want
    long = ":".join(["59"] * 200_000)
    assert parse_yaml(f"name: {long}") == {"name": long}


def test_empty_sections_are_read(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "visits:\nsplits:\ntask:\n  name: t\n  index: {code: [A, B]}\n  outcome: {d: D}\n  horizons: [1y]\n"
    )
    task = load_study(path, ["splits.seed=3"]).task
    assert task is not None
    assert task.index.code == ("A", "B")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"a": 1, "b": 2, "a": 3}', "has the key 'a' twice"),
        ("{", "not valid JSON"),
        ("9" * 6_000, "not valid JSON"),
        (b"\xff\xfe\xff", "not valid JSON"),
    ],
)
def test_odd_json_is_one_error(tmp_path: Path, text: str | bytes, says: str) -> None:
    with pytest.raises(BadText, match=says):
        parse_json(text)
    path = tmp_path / "x.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for read in (read_json, read_json_lines):
        with pytest.raises(EhrseqError, match=says):
            read(path)


def test_the_card_of_a_data_set_is_json_of_somebody_else(data: Path, tmp_path: Path) -> None:
    card = data / "metadata" / "dataset.json"
    card.parent.mkdir(exist_ok=True)
    card.write_text("[" * 100_000)
    try:
        assert str(card) in refused("prepare", data, "--out", tmp_path / "set")
    finally:
        card.unlink()


# ---- values of a task ------------------------------------------------------------------------------------------------

FULL = {"name": "t", "index": {"code": "I"}, "outcome": {"a": "A"}, "horizons": ["1y"]}
VALUES = {
    "after below zero": ({"index": {"code": "I", "after": -3.0}}, "index.after.*not negative"),
    "after, written with a sign": ({"index": {"code": "I", "after": "-3d"}}, "index.after.*not a duration"),
    "age of no number": ({"index": {"age": float("nan")}}, "index.age.*not a duration"),
    "infinite history": ({"eligibility": {"history": float("inf")}}, "eligibility.history.*longer than"),
    "endless digits": ({"eligibility": {"min_age": "9" * 400 + "y"}}, "eligibility.min_age.*longer than"),
    "within below zero": ({"eligibility": {"must_have": [{"code": "A", "within": -1.0}]}}, "within.*not negative"),
    "horizon of no number": ({"horizons": [30.0, float("nan")]}, "horizons.1.*not a duration"),
    "horizon of nothing": ({"horizons": ["0d", "1y"]}, "horizons must be positive"),
    "horizon below zero": ({"horizons": [-1.0]}, "horizons.0.*not negative"),
    "landmark below zero": ({"landmarks": [-1.0]}, "landmarks.0.*not negative"),
    "landmark without end": ({"landmarks": [0.0, float("inf")]}, "landmarks.1.*longer than"),
    "blanking as long as a horizon": ({"horizons": ["30d", "1y"], "blanking": "30d"}, "blanking=30d must be below"),
    "blanking beyond every horizon": ({"blanking": "2y"}, "blanking=2y must be below every horizon, and one is 1y"),
    "blanking below zero": ({"blanking": -1.0}, "blanking.*not negative"),
    "a cause named censored": ({"competing": {"Censored": "C"}}, "'Censored' cannot name a cause"),
    "an outcome named censored": ({"outcome": {"censored": "C"}}, "'censored' cannot name a cause"),
    "a cause without a name": ({"outcome": {" ": "C"}}, "' ' cannot name a cause"),
    "two kinds of index": ({"index": {"code": "I", "age": "50y"}}, "exactly one"),
    "an index that is the last": ({"index": {"code": "I", "which": "last"}}, "first"),
    "a date that is not ISO": ({"index": {"date": "1.1.2015"}}, "ISO date"),
    "no outcome": ({"outcome": {}}, "outcome"),
    "a cause twice": ({"competing": {"a": "B"}}, "both outcome and competing"),
    "falling horizons": ({"horizons": ["2y", "1y"]}, "rising"),
    "a horizon without a unit": ({"horizons": [365]}, "not a duration"),
    "a landmark twice": ({"landmarks": ["1y", "1y"]}, "rising"),
    "no landmark": ({"landmarks": []}, "landmarks"),
    "two ends of follow-up": ({"censoring": {"date": "2020-01-01", "dataset_end": True}}, "at most one"),
    "a name that is a path": ({"name": "../x"}, "name"),
    "a section of another name": ({"outcoms": {}}, "unknown setting 'outcoms'"),
    "a day that no calendar has": ({"index": {"date": "2015-02-30"}}, "index: '2015-02-30' is not an ISO date"),
}


@pytest.mark.parametrize("kind", VALUES)
def test_an_impossible_value_of_a_task_is_refused(tmp_path: Path, kind: str) -> None:
    change, says = VALUES[kind]
    with pytest.raises(EhrseqError, match=says):
        validated(TaskConfig, FULL | change, where="task.yaml")


def test_the_command_line_names_file_key_and_fix(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(TASK.replace("{code: A}", "{code: A, after: .nan}"))
    line = refused("prepare", data, "--task", path, "--out", tmp_path / "set")
    assert f"{path}: index.after: nan is not a duration" in line
    assert "(correct this setting)" in line
    assert "visits.gap" in refused("check", data, "visits.by=gap", "visits.gap=0h")


# ---- sections and commands -------------------------------------------------------------------------------------------

ARGUMENTS = {
    "codes": ["codes", "nowhere", "text"],
    "check": ["check", "nowhere"],
    "prepare": ["prepare", "nowhere", "--out", "set"],
    "run": ["run", "nowhere", "--out", "study"],
    "pretrain": ["pretrain", "nowhere", "--out", "run"],
    "train": ["train", "nowhere", "--out", "run"],
    "evaluate": ["evaluate", "nowhere"],
    "evaluate --data": ["evaluate", "nowhere", "--data", "elsewhere"],
    "drift": ["drift", "nowhere", "elsewhere"],
    "predict": ["predict", "nowhere", "elsewhere"],
    "monitor": ["monitor", "nowhere", "elsewhere", "--journal", "nights"],
    "explain": ["explain", "nowhere", "elsewhere"],
    "explore": ["explore", "nowhere", "elsewhere"],
    "score": ["score", "nowhere.csv", "elsewhere", "--task", "no.yaml"],
    "score --prepared": ["score", "nowhere.csv", "elsewhere", "--task", "no.yaml", "--prepared", "set"],
}
SETTINGS = (
    "data.extracted=2020-01-01",
    "dialect.time_zone=UTC",
    "visits.by=window",
    "values.mode=none",
    "vocabulary.min_subjects=9",
    "splits.by=hash",
    "task.name=x",
    "model.dim=64",
    "training.seed=3",
    "evaluation.seed=3",
    "pretraining.objectives=masked_codes",
    "transfer.mode=frozen",
    "drift.people=0.5",
)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["splits.from=2018-01-01"], "splits.from is for splits.by=date, and splits.by is file"),
        (["splits.by=hash", "splits.column=site"], "splits.column is for splits.by=site"),
        (["splits.held_out_sites=[north]"], "splits.held_out_sites is for splits.by=site"),
        (["splits.by=hash", "splits.train=.9", "splits.tuning=.4"], "leave nobody to hold out"),
        (["visits.window=12h"], "visits.window is for visits.by=window, and visits.by is day"),
        (["visits.by=window", "visits.gap=3d"], "visits.gap is for visits.by=gap"),
        (["visits.column=stay"], "visits.column is for visits.by=encounter"),
    ],
)
def test_a_setting_of_another_rule_is_refused(given: list[str], says: str) -> None:
    """Whoever names a date to split at believes that the split is by date."""
    with pytest.raises(EhrseqError, match=re.escape(says)):
        load_study(None, given)


def test_every_section_of_a_study_belongs_to_a_command() -> None:
    assert {s.partition("=")[0].partition(".")[0] for s in SETTINGS} == {*StudyConfig.model_fields, "dialect"}
    assert {section for sections in COMMANDS.values() for section in sections} == {*StudyConfig.model_fields, "dialect"}
    assert set(ARGUMENTS) == set(COMMANDS)


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        pytest.param(command, setting, marks=[pytest.mark.slow] * ((i + j) % 4 > 0))
        for i, command in enumerate(COMMANDS)
        for j, setting in enumerate(SETTINGS)
    ],
)
def test_a_setting_that_a_command_does_not_use_is_refused(command: str, setting: str) -> None:
    name = setting.partition("=")[0]
    line = refused(*ARGUMENTS[command], setting)
    takers = [taker for taker, sections in COMMANDS.items() if name.partition(".")[0] in sections]
    assert (f"{name} belongs to" in line) == (command not in takers)
    assert command in takers or all(f"ehrseq {taker}" in line for taker in takers)


def test_what_a_prepared_set_or_a_run_has_settled_cannot_be_changed_by_a_file(
    sim_prepared: Path, sim_run: Path, sim_data: Path, tmp_path: Path
) -> None:
    study = tmp_path / "study.yaml"

    def line(text: str, *arguments: object) -> str:
        study.write_text(text)
        return refused(*arguments, "--config", study)

    train = ("train", sim_prepared, "--out", tmp_path / "run")
    assert f"{study}: values.mode is 'none', but {sim_prepared} was made with 'polynomial'" in line(
        "values: {mode: none}", *train
    )
    assert "splits.by is 'date', but" in line("splits: {by: date, from: 2015-01-01}", *train)
    assert "data.time_zone is" in line("dialect: {time_zone: UTC}", *train)
    assert "has no task 't'" in line(f"task: {{{TASK.strip().replace(chr(10), ', ')}}}", *train)
    evaluate = ("evaluate", sim_run)
    assert f"model.dim is 64, but {sim_run} was made with 16" in line("model: {dim: 64}", *evaluate)
    assert "training.seed is 7" in line("training: {seed: 7}", *evaluate)
    assert "data.extracted is '2030-01-01'" in line("data: {extracted: 2030-01-01}", *evaluate)
    predict = ("predict", sim_run, sim_data, "--out", tmp_path / "p.parquet")
    assert "visits.by is 'gap'" in line("visits: {by: gap}", *predict)
    task = yaml.safe_load((sim_run / "config.yaml").read_text())["task"] | {"blanking": 9.0}
    assert f"task.blanking differs from that of {sim_run}" in line(yaml.safe_dump({"task": task}), *predict)
    assert not (tmp_path / "p.parquet").exists()


def test_a_task_in_the_settings_and_another_by_name_are_not_both_taken(data: Path, tmp_path: Path) -> None:
    task, study = tmp_path / "task.yaml", tmp_path / "study.yaml"
    task.write_text(TASK)
    study.write_text(yaml.safe_dump({"task": yaml.safe_load(TASK) | {"blanking": "9d"}}))
    assert "task: the settings hold the task 't'" in refused("check", data, "--task", task, "--config", study)
    study.write_text(yaml.safe_dump({"task": yaml.safe_load(TASK)}))
    assert ehrseq("check", data, "--task", task, "--config", study).exit_code == 0
