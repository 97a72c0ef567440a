"""The files of a finished run: everything that prediction needs."""

from pathlib import Path
from typing import Any

import torch

from ehrsequencing.config import StudyConfig
from ehrsequencing.core.files import write_json, write_settings
from ehrsequencing.core.outputs import RUN, RUN_NEEDS, write_manifest
from ehrsequencing.core.version import __version__
from ehrsequencing.models.base import CONFIG_FILE, WEIGHTS_FILE, SurvivalModel
from ehrsequencing.records.outcome_files import OUTCOMES_FILE
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.pretrained import subjects_digest
from ehrsequencing.training.run_folder import write_history

FILES = (
    CONFIG_FILE,
    WEIGHTS_FILE,
    "config.yaml",
    "history.jsonl",
    "vocabulary.json",
    "vocabulary.safetensors",
)


def write_run_files(
    out: Path,
    prepared: Prepared,
    study: StudyConfig,
    model: SurvivalModel,
    history: list[dict[str, Any]],
    facts: dict[str, Any],
    *,
    more: tuple[str, ...] = (),
) -> None:
    """Write a run; the manifest comes last.

    Args:
        out: Folder of the run.
        prepared: What it was trained on.
        study: Its settings, the task included.
        model: The trained model.
        history: One row an epoch.
        facts: For the manifest.
        more: Files that are there already, and that prediction needs too.
    """
    assert study.task is not None
    task = study.task.name
    write_history(out, history)
    model.save_pretrained(out)
    prepared.vocabulary.save(out)
    if model.config.outcomes:
        write_json(out / OUTCOMES_FILE, {"codes": prepared.outcomes(task)})
        more = (*more, OUTCOMES_FILE)
    write_settings(out / "config.yaml", study)
    manifest = prepared.manifest
    write_manifest(
        out,
        {
            **RUN.facts,
            "versions": {"ehrsequencing": __version__, "torch": torch.__version__},
            "task": task,
            "prepared": str(prepared.folder.resolve()),
            "data": manifest["data"],
            "excluded": manifest["excluded"],
            **prepared.identity(task),
            "data_path": manifest.get("data_path", ""),
            "subjects": {
                split: subjects_digest(prepared.timelines(split).subject_id)
                for split in ("train", "tuning")
            },
            "parameters": sum(p.numel() for p in model.parameters()),
            **facts,
        },
        files=[out / name for name in (*FILES, *more)],
        required=(*RUN_NEEDS, *more),
    )
