"""The cards of a model that is shared: the hub's `README.md`, and CHAI's applied model card as XML.

The second follows schema 0.2 of the Coalition for Health AI (https://mc.chai.org). What no run can know says so, and
whoever is responsible for the model fills it in.
"""

import json
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as xml

import yaml

from ehrsequencing.config import TaskConfig, format_days
from ehrsequencing.core.version import __version__
from ehrsequencing.evaluation.context import question
from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.prediction.run import Run
from ehrsequencing.results.result_types import MetricRow, Shared

CARD, APPLIED_CARD = "README.md", "applied-model-card.xml"
APPLIED_SCHEMA = "https://mc.chai.org/v0.2/schema.xsd"
TAGS = (
    "ehrsequencing",
    "survival-analysis",
    "electronic-health-records",
    "meds",
    "competing-risks",
)
# split → whose numbers they are, and what that means
_PEOPLE = {
    "held_out": ("held-out people", "People whom neither training nor tuning has seen."),
    "tuning": ("tuning people", "People who decided when training stopped: numbers are too good."),
    "train": ("training people", "People on whom the model was trained: numbers are too good."),
}
# what the import of the training data took of several dates of a row
_KNOWN = {
    known: f" Import them with `import.known={known}`, as the training data was: {what}."
    for known, what in (
        ("latest", "a row stands at the time at which its content was known"),
        ("earliest", "a row stands at the earliest of its dates"),
    )
}
_OF_CARD = ("c", "auc", "brier", "ipa", "oe")
_LICENCE_UNKNOWN = "unknown"  # what hubs take for a licence that nobody has chosen
LIMITS = "It is for research. It is no medical device, and its risks are associations, not effects of treatments."
TO_FILL_IN = (
    "Not stated. To be filled in by whoever is responsible for the model, before it is used."
)


def model_card(
    run: Run, metrics: Shared | None, audited: str, *, license_id: str | None = None
) -> str:
    """The text of the card.

    Args:
        run: The run.
        metrics: Content of `metrics.json`, where the run has been evaluated.
        audited: A sentence on the audit.
        license_id: Identifier of a licence.
    """
    rows = _rows(metrics)
    front = {
        "license": license_id or _LICENCE_UNKNOWN,
        "library_name": "ehrsequencing",
        "tags": list(TAGS),
    }
    head = yaml.safe_dump(front, sort_keys=False)
    fewest = run.study.vocabulary.min_subjects
    parameters, imported = run.manifest.get("parameters"), run.manifest.get("import", {})
    size = f" It has {parameters:,} parameters." if parameters else ""
    return f"""---
{head}---

# {run.task.heading}

{_question(run.task)}

This model reads a patient's record in [MEDS](https://medical-event-data-standard.github.io) format and gives the \
risk of each event by each horizon at every prediction time. {LIMITS}

## Training

It was trained on the records of {_trained_on(metrics)} people.{size} {audited}{_updated(run)}

## Accuracy

{_accuracy(metrics, rows)}

## Use

```
ehrseq predict THIS_FOLDER MEDS_DATA --at last --out risks.csv
```

This needs ehrsequencing {__version__} or newer. Check its calibration on your own patients before you rely on it: \
`ehrseq evaluate THIS_FOLDER --data MEDS_DATA --out RESULTS`.{_KNOWN.get(imported.get("known", ""), "")}

## What is inside

- Names of codes that at least {fewest} training patients had, and codes that the task names.
- Quantiles of laboratory and other numbers, and the edges of the time grid. Each comes from a group of at least \
{fewest} patients.
- Weights that were fitted to patients. No record can be read from them, but with much effort somebody who has a \
person's record may find out whether it was used. Ask those who are responsible for the data before you publish them.

Ids, dates, predictions, results of single people, exact counts, the training history, checkpoints, paths, the name of \
the data set, sites and dates of extraction are not in the folder.
"""


