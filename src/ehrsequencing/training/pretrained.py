"""The folder of a pretrained model: what is in it, and how another training reads it."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest
from ehrsequencing.core.outputs import PRETRAINED, RUN, SHARED_RUN, read_manifest
from ehrsequencing.models.base import SurvivalModel, read_config
from ehrsequencing.models.build import load_model
from ehrsequencing.records.vocabulary import Vocabulary

# weights of the objectives, and which tokens they predict
OBJECTIVES_FILE = "objectives.safetensors"
RESULTS_FILE = "pretraining.json"  # measures on the tuning split, beside the baselines
_OF_PRETRAINING = (  # facts that a run which starts from it repeats, for its audit
    "task",
    "prepared",
    "data",
    "data_path",
    "subjects",
    "objectives",
    "exclude",
    "excluded_targets",
    "vocabulary",
    "codes",
    "fingerprint",
)


class Pretrained:
    """A model to start from: the folder of `ehrseq pretrain`, or that of a finished run.

    Raises:
        EhrseqError: The folder is neither, is damaged, or holds an ensemble.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder, what="a pretrained model or a finished run")
        self.is_run = self.manifest.get("kind") in (RUN.name, SHARED_RUN.name)
        if not self.is_run and self.manifest.get("kind") != PRETRAINED.name:
            fix = "name a folder that ehrseq pretrain or ehrseq train made"
            raise EhrseqError("holds no model to start from", where=str(folder), fix=fix)
        self.config = read_config(folder)
        if self.config.members > 1:
            fix = "name a run of one model (training.members=1)"
            raise EhrseqError(
                "is an ensemble, which nothing can start from", where=str(folder), fix=fix
            )
        self.vocabulary = Vocabulary.load(folder)
        if len(self.vocabulary) != self.config.vocab_size:
            raise EhrseqError(
                "model and vocabulary differ in size",
                where=str(folder),
                fix="copy the whole folder",
            )

    @cached_property
    def model(self) -> SurvivalModel:
        """The model, in evaluation mode."""
        return load_model(self.folder)

    @property
    def facts(self) -> dict[str, Any]:
        """What a run that starts from this model records of it."""
        kept = {key: self.manifest[key] for key in _OF_PRETRAINING if key in self.manifest}
        weights = self.manifest["files"].get("model.safetensors")
        own = {
            "folder": str(self.folder.resolve()),
            "kind": self.manifest["kind"],
            "weights": weights,
            **kept,
        }
        # what a run itself started from: the chain goes back to new weights
        before = self.manifest.get("init")
        return own if before is None else {**own, "init": before}


def links(init: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The facts of every model that a run goes back to, the nearest first.

    >>> [link["folder"] for link in links({"folder": "b", "init": {"folder": "a"}})]
    ['b', 'a']
    """
    link: Mapping[str, Any] | None = init
    while link is not None:
        yield link
        link = link.get("init")


def subjects_digest(subject_id: Ints) -> str:
    """Digest of a set of subjects, whatever their order."""
    return digest(np.unique(subject_id).tolist())
