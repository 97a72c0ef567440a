"""Inputs that say too much: numbers scaled with the future, one telling code, codes without a time; what they matter.

Outcomes are those of the training and tuning subjects; nobody held out is looked at.
"""

from dataclasses import replace

import numpy as np

from ehrsequencing.audit.data import AuditData, Check, Finding, join
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.disclosure import enough_people
from ehrsequencing.metrics.plain import concordance
from ehrsequencing.predictors.cox import CoxRegression, CoxRows
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.history import fit_feature_spec, has_static, history_features
from ehrsequencing.predictors.landmark_cox import LandmarkCox
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.resolve import training_edges

CENTRED = (
    1e-3  # distance of a record's mean from 0, in its standard deviations: values may be rounded
)
CENTRED_SHARE = 0.5  # of the records: a leak
FEWEST_NUMBERS, FEWEST_RECORDS = 4, 10
TELLING_AUC = 0.98
ALSO_AUC = 0.9  # of other codes, which may say the same: left out with the telling one
HIGH_STATIC_AUC, SURE_STATIC_AUC = (
    0.8,
    0.9,
)  # of all codes without a time together: a warning, a leak
MIN_EVENTS = 20  # subjects with and without the event
FEWEST_CARRIERS = 10
MOST_CODES, MOST_STATIC, MOST_PEOPLE = 1000, 200, 10_000
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
        clean = "no record's numbers are scaled with that record"
        return Finding("passed", clean, tested, round(share, 2), CENTRED_SHARE)
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
    """The AUC of each code's presence, and of its last number, at the last prediction time: by then all is known."""
    records, vocabulary = data.fitted, data.vocabulary
    columns = fit_feature_spec(
        records, vocabulary, max_codes=MOST_CODES, max_static_codes=MOST_STATIC
    )
    offsets = records.rows.row_offsets
    last_row = offsets[1:][np.diff(offsets) > 0] - 1
    chosen = np.sort(data.rng(21).permutation(last_row)[:MOST_PEOPLE])
    features = history_features(records, vocabulary, chosen=chosen, columns=columns)
    cause = records.rows.cause[chosen]
    questions = [(name, cause == k) for k, name in enumerate(data.task.causes, start=1)]
    able = [(n, y) for n, y in questions if MIN_EVENTS <= y.sum() <= len(y) - MIN_EVENTS]
    tested = {"subjects": len(chosen), "codes": len(columns.codes), "outcomes": len(able)}
    if not able:
        return Finding("not_tested", FEW_EVENTS, tested)
    best, said = 0.5, "no code says anything"
    tokens = {vocabulary.tokens[k]: k for k in (*columns.codes, *columns.static_codes)}
    suspects = set[int]()
    for name, feature in zip(columns.names, features.T.astype(np.float64), strict=True):
        kind, _, code = name.partition(" ")
        if kind not in ("count", "static", "last"):
            continue
        value = feature if kind == "last" else (feature > 0).astype(np.float64)
        for outcome, event in able:
            auc = _auc(value, event, ~event)
            if auc > ALSO_AUC:
                suspects.add(tokens[code])
            if auc > best:
                best = auc
                shown = data.code_name(tokens[code], int((feature > 0).sum()))
                said = f"{shown} alone predicts {outcome} in the follow-up with an AUC of {auc:.2f}"
    if best <= TELLING_AUC:
        clean = f"no input alone predicts the outcome too well; the best, {said}"
        return Finding("passed", clean, tested, round(best, 2), TELLING_AUC)
    reason = f"suspected: {said}; read how it came to be recorded"
    return Finding("leak", reason, tested, round(best, 2), TELLING_AUC, tuple(sorted(suspects)))


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
    """The AUC of all codes without a time together, by a ridge Cox model of other people (out of fold).

    Those with the event are held against those followed without it for as long as half of the events took, so that a
    code of people who left early, or stayed long, is no finding.
    """
    records, vocabulary = data.fitted, data.vocabulary
    columns = fit_feature_spec(
        records, vocabulary, max_codes=0, max_static_codes=MOST_STATIC, enough=FEWEST_CARRIERS
    )
    tokens, rows = columns.static_codes, records.rows
    able = np.diff(rows.row_offsets) > 0
    first_row = rows.row_offsets[:-1][able]
    x = has_static(records.timelines, tokens)[able].astype(np.float64)
    days, cause = rows.duration_days[first_row], rows.cause[first_row]
    best, said, named, outcomes = 0.5, "nothing", np.zeros(0, np.int64), 0
    for number, name in enumerate(data.task.causes, start=1):
        event = cause == number
        other = ~event & ((cause > 0) | (days >= np.median(days[event] if event.any() else np.inf)))
        if min(event.sum(), other.sum()) < MIN_EVENTS:
            continue
        outcomes += 1
        score, weight = _out_of_fold(data, CoxRows(x, rows.entry_days[first_row], days, event))
        auc = _auc(score, event, other)
        if auc > best:
            best, named = auc, np.flatnonzero(weight > 0.3 * weight.max())[:MOST_NAMED]
            said = f"the codes without a time together predict {name} with an AUC of {auc:.2f}"
    tested = {"subjects": len(x), "codes": len(tokens), "outcomes": outcomes}
    if not len(tokens) or not outcomes:
        return Finding("not_tested", f"no code without a time is frequent, or {FEW_EVENTS}", tested)
    if best <= HIGH_STATIC_AUC:
        return Finding("passed", said, tested, round(best, 2), HIGH_STATIC_AUC)
    names = [data.code_name(tokens[k], int(x[:, k].sum())) for k in named.tolist()]
    return Finding(
        "leak" if best > SURE_STATIC_AUC else "warning",
        f"{said}, above all {', '.join(names)}; a code without a time may have been filled in after the event: "
        "find out when it was recorded, and if it was, name it in visits.ignore",
        tested,
        round(best, 2),
        HIGH_STATIC_AUC,
        tokens,
    )


def _out_of_fold(data: AuditData, rows: CoxRows) -> tuple[Floats, Floats]:
    """(n,) log-hazards by regressions on the other folds, and (F,) the mean size of the coefficients."""
    fold = data.rng(22).integers(0, FOLDS, len(rows.event))
    score, weight = np.zeros(len(fold)), np.zeros(rows.x.shape[1])
    for k in range(FOLDS):
        rest = fold != k
        part = CoxRows(
            rows.x[rest], rows.entry_days[rest], rows.duration_days[rest], rows.event[rest]
        )
        fit = CoxRegression(part).fit(ridge=0.1 * float(part.event.sum()))
        score[~rest] = fit.log_hazard(rows.x[~rest])
        weight += np.abs(fit.beta) / FOLDS
    return score, weight


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
    """Of the model that does not know the `hidden` (V,) tokens."""
    records = {name: _without(part, hidden) for name, part in data.records.items()}
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


def _without(records: TaskRecords, hidden: Bools) -> TaskRecords:
    """The same visits, in which some codes have become unknown."""
    old = records.timelines
    codes = np.where(hidden[old.codes], UNKNOWN, old.codes).astype(np.int32)
    values = np.where(hidden[old.codes][:, None], np.float32(np.nan), old.values)
    static = np.where(hidden[old.static_codes], UNKNOWN, old.static_codes).astype(np.int32)
    timelines = replace(old, codes=codes, values=values, static_codes=static)
    return replace(records, timelines=timelines)


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
    Check(
        "static_codes",
        "Do the codes without a time, which nobody can date, give the outcome away together?",
        static_codes,
    ),
)
