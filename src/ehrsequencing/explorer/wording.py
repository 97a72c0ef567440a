"""The sentences of an explorer that depend on the run, and those of its help."""

from pathlib import Path
from typing import TYPE_CHECKING

from ehrsequencing.prediction.run import saved_audit
from ehrsequencing.reporting.wording import duration

if TYPE_CHECKING:
    from ehrsequencing.explorer.collect import Explorer

KEYS = (
    (("←", "→"), "prediction before, prediction after"),
    (("↑", "↓"), "code above, code below; in the list of patients, patient above and below"),
    (("x",), "strike the code or visit, or take it back"),
    (("u",), "undo"),
    (("j", "k"), "next patient, patient before"),
    (("/",), "search a patient, or a code"),
    (("?",), "this help"),
)
TERMS = (
    (
        "Risk",
        "The predicted probability of the event within the chosen time, given what was recorded until the "
        "prediction time. Competing events are taken into account.",
    ),
    (
        "Change",
        "In points of risk, since the prediction before. A triangle up is a higher risk, a triangle down a "
        "lower one.",
    ),
    (
        "Surprise",
        "One minus the predicted probability of what then happened. It is unknown where follow-up ended "
        "before.",
    ),
    (
        "Predicted and observed",
        "The observed risk is the cumulative incidence (Aalen–Johansen), which takes the end "
        "of follow-up and competing events into account.",
    ),
    (
        "Strike",
        "The rows of a code or a visit are left out, and the model is asked again. Visits stay at their "
        "times. The answer is an association in the model.",
    ),
)


def audit_words(folder: Path) -> str:
    """What the audit of a run says about the future of a record."""
    audit = saved_audit(folder)
    if audit is None:
        return "Whether anything saw the future has not been tested: run ehrseq audit."
    if audit["leaks"]:
        return f"The audit of this run found {audit['leaks']} leaks of the future: see its report."
    return "The audit of this run changed later visits, and no prediction moved (audit.json)."


def moment_words(landmarks: list[float]) -> list[str]:
    """Names of the moments at which a cohort is looked at: the latest, then the landmarks."""
    later = [f"{duration(days)} after the index" for days in landmarks if days]
    return ["at the latest prediction", "at the first prediction", *later]


def note(explorer: "Explorer") -> str:
    """What the page hides, and what it does not."""
    settings, gathered = explorer.settings, explorer.gathered
    shown = f"{len(gathered.patients):,}"
    some = (
        f"{shown} of {gathered.in_all:,}, drawn at random"
        if len(gathered.patients) < gathered.in_all
        else shown
    )
    if not settings.individuals:
        return f"Patients: {some}. Nobody's record is in this file; groups of fewer than 11 are hidden."
    hidden = (
        f" Codes of fewer than {settings.fewest} patients are shown as one."
        if settings.fewest > 1
        else ""
    )
    return (
        f"Patients: {some}. This file holds records of individual people under pseudonyms, in days since the first "
        f"visit.{hidden} Treat it as patient data."
    )
