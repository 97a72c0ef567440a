"""The `README.md` of a shared model: what it predicts, on whom it was trained, how well, and what was removed.

Its head is the YAML that model hubs read. Counts of people are rounded, and hidden below 11.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from ehrsequencing.config import TaskConfig, format_days
from ehrsequencing.core.minimum_counts import SMALLEST_COUNT
from ehrsequencing.core.version import __version__
from ehrsequencing.evaluation.comparison import OURS
from ehrsequencing.evaluation.context import question
from ehrsequencing.metrics.registry import METRICS

TAGS = (
    "ehrsequencing",
    "survival-analysis",
    "electronic-health-records",
    "meds",
    "competing-risks",
)
_TOLD = ("c", "auc", "brier", "ipa", "oe")  # the metrics of the card
_LICENCE_UNKNOWN = "unknown"  # what hubs take for a licence that nobody has chosen


@dataclass(frozen=True)
class Facts:
    """What a card tells.

    Attributes:
        task: The task.
        name: Title.
        people: Training subjects; None where nobody knows, or a text where the count is hidden.
        parameters: Of the network.
        metrics: Content of `metrics.json`, where the run has been evaluated.
        audit: A sentence on the audit.
        removed: One line for each thing that was left out or changed.
        enough: Training subjects that each stored number comes from at least.
        license: An identifier of a licence, or nothing.
    """

    task: TaskConfig
    name: str
    people: int | str | None
    parameters: int | None
    metrics: Mapping[str, Any] | None
    audit: str
    removed: Sequence[str]
    enough: int
    license: str | None = None


def rounded(count: int | str | None) -> str:
    """A count of people for strangers.

    >>> rounded(7), rounded(48), rounded(1234), rounded("<11"), rounded(None)
    ('fewer than 11', 'about 50', 'about 1,200', 'fewer than 11', 'an unknown number of')
    """
    if count is None:
        return "an unknown number of"
    if isinstance(count, str) or count < SMALLEST_COUNT:
        return f"fewer than {SMALLEST_COUNT}"
    step = 10 ** max(1, len(str(count)) - 2)
    return f"about {max(round(count / step), 1) * step:,}"


def model_card(facts: Facts) -> str:
    """The text of the card."""
    head = yaml.safe_dump(_front_matter(facts), sort_keys=False, allow_unicode=True)
    parts = [
        f"---\n{head}---\n\n# {facts.name}",
        f"{_question(facts.task)}\n\nThis model reads a patient's record in [MEDS](https://medical-event-data-standard."
        "github.io) format and gives the risk of each event by each horizon at every prediction time. It is for "
        "research. It is no medical device, and its risks are associations, not effects of treatments.",
        f"## Training\n\n{_training(facts)}",
        f"## Accuracy\n\n{_accuracy(facts)}",
        "## Use\n\n```\nehrseq predict THIS_FOLDER MEDS_DATA --at last --out risks.csv\n"
        "```\n\n"
        f"This needs ehrsequencing {__version__} or newer. Check its calibration on your own patients before you rely "
        "on it: `ehrseq evaluate THIS_FOLDER --data MEDS_DATA --out RESULTS`.",
        "## What was removed\n\n" + "\n".join(f"- {line}" for line in facts.removed),
        "## What is still inside\n\n" + "\n".join(f"- {line}" for line in _left(facts)),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(facts: Facts) -> dict[str, Any]:
    head: dict[str, Any] = {
        "license": facts.license or _LICENCE_UNKNOWN,
        "library_name": "ehrsequencing",
        "tags": list(TAGS),
    }
    results = [
        {
            "type": row["metric"],
            "name": f"{METRICS[row['metric']].name}, {_place(row)}",
            "value": row["value"],
        }
        for row in _rows(facts)
    ]
    if results:  # hubs expect values for each metric that is listed
        head["metrics"] = [name for name in _TOLD if name in {row["type"] for row in results}]
        data = {"name": "held-out patients of the training data", "type": "meds"}
        found = {
            "task": {"type": "survival-analysis", "name": facts.name},
            "dataset": data,
            "metrics": results,
        }
        head["model-index"] = [{"name": facts.name, "results": [found]}]
    return head


def _question(task: TaskConfig) -> str:
    if task.index.file is not None:
        task = task.model_copy(
            update={"index": task.index.model_copy(update={"file": None, "first_visit": True})}
        )
        return question(task).replace("the first visit", "index times that a file lists")
    return question(task)


def _training(facts: Facts) -> str:
    size = f" It has {facts.parameters:,} parameters." if facts.parameters else ""
    return f"It was trained on the records of {rounded(facts.people)} people.{size} {facts.audit}"


def _rows(facts: Facts) -> list[Mapping[str, Any]]:
    """The metrics of this model for the task's outcome at the first landmark."""
    m = facts.metrics
    if m is None or not m.get("landmarks_days"):
        return []
    place = (m["models"][0] if m.get("models") else OURS, m["causes"][0], m["landmarks_days"][0])
    rows = [
        row for row in m["metrics"] if (row["model"], row["cause"], row["landmark_days"]) == place
    ]
    return [
        row
        for row in rows
        if row["metric"] in _TOLD and row["value"] is not None and row["horizon_days"]
    ]


def _place(row: Mapping[str, Any]) -> str:
    return f"{row['cause']} by {format_days(row['horizon_days'])}"


def _accuracy(facts: Facts) -> str:
    if facts.metrics is None:
        return "Nobody has evaluated this model."
    lines = ["| metric | event and horizon | value | 95 % interval |", "|---|---|---|---|"]
    for row in _rows(facts):
        limits = "–" if row["low"] is None else f"{_number(row, 'low')} to {_number(row, 'high')}"
        lines.append(
            f"| {METRICS[row['metric']].name} | {_place(row)} | {_number(row, 'value')} | {limits} |"
        )
    if len(lines) == 2:
        return "Too few people had the event to judge it."
    landmark = facts.metrics["landmarks_days"][0]
    where = f"{format_days(landmark)} after the index" if landmark else "at the index"
    told = f"On held-out people, predicted {where}. A dash stands where too few events allow an interval."
    return told + "\n\n" + "\n".join(lines)


def _number(row: Mapping[str, Any], name: str) -> str:
    metric = METRICS[row["metric"]]
    return f"{row[name]:.{metric.digits + (2 if metric.scale == 100 else 0)}f}"


def _left(facts: Facts) -> list[str]:
    return [
        f"Names of codes that at least {SMALLEST_COUNT} training patients had, and codes that the task names.",
        "Quantiles of laboratory and other numbers, and the edges of the time grid. Each comes from a group of at "
        f"least {facts.enough} patients.",
        "Weights that were fitted to patients. No record can be read from them, but with much effort somebody who has "
        "a person's record may find out whether it was used. Ask those who are responsible for the data before you "
        "publish them.",
    ]