def _updated(run: Run) -> str:
    """What `ehrseq update` changed, where it did."""
    facts = run.manifest.get("update")
    if facts is None:
        return ""
    causes = "; ".join(
        f"{cause}: {facts[cause]['method']}, slope {facts[cause]['slope']}, {facts[cause]['people_with_event']}"
        " people with the event"
        for cause in run.task.causes
    )
    return (
        f" It was then updated for {facts['people']} people of another hospital, by a closed test ({causes})."
        " Numbers below are of the run before."
    )


def _question(task: TaskConfig) -> str:
    if task.index.file is None:
        return question(task)
    index = task.index.model_copy(update={"file": None, "first_visit": True})
    text = question(task.model_copy(update={"index": index}))
    return text.replace("the first visit", "index times that a file lists")


def _rows(metrics: Shared | None) -> list[MetricRow[int | str]]:
    """The metrics of this model for the task's outcome at the main landmark."""
    if metrics is None:
        return []
    place = (metrics["models"][0], metrics["causes"][0], metrics["main"]["landmark_days"])
    return [
        row
        for row in metrics["metrics"]
        if (row["model"], row["cause"], row["landmark_days"]) == place
        and row["metric"] in _OF_CARD
        and row["value"] is not None
        and row["horizon_days"]
    ]


def _place(row: Mapping[str, Any]) -> str:
    return f"{row['cause']} by {format_days(row['horizon_days'])}"


def _accuracy(metrics: Shared | None, rows: list[MetricRow[int | str]]) -> str:
    if metrics is None:
        return "Nobody has evaluated this model."
    if not rows:
        return "Too few people had the event to judge it."
    landmark = metrics["main"]["landmark_days"]
    where = f"{format_days(landmark)} after the index" if landmark else "at the index"
    people, meaning = _people(metrics)
    lines = [
        f"On {people}, predicted {where}. {meaning} A dash stands where too few events allow an interval.",
        "",
        "| metric | event and horizon | value | 95 % interval |",
        "|---|---|---|---|",
    ]
    for row in rows:
        interval = "–" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
        name = METRICS[row["metric"]].name
        lines.append(f"| {name} | {_place(row)} | {row['value']:.3f} | {interval} |")
    return "\n".join(lines)


def _people(metrics: Shared | None) -> tuple[str, str]:
    """Whose numbers they are, and what that means."""
    return _PEOPLE["held_out" if metrics is None else metrics["split"]]


def _trained_on(metrics: Shared | None) -> str:
    people = None if metrics is None else metrics["data"]["subjects"].get("train")
    if people is None:
        return "an unknown number of"
    return f"{people:,}" if isinstance(people, int) else str(people)


# ---- CHAI's applied model card --------------------------------------------------------------------------------------


