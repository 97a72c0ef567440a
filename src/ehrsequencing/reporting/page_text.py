"""The report in plain words: what, for whom, when, how well, compared with what, and what not to use it for."""

from collections.abc import Mapping, Sequence
from typing import Any

from ehrsequencing.disclosure.counts import excluded
from ehrsequencing.reporting.scores import Scores
from ehrsequencing.reporting.wording import duration, listed

# What TRIPOD+AI (2024, item in brackets) and PROBAST ask and only people can answer.
HUMAN_ITEMS = {
    "Intended use and users (3b, 27)": "who acts on the risk, in which decision, at which moment of care",
    "Health inequalities (3c, 14)": "in whom errors would do most harm, and who judged the results there",
    "Protocol and registration (18c, 18d)": "where the plan of this study can be read, and what was changed",
    "Ethics approval (17)": "committee, reference, or why none is needed",
    "Data governance (5, 18e)": "legal basis, licence, data use agreement, who may read this report",
    "Setting and treatments (6a, 6c)": "where care was given, and which treatments may have changed the outcome",
    "Clinical review of the codes (8, 9)": "who confirmed that outcome, index and censoring codes mean what is claimed",
    "Outcome assessment (8b, PROBAST 3)": "whether it was judged in the same way in everyone, blind to the predictors",
    "Predictors at hand in use (PROBAST 2)": "whether every input is recorded in time where the model would be used",
    "Reason for the cohort's size (10)": "why so many subjects are enough for the decision in question",
    "External validation (12, PROBAST 1)": "another hospital, country or period, by people who did not build the model",
    "Monitoring (27c)": "how drift and harm will be noticed in use, and who can switch the model off",
    "Patient and public involvement (19)": "who was asked, and what changed",
    "Responsible person (18a, 18b)": "name and contact, funding, conflicts of interest",
}
# How many settings were tried before these: no run can know it, so people tell it (TRIPOD+AI 12c).
TRIALS_ITEM = ("Tuning trials (12c)", "how many settings were tried on these subjects before the ones that are shown")
# What software could fill: (item, TRIPOD+AI number, section of the page, key of metrics.json that it needs).
FILLED_ITEMS = (
    ("Target, eligibility, time zero, horizons", "4, 6b, 8a", "question", "task"),
    ("Flow of participants", "20a", "cohort", "attrition"),
    ("No predictor from after the prediction", "9b", "checks", "checks"),
    ("Separate data for fitting, choosing, judging", "12a", "checks", "checks"),
    ("Events per parameter", "10", "checks", "checks"),
    ("Missing and unknown inputs", "11", "inputs", "inputs"),
    ("Difference between fitting and judging data", "16, 20c", "inputs", "inputs"),
    ("Discrimination, with intervals", "12e, 23a", "accuracy", "metrics"),
    ("Calibration, with intervals", "12e, 23a", "calibration", "calibration"),
    ("Clinical utility", "12e", "utility", "decision"),
    ("Performance in subgroups", "14, 23a", "subgroups", "subgroups"),
    ("Recalibration", "12f, 24", "recalibration", "recalibration"),
    ("Censoring and follow-up", "8a, 12e", "censoring", "censoring"),
    ("Instability", "12e", "instability", "instability"),
    ("Model, settings, seeds, versions", "12c, 22", "card", "config"),
    ("Limitations", "26", "limits", "warnings"),
)


def checklist(m: Mapping[str, Any]) -> tuple[list[tuple[str, str, str, bool]], dict[str, str]]:
    """What software fills, as (item, number, section, whether it is there); and what only people can tell."""
    filled = [(*item[:3], bool(m.get(item[3]))) for item in FILLED_ITEMS]
    if (m.get("checks") or {}).get("tuning_trials") is None:
        return filled, HUMAN_ITEMS | dict([TRIALS_ITEM])
    return [*filled, ("Tuning trials", "12c", "card", True)], HUMAN_ITEMS


