"""`ehrseq train --init`: start a training from another model's weights, and decide which of them learn.

Everything is copied but the heads and the table branch. Rows of code tables go from token to token
(`match_vocabularies`). What the other model never learned (the mark of queries, and the summaries that only queries
carry) starts anew, and learns whatever the mode is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ehrsequencing.config import ModelSettings, TransferConfig
from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest
from ehrsequencing.core.outputs import PRETRAINED, RUN, SHARED_RUN, read_manifest
from ehrsequencing.models.base import SurvivalModel, read_config
from ehrsequencing.models.ensemble import load_model
from ehrsequencing.records.codes import read_parents
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.results.result_types import Origin

MATCHES = ("name", "ancestor", "none")  # how a code is found in the other vocabulary


# parameters of what answers the question
_ANEW = ("head.", "wide_head.", "code_effects.", "table.", "outcomes.")
_KEPT = (  # facts that a run which starts from it repeats, for its audit
    "kind",
    "task",
    "prepared",
    "data",
    "data_path",
    "subjects",
    "objectives",
    "excluded_targets",
    "vocabulary",
    "codes",
    "fingerprint",
    "init",
)


# ---- a model to start from -------------------------------------------------------------------------------------------


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
            raise EhrseqError(
                "holds no model to start from",
                where=str(folder),
                fix="name a folder that ehrseq pretrain or ehrseq train made",
            )
        self.config = read_config(folder)
        if self.config.members > 1:
            raise EhrseqError(
                "is an ensemble, which nothing can start from",
                where=str(folder),
                fix="name a run of one model (training.members=1)",
            )
        self.vocabulary = Vocabulary.load(folder)

    @cached_property
    def model(self) -> SurvivalModel:
        """The model, in evaluation mode."""
        return load_model(self.folder)


# ---- codes of two vocabularies ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Match:
    """For each of our V tokens, where its vector comes from."""

    source: Ints  # (V,) token id of the other vocabulary; -1 without one
    how: Ints  # (V,) index into `MATCHES`

    def overlap(self, vocabulary: Vocabulary, weight: Ints) -> dict[str, dict[str, Any]]:
        """How codes were found → how many, and which share of the records' codes they are.

        Args:
            vocabulary: Ours.
            weight: (V,) how often each token is in the training records.
        """
        is_code = np.zeros(len(vocabulary), dtype=np.bool_)
        is_code[list(vocabulary.index.values())] = True
        base_weight = np.bincount(vocabulary.base, weights=weight, minlength=len(vocabulary))
        total = max(float(base_weight[is_code].sum()), 1.0)
        overlap = dict[str, dict[str, Any]]()
        for number, name in enumerate(MATCHES):
            is_matched = is_code & (self.how == number)
            share = float(base_weight[is_matched].sum()) / total
            overlap[name] = {"codes": int(is_matched.sum()), "share": share}
        return overlap


def match_vocabularies(
    ours: Vocabulary, theirs: Vocabulary, *, parents: Mapping[str, list[str]]
) -> Match:
    """Find each of our tokens among theirs.

    A code corresponds to the code of that name, else to its nearest ancestor that has a token there. Bins and summaries
    follow their code.

    Args:
        ours: The vocabulary to fill.
        theirs: That of the other model.
        parents: Our ontology: code → codes.
    """
    source = np.full(len(ours), -1, dtype=np.int64)
    how = np.full(len(ours), MATCHES.index("none"), dtype=np.int64)
    source[:2], how[:2] = np.arange(2), 0  # padding and unknown
    for place, kind in enumerate(ours.kinds):
        if kind in theirs.kinds:
            source[2 + place], how[2 + place] = 2 + theirs.kinds.index(kind), 0
    their_token = {key: token for token, key in enumerate(_token_keys(theirs))}
    for token, key in enumerate(_token_keys(ours)):
        if key is None:
            continue
        code, summary, bin_ = key
        # the nearest ancestor that has a token there; of several at one distance the first named
        level, seen = [code], {code}
        known = [one for one in level if one in theirs.index]
        while level and not known:
            level = [up for one in level for up in parents.get(one, ()) if up not in seen]
            seen.update(level)
            known = [up for up in level if up in theirs.index]
        their = their_token.get((known[0], summary, bin_)) if known else None
        if their is not None:
            source[token] = their
            how[token] = MATCHES.index("name" if known[0] == code else "ancestor")
    return Match(source, how)


def _token_keys(vocabulary: Vocabulary) -> list[tuple[str, int, int] | None]:
    """Of each token: its code, the number of its summary or -1, and of its bin or -1; None for unknown tokens."""
    keys: list[tuple[str, int, int] | None] = [None] * vocabulary.n_unknown
    keys += [(code, -1, -1) for code in vocabulary.codes]
    names = vocabulary.tokens
    return keys + [(names[one.code], one.summary, one.bin) for one in vocabulary.made]


# ---- weights ---------------------------------------------------------------------------------------------------------


class Transfer:
    """How one training starts from another model.

    Args:
        source: The other model.
        settings: Mode and options.
        prepared: What is trained on.
    """

    def __init__(self, source: Pretrained, settings: TransferConfig, prepared: Prepared) -> None:
        self.source, self.settings, self.prepared = source, settings, prepared

    @property
    def fingerprint(self) -> str:
        """Digest of the other model's weights and of how they are used."""
        return digest(
            [self.source.manifest["files"].get("model.safetensors"), self.settings.model_dump()]
        )

    def config(self, model: ModelSettings) -> ModelSettings:
        """The other model's settings, with what the user gave.

        Raises:
            EhrseqError: The user gave a width or an architecture that is not the other model's.
        """
        theirs, given = self.source.config, model.model_fields_set - {"size"}
        for name in {"dim", "architecture"} & given:
            if getattr(model, name) != getattr(theirs, name):
                raise EhrseqError(
                    f"has model.{name}={getattr(theirs, name)}, which a training from it keeps",
                    where=str(self.source.folder),
                    fix=f"leave out model.{name}" + (" and model.size" if name == "dim" else ""),
                )
        names = set(ModelSettings.model_fields) - {"size"}
        settings = {name: getattr(theirs, name) for name in names}
        settings |= {name: getattr(model, name) for name in given}
        return ModelSettings.model_validate(settings)

    def start(self, model: SurvivalModel) -> Origin:
        """Copy the weights into a new model, and freeze what the mode freezes; facts for the manifest."""
        vocabulary = self.prepared.vocabulary
        data = Path(self.prepared.manifest.get("data_path", ""))
        parents = read_parents(data) if data.is_dir() else {}
        match = match_vocabularies(vocabulary, self.source.vocabulary, parents=parents)
        mode = self.prepared.study.values.mode
        values = mode if mode in ("polynomial", "interpolate") else "none"
        has_same_values = self.source.config.values == values
        is_found = match.source >= 0
        if not self.source.is_run:  # only queries carry summaries, and pretraining has no queries
            first = len(vocabulary) - len(vocabulary.made)
            summaries = [one.summary for one in vocabulary.made]
            is_found[first:] &= np.array(summaries, dtype=np.int64) < 0  # none without numbers
        tokens = np.flatnonzero(is_found)
        # every tensor that has a place here, row by row where the vocabulary decides the rows
        copied: dict[str, Bools] = {}  # name of the parameter → which of its rows were copied
        ours = dict(model.named_parameters())
        for name, tensor in self.source.model.named_parameters():
            if name not in ours or name.startswith(_ANEW):
                continue
            if name.endswith("query") and not self.source.is_run:
                continue  # pretraining has no queries, so that it was never learned
            is_of_codes = name.startswith(("code_embedding.", "encoder.embedding.code."))
            if is_of_codes and name.endswith((".table.weight", ".value_table.weight")):
                # of the terms of numbers a token has several rows
                terms = len(ours[name]) // len(vocabulary)
                if not has_same_values or terms * len(self.source.vocabulary) != len(tensor):
                    continue
                to, origin = (
                    torch.from_numpy((one[:, None] * terms + np.arange(terms)).ravel())
                    for one in (tokens, match.source[tokens])
                )
                with torch.no_grad():
                    ours[name][to] = tensor[origin].to(ours[name].dtype)
                copied[name] = np.repeat(is_found, terms)
            elif ours[name].shape == tensor.shape and not name.endswith("type_table.weight"):
                with torch.no_grad():
                    ours[name].copy_(tensor)
                copied[name] = np.ones(len(tensor), dtype=np.bool_)
        if self.settings.mode != "full":  # only the head and what was not copied is learned
            for name, rows in copied.items():
                ours[name].requires_grad_(not rows.all())
                if not rows.all():
                    free = torch.from_numpy(~rows).unsqueeze(1)
                    hook: Any = ours[name].register_hook
                    hook(lambda gradient, free=free: gradient * free.to(gradient.device))

        train = self.prepared.timelines("train")
        weight = np.bincount(train.codes, minlength=len(vocabulary))
        weight = weight + np.bincount(train.static_codes, minlength=len(weight))
        noted = self.source.manifest
        return {
            "folder": str(self.source.folder.resolve()),
            "weights": noted["files"].get("model.safetensors"),
            # with what that run started from in its turn: the chain goes back to new weights
            **{key: noted[key] for key in _KEPT if key in noted},
            "transfer": self.settings.model_dump(),
            "overlap": match.overlap(vocabulary, weight),
        }
