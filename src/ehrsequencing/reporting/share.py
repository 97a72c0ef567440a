"""A run → a folder that may leave the hospital: a copy without results and paths, checked, with a model card.

The folder has the model, its settings, its vocabulary and the card. It is made only of runs whose vocabulary holds no
code and no number of fewer than 11 training subjects (`vocabulary.min_subjects`).
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ehrsequencing.config import (
    EvaluationConfig,
    PretrainingConfig,
    SplitsConfig,
    TransferConfig,
    format_days,
)
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    Shareable,
    digest,
    refuse_overlap,
    sha256,
    write_bytes,
    write_settings,
    write_shareable,
)
from ehrsequencing.core.made_of import made_of
from ehrsequencing.core.outputs import (
    ARRAYS_FILE,
    BLEND_FILE,
    MANIFEST,
    NETWORK_FILES,
    RUN_NEEDS,
    SHARED_RUN,
    complete_folder,
    write_manifest,
)
from ehrsequencing.core.version import __version__, versions
from ehrsequencing.evaluation.context import question
from ehrsequencing.evaluation.results import read_result
from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.prediction.run import UPDATE, Run, saved_audit
from ehrsequencing.records.attrition import from_index
from ehrsequencing.records.outcomes import OUTCOMES_FILE
from ehrsequencing.records.people import PEOPLE
from ehrsequencing.records.prepared import REFERENCE
from ehrsequencing.reporting.wording import environment
from ehrsequencing.results.redaction import redact_people
from ehrsequencing.results.result_types import Shared, place_of

NOT_SHARED = "(not shared)"
_COPIED = (*sorted(NETWORK_FILES), "vocabulary.json", "vocabulary.safetensors")


def share_run(
    run_folder: Path, out: Path, *, license_id: str | None = None, overwrite: bool = False
) -> list[str]:
    """Write what of a run may be shared, with a model card.

    Args:
        run_folder: A finished run.
        out: Folder to make.
        license_id: Identifier of a licence, for the card.
        overwrite: Whether an earlier output there that nobody has changed is replaced.

    Returns:
        The names of the files.

    Raises:
        EhrseqError: The run keeps codes or numbers of fewer than 11 training subjects, or a file names a folder.
    """
    run = Run(run_folder)
    refuse_overlap(out, run_folder)
    fewest = {"vocabulary.min_subjects": run.study.vocabulary.min_subjects}
    if run.task.outcomes is not None:
        fewest["outcomes.min_subjects"] = run.task.outcomes.min_subjects
    for name, people in fewest.items():
        if people < SMALLEST_COUNT and not run.manifest.get("simulated"):
            raise EhrseqError(
                f"was prepared with {name}={people}, so it holds codes and numbers of so few people",
                where=str(run.folder),
                fix=f"prepare the data with {name}={SMALLEST_COUNT} and train again",
            )
    needed = set(RUN_NEEDS) if run.study.training.network else set(RUN_NEEDS) - NETWORK_FILES
    names = [name for name in _COPIED if name in needed or name not in NETWORK_FILES]
    if REFERENCE in run.manifest["files"] and REFERENCE not in run.altered:
        names.append(REFERENCE)
    copied = len(names)
    if run.has_trees:
        names += [BLEND_FILE, ARRAYS_FILE]
    if run.outcomes:
        names.append(OUTCOMES_FILE)
    if UPDATE in run.manifest["files"]:
        names.append(UPDATE)
    with complete_folder(out, SHARED_RUN, overwrite=overwrite) as folder:
        for name in names:
            write_bytes(folder / name, (run.folder / name).read_bytes())
        if run.training_people:
            write_shareable(folder / PEOPLE, redact_people(run.training_people))
        # the settings without what tells of the place: dates of extraction, names of sites, paths
        index = run.task.index
        if index.file is not None:
            index = index.model_copy(update={"file": NOT_SHARED})
        kept: dict[str, object] = {
            "task": run.task.model_copy(update={"index": index}),
            "data": run.study.data.model_copy(update={"extracted": None}),
            "splits": SplitsConfig(),
            "evaluation": EvaluationConfig(),
            "pretraining": PretrainingConfig(),
            "transfer": TransferConfig(),
        }
        write_settings(folder / "config.yaml", run.study.model_copy(update=kept))
        metrics = read_result(run.folder) or Shareable[Shared]()  # nothing tells of nobody
        for name in (CARD, APPLIED_CARD):
            card = partial(model_card, run=run, name=name, license_id=license_id)
            write_shareable(folder / name, metrics.drawn(card))
        _require_no_place(run, folder)
        required = [*sorted(needed), *names[copied:]]
        made = {"run": run.fingerprint, "evaluation": metrics.get("made_of")}
        facts = _manifest(run, folder) | {"made_of": digest(made_of(**made))}
        write_manifest(folder, facts, required=required)
        return sorted(path.name for path in folder.iterdir())


def _manifest(run: Run, folder: Path) -> dict[str, object]:
    """Entries of the manifest: digests of what is in the folder, and nothing else that patients decide."""
    vocabulary = run.vocabulary.digest
    answering = (
        folder / name for name in ("model.safetensors", BLEND_FILE, ARRAYS_FILE, "config.yaml")
    )
    own = digest([vocabulary, *(sha256(path) for path in answering if path.exists())])
    noted = run.manifest.get("import", {})  # its time zone would tell of the place
    shared = {"excluded", "task", "parameters", "simulated", "update"}
    return {
        **SHARED_RUN.facts,
        "versions": versions(),
        **{name: value for name, value in sorted(run.manifest.items()) if name in shared},
        "prepared": NOT_SHARED,
        "data": NOT_SHARED,
        "labels": NOT_SHARED,
        "vocabulary": vocabulary,
        "fingerprint": own,
        "import": {name: how for name, how in noted.items() if name == "known"},
    }


def _require_no_place(run: Run, folder: Path) -> None:
    """The last look: no text file names a folder of this machine.

    Raises:
        EhrseqError: One does; a task or a code holds it.
    """
    places = {
        str(run.folder.resolve().parent),
        str(Path.home()),
        run.manifest["prepared"],
        str(Path.cwd()),
    }
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors" or path.name == MANIFEST:
            continue
        text = path.read_text(encoding="utf-8")
        if any(len(place) > 4 and place in text for place in places if place != NOT_SHARED):
            raise EhrseqError(
                f"its {path.name} would name a folder of this machine",
                where=str(run.folder),
                fix="look for a path in the task file and in the names of codes",
            )


# ---- the cards -------------------------------------------------------------------------------------------------------

CARD, APPLIED_CARD = "README.md", "applied-model-card.xml"
_TEMPLATES = {CARD: "model-card.md.jinja", APPLIED_CARD: "applied-model-card.xml.jinja"}
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
_OF_CARD = ("c", "auc", "brier", "ipa", "oe")
LIMITS = "It is for research. It is no medical device, and its risks are associations, not effects of treatments."
TO_FILL_IN = (
    "Not stated. To be filled in by whoever is responsible for the model, before it is used."
)


def model_card(
    metrics: Shared | None, *, run: Run, name: str = CARD, license_id: str | None = None
) -> str:
    """A card as text. What no run can know says so, and whoever is responsible for the model fills it in.

    Args:
        metrics: Content of `metrics.json`; empty where the run has not been evaluated.
        run: The run.
        name: `CARD` for the hub's, or `APPLIED_CARD` for CHAI's applied model card, schema 0.2 (https://mc.chai.org).
        license_id: Identifier of a licence.
    """
    task, audit, trained_on = run.task, saved_audit(run.folder), "an unknown number of"
    asked = question(task)
    if task.index.file is not None:
        index = task.index.model_copy(update={"file": None, "first_visit": True})
        asked = question(task.model_copy(update={"index": index}))
        asked = asked.replace("the first visit", "index times that a file lists")
    audited = "The audit for leaks of the future has not been made."
    if audit is not None:
        audited = f"The audit for leaks of the future found {'a' if audit['leaks'] else 'no'} leak."
    people, meaning = _PEOPLE[metrics["split"] if metrics else "held_out"]
    rows, groups, landmark = list[dict[str, Any]](), list[dict[str, Any]](), 0.0
    if metrics:  # of the task's outcome at the main landmark; of groups at the main horizon
        main, cause = metrics["main"], metrics["causes"][0]
        landmark = main["landmark_days"] or 0.0
        place = (metrics["models"][0], cause, main["landmark_days"])
        trained_on = metrics["data"]["subjects"].get("train", trained_on)
        rows = [
            _card_row(row)
            for row in metrics["metrics"]
            if (row["model"], row["cause"], row["landmark_days"]) == place
            and row["metric"] in _OF_CARD
            and row["value"] is not None
            and row["horizon_days"]
        ]
        groups = [
            _card_row({**row, **row["oe"], "metric": "oe"})
            for row in metrics["subgroups"]
            if place_of(row) == (main["landmark_days"], cause, main["horizon_days"])
            and row["oe"]
            and row["oe"]["value"] is not None
        ]
    content = {
        "run": run,
        "license": license_id or "unknown",  # what hubs take for a licence that nobody has chosen
        "tags": TAGS,
        "question": asked,
        "limits": LIMITS,
        "ask": TO_FILL_IN,
        "trained_on": f"{trained_on:,}" if isinstance(trained_on, int) else trained_on,
        "parameters": run.manifest.get("parameters"),
        "audited": audited,
        "update": run.manifest.get("update"),
        "evaluated": bool(metrics),
        "people": people,
        "meaning": meaning,
        "where": from_index(landmark) if metrics else "",
        "rows": rows,
        "groups": groups,
        "horizons": ", ".join(map(format_days, task.horizons)),
        "version": __version__,
        "known": run.manifest.get("import", {}).get("known"),
        "fewest": run.study.vocabulary.min_subjects,
    }
    made = environment().overlay(autoescape=name == APPLIED_CARD)
    return made.get_template(_TEMPLATES[name]).render(content) + "\n"


def _card_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A metric with its names, and as CHAI writes it."""
    value = {"kind": "single", "value": row["value"]}
    if row["low"] is not None:
        ends = {"lower": row["low"], "upper": row["high"], "level": 95}
        value = {"kind": "estimate_ci", "estimate": row["value"], **ends}
    place = f"{row['cause']} by {format_days(row['horizon_days'])}"
    names = {"name": METRICS[row["metric"]].name, "place": place, "json": json.dumps(value)}
    return {**row, **names}
