"""Runs commands of ehrseq in forked processes, each with one fault at one call that changes the disk (`shim.c`).

`python -m helpers.faults.driver FOLDER SEED COMMAND=KIND:COUNT …` runs with the shim preloaded. For each command it
makes a clean run, then COUNT runs with a fault at drawn calls. After each fault it looks at what is left, runs the
command again (training with --resume) and compares every byte. It prints one JSON object.
"""

import ctypes
import errno
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ehrsequencing.core.files import LOCK
from ehrsequencing.core.outputs import MANIFEST

TINY = (
    "model.dim=16",
    "model.heads=2",
    "model.layers=1",
    "training.epochs=2",
    "training.min_steps=4",
    "training.distillation=0",
    "training.blend=false",
)
OFTEN = ("training.checkpoint_seconds=0",)  # a save at every step
KINDS: dict[str, tuple[int, int]] = {  # name → error number (0: SIGKILL), how it lasts (`arm`)
    "kill": (0, 0),
    "full": (errno.ENOSPC, 1),
    "broken": (errno.EIO, 0),
    "denied": (errno.EACCES, 0),
    "read-only": (errno.EROFS, 2),
}
EXPLORER = "x.html"
_UNFINISHED = (".tmp-", LOCK)
_TIMES = {"seconds", "digest"}  # entries that tell how long something took, or hash those


@dataclass(frozen=True)
class Command:
    """One command: its words, what it adds to or makes below the folder, and whether it is resumed."""

    words: Callable[[Path, Path], list[object]]  # of the inputs' and the output's folder
    starts_from: str | None = None  # an input that is copied to be the output
    resumes: bool = False


COMMANDS: dict[str, Command] = {
    "simulate": Command(lambda i, o: ["simulate", o / "x", "--subjects", 12, "truth_futures=4"]),
    "import": Command(lambda i, o: ["import", "omop", i / "omop", o / "x"]),
    "prepare": Command(lambda i, o: ["prepare", i / "sim", "--task", i / "sim" / "task.yaml", "--out", o / "x"]),
    "replace": Command(  # an earlier prepared set, of other settings
        lambda i, o: ["prepare", i / "sim", "--task", i / "sim" / "task.yaml", "--out", o / "x", "--overwrite"],
        starts_from="prepared",
    ),
    "train": Command(lambda i, o: ["train", i / "prepared", "--out", o / "x", "--resume", *TINY, *OFTEN], resumes=True),
    "pretrain": Command(
        lambda i, o: ["pretrain", i / "prepared", "--out", o / "x", "--resume", *TINY, *OFTEN], resumes=True
    ),
    "evaluate": Command(
        lambda i, o: ["evaluate", o / "x", "--baselines", "none", "evaluation.bootstrap=0"], starts_from="run"
    ),
    "explore": Command(lambda i, o: ["explore", i / "run", i / "sim", "--out", o / EXPLORER, "--subjects", 5]),
    "share": Command(lambda i, o: ["export", i / "run", "--format", "share", "--out", o / "x"]),
    "predict": Command(lambda i, o: ["predict", i / "run", i / "sim", "--at", "last", "--out", o / "x.parquet"]),
    "update": Command(lambda i, o: ["update", i / "run", i / "other", "--out", o / "x"]),
    "again": Command(  # an earlier list, of all prediction times
        lambda i, o: ["predict", i / "run", i / "sim", "--at", "last", "--out", o / "x/r.csv", "--overwrite"],
        starts_from="list",
    ),
    "audit": Command(lambda i, o: ["audit", o / "x", "--subjects", 3], starts_from="run"),
}


def main() -> None:
    """Run all faults that the command line asks for."""
    folder, seed = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    shim: Any = ctypes.CDLL(os.environ["LD_PRELOAD"])
    asked = [re.fullmatch(r"(.+)=(.+):(\d+)", word).groups() for word in sys.argv[3:]]  # type: ignore[union-attr]
    _import_for({name for name, _, _ in asked})
    found, commands = [], {}
    for name, kind, count in asked:
        if name not in commands:
            commands[name] = Tried(shim, COMMANDS[name], folder)
        found.append({"command": name, "kind": kind, **commands[name].faults(kind, int(count), random.Random(seed))})
    print(json.dumps(found))


def _import_for(names: set[str]) -> None:
    """What commands import when they run, and the report's templates, so that every fork has them."""
    import ehrsequencing.cli.app
    import ehrsequencing.records.prepare

    if names <= {"prepare"}:
        return
    import ibis.backends.duckdb  # noqa: F401
    import torch

    import ehrsequencing.api.evaluate
    import ehrsequencing.audit.audit
    import ehrsequencing.evaluation.external
    import ehrsequencing.evaluation.local_update
    import ehrsequencing.evaluation.repeated_splits
    import ehrsequencing.explorer
    import ehrsequencing.readers.omop.reader
    import ehrsequencing.reporting.share
    import ehrsequencing.simulate
    import ehrsequencing.training.pretraining.pretrain  # noqa: F401
    from ehrsequencing.reporting import report

    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # the first optimizer imports half of torch
    for name in report.environment().list_templates():
        report.environment().get_template(name)


