"""The short page: its verdicts and caveats, its length, and that it hides what the details hide."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.comparison import Comparison, draw_subjects
from ehrsequencing.evaluation.context import QUESTIONS, read_tripod
from ehrsequencing.evaluation.curves import incidence_rows, risk_groups
from ehrsequencing.metrics.censoring import aalen_johansen
from ehrsequencing.predictors.fit import MarginalIncidence
from ehrsequencing.reporting import figures
from ehrsequencing.reporting.report import ANSWER, count_texts, render
from ehrsequencing.reporting.scores import COHORT, Scores, cause_verdict, caveats
from ehrsequencing.results.redaction import redact
from helpers.recorded import YEAR, bare, recorded, simulation
from helpers.report_page import Page, svgs

EXAMPLES = Path(__file__).parents[2] / "examples"


def answer(metrics: dict[str, Any]) -> str:
    return Page(render(metrics, ANSWER)).text


def rows_of(n: int, *, causes: int = 2, seed: int = 0) -> Comparison:
    """Subjects whose hazards follow their risk, censored at random, with risks on a grid of days."""
    rng = np.random.default_rng(seed)
    score, days = rng.normal(size=n), np.array([100.0, 200.0, 300.0, 365.25])
    rates = np.exp(score)[:, None] * np.array([0.003, 0.001])[:causes]
    times = rng.exponential(1 / rates)
    censored = rng.uniform(50, 900, size=n)
    first = times.min(axis=1)
    cause = np.where(first < censored, 1 + times.argmin(axis=1), 0)
    total = rates.sum(axis=1, keepdims=True)
    risk = rates[:, :, None] / total[:, :, None] * (1 - np.exp(-total[:, :, None] * days))
    return Comparison(
        0.0, np.arange(n), np.minimum(first, censored), cause, days, {"ours": risk}, draw_subjects(n, 20, 0)
    )


def with_incidence(metrics: dict[str, Any], rows: list[dict[str, Any]], *, simulated: bool) -> dict[str, Any]:
    """The metrics of an example with such rows at its first landmark and last horizon."""
    place = {"landmark_days": metrics["landmarks_days"][0], "horizon_days": metrics["horizons_days"][-1]}
    causes = metrics["causes"]
    told = [{**row, **place, "cause": cause} for row, cause in zip(rows, causes, strict=False)]
    return {**metrics, "incidence": told, "data": {**metrics["data"], "simulated": simulated}}


@pytest.mark.parametrize("metrics", [bare(recorded()), recorded("wide"), simulation()], ids=["bare", "wide", "sim"])
def test_the_answer_is_short_and_names_every_cause(metrics: dict[str, Any]) -> None:
    text = answer(
        with_incidence(
            metrics, incidence_rows(rows_of(900), ["a", "b"], model="ours", horizon_days=365.25), simulated=False
        )
    )
    assert len(text.split()) <= 2500
    assert all(f"{cause} : The model " in text for cause in metrics["causes"])
    assert "at risk" in text
    open_ = len(QUESTIONS) - ((metrics.get("checks") or {}).get("tuning_trials") is not None)
    assert f"{open_} of {len(QUESTIONS)} questions are open" in text


def told_of(
    ours: float, theirs: float, *, oe: tuple[float, float, float] = (1.0, 0.9, 1.1), rival_oe: float = 1.0
) -> str:
    """The sentence on a cause of which our model ranks well and has such an IPA, and the strongest baseline another."""
    metrics = recorded()
    metrics["data"]["simulated"] = True  # the numbers of the table, not those of rounded counts
    place = {**metrics["main"], "cause": "relapse"}
    for row in metrics["metrics"]:
        if all(row[key] == value for key, value in place.items()) and row["model"] in (
            "ehrsequencing",
            "boosted visits",
        ):
            value = ours if row["model"] == "ehrsequencing" else theirs
            if row["metric"] == "ipa":
                row.update(value=value, low=value - 0.02, high=value + 0.02)
            if row["metric"] == "oe":
                limits = oe if row["model"] == "ehrsequencing" else (rival_oe, 0.5, 2.0)
                row.update(zip(("value", "low", "high"), limits, strict=True))
    for row in metrics["differences"]:
        if row["metric"] == "ipa" and row["cause"] == "relapse":
            less = ours - theirs
            row.update(value=less, low=less - 0.02, high=less + 0.02)
    return answer(metrics).partition("relapse : ")[2].partition("Main numbers")[0]


def test_the_sentence_begins_with_what_matters() -> None:
    assert "better" not in told_of(0.04, 0.40)  # only the declared comparison has a verdict
    assert told_of(0.29, 0.31).startswith("The model ranks patients well")  # as good as level
    assert told_of(0.3, 0.2, oe=(1.5, 1.3, 1.7)).startswith("The risks are too low. For every 100 expected")
    near = told_of(0.3, 0.2, oe=(1.02, 1.01, 1.03))
    assert near.startswith("The model ranks patients well")
    assert "The risks are right within a tenth (O/E 1.02, 1.01 to 1.03)" in near
    assert "these people differ" not in told_of(0.3, 0.2, oe=(1.5, 1.3, 1.7), rival_oe=0.9)
    assert "for boosted visits 140, so that these people differ" in told_of(0.3, 0.2, oe=(1.5, 1.3, 1.7), rival_oe=1.4)
    assert told_of(-0.3, 0.2).startswith("The model has a LARGER prediction error")


@pytest.mark.parametrize("metrics", [bare(recorded()), recorded("wide")], ids=["bare", "wide"])
def test_a_reader_sees_no_command_and_no_setting(metrics: dict[str, Any]) -> None:
    metrics = metrics | {
        "audit": None,
        "warnings": [
            "Risks are too high. List it, as in competing: {death: MEDS_DEATH}.",
            "Hold out more with splits.by=hash, or run ehrseq evaluate RUN --splits 25.",
        ],
    }
    page = render(metrics, ANSWER)
    assert "Risks are too high." in page
    for text in ("<code>", "ehrseq ", "competing:", "splits.by", "evaluation.", "<li></li>"):
        assert text not in page
    assert "splits.by=hash" in render(metrics)


def test_a_leak_and_too_few_events_are_said_first() -> None:
    leak = answer(simulation(beats_oracle_z=3.1))
    assert leak.index("This model is leaking") < leak.index("The model")
    metrics = recorded(share=0.3)
    for row in metrics["metrics"] + metrics["differences"]:
        row.update(value=None, low=None, high=None, reason="too few events")
    text = answer(metrics)
    assert "Nothing can be concluded about this model" in text
    assert re.search(r"Nothing can be concluded from \w+ subjects, .* of whom are known to have had it", text)
    assert "ranks patients" not in text
    assert len(svgs(render(metrics, ANSWER))) < len(svgs(render(recorded(), ANSWER)))


def test_random_splits_answer_where_the_one_split_is_too_small() -> None:
    metrics = recorded()
    main = metrics["main"]
    place = {
        "landmark_days": main["landmark_days"],
        "cause": metrics["causes"][0],
        "horizon_days": main["horizon_days"],
    }
    estimate = {"median": None, "values": [], "reason": None, "events": 80, "subjects": 300}
    rows = [
        {"model": "landmark Cox", "metric": "c", "mean": 0.857, "low": 0.805, "high": 0.909},
        {"model": "landmark Cox", "metric": "ipa", "mean": -0.03, "low": None, "high": None},
        {"model": "age + sex", "metric": "oe", "mean": None, "low": None, "high": None},
    ]
    metrics["repeated_splits"] = {
        "splits": 25,
        "seeds": [*range(25)],
        "differences": [],
        "rows": [place | estimate | row for row in rows],
    }
    assert "means over 25 random splits" not in answer(metrics)  # the run's own split says enough
    for row in metrics["metrics"] + metrics["differences"]:
        row.update(value=None, low=None, high=None, reason="too few events")
    text = answer(metrics)
    assert "from this one split. 25 random splits say more." in text
    assert "O/E landmark Cox 0.86 0.81 to 0.91 −3% – Small" in text
    assert "age + sex –" not in text


CASES = {
    "good": ({"c": (0.75, 0.7, 0.8), "oe": (0.963, 0.85, 1.12), "ipa": (0.1, 0.05, 0.15)}, "good", "holds"),
    "chance": ({"c": (0.55, 0.48, 0.62), "oe": (1.0, 0.9, 1.1), "ipa": (0.1, 0.05, 0.15)}, "chance", "fails"),
    "open": ({"c": (0.58, 0.35, 0.78), "oe": (1.0, 0.9, 1.1), "ipa": (0.1, 0.05, 0.15)}, "unclear", "mixed"),
    "worse": ({"c": (0.4, 0.35, 0.45), "oe": (1.0, 0.9, 1.1), "ipa": (0.1, 0.05, 0.15)}, "worse than chance", "fails"),
    "biased": ({"c": (0.75, 0.7, 0.8), "oe": (1.5, 1.2, 1.8), "ipa": (0.1, 0.05, 0.15)}, "good", "fails"),
    "no gain": ({"c": (0.65, 0.6, 0.7), "oe": (1.0, 0.9, 1.1), "ipa": (0.01, -0.05, 0.07)}, "moderate", "mixed"),
    "harmful": ({"c": (0.85, 0.8, 0.9), "oe": (1.0, 0.9, 1.1), "ipa": (-0.1, -0.2, -0.05)}, "very good", "fails"),
    "no number": ({"c": (None, None, None), "oe": (None, None, None), "ipa": (None, None, None)}, "undefined", "fails"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_cause_that_the_model_fails_is_named(name: str) -> None:
    values, rank, state = CASES[name]
    metrics = bare(recorded("wide"))
    metrics["data"]["simulated"] = True
    for row in metrics["metrics"]:
        if row["cause"] == "relapse" and row["metric"] == "oe" and row["value"] is not None:
            row.update(value=1.0, low=0.9, high=1.1)
        if row["cause"] == "death" and row["model"] == "ehrsequencing" and row["metric"] in values:
            row.update(zip(("value", "low", "high"), values[row["metric"]], strict=True))
    found = cause_verdict(Scores(metrics), "death", count_texts(metrics))
    assert (found["rank"], found["state"]) == (rank, state)
    assert answer(metrics).count("✕") == (state == "fails")
    assert ("(O/E 0.96, 0.85 to 1.12)" in answer(metrics)) == (name == "good")  # digits as in the table


@pytest.mark.parametrize(
    ("metric", "row"),
    [
        ("ici", {"value": 0.05}),
        ("aj", {"value": 0.03}),
        ("ks_p", {"value": 0.01}),
        ("slope", {"value": 0.6, "low": 0.5, "high": 0.8}),
    ],
)
def test_no_overall_bias_is_not_said_where_anything_speaks_of_miscalibration(metric: str, row: dict[str, Any]) -> None:
    metrics = recorded()
    place = {"model": "ehrsequencing", **metrics["main"], "cause": "relapse"}
    alone = {"ici": 0.01, "ici_null": 0.02, "aj": 0.01, "aj_null": 0.02, "ks_p": 0.5}
    values = dict.fromkeys(("oe", "slope"), (1.0, 0.9, 1.1)) | {name: (x, None, None) for name, x in alone.items()}
    kept = [one for one in metrics["metrics"] if one["metric"] not in values or one["model"] != "ehrsequencing"]
    calm = [
        {
            **place,
            "metric": name,
            "reason": None,
            "subjects": 500,
            "events": 200,
            **dict(zip(("value", "low", "high"), value, strict=True)),
        }
        for name, value in values.items()
    ]
    quiet = {**metrics, "metrics": [*kept, *calm]}
    found = cause_verdict(Scores(quiet), "relapse", {})
    assert (found["risks"], found["misfits"]) == ("agree", [])
    assert "No overall bias" in answer(quiet)
    loud = {**metrics, "metrics": [*kept, *({**one, **row} if one["metric"] == metric else one for one in calm)]}
    found = cause_verdict(Scores(loud), "relapse", {})
    assert (found["risks"], found["state"]) == ("off", "mixed")
    assert found["misfits"] == [metric.removesuffix("_p")]
    assert "No overall bias" not in answer(loud)
    assert "evidence of miscalibration" in answer(loud)


def test_the_gravest_caveats_come_first() -> None:
    metrics = recorded() | {"warnings": ["Some subjects have no end.", "Fewer than 50 subjects of held_out had it."]}
    kinds = [case["kind"] for case in caveats(Scores(metrics), [{"rank": "good"}], most=9)]
    assert kinds[0] == "warning"
    assert kinds.count("warning") == 1
    metrics["data"]["simulated"] = True
    assert caveats(Scores(metrics), [{"rank": "too few"}])[0]["kind"] == "few"
    assert caveats(Scores(metrics), [{"rank": "good"}])[0]["kind"] == "simulated"


def test_incidence_is_that_of_each_group_alone() -> None:
    grid = rows_of(800)
    (first, _) = incidence_rows(grid, ["a", "b"], model="ours", horizon_days=365.25)
    event = (grid.cause == 1) & (grid.duration_days <= 365.25)
    group = risk_groups(grid.risk["ours"][:, 0, -1], event, grid.subject)
    assert len(first["groups"]) == 4
    for g, found in enumerate(first["groups"]):
        inside = group == g
        alone = aalen_johansen(grid.duration_days[inside], grid.cause[inside], n_causes=2).at(first["days"])[0]
        np.testing.assert_allclose(found["observed"], alone)
        np.testing.assert_allclose(found["predicted"][1:], grid.risk["ours"][inside, 0].mean(axis=0))
        assert found["at_risk"][0] == found["n"] == inside.sum()
        assert all(
            low <= value <= high
            for low, value, high in zip(found["low"], found["observed"], found["high"], strict=True)
        )
    means = [found["predicted"][-1] for found in first["groups"]]
    assert means == sorted(means)


def test_counts_of_real_people_are_rounded_and_those_of_a_simulation_exact() -> None:
    rows = incidence_rows(rows_of(903), ["a", "b"], model="ours", horizon_days=365.25)
    metrics = recorded()
    for simulated in (False, True):
        drawn = figures.incidence(redact(with_incidence(metrics, rows, simulated=simulated))["incidence"][0])
        cells = [cell for row in drawn.rows for cell in row[3:]]
        assert all(cell in ("<11", "0") or int(cell) % 5 == 0 for cell in cells) != simulated


def test_the_template_asks_every_question_and_answers_come_into_the_report(tmp_path: Path) -> None:
    empty = (EXAMPLES / "tripod.yaml").read_text(encoding="utf-8")
    assert all(f"# {title}: {asked}\n{key}:\n" in empty for key, (title, asked) in QUESTIONS.items())
    assert read_tripod(EXAMPLES / "tripod.yaml") == {} == read_tripod(None)
    path = tmp_path / "tripod.yaml"
    path.write_text(empty.replace("ethics:\n", "ethics: Board 7, <b>reference</b> 12\n"), encoding="utf-8")
    told = read_tripod(path)
    assert told == {"ethics": "Board 7, <b>reference</b> 12"}
    text = answer(recorded() | {"tripod": told})
    assert "Board 7, <b>reference</b> 12" in text
    assert f"{len(QUESTIONS) - 2} of {len(QUESTIONS)} questions are open" in text
    details = Page(render(recorded() | {"tripod": told})).text
    assert f"open: {QUESTIONS['ethics'][1]}" not in details
    assert f"open: {QUESTIONS['setting'][1]}" in details


@pytest.mark.parametrize("text", ["ethic: yes", "ethics: [1, 2]", "- ethics"])
def test_a_wrong_file_of_answers_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tripod.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(EhrseqError, match=r"tripod\.yaml"):
        read_tripod(path)


def test_a_simulation_says_how_near_to_the_truth_ours_and_the_strongest_rival_come() -> None:
    m = bare(simulation(name="true hazards"))
    ours, rival, cohort = m["models"][0], "boosted visits", COHORT
    m["models"] = [ours, rival, cohort, "true hazards"]
    m["strongest"], place = rival, {"landmark_days": 0.0, "cause": "relapse", "horizon_days": None}
    m["main"] = {"landmark_days": 0.0, "horizon_days": YEAR}
    row = {"low": None, "high": None, "reason": None, "subjects": 90, "events": 40}
    of = dict(zip(m["models"], ((1.2, 0.80), (1.3, 0.78), (1.6, 0.5), (1.1, 0.81)), strict=True))
    m["metrics"] = [{**row, **place, "model": name, "metric": "nll", "value": nll} for name, (nll, _) in of.items()] + [
        {**row, **place, "horizon_days": YEAR, "model": name, "metric": "c", "value": c} for name, (_, c) in of.items()
    ]
    assert Scores(m).reached() == (
        "Of the gain in likelihood from the cohort’s own incidence to the true hazards of the simulation, this model "
        "reaches 80% and boosted visits 60%. C is 0.80 and 0.78; that of the true risks is 0.81."
    )
    assert MarginalIncidence.name == COHORT
    m["metrics"] = m["metrics"][1:]
    assert Scores(m).reached() is None  # nothing to say without each of the numbers
    assert Scores(recorded()).reached() is None
