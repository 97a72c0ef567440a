"""Memory of training against the number of subjects: `python bench/streaming.py PREPARED [PREPARED …] [--steps 200]`.

Each prepared set is trained on for some steps, in a process of its own. "Own" is the process's memory without the
pages of mapped files, which the system takes back when it needs them: it says whether `train` streams. `bench/ingest.py
OUT --keep` leaves prepared sets of any size behind.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from _engine_train import trainer_of
from _measure import child, own_mib, peak_mib
from ehrsequencing.training.loop import Progress


class _Enough(Exception):
    """Ends a training that was only to be looked at."""


def measure(folder: Path, steps: int) -> dict[str, Any]:
    """Train for some steps; subjects, visits, and MiB when the arrays are open, after the first step and at most."""
    out = folder.parent / f"{folder.name}-streaming"
    shutil.rmtree(out, ignore_errors=True)
    begin = own_mib()
    trainer = trainer_of(folder, out, size="small", epochs=1)
    own = [own_mib()]

    def look(progress: Progress) -> None:
        own.append(own_mib())
        if progress.step >= steps:
            raise _Enough

    try:
        trainer.fit(on_progress=look)
    except _Enough:
        pass
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return {
        "subjects": len(trainer.loader), "visits": int(trainer.loader.n_visits.sum()), "steps": len(own) - 1,
        "imports_mib": begin, "open_mib": own[0], "own_mib": max(own), "peak_mib": peak_mib(),
    }  # fmt: skip


def main() -> None:
    """Measure each set in a child process, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prepared", type=Path, nargs="+")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.prepared[0], given.steps)))
        return
    print(
        "| training subjects | visits | steps | own MiB: imports | arrays open | at most | with mapped pages |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for folder in given.prepared:
        row = child(Path(__file__), folder, "--one", "--steps", given.steps)
        facts = [f"{row[name]:,}" for name in ("subjects", "visits", "steps")]
        facts += [
            f"{row[name]:,.0f}" for name in ("imports_mib", "open_mib", "own_mib", "peak_mib")
        ]
        print(f"| {' | '.join(facts)} |", flush=True)


if __name__ == "__main__":
    main()
