"""Fits what stands beside the weights again, on the right subjects, and counts the people behind what is stored."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ehrsequencing.audit.data import AuditData, Check, Finding, judge
from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.disclosure import count_text
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import Ensemble
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.records.vocabulary_fit import VocabularyFit
from ehrsequencing.training.inference import VISIT_BUDGET
from ehrsequencing.training.recalibration import fit_recalibration, labelled_log_hazards
from ehrsequencing.training.resolve import training_edges

SAME = 1e-9  # relative: a refit of the same numbers on the same machine
SAME_CORRECTION = 1e-3  # of level, stretch and trend: the saved weights are float32, and perhaps of another machine
LEAST_SLOPE = 0.05  # what is stretched to less cannot be undone
NUMBERS = ("level", "stretch", "trend")


def fitted_again(data: AuditData) -> Finding:
    """All that is fitted beside the weights: from the training subjects, the recalibration from tuning subjects."""
    compared = {
        "tokens and scales of values": _vocabulary_is_same(
            data.vocabulary, data.source.fit.finish()
        ),
        "the time grid": _grid_is_same(data),
        "the recalibration at the end of training": _recalibration_is_same(data),
    }
    others = [name for name, is_same in compared.items() if is_same is False]
    same = [name for name, is_same in compared.items() if is_same]
    tested = {"tokens": len(data.vocabulary), "training rows": len(data.records["train"])}
    if others:
        why = f"not what the training subjects (the recalibration: the tuning subjects) give: {', '.join(others)}"
        return Finding("leak", why, tested)
    return Finding("passed", f"the right subjects give the same {', '.join(same)}", tested)


def _vocabulary_is_same(used: Vocabulary, again: Vocabulary) -> bool:
    if used.tokens != again.tokens or not np.array_equal(used.scale, again.scale):
        return False
    pairs = ((used.knots, again.knots), (used.mean, again.mean), (used.sd, again.sd))
    return all(np.allclose(a, b, rtol=SAME, atol=SAME) for a, b in pairs)


def _grid_is_same(data: AuditData) -> bool | None:
    """None for the visit head, which has no grid."""
    if data.run.is_visit_head:
        return None
    bins = data.run.study.training.grid_bins
    used = np.array(data.model.config.edges_days)
    again = np.array(training_edges(data.prepared, data.task, bins=bins))
    return used.shape == again.shape and np.allclose(used, again, rtol=SAME, atol=0.0)


def _recalibration_is_same(data: AuditData) -> bool | None:
    """Level, stretch and trend, undone and fitted again; None where there is no such step that can be undone."""
    model: Any = data.model
    pairs = [(model, data.run.manifest)]
    if isinstance(model, Ensemble):
        pairs = list(zip(model.members, data.run.manifest.get("members", ()), strict=True))
    found = [
        _correction_is_same(data, network, facts["recalibration"])
        for network, facts in pairs
        if facts.get("recalibration") and not data.run.is_visit_head
    ]
    return None if None in found or not found else all(found)


def _correction_is_same(
    data: AuditData, model: SurvivalModel, told: Mapping[str, Any]
) -> bool | None:
    """`told`: of each cause, the three numbers and the intercepts a of η' = a + b · η, as folded into the head."""
    causes = [told[cause] for cause in data.task.causes]
    numbers: Floats = np.array([[cause[name] for name in NUMBERS] for cause in causes])
    intercept: Floats = np.array([cause["intercept"] for cause in causes])
    place = np.linspace(-1.0, 1.0, intercept.shape[1])
    slope = 1 + numbers[:, 1:2] + numbers[:, 2:3] * place
    if slope.min() < LEAST_SLOPE:
        return None
    rows = data.records["tuning"].rows
    loader = SubjectLoader.of_model(
        model.config, data.records["tuning"], code_types=data.run.code_types
    )
    chosen, eta = labelled_log_hazards(
        model, loader, visit_budget=VISIT_BUDGET, device=torch.device("cpu")
    )
    again = fit_recalibration(
        (eta.astype(np.float64) - intercept) / slope,
        model.config.edges_days,
        duration_days=rows.duration_days[chosen],
        cause=rows.cause[chosen],
        entry_days=rows.entry_days[chosen],
        subject=rows.subject[chosen],
        prior_sd=data.run.study.training.recalibration,
    )
    refitted = np.stack([again.level, again.stretch, again.trend], axis=1)
    subjects = [cause["subjects_with_event"] for cause in causes]
    is_near = np.allclose(numbers, refitted, rtol=0.0, atol=SAME_CORRECTION)
    return is_near and subjects == again.subjects.tolist()


# ---- how many people are behind it ----------------------------------------------------------------------------------


def single_people(data: AuditData) -> Finding:
    """Training subjects behind every code and type, and behind every stored number that is one of their values."""
    needed, vocabulary = data.prepared.study.vocabulary.min_subjects, data.vocabulary
    if needed < 2:
        return Finding("not_tested", "vocabulary.min_subjects=1 protects nobody")
    fit = data.source.fit
    people = [int(fit.subjects[fit.number[c]]) for c in vocabulary.codes if c in fit.number]
    people += [int(fit.kind_subjects[fit.kinds[kind]]) for kind in vocabulary.kinds]
    few_names = sum(count < needed for count in people)
    few_numbers = _numbers_of_few(vocabulary, fit, needed)
    return judge(
        few_names + few_numbers,
        of=len(people) + vocabulary.knots.size,
        what=f"names and numbers are those of fewer than {needed} training subjects "
        f"({count_text(few_names)} names and {count_text(few_numbers)} numbers)",
        clean=f"at least {needed} training subjects are behind every name, and share every number that is a value",
        tested={"names": len(people), "scales": len(vocabulary.mean)},
    )


def _numbers_of_few(vocabulary: Vocabulary, fit: VocabularyFit, needed: int) -> int:
    """How many values of the training subjects, of those that the fit keeps, are stored although too few share them."""
    sample, few = fit.values(), 0
    for code, token in vocabulary.index.items():
        row = vocabulary.scale[token]
        if row < 0 or code not in fit.number:
            continue
        value, who = sample.of(fit.number[code])
        is_stored = np.isin(value, np.r_[vocabulary.knots[row], vocabulary.mean[row]])
        pairs = np.unique(np.stack([value, who.astype(np.float64)])[:, is_stored], axis=1)
        _, holders = np.unique(pairs[0], return_counts=True)
        few += int((holders < needed).sum())
    return few


CHECKS = (
    Check(
        "fitted_again",
        "Do training subjects alone give codes, scales and time grid, and tuning subjects the last correction?",
        fitted_again,
        needs_records=True,
    ),
    Check(
        "single_people",
        "Does all that the run stores of codes and values come from at least vocabulary.min_subjects people?",
        single_people,
        needs_records=True,
    ),
)
