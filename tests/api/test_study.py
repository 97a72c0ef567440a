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
    "training": {"epochs": 1, "min_steps": 4, "blend": False, "distillation": 0},
    "evaluation": {"baselines": "none", "bootstrap": 0},
    "progress": False,
}


QUICK = ("blend=false", "distillation=0", "epochs=1")


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


@pytest.mark.slow
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
    shown = eh.load(study / "out/run")
    assert "on train" not in repr(shown), "the held-out people's stays the run's own"
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


# ---- what is refused before the work, and a study that is replaced ---------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("put", "message"),
    [
        ("run/mine.txt", "run: is not empty"),
        ("prepared/mine.txt", "prepared: is there already"),
        ("prepared", "prepared: is there already"),
    ],
)
def test_a_folder_of_somebody_else_is_refused_before_the_records_are_checked(
    put: str, message: str, study: Path, tmp_path: Path
) -> None:
    (tmp_path / put).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / put).write_text("mine")
    for overwrite in (False, True):
        said: list[str] = []
        with pytest.raises(EhrseqError, match=r"mine\.txt|is not|is there already") as raised:
            eh.run(study / "meds", study / "meds/task.yaml", out=tmp_path, say=said.append, overwrite=overwrite, **TINY)
        assert overwrite or message in str(raised.value)
        assert said == []
    assert (tmp_path / put).read_text() == "mine"


def test_a_missing_folder_or_file_of_the_settings_is_refused_before_the_work(study: Path, tmp_path: Path) -> None:
    said: list[str] = []
    given = {"out": tmp_path / "new", "say": said.append}
    with pytest.raises(EhrseqError, match="is not a folder"):
        eh.run(study / "nowhere", study / "meds/task.yaml", **given, **TINY)
    with pytest.raises(EhrseqError, match=r"none\.yaml: cannot be read"):
        eh.run(
            study / "meds",
            study / "meds/task.yaml",
            **given,
            **changed(evaluation={"tripod": str(study / "none.yaml")}),
        )
    with pytest.raises(EhrseqError, match="overlaps the input"):
        eh.run(study / "meds", study / "meds/task.yaml", **given | {"out": study / "meds"}, **TINY)
    assert said == []
    assert not (tmp_path / "new").exists()


def test_overwrite_replaces_the_whole_study_and_nothing_that_somebody_changed(study: Path) -> None:
    out, task = study / "out", study / "meds/task.yaml"
    (out / "predictions.csv").write_text("mine")  # beside the study
    vocabulary = (out / "prepared/vocabulary.json").read_bytes()
    report = out / "run/report.html"
    kept = report.read_bytes()
    report.write_bytes(kept + b"<!-- mine -->")
    before = contents(out)
    with pytest.raises(EhrseqError, match=r"report\.html', which has changed"):
        eh.run(study / "meds", task, out=out, overwrite=True, **TINY)
    assert contents(out) == before
    report.write_bytes(kept)
    words = ("visits.by=day", "vocabulary.min_subjects=8", *(f"training.{word}" for word in QUICK))
    tiny = ("model.dim=16", "model.heads=2", "model.layers=1", "evaluation.baselines=none", "evaluation.bootstrap=0")
    given = ("run", study / "meds", "--task", task, "--out", out, *words, *tiny)
    assert "--overwrite" in ehrseq(*given).stderr
    done = ehrseq(*given, "--overwrite")
    assert done.exit_code == 0, done.output
    assert (out / "prepared/vocabulary.json").read_bytes() != vocabulary
    assert (out / "predictions.csv").read_text() == "mine"
    assert f"open {report} in a browser" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1].startswith(f"next    ehrseq predict {out / 'run'} ")


def test_a_device_that_is_not_there_is_refused(study: Path, tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match=r"training\.device: cuda:99 is not there"):
        eh.fit(study / "out/prepared", out=tmp_path / "run", device="cuda:99", progress=False, blend=False)
    with pytest.raises(EhrseqError, match=r"training\.device"):
        eh.fit(study / "out/prepared", out=tmp_path / "run", device="gpu", progress=False)
