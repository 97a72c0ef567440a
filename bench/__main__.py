"""Run a benchmark: `python -m bench NAME …` in the checkout; `python -m bench` lists them, `NAME --help` explains one.

`bench/measure.py` measures a process, and `bench/results/` holds the numbers that a page shows.
"""

import ast
import runpy
import sys
from pathlib import Path

ROOMS = ("speed", "accuracy", "truth")
HERE = Path(__file__).parent


def benchmarks() -> dict[str, str]:
    """Name of each benchmark → its module."""
    return {
        path.stem: f"bench.{room}.{path.stem}"
        for room in ROOMS
        for path in sorted((HERE / room).glob("[a-z]*.py"))
    }


def first_line(module: str) -> str:
    """What a benchmark asks, of its docstring."""
    path = HERE.parent / f"{module.replace('.', '/')}.py"
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.partition("\n")[0].partition("`python")[0].rstrip(" :;.")


def main() -> None:
    """Hand over to the benchmark of the first word."""
    modules = benchmarks()
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in modules:
        print(__doc__.partition("\n")[0])
        print("\n".join(f"  {one:15}{first_line(module)}" for one, module in modules.items()))
        raise SystemExit(name not in ("", "-h", "--help"))
    sys.argv = [f"bench {name}", *sys.argv[2:]]
    runpy.run_module(modules[name], run_name="__main__")


if __name__ == "__main__":
    main()
