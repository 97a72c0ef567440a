"""Repeated random splits: divide the subjects again, prepare, train and evaluate, many times.

In a small cohort the result of one held-out split depends on chance. Each split here repeats every step, vocabulary and
bins included, so that nothing fitted has seen the held-out subjects. The splits share training subjects: the plain
standard error over them would be far too small, and intervals are those of Nadeau and Bengio (2003).
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.config import EvaluationConfig, StudyConfig
from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.disclosure import TOO_FEW
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, write_json
from ehrsequencing.core.made_of import made_of
from ehrsequencing.core.outputs import MANIFEST, read_sealed, sealed
from ehrsequencing.evaluation.comparison import OURS
from ehrsequencing.evaluation.evaluate import Evaluation
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.results import add_result, number
from ehrsequencing.evaluation.rivals import Evaluated, fit_rivals
from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.prediction.run import Run, opened
from ehrsequencing.predictors.fit import at_landmarks
from ehrsequencing.records.attrition import too_few
from ehrsequencing.records.events import NEVER
from ehrsequencing.records.prepare import prepare, require_made_of
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.results.result_types import Exact
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan

FOLDER, SUMMARY, ROWS = "splits", "repeated_splits.json", "rows.json"
FIRST_SEED = 1234
TRAIN, TUNING = 0.65, 0.15  # held out: 0.2; the tuning subjects come from the 80 % that train
# share of splits without a value; above it, a mean of the others would be one of the lucky splits
LARGEST_UNDEFINED_SHARE = 0.05


def corrected_interval(values: ArrayLike, ratio: float) -> tuple[float, float, float]:
    """Mean over J random splits with the 95 % interval of Nadeau and Bengio.

        mean ± t_{J−1} · sqrt((1/J + n_test/n_train) · s²)

    s² is the variance over the splits (with J − 1). The usual s²/J takes the splits for independent; they share most
    of their training subjects, and n_test/n_train makes up for it.

    Args:
        values: (J,) one a split; NaN where it is undefined. Undefined in more than 5 % of the splits: undefined.
        ratio: n_test / n_train.

    Returns:
        Mean, lower and upper limit; the limits are NaN with fewer than two splits.

    Example:
        s² = 1, J = 3, n_test/n_train = 1/4, t_2 = 4.303: 2 ± 3.286.

        >>> [round(x, 3) for x in corrected_interval([1.0, 2.0, 3.0], 0.25)]
        [2.0, -1.286, 5.286]
    """
    all_splits = np.asarray(values, dtype=np.float64)
    defined = all_splits[~np.isnan(all_splits)]
    if not len(defined) or len(defined) < (1 - LARGEST_UNDEFINED_SHARE) * len(all_splits):
        return np.nan, np.nan, np.nan
    mean, count = float(defined.mean()), len(defined)
    if count < 2:
        return mean, np.nan, np.nan
    from scipy.special import stdtrit  # which a single evaluation need not load

    half = stdtrit(count - 1, 0.975) * np.sqrt((1 / count + ratio) * defined.var(ddof=1))
    return mean, mean - float(half), mean + float(half)


_PLACE = ("model", "landmark_days", "cause", "horizon_days", "metric")  # what a number belongs to


def summarise(splits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The `repeated_splits` key of `metrics.json`, of what `one_split` gives: landmarks only."""
    ratio = float(np.mean([one["held_out_subjects"] / one["train_subjects"] for one in splits]))
    # A split holds out a share p of the cohort and so of those counted: the cohort has mean / p of them, and J splits
    # miss each with the chance (1 − p)^J.
    share = ratio / (1.0 + ratio)
    reached = (1.0 - (1.0 - share) ** len(splits)) / share
    columns, counts = dict[tuple[Any, ...], Floats](), dict[tuple[Any, ...], list[Any]]()
    for k, one in enumerate(splits):
        for row in one["metrics"]:
            # without the regressions, for which one split has too few events
            is_averaged = row["metric"] in METRICS and METRICS[row["metric"]].taken != "causes"
            if row["landmark_days"] is not None and is_averaged:
                place = tuple(row[name] for name in _PLACE)
                column = columns.setdefault(place, np.full(len(splits), np.nan))
                column[k] = row["value"]  # NaN where it is None
                counts.setdefault(place, []).append((row["events"], row["subjects"]))

    def line(place: tuple[Any, ...], values: Floats) -> dict[str, Any]:
        mean, low, high = corrected_interval(values, ratio)
        events, subjects = (int(count) for count in reached * np.mean(counts[place], axis=0))
        few = bool(too_few(events, subjects))
        return {
            **dict(zip(_PLACE, place, strict=True)),
            "events": events,
            "subjects": subjects,
            "mean": number(mean),
            "median": None if np.isnan(mean) else number(np.nanmedian(values)),
            "low": None if few else number(low),
            "high": None if few else number(high),
            "values": [*map(number, values)],
            "reason": TOO_FEW if few else None,
        }

    differences = []
    for place, theirs in columns.items():
        model, *rest = place
        if model != OURS and METRICS[place[-1]].compared and (OURS, *rest) in columns:
            less = columns[OURS, *rest] - theirs
            wins = int(np.sum(METRICS[place[-1]].better * less > 0))
            differences.append(
                line(place, less) | {"wins": wins, "of": int((~np.isnan(less)).sum())}
            )
    return {
        "splits": len(splits),
        "seeds": [one["seed"] for one in splits],
        "train_subjects": [one["train_subjects"] for one in splits],
        "held_out_subjects": [one["held_out_subjects"] for one in splits],
        "rows": [line(place, values) for place, values in columns.items()],
        "differences": differences,
    }


