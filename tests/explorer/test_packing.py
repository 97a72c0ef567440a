"""What is packed into a page comes out of it again, and risks stay within 1e-4 of what they were."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ehrsequencing.explorer.page import differences, hundredths, pack, quantised, rounded_floats, zigzag
from helpers.explorer_page import unpacked

RISKS = arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1))
WHOLE = arrays(np.int64, st.integers(1, 40), elements=st.integers(-(2**31) + 1, 2**31 - 1))


@given(RISKS)
def test_a_stored_risk_is_near_the_risk(risk: np.ndarray) -> None:
    stored = (quantised(risk) / 65535) ** 2
    assert np.abs(stored - risk).max() <= 1.6e-5
    small = (risk < 0.01) & (risk > 1e-6)
    assert (np.abs(stored - risk)[small] <= 2e-2 * risk[small]).all()


def test_sixteen_linear_bits_would_lose_small_risks() -> None:
    risk = np.array([2e-6])
    linear = np.round(risk * 65535) / 65535
    assert abs(linear - risk)[0] > 0.5 * risk[0] > abs((quantised(risk) / 65535) ** 2 - risk)[0]


@given(WHOLE, RISKS, arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32)))
def test_what_is_packed_comes_out_again(whole: np.ndarray, risk: np.ndarray, numbers: np.ndarray) -> None:
    steps = np.sort(np.abs(whole) % 10**9)
    given_arrays = {
        "steps": differences(steps), "risk": differences(quantised(risk), 16), "numbers": numbers,
        "change": zigzag(quantised(risk).astype(np.int64) - 30_000, 16), "bytes": (whole % 256).astype(np.uint8),
    }  # fmt: skip
    listed, text = pack(given_arrays, {"steps": "differences", "risk": "differences", "change": "zigzag"})
    found = unpacked(text, listed)
    assert found["steps"].tolist() == steps.tolist()
    assert found["risk"].tolist() == quantised(risk).tolist()
    assert ((found["change"].astype(np.int64) + 30_000) % 65536).tolist() == quantised(risk).tolist()
    assert found["bytes"].tolist() == (whole % 256).tolist()
    assert np.array_equal(found["numbers"], numbers, equal_nan=True)


def test_days_and_numbers_keep_what_is_shown() -> None:
    assert hundredths(np.array([0.004, 12.345, np.nan])).tolist() == [0, 1234, -1]
    numbers = np.array([0.1, 98.63, -7.5e8, np.nan], dtype=np.float32)
    assert np.allclose(rounded_floats(numbers), numbers, rtol=1.3e-4, equal_nan=True)
