"""No count of 1 to 10 people stands in a shareable file, nor is it the difference of two printed numbers."""

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ehrsequencing.api.paper import accuracy_table
from ehrsequencing.config import EvaluationConfig
from ehrsequencing.core import disclosure
from ehrsequencing.core.disclosure import enough_people, shareable_count, shareable_rate
from ehrsequencing.evaluation.evaluate import Evaluation, evaluate
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.results import add_result, read_result, write_result
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.reporting.report import ANSWER, DETAILS, PAGES, render
from ehrsequencing.reporting.share import model_card
from ehrsequencing.reporting.terminal import metric_lines
from ehrsequencing.results import redaction
from ehrsequencing.results.redaction import INDIVIDUAL, redact
from ehrsequencing.results.result_types import place_of
from helpers.disclosure import as_real
from helpers.recorded import COUNTS, recorded, with_counts

#: Whole numbers of a result that count no people: days, settings, models, checks, splits.
NO_PEOPLE = {
    "median_days",
    "low",
    "high",
    "epoch",
    "parameters",
    "tuning_trials",
    "seeds",
    "members",
    "passed",
    "failed",
    "splits",
    "wins",
    "dim",
    "seed",
    "folds",
}
SETTINGS = {"config", "task", "versions", "horizons_days", "landmarks_days", "main", "baselines", "codes"}
PRINTED_SO: dict[Any, list[int]] = {}
for _people in range(200_000):
    PRINTED_SO.setdefault(shareable_count(_people), []).append(_people)
RESULTS = [(name, share) for name in ("wide", "narrow") for share in (0.3, 0.45, 0.6, 0.75, 0.9, 1.0)]
#: One place of many that stays as it is.
UNROUNDED: dict[str, Callable[..., Any]] = {
    "_by_rounding": lambda *counts, of: 0.0,
    "_operating_factors": lambda *counts: dict.fromkeys(("flagged", "sensitivity", "ppv"), 1.0),
    "_smooth": dict,
    "_risk_group": dict,
    "_inputs": dict,
    "_counts": lambda value: value,
    "_followed": lambda row, at_risk: dict(row),
    "_counted": dict,
    "by_shown_events": lambda row, cells: row,
}


def counts(exact: Any, told: Any, key: str = "") -> Iterator[tuple[int, Any]]:
    """Each count of a result, and what a redacted one tells of it; rows that were left out tell nothing."""
    if isinstance(told, dict) and isinstance(exact, dict):
        for name in told.keys() & exact.keys():
            yield from counts(exact[name], told[name], key if key in COUNTS and name not in COUNTS else name)
    elif isinstance(told, list) and isinstance(exact, list) and len(told) == len(exact):
        for one, other in zip(exact, told, strict=True):
            yield from counts(one, other, key)
    elif key in COUNTS and isinstance(exact, int) and not isinstance(exact, bool):
        yield exact, told


def worked_out(found: set[tuple[int, Any]], rule: Callable[[int], Any]) -> list[int]:
    """Counts of 1 to 10 that a reader who knows the rule gets by subtracting one printed number from another."""
    possible: dict[Any, list[int]] = {}
    for people in range(max(count for count, _ in found) + 10):
        possible.setdefault(rule(people), []).append(people)
    printed = {told for _, told in found if isinstance(told, int)}
    alone = [possible[told][0] for told in printed if len(possible[told]) == 1]
    gaps = [abs(a - b) for a, b in itertools.combinations(alone, 2)]
    return [number for number in (*alone, *gaps) if 1 <= number <= 10]


def test_from_eleven_on_every_printed_number_stands_for_five_counts_or_more() -> None:
    told = [shareable_count(people) for people in range(2000)]
    assert told[:11] == [0, *["<11"] * 10]
    assert min(n for n in told[11:] if isinstance(n, int)) == 15
    for people, number in enumerate(told[11:], start=11):
        assert isinstance(number, int)
        assert number % 5 == 0
        assert abs(number - people) <= (2 if people > 12 else 4)
    assert worked_out(set(enumerate(told)), shareable_count) == []


def everything(name: str = "wide", share: float = 0.35) -> dict[str, Any]:
    """An exact result with every part that counts people."""
    exact = recorded(name, share=share) | {"trajectories": []}
    exact["followed"] = 41  # whom the rows of `smallest_g` are of
    exact["external"] = {
        "data": "elsewhere",
        "subjects": 44,
        "unknown_token_rate": 0.03,
        "seen_in_training": 4,
        "training_unknown_token_rate": 0.02,
        "unmatched": [],
        "new_codes": [{"code": "DX//A", "subjects": 23}],
    }
    return exact


def moved(exact: dict[str, Any], end: int) -> dict[str, Any]:
    """The result with every count replaced by the least (0) or the largest (-1) that is printed in the same way."""
    found: dict[str, Any] = with_counts(exact, lambda count: PRINTED_SO[shareable_count(count)][end])
    return found


