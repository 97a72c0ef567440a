"""How many functions of the package whole commands enter: `python tools/entered.py [COMMAND …]`.

The commands are predict, train-alone (the network alone), train and evaluate; default: all. Each runs once on a small
simulation in this process, from the words of the command line on, with a profiler's hook. `--files` prints
functions and lines (docstrings aside) of each file, too. Import time is not counted. `predict` is that of any night but
the first, whose comparisons wait in a cache.
"""

import ast
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

from ehrsequencing.cli.app import app

ROOT = Path(__file__).parents[1] / "src" / "ehrsequencing"
# without checkpoints, which a slow machine would save and a fast one not
SHORT = ("training.epochs=1", "training.checkpoint_seconds=3600")
ALONE = ("training.blend=false", "training.distillation=0")


def commands(folder: Path) -> dict[str, list[str]]:
    """Name → the words of each command, in the order in which they can run."""
    data, prepared, run = (str(folder / name) for name in ("data", "prepared", "run"))
    return {
        "train-alone": ["train", prepared, "--out", str(folder / "alone"), *SHORT, *ALONE],
        "train": ["train", prepared, "--out", run, *SHORT],
        "predict": ["predict", run, data, "--out", str(folder / "risks.parquet")],
        "evaluate": ["evaluate", run, "--baselines", "fast"],
    }


def run_words(words: list[str]) -> None:
    """One command, in this process."""
    try:
        app([*words, "--quiet"])
    except SystemExit as stop:
        if stop.code:
            raise


def entered_by(words: list[str]) -> set[CodeType]:
    """The code objects that a command enters."""
    entered: set[CodeType] = set()

    def hook(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.add(frame.f_code)

    sys.setprofile(hook)
    try:
        run_words(words)
    finally:
        sys.setprofile(None)
    return entered


def lines_of(path: Path) -> dict[tuple[str, int], int]:
    """(name, first line) of each function of a file → its lines without the docstring."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node) is not None:
                text = node.body[0]
                length -= (text.end_lineno or text.lineno) - text.lineno + 1
            found[node.name, first] = length
    return found


def counts(entered: set[CodeType]) -> tuple[Counter[str], Counter[str]]:
    """Functions of the package by file, and their lines."""
    functions, lines = Counter[str](), Counter[str]()
    for path in sorted(ROOT.rglob("*.py")):
        length, place = lines_of(path), str(path.relative_to(ROOT))
        for code in entered:
            key = code.co_name, code.co_firstlineno
            if code.co_filename == str(path) and key in length:
                functions[place] += 1
                lines[place] += length[key]
    return functions, lines


def main(names: list[str], *, by_file: bool) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["EHRSEQ_CACHE"] = str(folder / "cache")
        data, prepared = str(folder / "data"), str(folder / "prepared")
        run_words(["simulate", data, "--subjects", "300", "--seed", "0"])
        run_words(["prepare", data, "--task", f"{data}/task.yaml", "--out", prepared])
        for command, words in commands(folder).items():
            if command == "predict":
                run_words([*words[:-1], str(folder / "first.parquet")])
            entered = entered_by(words)
            if names and command not in names:
                continue
            functions, lines = counts(entered)
            for where, count in lines.most_common() if by_file else ():
                print(f"{where:45} {functions[where]:4} functions {count:5} lines")
            print(f"{command:45} {functions.total():4} functions {lines.total():5} lines")


if __name__ == "__main__":
    asked = [word for word in sys.argv[1:] if word != "--files"]
    main(asked, by_file="--files" in sys.argv)
