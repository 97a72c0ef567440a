"""Was what is fitted beside the weights fitted on the right subjects alone?

Vocabulary, scales of values and the hazard's grid: on training subjects. The correction at the end: on tuning subjects.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ehrsequencing.arrays import Floats, Ints
from ehrsequencing.audit.data import SPLITS, AuditData, Check, Finding, judge, no_source
from ehrsequencing.loader import SubjectLoader
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import Ensemble
from ehrsequencing.predict import VISIT_BUDGET
from ehrsequencing.records.grid import grid_edges
from ehrsequencing.records.hazards import exposure
from ehrsequencing.records.timelines import Timelines
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.training.recalibration import fit_recalibration, labelled_log_hazards

SAME = 1e-9  # relative: a refit of the same numbers on the same machine
SAME_CORRECTION = 1e-3  # of level, stretch and trend: the saved weights are float32, and perhaps of another machine
LEAST_SLOPE = 0.05  # what is stretched to less cannot be undone
NUMBERS = ("level", "stretch", "trend")


def tokens_of_training(data: AuditData) -> Finding:
    """Every token has enough training subjects in the prepared timelines."""
    vocabulary, needed = data.vocabulary, data.prepared.study.vocabulary.min_subjects
    counts = np.zeros(len(vocabulary), dtype=np.int64)
    pairs = np.unique(_tokens_of_subjects(data.timelines["train"], data.base_token), axis=1)
    np.add.at(counts, pairs[0], 1)
    plain = data.base_token == np.arange(len(vocabulary))
    plain &= ~vocabulary.is_unknown(np.arange(len(vocabulary), dtype=np.int32))
    few = int((plain & (counts < needed)).sum())
    return judge(
        few, of=int(plain.sum()), what=f"codes have a token that fewer than {needed} training subjects have",
        tested={"codes": int(plain.sum()), "training subjects": len(data.timelines["train"])},
        clean=f"at least {needed} training subjects have every code with a token",
    )  # fmt: skip


def _tokens_of_subjects(timelines: Timelines, base: Ints) -> Ints:
    """(2, ·) plain token and subject of every code, static ones too."""
    everyone = np.arange(len(timelines))
    visits = np.repeat(everyone, np.diff(timelines.subject_offsets))
    of_code = np.repeat(visits, np.diff(timelines.visit_offsets))
    of_static = np.repeat(everyone, np.diff(timelines.static_offsets))
    codes = np.r_[timelines.codes, timelines.static_codes]
    return np.stack([base[codes], np.r_[of_code, of_static]])


def vocabulary_refit(data: AuditData) -> Finding:
    """Tokens and scales, fitted again on the training subjects from the records."""
    if data.source is None:
        return no_source(data)
    fitted, used = data.source.training_fit, data.vocabulary
    tested = {"tokens": len(used), "scales": len(used.mean)}
    apart = _difference(used, fitted)
    if apart is None:
        return Finding("passed", "tokens and scales are those of the training subjects", tested, 0.0, SAME)
    what, number = apart
    everyone = _difference(used, data.source.fit_on_everyone()) is None
    why = f"{what} differ from those of the training subjects" + (
        "; they are those of ALL subjects, held-out ones included" if everyone else ""
    )
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
    tested = {"edges": len(used), "training rows": len(data.rows["train"])}
    if _same_edges(used, _edges(data, ("train",))):
        return Finding("passed", "the edges are those of the training durations", tested, 0.0, SAME)
    everyone = _same_edges(used, _edges(data, SPLITS))
    why = "the edges are not those of the training durations" + (
        "; they are those of ALL subjects, held-out ones included" if everyone else ""
    )
    return Finding("leak", why, tested, None, SAME)


def _edges(data: AuditData, names: tuple[str, ...]) -> Floats:
    duration = np.concatenate([data.rows[name].duration_days for name in names])
    cause: NDArray[Any] = np.concatenate([data.rows[name].cause for name in names])
    subject = np.concatenate([data.rows[name].subject * len(SPLITS) + k for k, name in enumerate(names)])
    return np.array(
        grid_edges(
            duration, cause, horizons_days=data.task.horizons, bins=data.run.study.training.grid_bins, subject=subject,
            enough=data.prepared.study.vocabulary.min_subjects,
        )
    )  # fmt: skip


def _same_edges(a: Floats, b: Floats) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=SAME, atol=0.0))


# ---- the correction at the end of training ---------------------------------------------------------------------------


def recalibration(data: AuditData) -> Finding:
    """Level, stretch and trend that training fitted last: undone, and fitted again on the tuning subjects."""
    if data.run.is_visit_head:
        return Finding("not_tested", "the visit head has no hazards per day to correct")
    told = _told(data)
    tested = {"causes": sum(len(numbers) for _, numbers in told), "tuning rows": len(data.rows["tuning"])}
    if not told:
        return Finding("not_tested", "manifest.json tells of no correction at the end of training")
    if min(float(_slope(numbers, bins=model.config.bins).min()) for model, numbers in told) < LEAST_SLOPE:
        return Finding("not_tested", "the correction left so little of the hazards that it cannot be undone", tested)
    again = [_fitted_again(data, model, numbers, ("tuning",)) for model, numbers in told]
    worst = max(_apart(numbers, found) for (_, numbers), found in zip(told, again, strict=True))
    if worst <= SAME_CORRECTION:
        why = "level, stretch and trend of the hazards are those of the tuning subjects"
        return Finding("passed", why, tested, worst, SAME_CORRECTION)
    why = "level, stretch and trend of the hazards are not those of the tuning subjects"
    for names in (("held_out",), ("train",), SPLITS):
        if all(
            _apart(numbers, _fitted_again(data, model, numbers, names)) <= SAME_CORRECTION for model, numbers in told
        ):
            why += f"; they are those of {'ALL' if names == SPLITS else f'the {names[0]}'} subjects"
            break
    return Finding("leak", why, tested, worst if np.isfinite(worst) else None, SAME_CORRECTION)


def _told(data: AuditData) -> list[tuple[SurvivalModel, Floats]]:
    """Each model of the run that tells of its correction, with (E, 4): ℓ, β, γ, and subjects with the event."""
    model, manifest = data.model, data.run.manifest
    pairs: list[tuple[Any, Mapping[str, Any]]] = [(model, manifest)]
    if isinstance(model, Ensemble):
        pairs = list(zip(model.members, manifest.get("members", ()), strict=True))
    return [
        (
            one,
            np.array([[fitted[cause][key] for key in (*NUMBERS, "subjects_with_event")] for cause in data.task.causes]),
        )
        for one, facts in pairs
        if (fitted := facts.get("recalibration"))
    ]


def _apart(told: Floats, found: Floats) -> float:
    """The largest difference of a number; infinite where the counts of subjects differ."""
    if not np.array_equal(told[:, 3], found[:, 3]):
        return float("inf")
    return float(np.nan_to_num(np.abs(told - found), nan=np.inf).max(initial=0.0))


def _slope(told: Floats, *, bins: int) -> Floats:
    """(E, K) b, what each bin's log-hazards were multiplied by."""
    return np.asarray(1 + told[:, 1:2] + told[:, 2:3] * np.linspace(-1.0, 1.0, bins))


