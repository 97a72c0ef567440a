"""The likelihood of every outcome once more: dense, row by row, code by code and bin by bin."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def dense_outcomes_nll(
    log_hazards: Tensor,
    edges_days: Sequence[float],
    stop_days: Sequence[float],
    entry_days: Sequence[float],
    listed: dict[tuple[int, int], float],
) -> Tensor:
    """(N,) from (N, C, K) log-hazards; `listed` has the event time of a pair (row, code), 0 where it has no risk."""
    edges = [0.0, *edges_days, math.inf]
    terms = []
    for n in range(len(log_hazards)):
        nll = log_hazards[n].sum() * 0
        for c in range(log_hazards.shape[1]):
            stop = listed.get((n, c), stop_days[n])
            for k in range(len(edges) - 1):
                days = max(0.0, min(stop, edges[k + 1]) - max(entry_days[n], edges[k]))
                nll = nll + log_hazards[n, c, k].exp() * days
                if (n, c) in listed and edges[k] < stop <= edges[k + 1]:
                    nll = nll - log_hazards[n, c, k]
        terms.append(nll)
    return torch.stack(terms)
