"""A run → a folder that may leave the hospital: a copy without results and paths, checked, with a model card.

The folder has the model, its settings, its vocabulary and the card. It is made only of runs whose vocabulary holds no
code and no number of fewer than 11 training subjects (`vocabulary.min_subjects`).
"""

from pathlib import Path

import torch

from ehrsequencing.config import (
    EvaluationConfig,
    PretrainingConfig,
    SplitsConfig,
    StudyConfig,
    TransferConfig,
)
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    Page,
    Shareable,
    digest,
    refuse_overlap,
    sha256,
    write_bytes,
    write_settings,
    write_shareable,
)
from ehrsequencing.core.made_of import made_of
from ehrsequencing.core.outputs import (
    ARRAYS_FILE,
    BLEND_FILE,
    MANIFEST,
    NETWORK_FILES,
    RUN_NEEDS,
    SHARED_RUN,
    complete_folder,
    write_manifest,
)
from ehrsequencing.core.version import __version__
from ehrsequencing.evaluation.results import read_result
from ehrsequencing.models.base import CONFIG_FILE, WEIGHTS_FILE
from ehrsequencing.prediction.run import UPDATE, Run, saved_audit
from ehrsequencing.records.outcomes import OUTCOMES_FILE
from ehrsequencing.records.people import PEOPLE
from ehrsequencing.records.prepared import REFERENCE
from ehrsequencing.reporting.model_cards import (
    APPLIED_CARD,
    CARD,
    applied_model_card,
    model_card,
)
from ehrsequencing.results.redaction import redact_people
from ehrsequencing.results.result_types import Shared

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
    needed = set(RUN_NEEDS) if run.study.training.network else set(RUN_NEEDS) - NETWORK_FILES
    names = [name for name in _COPIED if name in needed or name not in NETWORK_FILES]
    if REFERENCE in run.manifest["files"] and REFERENCE not in run.altered:
        names.append(REFERENCE)
    copied = len(names)
    if run.has_trees:
        names += [BLEND_FILE, ARRAYS_FILE]
    if run.outcomes:
        names.append(OUTCOMES_FILE)
    if UPDATE in run.manifest["files"]:
        names.append(UPDATE)
    with complete_folder(out, SHARED_RUN, overwrite=overwrite) as folder:
        for name in names:
            write_bytes(folder / name, (run.folder / name).read_bytes())
        if run.training_people:
            write_shareable(folder / PEOPLE, redact_people(run.training_people))
        write_settings(folder / "config.yaml", settings_to_share(run.study))
        metrics = read_result(run.folder) or Shareable[Shared]()  # nothing tells of nobody
        for name, text in _cards(run, metrics, license_id=license_id).items():
            write_shareable(folder / name, text)
        _require_no_place(run, folder)
        required = [*sorted(needed), *names[copied:]]
        made = {"run": run.fingerprint, "evaluation": metrics.get("made_of")}
        facts = _manifest(run, folder) | {"made_of": digest(made_of(**made))}
        write_manifest(folder, facts, required=required)
        return sorted(path.name for path in folder.iterdir())


def _require_enough_people(run: Run) -> None:
    """Refuse a run with codes, numbers or outcomes of fewer than 11 training subjects, unless they are simulated."""
    if run.manifest.get("simulated"):
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


def _manifest(run: Run, folder: Path) -> dict[str, object]:
    """Entries of the manifest: digests of what is in the folder, and nothing else that patients decide."""
    vocabulary = run.vocabulary.digest
    answering = (folder / name for name in (WEIGHTS_FILE, BLEND_FILE, ARRAYS_FILE, "config.yaml"))
    own = digest([vocabulary, *(sha256(path) for path in answering if path.exists())])
    noted = run.manifest.get("import", {})  # its time zone would tell of the place
    shared = {"excluded", "task", "parameters", "simulated", "update"}
    return {
        **SHARED_RUN.facts,
        "versions": {"ehrsequencing": __version__, "torch": torch.__version__},
        **{name: value for name, value in sorted(run.manifest.items()) if name in shared},
        "prepared": NOT_SHARED,
        "data": NOT_SHARED,
        "labels": NOT_SHARED,
        "vocabulary": vocabulary,
        "fingerprint": own,
        "import": {name: how for name, how in noted.items() if name == "known"},
    }


def _cards(run: Run, metrics: Shareable[Shared], *, license_id: str | None) -> dict[str, Page]:
    """The cards by the names of their files."""
    audit, audited = saved_audit(run.folder), "The audit for leaks of the future has not been made."
    if audit is not None:
        audited = f"The audit for leaks of the future found {'a' if audit['leaks'] else 'no'} leak."
    return {
        CARD: metrics.drawn(lambda m: model_card(run, m or None, audited, license_id=license_id)),
        APPLIED_CARD: metrics.drawn(lambda m: applied_model_card(run, m or None, audited)),
    }


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
            raise EhrseqError(
                f"its {path.name} would name a folder of this machine",
                where=str(run.folder),
                fix="look for a path in the task file and in the names of codes",
            )
