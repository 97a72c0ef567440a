"""Rows of `engine.py` → Markdown tables. The goals are those of the design; a cell shows median (quartiles)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Spread = Sequence[float]


@dataclass(frozen=True)
class Goal:
    """One line of the table of goals.

    Attributes:
        what: As in the design.
        must: The least (most, for costs) to reach.
        aim: What a prototype saw.
        row: Which row holds the measurement.
        value: Name of the number there.
        percent: Whether it is a share.
    """

    what: str
    must: str
    aim: str
    row: dict[str, object]
    value: str = "ratio"
    percent: bool = False


_SHAPES = {"dense": "dense 50×30"}


def _ratio(shape: str, mode: str, slow: str, fast: str, dim: int, must: str, aim: str) -> Goal:
    """How many times as long one contender may take as another."""
    what = f"{_SHAPES.get(shape, shape)}, {mode}, {slow} ÷ {fast}, d{dim}"
    place = {"shape": shape, "mode": mode, "slow": slow, "fast": fast, "dim": dim}
    return Goal(what, must, aim, {"section": "ratio", **place})


def _share(what: str, value: str, must: str, aim: str, **row: object) -> Goal:
    """A share that is measured."""
    return Goal(what, must, aim, row, value, percent=True)


_RAGGED = "ragged truncated"
_OUTSIDE = "`train` outside forward, backward, optimiser"
_DATA = ("simulated", "mimic4_demo", "physionet2012")
_OF_PEAK = {128: ("40 %", "55 %"), 256: ("55 %", "75 %")}
GOALS = [
    _ratio("dense", "train", "flat", "ours", 128, "45", "58"),
    _ratio("dense", "train", "flat", "ours", 256, "34", "45"),
    _ratio(_RAGGED, "train", "padded", "ours", 128, "3.3", "4.9"),
    _ratio(_RAGGED, "train", "padded", "ours bf16", 128, "5.5", "8"),
    _ratio(_RAGGED, "train", "padded", "ours bf16", 256, "9", "12"),
    _ratio(_RAGGED, "inference", "padded", "ours", 128, "6", "8"),
    _ratio(_RAGGED, "inference", "padded", "ours bf16", 128, "10", "14"),
    *(
        _share(f"GEMM peak, {shape}, d{dim}", "share", *goal, section="share", shape=shape, dim=dim)
        for dim, goal in _OF_PEAK.items()
        for shape in ("dense", _RAGGED)
    ),
    Goal("peak memory, dense B=32, flat ÷ ours", "5", "6.6", {"section": "memory ratio"}),
    *(
        _share(f"{what}, {data}", value, must, aim, section="train", data=data)
        for what, value, must, aim in (
            ("collate ÷ step", "collate", "≤ 5 %", "≤ 3 %"),
            (_OUTSIDE, "outside", "≤ 8 %", "≤ 4 %"),
        )
        for data in _DATA
    ),
]


def goals_table(rows: list[Row]) -> str:
    """Every goal with what was measured at each number of threads; goals that were not measured are named as such."""
    found_rows = rows + memory_ratio(rows)
    threads = sorted({row["threads"] for row in rows if "threads" in row}) or [1]
    lines = _header(["goal", "must", "aim", *(f"{n} thread{'s' * (n > 1)}" for n in threads)])
    for goal in GOALS:
        cells = []
        for n in threads:
            wanted = {**goal.row, "threads": n}
            cells.append(
                next(
                    (
                        spread(row[goal.value], percent=goal.percent)
                        for row in found_rows
                        if _fits(row, wanted)
                    ),
                    "",
                )
            )
        lines.append(
            _line([goal.what, goal.must, goal.aim, *(cell or "not in this run" for cell in cells)])
        )
    others = [""] * (len(threads) - 1)  # measured with one thread
    ingest = "5 M events per CPU-second, ≤ 0.6 GiB"
    lines.append(
        _line(
            ["cost against data, subjects", "within 15 %", "within 5 %", _worst_cost(rows), *others]
        )
    )
    lines.append(_line(["MEDS → prepared", ingest, "10 M, 0.4 GiB", "see bench ingest", *others]))
    return "\n".join(lines)


def memory_ratio(rows: list[Row]) -> list[Row]:
    """Flat's peak over ours, both beyond what the imports take."""
    peaks = {row["contender"]: row["peak_mib"] for row in rows if row["section"] == "memory"}
    return (
        [{"section": "memory ratio", "ratio": [peaks["flat"] / peaks["ours"]] * 3, "threads": 1}]
        if peaks
        else []
    )


