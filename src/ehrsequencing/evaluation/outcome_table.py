"""Every outcome of a run on one page of numbers: events, AUC within sex and age, C, O/E, each with its interval.

Outcomes with fewer than 50 events are pooled: their own numbers would be noise, and would tell of few people.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch

from ehrsequencing.config import EvaluationConfig
from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints
from ehrsequencing.core.disclosure import rounded
from ehrsequencing.core.files import Shareable
from ehrsequencing.evaluation.population import drawn_subjects
from ehrsequencing.evaluation.subgroups import groups_of_rows
from ehrsequencing.metrics.bootstrap import bootstrap_subjects, scaled_interval
from ehrsequencing.metrics.censoring import divide
from ehrsequencing.metrics.discrimination import stratified_auc, wolbers_c
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.models.hazards import exposure
from ehrsequencing.models.outcomes import OutcomeHead, onset_risk
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.network import states_of_rows
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.outcomes import outcome_labels
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import OutcomeEvents
from ehrsequencing.results.redaction import redact_rows

FEWEST_EVENTS = 50  # subjects with the event, below which an outcome has no line of its own
# a case is predicted at least so long before its event, as in Delphi-2M's evaluation
GAP_DAYS = 36.5
BAND_YEARS = 5
MOST_RESAMPLES = 200
_CODES_AT_ONCE = 32
Progress = Callable[[int, int], None]


def evaluate_outcomes(
    run: Run,
    prepared: Prepared,
    *,
    split: str,
    settings: EvaluationConfig,
    progress: Progress = lambda done, total: None,
) -> Shareable[dict[str, Any]]:
    """The table of all outcomes, as it may be shared.

    - `events`: subjects with the event within the last horizon after a landmark.
    - `auc`: mean over strata of sex and 5-year age bands. A case is a subject with the event, at its last prediction
      time at least 36.5 days before; a control is a subject without it, at one random prediction time a band. Scores
      are risks within the first horizon.
    - `c`: Wolbers' C by the last horizon at each landmark, averaged with the landmarks' events as weights.
    - `oe`: events seen within the last horizon after each landmark over those expected, the sum of cumulative hazards
      until each row's exposure ends. Their difference is a martingale, so censoring does not bias it.

    Args:
        run: With outcomes.
        prepared: What it was trained on.
        split: Whose subjects.
        settings: `bootstrap` (at most 200 resamples are drawn here), `seed` and `subjects`.
        progress: Called with (outcomes done, outcomes).

    Returns:
        `outcomes`: one entry each for those with 50 events or more, the best AUC first; `pooled`: the others together,
        with the people who had any of them; `summary`; and what the numbers are of. Each number has its own people:
        `events` of `subjects`.
    """
    rows = OutcomeRows(run, prepared, split, settings)
    outcomes, people, subjects = list[dict[str, Any]](), set[int](), 0
    rare = np.zeros(
        (4, 1 + rows.resamples)
    )  # Σ cases × AUC, cases, observed and expected events of rare outcomes
    for done, one in enumerate(rows.outcomes(), start=1):
        events, auc, cases = len(one["had"]), one["auc"], one["cases"]
        if events >= FEWEST_EVENTS:
            # the mean over strata, each with weight 1 (Delphi-2M, Shmatko et al. 2025)
            mean = divide(np.nansum(auc, axis=0), (~np.isnan(auc)).sum(axis=0))
            had = int(cases[:, 0].sum())
            ratio = divide(one["observed"], one["expected"])
            outcomes.append(
                {
                    "code": run.outcomes[one["number"]],
                    "events": events,
                    "auc": _estimate(mean, had, had + one["others"]),
                    "c": _estimate(one["c"], events, one["subjects"]),
                    "oe": _estimate(ratio, events, one["subjects"], is_share=False),
                }
            )
        else:
            won = (np.nan_to_num(auc) * cases).sum(axis=0)
            rare += won, cases.sum(axis=0), one["observed"], one["expected"]
            people.update(one["had"].tolist())
            subjects = one["subjects"]
        progress(done, len(run.outcomes))
    outcomes.sort(key=lambda row: -(row["auc"]["value"] or 0.0))
    pooled: dict[str, Any] = {"outcomes": len(run.outcomes) - len(outcomes)}
    if pooled["outcomes"]:
        won, cases, observed, expected = rare
        auc = _estimate(divide(won, cases), len(people), subjects)
        oe = _estimate(divide(observed, expected), len(people), subjects, is_share=False)
        pooled |= {"events": len(people), "auc": auc, "oe": oe}
    result: dict[str, Any] = {
        "task": run.task.name,
        "split": split,
        "outcomes": outcomes,
        "pooled": pooled,
        "fewest_events": FEWEST_EVENTS,
        "subjects": len(rows.subject_ids),
        "horizons_days": [rows.near_days, rows.far_days],
        "resamples": rows.resamples,
        "strata": ["sex", "age"] if rows.has_sex else ["age"],
    }
    shared = redact_rows(result, is_simulated=bool(prepared.manifest.get("simulated")))
    shared.content["summary"] = summary(shared.content["outcomes"])
    return shared


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median AUC, and how many O/E lie within .9 to 1.1; with events as they are, even true hazards miss that often."""
    aucs = [row["auc"]["value"] for row in rows if row["auc"]["value"] is not None]
    ratios = np.array([row["oe"]["value"] for row in rows if row["oe"]["value"] is not None])
    limits = [(row["oe"]["low"], row["oe"]["high"]) for row in rows]
    held = [low <= 1 <= high for low, high in limits if low is not None and high is not None]
    rng = np.random.default_rng(0)
    drawn = [rng.poisson(row["events"], 2000) / row["events"] for row in rows]
    return rounded(
        {
            "outcomes": len(rows),
            "median_auc": float(np.median(aucs)) if aucs else None,
            "oe_within_10_percent": float(np.mean(np.abs(ratios - 1) <= 0.1))
            if len(ratios)
            else None,
            "oe_within_10_percent_if_true": float(np.mean(np.abs(np.array(drawn) - 1) <= 0.1))
            if drawn
            else None,
            "oe_intervals_that_hold_1": float(np.mean(held)) if held else None,
        }
    )


