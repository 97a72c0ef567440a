"""Inputs that say too much: numbers scaled with the future, one telling code, codes without a time; what they matter.

Outcomes are those of the training and tuning subjects; nobody held out is looked at.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import ndtri

from ehrsequencing.audit.data import FAMILY, FEWEST_CARRIERS, KINDS, AuditData, Check, Finding, join
from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints
from ehrsequencing.core.disclosure import enough_people
from ehrsequencing.metrics.plain import concordance
from ehrsequencing.predictors.cox import CoxRegression, CoxRows, LandmarkCox
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.labels import potential_days
from ehrsequencing.training.plan import training_edges

CENTRED = (
    1e-3  # distance of a record's mean from 0, in its standard deviations: values may be rounded
)
CENTRED_SHARE = 0.5  # of the records: a leak
FEWEST_NUMBERS, FEWEST_RECORDS = 4, 11
TELLING_AUC = 0.98
AHEAD_AUC, LEAD = 0.85, 0.1  # of a kind of input, and its lead over all others: a warning
#: Of the event, by an input at the first prediction time: a warning, if it is surely more.
SURE_ODDS = 10.0
CUTS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)  # quantiles at which an input is divided into high and low
ALSO_AUC = 0.9  # of other codes, which may say the same: left out with the telling one
HIGH_STATIC_AUC, SURE_STATIC_AUC = (
    0.8,
    0.9,
)  # of all codes without a time together: a warning, a leak
MIN_EVENTS = 20  # subjects with and without the event
LEAVING_AUC = 0.65, 0.75  # of codes without a time, and of all early inputs
NO_CHANCE = 0.001
DATA_END_DAYS = 30.0  # whoever leaves so near the data's end was not lost
SAME_PEOPLE = 0.9  # kappa of having a code without a time, and a timed one …
LATER_SHARE = 0.25  # … that so many have only after the first prediction time
FOLDS = 5
MOST_NAMED = 5
MOST_ROWS = 20_000  # prediction times that the Cox model ranks, drawn at random
UNKNOWN = 1  # the unknown token, of which no feature is made
FEW_EVENTS = f"fewer than {MIN_EVENTS} subjects with, or without, the event"


def whole_record_values(data: AuditData) -> Finding:
    """Whether the numbers of a record, all or those of one code, have mean 0: they were scaled by all of the record."""
    events = join(list(data.source.records.values()))
    rows = np.flatnonzero(~np.isnan(events.value))
    subject, value = events.subject_id[rows], events.value[rows].astype(np.float64)
    token = data.vocabulary.ids(events.codes)[events.code[rows]].astype(np.int64)
    groups = (subject, subject * len(data.vocabulary) + token)
    share = max(_centred_share(group, value) for group in groups)
    tested = {"records": len(np.unique(subject)), "numbers": len(value)}
    if share < 0:
        return Finding("not_tested", "too few records have several numbers", tested)
    if share <= CENTRED_SHARE:
        return Finding(
            "passed",
            "no record's numbers are scaled with that record",
            tested,
            round(share, 2),
            CENTRED_SHARE,
        )
    return Finding(
        "leak",
        f"in {share:.0%} of the records the numbers have mean 0: they were standardised with the whole record, "
        "later numbers included; take the original values, which the software scales on training subjects",
        tested,
        round(share, 2),
        CENTRED_SHARE,
        tuple(np.unique(token).tolist()),
    )


def _centred_share(group: Ints, value: Floats) -> float:
    """The share of groups whose mean is 0, of those with enough numbers that differ; -1 where too few are such."""
    _, place, count = np.unique(group, return_inverse=True, return_counts=True)
    mean = np.bincount(place, value) / count
    sd = np.sqrt(np.bincount(place, (value - mean[place]) ** 2) / count)
    usable = (count >= FEWEST_NUMBERS) & (sd > 0)
    is_zero = np.abs(mean) < CENTRED * sd
    return float(is_zero[usable].mean()) if usable.sum() >= FEWEST_RECORDS else -1.0


def telling_token(data: AuditData) -> Finding:
    """The AUC of each code and number at the first and at the last prediction time; by the last all is known.

    At the first one the number of a code's rows counts, too: later it grows with the follow-up. And there an input
    that few people have may change the odds of the event by more than honest ones do.
    """
    known, rows = data.known, data.fitted.rows
    cause = rows.cause[known.row[1]]
    questions = [(name, cause == k) for k, name in enumerate(data.task.causes, start=1)]
    able = [(n, y) for n, y in questions if MIN_EVENTS <= y.sum() <= len(y) - MIN_EVENTS]
    codes = int((known.kind == "count").sum())
    tested = {"subjects": len(cause), "codes": codes, "outcomes": len(able)}
    if not able:
        return Finding("not_tested", FEW_EVENTS, tested)
    best, said, warned, decided = 0.5, "no code says anything", "", (0.0, AHEAD_AUC)
    suspects = set[int]()
    for number, outcome in enumerate(data.task.causes, start=1):
        odds = sure_odds(known.features[0], *_with_and_without(data, number))
        far = np.flatnonzero(odds > SURE_ODDS)
        if len(far):
            suspects |= {*known.tokens[far].tolist()}
            top = int(odds.argmax())
            decided = round(float(odds[top]), 1), SURE_ODDS
            warned = (
                f"{known.shown(data, [top])}, as it is known at the first prediction time, changes the odds of "
                f"{outcome} at least {odds[top]:.0f}-fold"
            )
    counts = np.isin(known.kind, ("count", FAMILY))
    last = np.where(counts, known.features[1] > 0, known.features[1])
    for moment, features in {"first": known.features[0], "last": last}.items():
        for outcome, event in able:
            auc = np.array([_auc(one.astype(np.float64), event, ~event) for one in features.T])
            top, ahead = int(auc.argmax()), ahead_of_others(auc, cases=int(event.sum()))
            shown = known.shown(data, [top])
            words = (
                f"{shown} alone predicts {outcome} in the follow-up with an AUC of {auc[top]:.2f}"
            )
            suspects |= {*known.tokens[ahead].tolist(), *known.tokens[auc > ALSO_AUC].tolist()}
            if ahead:
                rest = float(np.delete(auc, ahead).max(initial=0.5))
                warned = (
                    f"at the {moment} prediction time {words}, the best other input with {rest:.2f}"
                )
                decided = round(float(auc[top]), 2), AHEAD_AUC
            if auc[top] > best:
                best, said = float(auc[top]), words
    measured, named = round(best, 2), data.members(suspects)
    if best > TELLING_AUC:
        said = f"suspected: {said}; read how it came to be recorded"
        return Finding("leak", said, tested, measured, TELLING_AUC, named)
    if warned:
        warned += "; read how it came to be recorded, and whether for everybody alike"
        return Finding("warning", warned, tested, *decided, named)
    said = f"no input alone predicts the outcome too well; the best, {said}"
    return Finding("passed", said, tested, measured, TELLING_AUC)


def sure_odds(x: Floats32, event: Bools, other: Bools) -> Floats:
    """By how much each input (P, F) surely changes the odds of the event, above against below some quantile.

    Args:
        x: Numbers, NaN where nothing is known, which is below all.
        event: (P,) who has it.
        other: (P,) whom they are held against.

    Returns:
        (F,) the lower end of the odds ratio's 99.9 % interval, or of its inverse; of the clearest quantile.

    >>> x, event = np.repeat(np.array([[0.0], [9.0]], np.float32), 300, axis=0), np.arange(600) % 300 < 40
    >>> event[300:] = ~event[300:]
    >>> sure_odds(x, event, ~event).round(1)
    array([19.8])
    """
    known = np.where(np.isnan(x), -np.inf, x)
    least = np.zeros(x.shape[1])
    for cut in np.quantile(known, CUTS, axis=0, method="lower"):
        high = known > cut
        cells = [
            part.sum(axis=0) + 0.5
            for part in (high[event], ~high[event], high[other], ~high[other])
        ]
        log_odds = np.log(cells[0] * cells[3] / (cells[1] * cells[2]))
        se = np.sqrt(sum(1 / cell for cell in cells))
        least = np.maximum(least, np.abs(log_odds) + ndtri(NO_CHANCE) * se)
    return np.exp(least)


def _with_and_without(data: AuditData, number: int) -> tuple[Bools, Bools]:
    """(P,) whose first prediction time is followed by a cause, and whom they are held against.

    Those are followed without it for as long as half of the events took, so that an input of people who left early, or
    stayed long, is no finding.
    """
    rows, first = data.fitted.rows, data.known.row[0]
    days, cause = rows.duration_days[first], rows.cause[first]
    event = cause == number
    middle = np.median(days[event] if event.any() else np.inf)
    return event, ~event & ((cause > 0) | (days >= middle))


def ahead_of_others(auc: Floats, *, cases: int) -> list[int]:
    """Inputs far ahead of all others by their AUC (F,), the best first; none where they are many.

    With 20 cases, such an AUC has a chance below one in a million by permutation of people.

    >>> ahead_of_others(np.array([0.6, 0.97, 0.72, 0.96]), cases=100)
    [1, 3]
    >>> ahead_of_others(np.array([0.8, 0.88, 0.7, 0.6]), cases=100)
    []
    """
    ranked = np.argsort(-auc, kind="stable")
    by_chance = 1 / np.sqrt(12 * cases)  # standard error of an AUC without any effect
    is_last = -np.diff(auc[ranked], append=0.5) >= LEAD
    is_last &= auc[ranked] > AHEAD_AUC + by_chance
    count = 1 + int(is_last.argmax())
    return ranked[:count].tolist() if is_last.any() and 2 * count <= len(auc) else []


def _auc(value: Floats, yes: Bools, no: Bools) -> float:
    """AUC of a number in whichever direction, ties one half; .5 where too few have one."""
    known = ~np.isnan(value) & (yes | no)
    is_case = yes[known]
    if min(is_case.sum(), (~is_case).sum()) < MIN_EVENTS:
        return 0.5
    _, place = np.unique(value[known], return_inverse=True)
    cases = np.bincount(place[is_case], minlength=int(place.max()) + 1)
    others = np.bincount(place, minlength=len(cases)) - cases
    auc = float(cases @ (np.cumsum(others) - others / 2)) / (int(cases.sum()) * int(others.sum()))
    return max(auc, 1 - auc)


def static_codes(data: AuditData) -> Finding:
    """The AUC of all codes without a time together, by a ridge Cox model of other people (out of fold)."""
    questions = []
    for number, name in enumerate(data.task.causes, start=1):
        said = f"the codes without a time together predict {name}"
        people = _with_and_without(data, number)
        questions.append((said, data.known.frequent("static"), *people, HIGH_STATIC_AUC))
    return _together(
        data,
        questions,
        advice="a code without a time may have been filled in after the event: find out when it was recorded, and if "
        "it was, name it in visits.ignore",
        sure=SURE_STATIC_AUC,
    )


def leaving(data: AuditData) -> Finding:
    """Whether what is known early tells when people without the event leave, as a date of last contact does.

    The earlier half of those who leave before the data's end is held against those who are followed for longer. First
    by the codes without a time, then with what else is known at the first prediction time: how sick somebody is may
    say a little about leaving, so that the second bound is higher. Where the task names no end of follow-up, the last
    row ends it, and nothing is tested.
    """
    known, rows = data.known, data.fitted.rows
    first, days = known.row[0], rows.duration_days[known.row[0]]
    design = potential_days(data.fitted, data.task, data.prepared.manifest["dataset_end_us"])[first]
    end_days = rows.prediction_us[first] / DAY_US + days
    is_free = (rows.cause[first] == 0) & (not data.task.censoring.is_last_event)
    is_lost = is_free & (days < design - 1) & (end_days < end_days.max(initial=0) - DATA_END_DAYS)
    middle = np.median(days[is_lost]) if is_lost.any() else 0.0
    people = is_lost & (days <= middle), is_free & (days > middle)
    said = "who leaves early without an event"
    questions = [
        (f"codes without a time predict {said}", known.frequent("static"), *people, LEAVING_AUC[0]),
        (f"what is known early predicts {said}", known.frequent(*KINDS), *people, LEAVING_AUC[1]),
    ]
    return _together(
        data,
        questions,
        advice="a date of last contact does so, an attribute of a person seldom: find out when it was recorded",
    )


def _together(
    data: AuditData,
    questions: Sequence[tuple[str, Ints, Bools, Bools, float]],
    *,
    advice: str,
    sure: float = 1.0,
) -> Finding:
    """What early inputs say together, by a ridge Cox model of other people, where that is no chance.

    Args:
        data: The run.
        questions: What is said in words, (F,) numbers of inputs, (P,) who is to be predicted, (P,) whom they are held
            against, the AUC above which it is a warning.
        advice: What to do about it.
        sure: The AUC above which it is a leak.
    """
    rows, first = data.fitted.rows, data.known.row[0]
    days, entry = rows.duration_days[first], rows.entry_days[first]
    found = list[tuple[float, float, str, Ints]]()
    for said, columns, event, other, bound in questions:
        yes, no = event.sum(), other.sum()
        if not len(columns) or min(yes, no) < MIN_EVENTS:
            continue
        x = np.nan_to_num(data.known.features[0][:, columns].astype(np.float64))
        fold, score = data.rng(22).integers(0, FOLDS, len(x)), np.zeros(len(x))
        weight = np.zeros(len(columns))
        for k in range(FOLDS):
            rest = fold != k
            part = CoxRows(x[rest], entry[rest], days[rest], event[rest])
            fit = CoxRegression(part).fit(ridge=0.1 * float(part.event.sum()))
            score[~rest] = fit.log_hazard(x[~rest])
            weight += np.abs(fit.beta)
        auc = _auc(score, event, other)
        by_chance = -ndtri(NO_CHANCE) * np.sqrt((yes + no + 1) / (12 * yes * no))
        limit = max(bound, 0.5 + float(by_chance))  # permutations of people stay below
        found.append((auc, limit, said, columns[weight > 0.3 * weight.max()]))
    tested = {"subjects": len(first), "outcomes": len(found)}
    if not found:
        return Finding("not_tested", f"no input is frequent, or {FEW_EVENTS}", tested)
    auc, limit, said, named = max(found, key=lambda one: one[0] - one[1])
    said, measured, limit = f"{said} with an AUC of {auc:.2f}", round(auc, 2), round(limit, 2)
    if auc <= limit:
        return Finding("passed", said, tested, measured, limit)
    reason = f"{said}, above all {data.known.shown(data, named[:MOST_NAMED].tolist())}; {advice}"
    tokens = tuple(np.unique(data.known.tokens[named]).tolist())
    return Finding("leak" if auc > sure else "warning", reason, tested, measured, limit, tokens)


def immortal_time(data: AuditData) -> Finding:
    """Whether the very people with a code without a time have a timed one, many only after the first prediction time.

    Whoever has such a code must have lived until then.
    """
    known = data.known
    static, timed = known.frequent("static"), known.kind == "count"
    tested = {"subjects": len(known.row[0]), "codes": len(static)}
    if not len(static):
        return Finding("not_tested", "no code without a time is frequent", tested)
    has = known.features[0][:, static].astype(np.float64)
    early, ever = ((part[:, timed] > 0).astype(np.float64) for part in known.features)
    is_late = (ever - early).sum(axis=0) >= np.maximum(
        FEWEST_CARRIERS, LATER_SHARE * ever.sum(axis=0)
    )
    own, other = has.mean(axis=0)[:, None], ever.mean(axis=0)
    differ, by_chance = own + other - 2 * has.T @ ever / len(has), own + other - 2 * own * other
    kappa = np.where(is_late, 1 - differ / np.maximum(by_chance, 1e-9), 0.0).max(
        axis=1, initial=0.0
    )
    measured, named = round(float(kappa.max()), 2), static[kappa > SAME_PEOPLE].tolist()
    if not named:
        return Finding(
            "passed",
            "no code without a time stands for one that is stamped later",
            tested,
            measured,
            SAME_PEOPLE,
        )
    reason = (
        f"those with {known.shown(data, named[:MOST_NAMED])} are those with a code that many have only after the first "
        "prediction time: whoever has it must have lived until then; give it its time, or name it in visits.ignore"
    )
    tokens = tuple(known.tokens[named].tolist())
    return Finding("warning", reason, tested, measured, SAME_PEOPLE, tokens)


# ---- how much suspicious codes matter ------------------------------------------------------------------------------


def importance(data: AuditData, suspects: tuple[int, ...]) -> dict[str, dict[str, float]] | None:
    """C of the first cause by the last horizon, and mean NLL, at prediction times of the audited split.

    Returns:
        `c` and `nll`, each `with` and `without` the suspects; None where fewer than 11 people have, or have not, the
        event.
    """
    rows = data.records[data.split].rows
    events = len(np.unique(rows.subject[rows.cause == 1]))
    if not enough_people(events, len(np.unique(rows.subject))):
        return None
    hidden = np.isin(data.vocabulary.base, suspects)
    scores_of = {"with": _fit(data, np.zeros_like(hidden)), "without": _fit(data, hidden)}
    return {name: {key: scores[name] for key, scores in scores_of.items()} for name in ("c", "nll")}


def _fit(data: AuditData, hidden: Bools) -> dict[str, float]:
    """Of the model of the same visits in which the `hidden` (V,) tokens have become unknown."""
    records = {}
    for name, part in data.records.items():
        old, hides = part.timelines, hidden[part.timelines.codes]
        static = np.where(hidden[old.static_codes], UNKNOWN, old.static_codes).astype(np.int32)
        timelines = replace(
            old,
            codes=np.where(hides, UNKNOWN, old.codes).astype(np.int32),
            values=np.where(hides[:, None], np.float32(np.nan), old.values),
            static_codes=static,
        )
        records[name] = replace(part, timelines=timelines)
    edges = training_edges(data.prepared, data.task, bins=data.run.study.training.grid_bins)
    fitting = FittingData(data.task, data.vocabulary, records["train"], records["tuning"], edges)
    model, judged = LandmarkCox(fitting), records[data.split]
    chosen = fitting.draw(np.arange(len(judged)), MOST_ROWS)
    horizon = data.task.horizons[-1]
    risk = model.risk(judged, [horizon])[chosen, 0, 0]
    c = concordance(
        judged.rows.duration_days[chosen], judged.rows.cause[chosen], risk, horizon=horizon
    )
    return {"c": round(c, 3), "nll": round(float(model.nll(judged)[chosen].mean()), 4)}


def sentence(scores: dict[str, dict[str, float]] | None) -> str:
    """What `importance` found, for people."""
    if scores is None:
        return "too few people have the event to say how much this matters"
    c, nll = scores["c"], scores["nll"]
    return (
        f"with the suspicious codes a Cox model has C {c['with']:.2f} and an NLL of {nll['with']:.3f}, "
        f"without them C {c['without']:.2f} and {nll['without']:.3f}"
    )


CHECKS = (
    Check(
        "whole_record_values",
        "Were the numbers of a record scaled with its own later numbers?",
        whole_record_values,
        needs_records=True,
    ),
    Check("telling_token", "Does any single code or number give the outcome away?", telling_token),
    Check("leaving", "Does what is known early tell when people without the event leave?", leaving),
    Check(
        "immortal_time",
        "Do the very people with a code without a time have one that is stamped later?",
        immortal_time,
    ),
    Check(
        "static_codes",
        "Do the codes without a time, which nobody can date, give the outcome away together?",
        static_codes,
    ),
)
