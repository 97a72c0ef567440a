"""The counts that the report prints, as one system of sums over groups of people, and what of it may be told."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ehrsequencing.disclosure.small_counts import Count, InconsistentCounts, hide_small

_WEIGHTS: dict[Hashable, int] = {  # how much a reader would miss a count
    "group": -1,
    "curve": 0,
    "unknown": 0,
    "no_event": 0,
    "event": 1,
    "out": 2,
    "events": 2,
    "by": 3,
    "flow": 3,
    "at_risk": 3,
    "subjects": 3,
    "external": 3,
}


@dataclass
class _System:
    """Collects counts; `join` decides which tables are about the same people."""

    join: Callable[[str], Hashable]
    counts: dict[tuple[Hashable, ...], Count] = field(default_factory=dict)
    implied: list[frozenset[Hashable]] = field(default_factory=list)
    links: list[tuple[frozenset[Hashable], frozenset[Hashable]]] = field(default_factory=list)

    def add(
        self, table: str, key: tuple[Hashable, ...], value: int | None, names: Iterable[Hashable]
    ) -> None:
        if value is not None:
            scope = self.join(table)
            weight = _WEIGHTS.get(key[0], _WEIGHTS.get(key[-1], 0))
            self.counts[key] = Count(value, frozenset((scope, name) for name in names), weight)

    def imply(self, table: str, names: Iterable[Hashable]) -> None:
        scope = self.join(table)
        self.implied.append(frozenset((scope, name) for name in names))

    def link(self, some: Iterable[Hashable], same: Iterable[Hashable]) -> None:
        """Two sets of groups hold the same people; only where all tables are joined."""
        scope = self.join("")
        self.links.append(
            (frozenset((scope, name) for name in some), frozenset((scope, name) for name in same))
        )


def publish(metrics: Mapping[str, Any]) -> dict[tuple[Hashable, ...], str]:
    """Texts of every count that the report prints.

    All tables together are one system: the splits add up to the cohort flow's last step, the held-out subjects' events
    to those of the landmarks, and so on. Where the tables turn out not to be about the same people, each is judged
    alone.

    Returns:
        Texts under `("flow", i)`, `("out", i)`, `("subjects", split)`, `("events", split, cause or "censored")`,
        `("at_risk", landmark)`, `("by", landmark, cause, horizon)`,
        `("risk", landmark, cause, horizon, "event" | "no_event" | "unknown")`,
        `("group", landmark, group, level, "n" | "events")` for the rows of `subgroup_rows` (absent where they disagree
        with the other tables), `("curve", landmark, cause, horizon, "n" | "events")` and `("external",)`.
    """
    joins: list[Callable[[str], Hashable]] = [
        lambda table: "",
        lambda table: "",
        lambda table: table,
    ]
    for attempt, join in enumerate([*joins, lambda table: object()]):
        system = _System(join)
        _add_splits(system, metrics)
        _add_flow(system, metrics)
        _add_landmarks(system, metrics)
        _add_risks(system, metrics)
        _add_curves(system, metrics)
        try:
            if (
                attempt == 0
            ):  # subgroups that do not fit are not printed at all: nobody can tell what they give away
                _add_subgroups(system, metrics)
            return hide_small(system.counts, system.implied, system.links)
        except InconsistentCounts:
            continue
    raise InconsistentCounts  # pragma: no cover (counts that share nothing always agree)


def _instants(metrics: Mapping[str, Any]) -> list[float]:
    """Days since the index at which some printed count of the evaluated split begins or ends."""
    blanking = float(metrics["task"].get("blanking", 0.0))
    starts = [row["landmark_days"] + blanking for row in metrics["at_risk"]]
    ends = [
        row["landmark_days"] + h for row in metrics["at_risk"] for h in metrics["horizons_days"]
    ]
    return sorted({0.0, *(round(t, 6) for t in (*starts, *ends))})


def _split_names(metrics: Mapping[str, Any], split: str, outcome: str) -> list[Hashable]:
    """Groups of a split's subjects by how they end; those of the evaluated split also by when."""
    pieces = len(_instants(metrics)) if split == metrics["split"] else 1
    return [(split, outcome, piece) for piece in range(pieces)]


