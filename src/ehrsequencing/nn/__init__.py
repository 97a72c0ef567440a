"""The models as their design documents write them: plain PyTorch on padded tensors. Read here first, in this order.

`embeddings` → `visit_encoders` → `timeline` → `survival` → `hierarchical`, and `flat` beside them. Masks are True or 1
where something is real. Nothing here imports the rest of the package; wrong input is a `ValueError`.

`ehrsequencing.models` holds the same models as the package trains them: on packed batches, many times faster, with
more parts. `ehrsequencing.models.seeds` copies weights between the two.

Part by part, "same" means the same weights and the same function, and "engine only" what this package has not:

- `CodeEmbedding`: same, up to 128 codes a visit. Engine only: the numbers of codes (`values`).
- `MeanPoolingVisitEncoder`, `AttnPoolingVisitEncoder`, `TransformerVisitEncoder`: same. Engine only: sums, the
  maximum, the CLS token, and the residual MLP after the pooling (`visit_mlp`).
- `AgeEmbedding`, `DeltaTEmbedding`, `VisitTimeEmbedding`: same. Engine only: `age_polynomial`, the vector of queries.
- `TimelineEncoder`: same, up to `max_visits` visits, which is the engine's window. Engine only: `rotary`.
- `SurvivalHead`: same for `head=visit`. Engine only: hazards by days (`head=horizon`).
- `DiscreteTimeSurvivalLoss`: the engine's loss for `head=visit`, which is a mean over visits and not over subjects.
- `BEHRTEmbedding`, `BEHRTForSurvival`: same, up to `max_tokens` codes, which is the engine's window.
- `HierarchicalBEHRTForSurvival`: same with `ModelConfig.as_seeds(n_codes, dim=d)`.
- Engine only: queries between visits, static codes, the table of numbers, ensembles.
"""

from ehrsequencing.nn.embeddings import (
    AgeEmbedding,
    BEHRTEmbedding,
    CodeEmbedding,
    DeltaTEmbedding,
    PositionalEmbedding,
    VisitEmbedding,
    VisitTimeEmbedding,
)
from ehrsequencing.nn.flat import BEHRTForSurvival
from ehrsequencing.nn.hierarchical import HierarchicalBEHRTForSurvival
from ehrsequencing.nn.survival import DiscreteTimeSurvivalLoss, SurvivalHead
from ehrsequencing.nn.timeline import TimelineEncoder, TransformerLayer
from ehrsequencing.nn.visit_encoders import (
    AttnPoolingVisitEncoder,
    MeanPoolingVisitEncoder,
    TransformerVisitEncoder,
)

__all__ = [
    "AgeEmbedding",
    "AttnPoolingVisitEncoder",
    "BEHRTEmbedding",
    "BEHRTForSurvival",
    "CodeEmbedding",
    "DeltaTEmbedding",
    "DiscreteTimeSurvivalLoss",
    "HierarchicalBEHRTForSurvival",
    "MeanPoolingVisitEncoder",
    "PositionalEmbedding",
    "SurvivalHead",
    "TimelineEncoder",
    "TransformerLayer",
    "TransformerVisitEncoder",
    "VisitEmbedding",
    "VisitTimeEmbedding",
]
