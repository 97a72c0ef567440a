"""Pretraining from Python: `ehrsequencing.pretrain`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ehrsequencing.config import StudyConfig, validated
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.pretraining.loop import Pretrainer
from ehrsequencing.training.run_folder import alone_in


def pretrain(
    data: Prepared | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    task: str | None = None,
    model: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    pretraining: Mapping[str, Any] | None = None,
    preset: str | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Fit a model to records without labels, with early stopping on the tuning split.

    Args:
        data: A prepared set, or its folder.
        out: Folder of the pretrained model, for `ehrseq train --init`.
        task: A task of the set, whose outcome, relatives and near-synonyms are then no targets.
        model: Settings of the model, as in `{"size": "small"}`.
        training: Settings of training, as in `{"epochs": 20}`.
        pretraining: Settings of pretraining, as in `{"objectives": ["masked_codes"]}`.
        preset: Name of a preset.
        resume: Continue after an interruption.

    Returns:
        What was measured on the tuning split (the content of `pretraining.json`): for each objective its losses in
        nats, and recall@k beside the baselines.

    Raises:
        EhrseqError: A setting is unknown, the data cannot be used, or `out` holds something else.
    """
    sections = {"model": model, "training": training, "pretraining": pretraining, "preset": preset}
    given = {name: value for name, value in sections.items() if value is not None}
    study = validated(StudyConfig, given, where="ehrsequencing.pretrain")
    with alone_in(Path(out)):  # before the work begins
        prepared = data if isinstance(data, Prepared) else Prepared(Path(data))
        return Pretrainer(prepared, Path(out), study=study, task_name=task).fit(resume=resume)
