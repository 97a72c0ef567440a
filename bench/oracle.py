"""How near to the truth each encoder comes: `python bench/oracle.py OUT [--subjects 20000] [--only mean …]`.

Simulates the default world, trains each encoder with the default settings by `ehrseq train`, judges it by `ehrseq
evaluate` without baselines, and prints the oracle table: share of the null → oracle NLL gain, slope of the true on the
predicted risk at every horizon (in brackets the widest of their 95 % half-intervals), error of risks and hazards, and
what was learned of each mechanism. Finished runs are kept and not trained again.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

EHRSEQ = Path(sys.executable).with_name("ehrseq")
ENCODERS = {
    "attention": [],
    "bottleneck": ["model.scorer=bottleneck"],
    "mini-transformer": ["model.visit_encoder=transformer"],
    "mean": ["model.visit_encoder=mean"],
    "attention, no MLP": ["model.visit_mlp=false"],
    "LSTM timeline": ["model.timeline=lstm"],
    "flat": ["model.architecture=flat"],
}


def run(*command: object) -> None:
    """Run one command; stop where it fails."""
    print(f"$ ehrseq {' '.join(map(str, command))}", file=sys.stderr, flush=True)
    subprocess.run([str(EHRSEQ), *map(str, command)], check=True, stdout=subprocess.DEVNULL)


def judged(folder: Path, prepared: Path, settings: list[str]) -> dict[str, Any]:
    """The oracle part of a run's metrics."""
    if not (folder / "metrics.json").is_file():
        run("train", prepared, "--out", folder, "--resume", *settings)
        run("evaluate", folder, "evaluation.baselines=none", "evaluation.bootstrap=0")
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())["oracle"]
    return found


def line(name: str, oracle: dict[str, Any]) -> str:
    """One row of the table."""
    outcome = [row for row in oracle["risks"] if row["cause"] == oracle["risks"][0]["cause"]]
    cells = [f"{oracle['gain_share']:.3f} ± {1.96 * oracle['gain_share_se']:.3f}"]
    half = max(1.96 * row["slope_se"] for row in outcome)
    cells += [
        " ".join(f"{row['slope']:.2f}" for row in outcome) + f" (± {half:.2f})",
        " ".join(f"{row['rmse']:.3f}" for row in outcome),
    ]
    cells.append(f"{next(iter(oracle['hazard_rmse_per_year'].values())):.3f}")
    cells.append(", ".join(f"{row['mechanism']} {row['share']:.2f}" for row in oracle["mechanisms"]))
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Simulate, prepare, train, evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--subjects", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(ENCODERS), choices=list(ENCODERS))
    parser.add_argument("--set", nargs="*", default=[], help="more settings, as in training.epochs=10")
    arguments = parser.parse_args()
    data, prepared = (arguments.out / f"{name}-{arguments.subjects}" for name in ("data", "prepared"))
    if not (data / "task.yaml").is_file():
        run("simulate", data, "--subjects", arguments.subjects, "--seed", arguments.seed)
    if not (prepared / "manifest.json").is_file():
        run("prepare", data, "--task", data / "task.yaml", "--out", prepared)
    columns = "share of the gain | slope by horizon | RMSE of risk | of hazard a year | learned of each mechanism"
    print(f"| {arguments.subjects:,} subjects | {columns} |\n|---|---|---|---|---|---|")
    for name in arguments.only:
        folder = arguments.out / f"{name.replace(', ', '-').replace(' ', '-')}-{arguments.subjects}"
        print(line(name, judged(folder, prepared, [*ENCODERS[name], *arguments.set])), flush=True)


if __name__ == "__main__":
    main()
