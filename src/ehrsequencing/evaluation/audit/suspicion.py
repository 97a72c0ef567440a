"""Too good to be true: does a single token tell the outcome? A suspicion, no proof: somebody must look at it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.evaluation.audit.data import SPLITS, AuditData, Check, Finding
from ehrsequencing.records.timelines import TaskRows, Timelines, ragged
from ehrsequencing.records.visits import count_at_or_before

TELLING_AUC = 0.98
MIN_EVENTS = 20  # subjects with and without the event
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Label:
    """One yes-or-no question to every row of every split.

    Attributes:
        name: In words.
        yes: Split → (R,) had the event.
        no: Split → (R,) is known not to have had it.
    """

    name: str
    yes: dict[str, Bools]
    no: dict[str, Bools]


def _labels(data: AuditData) -> Iterator[_Label]:
    """Each cause by the first horizon, by the last, and at any time in the follow-up."""
    limits = {f"within {days:g} days": days for days in (data.task.horizons[0], data.task.horizons[-1])}
    for number, cause in enumerate(data.task.causes, start=1):
        for words, days in {**limits, "in the follow-up": np.inf}.items():
            yes, no = {}, {}
            for split in SPLITS:
                duration, which = np.asarray(data.rows[split].duration_days), np.asarray(data.rows[split].cause)
                yes[split] = (which == number) & (duration <= days)
                no[split] = ~yes[split] & ((duration > days) | (which > 0) | np.isinf(days))
            yield _Label(f"{cause} {words}", yes, no)
            newest = {split: _newest(data.rows[split]) for split in SPLITS}  # by then all is known that ever will be
            yield _Label(
                f"{cause} {words}, asked last,",
                {s: yes[s] & newest[s] for s in yes},
                {s: no[s] & newest[s] for s in no},
            )


def _newest(rows: TaskRows) -> Bools:
    """(R,) each subject's last prediction time."""
    subject = rows.subject
    return np.asarray(np.r_[subject[1:] != subject[:-1], True][: len(subject)], dtype=np.bool_)


def telling_token(data: AuditData) -> Finding:
    """The AUC of each token's presence, and of each number among the inputs, for the outcome."""
    presence = {split: _Presence(data.timelines[split], data.rows[split]) for split in SPLITS}
    numbers = _numbers(data)
    best, best_name, best_label, labels = 0.5, "", "", 0
    for label in _labels(data):
        weights = [_per_subject(data, part) for part in (label.yes, label.no)]
        people = [sum(float(w.sum()) for w in weight.values()) for weight in weights]
        if min(people) < MIN_EVENTS - 0.5:
            continue
        labels += 1
        share = np.stack([
            sum(presence[s].weight_with(weight[s], len(data.vocabulary)) for s in SPLITS) / total
            for weight, total in zip(weights, people, strict=True)
        ])  # fmt: skip
        auc = 0.5 + 0.5 * np.abs(share[0] - share[1])
        found = [(float(auc.max()), data.vocabulary.tokens[int(auc.argmax())])]
        found += [(_auc(number, label), name) for name, number in numbers.items()]
        top, name = max(found)
        if top > best:
            best, best_name, best_label = top, name, label.name
    tested = {"tokens and numbers": len(data.vocabulary) + len(numbers), "outcomes": labels}
    if not labels:
        return Finding("not_tested", f"fewer than {MIN_EVENTS} subjects with, or without, the event", tested)
    said = f"{best_name!r} alone tells {best_label} with an AUC of {best:.3f}"
    if best > TELLING_AUC:
        return Finding("leak", f"suspected: {said}; read how it came to be recorded", tested, best, TELLING_AUC)
    return Finding("passed", f"no input alone tells the outcome; the best, {said}", tested, best, TELLING_AUC)


class _Presence:
    """Which rows see a token: all rows of a subject after the visit that has it first; static ones always."""

    def __init__(self, timelines: Timelines, rows: TaskRows) -> None:
        everyone = np.arange(len(timelines))
        visits = np.diff(timelines.subject_offsets)
        place = np.arange(int(visits.sum())) - np.repeat(np.asarray(timelines.subject_offsets)[:-1], visits)
        codes = np.diff(timelines.visit_offsets)
        subject = np.r_[
            np.repeat(np.repeat(everyone, visits), codes), np.repeat(everyone, np.diff(timelines.static_offsets))
        ]
        token = np.r_[np.asarray(timelines.codes), np.asarray(timelines.static_codes)].astype(np.int64)
        nth = np.r_[np.repeat(place, codes), np.full(len(timelines.static_codes), -1)]
        order = np.lexsort((nth, token, subject))
        subject, token, nth = subject[order], token[order], nth[order]
        opens = np.r_[True, (np.diff(subject) != 0) | (np.diff(token) != 0)][: len(order)]
        subject, self.token, nth = subject[opens], token[opens], nth[opens]
        before, first = count_at_or_before(rows.subject, np.asarray(rows.visits_before, np.int64), subject, nth)
        self.start, self.stop = first + before, np.asarray(rows.row_offsets)[subject + 1]

    def weight_with(self, weight: Floats, n_tokens: int) -> Floats:
        """(V,) weight of the rows that see each token."""
        seen = np.r_[0.0, np.cumsum(weight)]
        return np.asarray(np.bincount(self.token, weights=seen[self.stop] - seen[self.start], minlength=n_tokens))


