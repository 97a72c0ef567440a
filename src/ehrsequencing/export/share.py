"""A run → a folder that may leave the hospital: it predicts as the run does, and names nobody and no place.

The folder has the model, its settings, its vocabulary and a model card. Codes and numbers of fewer than 11 training
subjects are removed from vocabulary and weights (`anonymous.py`). Results of single people, histories, checkpoints and
paths stay behind.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ehrsequencing.baselines.blend.blend import ARRAYS_FILE, BLEND_FILE
from ehrsequencing.config import (
    EvaluationConfig,
    PretrainingConfig,
    SplitsConfig,
    StudyConfig,
    TransferConfig,
)
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    digest,
    read_json,
    refuse_overlap,
    sha256,
    write_bytes,
    write_settings,
)
from ehrsequencing.core.minimum_counts import SMALLEST_COUNT
from ehrsequencing.core.outputs import (
    MANIFEST,
    RUN_NEEDS,
    SHARED_RUN,
    complete_folder,
    write_manifest,
)
from ehrsequencing.core.version import __version__
from ehrsequencing.evaluation.results import SHARED
from ehrsequencing.export.anonymous import (
    NOTHING,
    Rare,
    count_carriers,
    forget_rare,
    rare_parts,
    without,
)
from ehrsequencing.export.model_card import Facts, model_card
from ehrsequencing.models.base import CONFIG_FILE, WEIGHTS_FILE
from ehrsequencing.prediction.run import Run, saved_audit
from ehrsequencing.records.outcome_files import OUTCOMES_FILE
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.vocabulary import Vocabulary

CARD = "README.md"
NOT_SHARED = "(not shared)"
_AS_IT_IS = ("excluded", "task", "parameters")  # entries of the manifest


@dataclass(frozen=True)
class Shared:
    """What a shared folder is.

    Attributes:
        codes: How many codes were removed.
        numbers: How many codes lost the effect of their numbers.
        people: Training subjects; None where nobody knows, a text where the count is hidden.
        files: Names of the files.
    """

    codes: int = 0
    numbers: int = 0
    people: int | str | None = None
    files: list[str] = field(default_factory=list)


def share_run(
    run_folder: Path,
    out: Path,
    *,
    prepared: Path | None = None,
    license_id: str | None = None,
    overwrite: bool = False,
) -> Shared:
    """Write what of a run may be shared, with a model card.

    Args:
        run_folder: A finished run.
        out: Folder to make.
        prepared: The run's prepared set, if it has moved. It is needed where `vocabulary.min_subjects` is below 11, to
            count the people behind each code.
        license_id: Identifier of a licence, for the card.
        overwrite: Whether an earlier output there that nobody has changed is replaced.

    Raises:
        EhrseqError: The run keeps something of few people that cannot be removed, or its prepared set is needed and
            gone.
    """
    run = Run(run_folder)
    refuse_overlap(out, run_folder)
    enough = run.study.vocabulary.min_subjects
    store = _store(run, prepared, needed=enough < SMALLEST_COUNT and not run.is_shared)
    rare = NOTHING
    if store is not None and enough < SMALLEST_COUNT:
        _require_removable(run)
        rare = rare_parts(
            count_carriers(store, run.vocabulary), run.vocabulary, enough=SMALLEST_COUNT
        )
    people = _people(run, store)
    with complete_folder(out, SHARED_RUN, overwrite=overwrite) as folder:
        vocabulary = _write_model(run, folder, rare)
        write_settings(folder / "config.yaml", settings_to_share(run.study))
        names = [*RUN_NEEDS, *_others(run, folder)]
        write_bytes(folder / CARD, model_card(_facts(run, rare, people, license_id)).encode())
        _require_no_place(run, folder)
        write_manifest(folder, _manifest(run, folder, vocabulary), required=names)
        files = sorted(path.name for path in folder.iterdir())
    return Shared(
        len(rare.codes), len(set(run.vocabulary.base[rare.scales].tolist())), people, files
    )


def _store(run: Run, prepared: Path | None, *, needed: bool) -> Prepared | None:
    """The run's prepared set, where it is there."""
    folder = prepared or Path(run.manifest["prepared"])
    if prepared is None and not needed:
        try:
            return run.prepared(folder)
        except EhrseqError:
            return None
    if prepared is None and not folder.is_dir():
        what = (
            f"its vocabulary has codes of {run.study.vocabulary.min_subjects} training subjects, and the prepared set "
            "that tells whose they are has moved"
        )
        fix = (
            f"name the set with --prepared, or train with vocabulary.min_subjects={SMALLEST_COUNT}"
        )
        raise EhrseqError(what, where=str(run.folder), fix=fix)
    return run.prepared(folder)


