"""The likelihood of both heads as pure functions of logits, and exposure (docs/models.md).

The `horizon` head has hazards per day that are constant in each of K bins. Bin k covers `[τ_{k-1}, τ_k)` days after the
prediction time, with τ_0 = 0, the inner edges `edges_days` = τ_1 … τ_{K-1}, and an open last bin. `metrics/hazards.py`
has formulas of the same name in NumPy, for hazards per day instead of logits; a test compares the two.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.config import ModelConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.segments import constant, dropout

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
    is_readable = logits.device.type == "cpu"  # elsewhere reading a label would wait for the device
    rows = int(subject_offsets[-1]) if is_readable else len(logits)
    _check_shapes(rows, "visit", logits=logits, at_risk=at_risk, cause=cause)
    if is_readable and bool(((cause < 0) | (cause > 1)).any()):
        raise EhrseqError(
            "the visit head has the causes 0 and 1 only", where="cause", fix="use the horizon head"
        )
    if is_readable and bool(((cause > 0) & ~at_risk).any()):
        raise EhrseqError(
            "an event is on a visit that is not at risk", where="cause", fix="correct the labels"
        )
    ends = subject_offsets[1:]
    subject = torch.bucketize(torch.arange(len(logits), device=ends.device), ends, right=True)
    before = F.pad(at_risk.long().cumsum(0), (1, 0))  # rows at risk before each row
    is_last = at_risk & (before[1:] == before[ends[subject]])
    event = at_risk & (cause > 0)
    if is_readable and bool((event & ~is_last).any()):
        raise EhrseqError(
            "an event is on a visit that is not the subject's last at risk",
            where="cause",
            fix="put the cause on the last at-risk visit only",
        )
    eta = logits.masked_fill(~at_risk, 0.0).to(torch.promote_types(logits.dtype, torch.float32))
    terms = torch.where(is_last, event * F.softplus(-eta), F.softplus(eta))
    return terms.masked_fill(~at_risk, 0.0)


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
    check_grid(logits, edges_days)
    entry_days = torch.zeros_like(duration_days) if entry_days is None else entry_days
    _check_shapes(
        len(logits),
        "prediction time",
        entry_days=entry_days,
        duration_days=duration_days,
        cause=cause,
    )
    if cause.device.type == "cpu":
        causes = logits.shape[1]
        fix = "correct the labels"
        if not bool((entry_days >= 0).all()):
            raise EhrseqError("must not be negative or NaN", where="entry_days", fix=fix)
        if not bool((duration_days.isfinite() & (duration_days > entry_days)).all()):
            raise EhrseqError("must be finite and above the entry", where="duration_days", fix=fix)
        if bool(((cause < 0) | (cause > causes)).any()):
            raise EhrseqError(f"must be 0 or one of {causes} causes", where="cause", fix=fix)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # (N, K) days at risk in each bin
    days = exposure(edges_days, entry_days.double(), duration_days.double()).to(logits.dtype)
    cumulative = torch.einsum("nek,nk->n", _tangent_exp(logits), days)
    # the bin k of the event: τ_{k−1} < T ≤ τ_k
    inner = constant(tuple(edges_days), torch.float64, duration_days.device)
    bin_of = torch.bucketize(duration_days.double(), inner)
    at_event = logits.flatten(1).gather(
        1, ((cause - 1).clamp(min=0) * logits.shape[2] + bin_of).unsqueeze(1)
    )
    return cumulative - at_event.squeeze(1) * (cause > 0)


def expected_nll(
    logits: Tensor,
    edges_days: Sequence[float],
    *,
    hazards: Tensor,
    duration_days: Tensor,
    entry_days: Tensor | None = None,
) -> Tensor:
    """What `horizon_nll` would be on average if events came with other hazards, those of a teacher.

        NLL_p = Σ_e Σ_k (λ_{e,k} − λ̃_{e,k} · log λ_{e,k}) · |[τ_{k−1}, τ_k) ∩ [entry, duration)|

    It is smallest at λ = λ̃. The time at risk stays the observed one, so that a censored row teaches as long as it was
    followed. Shapes as in `horizon_nll`; `hazards` (N, E, K) are λ̃ per day.

    Example:
        >>> log_hazard, teacher = torch.full((1, 1, 1), 0.01).log(), torch.full((1, 1, 1), 0.02)
        >>> expected_nll(log_hazard, [], hazards=teacher, duration_days=torch.tensor([10.0]))  # 0.1 − 0.2 · log 0.01
        tensor([1.0210])
    """
    check_grid(logits, edges_days)
    entry_days = torch.zeros_like(duration_days) if entry_days is None else entry_days
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    days = exposure(edges_days, entry_days.double(), duration_days.double()).to(logits.dtype)
    terms = _tangent_exp(logits) - hazards.to(logits.dtype) * logits
    return torch.einsum("nek,nk->n", terms, days)


def _tangent_exp(x: Tensor) -> Tensor:
    bounded = x.clamp(max=LINEAR_ABOVE)
    return bounded.exp() * (1 + (x - LINEAR_ABOVE).clamp(min=0))


def exposure(edges_days: Sequence[float], start: Tensor, stop: Tensor) -> Tensor:
    """Days of each bin inside `[start, stop)`, `|[τ_{k−1}, τ_k) ∩ [start, stop)|`: (N,) and (N,) → (N, K)."""
    inner = constant(tuple(edges_days), torch.float64, start.device)
    lower = torch.cat([start.new_zeros(1), inner])
    upper = torch.cat([lower[1:], start.new_full((1,), float("inf"))])
    return (
        torch.minimum(stop.unsqueeze(1), upper) - torch.maximum(start.unsqueeze(1), lower)
    ).clamp(min=0)


def check_grid(logits: Tensor, edges_days: Sequence[float]) -> None:
    """Refuse log-hazards that are not (N, causes, K)."""
    if logits.dim() != 3 or logits.shape[2] != len(edges_days) + 1:
        raise EhrseqError(
            f"expected logits (N, causes, {len(edges_days) + 1}), got {tuple(logits.shape)}",
            where="edges_days",
            fix="give one inner edge less than bins",
        )


def _check_shapes(rows: int, noun: str, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.shape != (rows,):
            raise EhrseqError(
                f"expected one entry a {noun}, got shape {tuple(tensor.shape)}", where=name
            )


# ---- risks ---------------------------------------------------------------------------------------------------------


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


# ---- the heads as layers ---------------------------------------------------------------------------------------------


SMALLEST_HAZARD = 1e-8  # per day; where the head's bias starts in a bin without events


class HazardsOverTime(nn.Linear):
    """A linear map to log-hazards (N, causes · bins) whose effects are smooth in time.

        log λ_{e,k} = b_{e,k} + Σ_j φ_j(s_k) · ⟨c_{e,j}, x⟩ + ⟨w_{e,k}, x⟩        φ = 1, 1 − 2s, e^(−6s)

    s is the bin's place, 0 in the first and 1 in the last. b (`bias`) is the cohort's own hazard of each bin. With one
    weight for each bin, an effect that is constant in time came out between −.23 and +.34; the curves c share what all
    bins tell. w (`weight`) are the free bins, for what no such curve can be (a discharge by the clock); training draws
    them to 0 by a decay of their own (`training/loop.py`).
    """

    def __init__(self, width: int, causes: int, bins: int, *, bias: bool = True) -> None:
        super().__init__(width, causes * bins, bias=bias)
        self.bins = bins
        self.curves = nn.Parameter(torch.zeros(causes, CURVES, width))
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(N, width) → (N, causes · bins)."""
        return F.linear(x, self.effects(), self.bias)

    def effects(self) -> Tensor:
        """(causes · bins, width) curves and free bins together."""
        curves = curves_of_time(self.bins, self.curves)
        return self.weight + (curves @ self.curves).flatten(0, 1)

    @torch.no_grad()
    def stretch(self, slope: Tensor) -> None:
        """Multiply the effects (not b) by numbers (causes, bins); all then stand in the free bins."""
        self.weight.copy_(self.effects() * slope.reshape(-1, 1))
        self.curves.zero_()