@dataclass(frozen=True)
class _Number:
    """A number among the inputs of some rows: split → rows, their subjects, and the number."""

    rows: dict[str, Ints]
    subject: dict[str, Ints]
    value: dict[str, NDArray[np.float32]]


def _numbers(data: AuditData) -> dict[str, _Number]:
    """Values of the newest visit's codes, carried summaries, age and gap, by name."""
    parts: dict[str, dict[str, tuple[Ints, NDArray[np.float32]]]] = {}
    for split in SPLITS:
        timelines, rows = data.timelines[split], data.rows[split]
        everyone = np.arange(len(rows))
        seen = np.asarray(rows.visits_before, dtype=np.int64)
        some = everyone[seen > 0]
        newest = np.asarray(timelines.subject_offsets)[rows.subject[some]] + seen[some] - 1
        codes, offsets = ragged(np.asarray(timelines.visit_offsets), newest)
        row = np.r_[np.repeat(some, np.diff(offsets)), np.repeat(everyone, np.diff(rows.carry_offsets))]
        token = np.r_[np.asarray(timelines.codes)[codes], np.asarray(rows.carry_codes)]
        value = np.r_[np.asarray(timelines.values)[codes, 0], np.asarray(rows.carry_values)[:, 0]]
        valued = ~np.isnan(value)
        row, token, value = row[valued], token[valued], value[valued]
        order = np.argsort(token, kind="stable")
        names, first = np.unique(token[order], return_index=True)
        for name, place in zip(names.tolist(), np.split(order, first[1:]), strict=False):
            parts.setdefault(data.vocabulary.tokens[name], {})[split] = (row[place], value[place])
        for said, column in (("the age", rows.age_years), ("the time since the visit before", rows.delta_days)):
            known = np.flatnonzero(~np.isnan(np.asarray(column)))
            parts.setdefault(said, {})[split] = (known, np.asarray(column)[known])
    return {
        name: _Number(
            {s: r for s, (r, _) in some.items()},
            {s: data.rows[s].subject[r] for s, (r, _) in some.items()},
            {s: v for s, (_, v) in some.items()},
        )
        for name, some in parts.items()
    }


def _auc(number: _Number, label: _Label) -> float:
    """AUC of the number for the label, in whichever direction; .5 where too few subjects have both.

    Every subject counts once on either side, so that one long record decides nothing.
    """
    values, weights = list[Floats](), list[Floats]()
    for part in (label.yes, label.no):
        chosen = {s: part[s][number.rows[s]] for s in number.rows}
        values.append(np.concatenate([number.value[s][chosen[s]] for s in chosen]).astype(np.float64))
        weights.append(np.concatenate([_share(number.subject[s][chosen[s]]) for s in chosen]))
    if min(float(w.sum()) for w in weights) < MIN_EVENTS - 0.5:
        return 0.5
    value, inverse = np.unique(np.concatenate(values), return_inverse=True)
    yes, no = (
        np.bincount(place, weights=weight, minlength=len(value))
        for place, weight in zip(np.split(inverse.reshape(-1), [len(values[0])]), weights, strict=True)
    )
    below = np.cumsum(no) - no
    auc = float((yes * (below + no / 2)).sum() / (yes.sum() * no.sum()))
    return max(auc, 1 - auc)


def _per_subject(data: AuditData, part: dict[str, Bools]) -> dict[str, Floats]:
    """(R,) weights of the chosen rows, which sum to 1 for each subject that has any; 0 elsewhere."""
    out = {}
    for split, chosen in part.items():
        out[split] = np.zeros(len(chosen))
        out[split][chosen] = _share(data.rows[split].subject[chosen])
    return out


def _share(subject: Ints) -> Floats:
    """(n,) one over the number of rows of each row's subject."""
    _, inverse, count = np.unique(subject, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / count[inverse.reshape(-1)])


CHECKS = (Check("telling_token", "Does any single code or number give the outcome away?", telling_token),)
