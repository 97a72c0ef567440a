"""`compare --ablate`: the same people and seeds, each value by networks alone, kept where it was stopped."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.api import study as room
from ehrsequencing.api.study import ablate
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from helpers.command_line import refused
from helpers.settings import TINY

QUICK = (*TINY, "training.epochs=1")


def test_values_are_compared_over_seeds_and_people_and_finished_runs_are_kept(
    sim_prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, out = Prepared(sim_prepared), tmp_path / "ablation"
    asked: dict[str, Any] = {"out": out, "seeds": 2, "overrides": QUICK, "progress": False}
    found = ablate(store, "model.visit_encoder", ["mean", "attention"], **asked)
    folders = [out / value / f"seed-{seed}" for value in ("mean", "attention") for seed in range(2)]
    for folder, row in zip(folders, found.runs(), strict=True):
        run = Run(folder)
        assert (row["group"], row["seed"]) == (run.study.model.visit_encoder, run.study.training.seed)
        assert folder == out / row["group"] / f"seed-{row['seed']}"
        assert (run.study.training.blend, run.study.training.distillation) == (False, 0.0)
    nll = np.reshape([row["nll"] for row in found.runs()], (2, 2))
    assert found.by_settings["nll", "mean"].to_numpy() == pytest.approx(nll.mean(axis=1))
    assert found.paired.loc[("attention", "nll"), "mean"] == pytest.approx((nll[0] - nll[1]).mean())
    assert json.loads((out / "ablation.json").read_text())["runs"] == found.runs()

    trained: list[Path] = []
    fit = room.fit
    monkeypatch.setattr(room, "fit", lambda plan, folder, **more: trained.append(folder) or fit(plan, folder, **more))
    again = ablate(store, "model.visit_encoder", ["mean", "attention"], **asked)
    assert len(trained) == 4  # each is asked, and none is trained again
    assert again.runs() == found.runs()
    with pytest.raises(EhrseqError, match="other settings"):
        ablate(store, "model.visit_encoder", ["mean", "sum"], **asked | {"overrides": TINY})


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
