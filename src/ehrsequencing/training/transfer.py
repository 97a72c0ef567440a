"""`ehrseq train --init`: start a training from another model's weights, and decide which of them learn, and how fast.

What is copied: everything of the same architecture but the head; between flat and hierarchical models, the embeddings
of codes, their numbers, ages and positions. Rows of code tables go from token to token (`matching`). What the other
model never learned (the mark of queries, and the summaries that only queries carry) starts anew, and learns whatever
the mode is.
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
from ehrsequencing.core.arrays import Bools
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, write_bytes
from ehrsequencing.models import lora
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.transformer import TransformerLayer
from ehrsequencing.models.visit_encoder import VisitMLP
from ehrsequencing.records.codes import read_descriptions, read_parents
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.matching import (
    DescriptionMap,
    Match,
    Wording,
    match_vocabularies,
    normal,
)
from ehrsequencing.training.pretrained import Pretrained

ADAPTERS_FILE = "adapters.safetensors"  # of a run with transfer.mode=lora: its adapters alone; adapters-001 of member 1
LEAST_SIMILAR = 0.5  # cosine of n-grams to the most similar known description, below which a description says nothing
_DECIDED = (
    "vocab_size",
    "causes",
    "edges_days",
    "n_code_types",
    "values",
    "value_bins",
    "members",
    "frozen",
)
_EMBEDDINGS = {  # of a hierarchical model → of a flat one
    "code_embedding.": "encoder.embedding.code.",
    "visit_time_embedding.age.": "encoder.embedding.age.",
    "visit_time_embedding.position.": "encoder.embedding.visit.",
}
_CODE_TABLES = ("table.weight", "value_table.weight")


@dataclass
class Copied:
    """What a model got from another one."""

    whole: set[str] = field(default_factory=set)  # parameters that were copied
    rows: dict[str, Bools] = field(default_factory=dict)  # code tables: which of their rows were
    # parameters of the other model that fit nowhere here
    left_out: list[str] = field(default_factory=list)


class Transfer:
    """How one training starts from another model.

    Args:
        source: The other model.
        settings: Mode and options.
        prepared: What is trained on.
    """

    def __init__(self, source: Pretrained, settings: TransferConfig, prepared: Prepared) -> None:
        self.source, self.settings, self.prepared = source, settings, prepared
        self.copied = Copied()
        self.match: Match | None = None
        self.similar: dict[str, Any] | None = None
        self._layers = 0

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
            raise EhrseqError(
                f"is {theirs.dim} wide",
                where=f"{self.source.folder}, model.dim={model.dim}",
                fix=fix,
            )
        same = "architecture" not in given or model.architecture == theirs.architecture
        names = (
            set(ModelConfig.model_fields)
            if same
            else {"dim", "heads", "layers", "age_bin_years", "code_types"}
        )
        base = {name: getattr(theirs, name) for name in names - {*_DECIDED, "size"}}
        own = {name: getattr(model, name) for name in given}
        return ModelConfig.model_validate(base | own)

    # ---- the start ---------------------------------------------------------------------------------------------------

    def start(self, model: SurvivalModel) -> dict[str, Any]:
        """Copy the weights into a new model, freeze what the mode freezes, and add adapters; facts for the manifest."""
        self._layers = model.config.layers
        self.match = self._match()
        self._copy(model)
        trainable = {name for name, p in model.named_parameters() if p.requires_grad}
        if self.settings.mode == "lora":
            self._add_adapters(model)
        if self.settings.mode != "full":
            self._freeze(model, trainable)
        train = self.prepared.timelines("train")
        weight = np.bincount(train.codes, minlength=len(self.prepared.vocabulary))
        weight = weight + np.bincount(train.static_codes, minlength=len(weight))
        learned = sum(
            p.numel() for p in model.parameters() if p.requires_grad
        ) - self._fixed_weights(model)
        return {
            **self.source.facts,
            "transfer": self.settings.model_dump(),
            "overlap": self.match.overlap(self.prepared.vocabulary, weight),
            "similar_descriptions": self.similar,
            "parameters_copied": len(self.copied.whole),
            "left_out": self.copied.left_out,
            "trained_weights": learned,
        }

    def _match(self) -> Match:
        """Our tokens among theirs."""
        data = Path(self.prepared.manifest.get("data_path", ""))
        described = self.settings.descriptions
        return match_vocabularies(
            self.prepared.vocabulary,
            self.source.vocabulary,
            parents=read_parents(data) if data.is_dir() else {},
            our_descriptions=read_descriptions(data) if described else {},
            their_descriptions=self.source.descriptions if described else {},
        )

    def _copy(self, model: SurvivalModel) -> None:
        """Copy every tensor that has a place here, row by row where the vocabulary decides the rows."""
        ours, theirs = dict(model.named_parameters()), dict(self.source.model.named_parameters())
        renamed = _names_between(self.source.config.architecture, model.config.architecture)
        for their_name, tensor in theirs.items():
            name = renamed(their_name)
            if name is None or name.startswith(("head.", "wide_head.")):
                continue
            if name.endswith("query") and not self.source.is_run:
                continue  # pretraining has no queries, so that it was never learned
            if name not in ours:
                self.copied.left_out.append(their_name)
            elif _is_code_table(name):
                self._copy_codes(name, ours[name], tensor, renamed)
            elif ours[name].shape == tensor.shape and not name.endswith("type_table.weight"):
                with torch.no_grad():
                    ours[name].copy_(tensor)
                self.copied.whole.add(name)
            else:
                self.copied.left_out.append(their_name)

    def _copy_codes(self, name: str, ours: Tensor, theirs: Tensor, renamed: Any) -> None:
        """Rows of a table of codes, or of the terms of their numbers (several rows a token)."""
        assert self.match is not None
        vocabulary, source = self.prepared.vocabulary, self.source
        terms, their_terms = len(ours) // len(vocabulary), len(theirs) // len(source.vocabulary)
        if terms != their_terms or source.config.values != self._values:
            self.copied.left_out.append(name)
            return
        found = np.flatnonzero(self.match.found & ~self._never_learned)
        to = (found[:, None] * terms + np.arange(terms)).ravel()
        origin = (self.match.source[found][:, None] * terms + np.arange(terms)).ravel()
        with torch.no_grad():
            ours[torch.from_numpy(to)] = theirs[torch.from_numpy(origin)].to(ours.dtype)
        rows = np.zeros(len(ours), dtype=np.bool_)
        rows[to] = True
        if name.endswith(".table.weight") and self.settings.descriptions:
            rows |= self._copy_similar(ours, theirs)
        self.copied.rows[name] = rows

    def _copy_similar(self, ours: Tensor, theirs: Tensor) -> Bools:
        """Vectors of codes that match nothing, from their descriptions."""
        assert self.match is not None
        vocabulary, source = self.prepared.vocabulary, self.source
        rows = np.zeros(len(ours), dtype=np.bool_)
        described = read_descriptions(Path(self.prepared.manifest.get("data_path", "")))
        unknown = [
            code for code in vocabulary.codes if not self.match.found[vocabulary.index[code]]
        ]
        unknown = [code for code in unknown if normal(described.get(code, ""))]
        known = [
            code for code in source.vocabulary.codes if normal(source.descriptions.get(code, ""))
        ]
        if not unknown or not known:
            return rows
        texts, asked = (
            [source.descriptions[code] for code in known],
            [described[code] for code in unknown],
        )
        facts: dict[str, Any] = {"learned": source.projection is not None}
        wording = Wording.of(texts)
        if source.projection is not None:
            vectors = wording.rows(asked) @ source.projection
        else:
            own = theirs[[source.vocabulary.index[code] for code in known]].detach().numpy()
            fitted = DescriptionMap.fit(texts, own)
            if fitted is None:
                return rows
            vectors, facts = (
                fitted(asked),
                facts | {"explained": fitted.explained, "strength": fitted.strength},
            )
        nearest = (wording.rows(asked) @ wording.rows(texts).T).max(1)
        similar = np.flatnonzero(nearest >= LEAST_SIMILAR)
        tokens = np.array([vocabulary.index[unknown[k]] for k in similar], dtype=np.int64)
        if len(tokens):
            with torch.no_grad():
                ours[torch.from_numpy(tokens)] = torch.from_numpy(vectors[similar]).to(ours.dtype)
            self.match.reason[tokens] = 3
            rows[tokens] = True
        self.similar = {**facts, "codes": len(tokens)}
        return rows

    @property
    def _values(self) -> str:
        modes = {"polynomial": "polynomial", "interpolate": "interpolate"}
        return modes.get(self.prepared.study.values.mode, "none")

    @property
    def _never_learned(self) -> Bools:
        """(V,) our summaries: only queries carry them, and pretraining has none."""
        out = np.zeros(len(self.prepared.vocabulary), dtype=np.bool_)
        if not self.source.is_run:
            first = len(out) - len(self.prepared.vocabulary.made_of)
            out[first:] = [summary >= 0 for _, summary, _ in self.prepared.vocabulary.made_of]
        return out

    def _add_adapters(self, model: SurvivalModel) -> None:
        """Adapters of q, k, v, output and feed-forward, in the layers of the timeline and of the visit encoder.

        Only a copied matrix gets one: what was not copied learns all of its weights.

        Raises:
            EhrseqError: No such matrix was copied, or the rank is larger than one of them.
        """
        targets: dict[str, int] = {}
        for block, module in model.named_modules():
            if isinstance(module, TransformerLayer | VisitMLP):
                targets |= {
                    f"{block}.{name}": parts for name, parts in lora.targets_of(module).items()
                }
        targets = {
            name: parts for name, parts in targets.items() if f"{name}.weight" in self.copied.whole
        }
        rank, asked = self.settings.lora_rank, f"transfer.mode=lora with {self.source.folder}"
        if not targets:
            what = "no layer was copied that could have adapters: between flat and hierarchical only embeddings are"
            raise EhrseqError(what, where=asked, fix="use transfer.mode=frozen or full")
        if rank > (
            most := min(lora.most_rank(model, name, parts) for name, parts in targets.items())
        ):
            what, fix = f"the adapted matrices have a rank of {most} at most", f"use {most} or less"
            raise EhrseqError(what, where=f"transfer.lora_rank={rank}", fix=fix)
        lora.add_adapters(model, targets, rank=rank, scale=self.settings.lora_scale)

    def _freeze(self, model: SurvivalModel, trainable: set[str]) -> None:
        """Leave only the head, adapters and what was not copied to be learned; of code tables, rows not copied."""
        for name, parameter in model.named_parameters():
            if name in self.copied.rows:
                free = torch.from_numpy(~self.copied.rows[name]).unsqueeze(1)
                parameter.requires_grad_(bool(free.any()))
                if parameter.requires_grad:
                    hook: Any = parameter.register_hook
                    hook(lambda gradient, free=free: gradient * free.to(gradient.device))
            elif (
                name.replace(".base.", ".") in self.copied.whole
            ):  # .base: the matrix beside its adapters
                parameter.requires_grad_(False)
            else:  # adapters are new names
                parameter.requires_grad_(name in trainable or name.endswith((".A", ".B")))

    def _fixed_weights(self, model: SurvivalModel) -> int:
        """How many weights stay as they are in tables of which other rows are learned."""
        if self.settings.mode == "full":
            return 0
        tables = (
            (p, self.copied.rows.get(name))
            for name, p in model.named_parameters()
            if p.requires_grad
        )
        return sum(int(rows.sum()) * p.shape[1] for p, rows in tables if rows is not None)

    # ---- while it trains ---------------------------------------------------------------------------------------------

    def depth(self, name: str) -> int:
        """How many layers below the head a parameter is: 0 for the head and for what was not copied.

        The layers of the timeline (flat: of the encoder) follow from the last to the first, then everything else.
        Adapters are as deep as their layer.
        """
        parts = name.split(".")
        own = f"{name.rpartition('.')[0]}.weight" if name.endswith((".A", ".B")) else name
        if own not in self.copied.whole and own not in self.copied.rows:
            return 0
        if parts[0] in ("timeline", "encoder") and parts[1] == "layers":
            return self._layers - int(parts[2])
        if parts[0] in ("timeline", "encoder") and parts[1] == "norm":
            return 1
        return self._layers + 1

    def share(self, depth: int, epoch: int) -> float:
        """Learning rate of a depth in an epoch (from 0), relative to the head's: 0 while it is still frozen."""
        waits = self.settings.unfreeze_epochs * depth > epoch
        return 0.0 if waits else self.settings.layer_decay**depth

    @property
    def deepest(self) -> int:
        """The depth of codes and visit encoder."""
        return self._layers + 1

    def finish(self, model: SurvivalModel, out: Path) -> tuple[SurvivalModel, tuple[str, ...]]:
        """The model as it is saved, with its adapters merged, and the names of files that were written for it."""
        tensors = lora.adapter_tensors(model)
        if (
            not tensors
        ):  # not LoRA, or members and a blend's network, which were merged before (`keep_adapters`)
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


def _is_code_table(name: str) -> bool:
    return name.startswith(("code_embedding.", "encoder.embedding.code.")) and name.endswith(
        _CODE_TABLES
    )


def _names_between(theirs: str, ours: str) -> Any:
    """The name here of a parameter there; None where it has no counterpart."""
    if theirs == ours:
        return lambda name: name
    pairs: Mapping[str, str] = (
        _EMBEDDINGS if theirs == "hierarchical" else {b: a for a, b in _EMBEDDINGS.items()}
    )

    def renamed(name: str) -> str | None:
        for before, after in pairs.items():
            if name.startswith(before):
                return after + name.removeprefix(before)
        return None

    return renamed
