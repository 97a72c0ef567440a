"""The conventions of all commands, also of those that are added later: options, example, one JSON object, next step."""

import inspect
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from ehrsequencing.api import study as demo
from ehrsequencing.api.progress import bar
from ehrsequencing.cli.app import app
from ehrsequencing.cli.console import CommandLine, finish, say, shown
from ehrsequencing.config import load_import, load_study, refuse_unused
from ehrsequencing.config.files import COMMANDS
from ehrsequencing.core.errors import EhrseqError
from helpers.command_line import ehrseq, refused
from helpers.meds import DAY_US, Row, record, write_meds


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command with its words, groups unfolded."""
    if not hasattr(command, "list_commands"):
        yield " ".join(words), command
        return
    for name in command.list_commands(None):
        yield from leaves(command.get_command(None, name), (*words, name))


ALL: dict[str, Any] = dict(leaves(typer.main.get_command(app)))


def has_conventions(command: Any) -> bool:
    """Whether a command has the shared options, an example, and a body that ends with `finish`."""
    options = {text for param in command.params for text in param.opts}
    body = inspect.unwrap(command.callback)
    example = "Example: " in f"{command.epilog} {command.help}"
    return {"--quiet", "--json", "--debug"} <= options and example and "finish" in body.__code__.co_names


@pytest.mark.parametrize("name", ALL)
def test_every_command_keeps_the_conventions(name: str) -> None:
    assert has_conventions(ALL[name]), "declare it with CommandLine.command, an example, and end it with finish"
    short, long, whole = (ehrseq(*name.split(), option) for option in ("-h", "--help", "--help-all"))
    assert short.exit_code == long.exit_code == whole.exit_code == 0
    assert short.stdout == long.stdout
    assert "--debug" in whole.stdout
    assert "--debug" not in short.stdout
    assert all(len(line) <= 100 for line in short.stdout.splitlines())


@pytest.mark.parametrize("name", ALL)
def test_the_example_of_every_command_is_one_that_it_takes(name: str) -> None:
    help_text = f"{ALL[name].epilog or ALL[name].help}"
    first, *words = shlex.split(help_text.split("Example: ")[1].splitlines()[0])
    assert [first, *words[: len(name.split())]] == ["ehrseq", *name.split()]
    rest = words[len(name.split()) :]
    context = ALL[name].make_context(name, rest)  # fails on an option that the command lacks
    overrides = context.params.get("overrides") or ()
    if name.startswith("import"):
        load_import(overrides)
    elif name in COMMANDS:
        refuse_unused(overrides, name)
        load_study(None, overrides)


@pytest.mark.parametrize("name", [name for name in ALL if name in COMMANDS])
def test_the_setting_that_the_help_shows_is_one_that_the_command_takes(name: str) -> None:
    (shown,) = (param.help for param in ALL[name].params if param.name == "overrides")
    setting = shown.split("as in ")[1]
    refuse_unused([setting], name)
    load_study(None, [setting])


@pytest.mark.parametrize("name", ALL)
def test_an_error_is_one_json_object_too(name: str, tmp_path: Path) -> None:
    """Every path that a command takes is a file of somebody else, which no command can use."""
    file = tmp_path / "notes.txt"
    file.write_text("years of work")
    needed = [param for param in ALL[name].params if param.required or param.name == "out"]
    given = [word for param in needed for word in (*(o for o in param.opts if o.startswith("--")), str(file))]
    done = ehrseq(*name.split(), *given, "--json")
    assert done.exit_code == 2, done.output
    told = json.loads(done.stdout)
    assert (told["command"], told["exit_code"]) == (name, 2)
    assert told["error"]["what"] in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("ehrseq: ")]) == 1
    assert file.read_text() == "years of work"


def test_a_result_is_one_json_object_or_text_or_nothing(tmp_path: Path) -> None:
    def simulate(*options: str) -> Any:
        return ehrseq("simulate", tmp_path / "a b", "--subjects", 20, *options)

    text, quiet = simulate(), simulate("--quiet", "--overwrite")
    told = json.loads(simulate("--json", "--overwrite").stdout)
    assert (quiet.stdout, quiet.stderr) == ("", "")
    assert told["wrote"]["data"] == str(tmp_path / "a b")
    assert (told["command"], told["exit_code"], told["error"]) == ("simulate", 0, None)
    assert told["result"] == {"subjects": 20, "seed": 0}
    next_words = shlex.split(told["next"])
    assert next_words[:3] == ["ehrseq", "prepare", str(tmp_path / "a b")]
    assert text.stdout.splitlines()[-1] == f"next  {told['next']}"
    assert ehrseq(*next_words[1:]).exit_code == 0  # it can be typed as it is


def test_the_recipe_of_the_architecture_page_is_such_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = page.split("## Add a command")[1].split("\n## ")[0].splitlines()
    line = CommandLine()
    names: dict[str, Any] = {"app": line, "Path": Path, "bar": bar, "shown": shown, "say": say, "finish": finish}
    exec("\n".join(text[4:] for text in lines if text.startswith("    ") or not text), names)
    made: Any = typer.main.get_command(line)
    assert has_conventions(made)
    data = write_meds(tmp_path / "meds", [Row(who, who * DAY_US, "A") for who in range(7)], shards=2)
    made.main([str(data), "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["result"] == {"subjects": 7}
    made.main([str(data)], standalone_mode=False)
    assert capsys.readouterr().out == f"7 subjects\nnext  ehrseq check {data}\n"


def test_a_misspelt_command_or_option_is_answered_with_what_comes_close(tmp_path: Path) -> None:
    assert "use ehrseq check" in ehrseq("chek").stderr
    assert "RUN/report.html" in ehrseq("report", "run").stderr
    assert "--baselines" in ehrseq("evaluate", tmp_path, "--baseline", "fast").stderr
    main = [sys.executable, "-c", "from ehrsequencing.cli import main; main()"]
    done = subprocess.run([*main, "train", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Missing" in json.loads(done.stdout)["error"]["what"]
    done = subprocess.run([*main, "train", "x", "--epochs", "3"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "It is a setting: write training.epochs=…" in done.stderr


def test_version_and_completion() -> None:
    done = ehrseq("--version")
    assert done.exit_code == 0
    assert done.stdout.startswith("ehrseq ")
    assert "--install-completion" in ehrseq("-h").stdout
    words = {"_EHRSEQ_COMPLETE": "complete_bash", "COMP_WORDS": "ehrseq pretr", "COMP_CWORD": "1"}
    main = [sys.executable, "-c", "from ehrsequencing.cli import main; main()"]
    told = subprocess.run(main, capture_output=True, text=True, env={**os.environ, **words}, check=False)
    assert told.stdout.split() == ["pretrain"]


# ---- quick help, one-line errors, nothing half-written, the whole way ------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [row for s in range(40) for row in record(s, "0 A, 3 B=2, 9 A, 20 C" + (", 30 MEDS_DEATH" if s % 3 else ""))]
    return write_meds(tmp_path / "data", rows)


def test_the_commands_are_declared_without_the_heavy_imports() -> None:
    heavy = "[m for m in ('torch', 'pandas', 'numpy', 'pyarrow', 'sklearn', 'pydantic', 'rich') if m in sys.modules]"
    command = [sys.executable, "-c", f"import sys, ehrsequencing.cli.app; print({heavy})"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_reading_records_needs_no_torch_and_no_scikit_learn(data: Path, task: Path) -> None:
    run = "import sys; from typer.testing import CliRunner; from ehrsequencing.cli.app import app"
    given = [["check", str(data), "--task", str(task)], ["codes", str(data), "A"]]
    lines = f"{run}; codes = [CliRunner().invoke(app, words).exit_code for words in {given}]"
    heavy = "[m for m in ('torch', 'sklearn', 'scipy') if m in sys.modules]"
    command = [sys.executable, "-c", f"{lines}; print(codes, {heavy})"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[0, 0] []\n"


def test_a_run_without_a_network_needs_no_torch(sim_data: Path, tmp_path: Path) -> None:
    out, few = tmp_path / "study", ["evaluation.bootstrap=0"]
    given = [
        ["run", str(sim_data), "--task", str(sim_data / "task.yaml"), "--out", str(out), "--quick", *few],
        ["evaluate", str(out / "run"), "evaluation.bootstrap=0"],
        ["predict", str(out / "run"), str(sim_data), "--out", str(tmp_path / "list.csv")],
    ]
    run = "import sys; from typer.testing import CliRunner; from ehrsequencing.cli.app import app"
    lines = f"{run}; codes = [CliRunner().invoke(app, words).exit_code for words in {given}]"
    command = [sys.executable, "-c", f"{lines}; print(codes, 'torch' in sys.modules)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[0, 0, 0] False\n"


def test_one_command_goes_the_whole_way_and_then_on(sim_data: Path, tmp_path: Path) -> None:
    tiny = ("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=1", "evaluation.bootstrap=0")
    few = (
        "evaluation.baselines=none",
        "training.distillation=0",
        "training.blend=false",
    )
    words = ("run", sim_data, "--task", sim_data / "task.yaml", "--out", tmp_path / "study", *tiny, *few)
    first, again = ehrseq(*words), ehrseq(*words, "--json")
    assert first.exit_code == again.exit_code == 0, first.output
    assert [line[:3] for line in first.stdout.splitlines() if line[1:3] == "/5"] == ["1/5", "2/5", "3/5", "4/5", "5/5"]
    assert json.loads(again.stdout)["wrote"]["report"] == str(tmp_path / "study" / "run" / "report.html")
    run = tmp_path / "study" / "run"
    told = ehrseq("compare", run, run, "--bootstrap", 20)
    assert told.exit_code == 0, told.output
    assert "minus each other run" in told.stdout
    assert "two runs or more" in refused("compare", run)
    assert "--overwrite would do nothing without --out" in refused("check", sim_data, "--overwrite")
    assert "--task would do nothing with --suggest" in refused("check", sim_data, "--suggest", "--task", "task.yaml")
    assert "--megabytes would do nothing with" in refused("explore", run, sim_data, "--no-what-if", "--megabytes", 3)
    assert "needs one task" in refused("run", sim_data, "--out", tmp_path / "other")


TINY = ("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=1", "training.distillation=0")
STAGES = ("0/5", "1/5", "2/5", "3/5", "4/5", "5/5")


@pytest.mark.slow
def test_a_demo_goes_on_where_it_stopped_and_a_second_call_does_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("training.blend=false", "evaluation.bootstrap=5", "evaluation.baselines=none")
    monkeypatch.setattr(demo, "SETTINGS", (*TINY, *few))
    out, lines = tmp_path / "demo", list[str]()

    def stop(line: str) -> None:
        if line.startswith("4/5"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(out, subjects=300, seed=0, say=stop)
    first = demo.run_demo(out, subjects=300, seed=0, say=lines.append)
    assert [line[:3] for line in lines if line.startswith(STAGES)] == ["4/5", "5/5"]
    assert sorted(path.name for path in out.iterdir()) == ["data", "explorer.html", "prepared", "run"]
    lines.clear()
    assert demo.run_demo(out, subjects=300, seed=0, say=lines.append) == first
    assert not any(line.startswith(STAGES) for line in lines)
    with pytest.raises(EhrseqError, match="something else"):
        demo.run_demo(out, subjects=300, seed=1, say=lines.append)
