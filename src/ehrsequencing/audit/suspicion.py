"""Checks whether one token, number or undated code predicts the outcome almost perfectly, which suggests a leak."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ehrsequencing.audit.data import FITTED, SPLITS, AuditData, Check, Finding, Verdict
from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints, ragged
from ehrsequencing.records.timelines import TaskRows

TELLING_AUC = 0.98
HIGH_STATIC_AUC, SURE_STATIC_AUC = 0.8, 0.9  # of a code without a time: a warning, a leak
MIN_EVENTS = 20  # subjects with and without the event


@dataclass(frozen=True)
class _Label:
    """One yes-or-no question to every row of every split."""

    name: str  # in words
    yes: dict[str, Bools]  # split → (R,) had the event
    no: dict[str, Bools]  # split → (R,) is known not to have had it


def _labels(data: AuditData) -> Iterator[_Label]:
    """Each cause by the first horizon, by the last, and at any time in the follow-up."""
    limits = {
        f"within {days:g} days": days for days in (data.task.horizons[0], data.task.horizons[-1])
    }
    for number, cause in enumerate(data.task.causes, start=1):
        for words, days in {**limits, "in the follow-up": np.inf}.items():
            yes, no = {}, {}
            for split in SPLITS:
                duration, which = (
                    data.records[split].rows.duration_days,
                    data.records[split].rows.cause,
                )
                yes[split] = (which == number) & (duration <= days)
                no[split] = ~yes[split] & ((duration > days) | (which > 0) | np.isinf(days))
            yield _Label(f"{cause} {words}", yes, no)
            # by then all is known that ever will be
            newest = {split: _newest(data.records[split].rows) for split in SPLITS}
            yield _Label(
                f"{cause} {words}, at the last prediction time",
                {s: yes[s] & newest[s] for s in yes},
                {s: no[s] & newest[s] for s in no},
            )


def _newest(rows: TaskRows) -> Bools:
    """(R,) each subject's last prediction time."""
    subject = rows.subject
    return np.asarray(np.r_[subject[1:] != subject[:-1], True][: len(subject)], dtype=np.bool_)


def telling_token(data: AuditData) -> Finding:
    """The AUC of each token's presence, and of each number among the inputs, for the outcome."""
    numbers = _numbers(data)
    best, best_name, best_label, labels = 0.5, "", "", 0
    for label in _labels(data):
        weights = [_per_subject(data, part) for part in (label.yes, label.no)]
        people = [sum(float(w.sum()) for w in weight.values()) for weight in weights]
        if min(people) < MIN_EVENTS - 0.5:
            continue
        labels += 1
        share = np.stack(
            [
                sum(data.presence[s].weight_with(weight[s], len(data.vocabulary)) for s in SPLITS)
                / total
                for weight, total in zip(weights, people, strict=True)
            ]
        )
        auc = 0.5 + 0.5 * np.abs(share[0] - share[1])
        found = [(float(auc.max()), data.vocabulary.tokens[int(auc.argmax())])]
        found += [(_auc(number, label), name) for name, number in numbers.items()]
        top, name = max(found)
        if top > best:
            best, best_name, best_label = top, name, label.name
    tested = {"tokens and numbers": len(data.vocabulary) + len(numbers), "outcomes": labels}
    if not labels:
        return Finding(
            "not_tested", f"fewer than {MIN_EVENTS} subjects with, or without, the event", tested
        )
    said = f"{best_name!r} alone predicts {best_label} with an AUC of {best:.3f}"
    if best > TELLING_AUC:
        return Finding(
            "leak", f"suspected: {said}; read how it came to be recorded", tested, best, TELLING_AUC
        )
    return Finding(
        "passed",
        f"no input alone predicts the outcome too well; the best, {said}",
        tested,
        best,
        TELLING_AUC,
    )


def static_codes(data: AuditData) -> Finding:
    """The AUC of carrying each code without a time, for the event: of each cause, and of any.

    A person counts once. Two labels are asked: the event at any time in the follow-up against none, and the event by
    the median time of the events against those known to have had none until then. The lower AUC counts, so that a
    code which goes with a longer follow-up is no finding. An AUC below ½ counts as its mirror image.
    """
    pairs = _static_pairs(data)
    tested = {"codes": len(np.unique(pairs[1])), "outcomes": 0}
    if not tested["codes"]:
        return Finding("not_tested", "no code of these records is without a time", tested)
    size, best, best_name, best_cause = len(data.vocabulary), 0.5, "", ""
    for words, ever, by_median in _people(data):
        if min(len(part) for part in ever) < MIN_EVENTS:
            continue
        tested["outcomes"] += 1
        gain = _gain(pairs, ever, size)
        if len(by_median[1]) >= MIN_EVENTS // 2:
            early = _gain(pairs, by_median, size)
            gain = np.where(
                gain * early > 0, np.sign(gain) * np.minimum(np.abs(gain), np.abs(early)), 0.0
            )
        top = int(np.abs(gain).argmax())
        if 0.5 + abs(gain[top]) > best:
            best, best_name, best_cause = 0.5 + abs(gain[top]), data.vocabulary.tokens[top], words
    if not tested["outcomes"]:
        return Finding(
            "not_tested", f"fewer than {MIN_EVENTS} subjects with, or without, the event", tested
        )
    said = f"{best_name!r} alone predicts {best_cause} with an AUC of {best:.3f}"
    if best > HIGH_STATIC_AUC:
        verdict: Verdict = "leak" if best > SURE_STATIC_AUC else "warning"
        why = f"{said}; a code without a time may have been filled in after the event: find out when it was recorded, "
        return Finding(
            verdict, f"{why}and if it was, name it in visits.ignore", tested, best, HIGH_STATIC_AUC
        )
    clean = "no code without a time gives the outcome away" + (
        f"; the best, {said}" if best_name else ""
    )
    return Finding("passed", clean, tested, best, HIGH_STATIC_AUC)


