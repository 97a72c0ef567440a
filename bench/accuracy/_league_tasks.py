"""Tasks, contenders and data of the league: what is asked, who answers, and the folder with the question."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.accuracy._league_features import (
    Bins,
    Columns,
    Events,
    feature_table,
    known_events,
    visits,
)
from bench.accuracy.contenders.exchange import SPLITS, VISITS, Question
from bench.measure import ROOT
from ehrsequencing.api.study import WORLD
from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.config.files import load_study, load_task
from ehrsequencing.core.outputs import MANIFEST
from ehrsequencing.evaluation.repeated_splits import split_study
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.simulate import SimulationConfig, simulate

HERE = Path(__file__).parent
TASK_FILES = ROOT / "examples" / "tasks"
FIRST_SEED = 20_000  # as in `bench/accuracy/real.py`
KNOTS = 8  # quantiles of training events at which risks are asked for, beside the task's horizons
SIMPLE = WORLD.model_dump(exclude_defaults=True)


@dataclass(frozen=True)
class LeagueTask:
    """One question of the league.

    Attributes:
        records: What they are, in words.
        file: Name of the data folder (`NAME_meds`); None for a simulated world.
        world: Knobs of a simulated world, on top of the defaults.
        settings: Of the preparation, and of our models.
        window_days: Length of a visit of the sequence models.
        shown_days: Landmark and horizon of the numbers in the tables; chosen before the first run.
        question: Name of the task file, where it is another one than that of the data.
    """

    records: str
    shown_days: tuple[float, float]
    file: str | None = None
    world: tuple[tuple[str, float], ...] | None = None
    settings: tuple[str, ...] = ()
    window_days: float = 1.0
    question: str | None = None


def _world(**knobs: float) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(knobs.items()))


_YEAR = 365.25
_SIM = (0.0, 2 * _YEAR)
TASKS = {
    "sim_default": LeagueTask(
        "simulator, default world: 24 pairs of codes, 200 codes without meaning", _SIM, world=()
    ),
    "sim_pairs": LeagueTask(
        "simulator, the demo's world: 3 pairs that act together", _SIM, world=_world(**SIMPLE)
    ),
    "sim_additive": LeagueTask(
        "simulator: each condition and laboratory value acts by itself",
        _SIM,
        world=_world(**{**SIMPLE, "pair_effect": 0, "chronic_effect": 0.8, "lab_effect": 0.8}),
    ),
    "sim_timing": LeagueTask(
        "simulator: the order of codes, gaps between visits and the time since an acute event act",
        _SIM,
        world=_world(
            pairs=3,
            pair_effect=0,
            background_codes=60,
            visits_per_year=4,
            gap_effect=1.2,
            order_effect=1,
            order_visit_share=0.6,
            decay_effect=2,
        ),
    ),
    "pbc2": LeagueTask(
        "312 real patients, transplantation competing", (_YEAR, 3 * _YEAR), file="pbc2"
    ),
    "nafld": LeagueTask(
        "14,051 real patients and controls", (0.0, 10 * _YEAR), file="nafld", window_days=30.0
    ),
    "physionet2012": LeagueTask(
        "3,996 real ICU stays",
        (0.0, 30.0),
        file="physionet2012",
        window_days=0.5,
        settings=("visits.by=window", "visits.window=12h"),
    ),
    "delphi_sim": LeagueTask(
        "7,141 simulated life courses, published; first hypertension to death",
        (0.0, 10 * _YEAR),
        file="delphi_sim",
    ),
}


@dataclass(frozen=True)
class Foreign:
    """A foreign model.

    Attributes:
        script: In `bench/accuracy/contenders/`.
        imports: What its Python must be able to import.
        name: In the tables.
    """

    script: str
    imports: str
    name: str


FOREIGN = {
    "cox": Foreign("lifelines_cox.py", "lifelines", "lifelines Cox"),
    "forest": Foreign("sksurv_forest.py", "sksurv", "scikit-survival forest"),
    "boosting": Foreign("sksurv_boosting.py", "sksurv", "scikit-survival boosting"),
    "xgboost": Foreign("xgboost_aft.py", "xgboost", "XGBoost AFT"),
    "pyhealth": Foreign("pyhealth_transformer.py", "pyhealth", "PyHealth Transformer"),
}
OURS = {
    "blend": "our blend",
    "network": "its network, taught by trees and Cox",
    "stacked": "our trees and Cox",
    "trees": "our trees",
    "landmark_cox": "our Cox",
}
NAMES = OURS | {key: one.name for key, one in FOREIGN.items()}


@dataclass(frozen=True)
class Place:
    """One task on one division of its subjects, with its folder.

    Attributes:
        task: Its key in `TASKS`.
        data: Folder that holds the shared sets.
        out: Folder of the league's results.
        seed: Of the division; of a simulated world the seed of the simulation, which has its own division.
        subjects: How many to simulate.
        more: Further settings of ours.
    """

    task: str
    data: Path
    out: Path
    seed: int
    subjects: int = 3000
    more: tuple[str, ...] = ()

    @property
    def one(self) -> LeagueTask:
        """The task's facts."""
        return TASKS[self.task]

    @property
    def folder(self) -> Path:
        """Of this division; simulations of another size have one of their own."""
        size = "" if self.one.world is None else f"-{self.subjects}"
        return self.out / f"{self.task}{size}" / f"seed-{self.seed}"

    @property
    def records(self) -> Path:
        """The MEDS data set."""
        return (
            self.folder / "data" if self.one.file is None else self.data / f"{self.one.file}_meds"
        )

    def study(self, *more: str) -> StudyConfig:
        """All settings of ours, with the division into training, tuning and held-out subjects."""
        study = load_study(None, [*self.one.settings, *self.more, *more])
        study = study.model_copy(update={"task": self.question})
        return study if self.one.world is not None else split_study(study, self.seed)

    @property
    def question(self) -> TaskConfig:
        """The task."""
        if self.one.file is None:
            return load_task(self.records / "task.yaml")
        return load_task(TASK_FILES / f"{self.one.question or self.one.file}.yaml")

    def prepared(self) -> Prepared:
        """The prepared set, made where it is not there; a world is simulated first."""
        if self.one.world is not None and not (self.records / MANIFEST).is_file():
            world = SimulationConfig.model_validate(dict(self.one.world))
            simulate(self.records, subjects=self.subjects, seed=self.seed, config=world)
        folder = self.folder / "prepared"
        if not (folder / MANIFEST).is_file():
            prepare(self.records, folder, study=self.study(), tasks=[self.question], processes=1)
        return Prepared(folder)


