"""`ehrseq score`: a file of a run's risks gets the numbers of `evaluate`."""

import json
from pathlib import Path

import pandas as pd
import pytest

from ehrsequencing.config import EvaluationConfig, StudyConfig, TaskConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.evaluation.score import score
from helpers.command_line import ehrseq, refused
from helpers.score import Score, by_key, first

SETTINGS = EvaluationConfig(bootstrap=5)
NO_RIVALS = ("evaluation.baselines=none", "evaluation.bootstrap=0")


@pytest.mark.slow
def test_a_file_of_our_risks_gets_the_numbers_of_evaluate(
    sim_run: Path, sim_data: Path, task: TaskConfig, predicted: Path, tmp_path: Path, tiny_study: StudyConfig
) -> None:
    """Cohort, labels, splits and baselines are made anew from the records; nothing of the run is read."""
    expected = evaluate(sim_run, settings=SETTINGS)
    study = tiny_study.model_copy(update={"evaluation": SETTINGS})
    found, folder = score(predicted, sim_data, task, study=study, out=tmp_path / "out", name="ours")
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "metrics.json"]
    assert json.loads((folder / "metrics.json").read_text()) == found
    assert found["strongest"] == expected["strongest"] is not None
    assert found["baselines"] == expected["baselines"]
    assert found["models"] == ["ours", *expected["models"][1:]]
    left_out = {"nll", "ibs", "aj", "aj_null"}  # three horizons say too little of the curve between them
    for part in ("metrics", "differences"):
        ours, theirs = by_key(found[part], "ours"), by_key(expected[part], "ehrsequencing")
        # a table with risks alone has one O/E for all; models with hazards keep theirs beside it
        by_hazards = {(*key[:4], "oe"): row for key, row in ours.items() if key[4] == "oe_hazards"}
        ours = {key: row for key, row in ours.items() if key[4] != "oe_hazards"}
        assert not {key for key in ours if key[4] in left_out}
        same = {key: row for key, row in theirs.items() if key[4] not in left_out}
        assert set(ours) == set(same)
        assert {"c", "auc", "brier", "ipa"} <= {key[4] for key in ours}
        for key, row in same.items():
            assert (ours[key]["subjects"], ours[key]["events"]) == (row["subjects"], row["events"])
            mine = by_hazards.get(key, ours[key])
            for name in ("value", "low", "high"):
                assert (mine[name] is None) == (row[name] is None), key
                near = 0.05 if key[4] == "oe" else 1e-6  # its hazards are constant between the horizons
                if key[4] != "oe" or key in by_hazards:
                    assert row[name] is None or mine[name] == pytest.approx(row[name], abs=near, rel=near), key
    for part in ("smooth_calibration", "decision", "subgroups"):
        assert len(found[part]) == len(expected[part]) > 0
    assert "left out: they need the risks of 5 or more horizons" in " ".join(found["warnings"])


def test_the_command_prepares_and_removes_the_set(
    predicted: Path, sim_data: Path, task_file: Path, tmp_path: Path
) -> None:
    arguments = ("score", predicted, sim_data, "--task", task_file, "--out", tmp_path / "out", *NO_RIVALS)
    done = ehrseq(*arguments, "--name", "theirs")
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "metrics.json",
        "report-details.html",
        "report.html",
    ]
    assert "add --overwrite" in refused(*arguments)
    assert ehrseq(*arguments, "--overwrite").exit_code == 0
    (tmp_path / "out" / "mine.txt").write_text("")
    assert "which ehrseq did not write" in refused(*arguments, "--overwrite")
    assert "belongs to" in refused(*arguments[:-2], "--overwrite", "model.dim=3")


def test_files_beside_each_other_get_their_own_numbers_and_the_difference(
    frame: pd.DataFrame, scored: Score, task: TaskConfig, tmp_path: Path
) -> None:
    """The second file has the metrics that it would have alone; the difference is the first's metric minus it."""
    other, path = frame.assign(risk=frame["risk"] ** 1.5), tmp_path / "other.parquet"
    other.to_parquet(path)
    alone = by_key(scored(other, name="other")["metrics"], "other")
    result = scored(frame, name="mine", beside={"other": path})
    together = {key[1:]: row for key, row in by_key(result["metrics"], "").items() if key[0] == "other"}
    own = {key[1:]: row for key, row in by_key(result["metrics"], "").items() if key[0] == "mine"}
    compared = [key for key in together if ("ours", *key) in alone and together[key]["value"] is not None]
    assert {"c", "ipa"} <= {key[-1] for key in compared}
    for key in compared:
        assert together[key]["value"] == pytest.approx(alone["ours", *key]["value"], abs=1e-9), key
    gaps = [row for row in result["differences"] if row["model"] == "other" and row["value"] is not None]
    assert gaps
    for row in gaps:
        key = tuple(row[name] for name in ("landmark_days", "cause", "horizon_days", "metric"))
        assert row["value"] == pytest.approx(own[key]["value"] - together[key]["value"], abs=1e-9)


def test_a_file_beside_another_must_answer_the_same_prediction_times(
    frame: pd.DataFrame, scored: Score, tmp_path: Path
) -> None:
    fewer, path = frame[frame["subject_id"] != first(frame, "subject_id")], tmp_path / "fewer.parquet"
    fewer.to_parquet(path)
    with pytest.raises(EhrseqError, match="evaluated prediction times"):
        scored(frame, beside={"fewer": path})
    with pytest.raises(EhrseqError, match="name of another model"):
        scored(frame, name="fewer", beside={"fewer": path})
