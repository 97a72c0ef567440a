"""The `README.md` of a shared model: what it predicts, on whom it was trained, how well, and what is inside.

Its head is the YAML that model hubs read. Counts of people are those of `metrics.json`: rounded, and hidden below 11.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from ehrsequencing.config import TaskConfig, format_days
from ehrsequencing.core.version import __version__
from ehrsequencing.evaluation.comparison import OURS
from ehrsequencing.evaluation.context import question
from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.prediction.run import Run

TAGS = (
    "ehrsequencing",
    "survival-analysis",
    "electronic-health-records",
    "meds",
    "competing-risks",
)
_OF_CARD = ("c", "auc", "brier", "ipa", "oe")
_LICENCE_UNKNOWN = "unknown"  # what hubs take for a licence that nobody has chosen


def model_card(
    run: Run, metrics: Mapping[str, Any] | None, audited: str, *, license_id: str | None = None
) -> str:
    """The text of the card.

    Args:
        run: The run.
        metrics: Content of `metrics.json`, where the run has been evaluated.
        audited: A sentence on the audit.
        license_id: Identifier of a licence.
    """
    rows = _rows(metrics)
    front = _front_matter(run.task.name, rows, license_id)
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
    fewest = run.study.vocabulary.min_subjects
    people = None if metrics is None else metrics["data"]["subjects"].get("train")
    trained_on = (
        "an unknown number of"
        if people is None
        else f"{people:,}"
        if isinstance(people, int)
        else people
    )
    parameters = run.manifest.get("parameters")
    size = f" It has {parameters:,} parameters." if parameters else ""
    return f"""---
{head}---

# {run.task.name}

{_question(run.task)}

This model reads a patient's record in [MEDS](https://medical-event-data-standard.github.io) format and gives the \
risk of each event by each horizon at every prediction time. It is for research. It is no medical device, and its \
risks are associations, not effects of treatments.

## Training

It was trained on the records of {trained_on} people.{size} {audited}

## Accuracy

{_accuracy(metrics, rows)}

## Use

```
ehrseq predict THIS_FOLDER MEDS_DATA --at last --out risks.csv
```

This needs ehrsequencing {__version__} or newer. Check its calibration on your own patients before you rely on it: \
`ehrseq evaluate THIS_FOLDER --data MEDS_DATA --out RESULTS`.

## What is inside

- Names of codes that at least {fewest} training patients had, and codes that the task names.
- Quantiles of laboratory and other numbers, and the edges of the time grid. Each comes from a group of at least \
{fewest} patients.
- Weights that were fitted to patients. No record can be read from them, but with much effort somebody who has a \
person's record may find out whether it was used. Ask those who are responsible for the data before you publish them.

Ids, dates, predictions, results of single people, exact counts, the training history, checkpoints, paths, the name of \
the data set, sites and dates of extraction are not in the folder.
"""


def _front_matter(
    name: str, rows: list[Mapping[str, Any]], license_id: str | None
) -> dict[str, Any]:
    head: dict[str, Any] = {
        "license": license_id or _LICENCE_UNKNOWN,
        "library_name": "ehrsequencing",
        "tags": list(TAGS),
    }
    if not rows:  # hubs expect values for each metric that is listed
        return head
    results = [
        {
            "type": row["metric"],
            "name": f"{METRICS[row['metric']].name}, {_place(row)}",
            "value": row["value"],
        }
        for row in rows
    ]
    listed = {row["metric"] for row in rows}
    head["metrics"] = [metric for metric in _OF_CARD if metric in listed]
    found = {
        "task": {"type": "survival-analysis", "name": name},
        "dataset": {"name": "held-out patients of the training data", "type": "meds"},
        "metrics": results,
    }
    head["model-index"] = [{"name": name, "results": [found]}]
    return head


def _question(task: TaskConfig) -> str:
    if task.index.file is None:
        return question(task)
    index = task.index.model_copy(update={"file": None, "first_visit": True})
    text = question(task.model_copy(update={"index": index}))
    return text.replace("the first visit", "index times that a file lists")


def _rows(metrics: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The metrics of this model for the task's outcome at the first landmark."""
    if metrics is None or not metrics.get("landmarks_days"):
        return []
    model = metrics["models"][0] if metrics.get("models") else OURS
    place = (model, metrics["causes"][0], metrics["landmarks_days"][0])
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


def _accuracy(metrics: Mapping[str, Any] | None, rows: list[Mapping[str, Any]]) -> str:
    if metrics is None:
        return "Nobody has evaluated this model."
    if not rows:
        return "Too few people had the event to judge it."
    landmark = metrics["landmarks_days"][0]
    where = f"{format_days(landmark)} after the index" if landmark else "at the index"
    lines = [
        f"On held-out people, predicted {where}. A dash stands where too few events allow an interval.",
        "",
        "| metric | event and horizon | value | 95 % interval |",
        "|---|---|---|---|",
    ]
    for row in rows:
        interval = "–" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
        name = METRICS[row["metric"]].name
        lines.append(f"| {name} | {_place(row)} | {row['value']:.3f} | {interval} |")
    return "\n".join(lines)
