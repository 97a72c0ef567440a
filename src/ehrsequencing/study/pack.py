"""`ehrseq study pack`: the files of a run that prediction needs, as a folder that another hospital can use."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, refuse_overlap
from ehrsequencing.core.outputs import (
    MANIFEST,
    RUN_NEEDS,
    STUDY_PACK,
    complete_folder,
    read_manifest,
    write_manifest,
)
from ehrsequencing.prediction.run import Run

RUN_FOLDER = "run"


def pack(run_folder: Path, out: Path) -> dict[str, Any]:
    """Copy a run's model, vocabulary, task and settings, and nothing that tells of its patients beside them.

    Args:
        run_folder: A finished run.
        out: Folder to make; an earlier pack there is replaced.

    Returns:
        The facts of the pack's manifest.

    Raises:
        EhrseqError: The run is not complete, or its head gives no risks by a horizon.
    """
    run = Run(run_folder)
    if run.is_visit_head:
        fix = "train with model.head=horizon"
        raise EhrseqError(
            "hazards per visit have no horizon to compare sites at", where=str(run_folder), fix=fix
        )
    refuse_overlap(out, run_folder)
    facts = {
        **STUDY_PACK.facts,
        "run": run.fingerprint,
        "task": run.task.name,
        "causes": list(run.task.causes),
        "horizons_days": list(run.task.horizons),
        "landmarks_days": list(run.task.landmarks),
    }
    if (trained_on := training_subjects(run)) is not None:
        facts["training_subjects"] = subjects_digest(trained_on)
    with complete_folder(out, STUDY_PACK) as folder:
        (folder / RUN_FOLDER).mkdir()
        for name in {MANIFEST, *RUN_NEEDS, *run.manifest.get("required", ())}:
            shutil.copyfile(run_folder / name, folder / RUN_FOLDER / name)
        write_manifest(folder, facts)
    return facts


def training_subjects(run: Run) -> Ints | None:
    """Ids of the subjects that a run was trained and tuned on; None where its prepared set is not on this machine."""
    try:
        prepared = run.prepared()
    except EhrseqError:  # it has moved, or another one lies there now
        return None
    return np.concatenate([prepared.timelines(split).subject_id for split in ("train", "tuning")])


def subjects_digest(ids: Ints) -> str:
    """One digest of all these ids together. It tells whether another set of ids is the same, and no single id."""
    return digest(np.unique(ids).tolist())


def open_pack(folder: Path) -> tuple[dict[str, Any], Run]:
    """The facts of a pack and its run.

    Raises:
        EhrseqError: The folder is no pack, or one of its files has changed.
    """
    facts = read_manifest(folder, what="a study pack")
    if not STUDY_PACK.is_of(facts):
        raise EhrseqError(
            "is not a study pack", where=str(folder), fix="make one with ehrseq study pack RUN"
        )
    return facts, Run(folder / RUN_FOLDER)
