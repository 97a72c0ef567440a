"""Makes what later versions must be able to read: `python -m helpers.compatibility tests/compatibility/0.1.0`.

A small simulated data set, its prepared set, a run, and the risks that the run predicts. Make it once for each format
of a manifest, and never again: `tests/test_compatibility.py` reads it with today's code.
"""

import shutil
import sys
from pathlib import Path

from ehrsequencing.config import load_study, load_task
from ehrsequencing.core.files import read_json
from ehrsequencing.core.outputs import save_manifest
from ehrsequencing.prediction.predict import predict
from ehrsequencing.records.prepared import Prepared, prepare
from ehrsequencing.simulate import simulate
from ehrsequencing.training.loop import Trainer
from helpers.simulate import busy_world

SETTINGS = ("model.dim=8", "model.heads=2", "model.layers=1", "training.epochs=1", "training.min_steps=4")


def main(folder: Path) -> None:
    """Write data, prepared set, run and risks."""
    data = folder / "data"
    simulate(data, subjects=20, seed=3, config=busy_world(outcome_per_year=0.6, truth_futures=4))
    for truth in (*data.glob("truth*"), data / "manifest.json"):
        truth.unlink()
    task = load_task(data / "task.yaml")
    prepare(data, folder / "prepared", study=load_study(None), tasks=[task])
    Trainer(Prepared(folder / "prepared"), task.name, folder / "run", study=load_study(None, SETTINGS)).fit()
    predict(folder / "run", data, folder / "risks.csv", at="last")
    _name_no_machine(folder / "prepared", "data_path", "/made/data")
    _name_no_machine(folder / "run", "prepared", "/made/prepared")


def _name_no_machine(folder: Path, entry: str, path: str) -> None:
    """Manifests name the folders that were read; those of the one who makes this do not belong into the repository."""
    save_manifest(folder, {**read_json(folder / "manifest.json"), entry: path})


if __name__ == "__main__":
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    main(target)
