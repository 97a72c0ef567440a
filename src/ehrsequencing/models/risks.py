"""Hazards → risks of the `horizon` head, and a cohort's labels → its hazards (docs/models.md).

`metrics/hazards.py` has the same formulas in NumPy, for hazards per day instead of logits; a test compares the two.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.hazards import LINEAR_ABOVE, check_grid, exposure, inner_edges


def cumulative_incidence(
    logits: Tensor,
    edges_days: Sequence[float],
    *,
    horizons_days: Sequence[float],
    start_days: Tensor | float | None = None,
) -> Tensor:
    """Probability of each cause by each horizon, given no event until `start_days`.

        S(t) = exp(−Σ_{e,k} λ_{e,k} · |[τ_{k−1}, τ_k) ∩ [0, t)|)
        F_e(t) = Σ_{k: τ_{k−1} < t} (λ_{e,k} / λ_{·,k}) · (S(τ_{k−1}) − S(min(t, τ_k)))
        given survival to s:   S(t | s) = S(t) / S(s),   F_e(t | s) = (F_e(t) − F_e(s)) / S(s)

    Horizons count from the prediction time, not from s; a horizon at or before s has probability 0. Computed without
    the division by S(s), in float64: S + Σ_e F_e = 1 to rounding.

    Args:
        logits: (N, E, K) log-hazards per day.
        edges_days: The K − 1 inner edges.
        horizons_days: H horizons, each above 0.
        start_days: s, one number or (N,); None means 0.

    Returns:
        (N, E, H) float64.

    Raises:
        EhrseqError: The grid does not fit the logits, or a horizon or start is impossible.

    Example:
        >>> log_hazard = torch.full((1, 1, 1), 0.01).log()
        >>> cumulative_incidence(log_hazard, [], horizons_days=[100.0])  # 1 − exp(−1)
        tensor([[[0.6321]]], dtype=torch.float64)
    """
    check_grid(logits, edges_days)
    horizons = torch.as_tensor(horizons_days, dtype=torch.float64, device=logits.device)
    start = torch.as_tensor(
        0.0 if start_days is None else start_days, dtype=torch.float64, device=logits.device
    )
    if horizons.dim() != 1 or not bool((horizons.isfinite() & (horizons > 0)).all()):
        raise EhrseqError("horizons must be finite and above 0 days", where="horizons_days")
    if start.shape not in ((), (len(logits),)) or not bool((start.isfinite() & (start >= 0)).all()):
        raise EhrseqError(
            "must be one number or one a prediction time, finite and not negative",
            where="start_days",
        )
    logits = logits.double()
    share = logits.softmax(1)  # λ_e / λ_·
    total = logits.logsumexp(1).clamp(max=LINEAR_ABOVE + 80).exp()  # (N, K), finite for all logits
    start = start.expand(len(logits))
    risks = []
    for horizon in horizons:
        # (N, K) within each bin
        hazard = total * exposure(edges_days, start, horizon.expand(len(logits)))
        survival = F.pad(-hazard.cumsum(1)[:, :-1], (1, 0)).exp()  # at the start of each bin
        risks.append((share * (survival * -torch.expm1(-hazard)).unsqueeze(1)).sum(2))
    return torch.stack(risks, 2) if risks else logits.new_zeros(*logits.shape[:2], 0)


def onset_risk(
    log_hazards: Tensor,
    competing: Tensor,
    edges_days: Sequence[float],
    *,
    horizons_days: Sequence[float],
    start_days: float = 0.0,
) -> Tensor:
    """Cumulative incidence of each code by each horizon, each code alone against the competing causes.

        F_c(t) = Σ_k λ_{c,k} / (λ_{c,k} + μ_k) · (S_c(τ_{k−1}) − S_c(min(t, τ_k))),   S_c = exp(−Σ (λ_c + μ) · days)

    μ is the sum of the competing causes' hazards (death). Other codes do not compete.

    Args:
        log_hazards: (N, C, K) of the codes.
        competing: (N, E, K) log-hazards of the causes that end a record.
        edges_days: The K − 1 inner edges.
        horizons_days: H horizons, each above 0.
        start_days: Given neither the code's event nor a competing one for so long.

    Returns:
        (N, C, H) in the dtype of `log_hazards`, at least float32.
    """
    wide = torch.promote_types(log_hazards.dtype, torch.float32)
    own = log_hazards.to(wide).clamp(max=LINEAR_ABOVE).exp()
    total = own + competing.to(wide).clamp(max=LINEAR_ABOVE).exp().sum(1, keepdim=True)
    share = own / total.clamp(min=torch.finfo(wide).tiny)
    zero = torch.zeros(1, dtype=torch.float64, device=own.device)
    out = []
    for horizon in horizons_days:
        days = exposure(edges_days, zero + start_days, zero + horizon).to(wide)  # (1, K)
        hazard = total * days
        survival = F.pad(-hazard.cumsum(2)[..., :-1], (1, 0)).exp()
        out.append((share * survival * -torch.expm1(-hazard)).sum(2))
    return torch.stack(out, 2)


def observed_hazards(
    edges_days: Sequence[float],
    *,
    duration_days: Tensor,
    cause: Tensor,
    entry_days: Tensor | None,
    n_causes: int,
) -> Tensor:
    """The cohort's own hazards, events over days at risk, the twin of `metrics.hazards.cohort_hazards`.

    Half an event is spread over all bins of a cause, so that a bin without an event keeps a finite logarithm.

    Args:
        edges_days: The K − 1 inner edges.
        duration_days: (N,) days to event or censoring.
        cause: (N,) 0 = censored, else 1..E.
        entry_days: (N,) when exposure starts; None means 0.
        n_causes: E.

    Returns:
        (E, K) float64, per day.

    Example:
        >>> days, cause = torch.tensor([100.0, 100.0, 100.0, 100.0]), torch.tensor([1, 0, 0, 0])
        >>> observed_hazards([], duration_days=days, cause=cause, entry_days=None, n_causes=1).round(decimals=4)
        tensor([[0.0037]], dtype=torch.float64)
    """
    duration = duration_days.double()
    start = torch.zeros_like(duration) if entry_days is None else entry_days.double()
    days = exposure(edges_days, start, duration).sum(0)  # (K,)
    bin_of = torch.bucketize(duration, inner_edges(edges_days, duration))
    rows = []
    for number in range(1, n_causes + 1):
        events = torch.bincount(bin_of[cause == number], minlength=len(days)).double()
        prior = events.sum().clamp(min=0.5) / days.sum().clamp(min=1e-9)
        half = 0.5 * prior * days / (prior * days.sum()).clamp(min=1e-9)
        rows.append((events + half + 1e-3) / (days + 1e-3 / prior))
    return torch.stack(rows)
