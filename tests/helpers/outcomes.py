"""One outcome of a run, person by person: what the table of all outcomes is compared with."""

from dataclasses import dataclass

import numpy as np
import torch

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.config import EvaluationConfig
from ehrsequencing.evaluation.outcome_table import OutcomeRows
from ehrsequencing.models.hazards import cumulative_incidence
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords


@dataclass
class AskedRow:
    """One prediction time."""

    number: int
    moment_us: int
    stop_days: float
    stratum: str
    is_landmark: bool
    hazards: list[float]
    near_risk: float


@dataclass
class Person:
    """One subject with its prediction times and the first record of the outcome."""

    subject: int
    rows: list[AskedRow]
    onset_us: int | None


def loops(run: Run, records: TaskRecords, number: int) -> list[Person]:
    """Everybody with a prediction time."""
    assert run.model.outcomes is not None
    assert records.outcomes is not None
    rows, timelines = records.rows, records.timelines
    step = SubjectLoader.of_model(run.model.config, records).collate(np.arange(len(timelines)))
    with torch.no_grad():
        _, z = run.model.states(step.batch)
        own = run.model.outcomes.log_hazards(z)[:, number : number + 1]
        logits, near = torch.cat([own, run.model(step.batch)], 1), run.task.horizons[0]
        risk = cumulative_incidence(logits, run.model.config.edges_days, horizons_days=[near])[:, 0, 0]
    position = dict(zip(step.rows.tolist(), step.positions.tolist(), strict=True))
    people = []
    for s, subject in enumerate(timelines.subject_id.tolist()):
        static = timelines.static_codes[slice(*timelines.static_offsets[s : s + 2].tolist())]
        names = [run.vocabulary.tokens[token] for token in static.tolist()]
        sex = next((name for name in sorted(names) if name.upper().startswith(("GENDER", "SEX"))), "")
        events = slice(*records.outcomes.outcome_offsets[s : s + 2].tolist())
        at = records.outcomes.outcome_us[events][records.outcomes.outcome_codes[events] == number]
        own_rows = [
            AskedRow(
                number=r,
                moment_us=int(rows.prediction_us[r]),
                stop_days=float(rows.duration_days[r]),
                stratum=f"{sex} {int(rows.age_years[r] // 5)}",
                is_landmark=any(r in records.at_landmark(days).tolist() for days in run.task.landmarks),
                hazards=own[position[r], 0].exp().tolist(),
                near_risk=float(risk[position[r]]),
            )
            for r in range(int(rows.row_offsets[s]), int(rows.row_offsets[s + 1]))
        ]
        if own_rows:
            people.append(Person(subject, own_rows, int(at[0]) if len(at) else None))
    return people


def control_rows(run: Run, prepared: Prepared, *, seed: int) -> set[int]:
    """The rows at which controls are asked about: random ones, so they cannot be found by a loop."""
    return set(OutcomeRows(run, prepared, "train", EvaluationConfig(bootstrap=0, seed=seed)).control_rows.tolist())
