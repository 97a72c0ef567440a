"""Sites pooled by random effects: against published numbers, and files that are refused."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from ehrsequencing.core.disclosure import rounded
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import sha256
from ehrsequencing.core.outputs import EXTERNAL, save_manifest
from ehrsequencing.evaluation.pooling import pool, random_effects, read_sites
from ehrsequencing.results.redaction import redact
from helpers.command_line import ehrseq
from helpers.recorded import recorded
from helpers.report_page import Page, svgs

BCG = (  # trials of the BCG vaccine (Colditz 1994): cases and others among the vaccinated, and among the controls
    (4, 119, 11, 128),
    (6, 300, 29, 274),
    (3, 228, 11, 209),
    (62, 13536, 248, 12619),
    (33, 5036, 47, 5761),
    (180, 1361, 372, 1079),
    (8, 2537, 10, 619),
    (505, 87886, 499, 87892),
    (29, 7470, 45, 7232),
    (17, 1699, 65, 1600),
    (186, 50448, 141, 27197),
    (5, 2493, 3, 2338),
    (27, 16886, 29, 17825),
)


def test_the_bcg_trials_have_the_published_variance_between_them() -> None:
    """R's metafor gives tau² = 0.3181 with method="PM", and I² = 92 %."""
    a, b, c, d = np.array(BCG, dtype=float).T
    values = np.log(a / (a + b)) - np.log(c / (c + d))
    errors = np.sqrt(1 / a - 1 / (a + b) + 1 / c - 1 / (c + d))
    found = random_effects(values, errors)
    assert found["tau"] ** 2 == pytest.approx(0.3181, abs=5e-5)
    assert found["mean"] == pytest.approx(-0.715, abs=5e-4)
    assert found["i2"] == pytest.approx(0.921, abs=5e-4)
    weight = 1 / (errors**2 + found["tau"] ** 2)
    variance = (weight * (values - found["mean"]) ** 2).sum() / (12 * weight.sum())
    assert found["high"] - found["mean"] == pytest.approx(2.178813 * np.sqrt(variance), rel=1e-5)
    ahead = 2.200985 * np.sqrt(found["tau"] ** 2 + variance)
    assert found["next_high"] - found["mean"] == pytest.approx(ahead, rel=1e-5)


def test_equal_sites_have_no_variance_and_two_no_prediction() -> None:
    found = random_effects(np.array([0.5, 0.5]), np.array([0.1, 0.2]))
    assert (found["mean"], found["tau"], found["i2"]) == (pytest.approx(0.5), 0.0, 0.0)
    assert found["high"] - found["low"] == pytest.approx(2 * 12.7062 * (1 / 0.1**2 + 1 / 0.2**2) ** -0.5, rel=1e-5)
    assert np.isnan(found["next_low"])


@pytest.mark.parametrize("sites", [4, 10])
def test_intervals_hold_as_often_as_they_say(sites: int) -> None:
    """Of 1,000 studies, the interval holds the mean, and the wider one a new site, in about 95 %."""
    rng = np.random.default_rng(0)
    mean = new = 0
    for _ in range(1000):
        errors = rng.uniform(0.05, 0.3, sites)
        found = random_effects(0.7 + rng.normal(0, 0.2, sites) + rng.normal(0, errors), errors)
        mean += found["low"] <= 0.7 <= found["high"]
        new += found["next_low"] <= 0.7 + rng.normal(0, 0.2) <= found["next_high"]
    assert 930 <= mean <= 985, mean
    assert 890 <= new <= 985, new  # few sites: somewhat less than it says (Partlett & Riley 2017)


def evaluation(seed: int = 0) -> dict[str, Any]:
    """`metrics.json` of real people at one site."""
    found: dict[str, Any] = json.loads(_evaluation(seed))
    return found


@cache
def _evaluation(seed: int) -> str:
    result, rng = recorded(), np.random.default_rng(seed)
    for row in result["metrics"]:
        if row["low"] is not None:  # whoever gives everybody the same risk has C .5 (.5 to .5)
            moved = rng.normal() * (row["high"] - row["low"]) / 8
            row |= {end: row[end] + moved for end in ("low", "value", "high")}
    redacted = redact({**result, "weights": "a" * 64})
    people = {"subjects": 310, "seen_in_training": 0, "people": f"people of seed {seed}"}
    return json.dumps({**redacted, "split": "external", "external": people})


def write(folder: Path, metrics: Any) -> Path:
    folder.mkdir()
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return folder / "metrics.json"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / name, evaluation(seed)) for seed, name in enumerate(("north", "south", "west"))]


