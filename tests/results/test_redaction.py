"""The writer of shareable files takes what has been redacted, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.core.files import Page, Shareable, write_shareable
from ehrsequencing.results.redaction import redact, redact_audit, redact_rows
from helpers.recorded import recorded


def test_only_redacted_content_is_written(tmp_path: Path) -> None:
    exact = recorded()
    refused: tuple[Any, ...] = (exact, dict(redact(exact)), "<p>a page</p>", [1], None)
    for content in refused:
        with pytest.raises(TypeError, match="redacted"):
            write_shareable(tmp_path / "file", content)
    assert not list(tmp_path.iterdir())
    shared = redact(exact)
    write_shareable(tmp_path / "metrics.json", shared)
    assert json.loads((tmp_path / "metrics.json").read_text()) == json.loads(json.dumps(shared))
    page = shared.drawn(lambda content: f"<p>{content['title']}</p>")
    assert isinstance(page, Page)
    write_shareable(tmp_path / "page.html", page)
    assert (tmp_path / "page.html").read_text() == page


def test_rows_of_few_people_have_no_numbers_whatever_holds_them() -> None:
    row = {"value": 0.81234, "low": 0.7, "high": 0.9}
    found = {
        "subjects": 48,
        "outcomes": [
            {
                "code": "DX//A",
                "events": 53,
                "auc": {**row, "events": 53, "subjects": 63},
                "c": {**row, "events": 53, "subjects": 64},
            },
        ],
        "metrics": [
            {"metric": "oe", **row, "events": 10, "subjects": 400},
            {"metric": "nll", **row, "events": 395, "subjects": 400},
        ],
    }
    shared = redact_rows(found, is_simulated=False)
    auc, c = shared["outcomes"][0]["auc"], shared["outcomes"][0]["c"]
    assert (auc["value"], auc["low"], auc["high"]) == (None, None, None)
    assert (c["value"], c["subjects"], c["events"]) == (0.812, 65, 55)
    assert (shared["subjects"], shared["outcomes"][0]["events"]) == (50, 55)
    oe, nll = shared["metrics"]
    assert (oe["value"], oe["events"]) == (None, "<11")
    assert (nll["value"], nll["events"]) == (0.8123, 395)
    assert redact_rows(found, is_simulated=True) == found


def test_a_ratio_is_told_between_those_of_the_counts_that_are_shown_alike() -> None:
    cell = {"from_days": 0.0, "until_days": 30.0, "oe": 1.2}
    counts = [(400, 53), (400, 10), (60, 52), (400, 0), (400, 11)]
    rows = [{**cell, "tenth": float(k), "n": n, "events": had} for k, (n, had) in enumerate(counts)]
    found = redact({**recorded(), "ratios": rows})["ratios"]
    assert [row["oe"] for row in found] == [None] * 5
    assert [(row["n"], row["events"], row.get("low"), row.get("high")) for row in found] == [
        (400, 55, pytest.approx(1.2 * 53 / 53, abs=1e-3), pytest.approx(1.2 * 57 / 53, abs=1e-3)),
        (400, "<11", None, None),
        (60, 50, None, None),
        (400, 0, None, None),
        (400, 15, pytest.approx(1.2 * 11 / 11, abs=1e-3), pytest.approx(1.2 * 17 / 11, abs=1e-3)),
    ]


def test_counts_of_an_audit_are_rounded() -> None:
    shared = redact_audit({"subjects": 7, "checks": [{"name": "a", "tested": {"subjects": 7, "rows": 63}}]})
    assert isinstance(shared, Shareable)
    assert shared["subjects"] == 7  # a setting
    assert shared["checks"][0]["tested"] == {"subjects": "<11", "rows": 65}


@pytest.mark.parametrize(
    ("had", "is_shown"), [({"outcome": 11, "death": 0}, True), ({"outcome": 10, "death": 9}, False)]
)
def test_a_likelihood_of_tuning_people_needs_eleven_with_an_event(had: dict[str, int], is_shown: bool) -> None:
    exact = recorded() | {
        "baselines": [{"model": "Cox", "tuning_nll": 1.5}],
    }
    exact["events"]["tuning"] = {"censored": 400, **had}
    exact["history"] = [{"epoch": 1, "train_loss": 1.2, "tuning_nll": 1.25, "seconds": 3.21, "steps": 91}]
    shared = redact(exact)
    assert (shared["history"][0]["tuning_nll"] is not None) == is_shown
    assert (shared["baselines"][0]["tuning_nll"] is not None) == is_shown
    assert shared["history"][0]["steps"] is None, "times the subjects of a step it is the training people"


def test_settings_name_files_without_their_folders() -> None:
    exact = recorded()
    exact["config"]["evaluation"] = {"tripod": "/home/somebody/answers.yaml"}
    exact["task"]["index"]["file"] = "/data/site/index.csv"
    shared = redact(exact)
    assert shared["config"]["evaluation"]["tripod"] == "answers.yaml"
    assert shared["task"]["index"]["file"] == "index.csv"


def test_a_share_of_prediction_times_is_of_eleven_people_or_more() -> None:
    exact = recorded()
    row = exact["inputs"]["by_split"]["held_out"]
    row["unknown_age_rate"] = 0.607  # the prediction times of one frequent visitor
    row["people"]["unknown_age_rate"] = [1, 300]
    shared = redact(exact)["inputs"]["by_split"]["held_out"]
    assert shared["unknown_age_rate"] is None
    assert shared["unknown_token_rate"] is not None
    row["subjects"] = 9
    shared = redact(exact)["inputs"]["by_split"]["held_out"]
    assert shared.pop("subjects") == "<11"
    assert set(shared.values()) == {None}
