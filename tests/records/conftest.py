"""Fixtures of the tests of cohorts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.cohorts import HandMade


@pytest.fixture(scope="module")
def hand_store(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The hand-counted records of a test file (its `HAND`), prepared."""
    hand: HandMade = request.module.HAND
    with hand.prepared() as store:
        yield store
