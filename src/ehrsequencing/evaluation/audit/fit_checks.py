"""Was everything that is fitted, fitted on training subjects alone? Vocabulary, scales of values, the hazard's grid."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.evaluation.audit.data import SPLITS, AuditData, Check, Finding, judge, no_source
from ehrsequencing.records.grid import grid_edges
from ehrsequencing.records.timelines import Timelines
from ehrsequencing.records.vocabulary import Vocabulary

SAME = 1e-9  # relative: a refit of the same numbers on the same machine


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


def _tokens_of_subjects(timelines: Timelines, base: NDArray[np.int64]) -> NDArray[np.int64]:
    """(2, ·) plain token and subject of every code, static ones too."""
    everyone = np.arange(len(timelines))
    visits = np.repeat(everyone, np.diff(timelines.subject_offsets))
    of_code = np.repeat(visits, np.diff(timelines.visit_offsets))
    of_static = np.repeat(everyone, np.diff(timelines.static_offsets))
    codes = np.r_[np.asarray(timelines.codes), np.asarray(timelines.static_codes)]
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


def _edges(data: AuditData, names: tuple[str, ...]) -> NDArray[np.float64]:
    duration = np.concatenate([np.asarray(data.rows[name].duration_days) for name in names])
    cause: NDArray[Any] = np.concatenate([np.asarray(data.rows[name].cause) for name in names])
    bins = data.run.study.training.grid_bins
    return np.array(grid_edges(duration, cause, horizons_days=data.task.horizons, bins=bins))


def _same_edges(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=SAME, atol=0.0))


CHECKS = (
    Check("tokens_of_training", "Does every code of the vocabulary come from training subjects?", tokens_of_training),
    Check("vocabulary_refit", "Do training subjects alone give this vocabulary and these scales?", vocabulary_refit),
    Check("grid", "Do training subjects alone give the time grid of the risk curves?", grid),
)
