"""`bench/real.py`: means over the same cells, the strongest by tuning subjects, trials kept, and going on."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.core.files import write_json
from ehrsequencing.evaluation.repeated_splits import corrected_interval
from helpers.bench import load_bench

OURS, COX, TREES = "ehrsequencing", "landmark Cox", "boosted visits"


def row(model: str, metric: str, value: float | None, horizon: float | None = 365.25, landmark: float | None = 0.0,
        cause: str = "death") -> dict[str, Any]:  # fmt: skip
    place = {"landmark_days": landmark, "cause": cause, "horizon_days": horizon}
    return {"model": model, "metric": metric, "value": value, **place}


def split(seed: int, *, ours: float, cox: float, trees: float) -> dict[str, Any]:
    """A split's rows in which Cox has the lowest tuning NLL, and the trees the lowest on held-out subjects."""
    rows = []
    for model, value in ((OURS, ours), (COX, cox), (TREES, trees)):
        rows += [row(model, "nll", 2 - value, None), row(model, "nll", 99.0, None, landmark=None)]
        rows += [row(model, "c", value), row(model, "c", value + 0.1, 730.5), row(model, "c", 0.1, cause="transplant")]
        rows += [row(model, "oe", 1.2), row(model, "oe", 1.0, 730.5)]
    rows += [row("Aalen–Johansen", "oe", 1.5), row("Aalen–Johansen", "oe", 1.5, 730.5)]
    rows += [row(OURS, "c", 0.9, landmark=365.25), row(COX, "c", None, landmark=365.25),
             row(TREES, "c", 0.9, landmark=365.25)]  # fmt: skip
    return {"seed": seed, "train_subjects": 80, "held_out_subjects": 20, "metrics": rows,
            "tuning_nll": {OURS: 1.5, TREES: 1.4, COX: 1.3}}  # fmt: skip


SPLITS = [split(20_000, ours=0.7, cox=0.6, trees=0.8), split(20_001, ours=0.8, cox=0.75, trees=0.85)]


def test_a_cell_counts_where_every_model_has_it_and_only_of_the_outcome() -> None:
    bench = load_bench("real")
    found = bench.values_of(SPLITS[0])
    assert found[OURS, "c"] == pytest.approx((0.7 + 0.8) / 2)  # not the landmark at which Cox is undefined
    assert found[COX, "c"] == pytest.approx(0.65)
    assert found[OURS, "nll"] == pytest.approx(1.3)  # at landmarks only
    assert bench.values_of(SPLITS[0], 730.5)[OURS, "oe"] == 1.0
    assert (OURS, "nll") not in bench.values_of(SPLITS[0], 730.5)


def test_the_table_shows_every_model_and_names_the_strongest_of_the_tuning_subjects() -> None:
    bench = load_bench("real")
    text = bench.table("pbc2", SPLITS, [])
    assert "2 of 25 splits done (seeds 20000–20001). Settings of ours: defaults." in text
    assert "| landmark Cox (strongest) | 1.3000 |" in text
    assert "boosted visits (strongest)" not in text
    mean, low, high = corrected_interval([0.1, 0.05], 20 / 80)
    assert f"| ours − landmark Cox | {-mean:+.4f} ({-high:+.4f} to {-low:+.4f})" in text  # NLL, ours − Cox
    assert f"{mean:+.3f} ({low:+.3f} to {high:+.3f}) *not distinguishable*" in text  # C
    one = bench.table("pbc2", SPLITS[:1], ["training.epochs=3"])
    assert "*no interval*" in one
    assert "Settings of ours: training.epochs=3." in one


