"""A run → a folder with the program, what a caller needs, and an example; checked against the run itself."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import write_bytes, write_json
from ehrsequencing.core.outputs import EXPORT, complete_folder, write_manifest
from ehrsequencing.core.version import __version__
from ehrsequencing.export import example
from ehrsequencing.export.program import SubjectProgram
from ehrsequencing.export.samples import sample_questions, worst_difference
from ehrsequencing.prediction.predict import horizons_of, start_days_of
from ehrsequencing.prediction.run import Run

PROGRAM, ARRAYS, VOCABULARY, SETTINGS, EXAMPLE = (
    "program.pt2",
    "arrays.npz",
    "vocabulary.json",
    "settings.json",
    "predict.py",
)
TOLERANCE = 1e-5  # of a risk, between the example and the run
SAMPLES = 24  # questions about made-up records that an export is checked with
_DYNAMIC = {0: torch.export.Dim.DYNAMIC}  # the first dimension of every input has any size from 2


@dataclass(frozen=True)
class Exported:
    """What an export is."""

    answers: str  # what the program gives
    questions: int  # how many it was checked with
    difference: float  # the largest difference of a risk


def export_run(
    run_folder: Path, out: Path, *, network_only: bool = False, overwrite: bool = False
) -> Exported:
    """Write a run's network as a program of `torch.export`, with all that is needed to use it without ehrseq.

    Args:
        run_folder: A trained run.
        out: Folder to make.
        network_only: Of a blend, write its network alone, whose risks are not those of the blend.
        overwrite: Whether an earlier output there that nobody has changed is replaced.

    Raises:
        EhrseqError: The run is a blend and `network_only` was not asked for, it is of a kind that cannot be exported,
            or the example does not reproduce its risks.
    """
    run = Run(run_folder)
    _require_simple(run, network_only=network_only)
    program = SubjectProgram(run.model).eval()
    members = len(program.members)
    answers = "the network of a blend, not the blend" if run.blend is not None else "the run"
    answers += f", as the mean hazard of {members} members" if members > 1 else ""
    with complete_folder(out, EXPORT, overwrite=overwrite) as folder:
        write_bytes(folder / PROGRAM, _traced(program, run))
        write_bytes(folder / ARRAYS, _arrays(run))
        write_json(folder / VOCABULARY, _vocabulary(run))
        write_json(folder / SETTINGS, _settings(run, answers))
        write_bytes(folder / EXAMPLE, Path(example.__file__).read_bytes())
        questions = sample_questions(run, SAMPLES)
        difference = worst_difference(run, example.ExportedRun(folder), questions)
        if not difference <= TOLERANCE:
            what = f"the exported program differs from the run by {difference:.1e}"
            raise EhrseqError(
                what, where=str(out), fix="please report it; predict with ehrseq instead"
            )
        facts = {
            **EXPORT.facts,
            "run": run.fingerprint,
            "answers": answers,
            "difference": difference,
        }
        write_manifest(folder, facts)
    return Exported(answers, len(questions), difference)


def _require_simple(run: Run, *, network_only: bool) -> None:
    """Refuse what the program or the example could not reproduce."""
    where = str(run.folder)
    if run.study.training.blend and not network_only:
        fix = "--network-only exports its network alone, whose risks differ from the blend's"
        raise EhrseqError(
            "is a blend, whose trees and Cox regressions no torch program has", where=where, fix=fix
        )
    if run.vocabulary.rollup.mode != "off":
        raise EhrseqError(
            "rolls rare codes up, which the exported example cannot",
            where=where,
            fix="use ehrseq serve",
        )
    if run.study.visits.by == "encounter":
        raise EhrseqError(
            "cuts visits by encounter, which the example cannot",
            where=where,
            fix="use ehrseq serve",
        )
    if any(pattern.startswith("under:") for pattern in run.manifest["excluded"]):
        what = "leaves out codes by their ancestors, which the example cannot"
        raise EhrseqError(what, where=where, fix="use ehrseq serve")


def _traced(program: SubjectProgram, run: Run) -> bytes:
    """The program as the bytes of a .pt2 file."""
    rows, codes = 3, 6
    inputs = (
        torch.ones(codes, dtype=torch.int64),
        torch.tensor([0, 2, 4, 6]),
        torch.full((rows,), 60.0),
        torch.tensor([0.0, 30.0, 60.0]),
        torch.tensor([False, False, True]),
        torch.zeros(codes, 2),
        torch.zeros(codes, dtype=torch.int64),
        torch.ones(3, dtype=torch.int64),
        torch.full((3,), 1 / 3),
    )
    with torch.no_grad():
        exported = torch.export.export(
            program, inputs, dynamic_shapes=(_DYNAMIC,) * len(inputs), strict=False
        )
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    return buffer.getvalue()


def _arrays(run: Run) -> bytes:
    """What the example looks up by token, as the bytes of an .npz file."""
    v = run.vocabulary
    types = run.code_types if run.code_types is not None else np.zeros(len(v), dtype=np.int64)
    first_bin = np.full(len(v), -1, dtype=np.int64)
    made = v.made_of
    start = len(v) - len(made)
    for place, (code, summary, bin_) in enumerate(made):
        if bin_ == 0:
            first_bin[code if summary < 0 else start + place - 1] = start + place
    arrays: Mapping[str, Any] = {
        "scale": v.scale,
        "knots": v.knots,
        "mean": v.mean,
        "sd": v.sd,
        "code_types": types,
        "first_bin": first_bin,
        "summary_tokens": v.summary_tokens,
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _vocabulary(run: Run) -> dict[str, Any]:
    v = run.vocabulary
    unknown = {kind: 2 + place for place, kind in enumerate(v.kinds)}
    return {"codes": v.index, "unknown": unknown, "tokens": v.tokens}


def _settings(run: Run, answers: str) -> dict[str, Any]:
    horizons = [day for day in horizons_of(run, None) if day is not None]
    visits, values = run.study.visits, run.study.values
    return {
        "ehrsequencing": __version__,
        "torch": torch.__version__,
        "task": run.task.name,
        "run": run.fingerprint,
        "answers": answers,
        "causes": list(run.task.causes[: run.model.config.causes]),
        "horizons_days": horizons or None,
        "start_days": start_days_of(run),
        "edges_days": list(run.model.config.edges_days),
        "head": run.study.model.head,
        "visits": {"by": visits.by, "window": visits.window, "gap": visits.gap},
        "values": {
            "mode": run.vocabulary.settings.mode,
            "bins": values.bins,
            "carry": run.vocabulary.settings.carry,
        },
        "excluded": list(run.manifest["excluded"]),
    }
