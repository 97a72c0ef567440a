"""Every outcome from one state: a low-rank head with one hazard a code, its exact likelihood, and risks.

    log λ_{c,k}(x) = ⟨W_k h(z), e_c⟩ + b_{c,k}

z (d) is the state at a visit or query, h an MLP as in `SurvivalHead`, k a bin of the time after it, e_c (r) one vector
a code. A dense head would need d · C · K weights for C codes and K bins; this one needs d · r · K + r · C + C · K, and
codes that follow from the same states share what is learned about them.

The likelihood is exact, and its memory does not grow with C: exposures are summed over blocks of rows, each with its
part of the gradient. Only pairs of a row and a code with an event, or without risk, are listed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ehrsequencing.models.hazards import LINEAR_ABOVE, cumulative_incidence, exposure
from ehrsequencing.models.segments import constant, dropout

OUTCOME_RANK = 32  # width r of an outcome's vector
BLOCK_ELEMENTS = 2**18  # hazards of one block: 1 MiB in float32, which stays in the cache
GPU_BLOCK_ELEMENTS = 2**24  # on a GPU, where every block waits for the device: 64 MiB
SMALLEST_HAZARD = 1e-12  # per day; where a code's bias starts in a bin where nothing is known
PRIOR_EVENTS = 20.0  # how many events a code's own hazard in a bin must have to weigh as much as the shape of all codes


@dataclass(frozen=True)
class OutcomeLabels:
    """Where a row's exposure to a code differs from the row's own follow-up: a sparse list, one entry a pair.

    A pair that is not listed has no event and is exposed until the row's follow-up ends.
    """

    rows: Tensor  # (M,) int64, ascending
    codes: Tensor  # (M,) int64; a pair of row and code stands once
    days: Tensor  # (M,) days to the event, where exposure ends; 0: not at risk, after a first one

    def to(self, device: torch.device) -> "OutcomeLabels":
        """The same labels on a device."""
        return OutcomeLabels(self.rows.to(device), self.codes.to(device), self.days.to(device))


class OutcomeHead(nn.Module):
    """Hazards of C codes from one state: `log λ_{c,k} = ⟨W_k gelu(W1 LN(z)), e_c⟩ + b_{c,k}`.

    Args:
        dim: Width d of a state.
        outcomes: Number of codes C.
        rank: Width r of a code's vector.
        edges_days: The K − 1 inner edges of the time bins.
        dropout: Of the hidden layer.

    Example:
        >>> head = OutcomeHead(8, outcomes=3, rank=4, edges_days=(30.0, 365.0))
        >>> labels = OutcomeLabels(torch.tensor([0, 1]), torch.tensor([2, 0]), torch.tensor([10.0, 0.0]))
        >>> head.nll(torch.zeros(2, 8), stop_days=torch.tensor([100.0, 50.0]), labels=labels).shape
        torch.Size([2])
        >>> head.log_hazards(torch.zeros(2, 8)).shape
        torch.Size([2, 3, 3])
    """

    def __init__(
        self,
        dim: int,
        *,
        outcomes: int,
        rank: int,
        edges_days: Sequence[float],
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.rank, self.edges_days, self.dropout = rank, tuple(edges_days), dropout
        self.bins = len(self.edges_days) + 1
        self.norm = nn.LayerNorm(dim)
        self.W1 = nn.Linear(dim, dim)
        self.W = nn.Linear(dim, self.bins * rank, bias=False)
        self.vectors = nn.Embedding(outcomes, rank)
        self.bias = nn.Parameter(torch.zeros(outcomes, self.bins))
        nn.init.normal_(self.W.weight, std=dim**-0.5)
        nn.init.normal_(self.vectors.weight, std=0.1 * rank**-0.5)  # starts near its bias

    def forward(self, z: Tensor) -> Tensor:
        """(N, d) states → (N, K, r) factors `W_k h(z)`."""
        hidden = dropout(F.gelu(self.W1(self.norm(z))), self.dropout, training=self.training)
        return self.W(hidden).view(len(z), self.bins, self.rank)

    def nll(
        self,
        z: Tensor,
        *,
        stop_days: Tensor,
        labels: OutcomeLabels,
        entry_days: Tensor | None = None,
    ) -> Tensor:
        """Negative log-likelihood (N,) of each row, summed over all codes; see `outcomes_nll`."""
        return outcomes_nll(
            self(z),
            self.vectors.weight,
            self.bias,
            edges_days=self.edges_days,
            stop_days=stop_days,
            labels=labels,
            entry_days=entry_days,
        )

    def log_hazards(self, z: Tensor, codes: Tensor | None = None) -> Tensor:
        """Log-hazards per day (N, C, K) of all codes or of the given ones."""
        vectors = self.vectors.weight if codes is None else self.vectors.weight[codes]
        bias = self.bias if codes is None else self.bias[codes]
        return torch.einsum("nkr,cr->nck", self(z), vectors) + bias

    def set_bias(self, hazards: Tensor) -> None:
        """Start at the training rates, (C, K) events per day at risk."""
        with torch.no_grad():
            self.bias.copy_(hazards.double().clamp(min=SMALLEST_HAZARD).log())


def outcomes_nll(
    factors: Tensor,
    vectors: Tensor,
    bias: Tensor,
    *,
    edges_days: Sequence[float],
    stop_days: Tensor,
    labels: OutcomeLabels,
    entry_days: Tensor | None = None,
) -> Tensor:
    """Exact piecewise-exponential NLL of N rows and C codes at once, each code with its own event and exposure.

        NLL_n = Σ_c Σ_k λ_{n,c,k} · |[τ_{k−1}, τ_k) ∩ [entry_n, stop_{n,c})|  −  Σ_{c with an event} log λ_{n,c,k(stop)}

    stop_{n,c} is the listed time of an event, 0 where the pair is listed as not at risk, else the row's own stop. An
    event at an edge belongs to the bin that ends there. Other codes never end a row's exposure; death and the end of
    follow-up do, through `stop_days`.

    Args:
        factors: (N, K, r) `W_k h(z)` of each row.
        vectors: (C, r) e_c.
        bias: (C, K) b.
        edges_days: The K − 1 inner edges.
        stop_days: (N,) when follow-up ends; a row with 0 has no exposure, and must have no event.
        labels: Events, and pairs that are not at risk.
        entry_days: (N,) when exposure starts; None means 0.

    Returns:
        (N,) in at least float32. Memory: arrays of (N · K, r + K), and some of `BLOCK_ELEMENTS`, whatever C.

    Example:
        One row, two codes with a hazard of .01: the first happens after 10 days, the second is watched for 100.

        >>> bias = torch.full((2, 1), 0.01).log()
        >>> labels = OutcomeLabels(torch.tensor([0]), torch.tensor([0]), torch.tensor([10.0]))
        >>> outcomes_nll(torch.zeros(1, 1, 1), torch.zeros(2, 1), bias, edges_days=(), stop_days=torch.tensor([100.0]),
        ...              labels=labels)  # 0.1 − log 0.01 + 1
        tensor([5.7052])
    """
    entry = torch.zeros_like(stop_days) if entry_days is None else entry_days
    n, bins, _ = factors.shape
    wide = torch.promote_types(torch.promote_types(factors.dtype, vectors.dtype), torch.float32)
    days = exposure(edges_days, entry.double(), stop_days.double())  # (N, K) of codes not listed
    cells = (days > 0).flatten().nonzero().squeeze(1)  # rows and bins without exposure cost nothing
    with torch.autocast(factors.device.type, enabled=False):
        # b_{c,k} is the product with a vector that is 1 at k: one matrix product gives the whole log-hazard
        ones = torch.eye(bins, dtype=wide, device=factors.device)[cells % bins]
        of_cells = factors.to(wide).flatten(0, 1).index_select(0, cells)
        left = torch.cat([of_cells, ones], 1)  # (P, r + K)
        right = torch.cat([vectors.to(wide), bias.to(wide)], 1)  # (C, r + K)
        # the bins of listed pairs, sorted by cell (a row and a bin with exposure)
        pair, k = (days[labels.rows] > 0).nonzero(as_tuple=True)
        flat = torch.zeros(days.numel(), dtype=torch.int64, device=days.device)
        flat[cells] = torch.arange(len(cells), device=days.device)
        cell, order = flat[labels.rows[pair] * bins + k].sort(stable=True)
        pair, k = pair[order], k[order]
        # of each pair its days of exposure in this bin, and whether its event is there: τ_{k−1} < t ≤ τ_k
        stop = labels.days.double()
        own = exposure(edges_days, entry.double()[labels.rows], stop)[pair, k]
        at = torch.bucketize(stop, constant(tuple(edges_days), torch.float64, days.device))
        is_event = (at[pair] == k) & (stop > 0)[pair]
        nll: Tensor = _BlockedNLL.apply(  # type: ignore[no-untyped-call]
            left,
            right,
            days.flatten()[cells].to(wide),
            cell,
            labels.codes[pair],
            own.to(wide),
            is_event.to(wide),
        )
    return nll.new_zeros(n * bins).index_copy(0, cells, nll).view(n, bins).sum(1)


class _BlockedNLL(torch.autograd.Function):
    """The likelihood's terms over blocks of cells; nothing of the size P · C is kept for the backward pass.

    Gradients of the plain sum are found in the same sweep. Where the cells turn out to weigh differently, the backward
    pass sweeps again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        *cells: Tensor,
    ) -> Tensor:
        given = (left, right, *cells)
        swept = _sweep(given, weight=torch.ones_like(cells[0]), gradients=any(ctx.needs_input_grad))
        ctx.save_for_backward(*given, *swept[1:])
        return swept[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *given, of_left, of_right = ctx.saved_tensors
        if len(grad) and bool((grad == grad[0]).all()):
            return of_left * grad[0], of_right * grad[0], None, None, None, None, None
        _, of_left, of_right = _sweep(given, weight=grad.contiguous(), gradients=True)
        return of_left, of_right, None, None, None, None, None


def _sweep(
    given: Sequence[Tensor], *, weight: Tensor, gradients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Terms (P,) of all cells, and the gradients of their weighted sum by `left` and `right`.

    Args:
        given: (P, r + K) left, (C, r + K) right, (P,) days, and of listed pairs cell, code, days and event.
        weight: (P,) of each cell.
        gradients: Whether they are wanted.
    """
    left, right, days, cell, code, own, event = given
    n, n_codes = len(left), len(right)
    elements = GPU_BLOCK_ELEMENTS if left.is_cuda else BLOCK_ELEMENTS
    step = max(1, elements // max(n_codes, 1))
    lows = list(range(0, n, step))
    bounds = torch.searchsorted(cell, torch.tensor([*lows, n], device=cell.device)).tolist()
    out, of_left, of_right = torch.empty_like(days), torch.empty_like(left), torch.zeros_like(right)
    buffer = left.new_empty(min(step, n), n_codes)
    for number, low in enumerate(lows):
        high, listed = min(low + step, n), slice(bounds[number], bounds[number + 1])
        u, where = left[low:high], (cell[listed] - low, code[listed])
        eta = torch.mm(u, right.T, out=buffer[: high - low])
        at = eta[where]  # of the listed pairs
        hazards, slope = _tangent_exp_(eta)
        of_pairs, slope_of_pairs = _tangent_exp_(at.clone())
        hazards[where] = 0.0
        terms = hazards.sum(1) * days[low:high]
        out[low:high] = terms.index_add(0, where[0], of_pairs * own[listed] - event[listed] * at)
        if gradients:
            here = weight[low:high]
            slope.mul_((days[low:high] * here).unsqueeze(1))
            slope[where] = (slope_of_pairs * own[listed] - event[listed]) * here[where[0]]
            torch.mm(slope, right, out=of_left[low:high])
            of_right.addmm_(slope.T, u)
    return out, of_left, of_right


def _tangent_exp_(x: Tensor) -> tuple[Tensor, Tensor]:
    """Exp and its slope, written over x where both are one; above the limit exp continues as its tangent."""
    if not x.numel() or float(x.max()) <= LINEAR_ABOVE:
        return (done := x.exp_()), done
    above = (x - LINEAR_ABOVE).clamp_(min=0).add_(1)
    slope = x.clamp_(max=LINEAR_ABOVE).exp_()
    return slope * above, slope


def events_and_days(
    edges_days: Sequence[float],
    labels: OutcomeLabels,
    *,
    outcomes: int,
    stop_days: Tensor,
    entry_days: Tensor,
) -> tuple[Tensor, Tensor]:
    """Events (C, K), and days at risk (C, K), of each code in each bin of time.

    Args:
        edges_days: The K − 1 inner edges.
        labels: Where a row's exposure to a code differs from its own; float64 days.
        outcomes: C.
        stop_days: (N,) float64, days to the end of each row's follow-up.
        entry_days: (N,) float64, when its exposure starts.
    """
    whole = exposure(edges_days, entry_days, stop_days)  # as if no outcome had happened
    own = exposure(edges_days, entry_days[labels.rows], labels.days) - whole[labels.rows]
    exposed = whole.sum(0).expand(outcomes, -1).clone().index_add_(0, labels.codes, own)
    bins = torch.bucketize(labels.days, torch.tensor(edges_days, dtype=torch.float64))
    at = (labels.codes * exposed.shape[1] + bins)[labels.days > 0]
    return at.bincount(minlength=exposed.numel()).view(exposed.shape), exposed


def starting_rates(events: Tensor, exposed_days: Tensor) -> Tensor:
    """Hazards (C, K) for `OutcomeHead.set_bias`: each code's own rate, with the shape over time drawn to that of all.

    Args:
        events: (C, K) events of training rows in each bin.
        exposed_days: (C, K) days at risk in each bin.

    Returns:
        (C, K). With few events in a bin the shape is that of all codes together, so that no bin tells of few people.
    """
    events, exposed = events.double(), exposed_days.double()
    # (C, 1) events per day of each code
    rate = (events.sum(1, keepdim=True) + 0.5) / exposed.sum(1, keepdim=True).clamp(min=1.0)
    shape = (events.sum(0) + 0.5) / (rate * exposed).sum(0).clamp(min=0.5)  # (K,)
    expected = rate * shape * exposed
    return rate * shape * (events + PRIOR_EVENTS) / (expected + PRIOR_EVENTS)


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
        (N, C, H) float64.
    """
    against = competing.logsumexp(1, keepdim=True).expand_as(log_hazards)
    pairs = torch.stack([log_hazards, against], 2).flatten(0, 1)  # (N·C, 2, K)
    risk = cumulative_incidence(
        pairs, edges_days, horizons_days=horizons_days, start_days=start_days
    )
    return risk[:, 0].view(*log_hazards.shape[:2], -1)
