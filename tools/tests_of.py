"""Which tests run a file's code: `python tools/tests_of.py src/…/FILE.py …` runs them; `--list` names them alone.

The map behind it is made by `python tools/tests_of.py --map [TEST …]`. It runs each file of tests under coverage, in a
process of its own, and notes whose functions were entered there, by child processes too. `.venv/tests_of.json` keeps
the map. A file of tests that has not changed since it was mapped is not run again, so that an interrupted map goes on.
"""

import argparse
import ast
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from coverage import CoverageData

ROOT = Path(__file__).parents[1]
MAP = ROOT / ".venv" / "tests_of.json"


def function_lines(path: Path) -> set[int]:
    """The lines inside of functions: all others run wherever a module is imported."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, functions)]
    return {line for n in nodes for line in range(n.body[0].lineno, (n.end_lineno or 0) + 1)}


def entered(test: Path) -> list[str]:
    """The files of the package whose functions one file of tests enters."""
    with tempfile.TemporaryDirectory() as folder:
        data_file = f"--data-file={folder}/coverage"
        coverage = [sys.executable, "-m", "coverage"]
        pytest = ["-m", "pytest", "-q", "-o", "addopts=-q -p no:anyio -p no:schemathesis", test]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([*coverage, "run", data_file, *pytest], cwd=ROOT, env=environment)
        subprocess.run([*coverage, "combine", "-q", data_file], cwd=ROOT, check=True)
        data = CoverageData(f"{folder}/coverage")
        data.read()
        files = [Path(name) for name in sorted(data.measured_files())]
        return [
            str(path.relative_to(ROOT))
            for path in files
            if function_lines(path).intersection(data.lines(str(path)) or ())
        ]


def make_map(tests: list[Path]) -> None:
    """Bring the map up to date for some files of tests, and save it after each."""
    known = read_map()
    for test in tests:
        name = str(test.relative_to(ROOT))
        digest = hashlib.sha256(test.read_bytes()).hexdigest()
        if known.get(name, {}).get("sha256") == digest:
            continue
        known[name] = {"sha256": digest, "enters": entered(test)}
        MAP.write_text(json.dumps(known, indent=1))
        print(f"{name} enters {len(known[name]['enters'])} files", flush=True)


def read_map() -> dict[str, Any]:
    """File of tests → its digest, and the files that it enters."""
    return json.loads(MAP.read_text()) if MAP.is_file() else {}


def tests_of(files: list[Path]) -> list[str]:
    """The files of tests that enter any of some files, those that enter fewest files first."""
    wanted = {str(path.resolve().relative_to(ROOT)) for path in files}
    rows = [
        (len(row["enters"]), name) for name, row in read_map().items() if wanted & {*row["enters"]}
    ]
    return [name for _, name in sorted(rows) if (ROOT / name).is_file()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument(
        "--map", action="store_true", help="make the map; FILEs are tests, by default all"
    )
    parser.add_argument("--list", action="store_true", help="print the tests, do not run them")
    given = parser.parse_args()
    if given.map:
        make_map(
            [path.resolve() for path in given.files] or sorted((ROOT / "tests").rglob("test_*.py"))
        )
        return 0
    if not MAP.is_file():
        sys.exit("there is no map of the tests yet: python tools/tests_of.py --map")
    names = tests_of(given.files)
    if given.list or not names:
        print("\n".join(names) or "no test is known to enter these files")
        return 0
    return subprocess.run([sys.executable, "-m", "pytest", "-q", *names], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