@dataclass(frozen=True)
class LandmarkRows:
    """The prediction times of a split at the task's landmarks."""

    records: TaskRecords
    chosen: np.ndarray  # type: ignore[type-arg]

    @classmethod
    def of(cls, prepared: Prepared, task: TaskConfig, split: str) -> LandmarkRows:
        """Those of one split, rising."""
        records = prepared.records(task.name, split)
        at = [records.at_landmark(landmark) for landmark in task.landmarks]
        return cls(records, np.unique(np.concatenate(at)))

    def column(self, name: str) -> np.ndarray:  # type: ignore[type-arg]
        """A column of the prediction times."""
        return np.array(getattr(self.records.rows, name)[self.chosen])

    @property
    def subject_id(self) -> np.ndarray:  # type: ignore[type-arg]
        """(n,)."""
        return np.array(self.records.subject_id[self.chosen])


def knots_days(
    duration_days: np.ndarray, cause: np.ndarray, horizons: Sequence[float]
) -> np.ndarray:  # type: ignore[type-arg]
    """(K,) quantiles of training events up to the last horizon, and the horizons; whole days."""
    events = duration_days[(cause > 0) & (duration_days < max(horizons))]
    spaced = np.quantile(events, np.linspace(0, 1, KNOTS + 2)[1:-1]) if len(events) else np.zeros(0)
    near = np.array(
        [np.abs(day - np.array(horizons)).min() < 0.02 * max(horizons) for day in spaced],
        dtype=bool,
    )
    found = np.unique(np.r_[np.ceil(spaced[~near]), np.array(horizons)])
    return found[found > 0]


def write_question(
    place: Place, prepared: Prepared, folder: Path, *, with_visits: bool
) -> Question:
    """Write what a foreign model gets: features from MEDS, training and tuning labels, the days of the risks."""
    task, events = place.question, Events.read(place.records)
    rows = {split: LandmarkRows.of(prepared, task, split) for split in SPLITS}
    ids = {split: one.subject_id for split, one in rows.items()}
    at = {split: one.column("prediction_us") for split, one in rows.items()}
    known = known_events(events, ids["train"], at["train"])
    columns = Columns.choose(events, known)
    features = {
        split: feature_table(events, ids[split], at[split], one.column("index_us"), columns=columns)
        for split, one in rows.items()
    }
    labels = {
        name: {split: rows[split].column(name) for split in SPLITS[:2]}
        for name in ("duration_days", "cause")
    }
    cause = {split: values.astype(np.int64) for split, values in labels["cause"].items()}
    question = Question(
        folder,
        columns.names(events),
        features,
        ids,
        at,
        labels["duration_days"],
        cause,
        task.causes,
        np.array(task.horizons),
        knots_days(labels["duration_days"]["train"], cause["train"], task.horizons),
        place.seed,
    )
    question.write()
    if with_visits:
        bins = Bins.fit(events, known, columns)
        given = {"bins": bins, "window_days": place.one.window_days}
        found = {
            split: visits(events, ids[split], at[split], age_years=features[split][:, 0], **given)
            for split in SPLITS
        }
        (folder / VISITS).write_text(json.dumps(found))
    return question


def python_with(package: str, pythons: Sequence[Path]) -> Path | None:
    """The first interpreter that has a package; None where no one has."""
    for python in [*pythons, Path(sys.executable)]:
        look = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
        if (
            python.is_file()
            and subprocess.run([str(python), "-c", look], check=False).returncode == 0
        ):
            return python
    return None


def run_foreign(model: str, python: Path, folder: Path, *, seconds: float) -> None:
    """Run one foreign model on the folder with its question, in its own Python."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)  # it must not see our package
    environment.pop("PYTHONSAFEPATH", None)  # its script imports its neighbours
    script = HERE / "contenders" / FOREIGN[model].script
    log = folder / "log.txt"
    with log.open("w") as out:
        command = [str(python), str(script), str(folder), "--seconds", str(seconds)]
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, check=False, env=environment
        )
    if done.returncode:
        last = (log.read_text().strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"{FOREIGN[model].script}: {last} (see {log})")
