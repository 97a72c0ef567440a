"""No command overwrites what it did not write, nor its own input; what is refused is left as it was, byte for byte."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ehrsequencing.core.outputs import MANIFEST
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.run_folder import hold_folder
from helpers.command_line import TASK, ehrseq
from helpers.meds import record, write_meds
from helpers.omop import SMALL, write_csv
from helpers.settings import TINY
from helpers.storage import everything
from helpers.synthea import NEW, write_tables

SYNTHEA = pytest.param("synthea", marks=pytest.mark.slow)  # imported by the writer of OMOP
QUICK = ("evaluation.bootstrap=0", "--baselines", "none")


def refused(folder: Path, *arguments: object) -> str:
    """Run a command that must fail with one line, and leave everything in a folder as it was."""
    before, names = everything(folder), sorted(folder.rglob("*"))
    done = ehrseq(*arguments)
    assert done.exit_code == 2, done.output
    assert everything(folder) == before
    assert sorted(folder.rglob("*")) == names
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
        assert "overlaps the input" in refused(tmp_path, *command(name, source, out)), where
    assert "overlaps the input" in refused(tmp_path, *command(name, link, source / "out"))


@pytest.mark.parametrize("name", ["prepare", "omop", SYNTHEA])
def test_only_a_folder_of_the_same_kind_is_replaced(inputs: dict[str, Path], tmp_path: Path, name: str) -> None:
    source, out = inputs[name], tmp_path / "parents" / "are" / "made"
    assert ehrseq(*command(name, source, out)).exit_code == 0
    first = everything(out)
    assert "add --overwrite" in refused(tmp_path, *command(name, source, out))
    again = (*command(name, source, out), "--overwrite")
    assert ehrseq(*again).exit_code == 0
    assert everything(out) == first
    assert not list(tmp_path.rglob(".tmp-*"))
    other, this = ("synthea", "a prepared") if name == "prepare" else ("prepare", "an imported")
    assert f"holds {this} data set, not a" in refused(tmp_path, *command(other, inputs[other], out), "--overwrite")
    (out / "notes.txt").write_text("mine")
    assert "'notes.txt', which ehrseq did not write" in refused(tmp_path, *again)
    app = (*command(name, source, mine(tmp_path / "app")), "--overwrite")
    assert "is not empty" in refused(tmp_path, *app)


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
    assert "add --overwrite" in refused(tmp_path, *make)
    done = ehrseq(*make, "--overwrite")
    assert done.exit_code == 0, done.output
    out.write_text("mine")
    assert "that ehrseq wrote" in refused(tmp_path, *make, "--overwrite")
    if name == "predict":
        inside = sim_data / "data" / "p.parquet"
        assert "overlaps the input" in refused(sim_data, *words[name], "--out", inside)


def test_overwrite_starts_an_interrupted_training_again(sim_prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    held = hold_folder(out, Prepared(sim_prepared), "simulated", {"model.dim": "other"}, resume=False)
    with pytest.raises(KeyboardInterrupt), held:
        raise KeyboardInterrupt
    note = out / "notes.txt"
    note.write_text("mine")
    train = ("train", sim_prepared, "--out", out, "--overwrite", *TINY)
    refused(tmp_path, *train)
    note.unlink()
    done = ehrseq(*train)
    assert done.exit_code == 0, done.output
