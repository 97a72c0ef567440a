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
    "pretrain": "ehrsequencing.pretraining.pretrain",
    "visit_encoder": "ehrsequencing.config.parts",
}
__all__ = [
    "BEHRTForSurvival",
    "EhrseqError",
    "HierarchicalBEHRTForSurvival",
    "ModelConfig",
    "VisitBatch",
    "__version__",
    "pretrain",
    "visit_encoder",
]

if TYPE_CHECKING:
    from ehrsequencing.batch import VisitBatch
    from ehrsequencing.config import ModelConfig
    from ehrsequencing.config.parts import visit_encoder
    from ehrsequencing.errors import EhrseqError
    from ehrsequencing.models.behrt import BEHRTForSurvival
    from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
    from ehrsequencing.pretraining.pretrain import pretrain


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
