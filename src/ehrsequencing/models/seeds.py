"""Weights between the plain models of `ehrsequencing.nn` and the packed engine: the same function of the same weights.

`ModelConfig.as_seeds` is the engine's configuration of a plain model. Weights are copied by name. Whatever the other
side lacks is refused by name, also where no weight shows it (rotary positions, codes hidden in training).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn as torch_nn

import ehrsequencing.nn as nn
from ehrsequencing.config import ModelConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models import (
    attention,
    base,
    behrt,
    embeddings,
    hazards,
    hierarchical,
    positions,
    visit_encoder as encoders,
)

_OF_QUERIES = "query"  # the last part of the name of the engine's vector of queries: zero if it was never trained
# settings of packed modules that no weight shows: a plain module has none, so here they must be false or 0
_UNSHOWN = {"rotary": "rotary", "value_dropout": "history_dropout"}


class _Pair(NamedTuple):
    """A plain class and the packed one, and how each is made in the shape of the other."""

    plain: type[torch_nn.Module]
    packed: type[torch_nn.Module]
    settings: Callable[[Any], Mapping[str, Any]]  # of a plain module, for `ModelConfig.as_seeds`
    to_plain: Callable[[Any], torch_nn.Module]  # an untrained module in the shape of a packed one
    names: Mapping[str, str] = {}  # first parts of names, plain → packed, where they differ


def to_packed(plain: torch_nn.Module) -> torch_nn.Module:
    """The engine's twin of a plain module, with copies of its weights.

    Raises:
        EhrseqError: The engine has no such module, or lacks something of this one.

    Example:
        >>> type(to_packed(nn.AttnPoolingVisitEncoder(8))).__module__
        'ehrsequencing.models.visit_encoder'
    """
    pair = _twin(plain, is_packed=False)
    config = ModelConfig.as_seeds(**{"n_codes": 2, "dim": 4, "heads": 1, **pair.settings(plain)})
    return _with_weights(pair.packed(config), plain, pair.names, side="ehrsequencing.models")


def to_plain(packed: torch_nn.Module) -> torch_nn.Module:
    """The plain twin of a packed module, with copies of its weights.

    Raises:
        EhrseqError: `ehrsequencing.nn` has no such module, or lacks something of this one.

    Example:
        >>> model = hierarchical.HierarchicalBEHRTForSurvival(ModelConfig.as_seeds(100, dim=8))
        >>> type(to_plain(model)).__module__
        'ehrsequencing.nn.hierarchical'
    """
    pair = _twin(packed, is_packed=True)
    for part in packed.modules():
        for name, setting in _UNSHOWN.items():
            if getattr(part, name, False):
                raise _lacking("ehrsequencing.nn", setting)
        if isinstance(part, base.SurvivalModel) and part.config.code_dropout:
            raise _lacking("ehrsequencing.nn", "code_dropout")
        if isinstance(part, hazards.SurvivalHead) and part.shape:
            raise _lacking("ehrsequencing.nn", "head=horizon")
    names = {theirs: ours for ours, theirs in pair.names.items()}
    return _with_weights(pair.to_plain(packed), packed, names, side="ehrsequencing.nn")


def _lacking(side: str, what: str) -> EhrseqError:
    return EhrseqError(
        f"{side} has no twin of {what}",
        where="ehrsequencing.models.seeds",
        fix="make the model with ModelConfig.as_seeds(n_codes, dim=d)",
    )


def _with_weights(
    target: torch_nn.Module, source: torch_nn.Module, names: Mapping[str, str], *, side: str
) -> torch_nn.Module:
    """The target with the source's weights; whatever has no place there is refused by its name."""
    wanted = target.state_dict()
    given = {_renamed(name, names): weight for name, weight in source.state_dict().items()}
    for name, weight in given.items():
        is_untrained = name.endswith(_OF_QUERIES) and not weight.any()
        fits = name in wanted and wanted[name].shape == weight.shape
        if not fits and not is_untrained:
            raise _lacking(side, f"{name} of shape {tuple(weight.shape)}")
    lost = [name for name in wanted if name not in given and not name.endswith(_OF_QUERIES)]
    if lost:
        raise _lacking(side, f"a module without {lost[0]}")
    for weight in list(given.values())[:1]:
        target.to(weight.dtype)
    target.load_state_dict({**wanted, **{name: given[name] for name in given if name in wanted}})
    return target.train(source.training)


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """A weight's name with the beginning that the other side uses."""
    for ours, theirs in names.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


