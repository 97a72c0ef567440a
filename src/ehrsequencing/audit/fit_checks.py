"""Checks that vocabulary, scales, time grid and final recalibration were fitted on the right subjects.

Vocabulary, scales of values and the hazard's grid must come from training subjects, the recalibration from tuning
subjects. Each is fitted again and compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ehrsequencing.audit.data import AuditData, Check, Finding, no_source
from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import Ensemble
from ehrsequencing.records.outcomes import with_outcome_events
from ehrsequencing.records.scales import grid_edges
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.training.inference import VISIT_BUDGET
from ehrsequencing.training.recalibration import (
    Recalibration,
    fit_recalibration,
    labelled_log_hazards,
)

SAME = 1e-9  # relative: a refit of the same numbers on the same machine
SAME_CORRECTION = 1e-3  # of level, stretch and trend: the saved weights are float32, and perhaps of another machine
LEAST_SLOPE = 0.05  # what is stretched to less cannot be undone
NUMBERS = ("level", "stretch", "trend")


def vocabulary_refit(data: AuditData) -> Finding:
    """Tokens and scales, fitted again on the training subjects from the records."""
    if data.source is None:
        return no_source(data)
    fitted, used = data.source.training_fit, data.vocabulary
    tested = {"tokens": len(used), "scales": len(used.mean)}
    apart = _difference(used, fitted)
    if apart is None:
        return Finding(
            "passed", "tokens and scales are those of the training subjects", tested, 0.0, SAME
        )
    what, number = apart
    why = f"{what} differ from those of the training subjects"
    return Finding("leak", why, tested, number, SAME)


def _difference(used: Vocabulary, fitted: Vocabulary) -> tuple[str, float] | None:
    """What differs between two vocabularies, and by how much (tokens: how many; scales: the largest difference)."""
    if used.tokens != fitted.tokens or not np.array_equal(used.scale, fitted.scale):
        return "tokens", float(len(set(used.tokens) ^ set(fitted.tokens)))
    worst = 0.0
    for a, b in ((used.knots, fitted.knots), (used.mean, fitted.mean), (used.sd, fitted.sd)):
        worst = max(worst, float((np.abs(a - b) / np.maximum(1.0, np.abs(b))).max(initial=0.0)))
    return ("scales of values", worst) if worst > SAME else None


def grid(data: AuditData) -> Finding:
    """The inner edges of the hazard's bins, fitted again on training durations."""
    if data.run.is_visit_head:
        return Finding("not_tested", "the visit head has no grid")
    used = np.array(data.model.config.edges_days)
    tested = {"edges": len(used), "training rows": len(data.records["train"])}
    again = _edges(data)
    if used.shape == again.shape and np.allclose(used, again, rtol=SAME, atol=0.0):
        return Finding("passed", "the edges are those of the training durations", tested, 0.0, SAME)
    why = "the edges are not those of the training durations"
    return Finding("leak", why, tested, None, SAME)


def _edges(data: AuditData) -> Floats:
    rows = data.records["train"].rows
    duration, cause, subject = rows.duration_days, rows.cause, rows.subject
    if data.run.outcomes:
        records = data.prepared.outcome_records(data.task.name, "train")
        duration, cause, subject = with_outcome_events(records)
    return np.array(
        grid_edges(
            duration,
            cause,
            horizons_days=data.task.horizons,
            bins=data.run.study.training.grid_bins,
            subject=subject,
            enough=data.prepared.study.vocabulary.min_subjects,
        )
    )