def test_a_blend_and_its_network_stand_beside_each_other() -> None:
    bench, alone = load_bench("real"), "network alone"
    both = []
    for one, value in zip(SPLITS, (0.65, 0.7), strict=True):
        rows = [r | {"model": alone, "value": value if r["metric"] == "c" else r["value"]} for r in one["metrics"]
                if r["model"] == OURS]  # fmt: skip
        both.append(one | {"metrics": one["metrics"] + rows, "tuning_nll": {**one["tuning_nll"], alone: 1.2}})
    text = bench.table("pbc2", both, ["training.blend=true"])
    labels = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")]
    rivals = ["landmark Cox (strongest)", "boosted visits"]  # the network has a lower tuning NLL, but it is ours
    assert labels[:5] == ["model", "blend", alone, *rivals]
    theirs = [f"{own} − {rival}" for own in ("blend", alone) for rival in ("landmark Cox", TREES)]
    assert labels[5:] == ["difference", f"blend − {alone}", *theirs]
    assert "| blend 1.5000, network alone 1.2000 |" in bench.trial_row("pbc2", both, [], "2026-11-22")


def test_the_summary_shows_every_model_with_ours_minus_it() -> None:
    bench = load_bench("real")
    first, *others = bench.summary("pbc2", SPLITS).splitlines()
    assert first.startswith("| pbc2: 312 real patients, 2 splits | **ours** |")
    assert first.endswith("|  |")  # ours minus ours is no number
    mean, low, high = corrected_interval([0.1, 0.05], 20 / 80)
    cox = next(line for line in others if "landmark Cox (strongest)" in line)
    assert cox.endswith(f"| {-mean:+.4f} ({-high:+.4f} to {-low:+.4f}) |")
    assert len(others) == 2


def test_a_difference_is_better_by_the_direction_of_its_metric() -> None:
    bench = load_bench("real")
    assert bench.verdict("nll", (-0.1, -0.2, -0.05)) == bench.verdict("c", (0.1, 0.05, 0.2)) == "better"
    assert bench.verdict("nll", (0.1, 0.05, 0.2)) == bench.verdict("ipa", (-0.1, -0.2, -0.05)) == "worse"


def test_the_level_shows_the_stop_and_the_recalibration_of_ours() -> None:
    bench = load_bench("real")
    default = bench.level_table("pbc2", SPLITS, bench.study_of("pbc2", []))
    preset = bench.level_table("pbc2", SPLITS, bench.study_of("pbc2", ["preset=small_cohort"]))
    assert "| pbc2 | 1y | ehrsequencing | 2 | visits | 0.05 | 1.20 (1.20 to 1.20) | 0.80 (0.80 to 0.80) |" in default
    assert "| ehrsequencing | 2 | landmarks | 0 |" in preset
    assert "| pbc2 | 1y | landmark Cox | 2 |  |  |" in default


def test_seeds_with_a_gap_are_listed() -> None:
    seeds_of = load_bench("real").seeds_of
    assert seeds_of([{"seed": 3}, {"seed": 4}, {"seed": 5}]) == "3–5"
    assert seeds_of([{"seed": 3}, {"seed": 5}]) == "3, 5"
    assert seeds_of([{"seed": 3}]) == "3"


def test_a_trial_is_kept_once_and_has_no_held_out_number(tmp_path: Path) -> None:
    bench, path = load_bench("real"), tmp_path / "trials.md"
    first = bench.trial_row("pbc2", SPLITS[:1], [], "2026-11-22")
    again = bench.trial_row("pbc2", SPLITS, [], "2026-11-22")
    other = bench.trial_row("pbc2", SPLITS, ["training.epochs=3"], "2026-11-22")
    for text in (first, other, again):
        bench.add_trial(path, text)
    lines = path.read_text().splitlines()
    assert lines[-2:] == [other, again]
    assert first not in lines
    rivals = "landmark Cox 1.3000 (9), boosted visits 1.4000 (9)"
    assert (
        again == f"| 2026-11-22 | pbc2 | defaults | 2 (20000–20001) | 1.5000 | {rivals} |"
    )  # tuning NLL, nothing of held-out subjects
    assert path.read_text().startswith("# All trials on real data")


