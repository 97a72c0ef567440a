"""Redact an evaluation for sharing: every file that may leave goes through this module. Simulated data is exact.

`disclosure.py` has the rules.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from ehrsequencing.core.disclosure import (
    SMALLEST_COUNT,
    TOO_FEW,
    enough_people,
    nearest,
    rounded,
    shareable_count,
    shareable_rate,
    stands_for,
)
from ehrsequencing.core.files import Shareable
from ehrsequencing.records.account import TrainingPeople
from ehrsequencing.records.people import coarse_people
from ehrsequencing.results.observed import Cells, Row, by_shown_events, each_moved
from ehrsequencing.results.result_types import (
    CHECKS,
    COUNTS,
    RATES,
    Exact,
    PlaceRow,
    Shared,
    SharedAudit,
    place_of,
)

_FEWEST_BETWEEN = 20  # difference of two rounded counts that is of 11 people or more
#: The owner's file with the exact result; its name in `metrics.json` marks that file as redacted.
INDIVIDUAL = "metrics-individual.json"

# What `metrics.json` has of a result: facts as they are, numbers rounded.
_MADE_BY = (
    "run",
    "weights",
    "made_of",
    "split",
    "created",
    "versions",
    "config",
    "score",
    "tripod",
)
_ASKED = ("title", "task", "question", "causes", "horizons_days", "landmarks_days", "declared")
_FOUND = ("main", "models", "table1", "estimators", "strongest", "warnings", "audit")
_FACTS = (*_MADE_BY, *_ASKED, *_FOUND, "recalibrated_in_training")
_EXTERNAL = ("data", "unmatched", "subjects", "seen_in_training", "people", "new_codes", "drift")
Rows = TypeVar("Rows")  # a type of the keys


def redact(result: Exact | Shared, *, decimals: bool = True) -> Shareable[Shared]:
    """Redact an evaluation: the content of `metrics.json` from the exact result.

    What this module does not name is left out, so that no new key slips through. A redacted result stays as it is.

    Args:
        result: The exact result.
        decimals: Whether metrics are rounded; the pages round when they print, so that their words ("better") follow
            from the metrics as they are.
    """
    whole: Row = result
    if whole["data"].get("simulated") or "individual" in whole:
        return Shareable(whole)
    exact = cast(Exact, result)
    cells = _cells(exact)
    at_risk = {
        None: exact["data"]["subjects"].get(exact["split"], 0),
        **{row["landmark_days"]: row["subjects"] for row in exact["at_risk"]},
    }
    inputs = _inputs(exact["inputs"])
    parts: dict[str, Callable[[Row], Any]] = {
        "external": partial(_external, rates=inputs["by_split"]),
        "repeated_splits": partial(_repeated, cells=cells),
    }
    shown = {
        "data": _data(exact["data"]),
        # without the indexes, which are people where each has one
        "attrition": [
            _counts({name: step[name] for name in ("step", "subjects", "excluded")})
            for step in whole["attrition"]
        ],
        "events": _counts(exact["events"]),
        "at_risk": [_followed(row, at_risk) for row in exact["at_risk"]],
        "follow_up": [_followed(row, at_risk) for row in exact["follow_up"]],
        "smallest_g": [
            {**row, "g": shareable_rate(row["g"], at_risk.get(row["landmark_days"], 0))}
            for row in exact["smallest_g"]
        ],
        "metrics": [_cell(row, cells) for row in exact["metrics"]],
        "differences": [_cell(row, cells) for row in exact["differences"]],
        "marginal": [_cell(row, cells) for row in exact.get("marginal", ())],
        "dropout": _counted(whole["dropout"]) if whole.get("dropout") else None,
        "subgroups": _subgroups(exact["subgroups"]),
        "smooth_calibration": [
            _smooth(row) for row in exact["smooth_calibration"] if _may_show(row, cells)
        ],
        "decision": [_decision(row) for row in exact["decision"] if _may_show(row, cells)],
        "incidence": [
            {
                **row,
                "groups": [_risk_group(group) for group in row["groups"]],
            }
            for row in exact["incidence"]
        ],
        "ratios": [_ratio(row) for row in whole.get("ratios", ())],
        "trajectories": [],
        "inputs": inputs,
        "checks": _counted({name: exact["checks"].get(name) for name in CHECKS}),
        **{name: make(whole[name]) if whole[name] else None for name, make in parts.items()},
        "records_before": [_counted(row) for row in exact["records_before"]],
        "oracle": None,
    }
    trained = {name: whole[name] for name in ("history", "baselines", "blend")}
    shown |= _changed(trained, partial(_learned, events=exact["events"]))
    facts = {name: _changed(whole[name], _file_names) for name in _FACTS if name in whole}
    return Shareable({"individual": INDIVIDUAL, **facts, **(rounded(shown) if decimals else shown)})


def _learned(row: Row, *, events: Row) -> dict[str, Any]:
    """What training tells, without the likelihoods and weights that few people's events decide."""
    had = {
        split: {name: n for name, n in counts.items() if name != "censored"}
        for split, counts in events.items()
    }
    decided_by = {
        ("steps",): 0,  # hidden: steps × subjects a step are the training people
        ("tuning_nll",): max(had.get("tuning", {}).values(), default=0),
        ("train_nll",): max(had.get("train", {}).values(), default=0),
        # the weight of a part of a blend
        ("value", "low", "high"): had.get("train", {}).get(row.get("cause"), SMALLEST_COUNT),
    }
    hidden = {name for names, n in decided_by.items() if n < SMALLEST_COUNT for name in names}
    return {**row, **dict.fromkeys(hidden & row.keys())}


