"""One signature, two doors: an option of a command is an argument of the function, and the reverse."""

import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ehrsequencing as eh
from ehrsequencing.api.run import TrainedRun
from ehrsequencing.cli.app import app
from ehrsequencing.core.elsewhere import fits, leaves
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.options import OPTIONS

ROOT = Path(__file__).parents[2]
DOORS: dict[str, Callable[..., Any]] = {
    **{name: getattr(eh, name) for name in ("run", "simulate", "codes", "check", "prepare", "pretrain", "evaluate")},
    **{name: getattr(eh, name) for name in ("drift", "monitor", "audit", "update", "compare", "export", "score")},
    **{name: getattr(TrainedRun, name) for name in ("predict", "explain", "explore")},
    "train": eh.fit,
}
# a command has settings as words and files, and prints; a function has them as arguments, and answers
OF_COMMANDS = {"overrides", "config", "prepared", "run"}
OF_FUNCTIONS = {"self", "progress", "say", "data", "study", "sections", "settings", "facts", "report"}
COMMAND_ONLY = {
    "check": {"suggest", "out", "overwrite"},  # a function answers, and writes no file
    "predict": {"out", "overwrite", "strict", "threshold", "top", "outcome"},  # of the nightly list
    "explain": {"out", "overwrite", "subjects"},
    "evaluate": {"redraw"},  # pages without numbers
    "compare": {"ablate", "pool", "seeds", "task", "out", "overwrite"},  # eh.pool_sites; trains
    "score": {"baselines"},  # a setting
}
FUNCTION_ONLY = {
    "train": {"callbacks", "loss", "model", "training", "evaluation", "others", "seed", "seeds", "transfer"},
    "evaluate": {"bootstrap"},  # a setting
    "drift": {"limits"},  # settings
    "monitor": {"limits"},
    "explain": {"kind"},
    "compare": {"seed"},
}
OTHER_DEFAULTS = {
    ("codes", "top"),  # rows that are printed
    ("train", "resume"),  # a function goes on by itself
    ("predict", "at"),  # a frame has a row for each person
    ("monitor", "out"),  # a function answers, and writes a page where it is asked for one
    ("monitor", "journal"),  # refused by its own words
    ("monitor", "by"),
    ("compare", "split"),  # None: that it was not given, as beside --pool
    ("compare", "bootstrap"),
    ("explore", "megabytes"),
}


@pytest.mark.parametrize("name", DOORS)
def test_both_doors_have_the_same_arguments(name: str) -> None:
    options, parameters = OPTIONS[name], inspect.signature(inspect.unwrap(DOORS[name])).parameters
    assert set(options) - set(parameters) - OF_COMMANDS == COMMAND_ONLY.get(name, set())
    assert set(parameters) - set(options) - OF_FUNCTIONS == FUNCTION_ONLY.get(name, set())
    for argument in {*options} & {*parameters}:
        option, parameter = options[argument], parameters[argument]
        default = ... if parameter.default is parameter.empty else parameter.default
        is_alike = option.default == default or str(option.default) == str(default)
        assert is_alike == ((name, argument) not in OTHER_DEFAULTS), argument
        if option.type in (bool, int, float):
            assert option.type in leaves(parameter.annotation)


def test_every_command_has_a_table_and_takes_what_stands_there() -> None:
    commands = {one.name or getattr(one.callback, "__name__", ""): one.callback for one in app.registered_commands}
    assert {*OPTIONS} - {"import"} == {*commands}
    for name, command in commands.items():
        taken = inspect.signature(inspect.unwrap(command)).parameters if command else {}  # type: ignore[arg-type]
        named = {one for one, parameter in taken.items() if parameter.kind is not parameter.VAR_KEYWORD}
        assert named <= {*OPTIONS[name]}, name


def test_a_function_holds_its_arguments_against_the_table(tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match=r"simulate, truth: 'mine' is not a choice \(use held_out or all\)"):
        eh.simulate(tmp_path / "sim", truth="mine")
    with pytest.raises(EhrseqError, match="codes, top: is 0"):
        eh.codes(tmp_path, top=0)


def test_the_map_of_rooms_is_the_folders_and_the_contract() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = [line.split("`")[1].rstrip("/") for line in text.splitlines() if line.startswith("| `") and "/` |" in line]
    folders = {path.parent.name for path in (ROOT / "src/ehrsequencing").glob("*/__init__.py")}
    assert set(table) == folders
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [room.strip().rpartition(".")[2] for line in contracts[0]["layers"] for room in line.split("|")]
    assert set(layers) == folders


# ---- a value of a wrong type is refused by the argument's name, by every public function -----------------------------


SECRET = "4711-Anna"
VALUES: tuple[Any, ...] = (SECRET, [SECRET], 1, 1.5, True, [True], {"a": 1}, None, len, object())
FUNCTIONS = [
    name for name in eh.__all__ if inspect.isfunction(getattr(eh, name)) and name not in ("visit_encoder", "save_run")
]
ARGUMENTS = [
    (name, one.name)
    for name in FUNCTIONS
    for one in inspect.signature(getattr(eh, name)).parameters.values()
    if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
]


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_a_wrong_type_is_refused_by_name(
    name: str, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    function = getattr(eh, name)
    parameters = inspect.signature(function).parameters
    hint = parameters[argument].annotation
    wrong = [value for value in VALUES if not fits(value, hint)]
    given = {
        one.name: next(value for value in VALUES if fits(value, one.annotation))
        for one in parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    }
    for value in wrong:
        with pytest.raises(EhrseqError, match=f"{argument} must be ") as refused:
            function(**(given | {argument: value}))
        assert SECRET not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_most_arguments_are_checked() -> None:
    checked = [
        argument
        for name, argument in ARGUMENTS
        if not all(fits(v, inspect.signature(getattr(eh, name)).parameters[argument].annotation) for v in VALUES)
    ]
    assert len(checked) > 0.4 * len(ARGUMENTS)


def test_numpys_truths_are_truths() -> None:
    assert fits(np.bool_(True), bool)
    assert not fits(np.bool_(True), int)
    assert not fits(np.int64(1), bool)
    assert fits(np.array([1.0]), list[float])


def test_the_told_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EhrseqError, match="prepare: overwrite must be bool, not str"):
        eh.prepare("meds", out="out", overwrite="no")  # type: ignore[arg-type]
    with pytest.raises(EhrseqError, match=r"no setting|unknown"):
        eh.drift("run", "meds", limits={"peeple": 0.3})
