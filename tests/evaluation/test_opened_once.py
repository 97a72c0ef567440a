"""`ehrseq evaluate` opens its run once, and reads each file of the network once to hash it."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from ehrsequencing.core import outputs
from ehrsequencing.core.files import sha256
from ehrsequencing.prediction import run as runs
from helpers.command_line import ehrseq


def test_evaluate_opens_the_run_once(sim_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was evaluated before."""
    run = shutil.copytree(sim_run, tmp_path / "run")
    command = ("evaluate", run, "--baselines", "none", "evaluation.bootstrap=0")
    opened, hashed = list[Path](), Counter[str]()
    init = runs.Run.__init__

    def counted_init(self: runs.Run, folder: Path | str) -> None:
        opened.append(Path(folder))
        init(self, folder)

    def counted_hash(path: Path) -> str:
        hashed[path.name] += path.parent == run
        return sha256(path)

    monkeypatch.setattr(runs.Run, "__init__", counted_init)
    for module in (outputs, runs):
        monkeypatch.setattr(module, "sha256", counted_hash)
    for times in (1, 2):
        done = ehrseq(*command)
        assert done.exit_code == 0, done.output
        assert opened == [run] * times
        assert {name: hashed[name] for name in outputs.RUN_NEEDS} == dict.fromkeys(outputs.RUN_NEEDS, times)
