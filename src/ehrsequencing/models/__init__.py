"""Models: a packed batch of visits goes in, logits of hazards come out. Start with `hierarchical.py`.

The plain models on padded tensors are in `ehrsequencing.nn`; `to_packed` and `to_plain` copy weights between the two.
"""

from ehrsequencing.models.attention import TimelineEncoder, TransformerLayer
from ehrsequencing.models.behrt import BEHRTEmbedding, BEHRTForSurvival
from ehrsequencing.models.embeddings import (
    AgeEmbedding,
    CodeEmbedding,
    DeltaTEmbedding,
    VisitTimeEmbedding,
)
from ehrsequencing.models.hazards import SurvivalHead
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
from ehrsequencing.models.seeds import to_packed, to_plain
from ehrsequencing.models.segments import CodeVectors, pool
from ehrsequencing.models.visit_encoder import (
    AttnPoolingVisitEncoder,
    MeanPoolingVisitEncoder,
    TransformerVisitEncoder,
    VisitEncoder,
)

__all__ = [
    "AgeEmbedding",
    "AttnPoolingVisitEncoder",
    "BEHRTEmbedding",
    "BEHRTForSurvival",
    "CodeEmbedding",
    "CodeVectors",
    "DeltaTEmbedding",
    "HierarchicalBEHRTForSurvival",
    "MeanPoolingVisitEncoder",
    "SurvivalHead",
    "TimelineEncoder",
    "TransformerLayer",
    "TransformerVisitEncoder",
    "VisitEncoder",
    "VisitTimeEmbedding",
    "pool",
    "to_packed",
    "to_plain",
]
