"""The result of an evaluation: its rows as plain JSON, and its files.

The exact result goes in. Of real people it is written to `metrics-individual.json`, which only its owner can read and
no command needs, and `metrics.json` holds what may be told of it (`results.redaction.redact`). A simulation has no
people: there `metrics.json` is the exact result, and there is no other file.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.core.disclosure import TOO_FEW
from ehrsequencing.core.files import (
    Shareable,
    read_json,
    write_json,
    write_shareable,
)
from ehrsequencing.prediction.run import METRICS, Run, add_to_run, is_as_written
from ehrsequencing.predictors.blend import FOLDS
from ehrsequencing.records.attrition import too_few
from ehrsequencing.results.redaction import INDIVIDUAL, redact
from ehrsequencing.results.result_types import Exact, MetricRow, Shared


def number(value: Any) -> float | None:
    """A float that JSON can hold; undefined becomes null."""
    return None if value is None or not np.isfinite(value) else float(value)


def blend(run: Run | None) -> dict[str, Any] | None:
    """Content of `blend`: the weight of each part per cause, with its interval; None where the run is no blend."""
    if run is None or run.blend is None:
        return None
    leaves, weights = run.blend.shares
    parts = [part.name for part in leaves]
    rows: list[dict[str, Any]] = [
        {
            "cause": cause,
            "part": part,
            "value": float(weights.value[e, m]),
            "low": float(weights.low[e, m]),
            "high": float(weights.high[e, m]),
        }
        for e, cause in enumerate(run.task.causes)
        for m, part in enumerate(parts)
    ]
    return {
        "folds": FOLDS,
        "parts": parts,
        "seconds": run.manifest.get("seconds", {}),
        "weights": rows,
    }


def metric_row(
    model: str,
    landmark_days: float | None,
    metric: str,
    value: Any,
    *,
    cause: str,
    horizon_days: float | None = None,
    low: Any = None,
    high: Any = None,
    subjects: int,
    events: int,
    reason: str | None = None,
) -> MetricRow[int]:
    """One row of the long table of metrics; a horizon of None means all horizons.

    `subjects` were evaluated there, and `events` of them had the event by the horizon. With too few of either there is
    no interval, and `reason` says so, as it does where resampling biases the metric; elsewhere it is None.
    """
    reason = TOO_FEW if too_few(events, subjects) else reason
    return {
        "model": model,
        "landmark_days": landmark_days,
        "cause": cause,
        "horizon_days": number(horizon_days),
        "metric": metric,
        "value": number(value),
        "low": None if reason else number(low),
        "high": None if reason else number(high),
        "subjects": int(subjects),
        "events": int(events),
        "reason": reason,
    }


def without_few(rows: Sequence[MetricRow[int]]) -> list[MetricRow[int]]:
    """Long rows without the numbers that single subjects would decide; a likelihood needs no events."""
    few = (row["reason"] == TOO_FEW and row["metric"] != "nll" for row in rows)
    return [
        {**row, "value": None} if lacks else {**row} for row, lacks in zip(rows, few, strict=True)
    ]


SHARED, HELD_OUT = METRICS, "held_out"
# files drawn from an evaluation, which must not stand beside the numbers of another one
DRAWN = ("report.html", "report-details.html", "outcome-metrics.json", "outcomes.html")


def _files(result: Exact) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Name and writer of each file."""
    if not result["data"]["simulated"]:
        yield INDIVIDUAL, lambda path: write_json(path, result, owner_only=True)
    yield SHARED, lambda path: write_shareable(path, redact(result))


def write_result(result: Exact, folder: Path) -> None:
    """Write the files of a result into a folder."""
    for name, write in _files(result):
        write(folder / name)


def place_in_run(split: str) -> str:
    """Where the evaluation of a split stands in its run: that of the held-out people is the run's own."""
    return "" if split == HELD_OUT else f"evaluations/{split}/"


def add_result(result: Exact, run_folder: Path) -> None:
    """Write the files of a result into a finished run, from which pages of an earlier result go first.

    Until the held-out people are evaluated, the newest result of another split is shown as the run's own, too.
    """
    places, own = [place_in_run(result["split"])], read_result(run_folder)
    # one that somebody has edited stays, whatever it is of
    shown = HELD_OUT if own is None and (run_folder / SHARED).exists() else ""
    shown = shown if own is None else str(own.get("split", HELD_OUT))
    if own is not None and shown != HELD_OUT:
        earlier = place_in_run(shown) + SHARED  # 2.0 wrote it into the run's own place alone
        if not (run_folder / earlier).exists():
            add_to_run(run_folder, earlier, partial(write_shareable, content=own))
    if places[0] and shown != HELD_OUT:
        places.append("")
    for place in places:
        for name, write in _files(result):
            outdates = [place + page for page in DRAWN]
            add_to_run(run_folder, place + name, write, outdates=outdates)


def read_result(run_folder: Path, place: str = "") -> Shareable[Shared] | None:
    """`metrics.json` of a run; None where there is none, or somebody has changed or removed it."""
    name = place + SHARED
    return Shareable(read_json(run_folder / name)) if is_as_written(run_folder, name) else None


def read_for_owner(run_folder: Path, place: str = "") -> Exact | Shared | None:
    """The exact result where it is there still; else `metrics.json`, as of `read_result`."""
    result, name = read_result(run_folder, place), place + INDIVIDUAL
    shared = None if result is None else result.content
    exact = read_json(run_folder / name) if is_as_written(run_folder, name) else None
    return exact if exact and redact(exact) == shared else shared
