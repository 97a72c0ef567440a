"""Formulas of both heads as pure functions of logits: likelihood, cumulative incidence, exposure (docs/models.md).

The `horizon` head has hazards per day that are constant in each of K bins. Bin k covers `[τ_{k-1}, τ_k)` days after the
prediction time, with τ_0 = 0, the inner edges `edges_days` = τ_1 … τ_{K-1}, and an open last bin. `records/hazards.py`
has the same formulas in NumPy, for hazards per day instead of logits; a test compares the two.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.segments import constant

LINEAR_ABOVE = 20.0  # above a hazard of e^20 per day exp continues as its tangent, which keeps gradients finite


# ---- the `visit` head ------------------------------------------------------------------------------------------------


def visit_nll(logits: Tensor, at_risk: Tensor, *, cause: Tensor, subject_offsets: Tensor) -> Tensor:
    """Discrete-time NLL with one hazard per visit; summed over a subject's visits it is the subject's NLL.

        h_v = σ(η_v) = P(event in (end_v, end_{v+1}] | at risk, history ≤ v)
        NLL_i = − Σ_{v < e} log(1 − h_v) − δ · log h_e          sums over the subject's at-risk visits, e the last

    δ = 1 where `cause[e] > 0`: the event falls in the interval after e. With δ = 0 the interval of e was not fully
    observed and contributes nothing.

    Args:
        logits: (N,) η; may be anything in rows that are not at risk.
        at_risk: (N,) real visits at risk. Queries have no interval and must not be among them.
        cause: (N,) 0, or 1 on the last at-risk visit of a subject with the event.
        subject_offsets: (S+1,) subject s has the rows `subject_offsets[s]:subject_offsets[s+1]`.

    Returns:
        (N,) each visit's term, in at least float32; 0 where not at risk.

    Raises:
        EhrseqError: A cause above 1 or below 0, or an event elsewhere than on the last at-risk visit.

    Example:
        Hazards ½ at three visits and an event after the third: −log ½ three times.

        >>> at_risk, cause = torch.tensor([True, True, True]), torch.tensor([0, 0, 1])
        >>> visit_nll(torch.zeros(3), at_risk, cause=cause, subject_offsets=torch.tensor([0, 3]))
        tensor([0.6931, 0.6931, 0.6931])
    """
    _check_visit_labels(logits, at_risk, cause, subject_offsets)
    ends = subject_offsets[1:]
    subject = torch.bucketize(torch.arange(len(logits), device=ends.device), ends, right=True)
    before = F.pad(at_risk.long().cumsum(0), (1, 0))  # rows at risk before each row
    is_last = at_risk & (before[1:] == before[ends[subject]])
    event = at_risk & (cause > 0)
    if _can_be_read(event) and bool((event & ~is_last).any()):
        what = "an event is on a visit that is not the subject's last at risk"
        raise EhrseqError(what, where="cause", fix="put the cause on the last at-risk visit only")
    eta = logits.masked_fill(~at_risk, 0.0).to(torch.promote_types(logits.dtype, torch.float32))
    terms = torch.where(is_last, event * F.softplus(-eta), F.softplus(eta))
    return terms.masked_fill(~at_risk, 0.0)


def _can_be_read(tensor: Tensor) -> bool:
    """Labels are checked on the CPU only: elsewhere reading a number would wait for the device."""
    return tensor.device.type == "cpu"


def _check_visit_labels(
    logits: Tensor, at_risk: Tensor, cause: Tensor, subject_offsets: Tensor
) -> None:
    is_readable = _can_be_read(logits)
    for name, tensor in {"logits": logits, "at_risk": at_risk, "cause": cause}.items():
        rows = int(subject_offsets[-1]) if is_readable else len(logits)
        if tensor.shape != (rows,):
            what = f"expected one entry a visit, got shape {tuple(tensor.shape)}"
            raise EhrseqError(what, where=name)
    if not is_readable:
        return
    if bool(((cause < 0) | (cause > 1)).any()):
        what = "the visit head has the causes 0 and 1 only"
        raise EhrseqError(what, where="cause", fix="use the horizon head")
    if bool(((cause > 0) & ~at_risk).any()):
        what = "an event is on a visit that is not at risk"
        raise EhrseqError(what, where="cause", fix="correct the labels")


# ---- the `horizon` head ----------------------------------------------------------------------------------------------


def horizon_nll(
    logits: Tensor,
    edges_days: Sequence[float],
    *,
    duration_days: Tensor,
    cause: Tensor,
    entry_days: Tensor | None = None,
) -> Tensor:
    """NLL of each prediction time under cause-specific piecewise-constant hazards `λ_{e,k} = exp(logit)` per day.

        NLL_p = Σ_e Σ_k λ_{e,k} · |[τ_{k−1}, τ_k) ∩ [entry, duration)|  −  Σ_e 1[cause = e] · log λ_{e, k(duration)}

    with k(t) the bin of `τ_{k−1} < t ≤ τ_k`: an event at an edge belongs to the bin that ends there, like its exposure.

    Args:
        logits: (N, E, K) log-hazards per day. Above 20 the exponential continues as its tangent.
        edges_days: The K − 1 inner edges τ_1 < … < τ_{K−1}.
        duration_days: (N,) days to event or censoring.
        cause: (N,) 0 = censored, else 1..E.
        entry_days: (N,) when exposure starts; None means 0.

    Returns:
        (N,) in at least float32.

    Raises:
        EhrseqError: A duration that is not above its entry, a negative entry, a NaN, or a cause outside 0..E.

    Example:
        A hazard of 0.01 a day and an event after 10 days: 0.1 − log 0.01.

        >>> log_hazard = torch.full((1, 1, 2), 0.01).log()
        >>> horizon_nll(log_hazard, [5.0], duration_days=torch.tensor([10.0]), cause=torch.tensor([1]))
        tensor([4.7052])
    """
    _check_grid(logits, edges_days)
    entry_days = torch.zeros_like(duration_days) if entry_days is None else entry_days
    _check_horizon_labels(logits, entry_days, duration_days, cause)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # (N, K)
    days = exposure(edges_days, entry_days.double(), duration_days.double()).to(logits.dtype)
    cumulative = torch.einsum("nek,nk->n", _tangent_exp(logits), days)
    # τ_{k−1} < T ≤ τ_k
    bin_of = torch.bucketize(duration_days.double(), _inner(edges_days, duration_days))
    at_event = logits.flatten(1).gather(
        1, ((cause - 1).clamp(min=0) * logits.shape[2] + bin_of).unsqueeze(1)
    )
    return cumulative - at_event.squeeze(1) * (cause > 0)


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
    _check_grid(logits, edges_days)
    horizons = torch.as_tensor(horizons_days, dtype=torch.float64, device=logits.device)
    start = torch.as_tensor(
        0.0 if start_days is None else start_days, dtype=torch.float64, device=logits.device
    )
    if horizons.dim() != 1 or not bool((horizons.isfinite() & (horizons > 0)).all()):
        raise EhrseqError("horizons must be finite and above 0 days", where="horizons_days")
    if start.shape not in ((), (len(logits),)) or not bool((start.isfinite() & (start >= 0)).all()):
        what = "must be one number or one a prediction time, finite and not negative"
        raise EhrseqError(what, where="start_days")
    logits = logits.double()
    share = logits.softmax(1)  # λ_e / λ_·
    # (N, K); finite even for absurd logits
    total = logits.logsumexp(1).clamp(max=LINEAR_ABOVE + 80).exp()
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
    """The cohort's own hazards, events over days at risk, the twin of `records.hazards.cohort_hazards`.

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
    bin_of = torch.bucketize(duration, _inner(edges_days, duration))
    rows = []
    for number in range(1, n_causes + 1):
        events = torch.bincount(bin_of[cause == number], minlength=len(days)).double()
        prior = events.sum().clamp(min=0.5) / days.sum().clamp(min=1e-9)
        half = 0.5 * prior * days / (prior * days.sum()).clamp(min=1e-9)
        rows.append((events + half + 1e-3) / (days + 1e-3 / prior))
    return torch.stack(rows)


