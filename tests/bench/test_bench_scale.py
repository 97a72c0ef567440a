"""The tables of bench/scale.py, from numbers that were measured elsewhere."""

import pytest

from helpers.bench import load_bench

MEASURED = {
    "subjects": 1_000_000,
    "events": 70_900_000,
    "steps": {
        name: {"wall_s": cpu, "cpu_s": cpu, "peak_gib": 1.0, "disk_gib": 1.0}
        for name, cpu in {"simulate": 310, "prepare": 36, "train": 589, "predict": 143, "evaluate": 406}.items()
    },
}


@pytest.mark.parametrize(("price", "row"), [(0.05, "| $0.02 | $0.16 | $1.63 |"), (1.0, "| $0.33 | $3.26 | $32.61 |")])
def test_the_cost_is_hours_times_the_assumed_price(price: float, row: str) -> None:
    scale = load_bench("scale")
    lines = scale.projected_table(MEASURED, price)
    assert lines[-1] == f"| cost without `simulate`, at ${price:g} per core-hour (assumed) {row}"
    assert lines[2].startswith("| `simulate` | 0.1; 1 GiB | 0.9; 10 GiB |")