def repeated_splits(
    run: Run | Path,
    *,
    splits: int,
    first_seed: int = FIRST_SEED,
    data: Path | None = None,
    prepared: Path | None = None,
    settings: EvaluationConfig | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> dict[str, Any]:
    """Prepare, train and evaluate for each of several random splits of the subjects.

    Each split has a folder `RUN/splits/seed-…`; what is finished there is kept, and an interrupted training goes on.
    Censoring weights come from the training subjects at risk: a fifth of a small cohort is too few for them.

    Args:
        run: A finished run, or its folder, whose settings are used.
        splits: How many.
        first_seed: The splits have the seeds `first_seed`, `first_seed + 1` …
        data: The MEDS records, where they are no longer where `prepare` found them.
        prepared: The prepared set, where it is no longer where training found it.
        settings: Baselines; default: those of the run. There is no bootstrap: the splits are the resamples.
        progress: Called with (splits done, splits, what comes next).

    Returns:
        The `repeated_splits` key of `metrics.json`, which is also kept in `RUN/splits/repeated_splits.json`.

    Raises:
        EhrseqError: Records or prepared set are gone, a split cannot be trained on, or the run started from another
            model.
    """
    run = opened(run)
    if not 0 <= first_seed < 2**31:
        raise EhrseqError(
            "is not a seed", where="--split-seed", fix="use a number from 0 on, as in 1234"
        )
    if splits < 2:
        raise EhrseqError(
            "an interval over splits needs two splits", where="--splits", fix="use 25"
        )
    again = Again.of_run(run, data=data, prepared=prepared, settings=settings, bootstrap=0)
    divisions = [random_division(again.study, first_seed + k) for k in range(splits)]
    result = summarise(again.results(run.folder / FOLDER, divisions, progress))
    summary = {"fingerprint": run.manifest["fingerprint"], "repeated_splits": result}
    write_json(
        run.folder / FOLDER / SUMMARY, sealed(summary), owner_only=True
    )  # it has exact counts
    return result


@dataclass(frozen=True)
class Division:
    """A division of the subjects into those who train a model and those on whom it is evaluated.

    Attributes:
        name: Of its folder.
        label: What people call it.
        study: All settings, with the task and this division.
        seed: Of a random division.
        until_us: Held-out subjects whose first index is then or later are left out.
        is_random: Whether those who are held out are like those who train.
    """

    name: str
    label: str
    study: StudyConfig
    seed: int = 0
    until_us: int = NEVER
    is_random: bool = False


def random_division(study: StudyConfig, seed: int) -> Division:
    """A random division of the subjects."""
    return Division(f"seed-{seed}", f"split {seed}", split_study(study, seed), seed, is_random=True)


@dataclass(frozen=True)
class Again:
    """A run that is made again on other divisions of its subjects."""

    run: Run
    store: Prepared
    records: Path
    study: StudyConfig
    settings: EvaluationConfig

    @classmethod
    def of_run(
        cls,
        run: Run,
        *,
        data: Path | None,
        prepared: Path | None,
        settings: EvaluationConfig | None,
        bootstrap: int | None = None,
    ) -> "Again":
        """What is needed of a run.

        Raises:
            EhrseqError: Records or prepared set are gone, or the run started from another model.
        """
        Evaluated.of_run(run)  # refuses the visit head
        if "init" in run.manifest:  # that model saw subjects whom another split holds out
            raise EhrseqError(
                "the run started from another model, which other splits cannot use: they hold out subjects whom it saw",
                where=str(run.folder),
                fix="repeat the splits of a run without --init",
            )
        store = run.prepared(prepared)
        records = data or Path(store.manifest["data_path"])
        if not records.is_dir():
            raise EhrseqError(
                "the MEDS records have moved", where=str(records), fix="name them with --data"
            )
        require_made_of(store, records)
        chosen = settings or run.study.evaluation
        if bootstrap is not None:
            chosen = chosen.model_copy(update={"bootstrap": bootstrap})
        own = {"task": run.task, "model": run.study.model, "training": run.study.training}
        study = store.study.model_copy(update=own | {"evaluation": run.study.evaluation})
        return cls(run, store, records, study, chosen)

    def results(
        self, folder: Path, divisions: Sequence[Division], progress: Callable[[int, int, str], None]
    ) -> list[dict[str, Any]]:
        """What `one_split` gives for each division; what is finished in its folder is kept."""
        finished, count = [], len(divisions)
        for done, division in enumerate(divisions):

            def stage(what: str, done: int = done, label: str = division.label) -> None:
                progress(done, count, f"{label} ({done + 1} of {count}): {what}")

            stored = one_split(
                self.records,
                folder / division.name,
                division=division,
                settings=self.settings,
                origin=self.run.manifest["fingerprint"],
                stage=stage,
            )
            finished.append(stored)
        progress(count, count, "done")
        return finished


def add_splits(run: Run, result: Exact) -> Exact:
    """Put the repeated splits of a run, if there are any, into its exact result and its `metrics.json`."""
    path = run.folder / FOLDER / SUMMARY
    if not path.is_file():
        return result
    summary = read_sealed(path)
    whole = result | {"repeated_splits": summary.get("repeated_splits")}
    if summary.get("fingerprint") != run.manifest["fingerprint"]:
        why = "belongs to another training" if summary else "is damaged"
        text = f"The repeated splits are left out: {FOLDER}/{SUMMARY} {why}. Evaluate again with --splits."
        whole = result | {"warnings": [*result["warnings"], text]}
    add_result(whole, run.folder)
    return whole


def one_split(
    records: Path,
    folder: Path,
    *,
    division: Division,
    settings: EvaluationConfig,
    origin: str = "",
    stage: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Prepare, train and evaluate one division of the subjects; what is finished in its folder is kept.

    Args:
        records: The MEDS records.
        folder: Of this split: `rows.json`, and the trained run in a folder named after what it depends on.
        division: Who trains, and on whom the model is evaluated.
        settings: Baselines and censoring weights.
        origin: Anything else that the numbers depend on, as the fingerprint of the run whose settings these are.
        stage: Called with the name of each stage.

    Returns:
        What `rows.json` holds: `seed`, `train_subjects`, `held_out_subjects`, the long rows `metrics`, and
        `tuning_nll`, model → mean over the tuning rows at landmarks, ours included.

    Raises:
        EhrseqError: The study has no task, or the split cannot be trained on.
    """
    study, task = division.study, division.study.task
    if task is None:
        raise EhrseqError("has no task", where=str(folder), fix="put the task into the study")
    if not division.is_random:  # intervals within a step, and its window
        origin = f"{origin} {settings.bootstrap} {division.until_us}"
    fingerprint = split_fingerprint(study, settings, origin)
    stored = read_sealed(folder / ROWS)
    if stored.get("fingerprint") == fingerprint:
        return stored
    # other data, settings or models than before: what they left is neither taken nor continued
    own = folder / (
        "made-of-" + digest(made_of(origin=origin, splits=study.splits.model_dump(mode="json")))
    )
    for other in folder.glob(f"made-of-{'?' * 16}/"):
        if other != own and not other.is_symlink():
            shutil.rmtree(other)
    set_folder, run_folder = own / "prepared", own / "run"
    stage("preparing")
    if not (set_folder / MANIFEST).is_file():
        prepare(records, set_folder, study=study, tasks=[task])
    parts = Prepared(set_folder)
    stage("training")
    fit(Plan.of(parts, task.name, study), run_folder, resume=True)
    stored = {"fingerprint": fingerprint, "seed": division.seed}
    stored = sealed(stored | _judge(run_folder, parts, division, settings, stage))
    write_json(folder / ROWS, stored, owner_only=True)
    # a prepared set is made again in seconds, and 25 of them would fill a disk
    shutil.rmtree(set_folder, ignore_errors=True)
    return stored


def split_fingerprint(study: StudyConfig, settings: EvaluationConfig, origin: str) -> str:
    """A digest of what would change a split's numbers; `origin` covers data, labels and the study's other settings."""
    elsewhere = {"bootstrap", "tripod"}
    chosen = settings.model_dump(mode="json", exclude=elsewhere)
    splits = study.splits.model_dump(mode="json")
    return digest(made_of(origin=origin, splits=splits, evaluation=chosen))


def split_study(study: StudyConfig, seed: int) -> StudyConfig:
    """The same settings with another random division of the subjects."""
    # Subjects are divided by a hash of id + seed: seeds 1, 2, 3 … would move one pattern along consecutive ids.
    spread = {"by": "hash", "train": TRAIN, "tuning": TUNING, "seed": seed}
    divided = study.splits.model_copy(update=spread)
    return study.model_copy(update={"splits": divided})


def _judge(
    run_folder: Path,
    parts: Prepared,
    division: Division,
    settings: EvaluationConfig,
    stage: Callable[[str], None],
) -> dict[str, object]:
    run = Run(run_folder)
    judged = Population.of_split(parts, run.task, "held_out").drawn(settings)
    if division.until_us != NEVER:
        judged = judged.take(judged.indexed_before(division.until_us))
    rivals = fit_rivals(Evaluated.of_run(run), parts, settings, stage)
    evaluation = Evaluation(
        run,
        judged,
        prepared=parts,
        settings=settings,
        fitted=rivals,
        train_censoring=division.is_random,
    )
    splits = parts.attrition(run.task.name)["splits"]
    sizes = {name: part["steps"][-1]["subjects"] for name, part in splits.items()}
    rows, _, _ = evaluation.tables(progress=stage)
    records = parts.records(run.task.name, "tuning")
    nll = run.predictor.nll(records)[at_landmarks(records.rows, run.task)]
    tuning = {
        OURS: float(nll.mean()) if len(nll) else float("nan"),
        **{one.model.name: one.tuning_nll for one in evaluation.fitted},
    }
    return {
        "train_subjects": sizes["train"] + sizes["tuning"],
        "held_out_subjects": judged.counts["steps"][-1]["subjects"],
        "metrics": rows,
        "tuning_nll": {name: number(value) for name, value in tuning.items()},
    }
