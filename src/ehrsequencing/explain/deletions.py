"""Effects by exact deletion: how far a risk changes when a code, a visit or a pair of codes is struck."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ehrsequencing.core.arrays import Floats
from ehrsequencing.explain.edits import Edit, kept_rows
from ehrsequencing.explain.question import Question
from ehrsequencing.explain.record import SubjectRecord

PAIRED_CODES = 20  # the codes with the largest effects, of which all pairs are struck: 190 pairs
KINDS = ("code", "visit", "code in visit", "pair")


@dataclass(frozen=True)
class Effect:
    """What one deletion changes. An effect is what the record says minus what it says without: positive raises.

    Attributes:
        kind: One of `KINDS`.
        code: The code; None for a visit.
        other: The second code of a pair.
        visit: Number of the visit, from 0; None where a code was struck everywhere.
        count: How many rows that were known at the prediction time were struck.
        effect: Risk with − risk without.
        log_hazard: The same difference of the log cumulative hazard.
        interaction: Of a pair: effect of both − the sum of the effects of each alone.
        log_hazard_interaction: The same on the log cumulative hazard.
    """

    kind: str
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
        question: What was asked.
        row: Number of the prediction time within the record.
        risk: The risk with nothing struck.
        log_hazard: Its log cumulative hazard.
        effects: By kind in the order of `KINDS`; within a kind the largest changes of the risk first, of pairs the
            largest interactions.
    """

    question: Question
    row: int
    risk: float
    log_hazard: float
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
    """Strike each code, visit, code in one visit and pair of codes, and ask again.

    Only what was known at the prediction time is struck. Pairs cost most, since there are many. All pairs of the
    `paired_codes` codes with the largest effect on the log hazard are struck, and all pairs at all where a record has
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
    visits = record.known_visits(row)
    singles = [Effect("code", code) for code in codes]
    if "visit" in kinds:
        singles += [Effect("visit", visit=visit) for visit in visits]
    if "code in visit" in kinds:
        known = set(codes)
        singles += [
            Effect("code in visit", code, visit=visit)
            for visit in visits
            for code in dict.fromkeys(record.codes[visit])
            if code in known
        ]
    whole, found = _answered(question, record, row, singles)
    if "pair" in kinds:
        found += _pairs(question, record, row, found[: len(codes)], most=paired_codes)
    chosen = [effect for effect in found if effect.kind in kinds]
    chosen.sort(
        key=lambda one: (
            KINDS.index(one.kind),
            -abs(one.effect if one.interaction is None else one.interaction),
        )
    )
    return Deletion(question, row, float(whole[0]), float(whole[1]), tuple(chosen))


def edit_of(effect: Effect) -> Edit:
    """The edit whose effect it is."""
    if effect.code is None:
        assert effect.visit is not None
        return Edit.of_visit(effect.visit)
    if effect.visit is not None:
        return Edit.of_code_at((effect.visit, effect.code))
    return Edit.of_code(effect.code, *([effect.other] if effect.other else []))


def _answered(
    question: Question, record: SubjectRecord, row: int, asked: Sequence[Effect]
) -> tuple[Floats, list[Effect]]:
    """Risk and log hazard with nothing struck, and the effects with their numbers."""
    kept = [kept_rows(record, Edit()), *(kept_rows(record, edit_of(effect)) for effect in asked)]
    answers = question.of_copies(record, kept, rows=[row])[:, 0]
    whole, change = answers[0], answers[0] - answers[1:]
    could = record.known_rows(row) | record.static_rows
    return whole, [
        replace(
            effect,
            count=int((could & ~mask).sum()),
            effect=float(change[k, 0]),
            log_hazard=float(change[k, 1]),
        )
        for k, (effect, mask) in enumerate(zip(asked, kept[1:], strict=True))
    ]


def _pairs(
    question: Question, record: SubjectRecord, row: int, of_codes: list[Effect], *, most: int
) -> list[Effect]:
    """All pairs of the codes with the largest effects."""
    largest = sorted(of_codes, key=lambda effect: -abs(effect.log_hazard))[:most]
    pairs = list(itertools.combinations(largest, 2))
    if not pairs:
        return []
    _, found = _answered(question, record, row, [Effect("pair", a.code, b.code) for a, b in pairs])
    return [
        replace(
            effect,
            interaction=effect.effect - a.effect - b.effect,
            log_hazard_interaction=effect.log_hazard - a.log_hazard - b.log_hazard,
        )
        for effect, (a, b) in zip(found, pairs, strict=True)
    ]
