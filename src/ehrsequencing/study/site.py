"""`ehrseq study run`: a pack on a hospital's own records, of which only aggregates are written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ehrsequencing.config import DataConfig
from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import write_json
from ehrsequencing.core.minimum_counts import SMALLEST_COUNT
from ehrsequencing.core.outputs import STUDY_SITE, output_file, refuse_existing
from ehrsequencing.evaluation.external import read_external
from ehrsequencing.evaluation.risk_source import RunRisks
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.codes import read_parents
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.splits import split_lookup
from ehrsequencing.study.aggregates import RISK_EDGES, aggregate
from ehrsequencing.study.pack import open_pack, subjects_digest, training_subjects

RESAMPLES = 200
Part = Literal["all", "held_out"]


def run_site(
    pack: Path,
    data: Path,
    out: Path,
    *,
    name: str,
    split: Part = "all",
    facts: DataConfig | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Predict the subjects of a data set with the pack's model, and write sums over them at each landmark.

    Nothing is fitted on the data.

    Args:
        pack: Folder that `ehrseq study pack` made.
        data: Folder of the site's MEDS records.
        out: File to write; an earlier one of a site is replaced.
        name: What the site is called in the merged study.
        split: `held_out` for the subjects that the data's own splits hold out, by the rule of the run's settings.
        facts: What the data's files do not tell.
        resamples: Of the bootstrap, for standard errors.
        seed: Of the bootstrap.
        progress: Called with the name of each stage.
        say: Called with a warning where subjects were in the model's training.

    Returns:
        What was written.

    Raises:
        EhrseqError: Pack or data cannot be used, or nobody there has a prediction time at a landmark.
    """
    told, run = open_pack(pack)
    refuse_existing(out, STUDY_SITE)
    records = read_external(run, data, facts=facts, progress=progress).population.records
    held_out = None if split == "all" else _held_out(run, data, facts, records.timelines.subject_id)
    if held_out is not None:
        records = records.take(np.flatnonzero(held_out))
    warning = _seen_in_training(
        run, told, records.timelines.subject_id, lambda ids: _held_out(run, data, facts, ids)
    )
    if warning:
        say(warning)
    progress("risk curves")
    horizons = np.array(run.task.horizons)
    if not len(records.rows):
        whom = "nobody" if split == "all" else "none of the held-out subjects"
        raise EhrseqError(f"{whom} has a prediction time", where=str(data), fix="see ehrseq check")
    risk = RunRisks(run).risk(records, horizons)
    landmarks: list[dict[str, Any]] = []
    for landmark in run.task.landmarks:
        at = np.flatnonzero(records.rows.at_landmark(landmark))
        progress(f"sums, landmark {len(landmarks) + 1} of {len(run.task.landmarks)}")
        if len(at):
            cause = records.rows.cause[at].astype(np.int64)
            rows = ScoredRows.of(
                records.rows.duration_days[at], cause, np.clip(risk[at], 0, 1), horizons
            )
            landmarks.append(
                {"landmark_days": landmark, **aggregate(rows, resamples=resamples, seed=seed)}
            )
    if not landmarks:
        raise EhrseqError(
            "nobody has a prediction time at a landmark", where=str(data), fix="see ehrseq check"
        )
    keys = ("run", "task", "causes", "horizons_days")
    result = {
        **STUDY_SITE.facts,
        "site": name,
        "split": split,
        "seen_in_training": bool(warning),
        **{key: told[key] for key in keys},
        "risk_edges": list(RISK_EDGES),
        "landmarks": landmarks,
    }
    with output_file(out, STUDY_SITE) as temporary:
        write_json(temporary, result)
    return result


def _held_out(run: Run, data: Path, facts: DataConfig | None, ids: Ints) -> Bools:
    """(S,) which subjects the data's own splits hold out, by the rule that the run was prepared with."""
    study = run.study if facts is None else run.study.model_copy(update={"data": facts})
    lookup = split_lookup(
        data, study=study, tasks=[run.task], excluded=run.excluded(data), parents=read_parents(data)
    )
    return np.asarray(lookup(ids) == SPLITS.index("held_out"))


def _seen_in_training(
    run: Run, told: dict[str, Any], ids: Ints, held_out: Callable[[Ints], Bools]
) -> str:
    """A warning where the model was trained on subjects that are predicted; empty where nothing says so.

    Args:
        run: The pack's run.
        told: The facts of the pack.
        ids: (S,) the subjects that are predicted.
        held_out: Which of some subjects the data's own splits hold out.
    """
    fix = "Predict only subjects that were held out, with --split held_out"
    trained_on = training_subjects(run)
    if trained_on is not None:  # on the machine of the training
        seen = int(np.isin(ids, trained_on).sum())
        many = f"{seen:,}" if seen >= SMALLEST_COUNT else f"fewer than {SMALLEST_COUNT}"
        what = f"{many} subject ids also occur in the model's training data. If they are the same people, the results"
        return f"{what} are too good. {fix}" if seen else ""
    if "training_subjects" not in told:
        return ""
    try:
        others = ids[~held_out(ids)]
    except (
        EhrseqError
    ):  # these records lack what the run's rule of splits needs, so they are others
        return ""
    if not len(others) or subjects_digest(others) != told["training_subjects"]:
        return ""
    return f"the model was trained on subjects of these very records, so the results are too good. {fix}"
