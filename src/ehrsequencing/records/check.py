"""`ehrseq check`: what is in a data set, what `prepare` would fix or refuse, and what a task makes of it.

It is `prepare` in a temporary folder, so that both find the same.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from ehrsequencing.config import StudyConfig, TaskConfig, format_days
from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.files import private_folder, read_json
from ehrsequencing.records.account import Attrition
from ehrsequencing.records.attrition import attrition_lines, followed_line, task_warnings
from ehrsequencing.records.events import DAY_US, STATIC
from ehrsequencing.records.follow_up import (
    bounds_text,
    codes_that_end,
    silent_times,
)
from ehrsequencing.records.meds import FIXES, SPLITS, LateRows, MedsReader
from ehrsequencing.records.prepare import fill
from ehrsequencing.records.shards import PROCESSES, ShardWork, joblib_backend
from ehrsequencing.records.survey import Progress
from ehrsequencing.records.timelines import TaskRows, Timelines, open_arrays
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.records.words import lines_of

_TEMPLATES = Path(__file__).with_name("templates")
LONG_VISIT_DAYS = 30
FEW_KNOWN = 0.1  # share of the training subjects' rows with a token, below which a model learns next to nothing
FEW_FOLLOWED = 0.1  # share of subjects whose state at a horizon is known, below which its risk can hardly be evaluated


@dataclass(frozen=True)
class TaskCheck:
    """What a task makes of the data.

    Attributes:
        task: The question.
        attrition: Content of `attrition.json`.
        events_within: Per cause and horizon: subjects with that event so soon after their first prediction time.
        known_at: Per horizon: subjects followed so long after their first prediction time, or with an event before.
    """

    task: TaskConfig
    attrition: Attrition
    events_within: dict[str, dict[str, int]]
    known_at: dict[str, int]
    silences: tuple[str, ...] = ()  # warnings of times in which an outcome cannot have happened

    @property
    def warnings(self) -> list[str]:
        """What may make the task unsafe to learn from."""
        subjects = sum(self.attrition["events"].values())
        lost = {step["step"]: step["excluded"] for step in self.attrition["steps"]}
        had = sum(lost[step] for step in lost if "at or before the index" in step)
        values = {"t": self, "subjects": subjects, "had": had, "FEW_FOLLOWED": FEW_FOLLOWED}
        own = lines_of(_TEMPLATES / "check_warnings.txt.jinja", **values)
        return [*task_warnings(self.task, self.attrition), *self.silences, *own]

    @property
    def needed_events(self) -> dict[str, dict[str, int]]:
        """Per horizon: what for → how many people with the event that needs, by the incidence here."""
        return {  # a half more of each side, as nobody may have had it, or all
            horizon: needed_events((had + 0.5) / (self.known_at[horizon] + 1))
            for horizon, had in self.events_within[self.task.causes[0]].items()
        }

    def as_json(self) -> dict[str, Any]:
        """For other programs."""
        names = ("attrition", "events_within", "known_at", "needed_events", "warnings")
        followed = followed_line(self.task, self.attrition)
        return {
            "name": self.task.name,
            "followed": followed,
            **{name: getattr(self, name) for name in names},
        }


@dataclass(frozen=True, repr=False)
class DataCheck:
    """What is in a data set."""

    facts: dict[str, Any]
    fixes: Counter[str]  # how often each fix of `FIXES` would be applied
    tasks: list[TaskCheck]  # what each task makes of it

    def __repr__(self) -> str:
        subjects, late = self.facts["subjects"], self.facts["late_rows"]
        lines = lines_of(
            _TEMPLATES / "facts.txt.jinja",
            f=self.facts,
            by_split={name: subjects[name] for name in SPLITS},
            splits=_SPLIT_WORDS,
            long=self.facts["visits"][f"over_{LONG_VISIT_DAYS}_days"],
            LONG_VISIT_DAYS=LONG_VISIT_DAYS,
            late=LateRows(**late) if late else None,
            fixes=fix_lines(self.fixes),
        )
        for check in self.tasks:
            task, undated = check.task, check.attrition.get("undated")
            lines += attrition_lines(task, check.attrition, warnings=check.warnings)
            bounds = bounds_text(task, undated) if undated else None
            lines += lines_of(_TEMPLATES / "task.txt.jinja", t=check, bounds=bounds)
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Content of `ehrseq check --out FILE`."""
        fixes = [
            {"kind": name, "what": FIXES[name], "count": n} for name, n in self.fixes.items() if n
        ]
        return {**self.facts, "fixes": fixes, "tasks": [task.as_json() for task in self.tasks]}