def _static_pairs(data: AuditData) -> tuple[Ints, Ints]:
    """Person and token of each code without a time; persons are counted on from split to split."""
    owners, tokens, people = list[Ints](), list[Ints](), 0
    for split in FITTED:
        timelines = data.records[split].timelines
        owners.append(people + timelines.static_owner)
        tokens.append(timelines.static_codes.astype(np.int64))
        people += len(timelines)
    return np.concatenate(owners), np.concatenate(tokens)


def _people(data: AuditData) -> Iterator[tuple[str, tuple[Ints, Ints], tuple[Ints, Ints]]]:
    """Each cause in words, with people with and without it: in all their follow-up, and by the events' median time."""
    first_person, cause, days, person = 0, list[Ints](), list[Floats](), list[Ints]()
    for split in FITTED:
        rows = data.records[split].rows
        offsets = rows.row_offsets
        asked = np.flatnonzero(np.diff(offsets) > 0)
        first = offsets[asked]
        person.append(first_person + asked)
        cause.append(rows.cause.astype(np.int64)[first])
        days.append(rows.duration_days[first])
        first_person += len(data.records[split].timelines)
    who, which, when = np.concatenate(person), np.concatenate(cause), np.concatenate(days)
    events = {name: which == number for number, name in enumerate(data.task.causes, start=1)}
    if len(events) > 1:
        events[" or ".join(events)] = which > 0
    for name, event in events.items():
        median = float(np.median(when[event])) if event.any() else 0.0
        soon = event & (when <= median)
        known = (when >= median) | ((which > 0) & ~event)
        yield name, (who[event], who[~event]), (who[soon], who[known & ~soon])


def _gain(pairs: tuple[Ints, Ints], people: tuple[Ints, Ints], n_tokens: int) -> Floats:
    """(V,) AUC − ½ of carrying each code, for those with the event against those without."""
    owner, token = pairs
    share = [
        np.bincount(token[np.isin(owner, some)], minlength=n_tokens) / len(some) for some in people
    ]
    return 0.5 * (share[0] - share[1])


@dataclass(frozen=True)
class _Number:
    """A number among the inputs of some rows: split → rows, their subjects, and the number."""

    rows: dict[str, Ints]
    subject: dict[str, Ints]
    value: dict[str, Floats32]


def _numbers(data: AuditData) -> dict[str, _Number]:
    """Values of the newest visit's codes, carried summaries, age and gap, by name."""
    parts: dict[str, dict[str, tuple[Ints, Floats32]]] = {}
    for split in SPLITS:
        records = data.records[split]
        timelines, rows = records.timelines, records.rows
        everyone = np.arange(len(rows))
        seen = rows.visits_before.astype(np.int64)
        some = everyone[seen > 0]
        newest = records.first_visit[some] + seen[some] - 1
        codes, offsets = ragged(timelines.visit_offsets, newest)
        row = np.r_[
            np.repeat(some, np.diff(offsets)), np.repeat(everyone, np.diff(rows.carry_offsets))
        ]
        token = np.r_[timelines.codes[codes], rows.carry_codes]
        value = np.r_[timelines.values[codes, 0], rows.carry_values[:, 0]]
        valued = ~np.isnan(value)
        row, token, value = row[valued], token[valued], value[valued]
        order = np.argsort(token, kind="stable")
        names, first = np.unique(token[order], return_index=True)
        for name, place in zip(names.tolist(), np.split(order, first[1:]), strict=False):
            parts.setdefault(data.vocabulary.tokens[name], {})[split] = (row[place], value[place])
        for said, column in (
            ("the age", rows.age_years),
            ("the time since the visit before", rows.delta_days),
        ):
            known = np.flatnonzero(~np.isnan(column))
            parts.setdefault(said, {})[split] = (known, column[known])
    return {
        name: _Number(
            {s: r for s, (r, _) in some.items()},
            {s: data.records[s].rows.subject[r] for s, (r, _) in some.items()},
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
        values.append(
            np.concatenate([number.value[s][chosen[s]] for s in chosen]).astype(np.float64)
        )
        weights.append(np.concatenate([_share(number.subject[s][chosen[s]]) for s in chosen]))
    if min(float(w.sum()) for w in weights) < MIN_EVENTS - 0.5:
        return 0.5
    value, inverse = np.unique(np.concatenate(values), return_inverse=True)
    yes, no = (
        np.bincount(place, weights=weight, minlength=len(value))
        for place, weight in zip(
            np.split(inverse.reshape(-1), [len(values[0])]), weights, strict=True
        )
    )
    below = np.cumsum(no) - no
    auc = float((yes * (below + no / 2)).sum() / (yes.sum() * no.sum()))
    return max(auc, 1 - auc)


def _per_subject(data: AuditData, part: dict[str, Bools]) -> dict[str, Floats]:
    """(R,) weights of the chosen rows, which sum to 1 for each subject that has any; 0 elsewhere."""
    out = {}
    for split, chosen in part.items():
        out[split] = np.zeros(len(chosen))
        out[split][chosen] = _share(data.records[split].rows.subject[chosen])
    return out


def _share(subject: Ints) -> Floats:
    """(n,) one over the number of rows of each row's subject."""
    _, inverse, count = np.unique(subject, return_inverse=True, return_counts=True)
    return 1.0 / count[inverse.reshape(-1)]


CHECKS = (
    Check("telling_token", "Does any single code or number give the outcome away?", telling_token),
    Check(
        "static_codes",
        "Does a code without a time, which nobody can date, give the outcome away?",
        static_codes,
    ),
)
