"""What a pretraining learned about codes: which are alike, which it expects beside another, and the simulator's pairs.

Two codes with near vectors stand for each other: they occur in the same company. Codes that occur *together* need not
have near vectors. What the model expects beside a code, `masked_codes` tells, asked about a visit of that code alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.outputs import MANIFEST, SIMULATION, is_json_of
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.training.pretraining.masked import MaskedCodes
from ehrsequencing.training.pretraining.objective import code_embedding
from ehrsequencing.training.pretraining.targets import TargetCodes

MOST_CODES = 40  # the most frequent ones are listed, and asked about
MOST_NEIGHBOURS = 3


def cosines(rows: Floats) -> Floats:
    """(C, C) cosines of the centred rows (C, d); −1 on the diagonal, so that no code is its own neighbour.

    >>> cosines(np.array([[1.0, 0.0], [1.0, 0.0], [-2.0, 0.0]])).round(1).tolist()
    [[-1.0, 1.0, -1.0], [1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]]
    """
    centred = rows - rows.mean(0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    found: Floats = unit @ unit.T
    np.fill_diagonal(found, -1.0)
    return found


def lifts(model: SurvivalModel, objective: MaskedCodes, codes: TargetCodes, asked: Ints) -> Floats:
    """How much more often than usual the model expects each code beside another: `log p(c | a) − log p(c)`, (n, C).

    Args:
        model: In evaluation mode, on the CPU.
        objective: Its masked codes.
        codes: The targets.
        asked: (n,) which of them is alone in a first visit, of a subject whose age is unknown.
    """
    tokens, n = torch.from_numpy(codes.tokens), len(asked)
    offsets, unknown = torch.arange(n + 1), torch.full((n,), float("nan"))
    batch = VisitBatch(
        codes=tokens[torch.from_numpy(asked)],
        visit_offsets=offsets,
        subject_offsets=offsets,
        age_years=unknown,
        delta_days=torch.zeros(n),
        values=torch.full((n, 2), float("nan")),
        code_types=torch.zeros(n, dtype=torch.int64) if model.config.code_types else None,
    )
    with torch.no_grad():
        scores = objective.scores(model.states(batch)[1], code_embedding(model).table(tokens))
        found: Floats = (scores.log_softmax(1) - objective.start.log_softmax(0)).double().numpy()
    found[np.arange(n), asked] = -np.inf
    return found


def code_neighbours(
    model: SurvivalModel,
    objective: MaskedCodes | None,
    codes: TargetCodes,
    *,
    names: Sequence[str],
    count: Ints,
    data: Path,
) -> dict[str, Any]:
    """The neighbours of the most frequent codes, and how many of the simulator's pairs were found.

    Args:
        model: In evaluation mode, on the CPU.
        objective: Its masked codes; None where they were no objective.
        codes: The C targets.
        names: (C,) of them.
        count: (C,) how often each occurs.
        data: Folder of the records.

    Returns:
        `codes`: of each, the most frequent first, `code`, `alike` and `beside` (names); `pairs`: of a simulation, how
        many codes A_k there are, and of how many B_k is the B that is expected most beside it (`beside`), or has the
        nearest vector (`alike`).
    """
    near = cosines(code_embedding(model).table.weight.detach().double().numpy()[codes.tokens])
    most = np.argsort(-count, kind="stable")[:MOST_CODES]
    beside = None if objective is None else lifts(model, objective, codes, most)
    listed = []
    for row, code in enumerate(most.tolist()):
        one: dict[str, Any] = {"code": names[code], "alike": _top(near[code], names)}
        if beside is not None:
            one["beside"] = _top(beside[row], names)
        listed.append(one)
    place = {code: k for k, code in enumerate(names)}
    pairs = [
        (place[a], place[b])
        for a in place
        if a.startswith("DX//A") and (b := f"RX//B{a[5:]}") in place
    ]
    if not pairs or not is_json_of(data / MANIFEST, SIMULATION):
        return {"codes": listed, "pairs": None}
    of, to = np.array(pairs).T
    found = {
        "codes": len(pairs),
        "alike": int((near[np.ix_(of, to)].argmax(1) == np.arange(len(to))).sum()),
    }
    if objective is not None:
        found["beside"] = int(
            (lifts(model, objective, codes, of)[:, to].argmax(1) == np.arange(len(to))).sum()
        )
    return {"codes": listed, "pairs": found}


def _top(closeness: Floats, names: Sequence[str]) -> list[str]:
    """Names of the nearest codes."""
    return [names[k] for k in np.argsort(-closeness, kind="stable")[:MOST_NEIGHBOURS]]
