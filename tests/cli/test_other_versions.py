"""Whatever 1.x wrote is refused in one line that names the version which reads it, by every command and function."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import ehrsequencing as eh
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.outputs import sealed
from helpers.command_line import ehrseq, refused

SAYS = "was made by ehrsequencing 1.0.0, which alone reads it"


def as_first_version(folder: Path, out: Path) -> Path:
    """A copy of an output whose manifest is one of 1.0.0."""
    shutil.copytree(folder, out)
    manifest = json.loads((out / "manifest.json").read_text())
    named = {"versions": {"ehrsequencing": "1.0.0"}} if "versions" in manifest else {"version": "1.0.0"}
    (out / "manifest.json").write_text(json.dumps(sealed({**manifest, **named, "format": 2})))
    return out


def test_a_run(sim_run: Path, sim_data: Path, sim_prepared: Path, tmp_path: Path) -> None:
    run, out = as_first_version(sim_run, tmp_path / "run"), tmp_path / "out"
    for command in (
        ("predict", run, sim_data, "--out", tmp_path / "risks.csv"),
        ("drift", run, sim_data),
        ("evaluate", run),
        ("evaluate", run, "--data", sim_data),
        ("explain", run, sim_data, "--subject", 1),
        ("explore", run, sim_data, "--out", tmp_path / "page.html"),
        ("audit", run),
        ("serve", run),
        ("compare", run, sim_run),
        ("compare", sim_run, run),
        ("export", run, "--out", out),
        ("train", sim_prepared, "--init", run, "--out", out),
        ("train", sim_prepared, "--resume", "--out", run),
    ):
        assert SAYS in refused(*command), command
    with pytest.raises(EhrseqError, match=SAYS):
        eh.load(run)


def test_a_training_that_was_interrupted(sim_prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    begun = {"kind": "unfinished run", "format": 2, "made_of": {}}
    (tmp_path / "run" / "checkpoints" / "begun.json").write_text(json.dumps(begun))
    line = refused("train", sim_prepared, "--resume", "--out", tmp_path / "run")
    assert "was made by ehrsequencing 1.x, which alone reads it" in line


def test_a_prepared_set(sim_run: Path, sim_prepared: Path, tmp_path: Path) -> None:
    prepared = as_first_version(sim_prepared, tmp_path / "set")
    assert SAYS in refused("train", prepared, "--out", tmp_path / "run")
    assert SAYS in refused("pretrain", prepared, "--out", tmp_path / "run")
    assert SAYS in refused("evaluate", sim_run, "--prepared", prepared)
    with pytest.raises(EhrseqError, match=SAYS):
        eh.load(prepared)


def test_predictions(sim_run: Path, sim_data: Path, tmp_path: Path) -> None:
    risks, older = tmp_path / "risks.parquet", tmp_path / "older.parquet"
    assert ehrseq("predict", sim_run, sim_data, "--out", risks).exit_code == 0
    table = pq.read_table(risks)
    assert table.schema.metadata[b"ehrsequencing.version"] == eh.__version__.encode()
    pq.write_table(table.replace_schema_metadata({b"ehrsequencing.version": b"1.0.0"}), older)
    command = ("score", older, sim_data, "--task", sim_data / "task.yaml", "--out", tmp_path / "out")
    assert SAYS in refused(*command)
