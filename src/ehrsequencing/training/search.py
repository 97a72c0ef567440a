"""A small search over the settings of the network (`training.search=N`): N trials, and the best on the tuning split.

A trial is one network with one set of settings from the list below. It is a run of its own among the checkpoints, so
an interrupted search goes on where it was. The trial with the lowest tuning NLL gives the settings of the run. The run
lists every trial in its manifest, and the boosted baseline may try as many settings.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ehrsequencing.config import StudyConfig
from ehrsequencing.core.files import digest
from ehrsequencing.core.outputs import MANIFEST, RUN, read_manifest, write_manifest
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.adapt import Changes, adapted, with_defaults
from ehrsequencing.training.loop import Trainer
from ehrsequencing.training.progress import Progress
from ehrsequencing.training.run_folder import RunFolder, alone

Show = Callable[[Progress], None]

# In this order, so that a search of N trials contains every shorter one. The first is the default.
CANDIDATES: tuple[Changes, ...] = (
    {},
    {
        "model": {
            "size": "medium",
            "dropout": 0.0,
            "code_dropout": 0.0,
            "wide_head": True,
            "age_polynomial": True,
        }
    },
    {
        "model": {
            "size": "small",
            "dropout": 0.2,
            "code_dropout": 0.0,
            "wide_head": True,
            "age_polynomial": True,
            "history_dropout": 0.0,
        }
    },
    {
        "model": {
            "size": "medium",
            "dropout": 0.3,
            "code_dropout": 0.3,
            "wide_head": True,
            "age_polynomial": True,
        }
    },
    {"training": {"masked_codes": 0.0}},
    {"model": {"rotary": False, "position": "sinusoidal", "history_dropout": 0.0}},
    {"training": {"weight_decay": 3.0}},
    {"training": {"learning_rate": 1e-3}},
)


class Fits(Protocol):
    """What trains a run: a network, or a blend."""

    @property
    def started_from(self) -> dict[str, Any] | None:
        """What the networks took from another model."""
        ...

    def fit(self, *, resume: bool = False, on_progress: Show | None = None) -> None:
        """Train, and write the run."""


class Makes(Protocol):
    """Makes what trains a study, in a folder."""

    def __call__(
        self, prepared: Prepared, task_name: str, out: Path, *, study: StudyConfig
    ) -> Fits:
        """What trains the study; the folder is made when it starts."""


def trials_of(
    study: StudyConfig, prepared: Prepared, task_name: str
) -> list[tuple[dict[str, Any], StudyConfig]]:
    """The settings that each trial changes, and its study; trials that change nothing new are left out.

    A setting that was given stays in every trial. What neither the user nor the trial sets follows from the cohort.
    """
    found: dict[str, tuple[dict[str, Any], StudyConfig]] = {}
    for changes in CANDIDATES:
        one = adapted(with_defaults(study, changes), prepared, task_name)
        kept = {
            f"{section}.{name}": value
            for section, values in changes.items()
            for name, value in values.items()
            if getattr(getattr(one, section), name) == value
        }
        found.setdefault(digest([one.model.model_dump(), one.training.model_dump()]), (kept, one))
    return list(found.values())[: study.training.search]


class Search:
    """Trains the trials of a search, then the run with the settings of the best one.

    Args:
        prepared: The data.
        task_name: Which of its tasks.
        out: Folder of the run.
        study: Settings; `training.search` is the number of trials.
        make: Makes what trains the run with the settings found: members and blend belong to it, not to the trials.
    """

    def __init__(
        self,
        prepared: Prepared,
        task_name: str,
        out: Path,
        *,
        study: StudyConfig,
        make: Makes,
    ) -> None:
        self.prepared, self.task_name, self.out, self.study, self.make = (
            prepared,
            task_name,
            out,
            study,
            make,
        )
        self.trials = trials_of(study, prepared, task_name)
        self.started_from = None  # every trial starts from new weights

    @property
    def fingerprint(self) -> str:
        """Digest of what a resumed run must share with its start."""
        asked = [(one.model.model_dump(), one.training.model_dump()) for _, one in self.trials]
        data = self.prepared.identity(self.task_name)
        seen = self.study.evaluation
        return digest(["search", asked, data, seen.seed, seen.tuning_trials])

    @alone
    def fit(self, *, resume: bool = False, on_progress: Show | None = None) -> None:
        """Train every trial and the run."""
        folder = RunFolder(self.out, self.prepared, self.task_name, self.fingerprint)
        if resume and (self.out / MANIFEST).is_file():
            folder.check_finished()
            folder.remove_checkpoints()
            return
        folder.begin(resume=resume)
        tried, networks = [], []
        for number, (changed, study) in enumerate(self.trials):
            network = folder.checkpoints / f"trial-{number + 1:02d}"

            def show(progress: Progress, trial: int = number + 1) -> None:
                if on_progress is not None:
                    on_progress(replace(progress, trial=trial, trials=len(self.trials)))

            Trainer(
                self.prepared, self.task_name, network, study=_alone(study, len(self.trials))
            ).fit(resume=True, on_progress=show)
            manifest = read_manifest(network, what=RUN.what)
            tried.append(
                {
                    "settings": changed,
                    **{key: manifest[key] for key in ("tuning_nll", "best_epoch")},
                }
            )
            networks.append(network)
        best = min(range(len(tried)), key=lambda number: float(tried[number]["tuning_nll"]))
        chosen = self.trials[best][1]
        made = networks[best]
        if chosen.training.members > 1 or chosen.training.blend:
            made = folder.checkpoints / "chosen"
            final = _one_trial(chosen, len(self.trials))
            self.make(self.prepared, self.task_name, made, study=final).fit(
                resume=True, on_progress=on_progress
            )
        self._take(made, {"search": tried, "search_chose": best + 1})
        folder.remove_checkpoints()

    def _take(self, made: Path, facts: dict[str, Any]) -> None:
        """Make the finished run in another folder this run, and add facts to its manifest, which comes last."""
        manifest = read_manifest(made, what=RUN.what)
        names = list(manifest["files"])
        for name in names:  # a link and not a move, so that a search that is killed here still finds its finished trial
            (self.out / name).unlink(missing_ok=True)
            os.link(made / name, self.out / name)
        own = {key: value for key, value in manifest.items() if key not in ("files", "required")}
        facts = own | {"fingerprint": self.fingerprint} | facts
        write_manifest(
            self.out,
            facts,
            files=[self.out / name for name in names],
            required=manifest["required"],
        )


def _alone(study: StudyConfig, trials: int) -> StudyConfig:
    """The study of one network without members or a blend; it tells how many settings were tried."""
    return _one_trial(study, trials, members=1, blend=False)


def _one_trial(study: StudyConfig, trials: int, **training: Any) -> StudyConfig:
    told = study.evaluation.tuning_trials or trials  # the boosted baseline tries as many
    return study.model_copy(
        update={
            "training": study.training.model_copy(update={"search": 1, **training}),
            "evaluation": study.evaluation.model_copy(update={"tuning_trials": told}),
        }
    )
