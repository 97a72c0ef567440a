"""Files are whole or absent, and changed bytes are seen."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ehrsequencing.core import replacing
from ehrsequencing.core.arrays import ArrayWriter
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.output_kinds import MANIFEST
from ehrsequencing.core.owners import this_process
from ehrsequencing.core.storage import (
    atomic_path,
    complete_folder,
    read_json,
    refuse_foreign_file,
    write_bytes,
    write_json,
    write_manifest,
)
from ehrsequencing.core.temporaries import sweep_temporaries
from helpers.command_line import ehrseq
from helpers.storage import SET, everything, in_a_process, make_set


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.json"
    write_json(path, {"a": 1})
    before = everything(tmp_path)

    def fail() -> None:
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        fail()
    assert everything(tmp_path) == before
    with pytest.raises(ValueError, match="Out of range"):
        write_json(path, float("nan"))
    assert read_json(path) == {"a": 1}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PermissionError(13, "Permission denied")])
def test_a_refusing_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    write_bytes(tmp_path / "x", b"old")

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(EhrseqError, match=str(error.strerror)):
        write_bytes(tmp_path / "x", b"new")
    assert everything(tmp_path) == {"x": b"old"}


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    make_set(folder, b"one")
    before = everything(tmp_path)

    def fail() -> None:
        with complete_folder(folder, SET) as temporary:
            (temporary / "x").write_bytes(b"two")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert everything(tmp_path) == before
    make_set(folder, b"two")
    assert (folder / "part" / "x.bin").read_bytes() == b"two"
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="asks the system for the names of open files")
@pytest.mark.parametrize("exchanges", [True, False])
def test_the_disk_keeps_every_file_before_the_folder_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    happened: list[tuple[str, str]] = []
    fsync, replace, real = os.fsync, os.replace, replacing.exchange

    def noted_fsync(descriptor: int) -> None:
        happened.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def noted_replace(source: Path, target: Path) -> None:
        happened.append(("replace", Path(target).name))
        replace(source, target)

    def exchange(first: Path, second: Path) -> bool:
        if exchanges:
            happened.append(("replace", second.name))
        return exchanges and real(first, second)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(replacing, "exchange", exchange)
    make_set(tmp_path / "set", b"one")
    named = happened.index(("replace", "set"))
    assert {name for what, name in happened[:named] if what == "fsync"} >= {"x.bin", "part", MANIFEST}
    assert happened[named + 1] == ("fsync", tmp_path.name)
    happened.clear()
    write_bytes(tmp_path / "y", b"alone")
    assert [what for what, _ in happened] == ["fsync", "replace", "fsync"]


def manifest_says(folder: Path, **changes: object) -> None:
    facts = {key: value for key, value in (read_json(folder / MANIFEST) | changes).items() if value is not None}
    (folder / MANIFEST).write_text(json.dumps(facts))


def web_app(folder: Path) -> None:
    shutil.rmtree(folder)
    (folder / "src").mkdir(parents=True)
    (folder / "manifest.json").write_text('{"name": "my app", "icons": []}')
    (folder / "src" / "thesis.tex").write_text("years of work")


def link_inside(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere" / "x.bin").write_bytes(b"elsewhere")
    shutil.rmtree(folder / "part")
    (folder / "part").symlink_to(folder.parent / "elsewhere")


FOREIGN: dict[str, Callable[[Path], object]] = {
    "no manifest": lambda folder: (folder / MANIFEST).unlink(),
    "a web app": web_app,
    "notes beside our files": lambda folder: (folder / "notes.txt").write_text("mine"),
    "notes in a folder of ours": lambda folder: (folder / "part" / "notes.txt").write_text("mine"),
    "a folder of notes": lambda folder: ((folder / "mine").mkdir(), (folder / "mine" / "a").write_text("mine")),
    "an empty folder": lambda folder: (folder / "mine").mkdir(),
    "a hidden file": lambda folder: (folder / ".git").write_text("mine"),
    "a manifest of its own": lambda folder: (folder / "part" / MANIFEST).write_text("{}"),
    "a temporary of another program": lambda folder: (folder / ".tmp-1-x").write_text("mine"),
    "a link": link_inside,
    "another kind": lambda folder: manifest_says(folder, kind="run"),
    "no kind": lambda folder: manifest_says(folder, kind=None),
    "a kind that is no text": lambda folder: manifest_says(folder, kind=["set"]),
    "an older manifest": lambda folder: manifest_says(folder, format=None),
    "a newer format": lambda folder: manifest_says(folder, format=SET.format + 1),
    "a format that is no number": lambda folder: manifest_says(folder, format=True),
    "no list of files": lambda folder: manifest_says(folder, files=None),
    "files that are no list": lambda folder: manifest_says(folder, files="part/x.bin"),
    "half a manifest": lambda folder: (folder / MANIFEST).write_text('{"kind": "set", "for'),
    "a manifest of a thousand brackets": lambda folder: (folder / MANIFEST).write_text("[" * 100_000),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_folder_that_is_not_ours_is_never_touched(tmp_path: Path, kind: str) -> None:
    make_set(tmp_path / "set", b"one")
    FOREIGN[kind](tmp_path / "set")
    before, names = everything(tmp_path), sorted(tmp_path.rglob("*"))
    with pytest.raises(EhrseqError, match="nothing was touched"):
        make_set(tmp_path / "set", b"two")
    assert everything(tmp_path) == before
    assert sorted(tmp_path.rglob("*")) == names


def test_what_appears_in_the_folder_meanwhile_is_kept(tmp_path: Path) -> None:
    make_set(tmp_path / "set", b"one")

    def write() -> None:
        with complete_folder(tmp_path / "set", SET) as temporary:
            write_manifest(temporary, SET.facts)
            (tmp_path / "set" / "notes.txt").write_text("mine")

    with pytest.raises(EhrseqError, match=r"'notes\.txt', which ehrseq did not write"):
        write()
    assert set(everything(tmp_path)) == {"set/manifest.json", "set/part/x.bin", "set/notes.txt"}


def test_a_file_in_the_way_is_refused_and_parents_are_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(EhrseqError, match="is a file"):
        make_set(tmp_path / "file", b"one")
    with pytest.raises(EhrseqError, match="cannot be written"):
        make_set(tmp_path / "file" / "set", b"one")
    make_set(tmp_path / "a" / "b" / "set", b"one")
    assert set(everything(tmp_path)) == {"file", "a/b/set/part/x.bin", "a/b/set/manifest.json"}


# ---- links, mount points, and the folder that one works in -----------------------------------------------------------


@pytest.mark.parametrize("target", ["a set", "an empty folder", "nothing"])
def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path, target: str) -> None:
    if target == "a set":
        make_set(tmp_path / "disk" / "set", b"one")
    elif target == "an empty folder":
        (tmp_path / "disk" / "set").mkdir(parents=True)
    (tmp_path / "link").symlink_to("disk/set")
    make_set(tmp_path / "link", b"two")
    assert os.readlink(tmp_path / "link") == "disk/set"
    assert set(everything(tmp_path / "disk")) == {"set/part/x.bin", "set/manifest.json"}
    assert (tmp_path / "disk" / "set" / "part" / "x.bin").read_bytes() == b"two"
    (tmp_path / "disk" / "set" / "notes.txt").write_text("mine")
    with pytest.raises(EhrseqError, match=r"notes\.txt"):
        make_set(tmp_path / "link", b"three")


@pytest.mark.parametrize("target", ["a file", "nothing", "another link"])
def test_a_link_stays_and_the_file_behind_it_is_replaced(tmp_path: Path, target: str) -> None:
    (tmp_path / "link").symlink_to("disk/x.json")
    if target == "a file":
        write_json(tmp_path / "disk" / "x.json", 1)
    elif target == "another link":
        (tmp_path / "disk").mkdir()
        (tmp_path / "disk" / "x.json").symlink_to(tmp_path / "other" / "y.json")
    write_json(tmp_path / "link", 2, follow=True)
    assert os.readlink(tmp_path / "link") == "disk/x.json"
    name = "other/y.json" if target == "another link" else "disk/x.json"
    assert read_json(tmp_path / name) == read_json(tmp_path / "link") == 2
    assert len([path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]) == 1


def test_a_link_in_a_folder_of_ours_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """A stranger may have put it there."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to("mine")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("words", [
    ("predict", "{run}", "{data}", "--at", "last", "--out", "{out}.csv"),
    ("check", "{data}", "--out", "{out}.json"),
    ("explain", "{run}", "{data}", "--out", "{out}.csv", "--subjects", "2"),
    ("explore", "{run}", "{data}", "--out", "{out}.html", "--patients", "2"),
], ids=lambda words: words[0])  # fmt: skip
def test_the_link_of_an_output_file_stays(
    sim_run: Path, sim_data: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    given = [word.format(run=sim_run, data=sim_data, out=tmp_path / "link") for word in words]
    link = Path(given[given.index("--out") + 1])
    link.symlink_to(f"behind{link.suffix}")
    done = ehrseq(*given)
    assert done.exit_code == 0, done.output
    assert os.readlink(link) == f"behind{link.suffix}"
    assert {path.name for path in tmp_path.iterdir()} == {link.name, f"behind{link.suffix}"}


def test_a_circle_of_links_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(EhrseqError, match="cannot be written"):
        make_set(tmp_path / "a", b"one")
    with pytest.raises(EhrseqError, match=r"a: cannot be written .*circle"):
        write_bytes(tmp_path / "a", b"one", follow=True)
    with pytest.raises(EhrseqError, match=r"a: cannot be written .*circle"):
        refuse_foreign_file(tmp_path / "a", lambda path: True)


def test_the_working_folder_can_be_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for content in (b"one", b"two"):
        make_set(Path("."), content)
        assert Path("part/x.bin").read_bytes() == content, "the shell still stands in the folder that was filled"
        assert set(everything(tmp_path)) == {"work/part/x.bin", "work/manifest.json"}
    Path("notes.txt").write_text("mine")
    with pytest.raises(EhrseqError, match=r"notes\.txt"):
        make_set(Path("."), b"three")
    assert set(everything(tmp_path)) == {"work/part/x.bin", "work/manifest.json", "work/notes.txt"}


MOUNT = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && shift && "$@"')


def needs_mounts(disk: Path, out: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run([*MOUNT, disk, out, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount")


def test_a_file_that_is_mounted_is_refused_before_the_work(tmp_path: Path) -> None:
    disk, out = tmp_path / "disk.json", tmp_path / "the out.json"
    disk.write_text("1")
    out.write_text("")
    needs_mounts(disk, out)
    command, env = in_a_process("storage.refuse_foreign_file(Path(sys.argv[1]), lambda path: True)")
    done = subprocess.run([*MOUNT, disk, out, *command, out], env=env, capture_output=True, text=True, check=False)
    assert "the out.json: is a file that is mounted" in done.stderr
    assert "mount its folder" in done.stderr
    assert disk.read_text() == "1"


def test_a_mount_point_stays_mounted(tmp_path: Path) -> None:
    """A real one, of the same file system and with a blank in its name: no rename can replace it."""
    disk, out = tmp_path / "disk", tmp_path / "the out"
    disk.mkdir()
    out.mkdir()
    command, env = in_a_process("[make_set(Path(sys.argv[1]), text) for text in (b'one', b'two')]")
    needs_mounts(disk, out)
    done = subprocess.run([*MOUNT, disk, out, *command, out], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert everything(out) == {}, "outside of the mount nothing was written"
    assert (disk / "part" / "x.bin").read_bytes() == b"two"
    assert set(everything(disk)) == {"part/x.bin", "manifest.json"}


# ---- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stays", "exchanges", "changes"), [(False, True, 4), (False, False, 8), (True, False, 12)])
def test_no_kill_loses_the_old_folder_and_the_new_one(
    tmp_path: Path, stays: bool, exchanges: bool, changes: int
) -> None:
    call = f"print(kill_everywhere(Path(sys.argv[1]), stays={stays}, exchanges={exchanges}))"
    command, env = in_a_process(call)
    done = subprocess.run([*command, tmp_path / "sets"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= changes


@pytest.mark.parametrize("failing", [1, 2])
def test_a_rename_that_fails_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    monkeypatch.setattr(replacing, "exchange", lambda first, second: False)
    make_set(tmp_path / "set", b"one")
    before, replace, left = everything(tmp_path), os.replace, iter(range(failing - 1, -9, -1))

    def refuse(source: Path, target: Path) -> None:
        if (Path(target).name == "set" or Path(source).name == "set") and next(left) == 0:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(EhrseqError, match="No space left"):
        make_set(tmp_path / "set", b"two")
    assert everything(tmp_path) == before


def test_an_exchange_of_names_is_one_step_or_none(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not replacing.exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system cannot exchange names")
    assert set(everything(tmp_path)) == {"a/b", "b/a"}
    with pytest.raises(FileNotFoundError):
        replacing.exchange(tmp_path / "a", tmp_path / "nothing")
    assert set(everything(tmp_path)) == {"a/b", "b/a"}


@pytest.mark.parametrize("name", [".", "..", "/", "a/..", "x" * 300, "file/below"])
def test_an_output_needs_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for make in (lambda: make_set(Path(name), b"one"), lambda: write_bytes(Path(name), b"one")):
        with pytest.raises(EhrseqError, match=r"is not a name|cannot be written|is not empty"):
            make()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("whose", ["a process that ended", "an earlier process with our number"])
def test_orphans_are_swept(tmp_path: Path, dead: int, whose: str) -> None:
    pid = dead if whose == "a process that ended" else os.getpid()
    (tmp_path / f".tmp-{pid}-x").write_bytes(b"as earlier versions called them")
    (tmp_path / f".tmp-{pid}-new-x").write_bytes(b"half")
    (tmp_path / "deep" / f".tmp-{pid}-del-y").mkdir(parents=True)
    (tmp_path / "x").write_bytes(b"whole")
    sweep_temporaries(tmp_path)
    assert [p.name for p in sorted(tmp_path.rglob("*"))] == ["deep", "x"]


def test_what_a_living_process_writes_is_not_swept(tmp_path: Path) -> None:
    (tmp_path / f".tmp-{os.getppid()}-new-x").write_bytes(b"half")
    (tmp_path / ".tmp-notes").write_bytes(b"not called as ours are")
    with atomic_path(tmp_path / "x") as temporary:
        sweep_temporaries(tmp_path)
        temporary.write_bytes(b"whole")
    write_bytes(tmp_path / "x", b"again")
    assert set(everything(tmp_path)) == {f".tmp-{os.getppid()}-new-x", ".tmp-notes", "x"}


def test_the_next_write_of_a_file_sweeps_its_own_orphans_and_no_others(tmp_path: Path, dead: int) -> None:
    for name in ("p.parquet", "other", "new-p.parquet"):
        (tmp_path / f".tmp-{dead}-new-{name}").write_bytes(b"half")
    write_bytes(tmp_path / "p.parquet", b"whole")
    assert set(everything(tmp_path)) == {"p.parquet", f".tmp-{dead}-new-other", f".tmp-{dead}-new-new-p.parquet"}


def test_any_write_sweeps_the_files_that_dead_processes_left_in_its_folder(tmp_path: Path) -> None:
    gone = f"{this_process().host}.{'0' * 8}.1.1"  # of another boot
    alive = f"{'f' * 8}.{'0' * 8}.1.1"  # of another host: nobody here can tell
    for owner, name in ((gone, "once.csv"), (gone, "x.csv"), (alive, "once.csv")):
        (tmp_path / f".tmp-{owner}.0123abcd-new-{name}").write_bytes(b"half")
    (tmp_path / f".tmp-{gone}.0123abcd-new-set").mkdir()
    write_bytes(tmp_path / "x.csv", b"whole")
    kept = {f".tmp-{alive}.0123abcd-new-once.csv", f".tmp-{gone}.0123abcd-new-set", "x.csv"}
    assert {path.name for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_only_the_owner_reads_temporaries_and_final_files_have_the_usual_mode(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with complete_folder(tmp_path / "set", SET) as temporary:
            assert mode(temporary) == 0o700
            with atomic_path(temporary / "x") as file:
                file.write_bytes(b"a patient's")
                assert mode(file) == 0o600
            write_manifest(temporary, SET.facts)
        assert mode(tmp_path / "set") == 0o777 & ~umask
        assert mode(tmp_path / "set" / "x") == 0o666 & ~umask
        (tmp_path / "set").chmod(0o700)
        make_set(tmp_path / "set", b"two")
        assert mode(tmp_path / "set") == 0o700, "what its owner has closed is not opened again"
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_temporaries_never_enter_a_manifest(tmp_path: Path) -> None:
    for name in (".tmp-1-new-x", "part/.tmp-1-new-y", ".tmp-1-new-z/inside", "x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    write_manifest(tmp_path, SET.facts)
    assert list(read_json(tmp_path / MANIFEST)["files"]) == ["x"]
    write_manifest(tmp_path, SET.facts, files=[p for p in tmp_path.rglob("*") if p.is_file() and p.name != MANIFEST])
    assert list(read_json(tmp_path / MANIFEST)["files"]) == ["x"]


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=6))
def test_appended_rows_read_back(tmp_path_factory: pytest.TempPathFactory, blocks: list[list[int]]) -> None:
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    with ArrayWriter(path, np.int64, (2,)) as writer:
        for block in blocks:
            writer.append(np.repeat(np.array(block, dtype=np.int64), 2).reshape(-1, 2))
    flat = [value for block in blocks for value in block]
    np.testing.assert_array_equal(np.load(path, allow_pickle=False), np.repeat(flat, 2).reshape(-1, 2))