def _add_splits(system: _System, metrics: Mapping[str, Any]) -> None:
    for split, events in metrics["events"].items():
        table, everyone = (
            f"split {split}",
            [n for o in events for n in _split_names(metrics, split, o)],
        )
        for outcome, count in events.items():
            names = _split_names(metrics, split, outcome)
            system.add(table, ("events", split, outcome), count, names)
            system.imply(table, set(everyone) - set(names))
        subjects = metrics["data"]["subjects"].get(split)
        rest = [] if subjects == sum(events.values()) else [(split, "outside")]
        system.add(table, ("subjects", split), subjects, [*everyone, *rest])
        system.imply(table, rest)


def _add_flow(system: _System, metrics: Mapping[str, Any]) -> None:
    steps, table = metrics["attrition"], "flow"
    everyone = [
        n
        for s, events in metrics["events"].items()
        for o in events
        for n in _split_names(metrics, s, o)
    ]
    total = sum(count for events in metrics["events"].values() for count in events.values())
    last: list[Hashable] = everyone if steps and steps[-1]["subjects"] == total else ["at the end"]
    for i, step in enumerate(steps):
        system.add(
            table,
            ("flow", i),
            step["subjects"],
            [*last, *(("out", j) for j in range(i + 1, len(steps)))],
        )
        if i:
            system.add(table, ("out", i), excluded(steps, i), [("out", i)])
            for j in range(i):
                system.imply(table, [("out", k) for k in range(j + 1, i + 1)])


def excluded(steps: Sequence[Mapping[str, Any]], place: int) -> int:
    """How many subjects a step of the cohort flow leaves out."""
    stated = steps[place].get("excluded")
    return int(
        steps[place - 1]["subjects"] - steps[place]["subjects"] if stated is None else stated
    )


def _between(
    metrics: Mapping[str, Any], start: float, end: float | None, *outcomes: str
) -> set[Hashable]:
    """Groups of the evaluated split's subjects who leave in [start, end) days after the index in one of these ways."""
    instants = _instants(metrics)
    first = instants.index(round(start, 6))
    last = len(instants) if end is None else instants.index(round(end, 6))
    return {
        (metrics["split"], outcome, piece) for outcome in outcomes for piece in range(first, last)
    }


def _add_landmarks(system: _System, metrics: Mapping[str, Any]) -> None:
    blanking, causes = float(metrics["task"].get("blanking", 0.0)), metrics["causes"]
    outcomes, instants = [*causes, "censored"], _instants(metrics)
    for row in metrics["at_risk"]:
        landmark, table = row["landmark_days"], f"landmark {row['landmark_days']}"
        start = landmark + blanking
        everyone = _between(metrics, start, None, *outcomes)
        system.add(table, ("at_risk", landmark), row["subjects"], everyone)
        for k, horizon in enumerate(metrics["horizons_days"]):
            for cause in causes:
                names = _between(metrics, start, landmark + horizon, cause)
                system.add(table, ("by", landmark, cause, horizon), row["events"][cause][k], names)
                system.imply(table, everyone - names)
            system.imply(table, everyone - _between(metrics, start, landmark + horizon, *causes))
        for who in [
            *([o] for o in outcomes),
            outcomes,
        ]:  # every stretch of time, per way to leave and altogether
            for i, a in enumerate(instants):
                for b in instants[i + 1 :]:
                    system.imply(table, _between(metrics, a, b, *who))