def counted(exact: dict[str, Any]) -> dict[str, Any]:
    """The result with the curves and rates that its counts give in a cohort without drop-out."""
    for row in exact["incidence"]:
        for group in row["groups"]:
            share = [events / group["n"] for events in group["events"]]
            group |= {"observed": share, "low": [0.9 * x for x in share], "high": [1.1 * x for x in share]}
    for row in exact["decision"]:
        odds = [at / (1 - at) for at in row["thresholds"]]
        counts = zip(row["events_above"], row["above"], odds, strict=True)
        row["net_benefit"] = [(had - (above - had) * w) / row["n"] for had, above, w in counts]
        row["low"] = row["high"] = row["net_benefit"]
        limits = ("", "_low", "_high")
        shares = {
            "flagged": [above / row["n"] for above in row["above"]],
            "sensitivity": [had / max(row["events"], 1) for had in row["events_above"]],
            "ppv": [had / max(above, 1) for had, above in zip(row["events_above"], row["above"], strict=True)],
        }
        row |= {f"{name}{end}": share for name, share in shares.items() for end in limits}
        row["treat_all"] = [(row["events"] - (row["n"] - row["events"]) * w) / row["n"] for w in odds]
    largest: dict[Any, float] = {}
    for row in [*exact["metrics"], *exact["subgroups"]]:
        ratio = (row.get("events") or 0) / 41.7  # what the hazards expect is no count
        estimate = dict.fromkeys(("value", "low", "high"), ratio)
        row |= estimate if row.get("metric") == "oe" else {}
        if row.get("oe"):
            row["oe"] |= estimate
            reference = largest.setdefault((row["group"], *place_of(row)), ratio)
            row["oe_difference"] = dict.fromkeys(estimate, ratio - reference)
    at_risk = {row["landmark_days"]: row["subjects"] for row in exact["at_risk"]}
    for row in exact["smallest_g"]:
        row["g"] = exact["followed"] / max(at_risk[row["landmark_days"]], 1)
    return exact


def shared_files(exact: dict[str, Any], run: Run) -> dict[str, str]:
    """What may leave the hospital, by name: numbers, pages, card, terminal and table of a paper."""
    told = redact(exact)
    place = {
        "cause": told["causes"][0],
        "landmark": told["main"]["landmark_days"],
        "horizon": told["main"]["horizon_days"],
    }
    return {
        "metrics.json": json.dumps(told),
        ANSWER: render(exact, ANSWER),
        DETAILS: render(told, DETAILS),  # drawn again where the exact result is gone
        "README.md": model_card(told, run=run),
        "terminal": "\n".join(metric_lines(told)),
        "table 2": accuracy_table(told, place, title="Accuracy").to_markdown(),
    }


def always(rate: float, people: int) -> float:
    """A rate from rounded counts, also of few people."""
    return disclosure.nearest(round(rate * people, 6)) / max(disclosure.nearest(people), 1)


