"""True risks score what uncensored truth says: follow-up that ends at an age, late prediction times, every index."""

from dataclasses import replace

import numpy as np
import pytest

from helpers import known_truth as bench

SLOW = ("falling hazards", "every index")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in bench.WORLDS]
)
def test_true_risks_score_what_uncensored_truth_says(name: str) -> None:
    found = bench.gaps(name, people=12_000 if name == "fixed age" else 4_000, seeds=4)
    worst = {key: float(np.abs(values).max()) for key, values in found.items()}
    assert worst["oe"] < 0.03, found
    assert worst["ipa"] < 0.01, found
    assert max(worst["c"], worst["auc"]) < 0.01, found
    assert worst["slope"] < 0.05, found


def test_an_age_that_the_task_does_not_name_biases_all_but_observed_over_expected() -> None:
    """The mutant: those who could not be followed keep their events and lose all their non-events."""
    people = bench.fixed_age(0, 15_000)
    scope = people.scope(censored=True, clock=False, names_its_end=False)
    seen, truth = bench.scores(scope), list(bench.whole(people, scope))
    assert abs(seen["oe"][2] - 1) < 0.03
    assert abs(seen["auc"][2] - truth[2]["auc"][2]) > 0.01
    assert abs(seen["ipa"][2] - truth[2]["ipa"][2]) > 0.02


def test_one_kaplan_meier_over_rows_of_many_prediction_times_is_wrong() -> None:
    """The mutant: with true risks and rising hazards it finds another IPA."""
    people = bench.late_times(0, 6_000, shape=2.0)
    scope = people.scope(censored=True, clock=True)
    seen, truth = bench.scores(scope), list(bench.whole(people, scope))
    mutant = bench.scores(replace(scope, censoring=None))
    assert abs(seen["ipa"][2] - truth[2]["ipa"][2]) < 0.02
    assert abs(mutant["ipa"][2] - truth[2]["ipa"][2]) > 0.02
