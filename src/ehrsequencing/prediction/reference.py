"""Whether a run still answers as it did: the risks of its reference records (`records/prepared.py`) are kept with it.

Another version of ehrsequencing or torch, or another processor, should give the risks that the training gave.
"""

from pathlib import Path

import numpy as np

from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, remembered, sha256
from ehrsequencing.core.version import __version__
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.account import Reference
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.prepared import REFERENCE, encode_reference

TOLERANCE = 0.001  # in risk
_UNKNOWN = f"nothing tells whether the run answers as at its training, since its {REFERENCE} {{}}: copy the run again"


def check_reference(run: Run) -> list[str]:
    """Why the run should not be trusted here; nothing where its reference risks are as they were.

    What was computed is remembered in the user's cache, for each version of ehrsequencing and torch and each processor.
    """
    path, fault = run.folder / REFERENCE, run.fault_of(REFERENCE)
    if fault:
        return [_UNKNOWN.format(fault)]
    here = [__version__]
    if run.study.training.network:
        import torch

        here += [torch.__version__, torch.backends.cpu.get_cpu_capability()]
    moved = remembered([run.fingerprint, sha256(path), *here], lambda: _moved(run, path))
    if moved is None:
        return [_UNKNOWN.format("is damaged")]
    if moved <= TOLERANCE:
        return []
    return [
        f"the risks of the run's made-up reference records differ by up to {moved:.2g} from those at its training: "
        "use the versions of ehrsequencing and torch that its manifest names, or train again"
    ]


def _moved(run: Run, path: Path) -> float | None:
    """The largest difference of a risk; None where the file is damaged."""
    try:
        kept: Reference = read_json(path)
        risk, known = reference_risks(run, kept), np.array(kept["risk"], dtype=np.float64)
        is_whole = risk.shape == known.shape and np.isfinite(known).all()
        return float(np.abs(risk - known).max()) if is_whole else None
    except (EhrseqError, LookupError, TypeError, ValueError, ArithmeticError):
        return None


def reference_risks(run: Run, columns: Reference) -> Floats:
    """(visits, causes, horizons) of the reference records, at the end of every visit."""
    excluded = CodeMatcher(run.manifest["excluded"])
    records = encode_reference(columns, run.vocabulary, excluded, run.study.visits)
    if run.is_visit_head:
        return run.visit_hazards(records).astype(np.float64)
    return run.predictor.risk(records, run.task.horizons, start_days=run.task.blanking)
