"""What a run is: its folder, its model, the prepared set that it was trained on, and its files.

A run folder is all that prediction needs: the model, the vocabulary, how visits are cut, and the task.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ehrsequencing.config import StudyConfig, TaskConfig, format_days, load_study
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, locked, read_json, sha256
from ehrsequencing.core.made_of import differing
from ehrsequencing.core.outputs import (
    ARRAYS_FILE,
    BLEND_FILE,
    MANIFEST,
    RUN,
    SHARED_RUN,
    altered,
    read_manifest,
    require_facts,
    require_unchanged,
    save_manifest,
)
from ehrsequencing.records.account import TrainingPeople
from ehrsequencing.records.outcomes import OUTCOMES_FILE, read_outcomes
from ehrsequencing.records.people import PEOPLE
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.scales import KNOTS
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.results.result_types import RunManifest, SharedAudit

if TYPE_CHECKING:  # what holds torch is imported with the model
    from ehrsequencing.core.arrays import Floats32
    from ehrsequencing.models.base import SurvivalModel
    from ehrsequencing.predictors.blend import Blend
    from ehrsequencing.predictors.predictor import Predictor
    from ehrsequencing.records.timelines import TaskRecords

AUDIT = "audit.json"  # what `ehrseq audit` found
METRICS = "metrics.json"  # what `ehrseq evaluate` found
UPDATE = "update.json"  # of a run that `ehrseq update` made: intercept and slope of each cause
_PATIENCE = 60.0  # seconds to wait for another command that adds a file to the run
_FACTS = {"excluded": list, "fingerprint": str, "labels": str, "prepared": str, "vocabulary": str}


class Run:
    """A trained run, read from its folder.

    Args:
        folder: Its path.

    Attributes:
        fingerprint: What makes this very run: settings, data, labels (the run's own digest), and its weights' bytes.
        is_visit_head: Whether the model gives hazards per visit, which have no calendar.
        has_trees: Whether trees and Cox are parts of the answer.
        code_types: Type of each token, where the model has an embedding for it.
        start_days: Risks are given no event for so long after the prediction time; the `visit` head has no days.

    Raises:
        EhrseqError: The folder is not a complete run, or its files do not belong together.
    """

    def __init__(self, folder: Path | str) -> None:
        folder = Path(folder)
        self.folder = folder
        self.manifest: RunManifest = read_manifest(folder, what="a finished run")
        if self.manifest.get("kind") not in (RUN.name, SHARED_RUN.name):
            raise EhrseqError(
                "is not a run", where=str(folder), fix="name a folder that ehrseq train made"
            )
        require_facts(folder, self.manifest, _FACTS)
        if not all(isinstance(code, str) for code in self.manifest["excluded"]):
            raise EhrseqError(
                "is damaged: its entry 'excluded' is invalid",
                where=str(folder / MANIFEST),
                fix="copy the whole run folder",
            )
        self.study: StudyConfig = load_study(folder / "config.yaml", is_of_run=True)
        self.vocabulary = Vocabulary.load(folder)
        if self.study.task is None or self.vocabulary.digest != self.manifest.get("vocabulary"):
            raise EhrseqError(
                "the vocabulary is not the one that the model was trained with",
                where=str(folder),
                fix="train again, or copy the whole run folder",
            )
        self.task: TaskConfig = self.study.task
        self.fingerprint = _fingerprint(self.manifest)
        self.is_visit_head = self.study.model.head == "visit"
        self.has_trees = bool(self.study.training.blend) or not self.study.training.network
        self.start_days = 0.0 if self.is_visit_head else self.task.blanking
        has_types = self.study.model.code_types
        self.code_types = self.vocabulary.code_types if has_types else None

    def prepared(self, folder: Path | None = None) -> Prepared:
        """The prepared set that the run was trained on.

        Args:
            folder: Where it is; default: where training found it.

        Raises:
            EhrseqError: It has moved, or is another one; or the run was updated for other people.
        """
        if "update" in self.manifest:
            raise EhrseqError(
                "was updated for other people than those of the prepared set that its weights are from",
                where=str(self.folder),
                fix=f"name its own people, as in ehrseq evaluate {self.folder} --data DATA",
            )
        folder = folder or Path(self.manifest["prepared"])
        if not folder.is_dir():
            raise EhrseqError(
                "the prepared set has moved", where=str(folder), fix="name it with --prepared"
            )
        prepared = Prepared(folder)
        self.require_own(prepared)
        return prepared

    def require_own(self, prepared: Prepared) -> None:
        """Refuse a prepared set that is not the one the run was trained on.

        Raises:
            EhrseqError: Its vocabulary, labels, codes, values or visits differ.
        """
        if other := differing(prepared.identity(self.task.name), self.manifest):
            raise EhrseqError(
                f"is not what this run was trained on (what differs: {', '.join(other)})",
                where=str(prepared.folder),
                fix=f"name the set that {self.folder} was trained on with --prepared",
            )

    @cached_property
    def altered(self) -> dict[str, str]:
        """Files that prediction does not need and that are missing or changed since they were written, and which."""
        return altered(self.folder, self.manifest)

    def fault_of(self, name: str) -> str:
        """Why a file that prediction does not need cannot be used, missing or changed; empty where it can."""
        return self.altered.get(name, "" if name in self.manifest["files"] else "is missing")

    @cached_property
    def model(self) -> "SurvivalModel":
        """The network, in evaluation mode; in a blend it is one of the parts.

        Raises:
            EhrseqError: The run has no network.
        """
        if not self.study.training.network:
            raise EhrseqError(
                "has no network",
                where=str(self.folder),
                fix="use a run that was trained without training.network=false",
            )
        from ehrsequencing.models.ensemble import load_model

        return load_model(self.folder)

    @cached_property
    def outcomes(self) -> list[str]:
        """The codes of the outcomes that the model predicts beside the task's causes; a code's place is its number."""
        return read_outcomes(self.folder) if OUTCOMES_FILE in self.manifest["files"] else []

    @cached_property
    def predictor(self) -> "Predictor":
        """What answers for the run: its network, its ensemble, its blend, or trees and Cox.

        Raises:
            EhrseqError: It has the `visit` head, whose hazards are per visit and not per day.
        """
        if self.is_visit_head:
            raise EhrseqError(
                "the visit head has no risks at horizons",
                where=str(self.folder),
                fix="train with model.head=horizon",
            )
        from ehrsequencing.predictors.blend import Blend

        alone: Any = None
        if self.study.training.network:  # else torch is never loaded
            from ehrsequencing.predictors.network import Network

            alone = Network(self.model, self.code_types)
        if self.has_trees:
            alone = Blend.load(self.folder, alone)
        if UPDATE not in self.manifest["files"]:
            return alone
        fitted = read_json(self.folder / UPDATE)
        return alone.recalibrated(np.array(fitted["intercept"]), np.array(fitted["slope"]))

    def visit_hazards(self, records: "TaskRecords") -> "Floats32":
        """Hazard (R, 1, 1) before the next visit, of a run with the `visit` head."""
        from ehrsequencing.predictors.network import visit_hazards

        return visit_hazards(self.model, records, code_types=self.code_types)

    @property
    def blend(self) -> "Blend | None":
        """The predictor, where it has parts."""
        from ehrsequencing.predictors.blend import Blend
        from ehrsequencing.predictors.predictor import Recalibrated

        predictor = self.predictor if self.has_trees else None
        while isinstance(predictor, Recalibrated):
            predictor = predictor.inner
        return predictor if isinstance(predictor, Blend) else None

    @cached_property
    def training_people(self) -> TrainingPeople | None:
        """What the training people were like (`prediction/reference.py`); None where the run does not hold it."""
        if self.fault_of(PEOPLE):
            return None
        found: TrainingPeople = read_json(self.folder / PEOPLE)
        try:
            curves = [*found["measures"].values(), *found["risks"].values()]
            np.array(curves, dtype=np.float64).reshape(-1, KNOTS)
            np.array(list(found["codes"].values()), dtype=np.int64).reshape(-1, 2)
            is_known = float(found["visits_a_year"]) >= 0 and isinstance(found["people"], int)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise EhrseqError(
                "is damaged", where=str(self.folder / PEOPLE), fix="copy the whole run folder"
            ) from error
        return found if is_known else None  # else fewer than 11 people

    @property
    def why_no_people(self) -> str:
        """Why there is nothing to compare new people with."""
        return self.fault_of(PEOPLE) or f"tells of fewer than {SMALLEST_COUNT} people"

    @property
    def main_horizon(self) -> float:
        """The horizon of every headline: as the task names it, else as the evaluation found it, else the middle one."""
        named = self.task.main_horizon
        if named is None and METRICS in self.manifest["files"] and METRICS not in self.altered:
            named = read_json(self.folder / METRICS)["main"]["horizon_days"]
        return float(named or self.task.horizons[len(self.task.horizons) // 2])

    @property
    def trained(self) -> str:
        """How its weights were found, where it was not by the likelihood; else empty."""
        if self.manifest.get("trained") == "outside":
            return "in a loop of its authors' own"
        loss = self.manifest.get("loss")
        return f"with the loss {loss['name']}, source {loss['source'][:12]}" if loss else ""


def _fingerprint(manifest: Mapping[str, Any]) -> str:
    files = manifest["files"]
    rest = [files[name] for name in (BLEND_FILE, ARRAYS_FILE, UPDATE) if name in files]
    return digest([manifest.get("fingerprint"), files.get("model.safetensors"), *rest])


def opened(run: Run | str | os.PathLike[str]) -> Run:
    """A run that is open already, or one by its folder."""
    if not isinstance(run, Run | str | os.PathLike):
        raise EhrseqError(
            f"expected a run, got {type(run).__name__}",
            where="run",
            fix="give a run, or the folder of one",
        )
    return run if isinstance(run, Run) else Run(os.fspath(run))


def horizons_of(run: Run, horizons_days: Sequence[float] | None) -> tuple[float | None, ...]:
    """The horizons to predict for, one of None for the `visit` head.

    Raises:
        EhrseqError: A horizon that the run cannot predict for.
    """
    where = "--horizons" if horizons_days else f"the horizons of task {run.task.name}"
    if run.is_visit_head:
        if horizons_days is not None:
            raise EhrseqError(
                "the visit head has no horizons in days",
                where=where,
                fix="leave it out: the risk is that before the next visit",
            )
        return (None,)
    horizons, start, end = (
        tuple(horizons_days or run.task.horizons),
        run.start_days,
        run.predictor.edges_days[-1],
    )
    if min(horizons) <= 0:
        raise EhrseqError("horizons must be positive", where=where, fix="write them as 90d,2y")
    if min(horizons) <= start:
        raise EhrseqError(
            f"a horizon lies within the task's blanking of {format_days(start)}",
            where=where,
            fix="name later ones: risks are those after the blanking",
        )
    if max(horizons) > end:
        raise EhrseqError(
            f"a horizon lies beyond {format_days(end)}, the last that the model has learned about",
            where=where,
            fix="name earlier ones, or train with that horizon in the task",
        )
    return horizons


def is_as_written(folder: Path, name: str) -> bool:
    """Whether a run holds a file by this name as ehrseq wrote it; nothing else of the run is hashed."""
    known = read_manifest(folder, what="a finished run", verify=False)["files"].get(name)
    path = folder / name
    is_there = known is not None and path.is_file() and os.access(path, os.R_OK)
    return is_there and sha256(path) == known


def saved_audit(folder: Path) -> SharedAudit | None:
    """The audit of this very run, None where it has not been made, was made of another run, or has been edited."""
    if not is_as_written(folder, AUDIT):
        return None
    result: SharedAudit = read_json(folder / AUDIT)
    now = _fingerprint(read_manifest(folder, what="a finished run", verify=False))
    return result if result.get("fingerprint") == now else None


def add_to_run(
    folder: Path, name: str, write: Callable[[Path], None], *, outdates: Sequence[str] = ()
) -> None:
    """Write a file into a finished run, so that the run is valid at every moment: unlist, write, list.

    What the manifest says of the other files stays as it is: a file that somebody has edited does not become ours.

    Args:
        folder: Of the run.
        name: Of the file.
        write: Writes it.
        outdates: Files that were made of an earlier one; they are removed before the new one stands.
    """
    with locked(folder, wait_seconds=_PATIENCE):
        require_room(folder, name, *outdates)
        manifest = read_json(folder / MANIFEST)
        others = {
            listed: known
            for listed, known in manifest.pop("files").items()
            if listed not in (name, *outdates)
        }
        # files that a killed command may have written: they count as ours
        unsure = {
            *manifest.pop("writing", []),
            name,
            *outdates,
        }
        save_manifest(folder, {**manifest, "writing": sorted(unsure), "files": others})
        for old in outdates:
            (folder / old).unlink(missing_ok=True)
        write(folder / name)
        unsure -= {name, *outdates}
        left = {"writing": sorted(unsure)} if unsure else {}
        save_manifest(folder, {**manifest, **left, "files": others | {name: sha256(folder / name)}})


def refuse_shared(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse to add a file to what `ehrseq export --format share` made: it would go out with it.

    Raises:
        EhrseqError: The folder is such a copy.
    """
    if manifest.get("kind") == SHARED_RUN.name:
        raise EhrseqError(
            "is a shared copy of a run, to which nothing is added",
            where=str(folder),
            fix="use the run that it was made of; ehrseq evaluate --data also takes --out",
        )


def require_room(folder: Path, *names: str) -> None:
    """Refuse where a finished run holds a file by one of these names that is not as ehrseq wrote it.

    Raises:
        EhrseqError: There is one.
    """
    manifest = read_json(folder / MANIFEST)
    refuse_shared(folder, manifest)
    ours = {*manifest["files"], *manifest.get("writing", [])}
    fix = "move it away, so that a new one can be written"
    for name in names:
        path = folder / name
        if not os.path.lexists(path):
            continue
        if path.is_symlink() or name not in ours:
            raise EhrseqError(
                "is there already, and ehrseq did not write it", where=str(path), fix=fix
            )
        require_unchanged(folder, manifest, name, fix=fix)
