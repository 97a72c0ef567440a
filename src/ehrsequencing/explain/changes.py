"""Why a risk changed between two consecutive prediction times: a table whose rows add up to the change.

    risk now − risk before = time passing + Σ_i φ_i

*Time passing* is what the risk would be now if nothing had been recorded since, minus the risk before; it includes
that a visit took place. φ_i is the Shapley value of the i-th new code: its effect on the risk averaged over all orders
in which the new codes could have been added. No order is preferred, and the rows add up by construction.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Bools, Floats
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.explain.question import Question
from ehrsequencing.explain.record import SubjectRecord

EXACT_CODES = 6  # so many new codes: all orders are averaged, from the risks of 64 subsets at most
MOST_CODES = 24  # more new codes than that: those with the smallest effects share one row
ORDERS = 32  # orders that are drawn beyond EXACT_CODES: 16 and their reverses
_SEED = 0


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
    fixed seed (16 and their reverses). Beyond 24 new codes those with the smallest effects share one row.

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

    def risk_now(kept: Sequence[Bools]) -> Floats:
        return question.of_copies(record, kept, rows=[row])[:, 0, 0]

    names, masks = list(rows_of), list(rows_of.values())
    if len(masks) > MOST_CODES:
        whole, *without = risk_now([np.ones_like(new), *(~mask for mask in masks)])
        order = np.argsort(-np.abs(whole - np.array(without)), kind="stable").tolist()
        single, shared = order[: MOST_CODES - 1], order[MOST_CODES - 1 :]
        names = [names[k] for k in single]
        masks = [*(masks[k] for k in single), np.any([masks[k] for k in shared], axis=0)]
    orders = _orders(len(masks))
    subsets = list(
        dict.fromkeys(frozenset(order[:n]) for order in orders for n in range(len(masks) + 1))
    )
    kept = [~new | np.any([new & False, *(masks[k] for k in own)], axis=0) for own in subsets]
    risk = dict(zip(subsets, risk_now(kept).tolist(), strict=True))
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
        text = f"{count} other new codes together"
        table.append(ChangeRow(text, None, None, float(parts[-1]), count))
    table.sort(key=lambda one: -abs(one.change))
    passing = ChangeRow("time passing, without new codes", None, None, still - before, 0)
    return Change(before, now, (passing, *table), len(masks) <= EXACT_CODES)


def _new_codes(record: SubjectRecord, new: Bools) -> dict[tuple[int, str], Bools]:
    """The new codes of each visit, and the rows of each, in the order of their times."""
    events, visits = record.record.events, record.record.visits
    rows_of: dict[tuple[int, str], Bools] = {}
    for event, visit in zip(visits.event.tolist(), visits.visit.tolist(), strict=True):
        if new[event]:
            name = (visit, events.codes[events.code[event]])
            rows_of.setdefault(name, np.zeros(len(new), dtype=bool))[event] = True
    return rows_of


def _orders(n: int) -> list[tuple[int, ...]]:
    """All orders of n codes, or some that are drawn and their reverses: unbiased for the Shapley values."""
    if n <= EXACT_CODES:
        return list(itertools.permutations(range(n)))
    rng = np.random.default_rng(_SEED)
    drawn = [tuple(rng.permutation(n).tolist()) for _ in range(ORDERS // 2)]
    return [*drawn, *(order[::-1] for order in drawn)]