class Tried:
    """One command, its run without a fault, and the faults that it gets."""

    def __init__(self, shim: Any, command: Command, folder: Path) -> None:
        self.shim, self.command, self.folder, self.out = shim, command, folder, folder / "out"
        self._start_over()
        self.before = _content(self.out)
        code, self.calls, text = self._run(at=-1, kind="kill")
        assert code == 0, text
        self.wanted = _content(self.out)

    def faults(self, kind: str, count: int, draw: random.Random) -> dict[str, Any]:
        """Faults of one kind at drawn calls, and what was found."""
        places = sorted(draw.sample(range(self.calls), min(count, self.calls)))
        problems: list[str] = []
        for at in places:
            self._start_over()
            code, _, text = self._run(at=at, kind=kind)
            wrong = _after(kind, code, text, self.out, self.before, self.wanted) + self._wrong_again()
            problems += [f"{kind} at call {at}: {what}" for what in wrong]
        return {"calls": self.calls, "faults": len(places), "problems": problems}

    def _wrong_again(self) -> list[str]:
        """Run the command on what a fault left; what is wrong with the end."""
        code, _, text = self._run(at=-1, kind="kill")
        if code == 2 and "is there already" in text and _content(self.out) == self.wanted:
            return []  # the fault came when the output was whole
        if code != 0:
            return [f"again: exit {code}: {text[-300:]}"]
        if (again := _content(self.out)) != self.wanted:
            return [f"again: other content: {_differing(again, self.wanted)}"]
        return [f"again: left {left}"] if (left := _left(self.out)) else []

    def _start_over(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        if self.command.starts_from is not None:
            shutil.copytree(self.folder / self.command.starts_from, self.out / "x")

    def _run(self, *, at: int, kind: str) -> tuple[int, int, str]:
        """Run the command in a forked process; returns its exit code, how many calls it made, and what it printed."""
        log = self.folder / "log"
        child = os.fork()
        if child == 0:
            _be_the_command(self.shim, self.command.words(self.folder, self.out), self.out, log, at, kind)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        text = log.read_text(errors="replace")
        calls = int(text.rpartition("calls=")[2] or 0) if "calls=" in text else 0
        return code, calls, text


def _after(kind: str, code: int, text: str, out: Path, before: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """What is wrong right after a fault."""
    if kind == "kill":
        return [] if code == -signal.SIGKILL else [f"was not killed: exit {code}: {text[-200:]}"]
    errors = re.findall(r"^(?:\S+ ERROR )?ehrseq: ", text, re.MULTILINE)  # not on a terminal with time and level
    wrong = []
    if code not in (0, 2) or "Traceback" in text or (code == 2 and len(errors) != 1):
        wrong.append(f"exit {code}: {text[-300:]}")
    if code == 0 and _content(out) != wanted:
        wrong.append("exit 0 with other content")
    if kind == "full" and (left := _left(out)):  # the others may hit the very call that removes one
        wrong.append(f"left {left}")
    if code == 2 and f"x/{MANIFEST}" in before and f"x/{MANIFEST}" not in _content(out):
        wrong.append("the earlier folder is gone")
    return wrong


def _be_the_command(shim: Any, words: list[object], out: Path, log: Path, at: int, kind: str) -> None:
    from ehrsequencing.cli.app import app
    from ehrsequencing.cli.console import run

    code: object = 3
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    sys.argv = ["ehrseq", *map(str, words)]
    error, lasting = KINDS[kind]
    shim.arm(os.fsencode(out), ctypes.c_long(at), error, lasting)
    try:
        run(app)
        code = 0
    except SystemExit as stop:
        code = 0 if stop.code is None else stop.code
    finally:
        calls = shim.calls()
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(1, f"\ncalls={calls}".encode())
        os._exit(int(str(code)))


def _content(out: Path) -> dict[str, Any]:
    """Every file's digest, without what tells how long something took."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file() and not p.name.startswith(_UNFINISHED)):
        data: Any = path.read_bytes()
        if path.name == EXPLORER and data.rstrip().endswith(b"</html>"):
            data = b"a whole page"  # its patients are drawn anew, so that their numbers tell nobody
        if path.suffix in (".json", ".jsonl"):
            lines = data.splitlines() if path.suffix == ".jsonl" else [data]
            data = json.dumps([without_times(json.loads(line)) for line in lines], sort_keys=True).encode()
        found[path.relative_to(out).as_posix()] = hashlib.sha256(data).hexdigest()
    return found


def without_times(value: Any) -> Any:
    """What a file says, without how long anything took."""
    if isinstance(value, dict):
        timed = ("history.jsonl", "pretraining.json", "audit.json")
        return {k: without_times(v) for k, v in value.items() if k not in _TIMES and k not in timed}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def _left(out: Path) -> list[str]:
    return [str(path.relative_to(out)) for path in out.rglob("*") if path.name.startswith(_UNFINISHED)]


def _differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


if __name__ == "__main__":
    main()
