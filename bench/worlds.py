"""Where trees win and where they do not: `python bench/worlds.py OUT [--subjects 8000]`.

Two simulated worlds, both with the demo's few codes and its recipe for training. In the world of pairs, codes act
together when they meet in one visit. In the additive world each condition and each laboratory value acts by itself.
Simulates, prepares, trains and evaluates by the commands that a user would type, and prints both worlds' models: C, IPA
by two years at the index, the NLL over all prediction times, and ours less each in NLL with its 95 % interval. What is
finished in OUT is kept, so that an interrupted benchmark goes on.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ehrsequencing.cli.demo import SETTINGS, WORLD

EHRSEQ = Path(sys.executable).with_name("ehrseq")
WORLDS: dict[str, list[str]] = {
    "pairs": [],
    "additive": ["pair_effect=0", "chronic_effect=0.8", "lab_effect=0.8"],
}
HORIZON_DAYS = 730.5
COLUMNS = ("world", "model", "C", "IPA", "NLL", "ours − this in NLL")


def run(*command: object) -> None:
    """Run one command; stop where it fails."""
    print(f"$ ehrseq {' '.join(map(str, command))}", file=sys.stderr, flush=True)
    subprocess.run([str(EHRSEQ), *map(str, command)], check=True, stdout=subprocess.DEVNULL)


def judged(out: Path, world: str, *, subjects: int, seed: int) -> dict[str, Any]:
    """The `metrics.json` of one world, made as far as it is not there."""
    data, prepared, folder = (
        out / f"{world}-{subjects}-{seed}" / name for name in ("data", "prepared", "run")
    )
    if not (data / "task.yaml").is_file():
        knobs = [
            f"{name}={value}" for name, value in WORLD.model_dump(exclude_defaults=True).items()
        ]
        run("simulate", data, "--subjects", subjects, "--seed", seed, *knobs, *WORLDS[world])
    if not (prepared / "manifest.json").is_file():
        run("prepare", data, "--task", data / "task.yaml", "--out", prepared)
    if not (folder / "metrics.json").is_file():
        settings = [text for text in SETTINGS if not text.startswith("evaluation.")]
        run("train", prepared, "--out", folder, "--resume", *settings, f"training.seed={seed}")
        run("evaluate", folder, "evaluation.bootstrap=200")
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return found


def lines(world: str, found: dict[str, Any]) -> list[str]:
    """Rows of the table: a model each, the strongest baseline marked."""
    cause, landmark = found["causes"][0], found["landmarks_days"][0]

    def value(
        rows: list[dict[str, Any]], model: str, metric: str, at: float | None, horizon: float | None
    ) -> Any:
        place = (model, metric, at, horizon, cause)
        keys = ("model", "metric", "landmark_days", "horizon_days", "cause")
        return next((row for row in rows if tuple(row[key] for key in keys) == place), None)

    out = []
    for model in found["models"]:
        c, ipa = (
            value(found["metrics"], model, name, landmark, HORIZON_DAYS)["value"]
            for name in ("c", "ipa")
        )
        nll = value(found["metrics"], model, "nll", None, None)["value"]
        gap = value(found["differences"], model, "nll", None, None)
        said = (
            "" if gap is None else f"{gap['value']:+.4f} ({gap['low']:+.4f} to {gap['high']:+.4f})"
        )
        name = f"{model} (strongest baseline)" if model == found["strongest"] else model
        out.append(f"| {world} | {name} | {c:.3f} | {ipa:.3f} | {nll:.4f} | {said} |")
    return out


def main() -> None:
    """Both worlds, then the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--subjects", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0, help="of simulation and training")
    parser.add_argument("--only", nargs="*", choices=list(WORLDS), default=list(WORLDS))
    arguments = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    for world in arguments.only:
        found = judged(arguments.out, world, subjects=arguments.subjects, seed=arguments.seed)
        print("\n".join(lines(world, found)), flush=True)


if __name__ == "__main__":
    main()
