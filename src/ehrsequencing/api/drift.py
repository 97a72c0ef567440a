"""`drift` in Python: how new people differ from a run's training people. It loads no model."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ehrsequencing.api.data import data_config, meds_folder
from ehrsequencing.api.progress import bar
from ehrsequencing.config import DataConfig, DriftConfig
from ehrsequencing.core.outputs import DRIFT, output_file, refuse_existing
from ehrsequencing.prediction.drift import Drift, compare_data
from ehrsequencing.prediction.run import Run, opened
from ehrsequencing.reporting.pages import render_drift


def drift(
    run: str | os.PathLike[str] | Run,
    data: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    limits: DriftConfig | None = None,
    facts: Mapping[str, Any] | DataConfig | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Drift:
    """Compare new people with the people that a run was trained on: codes, units, numbers, visits, ages.

    Args:
        run: A run, or its folder.
        data: A folder of MEDS data, or a frame of MEDS rows.
        out: A file for the page; default: none.
        limits: Beyond which a difference is an alarm.
        facts: What the data's own files do not tell, as in `{"extracted": "2026-03-01"}`.
        overwrite: Whether an earlier page there is replaced.
        progress: Whether to show a bar.

    Returns:
        `verdict` is one line, `is_alarm` says whether something lies beyond its limit, and `differences` has everything
        that was compared, the largest first.

    Raises:
        EhrseqError: Run or data cannot be used, or something else is at `out`.

    Example:
        >>> import ehrsequencing as eh
        >>> found = eh.drift("runs/hf", "meds/", progress=False)
        >>> found.is_alarm, found.verdict
        (False, 'No alarm: these people are like the training people.')
    """
    known = opened(run)
    if out is not None:
        refuse_existing(Path(out), DRIFT, overwrite=overwrite)
    with meds_folder(data) as folder, bar("reading the records", show=progress) as tick:
        found = compare_data(known, folder, data_config(facts), limits, tick)
    if out is not None:
        with output_file(Path(out), DRIFT, overwrite=overwrite) as temporary:
            temporary.write_text(render_drift(found, known.folder.name), encoding="utf-8")
    return found
