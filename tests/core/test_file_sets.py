"""Files of one result: all of them are the earlier ones or the new ones, whenever a command is killed."""

import os
from pathlib import Path

import pytest

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.file_sets import output_files
from helpers.storage import SET, be_killed, everything

NAMES = ("r.csv", "r.html", "r.json")


def make(folder: Path, content: str, *, names: tuple[str, ...] = NAMES, left: int | None = None) -> None:
    """Write a result; with `left`, be killed at that change of the disk from the end of the writing on."""
    with output_files({folder / name: SET for name in NAMES}, overwrite=True) as files:
        for path in files:
            if path.name in names:
                path.write_text(f"a set of {content}")
        if left is not None:
            be_killed(iter(range(left, -1, -1)))


def test_a_kill_leaves_one_result_and_the_next_command_sees_it(tmp_path: Path) -> None:
    whole = {name: {n: f"a set of {name}".encode() for n in NAMES} for name in ("old", "new", "next")}
    killed = 0
    while True:
        folder = tmp_path / str(killed)
        make(folder, "old")
        child = os.fork()
        if child == 0:
            make(folder, "new", left=killed)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break
        killed += 1
        with pytest.raises(EhrseqError, match="is there already"), output_files({folder / n: SET for n in NAMES}):
            pass  # it finishes what was whole
        left = {name: data for name, data in everything(folder).items() if not name.startswith(".tmp-")}
        assert left in (whole["old"], whole["new"]), killed
        make(folder, "next")
        assert everything(folder) == whole["next"]
    assert killed > 4


def test_a_result_without_a_file_removes_the_earlier_one(tmp_path: Path) -> None:
    make(tmp_path, "old")
    make(tmp_path, "new", names=NAMES[1:])
    assert everything(tmp_path) == {name: b"a set of new" for name in NAMES[1:]}


def test_what_is_not_ours_stops_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("mine")
    with pytest.raises(EhrseqError, match="that ehrseq wrote"):
        make(tmp_path, "new")
    assert everything(tmp_path) == {"r.json": b"mine"}
