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
    "predict": {"out", "overwrite", "strict", "threshold", "top", "outcome", "journal", "key"},  # of the nightly list
    "explain": {"out", "overwrite", "subjects"},
    "evaluate": {"redraw"},  # pages without numbers
    "compare": {"ablate", "pool", "seeds", "task", "out", "overwrite"},  # eh.pool_sites; trains
    "export": {"format_", "license_"},  # names that Python has
    "score": {"baselines"},  # a setting
}
FUNCTION_ONLY = {
    "train": {"callbacks", "loss", "model", "training", "evaluation", "others", "seed", "seeds", "transfer"},
    "evaluate": {"bootstrap"},  # a setting
    "drift": {"limits"},  # settings
    "monitor": {"limits"},
    "explain": {"kind"},
    "compare": {"seed"},
    "export": {"format", "license"},
}


def names(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(inspect.unwrap(function)).parameters)


@pytest.mark.parametrize("name", DOORS)
def test_both_doors_have_the_same_options(name: str) -> None:
    commands = {one.name or one.callback.__name__: one.callback for one in app.registered_commands if one.callback}
    command = commands[name]
    options, arguments = names(command), names(DOORS[name])
    assert options - arguments - OF_COMMANDS == COMMAND_ONLY.get(name, set())
    assert arguments - options - OF_FUNCTIONS == FUNCTION_ONLY.get(name, set())


def test_the_map_of_rooms_is_the_folders_and_the_contract() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = [line.split("`")[1].rstrip("/") for line in text.splitlines() if line.startswith("| `") and "/` |" in line]
    folders = {path.parent.name for path in (ROOT / "src/ehrsequencing").glob("*/__init__.py")}
    assert set(table) == folders
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [room.strip().rpartition(".")[2] for line in contracts[0]["layers"] for room in line.split("|")]
    assert set(layers) == folders
