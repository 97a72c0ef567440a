"""Recalibration: log-hazards shifted and stretched, cause by cause, by what labelled prediction times say.

    log λ'_{e,k} = a_{e,k} + b_{e,k} · log λ_{e,k}

Recalibrated hazards are hazards again: survival and all cumulative incidences still sum to one, which they would not if
each risk were shifted on its own. The fit has two uses. Training ends with it, on all prediction times of the tuning
split, and folds the result into the head. `ehrseq evaluate --recalibrate` fits it at landmarks and keeps it apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.segments import to_device
from ehrsequencing.records.hazards import event_bin, exposure
from ehrsequencing.training.device import on_device

FEWEST = 10  # subjects with the event, below which a cause is left as it is
MOST_ROWS = 200_000  # prediction times: of a larger tuning split every second subject is taken, or every third …
_STEPS = 100
# share of a batch's rows up to which a model computes only those that are asked for
FEW_ROWS = 0.25
_FLAT = 1e-9  # of the greatest curvature


@dataclass(frozen=True)
class Recalibration:
    """What was fitted: a and b, and the three numbers of each cause that give them."""

    intercept: Floats  # (E, K) a
    slope: Floats  # (E, K) b
    level: Floats  # (E,) ℓ, the shift of the log-hazard where it has its mean
    stretch: Floats  # (E,) β, the stretch in the middle of the grid, less 1
    trend: Floats  # (E,) γ, how much more the last bin is stretched than the middle one
    subjects: Ints  # (E,) subjects with the event; events, where subjects were not given

    def as_json(self, causes: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The three numbers of each cause, and the intercepts that were folded into the head (for the audit)."""
        columns = (self.level, self.stretch, self.trend, self.subjects, self.intercept)
        return {
            name: {
                "level": float(level),
                "stretch": float(stretch),
                "trend": float(trend),
                "subjects_with_event": int(subjects),
                "intercept": intercept.tolist(),
            }
            for name, level, stretch, trend, subjects, intercept in zip(
                causes, *columns, strict=True
            )
        }


class Recalibrated(SurvivalModel):
    """A model, or an ensemble, with recalibrated hazards; the model inside is not changed.

    Args:
        model: With the `horizon` head.
        intercept: a, one a cause (E,) or one a cause and bin (E, K).
        slope: b, likewise.

    Raises:
        EhrseqError: The model has the `visit` head.

    Example:
        >>> from ehrsequencing.config import ModelConfig
        >>> from ehrsequencing.models.build import build_model
        >>> model = build_model(ModelConfig(vocab_size=10, size="small", causes=2)).eval()
        >>> mask = torch.ones(1, 1, 2, dtype=torch.bool)
        >>> batch = VisitBatch.from_padded(mask.long(), mask, torch.full((1, 1), 60.0), torch.zeros(1, 1), mask.any(-1))
        >>> double = Recalibrated(model, [0.0, np.log(2.0)], [1.0, 1.0])
        >>> (double(batch) - model(batch)).exp().flatten()
        tensor([1., 2.], grad_fn=...)
    """

    intercept: Tensor
    slope: Tensor

    def __init__(self, model: SurvivalModel, intercept: ArrayLike, slope: ArrayLike) -> None:
        nn.Module.__init__(self)  # not the base's check: the model inside has passed it
        if model.config.head == "visit":
            fix = "use a model with head=horizon"
            raise EhrseqError(
                "the visit head has no hazards per day", where="ModelConfig.head=visit", fix=fix
            )
        self.config, self.model = model.config, model
        for name, values in (("intercept", intercept), ("slope", slope)):
            columns = np.asarray(values, dtype=np.float32).reshape(model.config.causes, -1)
            self.register_buffer(name, torch.from_numpy(columns))
        self.train(model.training)

    def forward(self, batch: VisitBatch) -> Tensor:
        """(N, causes, bins) log-hazards per day."""
        logits: Tensor = self.model(batch)
        return self.intercept + self.slope * logits

    def logits_at(self, batch: VisitBatch, rows: Tensor) -> Tensor:
        """Log-hazards of some rows (R,)."""
        return self.intercept + self.slope * self.model.logits_at(batch, rows)


# ---- the fit ---------------------------------------------------------------------------------------------------------