def redact_rows(exact: Rows, *, is_simulated: bool, is_pooled: bool = False) -> Shareable[Rows]:
    """Redact a result of nested rows, each with its own numbers of people, as a comparison of runs.

    What `is_pooled` was made of files that were redacted at their sites, cell by cell.
    """
    of_row = _counted if is_pooled else partial(_cell, cells={})
    whole = cast(Row, exact)
    return Shareable(whole if is_simulated else rounded(_changed(whole, of_row)))


def owners_part(result: Exact | Shared) -> dict[str, Any]:
    """What only the owner's page has of an exact result, in the place of what is redacted: exact curves."""
    whole: Row = result
    curves = {
        name: _changed(whole[name], _counted)
        for name in ("smooth_calibration", "decision", "incidence")
    }
    return {**curves, "is_owners": True}


def redact_audit(result: Row) -> Shareable[SharedAudit]:
    """Redact an audit, whose checks have hidden few people in their words: the counts of what was tested."""
    checks = [{**one, "tested": _counts(one["tested"])} for one in result["checks"]]
    return Shareable({**result, "checks": checks})


def redact_people(kept: TrainingPeople) -> Shareable[TrainingPeople]:
    """Redact what training people were like: the content of a shared copy's `people.json`."""
    return Shareable(cast(Row, coarse_people(kept)))


def _file_names(row: dict[str, Any]) -> dict[str, Any]:
    """Settings that name a file, without its folder."""
    return {
        name: Path(value).name if name in ("file", "tripod") and isinstance(value, str) else value
        for name, value in row.items()
    }


def _changed(
    value: Any, of_row: Callable[..., Any] = dict, of_leaf: Callable[[Any], Any] = lambda leaf: leaf
) -> Any:
    """Nested mappings and lists with every mapping, or every leaf, replaced by what a function makes of it."""
    if isinstance(value, Mapping):
        return of_row({name: _changed(inner, of_row, of_leaf) for name, inner in value.items()})
    if isinstance(value, list | tuple):
        return [_changed(inner, of_row, of_leaf) for inner in value]
    return of_leaf(value)


def _counts(value: Any) -> Any:
    """Every count in nested mappings and lists; texts stay."""
    return _changed(value, of_leaf=shareable_count)


def _counted(row: Row) -> dict[str, Any]:
    return {**row, **{name: _counts(row[name]) for name in COUNTS if name in row}}


def _cells(result: Exact) -> Cells:
    """(landmark, cause, horizon) → people with the event, people."""
    cells = {
        (row["landmark_days"], cause, horizon): (events, subjects)
        for row in result["at_risk"]
        for cause, counts in row["events"].items()
        for horizon, events, subjects in zip(
            result["horizons_days"], counts, row["evaluated"], strict=True
        )
    }
    counted = [row for row in result["metrics"] if row.get("events") is not None]
    return {place_of(row): (row["events"], row["subjects"]) for row in counted} | cells


