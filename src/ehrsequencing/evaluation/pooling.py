"""Pool the evaluations of one model at several sites, by random effects over their `metrics.json`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, Field, ValidationError, model_validator
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import norm, t

from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.disclosure import shareable_count
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json
from ehrsequencing.core.outputs import MANIFEST, altered, read_manifest

#: Each pooled metric: to the scale on which it is pooled and back, and its possible values.
SCALES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], float, float]] = {
    "c": (logit, expit, 0.0, 1.0),
    "oe": (np.log, np.exp, 0.0, np.inf),
    "ipa": (np.asarray, np.asarray, -np.inf, 1.0),
    "slope": (np.asarray, np.asarray, -np.inf, np.inf),
}
Count = Annotated[int, Field(ge=0)] | Literal["<11"] | None
Place = tuple[float | None, str, float | None, str]


class MetricRow(BaseModel, strict=True, allow_inf_nan=False):
    """A row of `metrics`: one metric of one model at one place, with its 95 % interval."""

    model: str
    landmark_days: float | None
    cause: str
    horizon_days: float | None
    metric: str
    value: float | None
    low: float | None
    high: float | None
    subjects: Count
    events: Count

    @property
    def place(self) -> Place:
        """Landmark, cause, horizon and metric."""
        return self.landmark_days, self.cause, self.horizon_days, self.metric

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        *_, least, most = SCALES.get(self.metric, (-np.inf, np.inf))
        known = [x for x in (least, self.low, self.value, self.high, most) if x is not None]
        if known != sorted(known):
            raise ValueError(f"{self.metric} is not in its interval, or not possible")
        return self


class Site(BaseModel, strict=True):
    """The part of `metrics.json` that is pooled."""

    title: str
    weights: str | None
    task: dict[str, Any]
    data: dict[str, Any]
    models: Annotated[list[str], Field(min_length=1)]
    metrics: list[MetricRow]

    @property
    def rows(self) -> dict[Place, MetricRow]:
        """The pooled metrics of the model itself, by place."""
        own = [row for row in self.metrics if row.model == self.models[0] and row.metric in SCALES]
        return {row.place: row for row in own if None not in row.place}

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if len({(row.model, *row.place) for row in self.metrics}) != len(self.metrics):
            raise ValueError("a metric stands twice")
        counts = [count for row in self.metrics for count in (row.subjects, row.events)]
        if not self.data.get("simulated") and any(shareable_count(n) != n for n in counts):
            raise ValueError("an exact count of people is in it")
        return self


def read_sites(files: Sequence[Path]) -> dict[str, Site]:
    """Read the `metrics.json` of each site, by the name of its folder.

    Raises:
        EhrseqError: A file is impossible or was altered, two are of one folder's name or of the same people, or they
            are of different models or tasks.
    """
    sites: dict[str, Site] = {}
    for path in files:
        if (path.parent / MANIFEST).is_file():
            manifest = read_manifest(path.parent, what="an evaluation", verify=False)
            if path.name in altered(path.parent, {**manifest, "required": []}):
                raise EhrseqError("was altered", where=str(path), fix="evaluate again at this site")
        try:
            site = Site.model_validate(read_json(path))
        except ValidationError as error:
            what = f"is no metrics.json: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}"
            raise EhrseqError(what, where=str(path), fix="evaluate again at this site") from error
        for name, other in sites.items():
            what = f"is not of the same model and task as that of {name}"
            if (site.weights, site.task) != (other.weights, other.task):
                raise EhrseqError(what, where=str(path), fix="evaluate one run at each site")
            if site.metrics == other.metrics or name == path.resolve().parent.name:
                what = f"has the results or the name of {name}"
                raise EhrseqError(what, where=str(path), fix="give each site a folder of its name")
        sites[path.resolve().parent.name] = site
    if len(sites) < 2:
        raise EhrseqError("needs two sites or more", where="--pool", fix="name their metrics.json")
    return sites


def pool(sites: Mapping[str, Site]) -> dict[str, Any]:
    """Pool C, O/E, IPA and the calibration slope of each landmark, cause and horizon over the sites.

    Each site's standard error comes from its interval: (g(high) - g(low)) / 3.92, with g the logit of C, the log of
    O/E, and nothing for the others. A site without an interval is listed and not pooled.

    Returns:
        `task`, `sites`, and `rows`: `landmark_days`, `cause`, `horizon_days`, `metric`, `sites` (each site's row),
        `pooled` (how many sites), and what `random_effects` gives, on the metric's own scale; null where fewer than
        two sites are pooled.
    """
    rows = []
    for place in dict.fromkeys(place for site in sites.values() for place in site.rows):
        to_scale, back, *_ = SCALES[place[-1]]
        own = {name: site.rows[place] for name, site in sites.items() if place in site.rows}
        ends = np.array([(row.low, row.value, row.high) for row in own.values()], dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            low, value, high = to_scale(ends).T
            error = (high - low) / (2 * norm.ppf(0.975))
        used = np.isfinite(value) & np.isfinite(error) & (error > 0)
        found = random_effects(value[used], error[used]) if used.sum() > 1 else {}
        limits = {
            name: float(back(found[name])) if np.isfinite(found.get(name, np.nan)) else None
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
                "tau": found.get("tau"),
                "i2": found.get("i2"),
            }
        )
    return {"task": next(iter(sites.values())).title, "sites": list(sites), "rows": rows}


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
    reach = float(t.ppf(0.975, freedom)) * variance**0.5
    wider = float(t.ppf(0.975, freedom - 1)) * (tau2 + variance) ** 0.5
    return {
        "mean": mean,
        "low": mean - reach,
        "high": mean + reach,
        "tau": tau2**0.5,
        "i2": max(0.0, 1 - freedom / q) if q > 0 else 0.0,
        "next_low": mean - wider,
        "next_high": mean + wider,
    }
