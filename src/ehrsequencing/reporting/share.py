"""A run → a folder that may leave the hospital: a copy without results and paths, checked, with a model card.

The folder has the model, its settings, its vocabulary and the card. It is made only of runs whose vocabulary holds no
code and no number of fewer than 11 training subjects (`vocabulary.min_subjects`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from ehrsequencing.baselines.blend.blend import ARRAYS_FILE, BLEND_FILE
from ehrsequencing.config import (
    EvaluationConfig,
    PretrainingConfig,
    SplitsConfig,
    StudyConfig,
    TaskConfig,
    TransferConfig,
    format_days,
)
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    digest,
    read_json,
    refuse_overlap,
    sha256,
    write_bytes,
    write_settings,
)
from ehrsequencing.core.outputs import (
    MANIFEST,
    RUN_NEEDS,
    SHARED_RUN,
    SIMULATION,
    complete_folder,
    is_json_of,
    write_manifest,
)
from ehrsequencing.core.version import __version__
from ehrsequencing.evaluation.comparison import OURS
from ehrsequencing.evaluation.context import question
from ehrsequencing.evaluation.results import SHARED
from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.models.saved import CONFIG_FILE, WEIGHTS_FILE
from ehrsequencing.prediction.run import Run, saved_audit
from ehrsequencing.records.outcomes import OUTCOMES_FILE

CARD = "README.md"
TAGS = (
    "ehrsequencing",
    "survival-analysis",
    "electronic-health-records",
    "meds",
    "competing-risks",
)
_OF_CARD = ("c", "auc", "brier", "ipa", "oe")
_LICENCE_UNKNOWN = "unknown"  # what hubs take for a licence that nobody has chosen
NOT_SHARED = "(not shared)"
_COPIED = (CONFIG_FILE, WEIGHTS_FILE, "vocabulary.json", "vocabulary.safetensors")


def share_run(
    run_folder: Path, out: Path, *, license_id: str | None = None, overwrite: bool = False
) -> list[str]:
    """Write what of a run may be shared, with a model card.

    Args:
        run_folder: A finished run.
        out: Folder to make.
        license_id: Identifier of a licence, for the card.
        overwrite: Whether an earlier output there that nobody has changed is replaced.

    Returns:
        The names of the files.

    Raises:
        EhrseqError: The run keeps codes or numbers of fewer than 11 training subjects, or a file names a folder.
    """
    run = Run(run_folder)
    refuse_overlap(out, run_folder)
    _require_enough_people(run)
    names = list(_COPIED)
    if run.study.training.blend:
        names += [BLEND_FILE, ARRAYS_FILE]
    if run.study.model.outcomes:
        names.append(OUTCOMES_FILE)
    with complete_folder(out, SHARED_RUN, overwrite=overwrite) as folder:
        for name in names:
            write_bytes(folder / name, (run.folder / name).read_bytes())
        write_settings(folder / "config.yaml", settings_to_share(run.study))
        card = model_card(run, _metrics(run), _audited(run), license_id=license_id)
        write_bytes(folder / CARD, card.encode())
        _require_no_place(run, folder)
        required = [*RUN_NEEDS, *names[len(_COPIED) :]]
        write_manifest(folder, _manifest(run, folder), required=required)
        return sorted(path.name for path in folder.iterdir())


def _require_enough_people(run: Run) -> None:
    """Refuse a run with codes, numbers or outcomes of fewer than 11 training subjects, unless they are simulated."""
    source = run.manifest.get("data_path")
    if source is not None and is_json_of(Path(source) / MANIFEST, SIMULATION):
        return
    fewest = {"vocabulary.min_subjects": run.study.vocabulary.min_subjects}
    if run.task.outcomes is not None:
        fewest["outcomes.min_subjects"] = run.task.outcomes.min_subjects
    for name, people in fewest.items():
        if people < SMALLEST_COUNT:
            raise EhrseqError(
                f"was prepared with {name}={people}, so it holds codes and numbers of so few people",
                where=str(run.folder),
                fix=f"prepare the data with {name}={SMALLEST_COUNT} and train again",
            )


def settings_to_share(study: StudyConfig) -> StudyConfig:
    """The settings without what tells of the place: dates of extraction, names of sites, paths."""
    task = study.task
    if task is not None and task.index.file is not None:
        task = task.model_copy(update={"index": task.index.model_copy(update={"file": NOT_SHARED})})
    return study.model_copy(
        update={
            "data": study.data.model_copy(update={"extracted": None}),
            "task": task,
            "splits": SplitsConfig(),
            "evaluation": EvaluationConfig(),
            "pretraining": PretrainingConfig(),
            "transfer": TransferConfig(),
        }
    )


def _manifest(run: Run, folder: Path) -> dict[str, Any]:
    """Entries of the manifest: digests of what is in the folder, and nothing else that patients decide."""
    vocabulary = run.vocabulary.digest
    own = digest([vocabulary, sha256(folder / WEIGHTS_FILE), sha256(folder / "config.yaml")])
    copied = ("excluded", "task", "parameters")
    kept: dict[str, Any] = {name: run.manifest[name] for name in copied if name in run.manifest}
    return {
        **SHARED_RUN.facts,
        "versions": {"ehrsequencing": __version__, "torch": torch.__version__},
        **kept,
        "prepared": NOT_SHARED,
        "data": NOT_SHARED,
        "labels": NOT_SHARED,
        "vocabulary": vocabulary,
        "fingerprint": own,
    }


def _metrics(run: Run) -> dict[str, Any] | None:
    """`metrics.json`, where the run has been evaluated and nobody has changed the file."""
    if SHARED not in run.manifest["files"] or SHARED in run.altered:
        return None
    found: dict[str, Any] = read_json(run.folder / SHARED)
    return found if {"data", "metrics"} <= found.keys() else None


def _audited(run: Run) -> str:
    audit = saved_audit(run.folder)
    if audit is None:
        return "The audit for leaks of the future has not been made."
    return f"The audit for leaks of the future found {'a leak' if audit['leaks'] else 'no leak'}."


def _require_no_place(run: Run, folder: Path) -> None:
    """The last look: no text file names a folder of this machine.

    Raises:
        EhrseqError: One does; a task or a code holds it.
    """
    places = {
        str(run.folder.resolve().parent),
        str(Path.home()),
        run.manifest["prepared"],
        str(Path.cwd()),
    }
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors" or path.name == MANIFEST:
            continue
        text = path.read_text(encoding="utf-8")
        if any(len(place) > 4 and place in text for place in places if place != NOT_SHARED):
            fix = "look for a path in the task file and in the names of codes"
            raise EhrseqError(
                f"its {path.name} would name a folder of this machine",
                where=str(run.folder),
                fix=fix,
            )


# ---- the model card --------------------------------------------------------------------------------------------------


def model_card(
    run: Run, metrics: Mapping[str, Any] | None, audited: str, *, license_id: str | None = None
) -> str:
    """The text of the card.

    Args:
        run: The run.
        metrics: Content of `metrics.json`, where the run has been evaluated.
        audited: A sentence on the audit.
        license_id: Identifier of a licence.
    """
    rows = _rows(metrics)
    front = {
        "license": license_id or _LICENCE_UNKNOWN,
        "library_name": "ehrsequencing",
        "tags": list(TAGS),
    }
    head = yaml.safe_dump(front, sort_keys=False)
    fewest = run.study.vocabulary.min_subjects
    people = None if metrics is None else metrics["data"]["subjects"].get("train")
    trained_on = (
        "an unknown number of"
        if people is None
        else f"{people:,}"
        if isinstance(people, int)
        else people
    )
    parameters = run.manifest.get("parameters")
    size = f" It has {parameters:,} parameters." if parameters else ""
    return f"""---
{head}---

