"""Figures and tables of real people hold nothing of fewer than 11 of them."""

from pathlib import Path

import ehrsequencing as eh
from ehrsequencing.api.evaluation import EvaluationResult


def test_an_evaluation_of_real_people_tells_no_more_than_the_report(here: Path) -> None:
    """The example's result, taken for one of real people: 61 subjects, of whom few die."""
    run = eh.load("runs/hf")
    exact = run.evaluation
    real = EvaluationResult({**exact.result, "data": {**exact.result["data"], "simulated": False}}, run.folder, run=run)
    told = {str(count) for count in real.metrics.events.dropna()}
    assert "<11" in told
    assert not told & {str(n) for n in range(1, 11)}
    few = real.metrics[real.metrics.events.astype(str) == "<11"]
    assert few.value.isna().all()
    assert [text.get_text() for text in real.plot_incidence(cause="death").texts] == ["too few events to show"]


def test_the_figure_of_a_notebook_has_the_numbers_of_the_report(here: Path) -> None:
    evaluation = eh.load("runs/hf").evaluation
    row = next(row for row in evaluation.result["incidence"] if row["cause"] == "hf" and row["landmark_days"] == 0)
    ax = evaluation.plot_incidence(cause="hf")
    drawn = [list(line.get_ydata()) for line in ax.lines]
    assert [group["predicted"] for group in row["groups"]] == drawn[1::2]
    told = [text.get_text() for text in ax.texts]
    assert all(str(count) in told for group in row["groups"] for count in group["at_risk"])
