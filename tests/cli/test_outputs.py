"""No command overwrites what it did not write, nor its own input; what is refused is left as it was, byte for byte."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import ehrsequencing as eh
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.outputs import MANIFEST, sealed
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.run_folder import hold_folder
from helpers.command_line import TASK, ehrseq, refused
from helpers.meds import record, write_meds
from helpers.omop import SMALL, write_csv
from helpers.settings import TINY
from helpers.storage import everything, snapshot
from helpers.synthea import NEW, write_tables

SYNTHEA = pytest.param("synthea", marks=pytest.mark.slow)  # imported by the writer of OMOP
QUICK = ("evaluation.bootstrap=0", "--baselines", "none")


def left_alone(folder: Path, *arguments: object) -> str:
    """Run a command that must fail with one line, and leave everything in a folder as it was."""
    before = snapshot(folder)
    done = ehrseq(*arguments)
    assert done.exit_code == 2, done.output
    assert snapshot(folder) == before
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ehrseq: ")]
    return line


def mine(folder: Path) -> Path:
    """A stranger's folder that has a manifest, as that of a web app."""
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text('{"name": "my app", "files": {}}')
    (folder / "thesis.tex").write_text("years of work")
    return folder


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    """Folder of the input of each command that makes a folder of another."""
    rows = [row for s in range(40) for row in record(s, "0 A, 3 B=2, 9 A, 20 C" + (", 30 MEDS_DEATH" if s % 3 else ""))]
    (tmp_path / "task.yaml").write_text(TASK)
    return {
        "prepare": write_meds(tmp_path / "in" / "meds", rows),
        "omop": write_csv(SMALL, tmp_path / "in" / "omop"),
        "synthea": write_tables(NEW, tmp_path / "in" / "synthea"),
    }


def command(name: str, source: Path, out: Path) -> list[object]:
    if name == "prepare":
        return ["prepare", source, "--out", out, "--task", source.parents[1] / "task.yaml"]
    return ["import", name, source, out]


@pytest.mark.parametrize("name", ["prepare", "omop", SYNTHEA])
def test_input_and_output_must_not_overlap(inputs: dict[str, Path], tmp_path: Path, name: str) -> None:
    source = inputs[name]
    link = source.parent / "link"
    link.symlink_to(source)
    (tmp_path / "up").symlink_to("in")
    around = {"itself": source, "inside": source / "deep" / "out", "around": source.parent, "a link to it": link}
    around |= {"a link, and inside": tmp_path / "up" / source.name / "out", "roundabout": source / ".." / source.name}
    for where, out in around.items():
        assert "overlaps the input" in left_alone(tmp_path, *command(name, source, out)), where
    assert "overlaps the input" in left_alone(tmp_path, *command(name, link, source / "out"))


@pytest.mark.parametrize("name", ["prepare", "omop", SYNTHEA])
def test_only_a_folder_of_the_same_kind_is_replaced(inputs: dict[str, Path], tmp_path: Path, name: str) -> None:
    source, out = inputs[name], tmp_path / "parents" / "are" / "made"
    assert ehrseq(*command(name, source, out)).exit_code == 0
    first = everything(out)
    assert "add --overwrite" in left_alone(tmp_path, *command(name, source, out))
    again = (*command(name, source, out), "--overwrite")
    assert ehrseq(*again).exit_code == 0
    assert everything(out) == first
    assert not list(tmp_path.rglob(".tmp-*"))
    other, this = ("synthea", "a prepared") if name == "prepare" else ("prepare", "an imported")
    assert f"holds {this} data set, not a" in left_alone(tmp_path, *command(other, inputs[other], out), "--overwrite")
    (out / "notes.txt").write_text("mine")
    assert "'notes.txt', which ehrseq did not write" in left_alone(tmp_path, *again)
    app = (*command(name, source, mine(tmp_path / "app")), "--overwrite")
    assert "is not empty" in left_alone(tmp_path, *app)


FILES = {
    "predict": ("csv.gz", "parquet"),
    "check": ("json",),
    "explain --subjects": ("csv", "parquet"),
    "explain --subject": ("csv",),
    "explore": ("html",),
}


@pytest.mark.parametrize(("name", "ending"), [(name, one) for name, endings in FILES.items() for one in endings])
def test_a_file_is_replaced_only_by_one_of_its_kind(
    sim_run: Path, sim_data: Path, tmp_path: Path, name: str, ending: str
) -> None:
    out = tmp_path / "a" / f"x.{ending}"
    subject = pq.read_table(next((sim_data / "data").rglob("*.parquet")), partitioning=None)["subject_id"][0].as_py()
    words = {
        "predict": ("predict", sim_run, sim_data, "--at", "last"),
        "check": ("check", sim_data),
        "explain --subjects": ("explain", sim_run, sim_data, "--subjects", "2"),
        "explain --subject": ("explain", sim_run, sim_data, "--subject", subject),
        "explore": ("explore", sim_run, sim_data, "--subjects", "2"),
    }
    make = (*words[name], "--out", out)
    done = ehrseq(*make)
    assert done.exit_code == 0, done.output
    beside = {"x.html", "x.json"} if name == "predict" else set()
    assert {path.name for path in out.parent.iterdir()} == {out.name, *beside}, "nothing else lies beside it"
    assert "add --overwrite" in left_alone(tmp_path, *make)
    done = ehrseq(*make, "--overwrite")
    assert done.exit_code == 0, done.output
    out.write_text("mine")
    assert "that ehrseq wrote" in left_alone(tmp_path, *make, "--overwrite")
    if name == "predict":
        inside = sim_data / "data" / "p.parquet"
        assert "overlaps the input" in left_alone(sim_data, *words[name], "--out", inside)


def test_overwrite_starts_an_interrupted_training_again(sim_prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    held = hold_folder(out, Prepared(sim_prepared), "simulated", {"model.dim": "other"}, resume=False)
    with pytest.raises(KeyboardInterrupt), held:
        raise KeyboardInterrupt
    note = out / "notes.txt"
    note.write_text("mine")
    train = ("train", sim_prepared, "--out", out, "--overwrite", *TINY)
    left_alone(tmp_path, *train)
    note.unlink()
    done = ehrseq(*train)
    assert done.exit_code == 0, done.output


# ---- what 1.x wrote is refused in one line that names the version which reads it -------------------------------------


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
