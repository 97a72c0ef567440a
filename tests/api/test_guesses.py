"""What users of lifelines, scikit-survival and Hugging Face type first: most work, some are told what to write."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ehrsequencing as eh
from ehrsequencing.core.errors import EhrseqError
from helpers.flat_frames import flat_table

MODEL = {"dim": 16, "heads": 2, "layers": 1}
SHORT = {"epochs": 1, "min_steps": 2, "distillation": 0.0, "blend": False}
WORKS = {
    # ---- lifelines and R: a table, curves, hazard ratios, a table for a paper ----
    "data, task = eh.from_table(flat, subject='id', time='day', event='status', out='t')": "task.causes == ('status',)",
    "data, task = eh.from_table(polars, subject='id', time='day', event='status', out='t')": "(data / 'data').is_dir()",
    "data, task = eh.from_table(named, subject='id', time='date', event='status', interest='relapse', out='t')":
        "task.causes == ('relapse', 'death')",
    "data, task = eh.from_table(rare, subject='id', time='day', event='died', interest='died_2', out='t')":
        "task.causes == ('died_2', 'died')",
    "ev.table2().to_latex()": "value.startswith(r'\\begin{tabular}')",
    "ev.table2().to_markdown()": "value.startswith('|')",
    # ---- scikit-learn and scikit-survival: an estimator with frames ----
    "fitted.predict(rows)": "value.shape == (200,)",
    "fitted.predict_survival_function(rows)[0]": "value.x[0] == 0 and value.y[0] == 1 and value(30) <= 1",
    "fitted.predict_cumulative_incidence_function(rows)[0, 0].y": "(np.diff(value) >= 0).all()",
    "cross_val_score(EHRSurvival(task='task.yaml', **tiny), rows, groups=rows.subject_id, cv=GroupKFold(2))":
        "value.shape == (2,) and np.isfinite(value).all()",
    "Pipeline([('keep', FunctionTransformer(known)), ('risk', EHRSurvival(task='task.yaml', **tiny))]).fit(rows)":
        "value.predict(rows).shape == (200,)",
    # ---- PyTorch and Hugging Face: batches, parts, saved models ----
    "next(iter(prepared.batches('train')))": "value.n_subjects > 0",
    "[model.loss(batch) for batch in prepared.batches('tuning')]": "all(loss.isfinite() for loss in value)",
    "batch.padded()": "value.codes.shape == value.code_mask.shape and value.codes.dim() == 3",
    "eh.VisitBatch.from_padded(*batch.padded())": "torch.equal(value.codes, batch.codes)",
    "model.attention(batch)": "value.shape == batch.padded().codes.shape",
    "model.save_pretrained('saved')": "eh.HierarchicalBEHRTForSurvival.from_pretrained('saved').config == model.config",
    "eh.HierarchicalBEHRTForSurvival.from_pretrained('runs/hf')": "value.config.dim == 16",
    "[getattr(eh.nn, name) for name in parts]": "len(value) == 9",
    "eh.nn.SurvivalHead(16)(torch.randn(5, 3, 16))": "value.shape == (5, 3)",
    "eh.nn.DiscreteTimeSurvivalLoss()(hazards, torch.tensor([2]), torch.tensor([1]), torch.ones(1, 3))":
        "abs(float(value) - 3 * np.log(2)) < 1e-6",
}  # fmt: skip
TOLD = {
    "eh.train(prepared)": r"fit",
    "eh.fit(prepared, out='r1', epochs=3)": r"training=\{'epochs': …\}",
    "eh.fit('meds', out='r2')": r"eh\.prepare",
    "eh.ModelConfig(vocab_size=10, hidden_size=64)": r"did you mean dim\?",
    "model(torch.ones(2, 3, 4).long())": r"VisitBatch\.from_padded\(codes, code_mask, ages, time_deltas, visit_mask\)",
    "run.predict_proba('meds')": r"run\.predict",
    "run.predict('meds', at='first')": r"use all, last or a date",
    "cross_val_score(EHRSurvival(task='task.yaml', **tiny), rows, cv=2, error_score='raise')": r"GroupKFold",
}


@pytest.fixture(scope="module")
def names(example_folder: Path) -> dict[str, Any]:
    """What the guesses start from."""
    import polars
    from sklearn.model_selection import GroupKFold, cross_val_score
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer

    def here(name: str) -> str:
        return str(example_folder / name)

    flat = flat_table()
    rows, tiny = eh.read_meds(here("meds")), {"model": MODEL, "training": SHORT}
    rows = rows[rows.subject_id.isin(rows.subject_id.unique()[:200])]
    run, prepared = eh.load(here("runs/hf")), eh.prepare(here("meds"), here("task.yaml"), out=here("prepared"))
    named = flat.assign(
        date=pd.Timestamp("2015-03-01") + pd.to_timedelta(flat.day, "D"),
        status=np.where(flat.status == 0, "alive", np.where(flat.id % 3 == 2, "death", "relapse")),
    )
    return {
        "eh": eh, "np": np, "torch": torch, "flat": flat, "polars": polars.from_pandas(flat), "named": named,
        "rare": flat.assign(died=flat["status"] * (1 + (flat["id"] % 5 == 0))).drop(columns="status"),
        "rows": rows, "tiny": tiny,
        "run": run, "ev": run.evaluation, "model": run.model, "config": eh.ModelConfig(**MODEL), "prepared": prepared,
        "batch": next(iter(prepared.batches("tuning"))), "EHRSurvival": eh.EHRSurvival, "Pipeline": Pipeline,
        "FunctionTransformer": FunctionTransformer, "GroupKFold": GroupKFold, "cross_val_score": cross_val_score,
        "known": lambda frame: frame[frame.code != "NOTHING"], "hazards": torch.full((1, 3), 0.5),
        "fitted": eh.EHRSurvival(task=here("task.yaml"), **tiny).fit(rows),
        "parts": [
            "CodeEmbedding", "MeanPoolingVisitEncoder", "AttnPoolingVisitEncoder", "TransformerVisitEncoder",
            "VisitTimeEmbedding", "TimelineEncoder", "SurvivalHead", "DiscreteTimeSurvivalLoss", "BEHRTEmbedding",
        ],
    }  # fmt: skip


@pytest.mark.parametrize("guess", WORKS)
def test_a_guess_works(guess: str, names: dict[str, Any], here: Path, tmp_path: Path) -> None:
    scope = dict(names)
    made = guess.partition(" = ")
    if made[0] == "data, task":
        exec(guess.replace("out='", f"out='{tmp_path}/"), scope)
    else:
        scope["value"] = eval(guess, scope)
    assert eval(WORKS[guess], scope), guess


@pytest.mark.parametrize("guess", TOLD)
def test_a_wrong_guess_is_told_what_to_write(guess: str, names: dict[str, Any], here: Path) -> None:
    with pytest.raises((EhrseqError, AttributeError, ValueError)) as caught:
        eval(guess, dict(names))
    assert re.search(TOLD[guess], str(caught.value)), caught.value