def ratios_table(rows: list[Row]) -> str:
    """Every ratio of the section `step`, and each model's own time."""
    ratios = [row for row in rows if row["section"] == "ratio"]
    pairs = list(dict.fromkeys((row["slow"], row["fast"]) for row in ratios))
    cells = list(dict.fromkeys(_cell(row) for row in ratios))
    lines = _header(
        [
            "records",
            "",
            "size",
            "threads",
            "ours, µs per visit",
            *(f"{slow} ÷ {fast}" for slow, fast in pairs),
        ]
    )
    for cell in cells:
        here = {
            (row["slow"], row["fast"]): spread(row["ratio"]) for row in ratios if _cell(row) == cell
        }
        ours = next(
            row
            for row in rows
            if row["section"] == "step" and _cell(row) == cell and row["contender"] == "ours"
        )
        shape, mode, dim, layers, threads = cell
        lines.append(
            _line(
                [
                    shape,
                    mode,
                    f"d{dim}, {layers} layers",
                    str(threads),
                    spread(ours["us_per_visit"]),
                    *(here[pair] for pair in pairs),
                ]
            )
        )
    return "\n".join(lines)


def sections_table(rows: list[Row]) -> str:
    """GEMM peaks, memory, the parts of training, and cost against data."""
    return "\n\n".join(
        text for text in (_shares(rows), _memory(rows), _train(rows), _scaling(rows)) if text
    )


def _shares(rows: list[Row]) -> str:
    found = [row for row in rows if row["section"] == "share"]
    lines = _header(
        ["records", "size", "threads", "GEMM peak, GFLOP/s", "kFLOP per visit", "our share"]
    )
    for row in found:
        lines.append(
            _line(
                [
                    row["shape"],
                    f"d{row['dim']}, {row['layers']} layers",
                    str(row["threads"]),
                    spread(row["peak_gflops"]),
                    f"{row['kflops_per_visit'][1]:.0f}",
                    spread(row["share"], percent=True),
                ]
            )
        )
    return "\n".join(lines) if found else ""


def _memory(rows: list[Row]) -> str:
    found = [row for row in rows if row["section"] == "memory"]
    lines = _header(["model", "size", "subjects", "peak beyond imports, MiB", "imports, MiB"])
    for row in found:
        lines.append(
            _line(
                [
                    row["contender"],
                    f"d{row['dim']}, {row['layers']} layers",
                    str(row["subjects"]),
                    f"{row['peak_mib']:.0f}",
                    f"{row['imports_mib']:.0f}",
                ]
            )
        )
    return "\n".join(lines) if found else ""


def _train(rows: list[Row]) -> str:
    found = [row for row in rows if row["section"] == "train"]
    parts = list(dict.fromkeys(part for row in found for part in row["parts"]))
    lines = _header(["data", "seconds", *parts])
    for row in found:
        shares = [spread(row["parts"].get(part, [0.0] * 3), percent=True) for part in parts]
        lines.append(_line([row["data"], spread(row["seconds"]), *shares]))
    return "\n".join(lines) if found else ""


def _scaling(rows: list[Row]) -> str:
    found = [row for row in rows if row["section"] == "scaling"]
    lines = _header(
        [
            "subjects",
            "µs per subject and epoch",
            "÷ the smallest cohort's",
            "own memory, MiB",
            "peak RSS, MiB",
        ]
    )
    for row in found:
        values = (
            row[name] for name in ("us_per_subject", "against_smallest", "own_mib", "peak_mib")
        )
        lines.append(_line([f"{row['subjects']:,}", *(spread(value) for value in values)]))
    return "\n".join(lines) if found else ""


def _worst_cost(rows: list[Row]) -> str:
    costs = [row["against_smallest"] for row in rows if row["section"] == "scaling"]
    if not costs:
        return "not in this run"
    worst = max(costs, key=lambda cost: abs(cost[1] - 1))
    return spread([value - 1 for value in worst], percent=True)


def spread(values: Spread, *, percent: bool = False) -> str:
    """Median (first quartile to third).

    >>> spread([4.1, 4.44, 5.0]), spread([0.03, 0.03, 0.03], percent=True), spread([1234.5, 1300.0, 1310.0])
    ('4.4 (4.1–5.0)', '3.0 %', '1300 (1234–1310)')
    """
    first, median, third = (100 * value if percent else value for value in values)
    digits = 0 if abs(median) >= 100 else 2 if abs(median) < 2 and not percent else 1
    show: Callable[[float], str] = lambda value: f"{value:.{digits}f}"  # noqa: E731
    text = show(median) if first == third else f"{show(median)} ({show(first)}–{show(third)})"
    return f"{text} %" if percent else text


def _cell(row: Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("shape", "mode", "dim", "layers", "threads"))


def _fits(row: Row, wanted: dict[str, object]) -> bool:
    """A row without a number of threads was measured with one."""
    return all(
        row.get(key, 1 if key == "threads" else None) == value for key, value in wanted.items()
    )


def _header(names: list[str]) -> list[str]:
    return [_line(names), "|" + "---|" * len(names)]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
