"""The page's tables beside the metrics: inputs, checks, follow-up, subgroups, refits, repeated splits.

In: a redacted evaluation and the texts of its counts. Out: cells as text. A share of fewer than 11 people is withheld.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ehrsequencing.core.disclosure import TOO_FEW
from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.reporting.chart import Estimate
from ehrsequencing.reporting.scores import Scores, Shown
from ehrsequencing.reporting.wording import (
    duration,
    from_landmark,
    interval,
    number,
    percent,
    size,
    with_interval,
)
from ehrsequencing.results.result_types import PlaceRow, Shared, place_of


def share(rate: float | None) -> str:
    """A share of people; one that would stand for fewer than 11 of them is withheld."""
    return "withheld" if rate is None else percent(rate)


# ------------------------------------------------------------------------------------------------ inputs and checks


# ------------------------------------------------------------------------------------------ follow-up and subgroups


def follow_up(m: Shared, shown: Shown) -> dict[str, object] | None:
    """Median follow-up, and the share still observed at each horizon, per landmark."""
    medians = {row["landmark_days"]: row for row in m["follow_up"]}
    still = {(row["landmark_days"], row["horizon_days"]): row for row in m["smallest_g"]}
    landmarks = list(dict.fromkeys([*medians, *(landmark for landmark, _ in still)]))
    if not landmarks:
        return None
    rows = []
    for landmark in landmarks:
        rest = [still.get((landmark, h)) for h in m["horizons_days"]]
        cells = [
            ("–" if row is None else share(row["g"]), row is not None and row["thin"])
            for row in rest
        ]
        median = medians.get(landmark)
        words = (
            with_interval(median["median_days"], median["low"], median["high"], duration)
            if median
            else "–"
        )
        rows.append((from_landmark(landmark), shown.get(("at_risk", landmark), "–"), words, cells))
    return {"rows": rows, "is_complete": {row["g"] for row in still.values()} == {1.0}}


def subgroups(m: Shared, shown: Shown) -> list[dict[str, Any]]:
    """Per landmark: a table of the levels."""
    out = []
    rows = subgroup_rows(m)
    for landmark in dict.fromkeys(row["landmark_days"] for row in rows):
        here = [row for row in rows if row["landmark_days"] == landmark]
        families = dict[str, list[dict[str, Any]]]()
        for row in here:  # a line a level, with its metrics where they may be told
            level = str(row["level"])
            parts = {"oe": row["oe"], "auc": row["auc"], "brier": row["brier"]}
            line: dict[str, Any] = {
                "name": level,
                "told": not row.get("hidden"),
                "n": f"{row['n']:,}" if isinstance(row["n"], int) else row["n"],
                "events": f"{row['events']:,}" if isinstance(row["events"], int) else row["events"],
                "few": any(part and part["reason"] == TOO_FEW for part in parts.values()),
            }
            for name, part in parts.items():
                ends = (part["value"], part["low"], part["high"]) if part else (None,)
                line[name] = Estimate(0, level, *ends)
            families.setdefault(row["group"], []).append(line)
        horizon = here[0]["horizon_days"]
        place = f"{from_landmark(landmark)}, by {duration(horizon)}".capitalize()
        n = shown.get(("evaluated", landmark, horizon))
        caption = place if n is None else f"{place}, {size(n)}"
        out.append({"caption": caption, "landmark": landmark, "families": families})
    return out


def subgroup_rows(m: Shared) -> list[PlaceRow]:
    """The subgroups that the report shows: the cause of interest, at each landmark, by the main horizon.

    All landmarks, causes and horizons are in `metrics.json`. Showing one horizon keeps the tables readable.
    """
    place = m["causes"][0], m["main"]["horizon_days"]
    return [row for row in m["subgroups"] if (row["cause"], row["horizon_days"]) == place]


def ratios(m: Shared) -> dict[str, Any] | None:
    """O/E by part of the future (columns) and tenth of risk (rows); None where no cell may be told."""
    cells, rows = dict[float, list[str]](), m.get("ratios", [])
    for row in rows:
        text = "–" if row["oe"] is None else f"{row['oe']:.2f}"
        if "low" in row:
            text = f"{row['low']:.2f} to {row['high']:.2f}"
        cells.setdefault(row["tenth"], []).append(text)
    told = {round(tenth): texts for tenth, texts in cells.items() if set(texts) != {"–"}}
    if not told:
        return None
    spans = dict.fromkeys((row["from_days"], row["until_days"]) for row in rows)
    columns = [f"{duration(begin)} to {duration(end)}" for begin, end in spans]
    return {"columns": columns, "rows": sorted(told.items())}


def weightings(table: Scores) -> dict[str, Any] | None:
    """Every model's numbers at the main place with weights by the history and without; None where there are none."""
    place = (table.main()[0], table.m["causes"][0], table.main()[1])
    keys = [key for key in ("c", "auc", "ipa", "oe", "slope") if key in METRICS]

    def text(rows: Mapping[Any, Any], model: str, key: str) -> str:
        value = (rows.get((model, *place, key)) or {}).get("value")
        return "–" if value is None else number(value, f"z.{METRICS[key].digits}f")

    rows = [
        (name, [(text(table.values, name, key), text(table.marginal, name, key)) for key in keys])
        for name in table.models
    ]
    return (
        {"columns": [METRICS[key].name for key in keys], "rows": rows} if table.marginal else None
    )


