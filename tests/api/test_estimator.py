"""`EHRSurvival` keeps scikit-learn's conventions, and its curves are those of the run."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_checks

import ehrsequencing as eh
from ehrsequencing.api.estimator import StepFunction
from ehrsequencing.config import load_task
from ehrsequencing.core.errors import EhrseqError

TINY = {
    "model": {"dim": 16, "heads": 2, "layers": 1},
    "training": {"epochs": 1, "min_steps": 2, "distillation": 0.0, "blend": False},
}
#: The checks that need no array of features: MEDS data is none.
APPLICABLE = (
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_get_params_invariance",
    "check_set_params",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_valid_tag_types",
)


@pytest.mark.parametrize("name", APPLICABLE)
def test_the_applicable_checks_of_scikit_learn(name: str) -> None:
    getattr(estimator_checks, name)("EHRSurvival", eh.EHRSurvival())


def test_parameters_are_cloned_and_set() -> None:
    model = eh.EHRSurvival(seed=3, **TINY)
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(seed=4).seed == 4
    with pytest.raises(NotFittedError):
        model.predict_risk("meds/")


@pytest.fixture(scope="module")
def fitted(example_folder: Path) -> eh.EHRSurvival:
    """Fitted to a frame of the training subjects, on a task with one cause."""
    task = load_task(example_folder / "task.yaml").model_copy(update={"competing": {}, "name": "one"})
    rows = eh.read_meds(example_folder / "meds")
    return eh.EHRSurvival(seed=1, **TINY).fit(rows, task)


def test_one_cause_gives_step_functions_as_scikit_survival_does(fitted: eh.EHRSurvival, here: Path) -> None:
    functions = pytest.importorskip("sksurv.functions")
    incidence = fitted.predict_cumulative_incidence_function("meds/")
    survival = fitted.predict_survival_function("meds/")
    values = fitted.predict_cumulative_incidence_function("meds/", return_array=True)
    risk = fitted.predict_risk("meds/", horizons=["1y"])
    assert incidence.shape == survival.shape == (len(risk),)
    for number in (0, 7):
        curve = incidence[number]
        assert isinstance(curve, StepFunction)
        assert (curve(0.0), curve.domain) == (0.0, (0.0, 730.5))
        assert curve(365.25) == pytest.approx(risk["hf_1y"].iloc[number], abs=1e-6)
        np.testing.assert_allclose(curve(fitted.unique_times_), values[number])
        np.testing.assert_allclose(survival[number].y, 1 - curve.y)
        theirs, days = functions.StepFunction(curve.x, curve.y), np.linspace(0, 730.5, 333)
        np.testing.assert_allclose(curve(days), theirs(days))
    with pytest.raises(ValueError, match="within"):
        curve(800.0)
    np.testing.assert_allclose(fitted.predict("meds/"), values[:, -1])


def test_the_score_is_c_on_the_labels_of_the_data(fitted: eh.EHRSurvival, here: Path) -> None:
    c = fitted.score("meds/")
    assert 0.3 < c < 1.0
    assert fitted.score("meds/", fitted.run_.task, horizon="2y") == c
    with pytest.raises(EhrseqError, match="another task"):
        fitted.score("meds/", "task.yaml")
