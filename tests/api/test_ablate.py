"""`compare --ablate`: the same people and seeds, each value by networks alone, kept where it was stopped."""

import json
from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.api import ablate as room
from ehrsequencing.api.ablate import ablate
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.bootstrap import mean_by_subject
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from helpers.command_line import refused
from helpers.settings import TINY

QUICK = (*TINY, "training.epochs=1")


def test_values_are_compared_over_seeds_and_people_and_finished_runs_are_kept(
    sim_prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, out = Prepared(sim_prepared), tmp_path / "ablation"
    table, result = ablate(
        store, "model.visit_encoder", ["mean", "attention"], out=out, seeds=2, overrides=QUICK, progress=False
    )
    assert list(table.index) == ["mean", "attention"]
    records = store.records("simulated", "held_out")
    runs = {(value, seed): Run(out / value / f"seed-{seed}") for value in table.index for seed in range(2)}
    nll = {place: run.predictor.nll(records) for place, run in runs.items()}
    for (value, seed), run in runs.items():
        assert (run.study.model.visit_encoder, run.study.training.seed) == (value, seed)
        assert (run.study.training.blend, run.study.training.distillation) == (False, 0.0)
    for row in result["runs"]:
        assert row["nll"] == pytest.approx(nll[row["value"], row["seed"]].mean())
        assert row["seconds"] > 0
    for value in table.index:
        means = [nll[value, seed].mean() for seed in range(2)]
        assert table.loc[value, "nll"] == pytest.approx(np.mean(means))
        assert table.loc[value, "nll sd"] == pytest.approx(np.std(means, ddof=1))
    less = np.mean([nll["attention", s] - nll["mean", s] for s in range(2)], axis=0)
    gap, se = mean_by_subject(less, records.rows.subject)
    assert table.loc["attention", "nll less the first"] == pytest.approx(gap)
    assert table.loc["attention", "low"] == pytest.approx(gap - 1.96 * se)
    assert (table.loc["mean", ["nll less the first", "low", "high"]] == 0).all()
    assert json.loads((out / "ablation.json").read_text())["runs"] == result["runs"]

    trained: list[Path] = []
    fit = room.fit
    monkeypatch.setattr(room, "fit", lambda plan, folder, **more: trained.append(folder) or fit(plan, folder, **more))
    again, _ = ablate(
        store, "model.visit_encoder", ["mean", "attention"], out=out, seeds=2, overrides=QUICK, progress=False
    )
    assert len(trained) == 4  # each is asked, and none is trained again
    np.testing.assert_array_equal(again.to_numpy(), table.to_numpy())
    with pytest.raises(EhrseqError, match="other settings"):
        ablate(store, "model.visit_encoder", ["mean", "sum"], out=out, seeds=2, overrides=TINY, progress=False)


def test_what_cannot_be_compared_is_refused(sim_prepared: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    same = ("training.seed=1,2", "training.blend=true,false", "training.distillation=0,0.5", "visits.by=day,window")
    for asked in ("model.visit_encoder=mean", "model.visit_encoder=mean,mean", "model.dropout=0,0.0", *same):
        assert "two different values or more" in refused("compare", str(sim_prepared), "--ablate", asked, "--out", out)
    assert "one setting" in refused("compare", str(sim_prepared), "--ablate", "model.visit_encoder", "--out", out)
    for setting, values in (
        ("position", "learned,nowhere"),
        ("age_bin_years", "5,-1"),
        ("attention", "causal,bidirectional"),
    ):
        asked = f"model.{setting}={values}"
        assert setting in refused("compare", str(sim_prepared), "--ablate", asked, "--out", out)
    assert not Path(out).exists()  # nothing was trained before
    assert "colour" in refused("compare", str(sim_prepared), "--ablate", "model.colour=red,blue", "--out", out)
    assert "need --out" in refused("compare", str(sim_prepared), "--ablate", "model.position=none,learned")
    assert "--ablate" in refused("compare", str(sim_prepared), str(sim_prepared), "--seeds", "3")
