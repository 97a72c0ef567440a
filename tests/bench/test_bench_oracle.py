"""`bench/oracle.py`: a row says what was measured, and a missed goal is told."""

from types import ModuleType
from typing import Any

import pytest

from helpers.bench import load_bench


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_bench("oracle")


def measured(*, share: float = 0.8, slopes: tuple[float, float] = (1.0, 1.04), death: float = 1.3) -> dict[str, Any]:
    risks = [
        {"cause": cause, "horizon_days": days, "slope": slope, "slope_se": 0.01, "rmse": 0.05}
        for cause, pair in (("outcome", slopes), ("death", (death, death)))
        for days, slope in zip((90.0, 365.25), pair, strict=True)
    ]
    return {
        "gain_share": share, "gain_share_se": 0.02, "gain_share_expected": 0.79, "risks": risks,
        "hazard_rmse_per_year": {"outcome": 0.1},
        "mechanisms": [{"mechanism": "pair", "share": 0.9}],
    }  # fmt: skip


def test_a_row_says_what_was_measured(bench: ModuleType) -> None:
    row = bench.line("mean", 20_000, measured())
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "20,000", "mean", "0.800 ± 0.039 (0.790)",
        "1.000 1.040 (± 0.020)", "1.300 1.300 (± 0.020)", "0.050 0.050", "0.100",
        "pair 0.90",
    ]  # fmt: skip
    assert len(cells) == len(bench.COLUMNS)


def test_a_missed_goal_is_told(bench: ModuleType) -> None:
    assert bench.missed(20_000, measured()) == []
    assert bench.missed(20_000, measured(share=0.72)) == []  # within its standard error
    (said,) = bench.missed(20_000, measured(share=0.70))
    assert said == "20,000 subjects: share of the gain 0.700, goal 0.75"
    assert len(bench.missed(60_000, measured(share=0.8))) == 1
    assert bench.missed(100_000, measured(share=0.1)) == []  # no goal, an aim
    assert len(bench.missed(20_000, measured(slopes=(1.08, 0.92)))) == 2
    assert bench.missed(20_000, measured(slopes=(1.06, 0.94))) == []
