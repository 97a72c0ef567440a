"""`update`: a run for another hospital, by the little that its events allow to learn."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT, nearest, rounded, shareable_count
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    read_json,
    refuse_overlap,
    write_bytes,
    write_json,
    write_settings,
)
from ehrsequencing.core.outputs import (
    HISTORY,
    RUN,
    complete_folder,
    refuse_existing,
    write_manifest,
)
from ehrsequencing.evaluation.external import External, read_external
from ehrsequencing.metrics.hazards import exposure, horizon_nll
from ehrsequencing.prediction.reference import reference_risks
from ehrsequencing.prediction.run import UPDATE, Run
from ehrsequencing.predictors.recalibration import (
    CauseUpdate,
    Labels,
    fit_recalibration,
    fit_update,
    largest_allowed,
)
from ehrsequencing.records.people import (
    PEOPLE,
    measures_to_keep,
    quantiles_of_risks,
    some_people,
)
from ehrsequencing.records.prepared import REFERENCE, draw_reference
from ehrsequencing.records.vocabulary_fit import carriers_to_keep

SMALL = 300  # people, below which before and after are cross-fitted
THIRDS = 3


def update(
    opened: Run,
    source: Path,
    out: Path,
    *,
    where: str,
    task: TaskConfig | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Write a run updated for the people of MEDS data; see `ehrsequencing.update`.

    Raises:
        EhrseqError: Fewer than 11 people have the event of interest, or run, task or data cannot be used.
    """
    refuse_existing(out, RUN, overwrite=overwrite)
    if opened.is_visit_head or opened.task.outcomes is not None:
        raise EhrseqError(
            "answers for visits or for every outcome, and is not updated",
            where=str(opened.folder),
            fix="name a run of the horizon head with the task's causes alone",
        )
    if task is not None:
        # ask the run another hospital's form of its question
        run = opened
        for name in ("causes", "horizons"):
            if getattr(task, name) != getattr(run.task, name):
                raise EhrseqError(
                    f"has other {name} than the run, which has {getattr(run.task, name)}",
                    where=f"task {task.name}",
                    fix="change index, codes and end of follow-up alone",
                )
        run.task = task.model_copy(update={"name": run.task.name})
        run.study = run.study.model_copy(update={"task": run.task})
        run.manifest["excluded"] = [*run.manifest["excluded"], *(task.censoring.code or ())]
    refuse_overlap(out, source, opened.folder)
    external = read_external(opened, source, progress=progress)
    progress("predicting")
    here = _Local(opened, external)
    people = [here.labels.people(e) for e in range(len(here.causes))]
    if people[0] < SMALLEST_COUNT:
        raise EhrseqError(
            f"fewer than {SMALLEST_COUNT} people have {here.causes[0]} after a landmark",
            where=where,
            fix="collect more follow-up; until then judge the run with ehrseq evaluate --data",
        )
    progress("choosing the update")
    largest = [largest_allowed(nearest(n)) for n in people]
    everybody = np.ones(len(here.labels.cause), dtype=bool)
    chosen = here.fitted(everybody, largest)
    facts = _facts(here, chosen, people, here.before_and_after(largest))
    _write(opened, out, external, chosen, facts, overwrite=overwrite)


class _Local:
    """The run's log-hazards and what happened, at the landmarks of the other hospital's people."""

    def __init__(self, run: Run, external: External) -> None:
        records, self.run, self.causes = external.population.records, run, run.task.causes
        rows, predictor = records.rows, run.predictor
        at_landmark = np.any([rows.at_landmark(days) for days in run.task.landmarks], axis=0)
        chosen = np.flatnonzero(at_landmark & ~np.isnan(rows.duration_days))
        self.edges_days = predictor.edges_days
        self.eta = np.log(predictor.all_hazards(records)[chosen])
        self.labels = Labels.of(rows, chosen)

    def fitted(self, seen: Bools, largest: Sequence[int]) -> list[CauseUpdate]:
        """The update of each cause, fitted on some rows."""
        labels = self.labels.take(seen)
        return [
            fit_update(
                self.eta[seen, e],
                self.edges_days,
                labels,
                cause=e,
                largest=most,
            )
            for e, most in enumerate(largest)
        ]

    def before_and_after(self, largest: Sequence[int]) -> dict[str, object]:
        """Measures on people whom the update had not seen: on a third, or cross-fitted where they are few."""
        people: Ints = np.unique(self.labels.subject, return_inverse=True)[1]
        third = np.random.default_rng(0).permutation(int(people.max()) + 1)[people] % THIRDS
        folds = range(1 if nearest(people.max() + 1) >= SMALL else THIRDS)
        after = self.eta.copy()
        for fold in folds:
            for e, one in enumerate(self.fitted(third != fold, largest)):
                after[third == fold, e] = one.applied(self.eta[third == fold, e])
        judged = third < len(folds)
        people_judged = shareable_count(len(np.unique(people[judged])))
        how = "cross-fitted" if len(folds) > 1 else "held-out third"
        sides = {"before": self.eta[judged], "after": after[judged]}
        measured = {side: self._measured(eta, judged) for side, eta in sides.items()}
        return {"people": people_judged, "how": how, **measured}

    def _measured(self, eta: Floats, judged: Bools) -> dict[str, object]:
        """NLL of a prediction time; of each cause O/E and calibration slope, None of fewer than 11 people."""
        labels, hazards = self.labels.take(judged), np.exp(eta)
        named = {name: getattr(labels, name) for name in ("duration_days", "cause", "entry_days")}
        nll = float(horizon_nll(hazards, self.edges_days, **named).mean())
        fitted = fit_recalibration(eta, self.edges_days, labels)
        days = exposure(self.edges_days, labels.entry_days, labels.duration_days)
        found: dict[str, Any] = {"nll": rounded(nll)}
        for e, cause in enumerate(self.causes):
            people = labels.people(e)
            enough = people >= SMALLEST_COUNT
            events = (labels.cause == e + 1).sum() * nearest(people) / max(people, 1)
            ratio = float(events / (hazards[:, e] * days).sum())
            slope = float(fitted.slope[e, 0])
            found[cause] = {"oe": rounded(ratio), "slope": rounded(slope)} if enough else None
        return found