def _fitted_again(data: AuditData, model: SurvivalModel, told: Floats, names: tuple[str, ...]) -> Floats:
    """(E, 4) what training would have fitted on some splits, and on how many subjects with the event."""
    hazards, durations, causes, entries, owners = [], [], [], [], []
    for number, name in enumerate(names):
        timelines, rows = data.timelines[name], data.rows[name]
        loader = SubjectLoader.of_model(model.config, timelines, rows, code_types=data.run.code_types)
        chosen, eta = labelled_log_hazards(model, loader, visit_budget=VISIT_BUDGET, device=torch.device("cpu"))
        hazards.append(eta.astype(np.float64))
        durations.append(rows.duration_days[chosen])
        causes.append(rows.cause[chosen])
        entries.append(rows.entry_days[chosen])
        owners.append(rows.subject[chosen] * len(names) + number)
    duration, entry = np.concatenate(durations), np.concatenate(entries)
    edges = model.config.edges_days
    found = fit_recalibration(
        _undone(np.concatenate(hazards), exposure(edges, entry, duration), told), edges, duration_days=duration,
        cause=np.concatenate(causes), entry_days=entry, subject=np.concatenate(owners),
        prior_sd=data.run.study.training.recalibration,
    )  # fmt: skip
    return np.stack([found.level, found.stretch, found.trend, found.subjects], axis=1)


def _undone(log_hazard: Floats, days: Floats, told: Floats) -> Floats:
    """The log-hazards before they were corrected.

        η' = η + ℓ + (b − 1) · (η − m)                      m = Σ w η / Σ w over prediction times, w = days · exp(η)

    m is not stored, and need not be. η is x = η'/b but for a constant of the bin, and a constant changes no weighted
    mean but by itself: with μ the mean of x, weighted by days · exp(x), m = bμ − ℓ, and so η = x − μ + bμ − ℓ.

    Args:
        log_hazard: (R, E, K) η', of the saved model.
        days: (R, K) at risk.
        told: (E, 4) ℓ, β, γ and a count.
    """
    slope = _slope(told, bins=log_hazard.shape[2])
    x = log_hazard / slope
    weight = days[:, None] * np.exp(x - x.max(axis=0))
    total = weight.sum(axis=0)
    mean = np.where(total > 0, (weight * x).sum(axis=0) / np.where(total > 0, total, 1.0), x.mean(axis=0))
    return np.asarray(x - mean + slope * mean - told[:, :1])


CHECKS = (
    Check("tokens_of_training", "Does every code of the vocabulary come from training subjects?", tokens_of_training),
    Check("vocabulary_refit", "Do training subjects alone give this vocabulary and these scales?", vocabulary_refit),
    Check("grid", "Do training subjects alone give the time grid of the risk curves?", grid),
    Check("recalibration", "Do tuning subjects alone give the correction at the end of training?", recalibration),
)
