"""`eh.run` on a folder that is finished: what is asked for again is answered by what was made of the same."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import ehrsequencing as eh
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json
from helpers.command_line import ehrseq

TINY: dict[str, Any] = {
    "vocabulary": {"min_subjects": 5},
    "model": {"dim": 16, "heads": 2, "layers": 1},
    "training": {"epochs": 1, "min_steps": 4, "blend": False},
    "evaluation": {"baselines": "none", "bootstrap": 0, "explained_subjects": 0},
    "progress": False,
}


def changed(**sections: dict[str, Any]) -> dict[str, Any]:
    return {name: TINY[name] | sections.get(name, {}) if name != "progress" else False for name in TINY}


@pytest.fixture(scope="module")
def study(sim_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of its own records, which may change."""
    folder = tmp_path_factory.mktemp("study")
    shutil.copytree(sim_data, folder / "meds")
    (folder / "meds/manifest.json").unlink()
    eh.run(folder / "meds", folder / "meds/task.yaml", out=folder / "out", **TINY)
    return folder


def rerun(study: Path, **sections: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    task = sections.pop("task", study / "meds/task.yaml")
    eh.run(study / "meds", task, out=study / "out", say=said.append, **changed(**sections))
    return read_json(study / "out/run/metrics.json"), said


def test_the_same_question_is_not_answered_again(study: Path) -> None:
    before = (study / "out/run/manifest.json").read_bytes()
    assert rerun(study)[1] == []
    assert (study / "out/run/manifest.json").read_bytes() == before


def test_other_settings_of_the_evaluation_evaluate_again(study: Path) -> None:
    first, _ = rerun(study)
    second, said = rerun(study, evaluation={"bootstrap": 20})
    assert [line[:27] for line in said] == ["4/5  evaluating again, by o"]
    assert second["made_of"] != first["made_of"]
    assert any(row["low"] is not None for row in second["metrics"])
    weights = (study / "out/run/model.safetensors").read_bytes()
    back, said = rerun(study)
    assert (back["made_of"], len(said)) == (first["made_of"], 1)
    done = ehrseq("evaluate", study / "out/run", "--split", "train", "--baselines", "none", "evaluation.bootstrap=0")
    assert done.exit_code == 0, done.output
    assert "on train" in repr(eh.load(study / "out/run"))
    assert rerun(study)[0]["split"] == "held_out"
    assert (study / "out/run/model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(
    ("sections", "name"),
    [
        ({"training": {"epochs": 3}}, "training.epochs"),
        ({"training": {"seed": 3}}, "training.seed"),
        ({"model": {"dropout": 0.45}}, "model.dropout"),
        ({"vocabulary": {"min_subjects": 6}}, "vocabulary.min_subjects"),
    ],
)
def test_other_settings_of_the_model_are_refused_by_name(study: Path, sections: dict[str, Any], name: str) -> None:
    with pytest.raises(EhrseqError, match=rf"what differs: {name}\).*--out"):
        rerun(study, **sections)


def test_another_task_and_other_records_are_refused_by_name(study: Path) -> None:
    task = (study / "meds/task.yaml").read_text()
    other = study / "other.yaml"
    other.write_text(task.replace("horizons:", "blanking: 7d\nhorizons:"))
    with pytest.raises(EhrseqError, match=r"what differs: task simulated\.blanking\).*--out"):
        rerun(study, task=other)  # type: ignore[arg-type]
    (shard, *_) = sorted((study / "meds/data").rglob("*.parquet"))
    whole = pq.read_table(shard, partitioning=None)
    pq.write_table(whole, shard, compression="gzip")
    assert rerun(study)[1] == []  # the same rows
    pq.write_table(whole.slice(0, len(whole) - 1), shard)
    with pytest.raises(EhrseqError, match=r"what differs: records\).*--out"):
        rerun(study)
    pq.write_table(whole, shard)
