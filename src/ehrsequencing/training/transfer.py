"""`ehrseq train --init`: start a training from another model's weights, and decide which of them learn.

What is copied: everything of the same architecture but the head; between flat and hierarchical models, the embeddings
of codes, their numbers, ages and positions. Rows of code tables go from token to token (`match_vocabularies`). What the
other model never learned (the mark of queries, and the summaries that only queries carry) starts anew, and learns
whatever the mode is.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from ehrsequencing.config import ModelConfig, TransferConfig
from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, write_bytes
from ehrsequencing.models import lora
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.transformer import TransformerLayer
from ehrsequencing.models.visit_encoder import VisitMLP
from ehrsequencing.records.codes import read_parents
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.training.pretrained import Pretrained

ADAPTERS_FILE = "adapters.safetensors"  # of a run with transfer.mode=lora: its adapters alone; adapters-001 of member 1
MATCHES = ("name", "ancestor", "none")  # how a code is found in the other vocabulary
_DECIDED_BY_DATA = {
    "size",
    "vocab_size",
    "causes",
    "edges_days",
    "n_code_types",
    "values",
    "value_bins",
    "members",
    "frozen",
}
_SHARED_BY_ARCHITECTURES = {"dim", "heads", "layers", "age_bin_years", "code_types"}
_EMBEDDINGS = {  # of a hierarchical model → of a flat one
    "code_embedding.": "encoder.embedding.code.",
    "visit_time_embedding.age.": "encoder.embedding.age.",
    "visit_time_embedding.position.": "encoder.embedding.visit.",
}


# ---- codes of two vocabularies ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Match:
    """For each of our V tokens, where its vector comes from."""

    source: Ints  # (V,) token id of the other vocabulary; -1 without one
    how: Ints  # (V,) index into `MATCHES`

    def overlap(self, vocabulary: Vocabulary, weight: Ints) -> dict[str, dict[str, float]]:
        """How codes were found → how many, and which share of the records' codes they are.

        Args:
            vocabulary: Ours.
            weight: (V,) how often each token is in the training records.
        """
        is_code = np.zeros(len(vocabulary), dtype=np.bool_)
        is_code[list(vocabulary.index.values())] = True
        base_weight = np.bincount(vocabulary.base, weights=weight, minlength=len(vocabulary))
        total = max(float(base_weight[is_code].sum()), 1.0)
        overlap = {}
        for number, name in enumerate(MATCHES):
            found = is_code & (self.how == number)
            share = float(base_weight[found].sum()) / total
            overlap[name] = {"codes": int(found.sum()), "share": share}
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
        name = code if code in theirs.index else _nearest_ancestor(code, parents, theirs)
        found = None if name is None else their_token.get((name, summary, bin_))
        if found is not None:
            source[token] = found
            how[token] = MATCHES.index("name" if name == code else "ancestor")
    return Match(source, how)


def _token_keys(vocabulary: Vocabulary) -> list[tuple[str, int, int] | None]:
    """Of each token: its code, the number of its summary or -1, and of its bin or -1; None for unknown tokens."""
    keys: list[tuple[str, int, int] | None] = [None] * vocabulary.n_unknown
    keys += [(code, -1, -1) for code in vocabulary.codes]
    names = vocabulary.tokens
    return keys + [(names[code], summary, bin_) for code, summary, bin_ in vocabulary.made_of]


def _nearest_ancestor(
    code: str, parents: Mapping[str, list[str]], theirs: Vocabulary
) -> str | None:
    """The nearest ancestor that has a token there; of several at one distance the first named."""
    level, seen = [code], {code}
    while level:
        level = [up for one in level for up in parents.get(one, ()) if up not in seen]
        seen.update(level)
        for up in level:
            if up in theirs.index:
                return up
    return None


# ---- weights ---------------------------------------------------------------------------------------------------------


@dataclass
class Copied:
    """What a model got from another one."""

    whole: set[str] = field(default_factory=set)  # parameters that were copied
    rows: dict[str, Bools] = field(default_factory=dict)  # code tables: which of their rows were
    left_out: list[str] = field(default_factory=list)  # parameters there that fit nowhere here


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

    @property
    def trains_codes(self) -> bool:
        """Whether the copied codes and visit encoder are trained: the masked codes of `training` need that."""
        return self.settings.mode == "full"

    def config(self, model: ModelConfig) -> ModelConfig:
        """The other model's settings, with what the user gave; between architectures, its width, depth and heads.

        Raises:
            EhrseqError: The user gave a width that is not the other model's.
        """
        theirs, given = self.source.config, model.model_fields_set - {"size"}
        if "dim" in given and model.dim != theirs.dim:
            fix = "leave out model.size and model.dim: they are those of the other model"
            where = f"{self.source.folder}, model.dim={model.dim}"
            raise EhrseqError(f"is {theirs.dim} wide", where=where, fix=fix)
        names = _SHARED_BY_ARCHITECTURES
        if "architecture" not in given or model.architecture == theirs.architecture:
            names = set(ModelConfig.model_fields) - _DECIDED_BY_DATA
        settings = {name: getattr(theirs, name) for name in names}
        settings |= {name: getattr(model, name) for name in given}
        return ModelConfig.model_validate(settings)

    def start(self, model: SurvivalModel) -> dict[str, Any]:
        """Copy the weights into a new model, freeze what the mode freezes, and add adapters; facts for the manifest."""
        vocabulary, data = (
            self.prepared.vocabulary,
            Path(self.prepared.manifest.get("data_path", "")),
        )
        parents = read_parents(data) if data.is_dir() else {}
        match = match_vocabularies(vocabulary, self.source.vocabulary, parents=parents)
        copied = self._copy(model, match)
        trainable = {name for name, p in model.named_parameters() if p.requires_grad}
        if self.settings.mode == "lora":
            self._add_adapters(model, copied)
        if self.settings.mode != "full":
            _freeze(model, copied, trainable)

        train = self.prepared.timelines("train")
        weight = np.bincount(train.codes, minlength=len(vocabulary))
        weight = weight + np.bincount(train.static_codes, minlength=len(weight))
        learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
        n_learned = sum(p.numel() for p in learned.values())
        if self.settings.mode != "full":  # of code tables only the rows that were not copied
            for name in learned.keys() & copied.rows.keys():
                n_learned -= int(copied.rows[name].sum()) * learned[name].shape[1]
        return {
            **self.source.facts,
            "transfer": self.settings.model_dump(),
            "overlap": match.overlap(vocabulary, weight),
            "parameters_copied": len(copied.whole),
            "left_out": copied.left_out,
            "trained_weights": n_learned,
        }

    def _copy(self, model: SurvivalModel, match: Match) -> Copied:
        """Copy every tensor that has a place here, row by row where the vocabulary decides the rows."""
        copied = Copied()
        ours = dict(model.named_parameters())
        architectures = self.source.config.architecture, model.config.architecture
        for their_name, tensor in self.source.model.named_parameters():
            name = _counterpart(their_name, *architectures)
            if name is None or name.startswith(("head.", "wide_head.")):
                continue
            if name.endswith("query") and not self.source.is_run:
                continue  # pretraining has no queries, so that it was never learned
            if name not in ours:
                copied.left_out.append(their_name)
            elif _is_code_table(name):
                self._copy_codes(name, ours[name], tensor, match, copied)
            elif ours[name].shape == tensor.shape and not name.endswith("type_table.weight"):
                with torch.no_grad():
                    ours[name].copy_(tensor)
                copied.whole.add(name)
            else:
                copied.left_out.append(their_name)
        return copied

    def _copy_codes(
        self, name: str, ours: Tensor, theirs: Tensor, match: Match, copied: Copied
    ) -> None:
        """Rows of a table of codes, or of the terms of their numbers (several rows a token)."""
        vocabulary, source = self.prepared.vocabulary, self.source
        mode = self.prepared.study.values.mode
        values = mode if mode in ("polynomial", "interpolate") else "none"
        terms, their_terms = len(ours) // len(vocabulary), len(theirs) // len(source.vocabulary)
        if terms != their_terms or source.config.values != values:
            copied.left_out.append(name)
            return
        is_found = match.source >= 0
        if not source.is_run:  # only queries carry summaries, and pretraining has no queries
            first = len(vocabulary) - len(vocabulary.made_of)
            is_found[first:] &= [summary < 0 for _, summary, _ in vocabulary.made_of]
        found = np.flatnonzero(is_found)
        to = (found[:, None] * terms + np.arange(terms)).ravel()
        origin = (match.source[found][:, None] * terms + np.arange(terms)).ravel()
        with torch.no_grad():
            ours[torch.from_numpy(to)] = theirs[torch.from_numpy(origin)].to(ours.dtype)
        copied.rows[name] = np.repeat(is_found, terms)

    def _add_adapters(self, model: SurvivalModel, copied: Copied) -> None:
        """Adapters of q, k, v, output and feed-forward, in the layers of the timeline and of the visit encoder.

        Only a copied matrix gets one: what was not copied learns all of its weights.

        Raises:
            EhrseqError: No such matrix was copied, or the rank is larger than one of them.
        """
        targets: dict[str, int] = {}
        for block, module in model.named_modules():
            if not isinstance(module, TransformerLayer | VisitMLP):
                continue
            for name, parts in lora.targets_of(module).items():
                if f"{block}.{name}.weight" in copied.whole:
                    targets[f"{block}.{name}"] = parts
        rank = self.settings.lora_rank
        if not targets:
            what = "no layer was copied that could have adapters: between flat and hierarchical only embeddings are"
            where = f"transfer.mode=lora with {self.source.folder}"
            raise EhrseqError(what, where=where, fix="use transfer.mode=frozen or full")
        most = min(lora.most_rank(model, name, parts) for name, parts in targets.items())
        if rank > most:
            what = f"the adapted matrices have a rank of {most} at most"
            raise EhrseqError(what, where=f"transfer.lora_rank={rank}", fix=f"use {most} or less")
        lora.add_adapters(model, targets, rank=rank, scale=self.settings.lora_scale)


def _freeze(model: SurvivalModel, copied: Copied, trainable: set[str]) -> None:
    """Leave only the head, adapters and what was not copied to be learned; of code tables, rows not copied."""
    for name, parameter in model.named_parameters():
        if name in copied.rows:
            free = torch.from_numpy(~copied.rows[name]).unsqueeze(1)
            parameter.requires_grad_(bool(free.any()))
            if parameter.requires_grad:
                hook: Any = parameter.register_hook
                hook(lambda gradient, free=free: gradient * free.to(gradient.device))
        elif name.replace(".base.", ".") in copied.whole:  # .base: the matrix beside its adapters
            parameter.requires_grad_(False)
        else:  # adapters are new names
            parameter.requires_grad_(name in trainable or name.endswith((".A", ".B")))


def _is_code_table(name: str) -> bool:
    """Whether a parameter has rows for each token."""
    embedding = ("code_embedding.", "encoder.embedding.code.")
    return name.startswith(embedding) and name.endswith((".table.weight", ".value_table.weight"))


def _counterpart(name: str, theirs: str, ours: str) -> str | None:
    """The name in our architecture of a parameter in theirs; None where it has no counterpart."""
    if theirs == ours:
        return name
    for hierarchical, flat in _EMBEDDINGS.items():
        before, after = (hierarchical, flat) if theirs == "hierarchical" else (flat, hierarchical)
        if name.startswith(before):
            return after + name.removeprefix(before)
    return None


# ---- at the end ------------------------------------------------------------------------------------------------------


def merge_adapters(model: SurvivalModel, out: Path) -> tuple[SurvivalModel, tuple[str, ...]]:
    """The model as it is saved, with its adapters merged, and the names of files that were written for it.

    A model without adapters is returned as it is: members and a blend's network were merged before.
    """
    tensors = lora.adapter_tensors(model)
    if not tensors:
        return model, ()
    write_bytes(out / ADAPTERS_FILE, save(tensors, metadata={"format": "pt"}))
    merged = copy.deepcopy(model)
    lora.merge(merged)
    return merged.requires_grad_(True), (ADAPTERS_FILE,)


def keep_adapters(part: Path, out: Path, *, member: int | None = None) -> tuple[str, ...]:
    """Copy the adapters of a member, or of a blend's network, to the run that it belongs to.

    Args:
        part: Folder of the member or network.
        out: Folder of the run.
        member: Its number, from 1 on, which the name of the file then has.

    Returns:
        The names of the files; none without adapters.
    """
    names = []
    for path in sorted(part.glob("adapters*.safetensors")):
        name = path.name if member is None else f"{path.stem}-{member:03d}{path.suffix}"
        write_bytes(out / name, path.read_bytes())
        names.append(name)
    return tuple(names)
