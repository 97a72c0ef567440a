"""What the commands of the fault suite start from, and the shim, compiled once."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.config import load_study, load_task
from ehrsequencing.prediction.predict import Request
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.reporting.risk_list import write_list
from ehrsequencing.simulate import simulate
from helpers.faults import driver
from helpers.faults.sources import write_sources
from helpers.simulate import busy_world
from helpers.training import NetworkTrainer as Trainer

Faults = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small source of each format, 60 simulated subjects, their prepared set, and a run on it."""
    folder = write_sources(tmp_path_factory.mktemp("faults"))
    simulate(folder / "sim", subjects=60, seed=5, config=busy_world(outcome_per_year=0.3, truth_futures=4))
    task = load_task(folder / "sim" / "task.yaml")
    simulate(folder / "other", subjects=60, seed=6, config=busy_world(outcome_per_year=0.9, truth_futures=4))
    prepare(folder / "sim", folder / "prepared", study=load_study(None, ["vocabulary.min_subjects=11"]), tasks=[task])
    Trainer(Prepared(folder / "prepared"), task.name, folder / "run", study=load_study(None, driver.TINY)).fit()
    write_list(Run(folder / "run"), folder / "sim", folder / "list" / "r.csv", Request(at="all"))
    return folder


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled shim."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler and Linux")
    source, library = Path(driver.__file__).with_name("shim.c"), tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture(scope="session")
def faults(inputs: Path, shim: Path) -> Faults:
    """Runs the driver: `faults("train=kill:20")` for kills at 20 drawn calls."""

    def run(*asked: str, seed: int = 0) -> list[dict[str, Any]]:
        environment = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": os.pathsep.join(sys.path)}
        words = [sys.executable, "-m", "helpers.faults.driver", inputs, seed, *asked]
        done = subprocess.run(
            [*map(str, words)], env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    return run
