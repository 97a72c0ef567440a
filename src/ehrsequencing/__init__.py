"""Survival models for electronic health records: records in MEDS go in, calibrated risk curves come out.

    import ehrsequencing as eh
    run = eh.load("runs/hf")
    risk = run.predict("today/", at="last", horizons=["90d", "1y"])

The public names are loaded on first use, so that `import ehrsequencing` and `ehrseq --help` stay fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "BEHRTForSurvival": "ehrsequencing.models.behrt",
    "EHRSurvival": "ehrsequencing.notebook.estimator",
    "EhrseqError": "ehrsequencing.errors",
    "HierarchicalBEHRTForSurvival": "ehrsequencing.models.hierarchical",
    "ModelConfig": "ehrsequencing.config",
    "VisitBatch": "ehrsequencing.batch",
    "evaluate": "ehrsequencing.notebook.evaluating",
    "fit": "ehrsequencing.notebook.study",
    "load": "ehrsequencing.notebook.loaded",
    "prepare": "ehrsequencing.notebook.study",
    "read_meds": "ehrsequencing.notebook.study",
    "score": "ehrsequencing.notebook.evaluating",
    "pretrain": "ehrsequencing.pretraining.pretrain",
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
    from ehrsequencing.batch import VisitBatch
    from ehrsequencing.config import ModelConfig
    from ehrsequencing.config.parts import visit_encoder
    from ehrsequencing.errors import EhrseqError
    from ehrsequencing.models.behrt import BEHRTForSurvival
    from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
    from ehrsequencing.notebook.estimator import EHRSurvival
    from ehrsequencing.notebook.evaluating import evaluate, score
    from ehrsequencing.notebook.loaded import load
    from ehrsequencing.notebook.study import fit, prepare, read_meds
    from ehrsequencing.pretraining.pretrain import pretrain


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"ehrsequencing.{name}")
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