def _add_risks(system: _System, metrics: Mapping[str, Any]) -> None:
    """Sizes of the three histograms: had the event, lost before the horizon, all others."""
    blanking, outcomes = (
        float(metrics["task"].get("blanking", 0.0)),
        [*metrics["causes"], "censored"],
    )
    landmarks = [row["landmark_days"] for row in metrics["at_risk"]]
    for shown in metrics["risk_distribution"]:
        landmark, cause, horizon = shown["landmark_days"], shown["cause"], shown["horizon_days"]
        key, table = ("risk", landmark, cause, horizon), f"landmark {landmark}"
        people: dict[str, Iterable[Hashable]] = {
            name: [(*key, name)] for name in ("event", "no_event", "unknown")
        }
        if landmark in landmarks:
            start, end = landmark + blanking, landmark + horizon
            event, unknown = (
                _between(metrics, start, end, cause),
                _between(metrics, start, end, "censored"),
            )
            others = _between(metrics, start, None, *outcomes) - event - unknown
            people = {"event": event, "no_event": others, "unknown": unknown}
            for left_out in (
                event,
                others,
                unknown,
            ):  # the number at risk less a histogram is the sum of the others
                system.imply(table, (event | others | unknown) - left_out)
        for name, names in people.items():
            system.add(table, (*key, name), sum(shown[name]), names)


def _add_curves(system: _System, metrics: Mapping[str, Any]) -> None:
    """Sizes that stand under the curves: the people at risk, and those of them with the event."""
    landmarks = [row["landmark_days"] for row in metrics["at_risk"]]
    blanking, outcomes = (
        float(metrics["task"].get("blanking", 0.0)),
        [*metrics["causes"], "censored"],
    )
    for row in [*(metrics.get("smooth_calibration") or []), *(metrics.get("decision") or [])]:
        landmark, cause, horizon = row["landmark_days"], row["cause"], row["horizon_days"]
        key, table = ("curve", landmark, cause, horizon), f"landmark {landmark}"
        event: Iterable[Hashable] = [("risk", landmark, cause, horizon, "event")]
        rest: Iterable[Hashable] = [
            ("risk", landmark, cause, horizon, name) for name in ("no_event", "unknown")
        ]
        if (
            landmark in landmarks
            and horizon in metrics["horizons_days"]
            and cause in metrics["causes"]
        ):
            event = _between(metrics, landmark + blanking, landmark + horizon, cause)
            rest = _between(metrics, landmark + blanking, None, *outcomes) - set(event)
        system.add(table, (*key, "events"), row.get("events"), event)
        system.add(table, (*key, "n"), row.get("n"), [*event, *rest])
        system.imply(table, rest)
    if metrics.get("external"):
        judged = metrics["data"]["subjects"].get(metrics["split"])
        subjects = metrics["external"].get("subjects")
        same = judged is not None and judged == subjects
        system.add(
            "external", ("external",), subjects, _everyone(metrics) if same else ["elsewhere"]
        )


def _everyone(metrics: Mapping[str, Any]) -> list[Hashable]:
    """Groups that make up the evaluated split's subjects, as `_add_splits` has them."""
    split, events = metrics["split"], metrics["events"].get(metrics["split"], {})
    names = [name for outcome in events for name in _split_names(metrics, split, outcome)]
    whole = metrics["data"]["subjects"].get(split) == sum(events.values())
    return names if whole else [*names, (split, "outside")]


