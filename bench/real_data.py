"""The whole way on the four real data sets: `python bench/real_data.py DATA OUT [NAME …]`.

Runs the very commands that a user would type, prints each with its seconds, then the metric table of every run. DATA is
a folder that holds `nafld_meds`, `pbc2_meds`, `physionet2012_meds` and `mimic4_demo_meds`.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

TASKS = Path(__file__).parents[1] / "examples" / "tasks"
EHRSEQ = Path(sys.executable).with_name("ehrseq")
STUDIES = {
    "nafld": ([], []),
    "physionet2012": (["visits.by=window", "visits.window=1h"], []),
    "pbc2": ([], []),
    "mimic4_demo": ([], ["training.epochs=10"]),
}
MODEL = [
    "model.size=small", "model.dropout=0.2", "model.wide_head=true", "model.rotary=false", "training.weight_decay=1",
    "training.visit_budget=2048", "training.subjects_per_step=null", "training.masked_codes=0",
    "training.ema=0.99", "training.ema_warmup=10", "training.early_stop=landmarks", "training.decay_steps=null",
    "model.history_dropout=0", "training.recalibration=0",
]  # fmt: skip


def run(*command: object) -> None:
    """Run one command, show it, and say how long it took."""
    words = [str(word) for word in command]
    print(f"$ ehrseq {' '.join(words)}", flush=True)
    started = time.monotonic()
    subprocess.run([str(EHRSEQ), *words], check=True)
    print(f"  [{time.monotonic() - started:.1f} s]\n", flush=True)


def main() -> None:
    """Prepare, train and evaluate each data set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=[], help=f"of {', '.join(STUDIES)}; default all")
    arguments = parser.parse_args()
    for name in arguments.names or STUDIES:
        cut, fit = STUDIES[name]
        prepared, result = arguments.out / f"{name}-prepared", arguments.out / name
        run("prepare", arguments.data / f"{name}_meds", "--task", TASKS / f"{name}.yaml", "--out", prepared, *cut)
        run("train", prepared, "--task", name, "--out", result, *MODEL, *fit)
        run("evaluate", result)


if __name__ == "__main__":
    main()