def test_each_trial_has_its_folder_and_finished_splits_are_read(tmp_path: Path) -> None:
    bench = load_bench("real")
    assert bench.trial_folder(tmp_path, []).name == "default"
    names = {bench.trial_folder(tmp_path, [text]).name for text in ("model.dropout=.1", "model.dropout=.2", "a=[1, 2]")}
    assert len(names) == 3
    assert bench.trial_folder(tmp_path, ["b=1", "a=2"]) == bench.trial_folder(tmp_path, ["a=2", "b=1"])
    many = [f"model.some_setting_{number}=0.123456" for number in range(9)]
    assert bench.trial_folder(tmp_path, many) != bench.trial_folder(tmp_path, [*many[:-1], "model.some_setting_8=9"])
    for number in (1, 0):
        folder = tmp_path / "default" / "pbc2" / f"seed-{20_000 + number}"
        folder.mkdir(parents=True)
        write_json(folder / "rows.json", SPLITS[number])
    assert [one["seed"] for one in bench.Trial("pbc2", (), "fast", tmp_path).done()] == [20_000, 20_001]
    assert bench.Trial("pbc2", ("model.dropout=.1",), "fast", tmp_path).done() == []


def test_kept_splits_give_the_same_table_while_their_settings_hold(tmp_path: Path, monkeypatch: Any) -> None:
    bench = load_bench("real")
    monkeypatch.setattr(bench, "FOLDER", tmp_path / "kept")
    trial = bench.Trial("pbc2", (), "fast", tmp_path / "out")
    made = [
        split | {"fingerprint": trial.fingerprint(int(split["seed"])), "train_subjects": 100, "held_out_subjects": 25}
        for split in SPLITS
    ]
    bench.keep(trial.kept_at, [], made[:1], bench.COLUMNS)
    bench.keep(trial.kept_at, [], made[1:], bench.COLUMNS)  # beside what is there
    assert "subject_id" not in trial.kept_at.read_text()
    assert len(trial.done()) == 2
    assert bench.table("pbc2", trial.done(), []) == bench.table("pbc2", made, [])
    days = made[0]["metrics"][0]["horizon_days"]
    assert [bench.values_of(one, days) for one in trial.done()] == [bench.values_of(one, days) for one in made]
    # Other baselines or settings are other numbers.
    assert bench.Trial("pbc2", (), "all", tmp_path / "out").done() == []
    others = bench.Trial("pbc2", ("model.dropout=.1",), "fast", tmp_path / "out")
    bench.keep(others.kept_at, [], made, bench.COLUMNS)
    assert others.done() == []


def test_time_is_up_in_the_middle_and_all_sets_get_their_first_split_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, begun = load_bench("real"), []

    def slow(trial: Any, data: Path, number: int) -> None:
        begun.append((trial.name, number))
        time.sleep(0.0 if len(begun) < 4 else 30.0)

    monkeypatch.setattr(bench, "run_split", slow)
    monkeypatch.setattr(bench, "FOLDER", tmp_path / "kept")
    arguments = argparse.Namespace(data=tmp_path, splits=3, jobs_seconds=0.5)
    trials = [bench.Trial(name, (), "fast", tmp_path) for name in ("pbc2", "nafld")]
    started = time.monotonic()
    bench.work(arguments, trials)
    assert time.monotonic() - started < 10
    assert begun == [("pbc2", 0), ("nafld", 0), ("pbc2", 1), ("nafld", 1)]


def test_every_set_has_its_task_and_its_seeds_are_fresh() -> None:
    bench = load_bench("real")
    assert bench.FIRST_SEED == 20_000
    for name, one in bench.SETS.items():
        task = bench.study_of(name, []).task
        assert task is not None
        assert task.name == name
        assert one.splits <= 100
    assert [name for name, one in bench.SETS.items() if one.counts] == ["pbc2", "nafld", "physionet2012"]
