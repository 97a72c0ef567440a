"""The scripts of `bench/`, which are no package, as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType


def load_bench(name: str) -> ModuleType:
    """`bench/NAME.py`, afresh and under a name of its own."""
    path = Path(__file__).parents[2] / "bench" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
