"""The last step of training: how bold the hazards are, fixed on the tuning split and folded into the head.

Epochs end when the tuning NLL over all bins is least. By then some bins are still timid, others learned by heart
already. Three numbers a cause fix that at no cost, for prediction sees an ordinary model (`docs/decisions.md`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ehrsequencing.arrays import Floats, Floats32, Ints
from ehrsequencing.loader import SubjectLoader
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.records.hazards import event_bin, exposure
from ehrsequencing.training.feed import feed
from ehrsequencing.training.hazard_regression import fit_hazards, inverse

FEWEST_SUBJECTS = 10  # with the event: with fewer, nothing is known about a cause's hazards
MOST_ROWS = 200_000  # prediction times: of a larger tuning split every second subject is taken, or every third …


@dataclass(frozen=True)
class BinRecalibration:
    """`log λ'_{e,k} = a_{e,k} + b_{e,k} · log λ_{e,k}`, and the three numbers of each cause that it is made of.

    Attributes:
        intercept: (E, K) a.
        slope: (E, K) b.
        level: (E,) ℓ, the shift of the log-hazard where it has its mean.
        stretch: (E,) β, the stretch in the middle of the grid less 1.
        trend: (E,) γ, how much more the last bin is stretched than the middle one.
        subjects: (E,) tuning subjects with the event, on which each cause's numbers rest.
    """

    intercept: Floats
    slope: Floats
    level: Floats
    stretch: Floats
    trend: Floats
    subjects: Ints

    def as_json(self, causes: Sequence[str]) -> dict[str, dict[str, float]]:
        """The three numbers, by the name of the cause."""
        columns = (self.level, self.stretch, self.trend, self.subjects)
        return {
            name: {"level": float(a), "stretch": float(b), "trend": float(c), "subjects_with_event": int(n)}
            for name, a, b, c, n in zip(causes, *columns, strict=True)
        }


def fit_bin_recalibration(
    log_hazard: NDArray[np.floating],
    edges_days: Sequence[float],
    *,
    duration_days: Floats,
    cause: NDArray[np.integer],
    entry_days: NDArray[np.floating],
    subject: NDArray[np.integer],
    prior_sd: float,
) -> BinRecalibration:
    """How far log-hazards are to be shifted and stretched, by what labelled prediction times say.

        log λ'_{e,k} = η_{e,k} + ℓ_e + (β_e + γ_e s_k) · (η_{e,k} − m_{e,k})      s_k from −1 (first bin) to 1 (last)

    m is the bin's mean of η, weighted by the events that η expects. θ = (ℓ, β, γ) is fitted by maximum likelihood,
    cause by cause. Prediction times of one subject share their future, so its covariance V is the sandwich, summed by
    subject (Lin & Wei 1989); and what is known of a trained model beforehand is that it is nearly right,
    θ ~ N(0, `prior_sd`² I). The answer is the posterior mean by the normal approximation,

        θ* = τ² (τ² I + V)⁻¹ θ̂                                                  τ = `prior_sd`

    so that few events change little.

    Args:
        log_hazard: (R, E, K) η, log-hazards per day.
        edges_days: The K − 1 inner edges.
        duration_days: (R,) to the event or censoring.
        cause: (R,) 0 = censored, 1..E.
        entry_days: (R,) when exposure starts.
        subject: (R,) whose prediction time it is.
        prior_sd: τ.
    """
    n_causes, bins = log_hazard.shape[1:]
    days = exposure(edges_days, entry_days, duration_days)
    at = event_bin(edges_days, duration_days)
    owner: Ints = np.unique(subject, return_inverse=True)[1]
    place = np.linspace(-1.0, 1.0, bins)
    theta, intercept = np.zeros((n_causes, 3)), np.zeros((n_causes, bins))
    slope, subjects = np.ones((n_causes, bins)), np.zeros(n_causes, dtype=np.int64)
    for e in range(n_causes):
        events = np.flatnonzero(cause == e + 1)
        subjects[e] = len(np.unique(owner[events]))
        if subjects[e] < FEWEST_SUBJECTS:
            continue
        eta = log_hazard[:, e].astype(np.float64)
        centre = _centres(eta, days)
        found, covariance = _fit_cause(eta, eta - centre, place, days, events, at[events], owner)
        theta[e] = prior_sd**2 * np.linalg.solve(prior_sd**2 * np.eye(3) + covariance, found)
        slope[e] = 1 + theta[e, 1] + theta[e, 2] * place
        intercept[e] = theta[e, 0] + (1 - slope[e]) * centre
    return BinRecalibration(intercept, slope, theta[:, 0], theta[:, 1], theta[:, 2], subjects)


def _centres(eta: Floats, days: Floats) -> Floats:
    """(K,) mean of η in each bin, weighted by expected events; plain where nobody is at risk."""
    expected = days * np.exp(eta)
    total = expected.sum(axis=0)
    weighted = (expected * eta).sum(axis=0) / np.where(total > 0, total, 1.0)
    return np.asarray(np.where(total > 0, weighted, eta.mean(axis=0)))


def _fit_cause(
    eta: Floats, x: Floats, place: Floats, days: Floats, events: Ints, at: Ints,
    owner: Ints,
) -> tuple[Floats, Floats]:  # fmt: skip
    """θ̂ (3,) of one cause and its covariance (3, 3); η and x = η − m are (R, K)."""
    row, column = np.nonzero(days)
    seen = x[row, column]
    features = np.stack([np.ones_like(seen), seen, seen * place[column]])
    offset = np.log(days[row, column]) + eta[row, column]
    own = np.stack([np.ones(len(events)), x[events, at], x[events, at] * place[at]])  # (3, events)
    theta, hessian = fit_hazards(features, offset, own.sum(axis=1), start=(0.0, 0.0, 0.0))
    expected = features * np.exp(offset + theta @ features)
    n = int(owner.max()) + 1
    score = np.stack([
        np.bincount(owner[row], expected[f], n) - np.bincount(owner[events], own[f], n) for f in range(3)
    ])  # fmt: skip
    bread = inverse(hessian)
    return theta, bread @ (score @ score.T) @ bread


def recalibrate_head(
    model: SurvivalModel, loader: SubjectLoader, *, prior_sd: float, visit_budget: int, device: torch.device
) -> BinRecalibration:
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
    fitted = fit_bin_recalibration(
        eta, model.config.edges_days, duration_days=rows.duration_days[row],
        cause=rows.cause[row], entry_days=rows.entry_days[row],
        subject=rows.subject[row], prior_sd=prior_sd,
    )  # fmt: skip
    model.recalibrate(*(torch.from_numpy(values).to(device) for values in (fitted.intercept, fitted.slope)))
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
    row, eta = log_hazards(model, loader, subjects=chosen, visit_budget=visit_budget, device=device)
    labelled = ~np.isnan(loader.rows.duration_days[row])
    return row[labelled], eta[labelled]


def log_hazards(
    model: SurvivalModel, loader: SubjectLoader, *, visit_budget: int, device: torch.device,
    subjects: Ints | None = None,
) -> tuple[Ints, Floats32]:  # fmt: skip
    """Rows of some subjects, or of all, as they come (r,), and their log-hazards per day (r, E, K)."""
    model.eval()
    row, eta = [], []
    with torch.no_grad():
        for step in feed(loader.in_order(visit_budget=visit_budget, subjects=subjects), device):
            row.append(step.rows)
            eta.append(model(step.batch).float().cpu().numpy()[step.positions])
    return np.concatenate(row), np.concatenate(eta)
