"""Both likelihoods once more, label by label and bin by bin."""

import math

import torch
from torch import Tensor

from ehrsequencing.config import ModelConfig
from helpers.strategies import Padded


def reference_nll(config: ModelConfig, logits: Tensor, x: Padded) -> list[Tensor]:
    """The likelihood's terms, one a labelled prediction time, in row-major order of the slots."""
    terms = []
    for b in range(len(x.visit_mask)):
        labelled = [v for v in range(x.visit_mask.shape[1]) if x.visit_mask[b, v] and x.at_risk[b, v]]
        if config.head == "visit":
            labelled = [v for v in labelled if not x.is_query[b, v]]
            for v in labelled:
                hazard = torch.sigmoid(logits[b, v])
                event = v == labelled[-1] and x.cause[b, v] > 0
                counts = v != labelled[-1] or event
                terms.append(-torch.log(hazard if event else 1 - hazard) if counts else 0 * hazard)
        else:
            for v in labelled:
                entry, stop = float(x.entry_days[b, v]), float(x.duration_days[b, v])
                terms.append(horizon_term(logits[b, v], config.edges_days, entry, stop, int(x.cause[b, v])))
    return terms


def horizon_term(logits: Tensor, edges_days: tuple[float, ...], entry: float, stop: float, cause: int) -> Tensor:
    """(E, K) log-hazards and one label → NLL, bin by bin."""
    edges = [0.0, *edges_days, math.inf]
    nll = logits.sum() * 0
    for k in range(len(edges) - 1):
        days = max(0.0, min(stop, edges[k + 1]) - max(entry, edges[k]))
        nll = nll + logits[:, k].exp().sum() * days
        if cause and edges[k] < stop <= edges[k + 1]:
            nll = nll - logits[cause - 1, k]
    return nll
