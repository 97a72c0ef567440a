"""True contributions of codes, from the record alone, are what the simulator's own state says."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.simulate import SimulationConfig, simulate
from helpers.bench import load_bench

DAY_US = 86_400_000_000
Contributions, pair_of = (getattr(load_bench("_contributions"), name) for name in ("Contributions", "pair_of"))


def test_contributions_add_up_to_the_mechanisms_of_the_truth(tmp_path: Path) -> None:
    """Chronic conditions, the acute event, the marker and the pairs."""
    config = SimulationConfig(truth_futures=4, order_visit_share=0.0, stay_visit_share=0.0)
    simulate(tmp_path / "sim", subjects=120, seed=3, config=config)
    truth, seen = Contributions(config), 0
    mechanisms: dict[tuple[int, int], dict[str, float]] = {}
    for row in pq.read_table(tmp_path / "sim" / "truth_mechanisms.parquet").to_pylist():
        moment = int(pa.scalar(row["prediction_time"], pa.timestamp("us")).cast(pa.int64()).as_py())
        mechanisms.setdefault((row["subject_id"], moment), {})[row["mechanism"]] = row["log_hazard_ratio"]
    table = pa.concat_tables(pq.read_table(path) for path in (tmp_path / "sim" / "data").glob("held_out/*.parquet"))
    table = table.append_column("us", table["time"].cast(pa.int64()))
    records: dict[int, list[tuple[int, str, float]]] = {}
    for row in table.select(["subject_id", "us", "code", "numeric_value"]).to_pylist():
        if row["us"] is not None and row["code"] not in ("MEDS_BIRTH", "END_OF_FOLLOWUP", "MEDS_DEATH"):
            value = float("nan") if row["numeric_value"] is None else row["numeric_value"]
            records.setdefault(row["subject_id"], []).append((row["us"], row["code"], value))
    for (subject, moment), expected in mechanisms.items():
        known = [row for row in records[subject] if row[0] <= moment]
        days = sorted({us // DAY_US for us, _, _ in known})
        visits = [[row for row in known if row[0] // DAY_US == day] for day in days]
        found = truth.of(
            [[code for _, code, _ in own] for own in visits], [np.array([v for _, _, v in own]) for own in visits], days
        )
        for name in ("chronic", "decay", "lab", "pair"):
            own = sum(one.log_hazard for one in found if one.mechanism == name)
            assert own == pytest.approx(expected[name], abs=2e-3), name
        pairs = [one for one in found if one.mechanism == "pair"]
        assert len(pairs) == len(visits)
        for k, one in enumerate(pairs):  # had it never been written: the record without it, summed anew
            others = [
                pair for i, own in enumerate(visits) if i != k and (pair := pair_of([code for _, code, _ in own]))
            ]
            rest = truth.of([list(pair) for pair in others], [np.full(2, np.nan)] * len(others), days[: len(others)])
            without = sum(own.log_hazard for own in rest)
            assert one.never == pytest.approx(sum(own.log_hazard for own in pairs) - without, abs=1e-9)
        seen += 1
    assert seen > 50


def test_a_single_pair_adds_its_own_term() -> None:
    config = SimulationConfig(pair_effect=2.0)
    truth = Contributions(config)
    none = [np.full(2, np.nan)]
    for other, sign in (("RX//B07", 1.0), ("RX//B08", -1.0)):
        (pair,) = truth.of([["DX//A07", other]], none, [0.0])
        assert pair.log_hazard == pytest.approx(2.0 * sign - np.log(np.cosh(2.0)))
    assert pair_of(["DX//A07", "DX//N0001"]) is None
