"""A file of predictions as a source of risks: its rows are matched to the prediction times of a cohort, and checked.

| what is wrong | what happens |
|---|---|
| a column, a cause of the task or a horizon of the task is missing | error |
| a risk outside [0, 1], or not a number | error |
| two rows for one prediction time, cause and horizon | error |
| a prediction time with some of its causes and horizons | error |
| `start_days` that is not the task's blanking | error |
| somebody at risk at a landmark has no prediction | error |
| a prediction time between landmarks has no prediction | warning with the count; only landmarks are evaluated |
| prediction times outside the split or cohort, causes that are not the task's | ignored; warning with the count |
| risks that fall with the horizon, causes that sum to more than 1 | warning with the count; no likelihood |
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ehrsequencing.config import TaskConfig, format_days
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT, count_text
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.population import RowFinder
from ehrsequencing.evaluation.risk_source import RiskSource, nll_through, risk_through
from ehrsequencing.metrics.outcomes import ROUNDING
from ehrsequencing.prediction.prediction_file import RiskTable
from ehrsequencing.records.timelines import TaskRecords

# Horizons from which the curve through them has nearly the model's likelihood: in the simulator's default world five
# evenly spaced ones keep 97 % of what the true hazards gain over the cohort's, three 89 %, one 75 %.
FEWEST_KNOTS = 5
_SAME_DAYS = 1e-6  # relative difference up to which two horizons are the same


@dataclass(frozen=True)
class Matched:
    """The risks of a file at the prediction times of a cohort.

    Attributes:
        horizons_days: (H,) every horizon of the file, rising.
        risk: (R, causes, H), NaN at prediction times without one.
        warnings: What was ignored.
    """

    horizons_days: Floats
    risk: Floats
    warnings: list[str]

    @property
    def answered(self) -> Bools:
        """(R,) which prediction times have a prediction."""
        return np.asarray(~np.isnan(self.risk[:, 0, 0]), dtype=np.bool_)


def match(
    table: RiskTable,
    records: TaskRecords,
    task: TaskConfig,
    *,
    path: Path,
) -> Matched:
    """Find the risks of each prediction time, and refuse what cannot be evaluated.

    Args:
        table: The file.
        records: The prediction times that are evaluated.
        task: The question.
        path: The file, for messages.

    Raises:
        EhrseqError: See the table at the top of this file.
    """
    where, causes, warnings = str(path), task.causes, list[str]()
    if not ((table.risk >= -ROUNDING) & (table.risk <= 1 + ROUNDING)).all():
        bad = int((~((table.risk >= -ROUNDING) & (table.risk <= 1 + ROUNDING))).sum())
        raise EhrseqError(
            f"{bad:,} risks are outside 0..1",
            where=where,
            fix="a risk is a probability, not percent",
        )
    if table.start_days is None and task.blanking:
        fix = f"give it the column start_days: risks must be given no event in the {format_days(task.blanking)}"
        raise EhrseqError(
            "does not tell from when its risks count",
            where=where,
            fix=f"{fix} of the task's blanking",
        )
    if table.start_days is not None and abs(table.start_days - task.blanking) > _SAME_DAYS:
        what = f"its risks are given no event for {format_days(table.start_days)}, the task's for"
        raise EhrseqError(
            f"{what} {format_days(task.blanking)}", where=where, fix="use the task's blanking"
        )
    absent = [name for name in causes if name not in table.causes]
    if absent:
        fix = f"the task's causes are {', '.join(causes)}; a cause that you do not model can have its mean risk"
        raise EhrseqError(f"has no risk of {', '.join(absent)}", where=where, fix=fix)
    place = np.array([causes.index(name) if name in causes else -1 for name in table.causes])[
        table.cause
    ]
    if (place < 0).any():
        known = sum(name not in causes for name in table.causes)
        warnings.append(
            f"{int((place < 0).sum()):,} rows of {known} causes that the task does not have are ignored."
        )
    owner = RowFinder(records)(table.subject_id, table.prediction_us)
    chosen = np.flatnonzero((owner >= 0) & (place >= 0))
    if not len(chosen):
        fix = "check subject_id and prediction_time: cohort.parquet of ehrseq prepare lists those of the task"
        raise EhrseqError("has no prediction for anybody of the cohort", where=where, fix=fix)
    horizons, column = _horizons(table.horizon_days[chosen], task, where)
    shape = (len(records), len(causes), len(horizons))
    flat = np.ravel_multi_index((owner[chosen], place[chosen], column), shape)
    if len(np.unique(flat)) < len(flat):
        twice = len(flat) - len(np.unique(flat))
        what = f"{twice:,} rows have the subject, prediction time, cause and horizon of another row"
        raise EhrseqError(what, where=where, fix="keep one of them")
    risk = np.full(shape, np.nan)
    risk.reshape(-1)[flat] = np.clip(table.risk[chosen], 0.0, 1.0)
    some = ~np.isnan(risk)
    partly = some.any(axis=(1, 2)) & ~some.all(axis=(1, 2))
    if partly.any():
        what = f"{int(partly.sum()):,} prediction times lack the risk of some cause at some horizon"
        raise EhrseqError(
            what, where=where, fix="give every prediction time all causes and the same horizons"
        )
    outside = owner < 0
    if outside.any():
        pairs = np.stack([table.subject_id[outside], table.prediction_us[outside]], axis=1)
        warnings.append(
            f"{people(len(np.unique(pairs, axis=0)))} prediction times of the file are not evaluated (another split, "
            "not eligible, not at risk any more, or no prediction time of the task): ignored."
        )
    return Matched(horizons, risk, warnings)


def _horizons(days: Floats, task: TaskConfig, where: str) -> tuple[Floats, Ints]:
    """The distinct horizons, those of the task exactly as it has them, and the position of each row's."""
    distinct, position = np.unique(days, return_inverse=True)
    wanted = np.array(task.horizons)
    if not (np.isfinite(distinct).all() and distinct[0] > task.blanking):
        what = "has horizons that are not numbers of days after the start of the risks"
        raise EhrseqError(what, where=where, fix="leave these rows out")
    near = np.abs(distinct[:, None] - wanted) <= _SAME_DAYS * wanted
    lacking = [format_days(float(h)) for h in wanted[~near.any(axis=0)]]
    if lacking:
        fix = "predict them, or take them out of the task file"
        raise EhrseqError(f"has no risk within {', '.join(lacking)}", where=where, fix=fix)
    distinct = np.where(near.any(axis=1), wanted[near.argmax(axis=1)], distinct)
    merged, again = np.unique(distinct, return_inverse=True)
    return merged, again[position]