def fit_recalibration(
    log_hazard: NDArray[np.floating],
    edges_days: Sequence[float],
    *,
    duration_days: Floats,
    cause: NDArray[np.integer],
    entry_days: NDArray[np.floating],
    subject: NDArray[np.integer] | None = None,
    prior_sd: float | None = None,
) -> Recalibration:
    """Fit how far log-hazards are to be shifted and stretched, cause by cause, by the `horizon` likelihood.

        log λ'_{e,k} = η_{e,k} + ℓ_e + (β_e + γ_e s_k) · (η_{e,k} − m_{e,k})      s_k from −1 (first bin) to 1 (last)

    Without a prior, θ = (ℓ, β) has maximum likelihood, γ = 0, and m is one number a cause, so that a and b are the same
    in all bins. With a prior, θ = (ℓ, β, γ), and m is the bin's mean of η, weighted by the events that η expects.
    Prediction times of one subject share their future, so the covariance V of the maximum θ̂ is the sandwich, summed by
    subject (Lin & Wei 1989). A trained model is nearly right, θ ~ N(0, τ² I) with τ = `prior_sd`, and the result is the
    posterior mean by the normal approximation, which changes little where events are few:

        θ* = τ² (τ² I + V)⁻¹ θ̂

    Args:
        log_hazard: (R, E, K) η, log-hazards per day.
        edges_days: The K − 1 inner edges.
        duration_days: (R,) to the event or censoring.
        cause: (R,) 0 = censored, 1..E.
        entry_days: (R,) when exposure starts.
        subject: (R,) whose prediction time it is; None: each is of another subject.
        prior_sd: τ; None: no prior.
    """
    n_causes, bins = log_hazard.shape[1:]
    days = exposure(edges_days, entry_days, duration_days)
    at = event_bin(edges_days, duration_days)
    owner: Ints = np.unique(
        np.arange(len(cause)) if subject is None else subject, return_inverse=True
    )[1]
    place = np.linspace(-1.0, 1.0, bins)
    # what β and γ multiply
    stretches = np.stack([np.ones(bins)] if prior_sd is None else [np.ones(bins), place])
    theta, intercept = np.zeros((n_causes, 3)), np.zeros((n_causes, bins))
    slope, subjects = np.ones((n_causes, bins)), np.zeros(n_causes, dtype=np.int64)
    for e in range(n_causes):
        events = np.flatnonzero(cause == e + 1)
        subjects[e] = len(np.unique(owner[events]))
        if subjects[e] < FEWEST:
            continue
        eta = log_hazard[:, e].astype(np.float64)
        centre = (
            _centres(eta, days)
            if prior_sd is not None
            else np.full(bins, eta[events, at[events]].mean())
        )
        found, covariance = _fit_cause(
            eta, eta - centre, stretches, days, events, at[events], owner
        )
        if prior_sd is not None:
            found = np.asarray(
                prior_sd**2 * np.linalg.solve(prior_sd**2 * np.eye(3) + covariance, found)
            )
        theta[e, : len(found)] = found
        slope[e] = 1 + theta[e, 1] + theta[e, 2] * place
        intercept[e] = theta[e, 0] + (1 - slope[e]) * centre
    return Recalibration(intercept, slope, theta[:, 0], theta[:, 1], theta[:, 2], subjects)


def _centres(eta: Floats, days: Floats) -> Floats:
    """(K,) mean of η in each bin, weighted by expected events; unweighted where nobody is at risk."""
    expected = days * np.exp(eta)
    total = expected.sum(axis=0)
    weighted = (expected * eta).sum(axis=0) / np.where(total > 0, total, 1.0)
    return np.asarray(np.where(total > 0, weighted, eta.mean(axis=0)))


def _fit_cause(
    eta: Floats, x: Floats, stretches: Floats, days: Floats, events: Ints, at: Ints, owner: Ints
) -> tuple[Floats, Floats]:
    """θ̂ (F,) of one cause and its covariance (F, F); η and x = η − m are (R, K), `stretches` (F − 1, K)."""
    row, column = np.nonzero(days)
    features = np.ones((1 + len(stretches), len(row)))
    for feature, stretch in zip(features[1:], stretches, strict=True):
        np.multiply(x[row, column], stretch[column], out=feature)
    offset = np.log(days[row, column]) + eta[row, column]
    own = np.stack([np.ones(len(events)), *(x[events, at] * stretches[:, at])])  # (F, events)
    theta, hessian = _fit_hazards(features, offset, own.sum(axis=1))
    expected = features * np.exp(offset + theta @ features)
    n = int(owner.max()) + 1
    score = np.stack(
        [
            np.bincount(owner[row], seen, n) - np.bincount(owner[events], had, n)
            for seen, had in zip(expected, own, strict=True)
        ]
    )
    bread = _inverse(hessian)
    return theta, bread @ (score @ score.T) @ bread


