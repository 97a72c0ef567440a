"""How near to the truth each encoder comes: `python -m bench oracle OUT` (or `make bench-oracle`).

Simulates the default world (with 512 simulated futures in the truth, not 128), trains by `ehrseq train` with the
default settings (but a patience of 3 epochs), evaluates by `ehrseq evaluate` without baselines, and prints the oracle
table: share of the null → oracle NLL gain (in brackets by what the truth expects: the noise of simulated futures makes
one a little too high, the other too low), slope of the true on the predicted risk at every horizon for the outcome and
the competing death (in brackets the widest of their 95 % half-intervals), error of risks and hazards, and what was
learned of each mechanism. All encoders with 20,000 subjects, the default one with 60,000 and 100,000 too. Finished runs
are kept and not trained again: a run that was cut off goes on. `--check` ends with status 1 where the default model
misses a goal.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from bench.measure import ehrseq
from bench.truth._true_risks import run_errors

COLUMNS = (
    "subjects",
    "encoder",
    "share of the gain (expected)",
    "slopes, outcome",
    "slopes, death",
    "RMSE of risk",
    "of hazard a year",
    "learned of each mechanism",
)
DEFAULT = "attention"
RECIPE = ["training.patience=3"]
# with the default 128 the truth's own noise adds a hundredth to the shares
WORLD = ["truth_futures=512"]
GOALS = {20_000: 0.75, 60_000: 0.88}  # share of the gain; slopes of the outcome: 0.95 to 1.05
ENCODERS = {
    "attention": [],
    "bottleneck": ["model.visit_encoder=bottleneck"],
    "mini-transformer": ["model.visit_encoder=transformer"],
    "mean": ["model.visit_encoder=mean"],
    "attention, no MLP": ["model.visit_mlp=false"],
    "flat": ["model.architecture=flat"],
}


def judged(folder: Path, prepared: Path, settings: list[str]) -> dict[str, Any]:
    """The oracle part of a run's metrics."""
    if not (folder / "metrics.json").is_file():
        ehrseq("train", prepared, "--out", folder, "--resume", "training.blend=false", *settings)
        ehrseq("evaluate", folder, "evaluation.baselines=none", "evaluation.bootstrap=0")
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())["oracle"]
    return found | run_errors(folder)


def slopes(risks: list[dict[str, Any]]) -> str:
    """Of one cause, by horizon."""
    half = max(1.96 * row["slope_se"] for row in risks)
    return " ".join(f"{row['slope']:.3f}" for row in risks) + f" (± {half:.3f})"


def line(name: str, subjects: int, oracle: dict[str, Any]) -> str:
    """One row of the table."""
    risks: dict[str, list[Any]] = {}
    for row in oracle["risks"]:
        risks.setdefault(row["cause"], []).append(row)
    outcome = next(iter(risks.values()))
    share = f"{oracle['gain_share']:.3f} ± {1.96 * oracle['gain_share_se']:.3f} ({oracle['gain_share_expected']:.3f})"
    cells = [f"{subjects:,}", name, share]
    cells += [slopes(rows) for rows in risks.values()]
    cells.append(" ".join(f"{row['rmse']:.3f}" for row in outcome))
    cells.append(f"{next(iter(oracle['hazard_rmse_per_year'].values())):.3f}")
    cells.append(
        ", ".join(f"{row['mechanism']} {row['share']:.2f}" for row in oracle["mechanisms"])
    )
    return f"| {' | '.join(cells)} |"


def missed(subjects: int, oracle: dict[str, Any]) -> list[str]:
    """Which goals the default model misses by more than two standard errors."""
    out = []
    goal = GOALS.get(subjects)
    if goal is not None and oracle["gain_share"] + 1.96 * oracle["gain_share_se"] < goal:
        out.append(
            f"{subjects:,} subjects: share of the gain {oracle['gain_share']:.3f}, goal {goal}"
        )
    for row in oracle["risks"]:
        is_outcome = row["cause"] == oracle["risks"][0]["cause"]
        if is_outcome and abs(row["slope"] - 1) - 1.96 * row["slope_se"] > 0.05:
            out.append(
                f"{subjects:,} subjects: slope {row['slope']:.3f} by {row['horizon_days']:g} days"
            )
    return out


def main() -> None:
    """Simulate, prepare, train, evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--subjects", type=int, nargs="*", default=[20_000, 60_000, 100_000])
    parser.add_argument("--seed", type=int, default=1, help="of the simulation")
    parser.add_argument(
        "--only", nargs="*", choices=list(ENCODERS), help="default: all with the fewest subjects"
    )
    parser.add_argument("--set", nargs="*", default=[], help="more settings, as in training.seed=1")
    parser.add_argument(
        "--check", action="store_true", help="status 1 where the default model misses a goal"
    )
    arguments = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    short = []
    for subjects in arguments.subjects:
        data, prepared = (arguments.out / f"{name}-{subjects}" for name in ("data", "prepared"))
        if not (data / "task.yaml").is_file():
            ehrseq("simulate", data, "--subjects", subjects, "--seed", arguments.seed, *WORLD)
        if not (prepared / "manifest.json").is_file():
            ehrseq("prepare", data, "--task", data / "task.yaml", "--out", prepared)
        everything = list(ENCODERS) if subjects == min(arguments.subjects) else [DEFAULT]
        for name in arguments.only or everything:
            folder = arguments.out / f"{name.replace(', ', '-').replace(' ', '-')}-{subjects}"
            found = judged(folder, prepared, [*RECIPE, *ENCODERS[name], *arguments.set])
            print(line(name, subjects, found), flush=True)
            short += missed(subjects, found) if name == DEFAULT else []
    if arguments.check and short:
        raise SystemExit("\n".join(short))


if __name__ == "__main__":
    main()
