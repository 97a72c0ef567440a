"""Finished splits of `real.py`, small enough to keep in the repository: `bench/results/real/TRIAL/SET.json`.

A split takes minutes, all of them take hours. So each finished split leaves its numbers here: one value per model,
metric, landmark and horizon of the outcome, the likelihood of tuning subjects, and how many subjects were trained on
and judged. There is nothing about a subject. A split counts only while its fingerprint is that of the present
settings; others are trained again.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.measure import ROOT
from ehrsequencing.core.files import read_json, write_bytes

FOLDER = ROOT / "bench" / "results" / "real"
DIGITS = 6
SAME = ("fingerprint", "seed", "train_subjects", "held_out_subjects")
Place = tuple[float, float | None]  # (landmark, horizon) in days; the likelihood has no horizon


def shortened(stored: Mapping[str, Any], metrics: Iterable[str]) -> dict[str, Any]:
    """A split's `rows.json` as it is kept: only these metrics, of the outcome, at landmarks."""
    wanted, rows = (
        set(metrics),
        [row for row in stored["metrics"] if row["landmark_days"] is not None],
    )
    outcome = rows[0]["cause"]
    rows = [row for row in rows if row["metric"] in wanted and row["cause"] == outcome]
    places: dict[Place, None] = dict.fromkeys(
        (row["landmark_days"], row["horizon_days"]) for row in rows
    )
    number = {place: i for i, place in enumerate(places)}
    values: dict[str, dict[str, list[float | None]]] = {}
    for row in rows:
        cells = values.setdefault(row["model"], {}).setdefault(row["metric"], [None] * len(places))
        if row["value"] is not None:
            cells[number[row["landmark_days"], row["horizon_days"]]] = round(row["value"], DIGITS)
    tuning = {model: round(value, DIGITS) for model, value in stored["tuning_nll"].items()}
    kept = {key: stored[key] for key in SAME}
    return kept | {
        "outcome": outcome,
        "tuning_nll": tuning,
        "places": [list(one) for one in places],
        "values": values,
    }


def lengthened(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The split as `rows.json` has it, as far as it was kept."""
    rows = [
        {
            "model": model,
            "metric": metric,
            "landmark_days": landmark,
            "horizon_days": horizon,
            "cause": kept["outcome"],
            "value": value,
        }
        for model, of_metrics in kept["values"].items()
        for metric, cells in of_metrics.items()
        for (landmark, horizon), value in zip(kept["places"], cells, strict=True)
        if (horizon is None) == (metric == "nll")
    ]
    return {key: kept[key] for key in (*SAME, "tuning_nll")} | {"metrics": rows}


def kept_splits(path: Path) -> dict[int, dict[str, Any]]:
    """Seed → the split as it is kept; nothing where no file is."""
    if not path.is_file():
        return {}
    return {int(one["seed"]): one for one in read_json(path)["splits"]}


def keep(
    path: Path, settings: Iterable[str], splits: Iterable[Mapping[str, Any]], metrics: Iterable[str]
) -> None:
    """Add splits to a file; those of the same seed are replaced."""
    columns = list(metrics)
    found = kept_splits(path) | {int(one["seed"]): shortened(one, columns) for one in splits}
    path.parent.mkdir(parents=True, exist_ok=True)
    # one split a line
    lines = ",\n".join(json.dumps(found[seed], allow_nan=False) for seed in sorted(found))
    write_bytes(
        path, f'{{"settings": {json.dumps(sorted(settings))}, "splits": [\n{lines}\n]}}\n'.encode()
    )