# ---- the pairs ---------------------------------------------------------------------------------


def _twin(module: torch_nn.Module, *, is_packed: bool) -> _Pair:
    """The pair of a module's class."""
    for pair in _PAIRS:
        if type(module) is (pair.packed if is_packed else pair.plain):
            return pair
    side = "ehrsequencing.nn" if is_packed else "ehrsequencing.models"
    raise _lacking(side, type(module).__name__)


def _of_position(plain: nn.PositionalEmbedding) -> dict[str, Any]:
    if plain.table is None:
        return {"dim": plain.d, "position": "sinusoidal"}
    return {"dim": plain.d, "max_visits": plain.table.num_embeddings}


def _of_codes(plain: nn.CodeEmbedding) -> dict[str, Any]:
    types = plain.type_table
    return {
        "n_codes": plain.table.num_embeddings,
        "dim": plain.table.embedding_dim,
        "code_position": plain.position_table is not None,
        "code_types": types is not None,
        "n_code_types": 1 if types is None else types.num_embeddings,
    }


def _plain_codes(packed: embeddings.CodeEmbedding) -> nn.CodeEmbedding:
    places, types = packed.position_table, packed.type_table
    return nn.CodeEmbedding(
        packed.table.num_embeddings,
        packed.table.embedding_dim,
        max_codes_per_visit=0 if places is None else places.num_embeddings,
        n_types=None if types is None else types.num_embeddings,
    )


def _of_delta(plain: nn.DeltaTEmbedding) -> dict[str, Any]:
    settings = {"dim": plain.table.embedding_dim}
    if plain.bin_days is None:
        return settings
    if (plain.bin_days, plain.top_days) != (embeddings.GAP_BIN_DAYS, embeddings.GAP_TOP_DAYS):
        raise _lacking("ehrsequencing.models", "gaps in other bins than weeks up to a year")
    return {**settings, "delta_bins": "linear"}


def _plain_delta(packed: embeddings.DeltaTEmbedding) -> nn.DeltaTEmbedding:
    bin_days = embeddings.GAP_BIN_DAYS if packed.linear else None
    return nn.DeltaTEmbedding(packed.table.embedding_dim, bin_days, embeddings.GAP_TOP_DAYS)


def _of_time(plain: nn.VisitTimeEmbedding) -> dict[str, Any]:
    return {
        **_of_position(plain.position),
        "age_bin_years": plain.age.age_bin_size,
        "delta_bins": "none" if plain.delta is None else "log",
    }


def _rows_of_position(packed: torch_nn.Module | None) -> int:
    """Rows of a learned position; 0 for a sinusoid."""
    if packed is None:
        raise _lacking("ehrsequencing.nn", "position=none")
    if isinstance(packed, positions.PositionalEmbedding):
        return packed.table.num_embeddings
    return 0


def _years_of_bin(packed: embeddings.AgeEmbedding | None) -> float:
    if packed is None:
        raise _lacking("ehrsequencing.nn", "age_bin_years=0")
    return packed.bin_years


def _plain_time(packed: embeddings.VisitTimeEmbedding) -> nn.VisitTimeEmbedding:
    if packed.delta is not None and packed.delta.linear:
        raise _lacking("ehrsequencing.nn", "delta_bins=linear")
    rows = _rows_of_position(packed.position)
    return nn.VisitTimeEmbedding(
        len(packed.query),
        max_visits=rows or positions.MAX_INDEX_ROWS,
        age_bin_size=_years_of_bin(packed.age),
        use_sinusoidal=not rows,
        use_delta=packed.delta is not None,
    )