def subgroup_rows(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The subgroups that the report shows: the cause of interest, at each landmark, by its longest defined horizon.

    All landmarks, causes and horizons are in `metrics.json`. Showing one horizon keeps the tables readable, and leaves
    few counts from which small ones could be worked out.
    """
    rows = [row for row in metrics.get("subgroups") or [] if row["cause"] == metrics["causes"][0]]
    shown: list[dict[str, Any]] = []
    for landmark in (row["landmark_days"] for row in metrics["at_risk"]):
        here = [
            row
            for row in rows
            if row["landmark_days"] == landmark and row["horizon_days"] is not None
        ]
        defined = [
            row["horizon_days"]
            for row in here
            if any(_value(row, name) is not None for name in ("oe", "auc"))
        ]
        horizon = max(defined or [row["horizon_days"] for row in here], default=None)
        shown += [row for row in here if row["horizon_days"] == horizon]
    return shown


def _value(row: Mapping[str, Any], name: str) -> float | None:
    value: float | None = (row.get(name) or {}).get("value")
    return value


def _add_subgroups(system: _System, metrics: Mapping[str, Any]) -> None:
    """Sizes and events of every level, each family of levels cutting the same people in its own way."""
    rows = [
        row for row in subgroup_rows(metrics) if row["horizon_days"] in metrics["horizons_days"]
    ]
    at_risk = {row["landmark_days"]: row["subjects"] for row in metrics["at_risk"]}
    families = [
        [row for row in rows if row["group"] == name]
        for name in dict.fromkeys(r["group"] for r in rows)
    ]
    for family in families:
        if family[0]["group"] != "age":
            _add_family(system, metrics, family, at_risk)
            continue
        for landmark in at_risk:  # people grow older: at each landmark the bands hold other people
            _add_family(
                system,
                metrics,
                [row for row in family if row["landmark_days"] == landmark],
                at_risk,
            )


def _add_family(
    system: _System,
    metrics: Mapping[str, Any],
    mine: Sequence[Mapping[str, Any]],
    at_risk: Mapping[float, int],
) -> None:
    """All levels of one family; a person has the same level in all these rows."""
    if mine:
        held = {
            landmark: sum(r["n"] for r in mine if r["landmark_days"] == landmark)
            for landmark in at_risk
        }
        levels = list(dict.fromkeys(row["level"] for row in mine))
        cuts: list[list[Hashable]] = [[*levels]]
        if any(
            held[landmark] > at_risk[landmark] for landmark in at_risk
        ):  # levels overlap: each against the rest
            cuts = [[level, ("not", level)] for level in levels]
        elif any(0 < held[landmark] < at_risk[landmark] for landmark in at_risk):
            cuts = [[*levels, ("no level",)]]
        for cut in cuts:
            _add_cut(system, metrics, [row for row in mine if row["level"] in cut], cut)


def _add_cut(
    system: _System,
    metrics: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    levels: Sequence[Hashable],
) -> None:
    """One family of levels: people by level, outcome and the stretch of time between the instants that matter here."""
    blanking, causes = float(metrics["task"].get("blanking", 0.0)), metrics["causes"]
    group = rows[0]["group"]
    spans = {row["landmark_days"]: row["landmark_days"] + row["horizon_days"] for row in rows}
    instants = sorted(
        {round(t, 6) for landmark, end in spans.items() for t in (landmark + blanking, end)}
    )
    ways = {"event": causes[:1], "else": [*causes[1:], "censored"]}

    def names(level: Hashable, start: float, end: float | None, *how: str) -> list[Hashable]:
        first = instants.index(round(start, 6))
        last = len(instants) if end is None else instants.index(round(end, 6))
        return [
            ("group", group, str(levels), str([*spans]), level, way, piece)
            for way in how
            for piece in range(first, last)
        ]

    for a, b in zip(instants, [*instants[1:], None], strict=True):
        for way, outcomes in ways.items():
            whole = _between(metrics, a, b, *outcomes)
            system.link(whole, [name for level in levels for name in names(level, a, b, way)])
    for row in rows:
        landmark, level = row["landmark_days"], row["level"]
        key, start, end = (
            ("group", landmark, group, level),
            landmark + blanking,
            landmark + row["horizon_days"],
        )
        system.add("groups", (*key, "n"), row["n"], names(level, start, None, *ways))
        system.add("groups", (*key, "events"), row["events"], names(level, start, end, "event"))
    for level in levels:
        for i, a in enumerate(instants):
            for later in [*instants[i + 1 :], None]:
                for how in (["event"], ["else"], [*ways]):
                    system.imply("groups", names(level, a, later, *how))
        for landmark, end in spans.items():
            everyone = set(names(level, landmark + blanking, None, *ways))
            system.imply("groups", everyone - set(names(level, landmark + blanking, end, "event")))
