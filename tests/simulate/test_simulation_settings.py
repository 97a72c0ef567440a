"""The knobs: what is no number is refused by name, and zero is a world like any other."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from ehrsequencing.config import read_settings, validated
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.simulate import SimulationConfig, simulate

KNOBS = {name: field for name, field in SimulationConfig.model_fields.items() if field.annotation is not bool}
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
