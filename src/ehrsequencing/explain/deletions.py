"""Effects by exact deletion: how far a risk changes when a code, a visit or a pair of codes is removed.

The change of a risk between two consecutive prediction times is a table whose rows add up to it:

    risk now − risk before = time passing + Σ_i φ_i

*Time passing* is what the risk would be now if nothing had been recorded since, minus the risk before; it includes
that a visit took place. φ_i is the Shapley value of the i-th new code: its effect on the risk averaged over all orders
in which the new codes could have been added. No order is preferred, and the rows add up by construction.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ehrsequencing.core.arrays import Bools, Floats
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.explain.record import Edit, Question, SubjectRecord, kept_rows

PAIRED_CODES = 20  # the codes with the largest effects, of which all pairs are removed: 190 pairs
KINDS = ("code", "visit", "code in visit", "pair")
EXACT_CODES = 6  # so many new codes: all orders are averaged, from the risks of 64 subsets at most
MOST_CODES = 24  # more new codes than that: those with the smallest effects share one row
ORDERS = 32  # orders that are drawn beyond EXACT_CODES: 16 and their reverses
# most rows in all copies for one kind of deletion; of a record of 10,000 rows 1,500 codes are tried
MOST_ROWS = 15_000_000
OF_PART = "Not every code of a very long record was removed. Codes that the model knows come first, then the newest."
_SEED = 0


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
        is_part: Whether the record is so long that some deletions were not tried.
    """

    risk: float
    effects: tuple[Effect, ...]
    is_part: bool = False

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
    no more codes than that. Of a very long record a part of each kind is removed (`MOST_ROWS`): codes that the model
    knows come first, then the newest.

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
    visits = record.known_visits(row)
    most = max(MOST_ROWS // len(record.record.events), 1)
    codes, is_part = removed_codes(question, record, row)
    singles = [Effect("code", Edit(codes=(code,)), code) for code in codes]
    of_parts = list[Effect]()
    for visit in visits[-most:]:
        if "visit" in kinds:
            singles.append(Effect("visit", Edit(visits=(visit,)), visit=visit))
        if "code in visit" in kinds:
            for code in dict.fromkeys(record.codes[visit]):
                if code in codes:
                    edit = Edit(code_at=((visit, code),))
                    of_parts.append(Effect("code in visit", edit, code, visit=visit))
    risk, effects = _measured(question, record, row, [*singles, *of_parts[-most:]])
    if "pair" in kinds:
        effects += _pairs(question, record, row, effects[: len(codes)], most=paired_codes)
    chosen = [effect for effect in effects if effect.kind in kinds]
    chosen.sort(key=_by_kind_and_size)
    is_part |= max(len(visits), len(of_parts)) > most
    return Deletion(risk, tuple(chosen), is_part)


def removed_codes(
    question: Question, record: SubjectRecord, row: int = -1
) -> tuple[dict[str, None], bool]:
    """The codes known at a prediction time that are removed, in order, and whether there are more of them."""
    every = (*record.known_codes(row), *record.static_codes)
    most = max(MOST_ROWS // len(record.record.events), 1)
    words, number = question.run.vocabulary, record.code_number
    is_unknown = words.is_unknown(words.ids(record.record.events.codes))
    tried = set(sorted(every, key=lambda code: not is_unknown[number[code]])[-most:])
    return dict.fromkeys(code for code in every if code in tried), len(every) > most


def _by_kind_and_size(effect: Effect) -> tuple[int, float]:
    size = effect.effect if effect.interaction is None else effect.interaction
    return KINDS.index(effect.kind), -abs(size)


def _measured(
    question: Question, record: SubjectRecord, row: int, effects: Sequence[Effect]
) -> tuple[float, list[Effect]]:
    """The risk with nothing removed, and the effects with their numbers."""
    masks = [kept_rows(record, edit) for edit in (Edit(), *(effect.edit for effect in effects))]
    answers: Floats = question.of_copies(record, masks, rows=[row])[:, 0]
    change = answers[0] - answers[1:]
    could = record.known_rows(row) | record.static_rows
    return float(answers[0, 0]), [
        replace(
            effect,
            count=int((could & ~mask).sum()),
            effect=float(of_risk),
            log_hazard=float(of_log_hazard),
        )
        for effect, mask, (of_risk, of_log_hazard) in zip(effects, masks[1:], change, strict=True)
    ]


def _pairs(
    question: Question, record: SubjectRecord, row: int, of_codes: list[Effect], *, most: int
) -> list[Effect]:
    """All pairs of the codes with the largest effects."""
    largest = sorted(of_codes, key=lambda effect: -abs(effect.log_hazard))[:most]
    pairs = list(itertools.combinations(largest, 2))
    untried = [
        Effect("pair", Edit(codes=(*a.edit.codes, *b.edit.codes)), a.code, b.code) for a, b in pairs
    ]
    _, effects = _measured(question, record, row, untried)
    return [
        replace(
            effect,
            interaction=effect.effect - a.effect - b.effect,
            log_hazard_interaction=effect.log_hazard - a.log_hazard - b.log_hazard,
        )
        for effect, (a, b) in zip(effects, pairs, strict=True)
    ]


# ---- the change since the prediction time before ---------------------------------------------------------------------


@dataclass(frozen=True)
class ChangeRow:
    """One row of the table.

    Attributes:
        text: The new code, or what else the row stands for.
        code: The new code; None for time passing and for the codes that share a row.
        visit: Number of the visit that holds it; None as for the code.
        change: Part of the change of the risk.
        codes: How many new codes the row stands for; 0 for time passing.
    """

    text: str
    code: str | None
    visit: int | None
    change: float
    codes: int


@dataclass(frozen=True)
class Change:
    """The change of a risk between two consecutive prediction times.

    Attributes:
        before: The risk at the earlier one.
        now: The risk at the later one.
        rows: Time passing first, then new codes by falling size; their changes sum to `now − before`.
        is_exact: Whether every order of the new codes was averaged, or some that were drawn.
    """

    before: float
    now: float
    rows: tuple[ChangeRow, ...]
    is_exact: bool


def change(question: Question, record: SubjectRecord, *, row: int = -1) -> Change:
    """Divide the change of a risk since the prediction time before.

    With at most 6 new codes their Shapley values are exact. With more, they are averages over 32 orders drawn with a
    fixed seed (16 and their reverses). Beyond 24 new codes those with the smallest effects share one row. Of a very
    long record fewer orders are drawn, and the oldest new codes share that row without being tried (`MOST_ROWS`).

    Args:
        question: Cause and horizon.
        record: The subject.
        row: Number of the later prediction time; default: the last.

    Raises:
        EhrseqError: It is the record's first prediction time.
    """
    row = row % len(record.moments)
    if row == 0:
        raise EhrseqError(
            "is the record's first prediction time", where="row", fix="name a later one: 1, 2, …"
        )
    new = record.known_rows(row) & ~record.known_rows(row - 1)
    rows_of = _new_codes(record, new)

    def risk_now(copies: list[Bools]) -> Floats:
        return question.of_copies(record, copies, rows=[row])[:, 0, 0]

    most, every = max(MOST_ROWS // len(new), MOST_CODES), np.arange(len(new))
    names = list(rows_of)[-most:]
    masks: list[Bools] = [np.isin(every, rows_of[name]) for name in names]
    if len(rows_of) > MOST_CODES:
        whole, *without = risk_now([np.ones_like(new), *(~mask for mask in masks)])
        order = np.argsort(-np.abs(whole - np.array(without)), kind="stable").tolist()
        names = [names[k] for k in order[: MOST_CODES - 1]]
        masks = [masks[k] for k in order[: MOST_CODES - 1]]
        masks.append(new & ~np.any(masks, axis=0))
    orders = _orders(len(masks), most=most // MOST_CODES)
    subsets = list(
        dict.fromkeys(frozenset(order[:n]) for order in orders for n in range(len(masks) + 1))
    )
    copies = [~new | np.any([new & False, *(masks[k] for k in own)], axis=0) for own in subsets]
    risk = dict(zip(subsets, risk_now(copies).tolist(), strict=True))
    parts = np.zeros(len(masks))
    for order in orders:
        for n, code in enumerate(order):
            gained = risk[frozenset(order[: n + 1])] - risk[frozenset(order[:n])]
            parts[code] += gained / len(orders)
    before = float(question.of_copies(record, [np.ones_like(new)], rows=[row - 1])[0, 0, 0])
    still, now = risk[frozenset()], risk[frozenset(range(len(masks)))]
    table = [
        ChangeRow(code, code, visit, float(part), 1)
        for (visit, code), part in zip(names, parts, strict=False)
    ]
    if len(names) < len(masks):
        count = len(rows_of) - len(names)
        table.append(
            ChangeRow(f"{count} other new codes together", None, None, float(parts[-1]), count)
        )
    table.sort(key=lambda one: -abs(one.change))
    passing = ChangeRow("time passing, without new codes", None, None, still - before, 0)
    return Change(before, now, (passing, *table), len(masks) <= EXACT_CODES)


def _new_codes(record: SubjectRecord, new: Bools) -> dict[tuple[int, str], list[int]]:
    """The new codes of each visit, and the rows of each, in the order of their times."""
    events, visits = record.record.events, record.record.visits
    rows_of: dict[tuple[int, str], list[int]] = {}
    for event, visit in zip(visits.event.tolist(), visits.visit.tolist(), strict=True):
        if new[event]:
            name = (visit, events.codes[events.code[event]])
            rows_of.setdefault(name, []).append(event)
    return rows_of


def _orders(n: int, *, most: int) -> list[tuple[int, ...]]:
    """All orders of n codes, or at most some that are drawn and their reverses: unbiased for the Shapley values."""
    if n <= EXACT_CODES:
        return list(itertools.permutations(range(n)))
    rng = np.random.default_rng(_SEED)
    drawn = [tuple(rng.permutation(n).tolist()) for _ in range(max(min(ORDERS, most) // 2, 1))]
    return [*drawn, *(order[::-1] for order in drawn)]