def check_data(
    data: Path, *, study: StudyConfig, tasks: Sequence[TaskConfig], progress: Progress | None = None
) -> DataCheck:
    """Prepare a data set in a temporary folder (`TMPDIR`), and count.

    Raises:
        EhrseqError: `prepare` would refuse the data or a task.
    """
    work = ShardWork.of_study(data, study, tasks)
    with joblib_backend(PROCESSES, None, work.reader.shards) as jobs, private_folder() as folder:
        filled = fill(folder, work, jobs=jobs, progress=progress, allow_empty=True)
        splits = {name: open_arrays(Timelines, folder / "visits" / name) for name in SPLITS}
        known, min_subjects = filled["known_training_rows"], study.vocabulary.min_subjects
        visits, tokens = (
            sum(len(getattr(part, name)) for part in splits.values())
            for name in ("start_us", "codes")
        )
        # what an import of ours warned of, which only its report still knows
        path = data / "metadata" / "import_report.json"
        report = read_json(path) if path.is_file() else None
        imported = report.get("warnings", []) if isinstance(report, dict) else []
        facts = {
            **{name: filled[name] for name in ("splits", "rows", "years", "calendar", "late_rows")},
            "subjects": {
                "all": filled["subjects"],
                **{name: len(part) for name, part in splits.items()},
                "without_birth": sum(
                    int((part.birth_us == STATIC).sum()) for part in splits.values()
                ),
            },
            "codes": {
                "all": filled["codes"],
                "tokens": len(Vocabulary.load(folder).codes),
                "known_training_rows": known,
                "min_subjects": min_subjects,
            },
            "visits": {
                "all": visits,
                f"over_{LONG_VISIT_DAYS}_days": sum(
                    int((part.end_us - part.start_us > LONG_VISIT_DAYS * DAY_US).sum())
                    for part in splits.values()
                ),
                "per_subject": round(visits / max(sum(map(len, splits.values())), 1), 2),
                "codes_per_visit": round(tokens / max(visits, 1), 2),
            },
            "warnings": [
                *data_warnings(filled, min_subjects=min_subjects),
                *filled["numbers"],
                *(f"import: {text}" for text in imported),
            ],
        }
        reader = None if filled["calendar"]["beyond_today"] else work.reader
        checks = [_check_task(folder / "tasks" / task.name, task, reader) for task in tasks]
    return DataCheck(facts, Counter(filled["fixes"]), checks)


def _check_task(folder: Path, task: TaskConfig, reader: MedsReader | None) -> TaskCheck:
    """Counts of a task, from each subject's first prediction time; without a reader dates are no calendar."""
    rows = [open_arrays(TaskRows, folder / split) for split in SPLITS]
    first = [part.row_offsets[:-1][np.diff(part.row_offsets) > 0] for part in rows]
    start_us, days, causes = (
        np.concatenate([getattr(part, name)[at] for part, at in zip(rows, first, strict=True)])
        for name in ("prediction_us", "duration_days", "cause")
    )
    within: dict[str, dict[str, int]] = {name: {} for name in task.causes}
    known: dict[str, int] = {}
    for horizon_days in task.horizons:
        horizon = format_days(horizon_days)
        known[horizon] = int(np.sum((causes > 0) | (days >= horizon_days)))
        for number, name in enumerate(task.causes, start=1):
            within[name][horizon] = int(np.sum((causes == number) & (days <= horizon_days)))
    silences = list[str]()
    for number, (name, patterns) in enumerate(task.patterns.items(), start=1):
        for one in silent_times(start_us / DAY_US, days, causes == number) if reader else ():
            ended = codes_that_end(reader, one.day, patterns) if reader and one.before else []
            month = np.datetime64(int(one.day), "D").astype("datetime64[M]")
            values = {"name": name, "s": one, "month": month, "people": len(days), "ended": ended}
            silences += lines_of(_TEMPLATES / "silence.txt.jinja", **values)
    return TaskCheck(task, read_json(folder / "attrition.json"), within, known, tuple(silences))


