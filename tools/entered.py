"""What a training of the network alone enters: `python tools/entered.py [section.key=value …]`.

Trains one epoch on a small simulation with a profiler's hook and prints, file by file, how many functions of the
package were entered and how many lines they hold, docstrings aside. Import time is not counted.
"""

import ast
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import ehrsequencing as eh
from ehrsequencing.api.records import simulate
from ehrsequencing.api.training import train
from ehrsequencing.config import load_study
from ehrsequencing.records.prepared import Prepared

ROOT = Path(__file__).parents[1] / "src" / "ehrsequencing"
# without checkpoints, which a slow machine would save and a fast one not
ALONE = (
    *("training.blend=false", "training.distillation=0", "training.epochs=1"),
    "training.checkpoint_seconds=3600",
)


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


def main(settings: list[str]) -> None:
    """Print the table."""
    entered: set[CodeType] = set()

    def hook(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.add(frame.f_code)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        simulate(folder / "data", subjects=300, seed=0, progress=False)
        eh.prepare(folder / "data", task=folder / "data/task.yaml", out=folder / "prepared")
        study = load_study(None, [*ALONE, *settings])
        sys.setprofile(hook)
        train(Prepared(folder / "prepared"), folder / "run", study=study, progress=False)
        sys.setprofile(None)
    functions, lines = Counter[str](), Counter[str]()
    for path in sorted(ROOT.rglob("*.py")):
        length = lines_of(path)
        for code in entered:
            key = code.co_name, code.co_firstlineno
            if code.co_filename == str(path) and key in length:
                functions[str(path.relative_to(ROOT))] += 1
                lines[str(path.relative_to(ROOT))] += length[key]
    for where, count in lines.most_common():
        print(f"{where:45} {functions[where]:4} functions {count:5} lines")
    print(f"{'total':45} {functions.total():4} functions {lines.total():5} lines")


if __name__ == "__main__":
    main(sys.argv[1:])