def applied_model_card(run: Run, metrics: Shared | None, audited: str) -> str:
    """The card as XML; arguments as of `model_card`."""
    rows, groups = _rows(metrics), _group_rows(metrics)
    people = _people(metrics)
    question = _question(run.task)
    discrimination = [row for row in rows if row["metric"] in ("c", "auc")]
    calibration = [row for row in rows if row["metric"] not in ("c", "auc")]
    content = {
        "BasicInfo": {
            "ModelName": run.task.heading,
            "ModelDeveloper": TO_FILL_IN,
            "DeveloperContact": TO_FILL_IN,
        },
        "ReleaseInfo": {
            "ReleaseStage": "Research",
            "ReleaseDate": TO_FILL_IN,
            "ReleaseVersion": f"made with ehrsequencing {__version__}",
            "GlobalAvailability": TO_FILL_IN,
        },
        "ModelSummary": {
            "Summary": f"{question} The model reads a patient's record in MEDS format. {LIMITS}",
            "Keywords": [("Keyword", tag) for tag in TAGS],
        },
        "UsesAndDirections": {
            "IntendedUseAndWorkflow": TO_FILL_IN,
            "PrimaryIntendedUsers": TO_FILL_IN,
            "HowToUse": "ehrseq predict THIS_FOLDER MEDS_DATA --at last --out risks.csv",
            "TargetedPatientPopulation": question,
            "CautionedOutOfScopeSettings": (
                "Anybody outside of this population, and any place where its calibration was not checked."
            ),
        },
        "Warnings": {
            "KnownRisksAndLimitations": f"{LIMITS} {audited}",
            "KnownBiasesOrEthicalConsiderations": TO_FILL_IN,
            "ClinicalRiskLevel": TO_FILL_IN,
        },
        "TrustIngredients": {
            "AISystemFacts": {
                "OutcomesAndOutputs": (
                    f"The risk of {', '.join(run.task.causes)} by "
                    f"{', '.join(map(format_days, run.task.horizons))}, at every prediction time."
                ),
                "ModelType": "A transformer over codes, visits and time, with hazards as its output.",
                "InputDataSource": "Electronic health records in MEDS format.",
                "OutputAndInputDataTypes": (
                    "Input: codes, numbers and times of a record. Output: probabilities."
                ),
                "DevelopmentDataCharacterization": (
                    f"The records of {_trained_on(metrics)} people. The data set is not named here."
                ),
                "BiasMitigationApproaches": "None in training. Accuracy is reported by group.",
                "OngoingMaintenance": TO_FILL_IN,
            },
            "TransparencyInformation": {
                "FundingSource": TO_FILL_IN,
                "StakeholdersConsulted": TO_FILL_IN,
            },
        },
        "KeyMetrics": {
            "UsefulnessUsabilityEfficacy": _key_metric(
                "To rank people by risk", [(_label(row), row) for row in discrimination], people
            ),
            "FairnessEquity": _key_metric(
                "As many events as expected in every group",
                [(f"{_label(row)}, {row['group']} {row['level']}", row) for row in groups],
                people,
            ),
            "SafetyReliability": _key_metric(
                "Risks that are right on average",
                [(_label(row), row) for row in calibration],
                people,
            ),
        },
        "Resources": {
            "PeerReviewedPublications": TO_FILL_IN,
            "PatientConsentOrDisclosure": TO_FILL_IN,
        },
        "Bibliography": TO_FILL_IN,
    }
    root = xml.Element("AppliedModelCard", xmlns=APPLIED_SCHEMA)
    _append(root, list(content.items()))
    xml.indent(root)
    text = xml.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _append(parent: xml.Element, entries: list[tuple[str, Any]]) -> None:
    """Add elements by name, in order; an entry is a text or more entries."""
    for name, content in entries:
        child = xml.SubElement(parent, name)
        if isinstance(content, str):
            child.text = content
        else:
            _append(child, list(content.items()) if isinstance(content, Mapping) else content)


def _key_metric(
    goal: str, rows: list[tuple[str, Mapping[str, Any]]], people: tuple[str, str]
) -> dict[str, object]:
    """One of the three key metrics; the schema wants a result also where there is none."""
    results = [("MetricResult", {"Label": label, "ValueJson": _value(row)}) for label, row in rows]
    if not rows:
        results = [("MetricResult", {"Label": "Not measured", "ValueJson": "null"})]
    return {
        "MetricGoal": goal,
        "Results": results,
        "Interpretation": TO_FILL_IN,
        "TestType": f"Retrospective, on {people[0]} of the same source",
        "TestingDataDescription": people[1],
        "ValidationProcessAndJustification": TO_FILL_IN,
    }


def _value(row: Mapping[str, Any]) -> str:
    if row["low"] is None:
        return json.dumps({"kind": "single", "value": row["value"]})
    limits = {"estimate": row["value"], "lower": row["low"], "upper": row["high"], "level": 95}
    return json.dumps({"kind": "estimate_ci", **limits})


def _label(row: Mapping[str, Any]) -> str:
    return f"{METRICS[row['metric']].name}, {_place(row)}"


def _group_rows(metrics: Shared | None) -> list[dict[str, object]]:
    """O/E of the task's outcome in each group, at the main landmark and horizon."""
    if metrics is None:
        return []
    main = metrics["main"]
    place = (metrics["causes"][0], main["landmark_days"], main["horizon_days"])
    return [
        {**row, **row["oe"], "metric": "oe"}
        for row in metrics["subgroups"]
        if (row["cause"], row["landmark_days"], row["horizon_days"]) == place
        and row["oe"] is not None
        and row["oe"]["value"] is not None
    ]