# {run.task.heading}

{_question(run.task)}

This model reads a patient's record in [MEDS](https://medical-event-data-standard.github.io) format and gives the \
risk of each event by each horizon at every prediction time. It is for research. It is no medical device, and its \
risks are associations, not effects of treatments.

## Training

It was trained on the records of {trained_on} people.{size} {audited}

## Accuracy

{_accuracy(metrics, rows)}

## Use

```
ehrseq predict THIS_FOLDER MEDS_DATA --at last --out risks.csv
```

This needs ehrsequencing {__version__} or newer. Check its calibration on your own patients before you rely on it: \
`ehrseq evaluate THIS_FOLDER --data MEDS_DATA --out RESULTS`.

## What is inside

- Names of codes that at least {fewest} training patients had, and codes that the task names.
- Quantiles of laboratory and other numbers, and the edges of the time grid. Each comes from a group of at least \
{fewest} patients.
- Weights that were fitted to patients. No record can be read from them, but with much effort somebody who has a \
person's record may find out whether it was used. Ask those who are responsible for the data before you publish them.

Ids, dates, predictions, results of single people, exact counts, the training history, checkpoints, paths, the name of \
the data set, sites and dates of extraction are not in the folder.
"""


def _question(task: TaskConfig) -> str:
    if task.index.file is None:
        return question(task)
    index = task.index.model_copy(update={"file": None, "first_visit": True})
    text = question(task.model_copy(update={"index": index}))
    return text.replace("the first visit", "index times that a file lists")


def _rows(metrics: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The metrics of this model for the task's outcome at the main landmark."""
    if metrics is None:
        return []
    model = metrics["models"][0] if metrics.get("models") else OURS
    place = (model, metrics["causes"][0], metrics["main"]["landmark_days"])
    return [
        row
        for row in metrics["metrics"]
        if (row["model"], row["cause"], row["landmark_days"]) == place
        and row["metric"] in _OF_CARD
        and row["value"] is not None
        and row["horizon_days"]
    ]


def _place(row: Mapping[str, Any]) -> str:
    return f"{row['cause']} by {format_days(row['horizon_days'])}"


def _accuracy(metrics: Mapping[str, Any] | None, rows: list[Mapping[str, Any]]) -> str:
    if metrics is None:
        return "Nobody has evaluated this model."
    if not rows:
        return "Too few people had the event to judge it."
    landmark = metrics["main"]["landmark_days"]
    where = f"{format_days(landmark)} after the index" if landmark else "at the index"
    lines = [
        f"On held-out people, predicted {where}. A dash stands where too few events allow an interval.",
        "",
        "| metric | event and horizon | value | 95 % interval |",
        "|---|---|---|---|",
    ]
    for row in rows:
        interval = "–" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
        name = METRICS[row["metric"]].name
        lines.append(f"| {name} | {_place(row)} | {row['value']:.3f} | {interval} |")
    return "\n".join(lines)