# ---- the correction at the end of training ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Correction:
    """What training fitted last, from the run's manifest."""

    numbers: Floats  # (E, 3) level, stretch and trend of each cause
    subjects: Ints  # (E,) subjects with the event, on which they rest
    intercept: Floats  # (E, K) a of η' = a + b · η, as it was folded into the head

    @classmethod
    def of(cls, fitted: Mapping[str, Any], causes: Sequence[str]) -> "_Correction":
        return cls(
            np.array([[fitted[cause][name] for name in NUMBERS] for cause in causes]),
            np.array([fitted[cause]["subjects_with_event"] for cause in causes]),
            np.array([fitted[cause]["intercept"] for cause in causes]),
        )

    @property
    def slope(self) -> Floats:
        """(E, K) b, what each bin's log-hazards were multiplied by."""
        place = np.linspace(-1.0, 1.0, self.intercept.shape[1])
        return 1 + self.numbers[:, 1:2] + self.numbers[:, 2:3] * place

    def apart(self, found: Recalibration) -> float:
        """The largest difference of a number; infinite where the counts of subjects differ."""
        if not np.array_equal(self.subjects, found.subjects):
            return float("inf")
        refitted = np.stack([found.level, found.stretch, found.trend], axis=1)
        return float(np.nan_to_num(np.abs(self.numbers - refitted), nan=np.inf).max(initial=0.0))


def recalibration(data: AuditData) -> Finding:
    """Level, stretch and trend that training fitted last: undone, and fitted again on the tuning subjects."""
    if data.run.is_visit_head:
        return Finding("not_tested", "the visit head has no hazards per day to correct")
    corrections = _corrections(data)
    causes = len(data.task.causes) * len(corrections)
    tested = {"causes": causes, "tuning rows": len(data.records["tuning"])}
    if not corrections:
        return Finding("not_tested", "manifest.json records no correction at the end of training")
    if min(float(correction.slope.min()) for _, correction in corrections) < LEAST_SLOPE:
        return Finding(
            "not_tested",
            "the correction left so little of the hazards that it cannot be undone",
            tested,
        )

    worst = max(
        correction.apart(_fitted_again(data, model, correction))
        for model, correction in corrections
    )
    if worst <= SAME_CORRECTION:
        why = "level, stretch and trend of the hazards are those of the tuning subjects"
        return Finding("passed", why, tested, worst, SAME_CORRECTION)
    why = "level, stretch and trend of the hazards are not those of the tuning subjects"
    return Finding("leak", why, tested, worst if np.isfinite(worst) else None, SAME_CORRECTION)


def _corrections(data: AuditData) -> list[tuple[SurvivalModel, _Correction]]:
    """Each model of the run whose correction the manifest holds, with it."""
    model, manifest = data.model, data.run.manifest
    pairs: list[tuple[Any, Mapping[str, Any]]] = [(model, manifest)]
    if isinstance(model, Ensemble):
        pairs = list(zip(model.members, manifest.get("members", ()), strict=True))
    found = [(one, fitted) for one, facts in pairs if (fitted := facts.get("recalibration"))]
    return [(one, _Correction.of(fitted, data.task.causes)) for one, fitted in found]


def _fitted_again(data: AuditData, model: SurvivalModel, correction: _Correction) -> Recalibration:
    """What training would have fitted on the tuning subjects."""
    records = data.records["tuning"]
    loader = SubjectLoader.of_model(model.config, records, code_types=data.run.code_types)
    chosen, eta = labelled_log_hazards(
        model, loader, visit_budget=VISIT_BUDGET, device=torch.device("cpu")
    )
    return fit_recalibration(
        (eta.astype(np.float64) - correction.intercept) / correction.slope,  # before the correction
        model.config.edges_days,
        duration_days=records.rows.duration_days[chosen],
        cause=records.rows.cause[chosen],
        entry_days=records.rows.entry_days[chosen],
        subject=records.rows.subject[chosen],
        prior_sd=data.run.study.training.recalibration,
    )


CHECKS = (
    Check(
        "vocabulary_refit",
        "Do training subjects alone give this vocabulary and these scales?",
        vocabulary_refit,
    ),
    Check("grid", "Do training subjects alone give the time grid of the risk curves?", grid),
    Check(
        "recalibration",
        "Do tuning subjects alone give the correction at the end of training?",
        recalibration,
    ),
)
