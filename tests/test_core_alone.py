"""The core stands alone: every room of it is imported, and a run answers, where four rooms are absent."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "ehrsequencing"
OUTSIDE = ("explorer", "readers", "serve", "simulate")
SCRIPT = """
import importlib, importlib.util, pkgutil, sys
import ehrsequencing
assert not importlib.util.find_spec("ehrsequencing.readers"), "the whole package was found"
for found in pkgutil.walk_packages(ehrsequencing.__path__, "ehrsequencing."):
    if found.name.split(".")[1] not in ("api", "cli", "__main__"):  # the doors open all rooms
        importlib.import_module(found.name)
from pathlib import Path
from ehrsequencing.prediction.predict import Request, predict
predict(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), Request(at="last"))
"""


def test_the_core_imports_and_predicts_without_readers_server_explorer_and_simulation(
    sim_run: Path, sim_data: Path, tmp_path: Path
) -> None:
    shutil.copytree(SOURCE, tmp_path / "ehrsequencing", ignore=shutil.ignore_patterns(*OUTSIDE, "__pycache__"))
    assert not any((tmp_path / "ehrsequencing" / room).exists() for room in OUTSIDE)
    words = [sys.executable, "-c", SCRIPT, sim_run, sim_data, tmp_path / "risks.parquet"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "risks.parquet").is_file()
