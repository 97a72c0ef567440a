"""What the examples of the docstrings and of docs/python.md start from: small simulated data, and a run on it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_NEED_FILES = ("ehrsequencing/api", "docs/python.md")  # whose examples name files
_TASK = """
name: hf
index:      {code: ENROLLMENT, which: first}
outcome:    {hf: DX//OUTCOME}
competing:  {death: MEDS_DEATH}
censoring:  {code: END_OF_FOLLOWUP}
horizons:   [1y, 2y]
landmarks:  [0d]
"""
_SECTIONS = {
    "model": {"dim": 16, "heads": 2, "layers": 1},
    "training": {"epochs": 2, "min_steps": 4, "distillation": 0.0, "blend": False},
    "evaluation": {"bootstrap": 20, "baselines": "none"},
}


@pytest.fixture(scope="session")
def example_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `meds/` (400 simulated subjects), `task.yaml`, `prepared/` and the evaluated run `runs/hf`."""
    import torch

    import ehrsequencing as eh
    from ehrsequencing.simulate import simulate
    from helpers.simulate import busy_world

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("example")
    simulate(folder / "meds", subjects=400, seed=5, config=busy_world(outcome_per_year=0.15, truth_futures=8))
    (folder / "task.yaml").write_text(_TASK)
    data = eh.prepare(folder / "meds", folder / "task.yaml", out=folder / "prepared", progress=False)
    eh.fit(data, out=folder / "runs" / "hf", **_SECTIONS, progress=False)
    eh.evaluate(folder / "runs" / "hf", report=False, progress=False)
    return folder


@pytest.fixture(autouse=True)
def _in_the_example_folder(
    request: pytest.FixtureRequest, doctest_namespace: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Examples that name files run in a folder that has them, with few simulations of right risks."""
    is_example = isinstance(request.node, pytest.DoctestItem) and any(n in request.path.as_posix() for n in _NEED_FILES)
    if not is_example:
        yield
        return
    import matplotlib

    import ehrsequencing as eh
    from ehrsequencing.evaluation import curves

    matplotlib.use("Agg")
    doctest_namespace["eh"] = eh
    monkeypatch.setattr(curves, "SIMULATIONS", 20)
    here = Path.cwd()
    os.chdir(request.getfixturevalue("example_folder"))
    try:
        yield
    finally:
        os.chdir(here)
        from matplotlib import pyplot

        pyplot.close("all")
