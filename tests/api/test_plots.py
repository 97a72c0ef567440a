"""Figures where a cohort is too small to estimate what they show."""

import pytest

from ehrsequencing.api import plots


def test_calibration_without_any_group_says_so() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    ax = plots.calibration([], [], title="death by 2y")
    assert plots.TOO_FEW in [text.get_text() for text in ax.texts]
    assert ax.get_title(loc="left") == "death by 2y"