def data_warnings(facts: Mapping[str, Any], *, min_subjects: int) -> list[str]:
    """What may make a prepared set useless, or other than one expects, from the facts of its manifest."""
    values = {"f": facts, "min_subjects": min_subjects, "FEW_KNOWN": FEW_KNOWN}
    return lines_of(_TEMPLATES / "data_warnings.txt.jinja", **values)


_SPLIT_WORDS = {
    "file": "by metadata/subject_splits.parquet",
    "folders": "by the folders data/{train,tuning,held_out}, since there is no metadata/subject_splits.parquet",
    "hash": "by hashed subject id",
    "date": "by the date of the index",
    "site": "by site",
}


def fix_lines(fixes: Mapping[str, int]) -> list[str]:
    """What was fixed, one line a kind."""
    return [f"fixed: {count:,} {FIXES[name]}" for name, count in fixes.items() if count]


# ---- how many events a study needs ----
# Riley et al. (2020, development; 2021, external validation), for a binary outcome. The linear predictor is taken to be
# normal, with the mean and sd that give the incidence and C.
USUAL_C = 0.75  # where no model has been evaluated
_NORMAL = np.array([NormalDist().inv_cdf((i + 0.5) / 2000) for i in range(2000)])
_SHRINKAGE = 0.9  # of a model's effects in new people, which over-fitting may cost


def needed_events(incidence: float, c: float = USUAL_C) -> dict[str, int]:
    """Events that give 95 % intervals of a stated width, and that ten parameters of a model need.

    Args:
        incidence: Share of the people with the event by the horizon, between 0 and 1.
        c: What C one expects, between 0.5 and 1.

    Returns:
        What for → people with the event by the horizon, in a cohort with this incidence.

    Example:
        >>> needed_events(0.2)
        {'O/E ± 0.2': 77, 'slope ± 0.2': 180, 'C ± 0.05': 114, 'ten parameters': 133}
    """
    quantile = NormalDist().inv_cdf
    low, high = 0.0, 40.0
    for _ in range(40):  # halvings
        sd = (low + high) / 2
        mean, spread, risk = _population(incidence, sd)
        low, high = (low, sd) if _concordance(risk) > c else (sd, high)
    weight = risk * (1 - risk)
    moments = [(weight * (mean + spread) ** power).mean() for power in range(3)]
    slope_variance = moments[0] / (moments[0] * moments[2] - moments[1] ** 2)  # times n
    # Newcombe (2006), for large n; the variance times n
    pairs = 0.5 * (1 - c) / (2 - c) + 0.5 * c / (1 + c)
    c_variance = c * (1 - c) * pairs / (incidence * (1 - incidence))
    null = _log_likelihood(np.array(incidence))
    explained = 1 - np.exp(-2 * (_log_likelihood(risk).mean() - null))  # Cox–Snell R²
    reach = quantile(0.975)
    people = {
        "O/E ± 0.2": (reach / 0.2) ** 2 * (1 - incidence) / incidence,
        "slope ± 0.2": (reach / 0.2) ** 2 * slope_variance,
        "C ± 0.05": (reach / 0.05) ** 2 * c_variance,
        "ten parameters": 10 / ((_SHRINKAGE - 1) * np.log(1 - explained / _SHRINKAGE)),
    }
    return {name: int(np.ceil(n * incidence)) for name, n in people.items()}


def _population(incidence: float, sd: float) -> tuple[float, Floats, Floats]:
    """The mean of the linear predictor, (n,) its rising deviations of a given sd, and the risks of this incidence."""
    spread = sd * _NORMAL
    low, high = -200.0, 200.0
    for _ in range(50):
        mean = (low + high) / 2
        risk = 1 / (1 + np.exp(-np.clip(mean + spread, -500, 500)))
        low, high = (low, mean) if risk.mean() > incidence else (mean, high)
    return mean, spread, risk


def _concordance(risk: Floats) -> float:
    """C of rising risks that are right: how often a case has more than somebody without the event."""
    without = np.cumsum(1 - risk) - (1 - risk) / 2
    return float(risk @ without / (risk.sum() * (1 - risk).sum()))


def _log_likelihood(risk: Floats) -> Floats:
    """Of an outcome that has this risk, in expectation."""
    least = np.finfo(np.float64).tiny
    return risk * np.log(risk + least) + (1 - risk) * np.log(1 - risk + least)
