"""Walk through time or over sites: train before each window and test in it, or leave one site out at a time.

Internal–external validation (Steyerberg & Harrell 2016): each step prepares, trains and evaluates anew, nobody is both
trained and tested on in one step, and no two steps test the same window. The steps are pooled by random effects. They
share training people, so that the pooled interval describes these steps rather than new ones.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import EvaluationConfig, StudyConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import Shareable
from ehrsequencing.evaluation.comparison import OURS
from ehrsequencing.evaluation.pooling import MetricRow, pool, rows_by_place
from ehrsequencing.evaluation.repeated_splits import Again, Division
from ehrsequencing.evaluation.results import without_few
from ehrsequencing.prediction.run import Run, opened
from ehrsequencing.records.attrition import FEWEST_SUBJECTS
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.splits import date_of, sites_of
from ehrsequencing.results.redaction import redact_rows

MOST_STEPS = {"date": 5, "site": 20}
FOLDER = "walk"
FIRST_SHARE = 0.4  # of the people with an index whom the first step may train on
NOTE = (
    "The steps share training people, so that the interval of their mean is descriptive: it says how these steps "
    "vary, and not how sure a new one is."
)


def walk(
    run: Run | Path,
    *,
    over: str,
    data: Path | None = None,
    prepared: Path | None = None,
    settings: EvaluationConfig | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Shareable[dict[str, Any]]:
    """Train and evaluate in one step after another, and pool the steps; what is finished in `RUN/walk` is kept.

    Args:
        run: A finished run, or its folder, whose settings are used.
        over: `date`: windows of index dates, with training before each. `site`: one site left out at a time.
        data: The MEDS records, where they are no longer where `prepare` found them.
        prepared: The prepared set, where it is no longer where training found it.
        settings: Baselines and resamples; default: those of the run.
        progress: Called with (steps done, steps, what comes next).

    Returns:
        What `pool` gives, each step standing as a site, and `steps`: the people who trained, and those tested.

    Raises:
        EhrseqError: Records or prepared set are gone, or there is no room for two steps.
    """
    run = opened(run)
    again = Again.of_run(run, data=data, prepared=prepared, settings=settings)
    divisions = _windows(again) if over == "date" else _sites(again)
    if len(divisions) < 2:
        raise EhrseqError(
            "there is no room for two steps",
            where=f"--walk {over}",
            fix="a step tests 50 people or more, and by date each of them can be followed for the longest horizon",
        )
    results = again.results(run.folder / FOLDER / over, divisions, progress)
    steps = {one.label: stored for one, stored in zip(divisions, results, strict=True)}
    rows = {
        label: [MetricRow.model_construct(**row) for row in without_few(stored["metrics"])]
        for label, stored in steps.items()
    }
    pooled = pool(
        run.task.heading, {label: rows_by_place(own, OURS) for label, own in rows.items()}
    )
    told = [
        {"step": label, "train": one["train_subjects"], "subjects": one["held_out_subjects"]}
        for label, one in steps.items()
    ]
    simulated = bool(again.store.manifest.get("simulated"))
    return redact_rows(
        {**pooled, "over": over, "steps": told, "note": NOTE}, is_simulated=simulated
    )


def _windows(again: Again) -> list[Division]:
    """Windows for the main horizon; where the task names none, for the longest that leaves room for two of them."""
    task = again.run.task
    longest = [task.main_horizon] if task.main_horizon else [*reversed(task.horizons)]
    windows = list[Division]()
    while longest and len(windows) < 2:
        windows = _windows_of(again, longest.pop(0))
    return windows


def _windows_of(again: Again, horizon_days: float) -> list[Division]:
    """Disjoint windows of index dates with as many people each, all of whom can be followed for a horizon."""
    task, end_us = again.run.task, int(again.store.manifest["dataset_end_us"])
    horizons = tuple(days for days in task.horizons if days <= horizon_days)
    study = again.study.model_copy(update={"task": task.model_copy(update={"horizons": horizons})})
    first_us = np.sort(_first_indexes(again.store, task.name))
    room_us = round((horizon_days + task.landmarks[-1]) * DAY_US)
    usable = first_us[first_us + room_us <= end_us]
    start = max(np.searchsorted(usable, first_us[0] + room_us), round(FIRST_SHARE * len(usable)))
    steps = min(MOST_STEPS["date"], int(len(usable) - start) // FEWEST_SUBJECTS)
    if steps < 2:
        return []
    bounds = usable[np.linspace(start, len(usable) - 1, steps + 1).astype(int)] // DAY_US * DAY_US
    bounds[-1] += DAY_US
    return [
        Division(
            f"from-{date_of(a)}",
            f"{date_of(a)} to {date_of(b - 1)}",
            _divided(study, by="date", from_date=date_of(a)),
            until_us=int(b),
        )
        for a, b in zip(bounds.tolist(), bounds[1:].tolist(), strict=False)
        if b > a
    ]


def _first_indexes(store: Prepared, task: str) -> Ints:
    """(s,) the first index of each subject with a prediction time."""
    parts = [store.rows(task, split) for split in SPLITS]
    firsts = [rows.row_offsets[:-1][np.diff(rows.row_offsets) > 0] for rows in parts]
    return np.concatenate([rows.index_us[at] for rows, at in zip(parts, firsts, strict=True)])


def _sites(again: Again) -> list[Division]:
    """The largest sites, each left out once."""
    splits = again.study.splits
    if splits.column is None:
        raise EhrseqError(
            "the run does not say which column names the site",
            where="--walk site",
            fix="prepare with splits.by=site splits.column=COLUMN splits.held_out_sites=[SITE], and train on that",
        )
    people = sites_of(again.records, splits)
    large = [site for site, count in people.items() if count >= FEWEST_SUBJECTS]
    return [
        Division(
            f"site-{number}",
            site,
            _divided(again.study, by="site", column=splits.column, held_out_sites=(site,)),
        )
        for number, site in enumerate(large[: MOST_STEPS["site"]], start=1)
    ]


def _divided(study: StudyConfig, **splits: Any) -> StudyConfig:
    kept = study.splits.model_dump(include={"train", "tuning", "seed"})
    divided = type(study.splits).model_validate(kept | splits)
    return study.model_copy(update={"splits": divided})
