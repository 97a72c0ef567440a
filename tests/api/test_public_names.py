"""The public names: shown, documented with an example, and imported on first use only."""

import doctest
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import ehrsequencing as eh
from ehrsequencing.api.evaluation import EvaluationResult
from ehrsequencing.api.run import TrainedRun

NAMES = {
    "EHRSurvival",
    "aalen_johansen",
    "audit",
    "check",
    "codes",
    "compare",
    "compare_risks",
    "cox",
    "drift",
    "evaluate",
    "fit",
    "from_table",
    "load",
    "metrics",
    "prepare",
    "read_meds",
    "run",
    "score",
    "simulate",
    "visit_encoder",
}


OF_AN_EVALUATION = (
    "calibration",
    "operating_points",
    "outcomes",
    "plot_calibration",
    "plot_decision_curve",
    "plot_incidence",
    "subgroups",
    "table1",
)
OF_A_RUN = ("predict", "explain", "attention", "plot_risk", "cox")


def test_dir_shows_the_public_names_and_nothing_else() -> None:
    assert set(eh.__all__) >= NAMES
    assert dir(eh) == sorted(eh.__all__)
    assert all(hasattr(eh, name) for name in dir(eh))
    import_module("ehrsequencing.audit.audit")  # a room of the same name
    assert not isinstance(eh.audit, ModuleType)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = eh.nothing


def test_each_has_an_example_that_the_doctests_run() -> None:
    finder = doctest.DocTestFinder(recurse=False)
    documented = [getattr(eh, name) for name in NAMES - {"metrics", "visit_encoder"}]
    documented += [getattr(eh.metrics, name) for name in eh.metrics.__all__]
    documented += [getattr(TrainedRun, name) for name in OF_A_RUN]
    documented += [vars(EvaluationResult)[name] for name in OF_AN_EVALUATION]
    documented += [type(eh.visit_encoder)]
    for one in documented:
        assert any(test.examples for test in finder.find(one, name="x")), one


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    heavy = "('torch', 'numpy', 'pandas', 'pyarrow', 'sklearn', 'scipy', 'matplotlib', 'pydantic')"
    code = (
        "import sys, ehrsequencing as eh; dir(eh)\n"
        f"loaded = [m for m in {heavy} if m in sys.modules]; assert not loaded, loaded\n"
        "eh.metrics.concordance; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_the_pages_import_is_in_the_module_s_all() -> None:
    root, asked = Path(eh.__file__).parents[2], dict[str, set[str]]()
    pages = [*(root / "docs").glob("*.md"), root / "README.md", *(root / "examples").rglob("*.py")]
    pages += (root / "examples").glob("*.ipynb")
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for module, names in re.findall(r"from (ehrsequencing\.[\w.]+) import ([\w, ]+)", text):
            asked.setdefault(module, set()).update(name.strip() for name in names.split(",") if name.strip())
    assert len(asked) > 10
    for module, names in asked.items():
        assert names <= set(import_module(module).__all__), module