@pytest.fixture
def by_shown_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a number is printed is decided by exact counts: here it is decided by those that are printed."""
    monkeypatch.setattr(redaction, "shareable_rate", always)
    monkeypatch.setattr(redaction, "enough_people", lambda some, people: disclosure.nearest(some) > 0)


def integers(told: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """Every whole number of a result that counts people, with the name of what holds it."""
    if isinstance(told, dict):
        for name in told.keys() - SETTINGS - NO_PEOPLE:
            yield from integers(told[name], name if name not in ("train", "tuning", "held_out") else key)
    elif isinstance(told, list):
        for inner in told:
            yield from integers(inner, key)
    elif isinstance(told, int) and not isinstance(told, bool):
        yield key, told


@pytest.mark.parametrize(("name", "share"), RESULTS)
def test_no_shareable_file_depends_on_an_exact_count(name: str, share: float, request: pytest.FixtureRequest) -> None:
    """Nothing printed, and no difference of two printed numbers, tells a count: all of them may be others."""
    exact = everything(name, share)
    found = set(counts(exact, redact(exact)))
    assert len(found) > 20
    assert any(1 <= count <= 10 for count, _ in found)
    assert all(text == shareable_count(count) for count, text in found)
    assert worked_out(found, shareable_count) == []
    told = redact(exact)
    assert redact(told) == told
    people = list(integers(told))
    assert len(people) > 30
    assert [(key, n) for key, n in people if shareable_count(n) != n] == []
    request.getfixturevalue("by_shown_counts")
    least, largest = (counted(moved(exact, end)) for end in (0, -1))
    assert redact(least) == redact(largest)


@pytest.mark.parametrize(("name", "share"), RESULTS[1::3])
def test_no_page_depends_on_an_exact_count(sim_run: Path, name: str, share: float, by_shown_counts: None) -> None:
    """Pages that are drawn from the exact result and rounded in print, and all that is drawn from `metrics.json`."""
    exact, run = everything(name, share), Run(sim_run)
    least, largest = (shared_files(counted(moved(exact, end)), run) for end in (0, -1))
    for name, text in least.items():
        assert text == largest[name], name


@pytest.mark.parametrize("rule", [lambda n: n, lambda n: "<11" if n in range(1, 11) else n])
def test_the_reader_finds_what_is_left_open(
    sim_run: Path, rule: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = everything()
    least, largest = moved(exact, 0), moved(exact, -1)
    monkeypatch.setattr(redaction, "shareable_count", rule)
    assert worked_out(set(counts(exact, redact(exact))), rule)
    one, other = (shared_files(found, Run(sim_run)) for found in (least, largest))
    assert {name for name in one if one[name] != other[name]} >= {"metrics.json", *PAGES, "README.md"}


@pytest.mark.parametrize("place", UNROUNDED)
def test_the_reader_finds_one_place_that_is_left_as_it_is(
    place: str, by_shown_counts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redaction, place, UNROUNDED[place])
    exact = everything()
    least, largest = (json.dumps(redact(counted(moved(exact, end)))) for end in (0, -1))
    assert least != largest


@given(st.integers(1, 4000), st.integers(0, 4000))
def test_a_share_of_people_stands_for_nobody_or_for_eleven(people: int, some: int) -> None:
    some = min(some, people)
    told = shareable_rate(some / people, people)
    assert (told is None) == (some not in (0, people) and not enough_people(some, people))


def test_a_cell_without_enough_people_has_no_metric_and_others_have_three_decimals() -> None:
    exact = recorded("wide", share=0.35)
    told = redact(exact)
    cells = {
        (row["landmark_days"], cause, horizon): (count, row["subjects"])
        for row in exact["at_risk"]
        for cause, events in row["events"].items()
        for horizon, count in zip(exact["horizons_days"], events, strict=True)
    }
    few = {place for place, counts in cells.items() if not enough_people(*counts)}
    assert few
    kept = 0
    for before, row in zip(exact["metrics"], told["metrics"], strict=True):
        value = before["value"]
        if place_of(row) in few:
            assert row["value"] is row["low"] is row["high"] is None
            assert row["reason"] == "too few events"
        elif value is not None:
            kept += 1
            if row["metric"] == "oe":  # of the events that are shown
                events = cells[place_of(row)][0]
                value *= disclosure.nearest(events) / events
                assert row["low"] - 0.001 < before["low"] < before["high"] < row["high"] + 0.001
            assert row["value"] == round(value, 4 if row["metric"] == "nll" else 3)
    assert kept > 20
    for name in ("smooth_calibration", "decision"):
        assert told[name]
        assert not {(row["landmark_days"], row["cause"], row["horizon_days"]) for row in told[name]} & few


@pytest.mark.parametrize(("events", "is_told"), [(700, True), (11, True), (10, False)])
def test_a_likelihood_needs_people_with_an_event_and_nobody_without_one(events: int, is_told: bool) -> None:
    exact = recorded("wide", share=0.35)
    rows = [row for row in exact["metrics"] if row["metric"] == "nll" and row["value"] is not None]
    assert rows
    for row in rows:
        row |= {"subjects": 700, "events": events}
    told = [row for row in redact(exact)["metrics"] if row["metric"] == "nll" and row.get("events") is not None]
    assert [row["value"] is not None for row in told] == [is_told] * len(rows)


@pytest.mark.parametrize("name", ["unknown_token_rate", "unknown_age_rate"])
@pytest.mark.parametrize(("sides", "is_shown"), [((0, 90), True), ((7, 90), False), ((90, 7), False), ((30, 90), True)])
def test_a_share_of_few_peoples_rows_is_no_number(name: str, sides: tuple[int, int], is_shown: bool) -> None:
    exact = everything()
    exact["inputs"]["by_split"]["held_out"]["people"][name] = list(sides)
    assert (redact(exact)["inputs"]["by_split"]["held_out"][name] is not None) == is_shown


@pytest.mark.parametrize(("subjects", "is_shown"), [(9, False), (40, True)])
def test_an_external_validation_of_few_people_has_no_rate_of_tokens(subjects: int, is_shown: bool) -> None:
    exact = everything()
    rates = exact["inputs"]["by_split"]
    rates["external"] = {**rates.pop("held_out"), "subjects": subjects}
    told = redact(exact)["external"]
    assert (told["unknown_token_rate"] is not None) == is_shown
    assert told["training_unknown_token_rate"] == pytest.approx(rates["train"]["unknown_token_rate"], abs=5e-4)


@pytest.mark.parametrize("split", ["train", "tuning"])
@pytest.mark.parametrize("few", [True, False])
def test_what_few_peoples_events_decide_is_hidden(split: str, few: bool) -> None:
    """Likelihoods of a split, and of each rare cause: the weights of a blend's parts."""
    exact = everything()
    rare, often = exact["causes"][::-1][:2]
    exact["events"][split] |= {rare: 4, often: 5 if few else 50}
    row = {"train_nll": 1.2345, "tuning_nll": 1.2345}
    exact |= {"history": [row], "baselines": [{"model": "a", **row}]}
    weights = [{"cause": cause, "part": "network", "value": 0.5, "low": 0.4, "high": 0.6} for cause in (rare, often)]
    exact["blend"] = {"folds": 5, "parts": ["network"], "weights": weights, **row}
    told = redact(exact)
    name = f"{'train' if split == 'train' else 'tuning'}_nll"
    for one in (*told["history"], *told["baselines"], told["blend"]):
        assert (one[name] is None) == few
    values = {one["cause"]: one["value"] for one in told["blend"]["weights"]}
    assert (values[rare] is None, values[often] is None) == ((True, few) if split == "train" else (False, False))