def people(count: int) -> str:
    """A count that may be about few people, as it may be shared.

    >>> people(3), people(1234)
    ('Fewer than 11', '1,235')
    """
    return count_text(count) if count >= SMALLEST_COUNT else f"Fewer than {SMALLEST_COUNT}"


@dataclass(frozen=True, kw_only=True)
class FileRisks(RiskSource):
    """Risks of a file as what is evaluated.

    Attributes:
        horizons_days: (H,) horizons of the file, among them the task's.
        values: (R, causes, H) the risks.
        labels: The prediction times with their labels.
    """

    horizons_days: Floats
    values: Floats
    labels: TaskRecords

    @cached_property
    def incoherent(self) -> Bools:
        """(R,) prediction times at which a risk falls with the horizon, or the causes' risks sum to more than 1."""
        falling = (np.diff(self.values, axis=2) < -ROUNDING).any(axis=(1, 2))
        total = self.values.sum(axis=1).max(axis=1)
        return np.asarray(falling | (total > 1 + ROUNDING * self.values.shape[1]), dtype=np.bool_)

    @property
    def is_curve(self) -> bool:
        """See `RiskSource`: there are enough horizons, and the risks are incidences."""
        return len(self.horizons_days) >= FEWEST_KNOTS and not self.incoherent.any()

    @cached_property
    def _rising(self) -> Floats:
        """The risks without what rounding does."""
        rising = np.maximum.accumulate(self.values, axis=2)
        return np.asarray(
            rising / np.maximum(rising.sum(axis=1, keepdims=True), 1.0), dtype=np.float64
        )

    @property
    def knots_days(self) -> Floats | None:
        """See `RiskSource`."""
        return self.horizons_days if self.is_curve else None

    def risk(self, records: TaskRecords, horizons_days: Floats) -> Floats:
        """See `RiskSource`: at horizons of the file its own risks, at other days those of the curve through them."""
        at = np.minimum(
            np.searchsorted(self.horizons_days, horizons_days), len(self.horizons_days) - 1
        )
        known = self.horizons_days[at] == horizons_days
        out = np.empty((*self.values.shape[:2], len(horizons_days)))
        out[:, :, known] = self.values[:, :, at[known]]
        if not known.all():
            days, start = horizons_days[~known], self.task.blanking
            out[:, :, ~known] = risk_through(
                self._rising, self.horizons_days, days, start_days=start
            )
        return out

    @cached_property
    def _nll(self) -> Floats:
        start = self.task.blanking
        return nll_through(self._rising, self.horizons_days, self.labels.rows, start_days=start)

    def nll(self, records: TaskRecords) -> Floats | None:
        """See `RiskSource`."""
        return self._nll if self.is_curve and np.isfinite(self._nll).all() else None

    def warnings(self) -> list[str]:
        """Why there is no likelihood, or what kind of likelihood it is."""
        if self.incoherent.any():
            return [
                f"At {self.incoherent.mean():.1%} of the prediction times a risk falls with the horizon, or the "
                "causes' risks sum to over 1. NLL and the integrated Brier score are left out: these are no cumulative "
                "incidences."
            ]
        if not self.is_curve:
            return [
                f"NLL and the integrated Brier score are left out: they need the risks of {FEWEST_KNOTS} or more "
                f"horizons, and the file has {len(self.horizons_days)}."
            ]
        if not np.isfinite(self._nll).all():
            return [
                "NLL is left out: some events fall where the predicted curve is flat, so that it is infinite."
            ]
        last = format_days(float(self.horizons_days[-1]))
        return [
            f"NLL is that of curves through the risks at the {len(self.horizons_days)} horizons of the file, with the "
            f"follow-up cut at {last}. It is so for every model here, and cannot be compared with other reports."
        ]
