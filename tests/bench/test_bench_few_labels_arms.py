"""The arms of `bench/few_labels.py`: a bare run has all of them, and one without the exclusion predicts everything."""

import importlib
from pathlib import Path

from ehrsequencing.config.parts import objective
from ehrsequencing.records.prepared import Prepared
from helpers.bench import load_bench

TINY = ("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=1")


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


def test_without_the_exclusion_the_outcome_is_a_target(sim_prepared: Path, tmp_path: Path) -> None:
    load_bench("few_labels")
    arms = importlib.import_module("_few_labels_arms")
    site = arms.Site("sim_pairs", tmp_path, 0, 300, settings=TINY)
    site.__dict__["prepared"] = Prepared(sim_prepared)
    left_out = {
        name: site.pretrained(arms.Arm.read(name)).manifest["excluded_targets"]
        for name in ("masked_codes/frozen", "masked_codes-everything/frozen")
    }
    assert "DX//OUTCOME" in left_out["masked_codes/frozen"]["outcome"]
    assert left_out["masked_codes-everything/frozen"] is None
    assert (site.folder / "pretrained-masked_codes-everything").is_dir()
