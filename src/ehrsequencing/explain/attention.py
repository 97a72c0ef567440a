"""Attention weights: how much each code counts in its visit's vector. Importance within a visit, not cause."""

from typing import Any

import numpy as np
import torch

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.ensemble import Ensemble
from ehrsequencing.models.visit_encoder import AttnPoolingVisitEncoder
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.timelines import Timelines


def has_attention(run: Run) -> bool:
    """Whether the run's visit encoder weighs the codes of a visit."""
    return all(isinstance(encoder, AttnPoolingVisitEncoder) for _, encoder in _encoders(run))


def attention_weights(run: Run, timelines: Timelines) -> Floats:
    """The weight (K,) of every code in its visit's vector; they sum to 1 over a visit. The mean over an ensemble.

    Raises:
        EhrseqError: The visit encoder gives no weights.
    """
    if not has_attention(run):
        name = (
            run.study.model.visit_encoder
            if run.study.model.architecture == "hierarchical"
            else "flat"
        )
        fix = "train with model={'visit_encoder': 'attention'}"
        raise EhrseqError(
            f"the visit encoder {name!r} has no attention weights", where="attention", fix=fix
        )
    batch = _batch_of(timelines, code_types=run.code_types)
    with torch.no_grad():
        weights = [
            encoder(member.code_embedding(batch), batch, return_weights=True)[1]
            for member, encoder in _encoders(run)
        ]
    return np.asarray(torch.stack(weights).mean(0).double().numpy())


def _encoders(run: Run) -> list[tuple[Any, Any]]:
    """Each network of the run, with what pools the codes of a visit."""
    members: list[Any] = list(run.model.members) if isinstance(run.model, Ensemble) else [run.model]
    return [
        (member, getattr(getattr(member, "visit_encoder", None), "pooling", None))
        for member in members
    ]


def _batch_of(timelines: Timelines, *, code_types: Ints | None) -> VisitBatch:
    """All visits of some subjects as one batch, without prediction times."""
    return VisitBatch(
        codes=torch.from_numpy(timelines.codes.astype(np.int64)),
        visit_offsets=torch.from_numpy(np.array(timelines.visit_offsets)),
        subject_offsets=torch.from_numpy(np.array(timelines.subject_offsets)),
        age_years=torch.from_numpy(np.array(timelines.age_years)),
        delta_days=torch.from_numpy(np.array(timelines.delta_days)),
        static_codes=torch.from_numpy(timelines.static_codes.astype(np.int64)),
        static_offsets=torch.from_numpy(np.array(timelines.static_offsets)),
        values=torch.from_numpy(np.array(timelines.values)),
        code_types=None if code_types is None else torch.from_numpy(code_types[timelines.codes]),
    )