#: One outcome, with estimates of the whole (first entry) and of every resample: its `number`; subjects who `had` the
#: event within the last horizon after a landmark, of `subjects` at landmarks; `others` who never have it, the controls;
#: `auc` (strata, 1 + resamples), NaN without a case or a control, of so many `cases`; `c`, NaN where not computed;
#: events `observed` at landmarks within the last horizon, and `expected`.
OneOutcome = dict[str, Any]


class OutcomeRows:
    """The prediction times of a split, and which of them each number of an outcome is computed on."""

    def __init__(
        self, run: Run, prepared: Prepared, split: str, settings: EvaluationConfig
    ) -> None:
        self.run, self.model = run, run.model
        whole = prepared.outcome_records(run.task.name, split)
        chosen = drawn_subjects(whole, settings)
        self.records = whole if chosen is None else whole.take(chosen)
        self.rows, self.edges = self.records.rows, run.model.config.edges_days
        self.subject = self.rows.subject
        self.subject_ids = np.unique(self.subject)
        self.near_days, self.far_days = run.task.horizons[0], run.task.horizons[-1]
        self.resamples = min(settings.bootstrap, MOST_RESAMPLES)
        drawn = (
            list(bootstrap_subjects(self.subject_ids, self.resamples, settings.seed))
            if self.resamples
            else []
        )
        weights = np.zeros((1 + self.resamples, int(self.subject.max()) + 1))
        weights[:, self.subject_ids] = np.concatenate([np.ones((1, len(self.subject_ids))), *drawn])
        self.weights = weights
        every = np.arange(len(self.rows))
        listed = outcome_labels(cast(OutcomeEvents, self.records.outcomes), self.rows, every)
        order = np.lexsort((listed.row, listed.code))
        self.listed_row, self.listed_days = listed.row[order], listed.days[order]
        self.bounds = np.searchsorted(listed.code[order], np.arange(len(run.outcomes) + 1))
        self.landmarks = [self.records.at_landmark(days) for days in run.task.landmarks]
        self.at_landmarks = np.concatenate(self.landmarks)  # one landmark after another
        groups = groups_of_rows(self.records, run.vocabulary, chosen=every)
        self.has_sex = "sex" in groups
        sex = (
            np.unique(groups["sex"], return_inverse=True)[1].reshape(-1)
            if self.has_sex
            else np.zeros(len(every))
        )
        age = self.rows.age_years
        band = np.where(np.isnan(age), -1, np.nan_to_num(age) // BAND_YEARS).astype(np.int64)
        self.stratum = np.where(
            band < 0, -1, band * (int(sex.max(initial=0)) + 1) + sex.astype(np.int64)
        )
        # one random row of every subject in each stratum; none where the age is unknown
        order = np.random.default_rng([settings.seed, len(every)]).permutation(len(every))
        order = order[self.stratum[order] >= 0]
        key = self.subject[order] * (int(self.stratum.max(initial=0)) + 1) + self.stratum[order]
        self.control_rows = np.sort(order[np.unique(key, return_index=True)[1]])

    def outcomes(self) -> Iterator[OneOutcome]:
        """One outcome after another; hazards of a few exist at once."""
        states, causes = states_of_rows(self.model, self.records, code_types=self.run.code_types)
        at_landmarks, n_outcomes = (
            states[torch.from_numpy(self.at_landmarks)],
            len(self.run.outcomes),
        )
        for start in range(0, n_outcomes, _CODES_AT_ONCE):
            codes = np.arange(start, min(start + _CODES_AT_ONCE, n_outcomes))
            risk = self._risk(states, causes, codes)
            with torch.no_grad():
                own = cast(OutcomeHead, self.model.outcomes).log_hazards(
                    at_landmarks, torch.from_numpy(codes)
                )
                hazards = own.exp()
            for place, number in enumerate(codes.tolist()):
                yield self._outcome(number, risk[:, place], hazards[:, place])

    def _risk(self, states: torch.Tensor, causes: torch.Tensor, codes: Ints) -> Floats32:
        """(R, c, 2) by the first and the last horizon."""
        out = np.zeros((len(self.rows), len(codes), 2), dtype=np.float32)
        days, chosen = [self.near_days, self.far_days], torch.from_numpy(codes)
        start_days = self.run.task.blanking
        with torch.no_grad():
            for low in range(0, len(out), 4096):
                part = slice(low, low + 4096)
                own = cast(OutcomeHead, self.model.outcomes).log_hazards(states[part], chosen)
                risk = onset_risk(
                    own, causes[part], self.edges, horizons_days=days, start_days=start_days
                )
                out[part] = risk.numpy()
        return out

    def _outcome(self, number: int, risk: Floats32, hazards: torch.Tensor) -> OneOutcome:
        listed = slice(self.bounds[number], self.bounds[number + 1])
        row, days = self.listed_row[listed], self.listed_days[listed]
        stop, is_event = np.array(self.rows.duration_days), np.zeros(len(self.rows), dtype=bool)
        stop[row], is_event[row] = days, days > 0
        at = self.at_landmarks
        until = np.minimum(stop[at], self.far_days)
        entry = np.minimum(np.asarray(self.rows.entry_days[at], dtype=np.float64), until)
        own = exposure(self.edges, torch.from_numpy(entry), torch.from_numpy(until))
        expected = (hazards.double() * own).sum(1).numpy()
        seen = is_event[at] & (stop[at] <= self.far_days)
        per_subject = self.weights[:, self.subject[at]]
        had = np.unique(self.subject[at][seen])
        c = np.full(len(self.weights), np.nan)
        if len(had) >= FEWEST_EVENTS:
            c = self._c(risk[:, 1], stop, is_event)
        auc, cases = self.auc(number, risk[:, 0])
        return {
            "number": number,
            "had": had,
            "subjects": len(np.unique(self.subject[at])),
            "others": len(self.subject_ids) - len(np.unique(self.subject[row])),
            "auc": auc,
            "cases": cases,
            "c": c,
            "observed": per_subject @ seen.astype(np.float64),
            "expected": per_subject @ expected,
        }

    def auc(self, number: int, score: Floats32) -> tuple[Floats, Floats]:
        """AUC within sex and age of anybody's scores.

        Cases are at their last prediction time well before the event, controls at one prediction time a stratum.

        Args:
            number: Of the outcome.
            score: (R,) at every prediction time; greater means sooner.
        """
        listed = slice(self.bounds[number], self.bounds[number + 1])
        row, days = self.listed_row[listed], self.listed_days[listed]
        has_pair = np.zeros(self.weights.shape[1], dtype=bool)
        has_pair[self.subject[row]] = True
        first = (
            np.flatnonzero(np.r_[True, np.diff(self.subject[row]) != 0])
            if len(row)
            else np.zeros(0, np.int64)
        )
        row, days = row[first][days[first] > 0], days[first][days[first] > 0]
        latest = self.rows.prediction_us[row] + np.round((days - GAP_DAYS) * DAY_US).astype(
            np.int64
        )
        case = np.array(
            [
                low + np.searchsorted(self.rows.prediction_us[low:high], moment, side="right") - 1
                for low, high, moment in zip(
                    row, self.rows.row_offsets[self.subject[row] + 1], latest, strict=True
                )
            ],
            dtype=np.int64,
        )
        case = case[case >= row]  # the subject's first prediction time may be too near to the event
        control = self.control_rows[~has_pair[self.subject[self.control_rows]]]
        rows, is_case = np.r_[case, control], np.arange(len(case) + len(control)) < len(case)
        known = self.stratum[rows] >= 0
        rows, is_case = rows[known], is_case[known]
        own = score[rows].astype(np.float64)
        return stratified_auc(own, self.stratum[rows], self.subject[rows], is_case, self.weights)

    def _c(self, risk: Floats32, stop: Floats, is_event: Bools) -> Floats:
        """(1 + resamples,) Wolbers' C of each landmark, averaged with its events as weights."""
        won, total = np.zeros(len(self.weights)), np.zeros(len(self.weights))
        for rows in self.landmarks:
            at = rows[stop[rows] > self.rows.entry_days[rows]]  # at risk
            cause = np.where(is_event[at], 1, np.where(self.rows.cause[at] > 0, 2, 0))
            seen = is_event[at] & (stop[at] <= self.far_days)
            if not seen.any():
                continue
            both = np.zeros((len(at), 2, 1))
            both[:, 0, 0] = risk[at]
            weights = self.weights[:, self.subject[at]]
            c = wolbers_c(ScoredRows.of(stop[at], cause, both, [self.far_days], weights=weights))[
                :, 0, 0
            ]
            count = np.where(np.isnan(c), 0.0, weights @ seen.astype(np.float64))
            won, total = won + np.nan_to_num(c) * count, total + count
        return divide(won, total)


def _estimate(
    values: Floats, events: int, subjects: int, *, is_share: bool = True
) -> dict[str, Any]:
    """The whole's value, its interval over the resamples, and of how many people it is."""
    low, high = scaled_interval(values[0], values[1:], "logit" if is_share else "log")
    shown = [None if np.isnan(x) else round(float(x), 4) for x in (values[0], low, high)]
    return {
        "value": shown[0],
        "low": shown[1],
        "high": shown[2],
        "events": events,
        "subjects": subjects,
    }