def _facts(
    here: _Local, chosen: Sequence[CauseUpdate], people: Sequence[int], judged: dict[str, Any]
) -> dict[str, object]:
    """What the manifest and the card say; everything in it may be shared."""
    of_causes = {
        cause: {
            "method": one.method,
            "tested_against": one.largest,
            "p": {name: rounded(p) for name, p in one.p.items()},
            "shrinkage": rounded(one.shrinkage),
            "level": rounded(one.level),
            "slope": rounded(one.slope),
            "people_with_event": shareable_count(n),
        }
        for cause, one, n in zip(here.causes, chosen, people, strict=True)
    }
    n = shareable_count(len(np.unique(here.labels.subject)))
    return {**of_causes, "people": n, "of": here.run.fingerprint, "judged": judged}


def _write(
    run: Run,
    out: Path,
    external: External,
    chosen: Sequence[CauseUpdate],
    facts: dict[str, Any],
    *,
    overwrite: bool,
) -> None:
    """Copy what prediction needs of the run, with the update and what the people are like whom it is for."""
    manifest = {k: v for k, v in run.manifest.items() if k not in ("files", "required", "writing")}
    is_simulated = run.manifest.get("simulated", False) and external.population.is_simulated
    own = {"made_of": external.made_of, "update": facts, "simulated": is_simulated}
    required = run.manifest.get("required", list(run.manifest["files"]))
    history = [HISTORY] if HISTORY in run.manifest["files"] and HISTORY not in run.altered else []
    earlier = {"intercept": np.zeros(len(chosen)), "slope": np.ones(len(chosen))}
    if UPDATE in run.manifest["files"]:
        earlier = {name: np.array(one) for name, one in read_json(run.folder / UPDATE).items()}
    a, b = (np.array([getattr(one, name) for one in chosen]) for name in ("intercept", "slope"))
    slope = b * earlier["slope"]
    fitted = {"intercept": (a + b * earlier["intercept"]).tolist(), "slope": slope.tolist()}
    with complete_folder(out, RUN, overwrite=overwrite) as folder:
        for name in (*required, *history):
            write_bytes(folder / name, (run.folder / name).read_bytes())
        write_settings(folder / "config.yaml", run.study)
        write_json(folder / UPDATE, fitted)

        def list_files() -> None:
            write_manifest(
                folder, {**manifest, **RUN.facts, **own}, required=sorted({*required, UPDATE})
            )

        list_files()  # the run answers from here on, and its name comes last
        made, records = Run(folder), external.population.records
        reference, end_us = draw_reference(made.vocabulary), external.population.dataset_end_us
        risk = reference_risks(made, reference).round(6).tolist()
        write_json(folder / REFERENCE, {**reference, "risk": risk})
        some = records.take(some_people(len(records.timelines)))
        asked = made.predictor.risk(some, made.task.horizons, start_days=made.task.blanking)
        who = external.people
        people = measures_to_keep(
            {
                "people": shareable_count(who.total),
                "codes": carriers_to_keep(
                    (code, n, who.judged[code])
                    for code, n in who.subjects.items()
                    if not who.excluded(code)
                ),
            },
            records.timelines,
            made.vocabulary,
            end_us=end_us,
        )
        people_risks = {"risks": quantiles_of_risks(asked, some.rows)}
        write_json(folder / PEOPLE, {**people, **people_risks})
        list_files()
