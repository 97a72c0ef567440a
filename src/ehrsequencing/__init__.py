"""Survival models for electronic health records: records in MEDS go in, calibrated risk curves come out.

    import ehrsequencing as eh
    run = eh.load("runs/hf")
    risk = run.predict("today/", at="last", horizons=["90d", "1y"])

The public names are loaded on first use, so that `import ehrsequencing` and `ehrseq --help` stay fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ehrsequencing.core.version import __version__

_PUBLIC = {
    "BEHRTForSurvival": "ehrsequencing.models.behrt",
    "EHRSurvival": "ehrsequencing.api.estimator",
    "EhrseqError": "ehrsequencing.core.errors",
    "HierarchicalBEHRTForSurvival": "ehrsequencing.models.hierarchical",
    "ModelConfig": "ehrsequencing.config",
    "VisitBatch": "ehrsequencing.batches.visit_batch",
    "evaluate": "ehrsequencing.api.evaluate",
    "fit": "ehrsequencing.api.training",
    "load": "ehrsequencing.api.run",
    "prepare": "ehrsequencing.api.data",
    "read_meds": "ehrsequencing.api.data",
    "score": "ehrsequencing.api.evaluate",
    "pretrain": "ehrsequencing.api.training",
    "visit_encoder": "ehrsequencing.config.parts",
}
_PACKAGES = ("metrics",)  # packages of which people use the functions
__all__ = [
    "BEHRTForSurvival",
    "EHRSurvival",
    "EhrseqError",
    "HierarchicalBEHRTForSurvival",
    "ModelConfig",
    "VisitBatch",
    "__version__",
    "evaluate",
    "fit",
    "load",
    "metrics",
    "prepare",
    "pretrain",
    "read_meds",
    "score",
    "visit_encoder",
]

if TYPE_CHECKING:
    from ehrsequencing import metrics
    from ehrsequencing.api.data import prepare, read_meds
    from ehrsequencing.api.estimator import EHRSurvival
    from ehrsequencing.api.evaluate import evaluate, score
    from ehrsequencing.api.run import load
    from ehrsequencing.api.training import fit, pretrain
    from ehrsequencing.batches.visit_batch import VisitBatch
    from ehrsequencing.config import ModelConfig
    from ehrsequencing.config.parts import visit_encoder
    from ehrsequencing.core.errors import EhrseqError
    from ehrsequencing.models.behrt import BEHRTForSurvival
    from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"ehrsequencing.{name}")
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
