"""Effects by exact deletion: how far a risk changes when a code, a visit or a pair of codes is removed."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ehrsequencing.core.arrays import Floats
from ehrsequencing.explain.question import Question
from ehrsequencing.explain.record import Edit, SubjectRecord, kept_rows

PAIRED_CODES = 20  # the codes with the largest effects, of which all pairs are removed: 190 pairs
KINDS = ("code", "visit", "code in visit", "pair")


@dataclass(frozen=True)
class Effect:
    """What one deletion changes. An effect is what the record says minus what it says without: positive raises.

    Attributes:
        kind: One of `KINDS`.
        edit: What was removed.
        code: The code; None for a visit.
        other: The second code of a pair.
        visit: Number of the visit, from 0; None where a code was removed everywhere.
        count: How many rows that were known at the prediction time were removed.
        effect: Risk with − risk without.
        log_hazard: The same difference of the log cumulative hazard.
        interaction: Of a pair: effect of both − the sum of the effects of each alone.
        log_hazard_interaction: The same on the log cumulative hazard.
    """

    kind: str
    edit: Edit
    code: str | None = None
    other: str | None = None
    visit: int | None = None
    count: int = 0
    effect: float = 0.0
    log_hazard: float = 0.0
    interaction: float | None = None
    log_hazard_interaction: float | None = None


@dataclass(frozen=True)
class Deletion:
    """The risk at one prediction time, and the effect of every deletion on it.

    Attributes:
        risk: The risk with nothing removed.
        effects: By kind in the order of `KINDS`; within a kind the largest changes of the risk first, of pairs the
            largest interactions.
    """

    risk: float
    effects: tuple[Effect, ...]

    def of_kind(self, kind: str) -> list[Effect]:
        """The effects of one kind, the largest first."""
        return [effect for effect in self.effects if effect.kind == kind]


def deletion(
    question: Question,
    record: SubjectRecord,
    *,
    row: int = -1,
    kinds: Sequence[str] = KINDS,
    paired_codes: int = PAIRED_CODES,
) -> Deletion:
    """Remove each code, visit, code in one visit and pair of codes, and predict again.

    Only what was known at the prediction time is removed. Pairs cost most, since there are many. All pairs of the
    `paired_codes` codes with the largest effect on the log hazard are removed, and all pairs at all where a record has
    no more codes than that.

    Args:
        question: Cause and horizon.
        record: The subject.
        row: Which prediction time, by its number; default: the last.
        kinds: Which kinds of deletion.
        paired_codes: How many codes are paired.

    Returns:
        The risk and the effects.
    """
    row = row % len(record.moments)
    codes = (*record.known_codes(row), *record.static_codes)
    known = set(codes)
    singles = [Effect("code", Edit(codes=(code,)), code) for code in codes]
    for visit in record.known_visits(row):
        if "visit" in kinds:
            singles.append(Effect("visit", Edit(visits=(visit,)), visit=visit))
        if "code in visit" in kinds:
            for code in dict.fromkeys(record.codes[visit]):
                if code in known:
                    edit = Edit(code_at=((visit, code),))
                    singles.append(Effect("code in visit", edit, code, visit=visit))
    risk, found = _measured(question, record, row, singles)
    if "pair" in kinds:
        found += _pairs(question, record, row, found[: len(codes)], most=paired_codes)
    chosen = [effect for effect in found if effect.kind in kinds]
    chosen.sort(key=_by_kind_and_size)
    return Deletion(risk, tuple(chosen))


def _by_kind_and_size(effect: Effect) -> tuple[int, float]:
    size = effect.effect if effect.interaction is None else effect.interaction
    return KINDS.index(effect.kind), -abs(size)


def _measured(
    question: Question, record: SubjectRecord, row: int, effects: Sequence[Effect]
) -> tuple[float, list[Effect]]:
    """The risk with nothing removed, and the effects with their numbers."""
    kept = [kept_rows(record, edit) for edit in (Edit(), *(effect.edit for effect in effects))]
    answers: Floats = question.of_copies(record, kept, rows=[row])[:, 0]
    change = answers[0] - answers[1:]
    could = record.known_rows(row) | record.static_rows
    return float(answers[0, 0]), [
        replace(
            effect,
            count=int((could & ~mask).sum()),
            effect=float(of_risk),
            log_hazard=float(of_log_hazard),
        )
        for effect, mask, (of_risk, of_log_hazard) in zip(effects, kept[1:], change, strict=True)
    ]


def _pairs(
    question: Question, record: SubjectRecord, row: int, of_codes: list[Effect], *, most: int
) -> list[Effect]:
    """All pairs of the codes with the largest effects."""
    largest = sorted(of_codes, key=lambda effect: -abs(effect.log_hazard))[:most]
    pairs = list(itertools.combinations(largest, 2))
    asked = [
        Effect("pair", Edit(codes=(*a.edit.codes, *b.edit.codes)), a.code, b.code) for a, b in pairs
    ]
    _, found = _measured(question, record, row, asked)
    return [
        replace(
            effect,
            interaction=effect.effect - a.effect - b.effect,
            log_hazard_interaction=effect.log_hazard - a.log_hazard - b.log_hazard,
        )
        for effect, (a, b) in zip(found, pairs, strict=True)
    ]
