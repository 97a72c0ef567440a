"""A new model starts at the training rates: in training, and by `start_at_rates` in a loop of one's own."""

from pathlib import Path

import numpy as np
import pytest
import torch

import ehrsequencing as eh
from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.config import StudyConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.censoring import aalen_johansen
from ehrsequencing.models.ensemble import build_model
from ehrsequencing.records.prepared import Prepared
from helpers.rows import risk_of_rows
from helpers.training import NetworkTrainer as Trainer


def test_a_new_model_predicts_the_observed_incidence(
    sim_prepared: Path, tiny_study: StudyConfig, tmp_path: Path
) -> None:
    """The trainer's first model, and another one by `start_at_rates`; without it everybody has the event at once."""
    torch.manual_seed(0)
    prepared = Prepared(sim_prepared)
    trainer = Trainer(prepared, "simulated", tmp_path / "run", study=load_study(None, ["model.size=small"]))
    records = prepared.records("simulated", "train")
    batch = SubjectLoader.of_model(trainer.config, records).collate(np.arange(len(records.timelines))).batch
    own = build_model(trainer.config)
    before = risk_of_rows(own.eval(), records, horizons_days=[365.25])[:, 0, 0]
    own.start_at_rates(batch)
    rows = records.rows
    observed = aalen_johansen(rows.duration_days, rows.cause.astype(int), n_causes=2).at([365.25])[0, 0]
    for model in (trainer.model, own):
        risk = risk_of_rows(model.eval(), records, horizons_days=[365.25])[:, 0, 0]
        assert risk.mean() == pytest.approx(observed, rel=0.1)
        assert risk.std() < 0.05
    assert before.mean() > 0.4


def test_a_visit_head_and_a_batch_without_labels_are_refused() -> None:
    one = torch.ones(1, 1)
    batch = eh.VisitBatch.from_padded(one.long().unsqueeze(2), one.bool().unsqueeze(2), one, 0 * one, one.bool())
    small = {"vocab_size": 5, "dim": 8, "heads": 2, "layers": 1}
    with pytest.raises(EhrseqError, match="no labels"):
        eh.HierarchicalBEHRTForSurvival(eh.ModelConfig(**small, edges_days=(30.0,))).start_at_rates(batch)
    with pytest.raises(EhrseqError, match="no rates per day"):
        eh.HierarchicalBEHRTForSurvival(eh.ModelConfig(**small, head="visit")).start_at_rates(batch)