def _require_removable(run: Run) -> None:
    """Refuse what keeps numbers or names of few people elsewhere than in the vocabulary."""
    fix = f"prepare the data with vocabulary.min_subjects={SMALLEST_COUNT} and train again"
    if run.study.training.blend:
        what = f"is a blend, whose features may come from {run.study.vocabulary.min_subjects} training subjects"
        raise EhrseqError(what, where=str(run.folder), fix=fix)
    asked = run.task.outcomes
    if asked is not None and asked.min_subjects < SMALLEST_COUNT:
        what = f"predicts outcomes that {asked.min_subjects} training subjects had"
        fix = f"prepare the data with outcomes.min_subjects={SMALLEST_COUNT} and train again"
        raise EhrseqError(what, where=str(run.folder), fix=fix)


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


def _write_model(run: Run, folder: Path, rare: Rare) -> Vocabulary:
    """Write configuration, weights and vocabulary, and return the vocabulary."""
    vocabulary = without(run.vocabulary, rare)
    if (
        rare
        and run.code_types is not None
        and (vocabulary.code_types != run.vocabulary.code_types).any()
    ):
        what = "its embedding of code types has types of few people, which cannot be removed"
        fix = f"prepare the data with vocabulary.min_subjects={SMALLEST_COUNT} and train again"
        raise EhrseqError(what, where=str(run.folder), fix=fix)
    vocabulary.save(folder)
    if rare:
        model = Run(run.folder).model  # a copy of its own: `run.model` stays as it is
        forget_rare(model, run.vocabulary, rare)
        model.save_pretrained(folder)
        return vocabulary
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        write_bytes(folder / name, (run.folder / name).read_bytes())
    return vocabulary


def _others(run: Run, folder: Path) -> list[str]:
    """Copy the files of a blend and the names of outcomes, where the run has them."""
    names = [BLEND_FILE, ARRAYS_FILE] if run.study.training.blend else []
    names += [OUTCOMES_FILE] if run.study.model.outcomes else []
    for name in names:
        write_bytes(folder / name, (run.folder / name).read_bytes())
    return names


def _manifest(run: Run, folder: Path, vocabulary: Vocabulary) -> dict[str, Any]:
    """Entries of the manifest: digests of what is in the folder, and nothing else that patients decide."""
    own = digest([vocabulary.digest, sha256(folder / WEIGHTS_FILE), sha256(folder / "config.yaml")])
    return {
        **SHARED_RUN.facts,
        "versions": {"ehrsequencing": __version__, "torch": torch.__version__},
        **{name: run.manifest[name] for name in _AS_IT_IS if name in run.manifest},
        "prepared": NOT_SHARED,
        "data": NOT_SHARED,
        "labels": NOT_SHARED,
        "vocabulary": vocabulary.digest,
        "fingerprint": own,
    }


def _people(run: Run, store: Prepared | None) -> int | str | None:
    if store is not None:
        return len(store.timelines("train"))
    told = _metrics(run)
    return None if told is None else told["data"]["subjects"].get("train")


def _metrics(run: Run) -> dict[str, Any] | None:
    if SHARED not in run.manifest["files"] or SHARED in run.altered:
        return None
    found: dict[str, Any] = read_json(run.folder / SHARED)
    return found if {"data", "metrics"} <= found.keys() else None


def _facts(run: Run, rare: Rare, people: int | str | None, license_id: str | None) -> Facts:
    audit = saved_audit(run.folder)
    said = "The audit for leaks of the future has not been made."
    if audit is not None:
        said = "The audit for leaks of the future found " + (
            "a leak." if audit["leaks"] else "no leak."
        )
    enough, numbers = (
        run.study.vocabulary.min_subjects,
        len(set(run.vocabulary.base[rare.scales].tolist())),
    )
    few = f"fewer than {SMALLEST_COUNT} training patients"
    removed = [
        f"From the vocabulary, {_many(len(rare.codes), 'code')} of {few}, with the weights fitted to them. The model "
        "takes them for unknown codes: people who have one get another risk than from the original.",
        f"The effect of the numbers of {_many(numbers, 'code')}, because {few} had one.",
        "Ids, dates, predictions, results of single people, exact counts, the training history and checkpoints.",
        "Paths of the computer, the name of the data set, sites and dates of extraction.",
    ]
    return Facts(
        task=run.task,
        name=run.task.name,
        people=people,
        parameters=run.manifest.get("parameters"),
        metrics=_metrics(run),
        audit=said,
        removed=removed,
        enough=enough,
        license=license_id,
    )


def _many(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


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
