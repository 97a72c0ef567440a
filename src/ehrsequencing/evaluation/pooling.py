"""Pool evaluations at several sites by random effects; or walk through time or over sites, and pool the steps.

A walk trains before each window and tests in it, or leaves one site out at a time: internal–external validation
(Steyerberg & Harrell 2016). Each step prepares, trains and evaluates anew, nobody is both trained and tested on in one
step, and no two steps test the same window. They share training people, so that the pooled interval describes these
steps rather than new ones.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator
from scipy.optimize import brentq
from scipy.special import expit, logit, ndtri, stdtrit

from ehrsequencing.config import EvaluationConfig, StudyConfig
from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.disclosure import SMALLEST_COUNT, shareable_count
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import Shareable, read_json
from ehrsequencing.core.outputs import MANIFEST, altered, read_manifest
from ehrsequencing.evaluation.comparison import OURS
from ehrsequencing.evaluation.repeated_splits import Again, Division
from ehrsequencing.evaluation.results import without_few
from ehrsequencing.prediction.run import Run, opened
from ehrsequencing.records.attrition import FEWEST_SUBJECTS
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.splits import date_of, sites_of
from ehrsequencing.results.redaction import redact_rows

MOST = 1e6  # that a metric of real people can be
#: Each pooled metric: to the scale on which it is pooled and back, and its possible values.
SCALES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], float, float]] = {
    "c": (logit, expit, 0.0, 1.0),
    "oe": (np.log, np.exp, 0.0, MOST),
    "ipa": (np.asarray, np.asarray, -MOST, 1.0),
    "slope": (np.asarray, np.asarray, -MOST, MOST),
}
Count = Annotated[int, Field(ge=0, le=10**10)] | Literal["<11"] | None
Text = Annotated[str, AfterValidator(lambda text: text.encode().decode())]  # no half a surrogate
Place = tuple[float | None, str, float | None, str]


class MetricRow(BaseModel, strict=True, allow_inf_nan=False):
    """A row of `metrics`: one metric of one model at one place, with its 95 % interval."""

    model: Text
    landmark_days: Annotated[float, Field(ge=0)] | None
    cause: Text
    horizon_days: float | None
    metric: Text
    value: float | None
    low: float | None
    high: float | None
    subjects: Count
    events: Count
    hidden: bool = False

    @property
    def place(self) -> Place:
        """Landmark, cause, horizon and metric."""
        return self.landmark_days, self.cause, self.horizon_days, self.metric

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.metric not in SCALES:
            return self
        *_, least, most = SCALES[self.metric]
        known = [x for x in (least, self.low, self.value, self.high, most) if x is not None]
        counts = [n for n in (1, self.events, self.subjects) if isinstance(n, int)]
        has_counts = len(counts) == 3 and counts == sorted(counts) and not self.hidden
        faults = {
            "value is not within its limits, or not possible": known != sorted(known),
            "value is missing beside a limit": len(known) > 2 and self.value is None,
            "low or high is missing": len(known) == 4,
            "value stands beside hidden or impossible subjects or events": len(known) > 2
            and not has_counts,
            "events are more than subjects": len(counts) == 3 and counts[1] > counts[2],
            "low and high are too near to one another for these events": len(known) == 5
            and has_counts
            and _is_narrow(self.metric, known[1:4:2], counts),
        }
        if any(faults.values()):
            raise ValueError(next(text for text, is_so in faults.items() if is_so))
        return self


def _is_narrow(metric: str, limits: Sequence[float], counts: Sequence[int]) -> bool:
    """Whether so few people cannot tell a metric so well.

    An IPA near 0 may have no width once it is rounded, and one risk for all (Aalen–Johansen) has a C of exactly .5.
    """
    _, events, subjects = counts
    if metric == "c" and [*limits] == [0.5, 0.5]:
        return False
    with np.errstate(all="ignore"):
        low, high = SCALES[metric][0](np.array(limits))
        width = float(high - low)
    return 0 < width < 0.1 / subjects if metric == "ipa" else width < 0.3 / events**0.5


class External(BaseModel, strict=True):
    """What an external validation says of its people."""

    subjects: Count
    seen_in_training: Count
    people: str | None = None  # a digest: the same people give the same


class Data(BaseModel, strict=True):
    """How many people each split has."""

    simulated: bool | None = None
    subjects: dict[str, Count]


class Site(BaseModel, strict=True, allow_inf_nan=False):
    """The part of `metrics.json` that is pooled."""

    title: Text
    split: Literal["held_out", "external"]
    external: External | None
    weights: Text
    made_of: Text | None = None
    task: dict[str, Any]
    data: Data
    causes: list[Text]
    landmarks_days: list[float | None]
    horizons_days: list[float | None]
    models: Annotated[list[Text], Field(min_length=1)]
    metrics: list[MetricRow]

    @property
    def rows(self) -> dict[Place, MetricRow]:
        """The pooled metrics of the model itself, by place."""
        return rows_by_place(self.metrics, self.models[0])

    @property
    def people(self) -> int:
        """How many can be evaluated."""
        count = self.external.subjects if self.external else self.data.subjects.get(self.split)
        return count if isinstance(count, int) else SMALLEST_COUNT - 1

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if (self.split == "external") != (self.external is not None):
            raise ValueError("external is missing, or stands beside another split")
        seen_before = self.external.seen_in_training if self.external else 0
        most = SMALLEST_COUNT - 1 if isinstance(seen_before, str) else seen_before or 0
        if most >= SMALLEST_COUNT or 10 * most > self.people:
            raise ValueError("external, seen_in_training is too large for an external validation")
        seen = set[tuple[str, Place]]()
        for number, row in enumerate(self.metrics, start=1):
            faults = {
                "metric stands twice": (row.model, row.place) in seen,
                "place is none of the task": row.cause not in self.causes
                or row.landmark_days not in (None, *self.landmarks_days)
                or row.horizon_days not in (None, *self.horizons_days),
                "subjects or events is an exact count": not self.data.simulated
                and any(shareable_count(n) != n for n in (row.subjects, row.events)),
                "subjects are more than there are": isinstance(row.subjects, int)
                and row.subjects > self.people,
            }
            for what in (what for what, is_so in faults.items() if is_so):
                raise ValueError(f"metrics, row {number}, {what}")
            seen.add((row.model, row.place))
        return self

    def conflict(self, other: "Site") -> str | None:
        """Why two files are not two places of one model, with the field; None where they are."""
        ours, theirs = (
            [(row.model, row.place, row.value, row.subjects, row.events) for row in site.metrics]
            for site in (self, other)
        )
        people = {site.external.people if site.external else site.split for site in (self, other)}
        faults = {
            "weights is that of another model": self.weights != other.weights,
            "task differs": self.task != other.task,
            "models has another model first": self.models[0] != other.models[0],
            "data, simulated differs": bool(self.data.simulated) != bool(other.data.simulated),
            "made_of is of the same evaluation": self.made_of == other.made_of is not None,
            "split or external, people is of the same people": len(people) == 1
            and None not in people,
            "metrics has the same results": ours == theirs,
        }
        return next((text for text, is_so in faults.items() if is_so), None)


def rows_by_place(rows: Sequence[MetricRow], model: str) -> dict[Place, MetricRow]:
    """The metrics of a model that are pooled, by landmark, cause, horizon and metric."""
    own = [row for row in rows if row.model == model and row.metric in SCALES]
    return {row.place: row for row in own if None not in row.place}


def read_sites(files: Sequence[Path]) -> dict[str, Site]:
    """Read the `metrics.json` of each site, by the name of its folder.

    Raises:
        EhrseqError: A file is impossible or was altered, two are of one folder's name or of the same people, or they
            are of different models or tasks.
    """
    sites: dict[str, Site] = {}
    for path in files:
        name = path.resolve().parent.name.encode(errors="replace").decode()
        if (path.parent / MANIFEST).is_file():
            manifest = read_manifest(path.parent, what="an evaluation", verify=False)
            if path.name in altered(path.parent, {**manifest, "required": []}):
                raise EhrseqError("was altered", where=str(path), fix="evaluate again at this site")
        try:
            site = Site.model_validate(read_json(path))
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            parts = [f"row {part + 1}" if isinstance(part, int) else part for part in first["loc"]]
            what = ", ".join([*parts, first["msg"].removeprefix("Value error, ")])
            raise EhrseqError(
                f"is no metrics.json: {what}", where=str(path), fix="evaluate again at this site"
            ) from error
        for known, other in sites.items():
            if why := site.conflict(other):
                raise EhrseqError(
                    f"cannot be pooled with {known}: {why}",
                    where=str(path),
                    fix="evaluate one run at each site",
                )
        if name in sites:
            raise EhrseqError(
                f"has the name of {name}",
                where=str(path),
                fix="give each site a folder of its name",
            )
        sites[name] = site
    if len(sites) < 2:
        raise EhrseqError("needs two sites or more", where="--pool", fix="name their metrics.json")
    return sites


FEWEST_POOLED, FEWEST_FOR_NEXT = 3, 5  # sites for a mean, and for where another site would lie


def pool(title: str, sites: Mapping[str, Mapping[Place, MetricRow]]) -> dict[str, Any]:
    """Pool C, O/E, IPA and the calibration slope of each landmark, cause and horizon over the sites.

    Each site's standard error comes from its interval: (g(high) - g(low)) / 3.92, with g the logit of C, the log of
    O/E, and nothing for the others. A site without an interval is listed and not pooled.

    Returns:
        `task`, `sites`, and `rows`: `landmark_days`, `cause`, `horizon_days`, `metric`, `sites` (each site's row),
        `pooled` (how many sites), and what `random_effects` gives, on the metric's own scale; null where fewer than
        three sites are pooled, and for another site where fewer than five are.
    """
    rows = []
    for place in dict.fromkeys(place for site in sites.values() for place in site):
        to_scale, back, *_ = SCALES[place[-1]]
        own = {name: site[place] for name, site in sites.items() if place in site}
        ends = np.array([(row.low, row.value, row.high) for row in own.values()], dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            low, value, high = to_scale(ends).T
            error = (high - low) / (2 * ndtri(0.975))
        used = np.isfinite(value) & np.isfinite(error) & (error > 0)
        pooled = random_effects(value[used], error[used]) if used.sum() >= FEWEST_POOLED else {}
        if used.sum() < FEWEST_FOR_NEXT:
            pooled |= dict.fromkeys(pooled.keys() & {"next_low", "next_high"}, np.nan)
        limits = {
            name: float(back(pooled[name])) if np.isfinite(pooled.get(name, np.nan)) else None
            for name in ("mean", "low", "high", "next_low", "next_high")
        }
        rows.append(
            {
                **dict(
                    zip(("landmark_days", "cause", "horizon_days", "metric"), place, strict=True)
                ),
                "sites": {name: row.model_dump() for name, row in own.items()},
                "pooled": int(used.sum()),
                **limits,
                "tau": pooled.get("tau"),
                "i2": pooled.get("i2"),
            }
        )
    return {"task": title, "sites": list(sites), "rows": rows}


def random_effects(values: Floats, errors: Floats) -> dict[str, float]:
    """Random-effects mean of sites with its Hartung–Knapp interval, and a prediction interval.

    The variance between sites is that of Paule and Mandel: where Q equals its k - 1 degrees of freedom. The interval
    uses t with k - 1 degrees of freedom and is never narrower than with the usual variance (Knapp & Hartung 2003);
    the prediction interval uses t with k - 2 (Higgins, Thompson & Spiegelhalter 2009) and needs three sites.

    Args:
        values: (k,) an estimate per site, on a scale where it is about normal; k >= 2.
        errors: (k,) their standard errors.

    Returns:
        `mean`, `low`, `high` (95 %), the standard deviation between sites `tau`, Higgins' `i2`, and `next_low` and
        `next_high`, between which the true value of another site lies with 95 % (NaN for two sites).
    """

    # the weighted mean, its variance and Cochran's Q
    def spread(tau2: float) -> tuple[float, float, float]:
        weight = 1 / (errors**2 + tau2)
        mean = float(weight @ values / weight.sum())
        return mean, float(1 / weight.sum()), float(weight @ (values - mean) ** 2)

    freedom, q, tau2 = len(values) - 1, spread(0.0)[2], 0.0
    if q > freedom:
        most = float(((values - values.mean()) ** 2).sum())  # there, Q is at most 1
        tau2 = float(brentq(lambda between: spread(between)[2] - freedom, 0.0, most))
    mean, variance, rest = spread(tau2)
    variance *= max(1.0, rest / freedom)
    reach = float(stdtrit(freedom, 0.975)) * variance**0.5
    wider = float(stdtrit(freedom - 1, 0.975)) * (tau2 + variance) ** 0.5
    return {
        "mean": mean,
        "low": mean - reach,
        "high": mean + reach,
        "tau": tau2**0.5,
        "i2": max(0.0, 1 - freedom / q) if q > 0 else 0.0,
        "next_low": mean - wider,
        "next_high": mean + wider,
    }


# ---- a walk ---------------------------------------------------------------------------------------------------------

MOST_STEPS = {"date": 5, "site": 20}
FOLDER = "walk"
FIRST_SHARE = 0.4  # of the people with an index whom the first step may train on
NOTE = (
    "The steps share training people, so that the interval of their mean is descriptive: it says how these steps "
    "vary, and not how sure a new one is."
)


def walk(
    run: Run | Path,
    *,
    over: str,
    data: Path | None = None,
    prepared: Path | None = None,
    settings: EvaluationConfig | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Shareable[dict[str, Any]]:
    """Train and evaluate in one step after another, and pool the steps; what is finished in `RUN/walk` is kept.

    Args:
        run: A finished run, or its folder, whose settings are used.
        over: `date`: windows of index dates, with training before each. `site`: one site left out at a time.
        data: The MEDS records, where they are no longer where `prepare` found them.
        prepared: The prepared set, where it is no longer where training found it.
        settings: Baselines and resamples; default: those of the run.
        progress: Called with (steps done, steps, what comes next).

    Returns:
        What `pool` gives, each step standing as a site, and `steps`: the people who trained, and those tested.

    Raises:
        EhrseqError: Records or prepared set are gone, or there is no room for two steps.
    """
    run = opened(run)
    again = Again.of_run(run, data=data, prepared=prepared, settings=settings)
    divisions = _sites(again) if over == "site" else []
    # windows for the main horizon; where the task names none, for the longest that leaves room for two of them
    main = run.task.main_horizon
    longest = [main] if main else [*reversed(run.task.horizons)]
    while over == "date" and longest and len(divisions) < 2:
        divisions = _windows_of(again, longest.pop(0))
    if len(divisions) < 2:
        raise EhrseqError(
            "there is no room for two steps",
            where=f"--walk {over}",
            fix="a step tests 50 people or more, and by date each of them can be followed for the longest horizon",
        )
    results = again.results(run.folder / FOLDER / over, divisions, progress)
    steps = {one.label: stored for one, stored in zip(divisions, results, strict=True)}
    rows = {
        label: [MetricRow.model_construct(**row) for row in without_few(stored["metrics"])]
        for label, stored in steps.items()
    }
    pooled = pool(
        run.task.heading, {label: rows_by_place(own, OURS) for label, own in rows.items()}
    )
    pooled |= {
        "over": over,
        "note": NOTE,
        "steps": [
            {"step": label, "train": one["train_subjects"], "subjects": one["held_out_subjects"]}
            for label, one in steps.items()
        ],
    }
    return redact_rows(pooled, is_simulated=bool(again.store.manifest.get("simulated")))


def _windows_of(again: Again, horizon_days: float) -> list[Division]:
    """Disjoint windows of index dates with as many people each, all of whom can be followed for a horizon."""
    task, end_us = again.run.task, int(again.store.manifest["dataset_end_us"])
    horizons = tuple(days for days in task.horizons if days <= horizon_days)
    study = again.study.model_copy(update={"task": task.model_copy(update={"horizons": horizons})})
    # the first index of each subject with a prediction time
    parts = [again.store.rows(task.name, split) for split in SPLITS]
    firsts = [rows.row_offsets[:-1][np.diff(rows.row_offsets) > 0] for rows in parts]
    own = [rows.index_us[at] for rows, at in zip(parts, firsts, strict=True)]
    first_us = np.sort(np.concatenate(own))
    room_us = round((horizon_days + task.landmarks[-1]) * DAY_US)
    usable = first_us[first_us + room_us <= end_us]
    start = max(np.searchsorted(usable, first_us[0] + room_us), round(FIRST_SHARE * len(usable)))
    steps = min(MOST_STEPS["date"], int(len(usable) - start) // FEWEST_SUBJECTS)
    if steps < 2:
        return []
    bounds = usable[np.linspace(start, len(usable) - 1, steps + 1).astype(int)] // DAY_US * DAY_US
    bounds[-1] += DAY_US
    return [
        Division(
            f"from-{date_of(a)}",
            f"{date_of(a)} to {date_of(b - 1)}",
            _divided(study, by="date", from_date=date_of(a)),
            until_us=int(b),
        )
        for a, b in zip(bounds.tolist(), bounds[1:].tolist(), strict=False)
        if b > a
    ]


def _sites(again: Again) -> list[Division]:
    """The largest sites, each left out once."""
    splits = again.study.splits
    if splits.column is None:
        raise EhrseqError(
            "the run does not say which column names the site",
            where="--walk site",
            fix="prepare with splits.by=site splits.column=COLUMN splits.held_out_sites=[SITE], and train on that",
        )
    people = sites_of(again.records, splits)
    large = [site for site, count in people.items() if count >= FEWEST_SUBJECTS]
    return [
        Division(
            f"site-{number}",
            site,
            _divided(again.study, by="site", column=splits.column, held_out_sites=(site,)),
        )
        for number, site in enumerate(large[: MOST_STEPS["site"]], start=1)
    ]


def _divided(study: StudyConfig, **splits: Any) -> StudyConfig:
    kept = study.splits.model_dump(include={"train", "tuning", "seed"})
    return study.model_copy(update={"splits": type(study.splits).model_validate(kept | splits)})