def _fit_hazards(features: Floats, offset: Floats, at_events: Floats) -> tuple[Floats, Floats]:
    """Maximum likelihood of θ in `log λ = offset + Σ_f θ_f x_f`: a piecewise-exponential model is a Poisson one.

        NLL(θ) = Σ_{cells} exp(offset + θ·x) − θ · Σ_{events} x

    over all cells (prediction time × bin) with days at risk. It is convex, and Newton's method with step halving finds
    the minimum. θ stays 0 in directions that change no cell (everybody has the same hazard).

    Args:
        features: (F, n) x of each cell.
        offset: (n,) of the log-hazard, plus the log of the days at risk.
        at_events: (F,) sum of x over the cells of the events.

    Returns:
        θ (F,), and the NLL's Hessian there (F, F).
    """

    def loss(theta: Floats) -> float:
        return float(np.exp(offset + theta @ features).sum() - theta @ at_events)

    theta = np.zeros(len(features))
    hessian = np.zeros((len(theta), len(theta)))
    with np.errstate(over="ignore"):
        for _ in range(_STEPS):
            expected = np.exp(offset + theta @ features)
            gradient = features @ expected - at_events
            hessian = (features * expected) @ features.T
            step = -_inverse(hessian) @ gradient
            size, before = 1.0, loss(theta)
            while not loss(theta + size * step) <= before and size > 1e-9:
                size /= 2
            theta = theta + size * step
            if np.abs(step).max() < 1e-10:
                break
    return theta, hessian


def _inverse(hessian: Floats) -> Floats:
    """Inverse of a symmetric matrix; zero along directions in which it is flat."""
    return np.asarray(np.linalg.pinv(hessian, rcond=_FLAT, hermitian=True))


# ---- on a model ------------------------------------------------------------------------------------------------------


def recalibrate_head(
    model: SurvivalModel,
    loader: SubjectLoader,
    *,
    prior_sd: float,
    visit_budget: int,
    device: torch.device,
) -> Recalibration:
    """Fit on all prediction times of a split, and fold the result into the model's head.

    Args:
        model: With the `horizon` head; changed in place.
        loader: The tuning split.
        prior_sd: Of what is fitted.
        visit_budget: Of one batch.
        device: Where the model is.
    """
    rows = loader.rows
    row, eta = labelled_log_hazards(model, loader, visit_budget=visit_budget, device=device)
    fitted = fit_recalibration(
        eta,
        model.config.edges_days,
        duration_days=rows.duration_days[row],
        cause=rows.cause[row],
        entry_days=rows.entry_days[row],
        subject=rows.subject[row],
        prior_sd=prior_sd,
    )
    model.recalibrate(
        *(torch.from_numpy(values).to(device) for values in (fitted.intercept, fitted.slope))
    )
    return fitted


def labelled_log_hazards(
    model: SurvivalModel, loader: SubjectLoader, *, visit_budget: int, device: torch.device
) -> tuple[Ints, Floats32]:
    """What the fit is made on: labelled prediction times, of a split with more than `MOST_ROWS` those of a sample.

    Args:
        model: With the `horizon` head.
        loader: The split.
        visit_budget: Of one batch.
        device: Where the model is.

    Returns:
        Rows of the task (r,), and their log-hazards per day (r, E, K).
    """
    chosen = loader.subjects[:: max(1, -(-len(loader.rows) // MOST_ROWS))]
    is_labelled: Bools = ~np.isnan(loader.rows.duration_days)
    return log_hazards(
        model, loader, visit_budget=visit_budget, device=device, subjects=chosen, rows=is_labelled
    )


def log_hazards(
    model: SurvivalModel,
    loader: SubjectLoader,
    *,
    visit_budget: int,
    device: torch.device,
    subjects: Ints | None = None,
    rows: Bools | None = None,
) -> tuple[Ints, Floats32]:
    """Rows of some subjects, or of all, as they come (r,), and their log-hazards per day (r, E, K).

    With `rows` (R,) only these.
    """
    model.eval()
    row, eta = [], []
    with torch.no_grad():
        for step in on_device(
            loader.in_order(visit_budget=visit_budget, subjects=subjects), device
        ):
            wanted = slice(None) if rows is None else rows[step.rows]
            row.append(step.rows[wanted])
            eta.append(_logits(model, step.batch, step.positions[wanted]).float().cpu().numpy())
    return np.concatenate(row), np.concatenate(eta)


def _logits(model: SurvivalModel, batch: VisitBatch, positions: Ints) -> Tensor:
    """Logits of some rows of a batch."""
    rows = to_device(torch.from_numpy(positions), batch.codes.device)
    if len(rows) <= FEW_ROWS * batch.n_visits:
        return model.logits_at(batch, rows)
    logits: Tensor = model(batch).index_select(0, rows)
    return logits
