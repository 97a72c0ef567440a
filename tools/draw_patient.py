"""Draws the first picture of README.md, one patient of the demo.

Run `make demo`, then `python tools/draw_patient.py demo`. The patient is simulated. Of the report's patients who had
the event, the picture takes the one with the most prediction times, as of the last of them with whole risk curves at
which the risk rose. (The report has a patient's visits until its prediction `now` only.)
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from ehrsequencing.reporting.patient import Patient, patient_figure, patient_of
from ehrsequencing.reporting.wording import environment
from ehrsequencing.results.result_types import Trajectory

HERE = Path(__file__).parents[1] / "docs" / "figures"


def at_visit(row: Trajectory, k: int) -> Patient:
    """The patient as of the k-th prediction time."""
    patient = patient_of({**row, "now": k})
    return replace(
        patient,
        visits=[visit for visit in patient.visits if visit["day"] <= patient.times_days[-1]],
    )


def standalone(figure: str) -> str:
    """A figure as an SVG file of its own, with the page's colours."""
    parts = [
        environment().get_template(f"{name}.css.jinja").render() for name in ("palette", "chart")
    ]
    style = f"<style>{''.join(parts)} svg {{ background: var(--bg); }}</style>"
    head, _, rest = str(figure).partition(">")
    return head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1) + f">{style}{rest}"


def rise(patient: Patient) -> float:
    """By how much the risk rose at the last prediction time."""
    return patient.risk[-1] - patient.risk[-2]


def main(demo: Path, out: Path) -> None:
    """Draw the patient of a demo's run."""
    metrics = json.loads((demo / "run" / "metrics.json").read_text(encoding="utf-8"))
    cause = metrics["causes"][0]
    had_event = [
        row for row in metrics["trajectories"] if row["event"] and row["event"]["cause"] == cause
    ]
    row = max(had_event, key=lambda row: len(row["times_days"]))
    seen = [at_visit(row, k) for k in row["curve_at"] if 0 < k <= row["now"]]
    patient = [one for one in seen if rise(one) > 0][-1]
    figure = patient_figure(
        patient, title="One simulated patient: what was recorded, predicted, and what happened"
    )
    out.write_text(standalone(figure) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), HERE / "patient.svg")
