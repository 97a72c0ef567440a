"""One signature, two doors: an option of a command is an argument of the function, and the reverse."""

import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ehrsequencing as eh
from ehrsequencing.api.run import TrainedRun
from ehrsequencing.cli.app import app
from ehrsequencing.core.elsewhere import leaves
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
