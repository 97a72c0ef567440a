"""`ehrseq study run`: a pack on a hospital's own records, of which only aggregates are written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import DataConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.evaluation.external import read_external
from ehrsequencing.evaluation.risk_source import RunRisks
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.output_kinds import STUDY_SITE, is_json_of
from ehrsequencing.storage import refuse_foreign_file, write_json
from ehrsequencing.study.aggregates import RISK_EDGES, aggregate
from ehrsequencing.study.pack import open_pack

RESAMPLES = 200


def run_site(
    pack: Path,
    data: Path,
    out: Path,
    *,
    name: str,
    facts: DataConfig | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Predict every subject of a data set with the pack's model, and write sums over them at each landmark.

    Nothing is fitted on the data.

    Args:
        pack: Folder that `ehrseq study pack` made.
        data: Folder of the site's MEDS records.
        out: File to write; an earlier one of a site is replaced.
        name: What the site is called in the merged study.
        facts: What the data's files do not tell.
        resamples: Of the bootstrap, for standard errors.
        seed: Of the bootstrap.
        progress: Called with the name of each stage.

    Returns:
        What was written.

    Raises:
        EhrseqError: Pack or data cannot be used, or nobody there has a prediction time at a landmark.
    """
    told, run = open_pack(pack)
    refuse_foreign_file(out, lambda path: is_json_of(path, STUDY_SITE))
    records = read_external(run, data, facts=facts, progress=progress).population.records
    progress("risk curves")
    horizons = np.array(run.task.horizons)
    if not len(records.rows):
        raise EhrseqError("nobody has a prediction time", where=str(data), fix="see ehrseq check")
    risk = RunRisks(run).risk(records, horizons)
    landmarks: list[dict[str, Any]] = []
    for landmark in run.task.landmarks:
        at = np.flatnonzero(records.rows.at_landmark(landmark))
        progress(f"sums, landmark {len(landmarks) + 1} of {len(run.task.landmarks)}")
        if len(at):
            cause = records.rows.cause[at].astype(np.int64)
            rows = ScoredRows.of(records.rows.duration_days[at], cause, np.clip(risk[at], 0, 1), horizons)
            landmarks.append({"landmark_days": landmark, **aggregate(rows, resamples=resamples, seed=seed)})
    if not landmarks:
        raise EhrseqError("nobody has a prediction time at a landmark", where=str(data), fix="see ehrseq check")
    keys = ("run", "task", "causes", "horizons_days")
    result = {
        **STUDY_SITE.facts,
        "site": name,
        **{key: told[key] for key in keys},
        "risk_edges": list(RISK_EDGES),
        "landmarks": landmarks,
    }
    write_json(out, result, follow=True)
    return result