def _tangent_exp(x: Tensor) -> Tensor:
    bounded = x.clamp(max=LINEAR_ABOVE)
    return bounded.exp() * (1 + (x - LINEAR_ABOVE).clamp(min=0))


def _inner(edges_days: Sequence[float], like: Tensor) -> Tensor:
    return constant(tuple(edges_days), torch.float64, like.device)


def exposure(edges_days: Sequence[float], start: Tensor, stop: Tensor) -> Tensor:
    """Days of each bin inside `[start, stop)`, `|[τ_{k−1}, τ_k) ∩ [start, stop)|`: (N,) and (N,) → (N, K)."""
    lower = torch.cat([start.new_zeros(1), _inner(edges_days, start)])
    upper = torch.cat([lower[1:], start.new_full((1,), float("inf"))])
    return (
        torch.minimum(stop.unsqueeze(1), upper) - torch.maximum(start.unsqueeze(1), lower)
    ).clamp(min=0)


def _check_grid(logits: Tensor, edges_days: Sequence[float]) -> None:
    if logits.dim() != 3 or logits.shape[2] != len(edges_days) + 1:
        what = f"expected logits (N, causes, {len(edges_days) + 1}), got {tuple(logits.shape)}"
        raise EhrseqError(what, where="edges_days", fix="give one inner edge less than bins")


def _check_horizon_labels(
    logits: Tensor, entry_days: Tensor, duration_days: Tensor, cause: Tensor
) -> None:
    given = {"entry_days": entry_days, "duration_days": duration_days, "cause": cause}
    for name, tensor in given.items():
        if tensor.shape != (len(logits),):
            what = f"expected one entry a prediction time, got {tuple(tensor.shape)}"
            raise EhrseqError(what, where=name)
    if not _can_be_read(cause):
        return
    fix = "correct the labels"
    if not bool((entry_days >= 0).all()):
        raise EhrseqError("must not be negative or NaN", where="entry_days", fix=fix)
    if not bool((duration_days.isfinite() & (duration_days > entry_days)).all()):
        what = "must be finite and above the entry"
        raise EhrseqError(what, where="duration_days", fix=fix)
    if bool(((cause < 0) | (cause > logits.shape[1])).any()):
        what = f"must be 0 or one of {logits.shape[1]} causes"
        raise EhrseqError(what, where="cause", fix=fix)