def _of_layer(plain: nn.TransformerLayer) -> dict[str, Any]:
    return {
        "dim": plain.out.in_features,
        "heads": plain.heads,
        "dropout": plain.dropout.p,
    }


def _layer(module: Any) -> Any:
    """The first layer of a stack, which says its width, heads and dropout."""
    return module.layers[0]


def _of_pooling(plain: nn.AttnPoolingVisitEncoder) -> dict[str, Any]:
    if plain.scorer == "query":
        return {"dim": plain.W.in_features}
    return {"dim": plain.W1.in_features, "visit_encoder": "bottleneck"}


def _plain_pooling(packed: encoders.AttnPoolingVisitEncoder) -> nn.AttnPoolingVisitEncoder:
    if packed.has_query:
        return nn.AttnPoolingVisitEncoder(packed.W.in_features)
    return nn.AttnPoolingVisitEncoder(packed.W1.in_features, "bottleneck")


def _of_timeline(plain: nn.TimelineEncoder) -> dict[str, Any]:
    return {
        **_of_layer(_layer(plain)),
        "layers": len(plain.layers),
        "attention": "causal" if plain.causal else "bidirectional",
    }


def _plain_timeline(packed: attention.TimelineEncoder) -> nn.TimelineEncoder:
    first = _layer(packed)
    return nn.TimelineEncoder(
        first.out.in_features,
        heads=first.heads,
        layers=len(packed.layers),
        causal=not packed.bidirectional,
        dropout=first.dropout,
    )


def _of_flat_input(plain: nn.BEHRTEmbedding) -> dict[str, Any]:
    place = _of_position(plain.position)
    return {
        **_of_codes(plain.code),
        "architecture": "flat",
        "position": place.get("position", "learned"),
        "max_tokens": place.get("max_visits", ModelConfig().max_tokens),
        "max_visits": _of_position(plain.visit)["max_visits"],
        "age_bin_years": plain.age.age_bin_size,
        "dropout": plain.dropout.p,
    }


def _flat_arguments(packed: behrt.BEHRTEmbedding) -> dict[str, Any]:
    rows = _rows_of_position(packed.position)
    return {
        "n_codes": packed.code.table.num_embeddings,
        "d": packed.code.table.embedding_dim,
        "age_bin_size": _years_of_bin(packed.age),
        "use_sinusoidal": not rows,
        "max_visits": packed.visit.table.num_embeddings,
        "max_length": rows or positions.MAX_INDEX_ROWS,
        "dropout": packed.dropout,
    }


def _of_flat(plain: nn.BEHRTForSurvival) -> dict[str, Any]:
    attention = "causal" if plain.causal else "bidirectional"
    of_layers = {**_of_layer(_layer(plain)), "layers": len(plain.layers), "attention": attention}
    return {**_of_flat_input(plain.embedding), **of_layers}


def _of_model(plain: nn.HierarchicalBEHRTForSurvival) -> dict[str, Any]:
    of_encoder = _twin(plain.visit_encoder, is_packed=False).settings(plain.visit_encoder)
    of_timeline = _of_timeline(plain.timeline)
    if of_encoder.get("heads", of_timeline["heads"]) != of_timeline["heads"]:
        raise _lacking("ehrsequencing.models", "a visit encoder with heads of its own")
    of_time = _of_time(plain.visit_time_embedding)
    return {**of_encoder, **of_time, **_of_codes(plain.code_embedding), **of_timeline}


