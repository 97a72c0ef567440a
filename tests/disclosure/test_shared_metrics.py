"""An adversary reads `metrics.json` of real people: no count under 11 is in it, nor comes out by sums or products."""

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.config import EvaluationConfig
from ehrsequencing.disclosure.shared import INDIVIDUAL, shared
from ehrsequencing.disclosure.small_counts import Count
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.evaluation.results import add_result, read_result, write_result
from ehrsequencing.prediction.run import Run
from ehrsequencing.reporting.report import render
from helpers.metrics_json import WIDE, complete

SMALL = range(1, 11)
KINDS = [(312, WIDE), (1500, WIDE), (700, {"causes": ("death", "transplant")})]
COUNTS = {"subjects", "events", "excluded", "n", "seen_in_training", "shared_subjects", "no_event", "unknown"}


def counts(value: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """Every whole number that stands under the name of a count."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from counts(inner, key if key in COUNTS and name not in COUNTS else name)
    elif isinstance(value, list):
        for inner in value:
            yield from counts(inner, key)
    elif isinstance(value, int) and not isinstance(value, bool) and key in COUNTS:
        yield key, value


def differences(told: dict[str, Any]) -> list[int]:
    """Totals less their parts, steps less the next, horizons less the one before, landmarks less the next."""
    sums = [*_of_splits(told), *_of_landmarks(told), *_of_subgroups(told)]
    return [sum(whole) - sum(parts) for whole, parts in sums if all(isinstance(n, int) for n in (*whole, *parts))]


Sums = Iterator[tuple[Sequence[Any], Sequence[Any]]]


def _of_splits(told: dict[str, Any]) -> Sums:
    for split, events in told["events"].items():
        parts = list(events.values())
        for few in range(1, len(parts) + 1):
            yield from (([told["data"]["subjects"][split]], some) for some in itertools.combinations(parts, few))
    for before, after in itertools.pairwise(told["attrition"]):
        yield [before["subjects"]], [after["subjects"]]
    yield [told["attrition"][-1]["subjects"]], [*told["data"]["subjects"].values()]


def _of_landmarks(told: dict[str, Any]) -> Sums:
    for row in told["at_risk"]:
        whole = [row["subjects"]]
        for events in row["events"].values():
            yield from ((whole, [number]) for number in events)
            yield from (([late], [early]) for early, late in itertools.combinations(events, 2))
        yield from ((whole, own) for own in zip(*row["events"].values(), strict=True))
        yield [told["data"]["subjects"][told["split"]]], whole
    yield from (([a["subjects"]], [b["subjects"]]) for a, b in itertools.combinations(told["at_risk"], 2))


def _of_subgroups(told: dict[str, Any]) -> Sums:
    yield from (([row["n"]], [row["events"]]) for row in told["subgroups"])
    for family in {(row["landmark_days"], row["group"]) for row in told["subgroups"]}:
        levels = [row["n"] for row in told["subgroups"] if (row["landmark_days"], row["group"]) == family]
        whole = [row["subjects"] for row in told["at_risk"] if row["landmark_days"] == family[0]]
        yield from ((whole, [*levels[:k], *levels[k + 1 :]]) for k in range(len(levels)))


def products(exact: dict[str, Any], told: dict[str, Any]) -> list[str]:
    """n × every rate of a place whose events, or those without, are few; n as the data have it."""
    out, found = [], {tuple(row[k] for k in KEY): row["value"] for row in told["metrics"]}
    for row in exact["at_risk"]:
        for cause, by in row["events"].items():
            for horizon, events in zip(exact["horizons_days"], by, strict=True):
                n = row["subjects"]
                hidden = [count for count in (events, n - events) if count in SMALL]
                for model in exact["models"]:
                    place = (model, row["landmark_days"], cause, horizon)
                    values = {metric: found.get((*place, metric)) for metric in ("brier", "ipa", "oe", "c", "auc")}
                    rates = [value for value in values.values() if value is not None and 0 < value < 1]
                    if values["brier"] is not None and values["ipa"] is not None:
                        p = 0.5 - np.sqrt(max(0.25 - values["brier"] / (1 - values["ipa"]), 0.0))
                        rates += [p, 1 - p]
                    out += [f"{place}: {count}" for count in hidden for rate in rates if abs(n * rate - count) < 0.5]
    return out


KEY = ("model", "landmark_days", "cause", "horizon_days", "metric")


def adversary(exact: dict[str, Any], told: dict[str, Any]) -> list[Any]:
    few = [(name, number) for name, number in counts(told) if number in SMALL]
    return [*few, *(gap for gap in differences(told) if gap in SMALL), *products(exact, told)]


@pytest.mark.parametrize(("subjects", "kind"), KINDS)
def test_no_small_count_is_in_the_shared_metrics_nor_comes_out_of_them(subjects: int, kind: dict[str, Any]) -> None:
    exact = complete(subjects=subjects, **kind)
    assert [number for _, number in counts(exact) if number in SMALL]
    told = json.loads(json.dumps(shared(exact)))
    assert adversary(exact, told) == []
    assert len(list(counts(told))) > 20  # and yet it tells something
    assert any(row["value"] is not None for row in told["metrics"])


def test_the_adversary_finds_what_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = complete(subjects=1500, **WIDE)

    def everything(counts: dict[Any, Count], *_: Any) -> dict[Any, str]:
        return {key: f"{count.value:,}" for key, count in counts.items()}

    def only_small_ones(counts: dict[Any, Count], *_: Any) -> dict[Any, str]:
        return {key: "<11" if count.value in SMALL else f"{count.value:,}" for key, count in counts.items()}

    monkeypatch.setattr("ehrsequencing.disclosure.counts.hide_small", everything)
    assert [number for _, number in counts(shared(exact)) if number in SMALL]
    monkeypatch.setattr("ehrsequencing.disclosure.counts.hide_small", only_small_ones)
    assert [gap for gap in differences(shared(exact)) if gap in SMALL]


def test_single_persons_and_unknown_keys_stay_behind() -> None:
    exact = complete() | {"a key of tomorrow": [1, 2, 3]}
    told = shared(exact)
    assert exact["trajectories"]
    assert told["trajectories"] == []
    assert "a key of tomorrow" not in told
    assert "points" not in (told["instability"] or {})
    for row in told["metrics"]:
        if row["metric"] == "c" and row["value"] is not None:
            assert row["value"] == round(row["value"], 3)


@pytest.fixture
def real_like(sim_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run whose records are taken for those of real people."""
    for place in ("context", "evaluate"):
        monkeypatch.setattr(f"ehrsequencing.evaluation.{place}.is_simulation", lambda source: False)
    return Path(shutil.copytree(sim_run, tmp_path / "run", ignore=lambda *_: {"metrics.json"}))


def test_exact_counts_are_in_a_file_that_only_its_owner_reads(real_like: Path) -> None:
    settings = EvaluationConfig(
        explained_subjects=0, baselines="none", bootstrap=10, subgroups=("sex",), trajectories=2
    )
    result = evaluate(real_like, settings=settings)
    exact = json.loads((real_like / INDIVIDUAL).read_text())
    assert exact == json.loads(json.dumps(result))
    assert (real_like / INDIVIDUAL).stat().st_mode & 0o777 == 0o600
    assert len(exact["trajectories"]) == 2
    told = json.loads((real_like / "metrics.json").read_text())
    assert told == json.loads(json.dumps(shared(result)))
    assert told["individual"] == INDIVIDUAL
    assert adversary(exact, told) == []
    assert [number for _, number in counts(exact) if number in SMALL]
    assert {INDIVIDUAL, "metrics.json"} <= set(Run(real_like).manifest["files"])
    found = read_result(real_like)
    assert found == exact
    assert found is not None
    assert render(found) == render(result)
    (real_like / INDIVIDUAL).unlink()  # as one does before a run is given away: then no report can be drawn again
    assert read_result(real_like) is None


def test_a_file_that_others_could_read_is_closed(real_like: Path, tmp_path: Path) -> None:
    (tmp_path / INDIVIDUAL).write_text("{}")
    (tmp_path / INDIVIDUAL).chmod(0o644)
    write_result(complete(), tmp_path)
    assert (tmp_path / INDIVIDUAL).stat().st_mode & 0o777 == 0o600


def test_a_simulation_has_no_people_to_hide(sim_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(sim_run, tmp_path / "run", ignore=lambda *_: {"metrics.json"}))
    result = complete()
    result["data"]["simulated"] = True
    add_result(result, run)
    assert json.loads((run / "metrics.json").read_text()) == json.loads(json.dumps(result))
    assert not (run / INDIVIDUAL).exists()
    assert read_result(run) == json.loads(json.dumps(result))
