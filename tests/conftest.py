"""Fixtures that several rooms share: a small simulated data set, prepared, and a small run trained on it.

A fixture imports what it makes, so that a file of a room without torch starts in two seconds.
"""

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from helpers.settings import EXAMPLES, TINY

if TYPE_CHECKING:
    from ehrsequencing.config import StudyConfig, TaskConfig
    from ehrsequencing.records.prepared import Prepared

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when a room first imports it
if "EHRSEQ_TEST_GPU" not in os.environ:  # most tests ask for the bits of a CPU
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
MEMORY = Path("/dev/shm")
collect_ignore_glob = ["conftest.py", "*/conftest.py"]  # no doctests there, and two modules of one name cannot be
WITHOUT_TORCH = {"config", "core", "metrics", "readers", "records", "results", "simulate"}
EVALUATE = ("test_disclosure",)  # ... but this file of theirs
REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
# A busy machine must not fail a test by the clock, and in CI Hypothesis draws the same examples every time.
settings.register_profile("ours", deadline=None, max_examples=EXAMPLES, derandomize="CI" in os.environ)
settings.load_profile("ours")


def pytest_configure(config: pytest.Config) -> None:
    """Temporary folders lie in memory where there is room for them: a save flushes each of its files to the disk."""
    roomy = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 6 << 30
    if roomy and config.option.basetemp is None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection(session: pytest.Session) -> None:
    """Imported libraries and collected tests stay to the end: Python need not look for garbage there each time."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["EHRSEQ_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module", autouse=True)
def _quick_evaluations(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sixty trees of a rival, twenty simulations of right risks and one person of a simulation, where these are not
    what is tested."""
    if request.path.parent.name in WITHOUT_TORCH and request.path.stem not in EVALUATE:
        yield
        return
    from ehrsequencing.evaluation import curves, evaluate
    from ehrsequencing.predictors import boosted

    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem not in ("test_boosted", "test_cox"):
            patch.setattr(boosted, "MOST_TREES", 60)
        patch.setattr(curves, "SIMULATIONS", 20)
        if request.path.stem != "test_disclosure":
            patch.setattr(evaluate, "SIMULATED_TRAJECTORIES", 1)
        yield


@pytest.fixture(scope="session")
def _unexpected_errors() -> Iterator[list[str]]:
    """What a command ended with in exit code 3, in this process or in a child of it."""
    from ehrsequencing.cli import console

    met, plain, wait = list[str](), console._line_and_code, subprocess.Popen.wait

    def line_and_code(error: Exception) -> tuple[str, int]:
        line, code = plain(error)
        if code == console.UNEXPECTED:
            met.append(line)
        return line, code

    def waited(process: "subprocess.Popen[Any]", timeout: float | None = None) -> int:
        code = wait(process, timeout)
        if code == console.UNEXPECTED and "ehrseq" in str(process.args):
            met.append(f"{process.args} ended with {code}")
        return code

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console, "_line_and_code", line_and_code)
        patch.setattr(subprocess.Popen, "wait", waited)
        yield met


@pytest.fixture(autouse=True)
def _no_unexpected_error(request: pytest.FixtureRequest, _unexpected_errors: list[str]) -> Iterator[None]:
    """Exit code 3 is a fault wherever it is met, but in a test that is marked `unexpected`."""
    _unexpected_errors.clear()
    yield
    if "unexpected" not in request.keywords:
        assert not _unexpected_errors


@pytest.fixture(scope="session")
def real_data() -> Path:
    if not REAL_DATA.is_dir():
        pytest.skip(f"needs the third-party data at {REAL_DATA}")
    return REAL_DATA


@pytest.fixture(scope="session")
def tiny_study() -> "StudyConfig":
    from ehrsequencing.config import load_study

    return load_study(None, [*TINY, "vocabulary.min_subjects=5"])  # 300 subjects: of 11 each, few codes are known


@pytest.fixture(scope="module")
def quick_training() -> Iterator[None]:
    """Few, small trees and regressions, where these are not what is tested."""
    from helpers.blends import quick_parts

    with quick_parts():
        yield


@pytest.fixture(scope="session")
def sim_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 simulated subjects with frequent events."""
    from ehrsequencing.simulate import simulate
    from helpers.simulate import busy_world

    out = tmp_path_factory.mktemp("simulated") / "data"
    simulate(out, subjects=300, seed=5, config=busy_world(outcome_per_year=0.15, truth_futures=8))
    return out


@pytest.fixture(scope="session")
def sim_task(sim_data: Path) -> "TaskConfig":
    from ehrsequencing.config import load_task

    return load_task(sim_data / "task.yaml")


@pytest.fixture(scope="session")
def sim_prepared(
    sim_data: Path, sim_task: "TaskConfig", tiny_study: "StudyConfig", tmp_path_factory: pytest.TempPathFactory
) -> Path:
    from ehrsequencing.records.prepare import prepare

    out = tmp_path_factory.mktemp("prepared") / "set"
    landmarks = sim_task.model_copy(update={"landmarks": (0.0, 365.25)})
    prepare(sim_data, out, study=tiny_study, tasks=[landmarks])
    return out


@pytest.fixture(scope="module")
def prepared(sim_prepared: Path) -> "Prepared":
    from ehrsequencing.records.prepared import Prepared

    return Prepared(sim_prepared)


@pytest.fixture(scope="session")
def sim_run(sim_prepared: Path, tiny_study: "StudyConfig", tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ehrsequencing.records.prepared import Prepared
    from helpers.training import NetworkTrainer as Trainer

    out = tmp_path_factory.mktemp("runs") / "run"
    Trainer(Prepared(sim_prepared), "simulated", out, study=tiny_study).fit()
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium. It is closed after each file: while it is open, no test may run a loop of asyncio."""
    from helpers.browser import a_browser

    with a_browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid
