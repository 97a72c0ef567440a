"""The demo with several seeds: `python bench/demo_seeds.py OUT [--seeds 0 1 2 3]`.

One run of the demo judges on some 600 patients, whose outcomes may happen to be kind. This runs `ehrseq demo` once a
seed (records and training alike) and prints, seed by seed and with the standard deviation over seeds, the share of the
likelihood gain that the truth expects of the model, the share by what happened, and C by two years of our model, the
strongest baseline and the truth. Finished demos in OUT are kept.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from _true_risks import run_errors

EHRSEQ = Path(sys.executable).with_name("ehrseq")
HORIZON_DAYS = 730.5
COLUMNS = ("seed", "expected share", "share by what happened", "C, ours", "C, strongest baseline", "C, truth",
           "NLL, ours − strongest")  # fmt: skip


def judged(out: Path, seed: int) -> dict[str, Any]:
    """The demo's metrics with one seed."""
    folder = out / f"seed-{seed}"
    command = [str(EHRSEQ), "demo", "--out", str(folder), "--seed", str(seed)]
    print(f"$ {' '.join(command[1:])}", file=sys.stderr, flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads((folder / "run" / "metrics.json").read_text())
    return found | {"shares": run_errors(folder / "run")}


def numbers(found: dict[str, Any]) -> list[float]:
    """What a row of the table shows after the seed."""
    cause, landmark = found["causes"][0], found["landmarks_days"][0]
    c = {
        row["model"]: row["value"]
        for row in found["metrics"]
        if (row["metric"], row["cause"], row["landmark_days"], row["horizon_days"])
        == ("c", cause, landmark, HORIZON_DAYS)
    }
    nll = next(
        row["value"]
        for row in found["differences"]
        if (row["metric"], row["model"], row["landmark_days"]) == ("nll", found["strongest"], None)
    )
    three = [c[name] for name in (found["models"][0], found["strongest"], found["oracle"]["name"])]
    shares = found["shares"]
    return [shares["gain_share_expected"], shares["gain_share"], *three, nll]


def table(found: dict[int, list[float]]) -> str:
    """Rows of the seeds, then mean ± standard deviation over them."""
    out = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    out += [
        f"| {seed} | {' | '.join(f'{value:.3f}' for value in row)} |" for seed, row in found.items()
    ]
    if len(found) > 1:
        columns = zip(*found.values(), strict=True)
        cells = [
            f"{statistics.mean(column):.3f} ± {statistics.stdev(column):.3f}"
            for column in map(list, columns)
        ]
        out.append(f"| mean ± SD | {' | '.join(cells)} |")
    return "\n".join(out)


def main() -> None:
    """Every seed, then the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    arguments = parser.parse_args()
    found = {seed: numbers(judged(arguments.out, seed)) for seed in arguments.seeds}
    print(table(found))


if __name__ == "__main__":
    main()
