"""Draws the first picture of README.md, one patient of the demo.

Run `make demo`, then `python docs/figures/patient.py demo`. The patient is simulated. Of the report's patients who had
the event, and of their visits from which the report has whole risk curves, the picture takes the one at which the
predicted risk rose most.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ehrsequencing.reporting.patient import Patient, patient_figure, patient_of

from ehrsequencing.reporting.report import standalone

HERE = Path(__file__).parent


def at_visit(row: dict[str, Any], k: int) -> Patient:
    """The patient as of the k-th prediction time."""
    patient = patient_of(row | {"now": k})
    return replace(patient, visits=[visit for visit in patient.visits if visit.day <= patient.times_days[-1]])


def rise(patient: Patient) -> float:
    """By how much the risk rose at the last prediction time."""
    return patient.risk[-1] - patient.risk[-2]


def main(demo: Path, out: Path) -> None:
    """Draw the patient of a demo's run."""
    metrics = json.loads((demo / "run" / "metrics.json").read_text(encoding="utf-8"))
    cause = metrics["causes"][0]
    had_event = [row for row in metrics["trajectories"] if row["event"] and row["event"]["cause"] == cause]
    patient = max((at_visit(row, k) for row in had_event for k in row["curve_at"] if k > 0), key=rise)
    figure = patient_figure(patient, title="One simulated patient: what was recorded, predicted, and what happened")
    out.write_text(standalone(figure) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), HERE / "patient.svg")