def test_pooled_on_the_metrics_own_scales(files: list[Path]) -> None:
    sites = read_sites(files)
    result = pool("a task", {name: site.rows for name, site in sites.items()})
    assert result["sites"] == ["north", "south", "west"]
    assert {row["metric"] for row in result["rows"]} >= {"c", "oe", "ipa"}
    for row in result["rows"]:
        ends = np.array([[one[name] for name in ("low", "value", "high")] for one in row["sites"].values()])
        scale = {"c": lambda c: np.log(c / (1 - c)), "oe": np.log}.get(row["metric"], np.asarray)
        low, value, high = scale(ends.astype(float)).T
        known = np.isfinite(low) & np.isfinite(high) & (high > low)
        assert row["pooled"] == known.sum()
        if row["pooled"] < 3:
            assert row["mean"] is row["low"] is row["high"] is None
            continue
        found = random_effects(value[known], ((high - low) / (2 * norm.ppf(0.975)))[known])
        assert scale(np.float64(row["mean"])) == pytest.approx(found["mean"], abs=1e-9)
        assert row["low"] <= row["mean"] <= row["high"]
        assert row["next_low"] is None  # of three sites; five say where another would lie


def test_the_command_writes_a_page_with_a_forest_plot(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "pooled"
    done = ehrseq("compare", "--pool", *files, "--out", out)
    assert done.exit_code == 0, done.output
    pooled = json.loads((out / "pooled.json").read_text())
    assert pooled["sites"] == ["north", "south", "west"]
    assert re.fullmatch("[0-9a-f]{16}", pooled["made_of"])
    assert pooled == json.loads(json.dumps(rounded(pooled)))
    text = (out / "pooled.html").read_text()
    assert "north" in Page(text).text
    assert len(svgs(text)) >= 3
    assert "3 sites" in done.output
    assert "--pool" in ehrseq("compare", *files, "--out", tmp_path / "other").output


def changed(**row: Any) -> dict[str, Any]:
    """An evaluation whose first C, or first row of `metric`, is changed."""
    metrics = evaluation(7)
    named = row.pop("metric", "c")
    one = next(one for one in metrics["metrics"] if one["metric"] == named and one["value"] is not None)
    one.update(row)
    return metrics


def validated(**external: Any) -> dict[str, Any]:
    """An evaluation that says something else of its people."""
    metrics = evaluation(7)
    return {**metrics, "external": {**metrics["external"], **external}}


REFUSED = {
    "c above one": (changed(value=1.2, low=1.1, high=1.3), "not possible"),
    "outside its interval": (
        changed(value=0.5, low=0.6, high=0.7),
        r"metrics, row \d+, value is not within its limits",
    ),
    "one limit": (changed(low=None), "low or high is missing"),
    "limits without an estimate": (changed(value=None), "value is missing"),
    "no width": (changed(low=0.7, value=0.7, high=0.7), "too near to one another"),
    "a width of rounding": (changed(low=0.7 - 1e-12, value=0.7, high=0.7 + 1e-12), "too near to one another"),
    "an ipa of no width": (changed(metric="ipa", low=0.1, value=0.1 + 1e-7, high=0.1 + 2e-7), "too near"),
    "huge": (changed(metric="oe", low=1e300, value=1e305, high=1e308), "not possible"),
    "a huge slope": (changed(metric="slope", low=-1e308, value=0.0, high=1e308), "not possible"),
    "a huge count": (changed(subjects=10**400), "less than or equal to"),
    "more events than people": (changed(events=3000), "impossible subjects or events"),
    "nobody": (changed(subjects=0, events=0), "impossible subjects or events"),
    "beside a hidden count": (changed(events="<11"), "hidden"),
    "a hidden number": (changed(hidden=True), "hidden"),
    "a landmark before the index": (changed(landmark_days=-5.0), "landmark_days.*greater than or equal to 0"),
    "training people": ({**evaluation(7), "split": "train"}, "split, Input should be"),
    "seen in training": (validated(seen_in_training=15), "seen_in_training is too large"),
    "a hidden number of few": (validated(seen_in_training="<11", subjects=60), "seen_in_training is too large"),
    "no count of people": (validated(seen_in_training="many"), "external, seen_in_training"),
    "people of another site": (validated(people="people of seed 0"), "people is of the same people"),
    "a score": ({**evaluation(7), "weights": None}, "weights, Input should be a valid string"),
    "half a surrogate": ({**evaluation(7), "title": "a\ud800"}, "half a surrogate"),
    "half a surrogate in a row": (changed(cause="a\ud800"), "half a surrogate"),
    "no number": (changed(value=float("nan")), "finite number"),
    "text": (changed(value="0.8"), "valid number"),
    "an exact count": (changed(events=13), "exact count"),
    "a small count": (changed(events=3), "exact count"),
    "more people than there are": (changed(subjects=900), r"row \d+, subjects are more than there are"),
    "more events than people without a value": (
        changed(value=None, low=None, high=None, events=400),
        "events are more than subjects",
    ),
    "people of nobody": (validated(subjects="<11"), "subjects are more than there are"),
    "another cause": (changed(cause="cancer"), "place is none of the task"),
    "a horizon before the prediction": (changed(horizon_days=-365.25), "place is none of the task"),
    "another landmark": (changed(landmark_days=12.0), "place is none of the task"),
    "an external split without its people": ({**evaluation(7), "external": None}, "external is missing"),
    "held-out people beside an external validation": ({**evaluation(7), "split": "held_out"}, "beside another split"),
    "no data": ({**evaluation(7), "data": None}, "data"),
    "data that is a number": ({**evaluation(7), "data": {"subjects": 3}}, "data, subjects"),
    "a baseline in the place of the model": (
        {**evaluation(7), "models": evaluation(7)["models"][::-1]},
        "models has another model first",
    ),
    "one evaluation twice": ({**evaluation(7), "made_of": "m" * 16}, "made_of is of the same evaluation"),
    "simulated people beside real ones": (
        {**evaluation(7), "data": {**evaluation(7)["data"], "simulated": True}},
        "simulated differs",
    ),
    "a landmark without a number": (changed(landmark_days=float("inf")), "finite number"),
    "a count with a decimal": (changed(events=45.0), "valid integer"),
    "a count that is true": (changed(events=True), "valid integer"),
    "no model": ({**evaluation(7), "models": []}, "models"),
    "a negative count": (changed(events=-20), "greater than or equal to 0"),
    "twice": ({**evaluation(7), "metrics": evaluation(7)["metrics"] * 2}, r"row \d+, metric stands twice"),
    "no rows": ({**evaluation(7), "metrics": None}, "valid list"),
    "another model": ({**evaluation(7), "weights": "b" * 64}, "weights is that of another model"),
    "another task": ({**evaluation(7), "task": {"name": "other"}}, "task differs"),
    "the same people": (evaluation(0), "same people"),
    "no object": ([1, 2], "no metrics.json"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_impossible_file_is_refused(name: str, tmp_path: Path) -> None:
    metrics, reason = REFUSED[name]
    first = evaluation() | ({"made_of": "m" * 16} if name == "one evaluation twice" else {})
    files = [write(tmp_path / "north", first), write(tmp_path / "south", metrics)]
    with pytest.raises(EhrseqError, match=reason):
        read_sites(files)


def test_a_file_that_was_changed_beside_its_manifest_is_refused(files: list[Path], tmp_path: Path) -> None:
    save_manifest(files[0].parent, {**EXTERNAL.facts, "files": {"metrics.json": sha256(files[0])}})
    assert len(read_sites(files)) == 3
    metrics = json.loads(files[0].read_text())
    metrics["metrics"][0]["subjects"] = 1000
    files[0].write_text(json.dumps(metrics))
    with pytest.raises(EhrseqError, match="was altered"):
        read_sites(files)


def test_one_site_or_two_of_one_name_are_refused(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match="two sites"):
        read_sites(files[:1])
    (tmp_path / "other").mkdir()
    with pytest.raises(EhrseqError, match="has the name of north"):
        read_sites([files[0], write(tmp_path / "other" / "north", evaluation(5))])


def test_other_resamples_of_the_same_people_are_no_other_site(files: list[Path], tmp_path: Path) -> None:
    """Other intervals around the same numbers, and held-out people of one model."""
    again = evaluation(0)
    for row in again["metrics"]:
        if row["low"] is not None and row["low"] < row["high"]:
            row["low"] -= 0.001
    again["external"]["people"] = None
    with pytest.raises(EhrseqError, match="metrics has the same results"):
        read_sites([files[0], write(tmp_path / "again", again)])
    own = [{**evaluation(seed), "split": "held_out", "external": None} for seed in (3, 4)]
    with pytest.raises(EhrseqError, match="same people"):
        read_sites([write(tmp_path / f"own-{seed}", one) for seed, one in enumerate(own)])
    assert len(read_sites([files[0], write(tmp_path / "one", own[0])])) == 2
    few = validated(seen_in_training="<11", subjects=310)  # at most a tenth
    assert len(read_sites([files[0], write(tmp_path / "few", few)])) == 2
