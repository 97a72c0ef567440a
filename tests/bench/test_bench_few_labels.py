"""`bench/few_labels.py`: a bare run has all arms, finished ones become lines, and tables come from them."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ehrsequencing.config.parts import objective
from helpers.bench import load_bench

SUBJECTS = [0, 0, 1, 2, 2, 2]
BASE = np.array([1.0, 2.0, 3.0, 1.0, 2.0, 4.0])


def arm(out: Path, seed: int, name: str, n: int | None, nll: np.ndarray) -> None:
    folder = out / "world-100" / f"seed-{seed}" / "arms"
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "subjects.json").write_text(json.dumps(SUBJECTS))
    (folder / f"{name.replace('/', '.')}@{n}.json").write_text(json.dumps({"arm": name, "n": n, "nll": nll.tolist()}))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for seed in (0, 1):
        arm(tmp_path, seed, "scratch", 50, BASE + seed)
        arm(tmp_path, seed, "scratch", None, BASE + seed - 0.4)
        arm(tmp_path, seed, "trees", None, BASE + seed - 0.3)
        arm(tmp_path, seed, "time_to_code/full", 50, BASE + seed - 0.1 * (1 + seed))
    arm(tmp_path, 2, "time_to_code/full", 50, BASE)  # without scratch it is compared with nothing
    return tmp_path


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    load_bench("few_labels")
    import _few_labels_results as module  # type: ignore[import-not-found]

    monkeypatch.setattr(module, "FOLDER", tmp_path / "kept")
    found: ModuleType = module
    return found


def test_the_table_has_each_seed_and_the_share_of_the_gap(out: Path, results: ModuleType) -> None:
    bench = load_bench("few_labels")
    rows = results.finished(out)
    assert {row.seed for row in rows} == {"seed-0", "seed-1"}
    found = {(one.arm, one.n): one for one in bench.collect(rows)}
    one = found["time_to_code/full", 50]
    assert one.gain.each == pytest.approx([0.1, 0.2])
    assert one.share == pytest.approx(0.3 / 0.8)
    assert one.over_trees.each == pytest.approx([-0.2, -0.1])
    assert found["scratch, all labels", 50].share == pytest.approx(1.0)
    assert "| 0.1000" not in bench.markdown(list(found.values()))
    assert "+0.1000 +0.2000" in bench.markdown(list(found.values()))


def test_a_bare_run_has_every_objective_mode_and_control() -> None:
    bench = load_bench("few_labels")
    arms = [bench.Arm.read(name) for name in bench.ARMS]
    sources = {name for arm in arms if arm.mode for name in arm.source.split("+")}
    assert sources == set(objective.parts)
    assert {arm.mode for arm in arms} == {None, "full", "frozen", "lora"}
    assert {"scratch", "scratch_long", "trees"} <= {arm.source for arm in arms}
    recommended = [arm for arm in arms if arm.source == "time_to_code" and arm.mode == "frozen" and arm.settings]
    assert [arm.control for arm in recommended] == [None, "shuffled", "other_pairs", "everything"]
    assert not bench.Arm.read("time_to_code-other_pairs/full").fits("nafld")
    assert bench.Arm.read("time_to_code-other_pairs/full").fits("sim_pairs")
