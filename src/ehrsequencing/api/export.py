"""`export`: a run for other people, or its risks for MEDS-DEV."""

import os
from collections.abc import Callable
from pathlib import Path

from ehrsequencing.api.predictions import days_of
from ehrsequencing.api.progress import bar
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.predict_labels import predict_labels
from ehrsequencing.prediction.run import Run
from ehrsequencing.reporting.share import share_run

_BELONGS = {"share": {"license"}, "meds-dev": {"data", "labels", "cause", "horizon"}}


def export(
    run: str | os.PathLike[str] | Run,
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    format: str = "share",
    license: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    cause: str | None = None,
    horizon: str | float | None = None,
    overwrite: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> list[str] | int:
    """Write a run for other people (`share`), or its risks at the times of MEDS labels (`meds-dev`).

    Args:
        run: A run, or its folder.
        out: The folder (`share`) or file (`meds-dev`) to make.
        data: For `meds-dev`: a folder of MEDS data.
        format: `share`: a folder with a model card and without ids, dates and paths, of a run that was prepared with
            `vocabulary.min_subjects` of at least 11. `meds-dev`: a risk for each label.
        license: For `share`: the licence that the model card names, as in `cc-by-nc-4.0`.
        labels: For `meds-dev`: MEDS labels, a file or a folder.
        cause: For `meds-dev`: which cause; default: the first.
        horizon: For `meds-dev`: as in `"90d"`; default: the task's only one.
        overwrite: Whether an earlier output there that nobody has changed is replaced.
        progress: Whether to show a bar.
        say: Called with remarks.

    Returns:
        `share`: the names of the files. `meds-dev`: how many labels have a risk.

    Raises:
        EhrseqError: The run may not be shared, or an argument belongs to the other format.
    """
    folder = run.folder if isinstance(run, Run) else Path(run)
    if format not in _BELONGS:
        fix = f"use {' or '.join(_BELONGS)}"
        raise EhrseqError(f"{format!r} is not a choice", where="format", fix=fix)
    values = {
        "data": data,
        "labels": labels,
        "cause": cause,
        "horizon": horizon,
        "license": license,
    }
    given = {name for name, value in values.items() if value is not None}
    if other := sorted(given - _BELONGS[format]):
        fix = "leave it out, or use the other format"
        raise EhrseqError(f"does not belong to the format {format}", where=other[0], fix=fix)
    if format == "share":
        with bar("exporting", show=progress):
            return share_run(folder, Path(out), license_id=license, overwrite=overwrite)
    if data is None or labels is None:
        raise EhrseqError("needs data and labels", where="format meds-dev", fix="name both")
    with bar("predicting", show=progress) as tick:
        return predict_labels(
            folder,
            Path(data),
            Path(out),
            labels=Path(labels),
            cause=cause,
            horizons_days=None if horizon is None else days_of(horizon, where="horizon"),
            overwrite=overwrite,
            progress=tick,
            say=say,
        )
