"""The scripts of `bench/`, which are no package, as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_bench(name: str) -> ModuleType:
    """`bench/NAME.py`, afresh and under a name of its own; the files beside it are found, as by `python bench/…`."""
    path = Path(__file__).parents[2] / "bench" / f"{name}.py"
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
