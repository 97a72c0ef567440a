"""Survival models for electronic health records: records in MEDS go in, calibrated risk curves come out.

The public names are loaded on first use, so that `import ehrsequencing` and `ehrseq --help` stay fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "EhrseqError": "ehrsequencing.errors",
    "ModelConfig": "ehrsequencing.config",
    "VisitBatch": "ehrsequencing.batch",
    "HierarchicalBEHRTForSurvival": "ehrsequencing.models.hierarchical",
    "BEHRTForSurvival": "ehrsequencing.models.behrt",
    "score": "ehrsequencing.evaluation.score",
    "visit_encoder": "ehrsequencing.config.parts",
}
__all__ = [
    "BEHRTForSurvival",
    "EhrseqError",
    "HierarchicalBEHRTForSurvival",
    "ModelConfig",
    "VisitBatch",
    "__version__",
    "score",
    "visit_encoder",
]

if TYPE_CHECKING:
    from ehrsequencing.batch import VisitBatch
    from ehrsequencing.config import ModelConfig
    from ehrsequencing.config.parts import visit_encoder
    from ehrsequencing.errors import EhrseqError
    from ehrsequencing.evaluation.score import score
    from ehrsequencing.models.behrt import BEHRTForSurvival
    from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
