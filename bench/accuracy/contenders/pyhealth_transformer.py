"""PyHealth's Transformer through its own API: dataset, loaders, model, trainer.

It answers yes or no, so there is one network for each cause and horizon of the task. Training rows whose answer is not
known yet at the horizon are left out, and the others are drawn again with inverse-probability-of-censoring weights: its
trainer takes no weights. Its trainer keeps the epoch with the best ROC AUC on tuning rows.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from exchange import VISITS, Array, Question, contend

EPOCHS, BATCH, DIM, HEADS, LAYERS = 10, 64, 64, 2, 1
MOST_VISITS = 30  # the newest


def import_pyhealth() -> tuple[Any, Any, Any]:
    """PyHealth's datasets, models and trainer."""
    # its caches, and those of what it imports, stay inside the environment
    home = Path(sys.prefix) / "home"
    home.mkdir(exist_ok=True)
    os.environ["HOME"] = str(home)
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.modules["_league_kept"] = library  # type: ignore[assignment]
    from pyhealth import datasets, models, trainer

    return datasets, models, trainer


def weights_at(duration_days: Array, cause: Array, horizon_days: float) -> Array:
    """(n,) inverse-probability-of-censoring weights of a yes or no at the horizon; 0 where the answer is not known."""
    order = np.argsort(duration_days, kind="stable")
    at_risk = len(order) - np.arange(len(order))
    survival = np.cumprod(1 - (cause[order] == 0) / at_risk)  # of staying under observation
    days = np.minimum(duration_days, horizon_days)
    before = np.searchsorted(duration_days[order], days, side="left")
    stayed = np.r_[1.0, survival][before]
    known = (duration_days > horizon_days) | (cause > 0)
    return np.where(known, 1 / np.maximum(stayed, 0.05), 0.0)


def answer(question: Question, seconds: float) -> tuple[dict[str, Array], dict[str, Any]]:
    """See `exchange.contend`."""
    datasets, models, trainer = import_pyhealth()
    torch.set_num_threads(1)
    torch.manual_seed(question.seed)
    stored = json.loads((question.folder / VISITS).read_text())
    rng, started, networks = np.random.default_rng(question.seed), time.monotonic(), 0
    shape = (len(question.causes), len(question.horizons_days))
    out = {
        split: np.zeros((len(question.subject_id[split]), *shape))
        for split in ("tuning", "held_out")
    }

    def samples(split: str, rows: Array, label: Array) -> list[dict[str, Any]]:
        past = [
            stored[split][row][:1] + stored[split][row][1:][-MOST_VISITS:] for row in rows.tolist()
        ]
        return [
            {
                "patient_id": f"{split}-{i}",
                "visit_id": str(i),
                "codes": codes,
                "label": int(label[row]),
            }
            for i, (row, codes) in enumerate(zip(rows.tolist(), past, strict=True))
        ]

    for e, h in product(*map(range, shape)):
        horizon = float(question.horizons_days[h])
        is_event = {
            split: (question.cause[split] == e + 1) & (question.duration_days[split] <= horizon)
            for split in ("train", "tuning")
        }
        weight = weights_at(question.duration_days["train"], question.cause["train"], horizon)
        drawn = rng.choice(len(weight), size=int((weight > 0).sum()), p=weight / weight.sum())
        known = weights_at(question.duration_days["tuning"], question.cause["tuning"], horizon) > 0
        rows = {
            "train": (drawn, is_event["train"]),
            "tuning": (np.flatnonzero(known), is_event["tuning"]),
            "all_tuning": (np.arange(len(known)), is_event["tuning"]),
            "held_out": (
                np.arange(len(out["held_out"])),
                np.arange(len(out["held_out"])) % 2 == 0,
            ),  # no labels here
        }
        # One data set, so that all splits share its vocabulary; codes that only later splits have stay untrained.
        parts = {name: samples(name.removeprefix("all_"), *given) for name, given in rows.items()}
        whole = datasets.create_sample_dataset(
            [one for part in parts.values() for one in part],
            {"codes": "nested_sequence"},
            {"label": "binary"},
        )
        bounds = np.cumsum([0, *(len(part) for part in parts.values())])
        subset = {
            name: whole.subset(list(range(bounds[i], bounds[i + 1])))
            for i, name in enumerate(parts)
        }
        loader = {
            name: datasets.get_dataloader(part, batch_size=BATCH, shuffle=name == "train")
            for name, part in subset.items()
        }
        model = models.Transformer(
            whole, embedding_dim=DIM, heads=HEADS, num_layers=LAYERS, dropout=0.3
        )
        run = trainer.Trainer(model, device="cpu", metrics=["roc_auc"], enable_logging=False)
        run.train(
            loader["train"],
            loader["tuning"],
            epochs=EPOCHS,
            optimizer_params={"lr": 1e-3},
            monitor="roc_auc",
            load_best_model_at_last=True,
        )
        networks += 1
        for split, name in (("tuning", "all_tuning"), ("held_out", "held_out")):
            out[split][:, e, h] = np.asarray(run.inference(loader[name])[1]).reshape(-1)
    for values in (
        out.values()
    ):  # separate networks: risks may fall with the horizon, which no incidence does
        np.maximum.accumulate(values, axis=2, out=values)
        values /= np.maximum(values.sum(axis=1, keepdims=True), 1.0)
    settings = {
        "embedding_dim": DIM,
        "heads": HEADS,
        "num_layers": LAYERS,
        "epochs": EPOCHS,
        "dropout": 0.3,
    }
    return out, {
        "trials": 1,
        "of_trials": 1,
        "chosen": settings,
        "networks": networks,
        "search_seconds": round(time.monotonic() - started, 1),
    }


if __name__ == "__main__":
    contend(__doc__, answer, "pyhealth", "torch", at_horizons_only=True)