def definition(task: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    """The task in words: (what, words, codes)."""
    index, censoring = task["index"], task.get("censoring") or {}
    after = f", plus {duration(index['after'])}" if index.get("after") else ""
    if index.get("code"):
        which = "each" if index.get("which") == "every" else "the first"
        start: tuple[str, list[str]] = (f"{which} of these codes{after}", index["code"])
    elif index.get("age"):
        start = (f"the day of age {duration(index['age'])}{after}", [])
    else:
        fixed = f"the date {index['date']}" if index.get("date") else "the end of the first visit"
        start = (f"{fixed}{after}", [])
    rows = [("Time zero (index)", *start)]
    rows += [(f"Outcome: {name}", "the first of these codes", codes) for name, codes in task["outcome"].items()]
    competing = (task.get("competing") or {}).items()
    rows += [(f"Competing: {name}", "ends follow-up as an event of its own", codes) for name, codes in competing]
    if censoring.get("code"):
        rows.append(("End of follow-up", "the first of these codes", censoring["code"]))
    elif censoring.get("date"):
        rows.append(("End of follow-up", f"the date {censoring['date']}", []))
    else:
        last = "the end of the data set" if censoring.get("dataset_end") else "the subject's last recorded event"
        rows.append(("End of follow-up", last, []))
    rows.append(("Horizons", listed(duration(h) for h in task["horizons"]) + " after each prediction", []))
    later = [duration(x) for x in task.get("landmarks") or [0.0] if x]
    at_once = 0.0 in (task.get("landmarks") or [0.0])
    compared = ["the index"] * at_once + (
        [f"{listed(later)} after {'it' if at_once else 'the index'}"] if later else []
    )
    rows.append(("Compared at", ", and ".join(compared), []))
    if task.get("blanking"):
        rows.append(("Blanking", f"the first {duration(task['blanking'])} after each prediction do not count", []))
    rows.append(("Known to the model", "only what is stamped at or before the moment of prediction", []))
    return rows


def summary(m: Mapping[str, Any], table: Scores, shown: Mapping[Any, str]) -> list[tuple[str, str]]:
    """What a reader must take away: (heading, text)."""
    split, cause = m["split"], m["causes"][0]
    subjects = {s: shown["subjects", s] for s in m["data"]["subjects"] if ("subjects", s) in shown}
    trained = f"learned from {subjects['train']} subjects and " if split != "train" and "train" in subjects else ""
    rivals = m["causes"][1:]
    others = f" A competing event ({listed(rivals, 'or')}) may come first." if rivals else ""
    name = m["data"].get("name")
    external = m.get("external")
    data = f"Data: {name}. " if name else ""
    given = "for each horizon" if m["horizons_days"] else "per visit"
    later = [duration(row["landmark_days"]) for row in m["at_risk"] if row["landmark_days"]]
    moments = ["at the index"] * any(row["landmark_days"] == 0 for row in m["at_risk"])
    moments += [f"{listed(later)} after the index"] if later else []
    horizons = f" for {listed(duration(h) for h in m['horizons_days'])} ahead" if m["horizons_days"] else " per visit"
    apart = "" if external is None else " None of it was seen in training: this is an external validation."
    judged = f"{subjects.get(split, 'the')} {_split_name(split)} subjects"
    events = shown.get(("events", split, cause), "an unknown number").replace("≥", "at least ")
    return [
        ("What was predicted", f"{m['question']} The answer is a probability, {given}.{others}"),
        (
            "For whom",
            f"{data}The model {trained}was judged on {judged}, of whom {events} had the event ({cause}) in follow-up."
            f"{apart}",
        ),
        (
            "When",
            f"Asked {listed(moments) if moments else 'at every prediction time'},{horizons}. Those who had left before "
            "a moment do not count at it; what was recorded later is not used.",
        ),
        ("How well", table.how_well()),
        ("Compared with what", table.compared()),
        ("Not to be used for", table.not_for()),
    ]


def _split_name(split: str) -> str:
    return {"held_out": "held-out", "train": "training", "external": "external"}.get(split, split)


def limits(m: Mapping[str, Any], table: Scores) -> list[str]:
    """What these numbers do not say."""
    by_date = (m["config"].get("splits") or {}).get("by") == "date"
    apart = "later subjects of the same source" if by_date else "other subjects of the same source, drawn alike"
    apart = "one other data set" if m.get("external") else apart
    limits = [
        f"The numbers come from {apart}. They say nothing certain about another hospital, country or coding practice.",
        f"Risks are for at most {duration(max(m['horizons_days'] or [0.0]))} ahead. Nothing beyond that was tested.",
        "A code that is absent was not recorded; that does not mean that the condition was absent.",
        "What raises a predicted risk need not cause the event, and changing it need not change the outcome.",
        "Intervals show the chance in drawing these subjects, not the chance in training the model again.",
    ]
    if len(m["causes"]) > 1:
        limits.append(
            f"Risks of {listed(m['causes'])} are cumulative incidences: the chance of each happening first, in a world "
            "where the others also happen."
        )
    if table.undefined:
        limits.append(
            f"{table.undefined} of {len(m['metrics'])} metric values are undefined: too few subjects or events, or a "
            "model that gives everyone the same risk. They are shown as undefined, never as a guess."
        )
    return limits


def flow(steps: Sequence[Mapping[str, Any]], shown: Mapping[Any, str]) -> list[dict[str, str]]:
    """Steps of the cohort flow with their published counts."""
    return [
        {
            "step": step["step"],
            "subjects": shown["flow", i],
            "excluded": shown["out", i] if i and excluded(steps, i) else "",
            "reason": step.get("reason") or "",
        }
        for i, step in enumerate(steps)
    ]
