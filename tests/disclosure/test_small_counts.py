"""Counts from 1 to 10 are hidden, so that nobody can work them out from the tables."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ehrsequencing.disclosure import counts as published
from ehrsequencing.disclosure import small_counts
from ehrsequencing.disclosure.counts import publish, subgroup_rows
from ehrsequencing.disclosure.small_counts import Count, hide_small, merge_bins, pool_groups
from ehrsequencing.reporting.report import render
from helpers.metrics_json import WIDE, YEAR, complete, example
from helpers.report_page import only_small_ones


def worlds(counts: dict[Any, Count], texts: dict[Any, str], reach: int) -> Iterator[dict[Any, int]]:
    """All numbers of people per group, up to `reach`, that agree with what is printed: a brute-force reader."""
    groups = sorted({g for count in counts.values() for g in count.groups})
    for sizes in itertools.product(range(reach + 1), repeat=len(groups)):
        world = dict(zip(groups, sizes, strict=True))
        for key, count in counts.items():
            total, text = sum(world[g] for g in count.groups), texts[key]
            if text == "hidden":
                continue
            if text == "<11":
                agrees = 1 <= total <= 10
            elif text[0] == "≥":
                agrees = total >= int(text[1:].replace(",", ""))
            else:
                agrees = total == int(text.replace(",", ""))
            if not agrees:
                break
        else:
            yield world


def narrowest(counts: dict[Any, Count], texts: dict[Any, str], reach: int) -> int:
    """How many values the best pinned-down small count may still have."""
    seen = list(worlds(counts, texts, reach))
    small = [count for count in counts.values() if 1 <= count.value <= 10]
    return min((len({sum(w[g] for g in count.groups) for w in seen}) for count in small), default=99)


def table(parts: list[int], extra: frozenset[str] = frozenset()) -> dict[Any, Count]:
    names = "abcdefg"[: len(parts)]
    counts = {name: Count(value, frozenset({name})) for name, value in zip(names, parts, strict=True)}
    whole = {"total": frozenset(names), **({"some": extra} if extra else {})}
    sizes = dict(zip(names, parts, strict=True))
    return counts | {key: Count(sum(sizes[g] for g in members), members) for key, members in whole.items()}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 26), min_size=2, max_size=3), st.sets(st.sampled_from("ab"), min_size=1))
def test_no_small_count_can_be_worked_out(parts: list[int], extra: set[str]) -> None:
    counts = table(parts, frozenset(extra))
    texts = hide_small(counts)
    for key, count in counts.items():
        assert texts[key] != str(count.value) or count.value == 0 or count.value >= 11
    assert narrowest(counts, texts, reach=40) >= 5


def test_hiding_only_the_small_ones_is_caught() -> None:
    counts = table([5, 30, 20])
    assert narrowest(counts, only_small_ones(counts), reach=40) == 1
    assert narrowest(counts, hide_small(counts), reach=40) >= 5
    two = table([1, 1, 30])  # two hidden ones whose sum gives them away
    assert narrowest(two, only_small_ones(two), reach=40) == 1
    assert narrowest(two, hide_small(two), reach=40) >= 5


def test_hand_counted_tables() -> None:
    assert hide_small(table([12, 30])) == {"a": "12", "b": "30", "total": "42"}
    assert hide_small(table([0, 30])) == {"a": "0", "b": "30", "total": "30"}  # nobody is not a small group
    assert hide_small(table([5, 30])) == {"a": "<11", "b": "≥11", "total": "35"}  # 35 - 30 would tell
    assert hide_small(table([5, 2000, 100])) == {"a": "<11", "b": "2,000", "c": "≥100", "total": "2,105"}
    assert hide_small({}) == {}
    nested = {"by 1 year": Count(30, frozenset("a")), "by 3 years": Count(33, frozenset("ab"))}
    assert hide_small(nested) == {"by 1 year": "≥11", "by 3 years": "33"}  # three people between them
    apart = {"sex": Count(30, frozenset("a")), "age": Count(33, frozenset("bc"))}
    assert hide_small(apart) == {"sex": "30", "age": "33"}  # nobody's difference
    assert hide_small(apart | {"old": Count(25, frozenset("c"))}, [frozenset("b")])["age"] == "33"
    with pytest.raises(small_counts.InconsistentCounts):
        hide_small({1: Count(30, frozenset("ab")), 2: Count(31, frozenset("a"))})
    with pytest.raises(small_counts.InconsistentCounts):
        hide_small({1: Count(30, frozenset("a")), 2: Count(31, frozenset("a"))})


def differences(metrics: dict[str, Any], texts: dict[Any, str]) -> list[int]:
    """What a reader of the printed tables gets by subtracting: plain arithmetic, apart from the code under test."""
    horizons = metrics["horizons_days"]
    number = {key: int(text.replace(",", "")) for key, text in texts.items() if text.replace(",", "").isdigit()}
    pairs = [(("flow", i), ("flow", j)) for i in range(9) for j in range(i + 1, 9)]
    wholes = [(("subjects", s), [("events", s, o) for o in events]) for s, events in metrics["events"].items()]
    for row in metrics["at_risk"]:
        landmark = row["landmark_days"]
        for cause in metrics["causes"]:
            by = [("by", landmark, cause, h) for h in horizons]
            pairs += [*zip(by[1:], by, strict=False), *((("at_risk", landmark), key) for key in by)]
            for h in horizons:
                sizes = [("risk", landmark, cause, h, name) for name in ("event", "no_event", "unknown")]
                wholes.append((("at_risk", landmark), sizes))
    shown = subgroup_rows(metrics)
    for row in shown:  # n less events; the same group at a later landmark; all subjects less the other levels
        key = ("group", row["landmark_days"], row["group"], row["level"])
        later = [("group", r["landmark_days"], *key[2:]) for r in shown if r["landmark_days"] > row["landmark_days"]]
        pairs += [((*key, "n"), (*key, "events"))]
        pairs += [((*key, "n"), (*other, "n")) for other in later if row["group"] != "age"]
    for landmark, group in dict.fromkeys((row["landmark_days"], row["group"]) for row in shown):
        levels = [r for r in shown if (r["landmark_days"], r["group"]) == (landmark, group)]
        by = ("by", landmark, metrics["causes"][0], levels[0]["horizon_days"])
        for whole, what in ((("at_risk", landmark), "n"), (by, "events")):
            wholes.append((whole, [("group", landmark, group, r["level"], what) for r in levels]))
    steps = [("flow", i) for i in range(len(metrics["attrition"]))]
    wholes += [(a, [b, ("out", i + 1)]) for i, (a, b) in enumerate(itertools.pairwise(steps))]
    found = [number[a] - number[b] for a, b in pairs if a in number and b in number]
    for whole, parts in wholes:
        for left_out in parts:
            if all(key in number for key in (whole, *parts) if key != left_out):
                found.append(number[whole] - sum(number[key] for key in parts if key != left_out))
    return found


@pytest.mark.parametrize("subjects", [60, 312, 1500, 9000])
def test_no_small_count_is_left_in_the_tables(subjects: int) -> None:
    metrics = complete(subjects=subjects, **WIDE)
    texts = publish(metrics)
    assert any(key[0] == "group" for key in texts)
    assert not [text for text in texts.values() if text.isdigit() and 1 <= int(text) <= 10]
    assert not [d for d in differences(metrics, texts) if 1 <= abs(d) <= 10]
    if subjects > 60:
        assert texts["flow", 0] == f"{subjects + 431:,}"  # and yet the tables say something


def test_naive_hiding_leaves_small_counts_in_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "hide_small", lambda counts, implied, links: only_small_ones(counts))
    metrics = example(subjects=1500, **WIDE)
    assert [d for d in differences(metrics, publish(metrics)) if 1 <= abs(d) <= 10]


def test_the_page_prints_no_small_count() -> None:
    metrics = complete(subjects=312, **WIDE)
    html = render(metrics)
    for row in re.findall(r"<tr.*?</tr>", html, flags=re.DOTALL):
        cells = re.findall(r"<t[dh][^>]*>([\d,]+)</t[dh]>", row)
        assert not [c for c in cells if 1 <= int(c.replace(",", "")) <= 10]
    assert not re.findall(r"n\s=\s(?:[1-9]|10)\b", html)
    assert "&lt;11" in html


def test_tables_of_different_people_are_judged_apart() -> None:
    metrics = example(subjects=9000, **WIDE)
    metrics["at_risk"][0]["subjects"] += 5000  # more than the split holds: rows, not subjects
    texts = publish(metrics)
    assert texts["at_risk", YEAR] == f"{metrics['at_risk'][0]['subjects']:,}"
    metrics["risk_distribution"][0]["landmark_days"] = None
    assert ("risk", None, "death", YEAR, "event") in publish(metrics)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=25))
def test_bars_are_joined_until_none_is_small(counts: list[int]) -> None:
    edges = [float(k) for k in range(len(counts) + 1)]
    bars = merge_bins(edges, counts)
    assert all(count == 0 or count >= 11 for _, _, count in bars)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(bars))
    total = sum(counts)
    assert sum(count for *_, count in bars) == (total if total >= 11 else 0)
    for left, right, count in bars:
        assert sum(counts[int(left) : int(right)]) == count


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), min_size=1, max_size=12))
def test_calibration_groups_are_joined_until_none_is_small(groups: list[tuple[int, float]]) -> None:
    n, observed = [float(size) for size, _ in groups], [round(size * rate) / size for size, rate in groups]
    wide = {"low": [max(o - 0.1, 0) for o in observed], "high": [min(o + 0.1, 1) for o in observed]}
    predicted = [k / len(groups) for k in range(len(groups))]
    points = pool_groups({"predicted": predicted, "observed": observed, "n": n, **wide})
    events = sum(a * b for a, b in zip(n, observed, strict=True))
    enough = min(round(events), round(sum(n) - events)) >= 11
    assert bool(points) == enough
    for p in points:
        assert p.n is not None
        assert min(round(p.n * p.observed), round(p.n * (1 - p.observed))) >= 11
        assert p.low is not None
        assert p.high is not None
        assert 0 <= p.low <= p.observed <= p.high <= 1
    if enough:
        assert sum(p.n or 0 for p in points) == pytest.approx(sum(n))
        assert sum((p.n or 0) * p.observed for p in points) == pytest.approx(events)
