"""Survival models for electronic health records: records in MEDS go in, calibrated risk curves come out.

    import ehrsequencing as eh
    run = eh.load("runs/hf")
    risk = run.predict("today/", at="last", horizons=["90d", "1y"])

The public names are loaded on first use, so that `import ehrsequencing` and `ehrseq --help` stay fast.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ehrsequencing.core.version import __version__

_PUBLIC = {
    "BEHRTForSurvival": "ehrsequencing.models.behrt",
    "EHRSurvival": "ehrsequencing.api.estimator",
    "EhrseqError": "ehrsequencing.core.errors",
    "HierarchicalBEHRTForSurvival": "ehrsequencing.models.hierarchical",
    "ModelConfig": "ehrsequencing.config",
    "TaskConfig": "ehrsequencing.config",
    "VisitBatch": "ehrsequencing.batches.visit_batch",
    "aalen_johansen": "ehrsequencing.api.predictions",
    "audit": "ehrsequencing.api.evaluate",
    "check": "ehrsequencing.api.records",
    "codes": "ehrsequencing.api.records",
    "compare": "ehrsequencing.api.compare",
    "compare_risks": "ehrsequencing.api.compare",
    "cox": "ehrsequencing.api.cox",
    "drift": "ehrsequencing.api.new_people",
    "update": "ehrsequencing.api.new_people",
    "evaluate": "ehrsequencing.api.evaluate",
    "export": "ehrsequencing.api.predictions",
    "fit": "ehrsequencing.api.training",
    "from_table": "ehrsequencing.api.flat_table",
    "import_csv": "ehrsequencing.api.records",
    "import_fhir": "ehrsequencing.api.records",
    "import_omop": "ehrsequencing.api.records",
    "import_synthea": "ehrsequencing.api.records",
    "load": "ehrsequencing.api.run",
    "monitor": "ehrsequencing.api.new_people",
    "pool_sites": "ehrsequencing.api.study",
    "prepare": "ehrsequencing.api.data",
    "pretrain": "ehrsequencing.api.training",
    "read_meds": "ehrsequencing.api.data",
    "run": "ehrsequencing.api.study",
    "save_run": "ehrsequencing.api.training",
    "score": "ehrsequencing.api.evaluate",
    "simulate": "ehrsequencing.api.records",
    "visit_encoder": "ehrsequencing.config.base",
}
_PACKAGES = {
    "metrics": "ehrsequencing.metrics",
    "nn": "ehrsequencing.nn",
}  # of which people use the names
__all__ = [
    "BEHRTForSurvival",
    "EHRSurvival",
    "EhrseqError",
    "HierarchicalBEHRTForSurvival",
    "ModelConfig",
    "TaskConfig",
    "VisitBatch",
    "__version__",
    "aalen_johansen",
    "audit",
    "check",
    "codes",
    "compare",
    "compare_risks",
    "cox",
    "drift",
    "evaluate",
    "export",
    "fit",
    "from_table",
    "import_csv",
    "import_fhir",
    "import_omop",
    "import_synthea",
    "load",
    "metrics",
    "monitor",
    "nn",
    "pool_sites",
    "prepare",
    "pretrain",
    "read_meds",
    "run",
    "save_run",
    "score",
    "simulate",
    "update",
    "visit_encoder",
]

if TYPE_CHECKING:
    from ehrsequencing import metrics as metrics, nn as nn
    from ehrsequencing.api.compare import (
        compare as compare,
        compare_risks as compare_risks,
    )
    from ehrsequencing.api.cox import cox as cox
    from ehrsequencing.api.data import prepare as prepare, read_meds as read_meds
    from ehrsequencing.api.estimator import EHRSurvival as EHRSurvival
    from ehrsequencing.api.evaluate import audit as audit, evaluate as evaluate, score as score
    from ehrsequencing.api.flat_table import from_table as from_table
    from ehrsequencing.api.new_people import drift as drift, monitor as monitor, update as update
    from ehrsequencing.api.predictions import aalen_johansen as aalen_johansen, export as export
    from ehrsequencing.api.records import (
        check as check,
        codes as codes,
        import_csv as import_csv,
        import_fhir as import_fhir,
        import_omop as import_omop,
        import_synthea as import_synthea,
        simulate as simulate,
    )
    from ehrsequencing.api.run import load as load
    from ehrsequencing.api.study import pool_sites as pool_sites, run as run
    from ehrsequencing.api.training import fit as fit, pretrain as pretrain, save_run as save_run
    from ehrsequencing.batches.visit_batch import VisitBatch as VisitBatch
    from ehrsequencing.config import ModelConfig as ModelConfig, TaskConfig as TaskConfig
    from ehrsequencing.config.base import visit_encoder as visit_encoder
    from ehrsequencing.core.errors import EhrseqError as EhrseqError
    from ehrsequencing.models.behrt import BEHRTForSurvival as BEHRTForSurvival
    from ehrsequencing.models.hierarchical import (
        HierarchicalBEHRTForSurvival as HierarchicalBEHRTForSurvival,
    )


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(_PACKAGES[name])
    from ehrsequencing.core.elsewhere import missing_name, public

    if name in _PUBLIC:
        return public(import_module(_PUBLIC[name]), name)
    raise missing_name(__name__, name, __all__)


class _Face(ModuleType):
    """This package: `audit` and `simulate` stay functions, although rooms have the same names."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face


def __dir__() -> list[str]:
    return sorted(__all__)
