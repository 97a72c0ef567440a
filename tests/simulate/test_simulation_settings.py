"""The knobs: what is no number is refused by name, and zero is a world like any other."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from meds import schema as meds
from pydantic import ValidationError

from ehrsequencing.config import read_settings, validated
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.simulate import SimulationConfig, simulate
from helpers.simulate import brute_prediction_times

KNOBS = {name: field for name, field in SimulationConfig.model_fields.items() if field.annotation is not bool}
NEVER_ZERO = {
    "follow_up_min_years",
    "follow_up_max_years",
    "last_horizon_years",
    "stay_days",
    "pairs",
    "decay_half_life_days",
    "truth_futures",
}
ZERO = [knob for knob in KNOBS if knob not in NEVER_ZERO]
QUICK = {"truth_futures": 4, "follow_up_min_years": 2.0, "follow_up_max_years": 3.0}


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf"])
@pytest.mark.parametrize("knob", KNOBS)
def test_what_is_no_number_is_refused_by_name(knob: str, value: str) -> None:
    with pytest.raises(EhrseqError, match=f"settings: {knob}: .*finite number"):
        validated(SimulationConfig, read_settings(None, [f"{knob}={value}"]), where="settings")


EFFECTS = [(knob, end) for knob in KNOBS if knob.endswith("_effect") for end in ("ge", "le")]


@pytest.mark.parametrize(
    ("effect", "end"), [pytest.param(*one, marks=[pytest.mark.slow] * (n % 5 > 0)) for n, one in enumerate(EFFECTS)]
)
def test_the_largest_effects_overflow_nowhere_and_larger_ones_are_refused(
    effect: str, end: str, tmp_path: Path
) -> None:
    """Warnings are errors here: an overflow would be one."""
    bound = next(getattr(at, end) for at in KNOBS[effect].metadata if hasattr(at, end))
    with pytest.raises(ValidationError, match=effect):
        SimulationConfig.model_validate({effect: 1.001 * bound})
    config = SimulationConfig.model_validate({**QUICK, effect: bound})
    simulate(tmp_path / "out", subjects=20, seed=0, truth="all", config=config)
    assert np.isfinite(pq.read_table(tmp_path / "out" / "truth.parquet")["risk"].to_numpy()).all()


@pytest.mark.parametrize("knob", ["all of them", *(pytest.param(knob, marks=pytest.mark.slow) for knob in ZERO)])
def test_a_knob_at_zero_gives_a_valid_simulation(knob: str, tmp_path: Path) -> None:
    out, zero = tmp_path / "out", dict.fromkeys(ZERO if knob == "all of them" else [knob], 0)
    simulate(out, subjects=20, seed=0, truth="all", config=SimulationConfig.model_validate({**QUICK, **zero}))

    codes = pq.read_table(out / meds.code_metadata_filepath)
    meds.CodeMetadataSchema.validate(codes)
    meds.SubjectSplitSchema.validate(pq.read_table(out / meds.subject_splits_filepath))
    for shard in (out / "data").glob("*/*.parquet"):
        events = pq.read_table(shard)
        meds.DataSchema.validate(events)
        assert set(events["code"].to_pylist()) <= set(codes["code"].to_pylist())

    truth = pq.read_table(out / "truth.parquet")
    rows = list(zip(truth["subject_id"].to_pylist(), truth["prediction_time"].to_pylist(), strict=True))
    assert list(dict.fromkeys(rows)) == brute_prediction_times(out)
    risk = truth["risk"].to_numpy().reshape(-1, 2, len(rows) // len(set(rows)) // 2)
    assert (risk >= 0).all()
    assert (risk.sum(axis=1) <= 1).all()
    hazard = pq.read_table(out / "truth_hazards.parquet")["hazard"].to_numpy()
    assert (hazard >= 0).all()
    assert np.isfinite(hazard).all()
    assert np.isfinite(pq.read_table(out / "truth_mechanisms.parquet")["log_hazard_ratio"].to_numpy()).all()
    if knob == "all of them":
        assert not hazard.any()