def _may_show(row: Row, cells: Cells) -> bool:
    """Whether enough people had the event, and had it not, by the row's own counts or those of its cell."""
    own = row.get("events"), row.get("subjects", row.get("n"))
    events, subjects = cells.get(place_of(row), own) if None in own and cells else own
    if events is None or subjects is None:
        return True
    if row.get("metric") == "nll":  # who has no event is censored, and in the mean as everybody is
        return bool(events >= SMALLEST_COUNT)
    return enough_people(events, subjects)


def _cell(row: Row, cells: Cells) -> dict[str, Any]:
    """A row with its counts; without its metrics where too few people had the event, or had it not."""
    if _may_show(row, cells):
        return _counted(by_shown_events(row, cells))
    values = {"value", "mean", "median", "wins", "low", "high", "oe", "auc", "brier"}
    values |= {name for name in row if name.endswith("_difference")}
    gone = dict.fromkeys(values & row.keys())
    return {**_counted(row), **gone, "hidden": True, "reason": TOO_FEW}


def _subgroups(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Levels of groups of people; the difference of two O/E is that of the ratios that are shown."""
    shown, largest = list[dict[str, Any]](), dict[Any, dict[str, float]]()
    for row in rows:
        cell, place = _cell(row, {}), (row["group"], *place_of(row))
        before, after = row.get("oe") or {}, cell.get("oe") or {}
        names = [name for name in ("value", "low", "high") if after.get(name) is not None]
        moved = {name: after[name] - before[name] for name in names}
        base = largest.setdefault(place, moved)  # a group begins with its largest level
        if cell.get("oe_difference"):
            opposite = {"value": "value", "low": "high", "high": "low"}
            by = {name: moved[name] - base.get(opposite[name], 0.0) for name in moved}
            difference = each_moved(cell["oe_difference"], by, operator.add)
            cell["oe_difference"] = difference if moved and base else None
        shown.append(cell)
    return shown


def _data(data: dict[str, Any]) -> dict[str, Any]:
    whole: Row = data
    large = {name for name, count in data["subjects"].items() if count >= SMALLEST_COUNT}
    rows = {
        name: {split: shareable_count(n) for split, n in whole[name].items() if split in large}
        for name in ("visits", "prediction_times")
    }
    facts = {"name": data["name"], "simulated": data["simulated"]}
    return {**facts, **rows, "subjects": _counts(data["subjects"])}


def _followed(row: Row, at_risk: Mapping[Any, int]) -> dict[str, Any]:
    """Times in whole days, where there are enough people: a median of few is the time of one of them."""
    large = at_risk.get(row["landmark_days"], 0) >= SMALLEST_COUNT
    times = {
        name: round(row[name]) if large else None
        for name in ("median_days", "low", "high")
        if row.get(name) is not None
    }
    return {**_counted(row), **times}


def _inputs(inputs: Row) -> dict[str, Any]:
    """Rates of each split of at least 11 people; a share of few people's prediction times is left out."""
    rates = {}
    for split, row in inputs["by_split"].items():
        people, sides = row["subjects"], row.get("people", {})
        shown = {
            name: None
            if people < SMALLEST_COUNT or 0 < min(sides.get(name, [0])) < SMALLEST_COUNT
            else row[name]
            for name in RATES
        }
        shown["prediction_times"] = shareable_count(shown["prediction_times"])
        rates[split] = {"subjects": shareable_count(people), **shown}
    return {"by_split": rates}


def _external(external: Row, rates: Row) -> dict[str, Any]:
    """What an external validation says of its data; rates of tokens are those of the inputs."""
    return {
        **_counted({name: external.get(name) for name in _EXTERNAL}),
        "unknown_token_rate": rates.get("external", {}).get("unknown_token_rate"),
        "training_unknown_token_rate": rates.get("train", {}).get("unknown_token_rate"),
    }


def _repeated(repeated: Row, cells: Cells) -> dict[str, Any]:
    """Means over random splits; not each split's value."""
    return {
        "splits": repeated["splits"],
        "seeds": repeated.get("seeds"),
        **{
            name: [{**_cell(row, cells), "values": []} for row in repeated[name]]
            for name in ("rows", "differences")
        },
    }


def _risk_group(group: Row) -> dict[str, Any]:
    """Incidence without the days by which too few people of the group had the event, or had it not.

    The curve is that of rounded counts: it rises where the rounded count of events does.
    """
    n, counts = group["n"], group["events"]
    places = [nearest(had) for had in counts]
    first = [places.index(place) for place in places]  # the day of each step
    factor = [
        n / nearest(n) * place / had if had else 1.0
        for place, had in zip(places, counts, strict=True)
    ]
    shown = [not had or enough_people(had, n) for had in counts]
    curves = {
        name: [
            group[name][k] * factor[k] if ok and value is not None else None
            for value, k, ok in zip(group[name], first, shown, strict=True)
        ]
        for name in ("observed", "low", "high")
    }
    return {
        "predicted": group["predicted"],
        **curves,
        "n": _counts(group["n"]),
        "at_risk": _counts(group["at_risk"]),
    }


def _ratio(row: Row) -> dict[str, Any]:
    """O/E of a part of time and of people between those of the least and of the largest count that are shown alike."""
    if row["oe"] is None or not enough_people(row["events"], row["n"]):
        return {**_counted(row), "oe": None}
    low, high = (row["oe"] * count / row["events"] for count in stands_for(row["events"]))
    return {**_counted(row), "oe": None, "low": low, "high": high}


def _smooth(row: PlaceRow) -> dict[str, Any]:
    """A calibration curve over the histogram of the risks, whose bars are of rounded counts."""
    bars = row["histogram"]
    shares = [round(nearest(n) / nearest(row["n"]), 3) or None for n in bars["n"]]
    return {**_counted(row), "histogram": {"edges": bars["edges"], "shares": shares}}


def _decision(row: PlaceRow) -> dict[str, Any]:
    """A decision curve of rounded counts, where at least 11 people stand above the threshold, none of them few.

    Operating points are shown where 11 people above it had the event, 11 had not, and none or 11 were missed.
    """
    n, odds = row["n"], [threshold / (1 - threshold) for threshold in row["thresholds"]]
    counts = list(zip(row["events_above"], row["above"], odds, strict=True))
    shown = [nearest(above) > 0 and not 0 < had < SMALLEST_COUNT for had, above, _ in counts]
    moved = [_by_rounding(*one, of=n) for one in counts]
    factors = [_operating_factors(had, above, row["events"], n) for had, above, _ in counts]
    everyone = [_by_rounding(row["events"], n, one, of=n) for one in odds]
    columns: Row = row
    return {
        **_counted(row),
        **_points(row, ("net_benefit", "low", "high"), shown, moved),
        **_points(row, ("treat_all",), shown, everyone),
        **{
            name: [
                v and by and min(round(v * by[name.partition("_")[0]], 9), 1.0)
                for v, by in zip(columns[name], factors, strict=True)
            ]
            for name in columns
            if name.startswith(("flagged", "sensitivity", "ppv"))
        },
        "above": [],
        "events_above": [],
    }


def _operating_factors(had: int, above: int, events: int, n: int) -> dict[str, float] | None:
    """What a share is multiplied with so that it is one of rounded counts; None where few people would be told."""
    counts = had, above, events, n
    to_had, to_above, to_events, to_n = (nearest(count) / max(count, 1) for count in counts)
    falsely, missed = nearest(above) - nearest(had), nearest(events) - nearest(had)
    if not to_had or falsely < _FEWEST_BETWEEN or 0 < missed < _FEWEST_BETWEEN:
        return None
    return {"flagged": to_above / to_n, "sensitivity": to_had / to_events, "ppv": to_had / to_above}


def _by_rounding(events: int, people: int, odds: float, *, of: int) -> float:
    """How much a net benefit moves when it is computed from rounded counts."""
    exact = (events - (people - events) * odds) / of
    events, people, of = map(nearest, (events, people, of))
    return (events - (people - events) * odds) / of - exact


def _points(
    row: Row, names: Sequence[str], shown: Sequence[bool], moved: Sequence[float]
) -> dict[str, Any]:
    """Curves with a number added to each point; None where a point may not be shown."""
    return {
        name: row[name]
        and [
            round(v + by, 9) if ok and v is not None else None
            for v, ok, by in zip(row[name], shown, moved, strict=True)
        ]
        for name in names
    }