def test_a_path_of_this_machine_is_in_no_setting() -> None:
    exact = everything()
    exact["config"] |= {"task": {"index": {"file": "/home/somebody/index.parquet"}}}
    exact["task"]["index"]["file"] = "/home/somebody/index.parquet"
    exact["config"]["evaluation"] = {"tripod": "/home/somebody/tripod.yaml"}
    told = redact({**exact, "run": "17"})
    assert "somebody" not in json.dumps(told)
    assert told["task"]["index"]["file"] == "index.parquet"


def test_single_persons_and_unknown_keys_stay_behind() -> None:
    exact = recorded() | {"a key of tomorrow": [1, 2, 3]}
    told = redact(exact)
    assert exact["trajectories"]
    assert told["trajectories"] == []
    assert "a key of tomorrow" not in told


# ---- the files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def real_like(sim_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run whose records are taken for those of real people."""
    return as_real(Path(shutil.copytree(sim_run, tmp_path / "run", ignore=lambda *_: {"metrics.json"})))


def test_exact_counts_are_in_a_file_that_only_its_owner_reads_and_nothing_needs(real_like: Path) -> None:
    settings = EvaluationConfig(baselines="none", bootstrap=10)
    result = evaluate(real_like, settings=settings)
    exact = json.loads((real_like / INDIVIDUAL).read_text())
    assert exact == json.loads(json.dumps(result))
    assert (real_like / INDIVIDUAL).stat().st_mode & 0o777 == 0o600
    assert exact["trajectories"] == []
    told = json.loads((real_like / "metrics.json").read_text())
    assert told == json.loads(json.dumps(redact(result)))
    assert {INDIVIDUAL, "metrics.json"} <= set(Run(real_like).manifest["files"])
    assert [(key, n) for key, n in integers(told) if shareable_count(n) != n] == []
    found = set(counts(exact, told))
    assert any(1 <= count <= 10 for count, _ in found)
    assert worked_out(found, shareable_count) == []
    (real_like / INDIVIDUAL).unlink()
    assert read_result(real_like) == told
    page = render(told)
    assert "too few events" in page
    assert not [n for n in range(1, 11) if f"n = {n}<" in page or f"<td>{n}</td>" in page]


def test_a_file_that_others_could_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / INDIVIDUAL).write_text("{}")
    (tmp_path / INDIVIDUAL).chmod(0o644)
    write_result(recorded(), tmp_path)
    assert (tmp_path / INDIVIDUAL).stat().st_mode & 0o777 == 0o600


def test_a_simulation_has_no_people_to_hide(sim_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(sim_run, tmp_path / "run", ignore=lambda *_: {"metrics.json"}))
    result = recorded()
    result["data"]["simulated"] = True
    add_result(result, run)
    assert json.loads((run / "metrics.json").read_text()) == json.loads(json.dumps(result))
    assert not (run / INDIVIDUAL).exists()
    assert read_result(run) == json.loads(json.dumps(result))


def test_single_people_are_drawn_for_simulations_only(sim_run: Path) -> None:
    run = Run(sim_run)
    store = Prepared(Path(run.manifest["prepared"]))
    simulated = Population.of_split(store, run.task, "held_out")
    settings = EvaluationConfig(baselines="none", bootstrap=0)
    for is_simulated, count in ((True, 4), (False, 0)):
        population = replace(simulated, is_simulated=is_simulated)
        evaluation = Evaluation(run, population, prepared=store, settings=settings)
        assert len(evaluation.result()["trajectories"]) == count
        assert evaluation.context.frame()["data"]["simulated"] == is_simulated
