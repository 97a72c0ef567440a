"""Effects by exact deletion: how far a risk changes when a code or a visit is removed.

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

KINDS = ("code", "visit", "code in visit")
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
        visit: Number of the visit, from 0; None where a code was removed everywhere.
        count: How many rows that were known at the prediction time were removed.
        effect: Risk with − risk without.
        log_hazard: The same difference of the log cumulative hazard.
    """

    kind: str
    edit: Edit
    code: str | None = None
    visit: int | None = None
    count: int = 0
    effect: float = 0.0
    log_hazard: float = 0.0


@dataclass(frozen=True)
class Deletion:
    """The risk at one prediction time, and the effect of every deletion on it.

    Attributes:
        risk: The risk with nothing removed.
        effects: By kind in the order of `KINDS`; within a kind the largest changes of the risk first.
        is_part: Whether the record is so long that some deletions were not tried.
    """

    risk: float
    effects: tuple[Effect, ...]
    is_part: bool = False


def deletion(
    question: Question,
    record: SubjectRecord,
    *,
    row: int = -1,
    kinds: Sequence[str] = KINDS,
) -> Deletion:
    """Remove each code, visit and code in one visit, and predict again.

    Only what was known at the prediction time is removed. Of a very long record a part of each kind is removed
    (`MOST_ROWS`): codes that the model knows come first, then the newest.

    Args:
        question: Cause and horizon.
        record: The subject.
        row: Which prediction time, by its number; default: the last.
        kinds: Which kinds of deletion.

    Returns:
        The risk and the effects.
    """
    row = row % len(record.moments)
    visit_of = record.record.visits
    is_known = record.known_rows(row)[visit_of.event]
    visits = np.unique(visit_of.visit[is_known]).tolist()  # that had begun by then
    most = max(MOST_ROWS // len(record.record.events), 1)
    codes, is_part = removed_codes(question, record, row)
    singles, of_parts = list[Effect](), list[Effect]()
    if "code" in kinds:
        singles += [Effect("code", Edit(codes=(code,)), code) for code in codes]
    for visit in visits[-most:]:
        if "visit" in kinds:
            singles.append(Effect("visit", Edit(visits=(visit,)), visit=visit))
        if "code in visit" in kinds:
            for code in dict.fromkeys(record.codes[visit]):
                if code in codes:
                    edit = Edit(code_at=((visit, code),))
                    of_parts.append(Effect("code in visit", edit, code, visit=visit))
    tried = [*singles, *of_parts[-most:]]
    masks = kept_rows(record, [Edit(), *(effect.edit for effect in tried)])
    answers: Floats = question.of_copies(record, masks, rows=[row])[:, 0]
    could = record.known_rows(row) | record.static_rows
    effects = [
        replace(
            effect,
            count=int((could & ~mask).sum()),
            effect=float(of_risk),
            log_hazard=float(of_log_hazard),
        )
        for effect, mask, (of_risk, of_log_hazard) in zip(
            tried, masks[1:], answers[0] - answers[1:], strict=True
        )
    ]
    effects.sort(key=lambda effect: (KINDS.index(effect.kind), -abs(effect.effect)))
    is_part |= max(len(visits), len(of_parts)) > most
    return Deletion(float(answers[0, 0]), tuple(effects), is_part)


def removed_codes(
    question: Question, record: SubjectRecord, row: int = -1
) -> tuple[dict[str, None], bool]:
    """The codes known at a prediction time that are removed, in order, and whether there are more of them."""
    known = record.codes_of(record.known_rows(row))
    every = (*known, *record.codes_of(record.static_rows))
    most = max(MOST_ROWS // len(record.record.events), 1)
    words, number = question.run.vocabulary, record.code_number
    is_unknown = words.ids(record.record.events.codes) < words.n_unknown
    tried = set(sorted(every, key=lambda code: not is_unknown[number[code]])[-most:])
    return dict.fromkeys(code for code in every if code in tried), len(every) > most


# ---- the change since the prediction time before ---------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A part of the change of a risk between two consecutive prediction times.

    Attributes:
        change: How much of it.
        codes: How many new codes the part stands for; 0 for time passing.
        code: The new code, where it is one.
        visit: Number of the visit that holds it.
    """

    change: float
    codes: int
    code: str | None = None
    visit: int | None = None

    @property
    def text(self) -> str:
        """What it stands for, in words."""
        shared = f"{self.codes} other new codes together"
        return self.code or (shared if self.codes else "time passing, without new codes")


def change(
    question: Question, record: SubjectRecord, *, row: int = -1
) -> tuple[float, float, list[Part]]:
    """Divide the change of a risk since the prediction time before.

    With at most 6 new codes their Shapley values are exact. With more, they are averages over 32 orders drawn with a
    fixed seed (16 and their reverses). Beyond 24 new codes those with the smallest effects share one row. Of a very
    long record fewer orders are drawn, and the oldest new codes share that row without being tried (`MOST_ROWS`).

    Args:
        question: Cause and horizon.
        record: The subject.
        row: Number of the later prediction time; default: the last.

    Returns:
        The risk at the earlier one and at the later one, and the parts that add up to the difference: time passing
        first, then new codes by falling size.

    Raises:
        EhrseqError: It is the record's first prediction time.
    """
    row = row % len(record.moments)
    if row == 0:
        raise EhrseqError(
            "is the record's first prediction time", where="row", fix="name a later one: 1, 2, …"
        )
    new = record.known_rows(row) & ~record.known_rows(row - 1)
    events, visits = record.record.events, record.record.visits
    # the new codes of each visit, and the rows of each, in the order of their times
    rows_of: dict[tuple[int, str], list[int]] = {}
    for event, visit in zip(visits.event.tolist(), visits.visit.tolist(), strict=True):
        if new[event]:
            rows_of.setdefault((visit, events.codes[events.code[event]]), []).append(event)

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
    # all orders, or some that are drawn and their reverses: unbiased for the Shapley values
    orders = [*itertools.permutations(range(len(masks) if len(masks) <= EXACT_CODES else 0))]
    if len(masks) > EXACT_CODES:
        rng, pairs = np.random.default_rng(_SEED), max(min(ORDERS, most // MOST_CODES) // 2, 1)
        drawn = [tuple(rng.permutation(len(masks)).tolist()) for _ in range(pairs)]
        orders = [*drawn, *(order[::-1] for order in drawn)]
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
        Part(float(part), 1, code, visit) for (visit, code), part in zip(names, parts, strict=False)
    ]
    if len(names) < len(masks):
        table.append(Part(float(parts[-1]), len(rows_of) - len(names)))
    table.sort(key=lambda one: -abs(one.change))
    return before, now, [Part(still - before, 0), *table]