def _plain_model(
    packed: hierarchical.HierarchicalBEHRTForSurvival,
) -> nn.HierarchicalBEHRTForSurvival:
    config, encoder = packed.config, packed.visit_encoder.pooling
    time = _plain_time(packed.visit_time_embedding)
    if time.delta is None:
        raise _lacking("ehrsequencing.nn", "delta_bins=none")
    return nn.HierarchicalBEHRTForSurvival(
        config.vocab_size,
        config.dim,
        heads=config.heads,
        layers=config.layers,
        visit_encoder=_twin(encoder, is_packed=True).to_plain(encoder),
        causal=config.attention == "causal",
        age_bin_size=time.age.age_bin_size,
        use_sinusoidal=time.position.table is None,
        max_visits=min(config.max_visits, positions.MAX_INDEX_ROWS),
        max_codes_per_visit=embeddings.MAX_CODE_POSITIONS if config.code_position else 0,
        dropout=config.dropout,
    )


_ENCODERS = (
    _Pair(
        nn.MeanPoolingVisitEncoder,
        encoders.MeanPoolingVisitEncoder,
        lambda plain: {"visit_encoder": "mean"},
        lambda packed: nn.MeanPoolingVisitEncoder(),
    ),
    _Pair(
        nn.AttnPoolingVisitEncoder,
        encoders.AttnPoolingVisitEncoder,
        _of_pooling,
        _plain_pooling,
    ),
    _Pair(
        nn.TransformerVisitEncoder,
        encoders.TransformerVisitEncoder,
        lambda plain: {**_of_layer(_layer(plain)), "visit_encoder": "transformer"},
        lambda packed: nn.TransformerVisitEncoder(
            _layer(packed).out.in_features,
            _layer(packed).heads,
            dropout=_layer(packed).dropout,
        ),
    ),
)
_PAIRS = (
    *_ENCODERS,
    _Pair(nn.CodeEmbedding, embeddings.CodeEmbedding, _of_codes, _plain_codes),
    _Pair(
        nn.AgeEmbedding,
        embeddings.AgeEmbedding,
        lambda plain: {"dim": plain.table.embedding_dim, "age_bin_years": plain.age_bin_size},
        lambda packed: nn.AgeEmbedding(packed.table.embedding_dim, packed.bin_years),
    ),
    _Pair(nn.DeltaTEmbedding, embeddings.DeltaTEmbedding, _of_delta, _plain_delta),
    _Pair(nn.VisitTimeEmbedding, embeddings.VisitTimeEmbedding, _of_time, _plain_time),
    _Pair(
        nn.TransformerLayer,
        attention.TransformerLayer,
        _of_layer,
        lambda packed: nn.TransformerLayer(packed.out.in_features, packed.heads, packed.dropout),
    ),
    _Pair(
        nn.TimelineEncoder,
        attention.TimelineEncoder,
        _of_timeline,
        _plain_timeline,
    ),
    _Pair(
        nn.SurvivalHead,
        hazards.SurvivalHead,
        lambda plain: {"dim": plain.W1.in_features, "dropout": plain.dropout.p},
        lambda packed: nn.SurvivalHead(packed.W1.in_features, packed.dropout),
    ),
    _Pair(
        nn.BEHRTEmbedding,
        behrt.BEHRTEmbedding,
        _of_flat_input,
        lambda packed: nn.BEHRTEmbedding(**_flat_arguments(packed)),
    ),
    _Pair(
        nn.BEHRTForSurvival,
        behrt.BEHRTForSurvival,
        _of_flat,
        lambda packed: nn.BEHRTForSurvival(
            **_flat_arguments(packed.encoder.embedding),
            heads=packed.config.heads,
            layers=packed.config.layers,
            causal=packed.config.attention == "causal",
        ),
        {f"{part}.": f"encoder.{part}." for part in ("embedding", "layers", "norm")},
    ),
    _Pair(
        nn.HierarchicalBEHRTForSurvival,
        hierarchical.HierarchicalBEHRTForSurvival,
        _of_model,
        _plain_model,
        {"visit_encoder.": "visit_encoder.pooling."},
    ),
)
