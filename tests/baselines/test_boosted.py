"""Boosted visits: every prediction time, as many trials as they are told, and trials without code pairs."""

from typing import Any

import numpy as np
import pytest

from ehrsequencing.baselines import boosted
from ehrsequencing.baselines.boosted import BoostedVisits
from ehrsequencing.config import TaskConfig
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from helpers.baselines import given_to, with_rows


@pytest.mark.slow
def test_boosting_sees_every_prediction_time_and_tries_as_often_as_it_is_told(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[dict[str, Any], int]] = []
    fit_one = boosted.HistGradientBoostingRegressor.fit

    def spy(self: Any, x: Any, *args: Any, **held: Any) -> Any:
        seen.append((self.get_params(), len(x)))
        return fit_one(self, x, *args, **held)

    monkeypatch.setattr(boosted.HistGradientBoostingRegressor, "fit", spy)
    made = given_to(task, prepared, train, tuning)
    models = {n: BoostedVisits.fit(made, trials=n) for n in (1, 3)}
    assert len(seen) == (1 + 3) * len(task.causes)
    every = models[1].periods(train.rows, np.arange(len(train)))
    assert {rows for _, rows in seen} == {len(every.row)}
    rows = np.arange(len(tuning))
    assert models[3].nll(tuning, rows).mean() <= models[1].nll(tuning, rows).mean() + 1e-9  # chosen by it
    monkeypatch.setattr(boosted, "MOST_CELLS", 40 * (len(models[1].columns) + 1))
    del seen[:]
    BoostedVisits.fit(made)
    assert {rows for _, rows in seen} <= set(range(20, 41))  # 20 prediction times, in one or two parts of time


@pytest.mark.slow
def test_a_trial_without_code_pairs_sees_none_and_is_chosen_by_tuning_likelihood(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = given_to(task, prepared, train, tuning)
    every = boosted.TRIALS
    assert [trial["pairs"] for trial in every[:2]] == [True, False]
    widths: list[int] = []
    fit_one = boosted.HistGradientBoostingRegressor.fit

    def spy(self: Any, x: Any, *args: Any, **held: Any) -> Any:
        widths.append(x.shape[1])
        return fit_one(self, x, *args, **held)

    monkeypatch.setattr(boosted.HistGradientBoostingRegressor, "fit", spy)
    nll, rows = [], np.arange(len(tuning))
    for trials in (every[:1], every[1:2], every[:2]):
        monkeypatch.setattr(boosted, "TRIALS", trials)
        model = BoostedVisits.fit(made, trials=2)
        nll.append(float(model.nll(tuning, rows).mean()))
    of_pairs = int(np.sum(model.used >= len(model.columns) - 2 * len(model.columns.pairs)))
    assert of_pairs > 5
    causes, whole = len(task.causes), len(model.used) + 1
    assert widths == [whole] * causes + [whole - of_pairs] * causes + [whole, whole - of_pairs] * causes
    assert nll[2] <= min(nll[:2]) + 1e-9
    names = [model.columns.names[column] for column in model.used[model.without_pairs()[:-1]]]
    assert not any(" + " in name for name in names)


def test_boosting_does_without_ages_and_without_a_second_visit(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    """Columns that nobody has: the trees' binning fails on them."""
    ageless = [
        with_rows(
            split,
            age_years=np.full(len(split), np.nan, np.float32),
            visits_before=np.minimum(split.rows.visits_before, 1),
        )
        for split in (train, tuning)
    ]
    model = BoostedVisits.fit(given_to(task, prepared, *ageless))
    assert len(model.cuts[0]) == len(model.cuts[3]) == 0  # ages, days between visits
    assert np.isfinite(model.nll(ageless[1], np.arange(len(tuning)))).all()