# ------------------------------------------------------------- repeated splits, blend, codes that count


def repeated(m: Shared) -> list[dict[str, object]]:
    """Means over random splits with corrected intervals: those of the main landmark and horizon first."""
    if m["repeated_splits"] is None:
        return []
    rows, differences = m["repeated_splits"]["rows"], m["repeated_splits"]["differences"]
    gaps = {(place_of(row), row["model"], row["metric"]): row for row in differences}
    blocks = dict[tuple[float | None, str, float | None], list[tuple[str, ...]]]()
    for row in rows:
        gap = gaps.get((place_of(row), row["model"], row["metric"]))
        cells = [row["model"], METRICS[row["metric"]].name, _mean(row), _mean(gap, "+")]
        blocks.setdefault(place_of(row), []).append(tuple(cells))
    main = m["main"]["landmark_days"], m["causes"][0], m["main"]["horizon_days"]
    captioned = list[dict[str, object]]()
    for place in sorted(blocks, key=lambda place: place != main):
        landmark, cause, horizon = place
        where = from_landmark(landmark) + ("" if horizon is None else f", by {duration(horizon)}")
        captioned.append({"caption": f"{cause}: {where}", "rows": blocks[place]})
    return captioned


def over_splits(m: Shared, metrics: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Model → mean over random splits and its interval, a pair a metric, at the main place; empty without splits."""
    main = m["main"]["landmark_days"], m["causes"][0], m["main"]["horizon_days"]
    table: dict[str, list[tuple[str, str]]] = {}
    for row in (m["repeated_splits"] or {"rows": []})["rows"]:
        if place_of(row) == main and row["metric"] in metrics and row["mean"] is not None:
            show = ".0%" if row["metric"] == "ipa" else ".2f"
            cells = table.setdefault(row["model"], [("–", "")] * len(metrics))
            around = interval(row["low"], row["high"], show)
            cells[metrics.index(row["metric"])] = number(row["mean"], show), around
    return table


def _mean(row: dict[str, Any] | None, sign: str = "") -> str:
    """A mean over splits with its interval; empty where none was computed."""
    if row is None:
        return ""
    if row["mean"] is None and row.get("hidden"):
        return str(row["reason"])
    show = f"{sign}.{METRICS[row['metric']].digits}f"
    words = with_interval(row["mean"], row["low"], row["high"], show)
    if row.get("median") is not None:
        words += f"; median {row['median']:{show}}"
    return words + (
        f"; better in {row['wins']} of {row['of']}" if row.get("wins") is not None else ""
    )
