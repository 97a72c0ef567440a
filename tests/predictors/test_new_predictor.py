"""A new predictor is one class: with it and its entry alone, it is fitted, compared and reported beside the others."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.config import EvaluationConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.predictors import fit
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.from_file import FromFile
from ehrsequencing.predictors.predictor import Predictor, in_parts
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.reporting.report import render


class Rates(Predictor):
    """Everybody has the cohort's own hazards."""

    name = "rates"

    def __init__(self, data: FittingData) -> None:
        self.edges_days, self.n_causes = data.edges_days, len(data.task.causes)
        self.rates = data.cohort_hazards()

    def hazards(self, records: TaskRecords) -> Iterator[tuple[slice, np.ndarray]]:
        for rows, part in in_parts(records):
            yield rows, np.tile(self.rates, (len(part), 1, 1))


def test_one_class_and_its_entry_bring_a_row_everywhere(
    sim_run: Path, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "BASELINES", {Rates.name: Rates, "age + sex": fit.AgeAndSex})
    settings = EvaluationConfig(bootstrap=0)
    result = evaluate(shutil.copytree(sim_run, tmp_path / "run"), settings=settings)
    assert {one["model"] for one in result["baselines"]} == {"rates", "age + sex"}
    rows = {(m["metric"], m["landmark_days"], m["cause"]): m for m in result["metrics"] if m["model"] == "rates"}
    assert {"c", "ipa", "nll", "oe"} <= {metric for metric, *_ in rows}
    c = [m["value"] for (metric, *_), m in rows.items() if metric == "c" and m["value"] is not None]
    assert c == pytest.approx([0.5] * len(c))
    assert c
    assert "rates" in render(result)


def test_what_knows_risks_alone_has_one_error_for_hazards_and_likelihood(prepared: Prepared) -> None:
    records = prepared.records("simulated", "tuning")
    days, risk = np.array([90.0, 365.0]), np.full((len(records), 2, 2), 0.1)
    file = FromFile("somebody's", records, days, risk, edges_days=(90.0,), start_days=0.0)
    assert not file.has_hazards  # two horizons are no curve
    np.testing.assert_array_equal(file.risk(records, days), risk)
    for ask in (file.nll, file.hazards):
        with pytest.raises(EhrseqError, match="no hazards, so that there is no likelihood"):
            ask(records)