CURVES = 3  # of time


def curves_of_time(bins: int, like: Tensor) -> Tensor:
    """(bins, curves) φ of each bin's place, in the type and on the device of another tensor."""
    places = [k / max(bins - 1, 1) for k in range(bins)]
    numbers = tuple(x for s in places for x in (1.0, 1 - 2 * s, math.exp(-6 * s)))
    return constant(numbers, like.dtype, like.device).view(-1, CURVES)


def last_layer(config: ModelConfig, width: int, *, bias: bool = True) -> nn.Linear:
    """What gives the logits of a head: effects over time, or for the `visit` head one number."""
    if config.head == "visit":
        return nn.Linear(width, 1, bias=bias)
    return HazardsOverTime(width, config.causes, config.bins, bias=bias)


class SurvivalHead(nn.Module):
    """MLP hazard head: `W2·gelu(W1·LN(z))`, on logits.

    `horizon`: (N, causes, bins) log-hazards per day. `visit`: (N,) logits of the hazard of the interval after v.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.shape = () if config.head == "visit" else (config.causes, config.bins)
        self.norm = nn.LayerNorm(config.dim)
        self.W1 = nn.Linear(config.dim, config.dim)
        self.dropout = config.dropout
        self.W2 = last_layer(config, config.dim)
        start = self.W2.curves if isinstance(self.W2, HazardsOverTime) else self.W2.weight
        nn.init.normal_(start, std=0.1 * config.dim**-0.5)  # starts near its bias
        nn.init.zeros_(self.W2.bias)

    def forward(self, z: Tensor) -> Tensor:
        """(N, d) → (N, causes, bins) or, for the `visit` head, (N,)."""
        hidden = dropout(F.gelu(self.W1(self.norm(z))), self.dropout, training=self.training)
        return self.W2(hidden).view(z.shape[0], *self.shape)

    def set_bias(self, hazards: Tensor) -> None:
        """Start at the training cohort's own hazards.

        Args:
            hazards: `horizon`: (causes, bins) events per day at risk, floored at 1e-8. `visit`: one probability (any
                shape of one element).

        Raises:
            EhrseqError: The shape is not the head's, or a number is negative or not finite.
        """
        if hazards.numel() != self.W2.bias.numel() or (self.shape and hazards.shape != self.shape):
            raise EhrseqError(
                f"expected shape {self.shape or (1,)}, got {tuple(hazards.shape)}",
                where="SurvivalHead.set_bias(hazards)",
            )
        if not bool((hazards.isfinite() & (hazards >= 0)).all()):
            raise EhrseqError(
                "hazards must be finite and not negative", where="SurvivalHead.set_bias(hazards)"
            )
        flat = hazards.double().flatten()
        bias = (
            flat.clamp(min=SMALLEST_HAZARD).log()
            if self.shape
            else torch.logit(flat, eps=SMALLEST_HAZARD)
        )
        with torch.no_grad():
            self.W2.bias.copy_(bias)

    def recalibrate(self, intercept: Tensor, slope: Tensor) -> None:
        """From now on `η' = intercept + slope · η`, both (causes, bins); errors as of `SurvivalModel.recalibrate`."""
        for name, values in {"intercept": intercept, "slope": slope}.items():
            if not self.shape or values.shape != self.shape or not bool(values.isfinite().all()):
                what = f"expected finite numbers of shape {self.shape}, got {tuple(values.shape)}"
                raise EhrseqError(
                    what if self.shape else "the visit head has no hazards per day", where=name
                )
        assert isinstance(self.W2, HazardsOverTime)
        self.W2.stretch(slope)
        with torch.no_grad():
            self.W2.bias.mul_(slope.flatten()).add_(intercept.flatten())
