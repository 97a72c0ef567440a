"""Why a risk changed between two consecutive prediction times: a table whose rows add up to the change.

    risk now − risk before = time passing + Σ_i φ_i

*Time passing* is what the risk would be now if nothing had been recorded since, minus the risk before; it includes
that a visit took place. φ_i is the Shapley value of the i-th new code: its effect on the risk averaged over all orders
in which the new codes could have been added. No order is preferred, and the rows add up by construction.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.explain.question import Question
from ehrsequencing.explain.record import SubjectRecord

EXACT_CODES = 6  # so many new codes: every subset is asked, 64 at most
MOST_CODES = 24  # more new codes than that: those with the smallest effects share one row
ORDERS = 32  # orders that are drawn beyond EXACT_CODES: 16 and their reverses
_SEED = 0


@dataclass(frozen=True)
class ChangeRow:
    """One row of the table.

    Attributes:
        code: The new code; None for time passing and for the codes that share a row.
        visit: Number of the visit that holds it; None as for the code.
        change: Part of the change of the risk.
        codes: How many new codes the row stands for; 0 for time passing.
    """

    code: str | None
    visit: int | None
    change: float
    codes: int

    @property
    def text(self) -> str:
        """What the row is, in words."""
        if self.code is not None:
            return self.code
        return (
            "time passing, without new codes"
            if not self.codes
            else f"{self.codes} other new codes together"
        )


@dataclass(frozen=True)
class Change:
    """The change of a risk between two consecutive prediction times.

    Attributes:
        question: What was asked.
        row: Number of the later prediction time.
        before: The risk at the earlier one.
        now: The risk at the later one.
        rows: Time passing first, then new codes by falling size; their changes sum to `now − before`.
        is_exact: Whether every order of the new codes was averaged, or some that were drawn.
    """

    question: Question
    row: int
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
    players = _players(record, new)
    names = list(players)
    masks = [players[name] for name in names]
    value = _Values(question, record, row, new)
    if len(masks) > MOST_CODES:
        alone = value.of([~mask for mask in masks])
        order = np.argsort(-np.abs(alone - value.of([np.ones_like(new)])[0]), kind="stable")
        masks = [masks[k] for k in order[: MOST_CODES - 1]] + [
            np.any([masks[k] for k in order[MOST_CODES - 1 :]], axis=0)
        ]
        names = [names[k] for k in order[: MOST_CODES - 1]]
    is_exact = len(masks) <= EXACT_CODES
    parts = _exact(value, masks) if is_exact else _drawn(value, masks)
    before, now, still = value.before, value.now, value.still
    shared = len(players) - len(names)
    rows = [
        ChangeRow(code, visit, float(part), 1)
        for (visit, code), part in zip(names, parts, strict=False)
    ]
    rows += [ChangeRow(None, None, float(parts[-1]), shared)] if shared else []
    rows.sort(key=lambda one: -abs(one.change))
    return Change(
        question, row, before, now, (ChangeRow(None, None, still - before, 0), *rows), is_exact
    )


def _players(record: SubjectRecord, new: Bools) -> dict[tuple[int, str], Bools]:
    """The new codes of each visit, and the rows of each, in the order of their times."""
    events, visits = record.record.events, record.record.visits
    players: dict[tuple[int, str], Bools] = {}
    for event, visit in zip(visits.event.tolist(), visits.visit.tolist(), strict=True):
        if new[event]:
            name = (visit, events.codes[events.code[event]])
            players.setdefault(name, np.zeros(len(new), dtype=bool))[event] = True
    return players


class _Values:
    """Risks now with some of the new rows, each subset asked once."""

    def __init__(self, question: Question, record: SubjectRecord, row: int, new: Bools) -> None:
        self.question, self.record, self.row, self.new = question, record, row, new
        self._known: dict[bytes, float] = {}
        risks = question.of_copies(record, [np.ones_like(new), ~new], rows=[row - 1, row])[..., 0]
        self.before, self.now, self.still = (
            float(risks[0, 0]),
            float(risks[0, 1]),
            float(risks[1, 1]),
        )
        self._known |= {np.ones_like(new).tobytes(): self.now, (~new).tobytes(): self.still}

    def of(self, kept: Sequence[Bools]) -> Floats:
        """(n,) risk now with the rows that each mask keeps."""
        asked = {mask.tobytes(): mask for mask in kept if mask.tobytes() not in self._known}
        if asked:
            risks = self.question.of_copies(self.record, list(asked.values()), rows=[self.row])[
                :, 0, 0
            ]
            self._known |= dict(zip(asked, risks.tolist(), strict=True))
        return np.array([self._known[mask.tobytes()] for mask in kept])

    def with_players(self, masks: Sequence[Bools], chosen: Sequence[Sequence[int]]) -> Floats:
        """(n,) risk now with some of the players each time, by their numbers, and no other new row."""
        return self.of(
            [
                ~self.new | np.any([self.new & False, *(masks[k] for k in own)], axis=0)
                for own in chosen
            ]
        )


def _exact(value: _Values, masks: list[Bools]) -> Floats:
    """(n,) Shapley values φ_i = Σ_S |S|! (n − |S| − 1)! / n! · (v(S ∪ i) − v(S)), over the subsets S without i."""
    n = len(masks)
    subsets = [own for size in range(n + 1) for own in itertools.combinations(range(n), size)]
    risk = dict(zip(subsets, value.with_players(masks, subsets).tolist(), strict=True))
    out = np.zeros(n)
    for own in subsets:
        for k in set(range(n)) - set(own):
            weight = math.factorial(len(own)) * math.factorial(n - len(own) - 1) / math.factorial(n)
            out[k] += weight * (risk[tuple(sorted((*own, k)))] - risk[own])
    return out


def _drawn(value: _Values, masks: list[Bools]) -> Floats:
    """(n,) mean gains of each player over drawn orders and their reverses: unbiased for the Shapley values."""
    n, rng = len(masks), np.random.default_rng(_SEED)
    half: list[Ints] = [rng.permutation(n) for _ in range(ORDERS // 2)]
    orders = [*half, *(order[::-1] for order in half)]
    steps = [tuple(sorted(order[:size].tolist())) for order in orders for size in range(n + 1)]
    risk = value.with_players(masks, steps).reshape(len(orders), n + 1)
    out = np.zeros(n)
    for order, own in zip(orders, risk, strict=True):
        out[order] += np.diff(own) / len(orders)
    return out
