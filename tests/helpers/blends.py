"""Blends that train in seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from ehrsequencing.predictors import boosted, history, landmark_cox, weights


@contextmanager
def quick_parts() -> Iterator[None]:
    """Few codes, trees and resamples in the parts of a blend, where what is tested does not depend on them."""
    quick = {"learning_rate": 0.3, "max_iter": 8, "n_iter_no_change": 3}
    with pytest.MonkeyPatch.context() as patch:
        for room in (boosted, landmark_cox):
            patch.setattr(room, "fit_feature_spec", partial(history.fit_feature_spec, max_codes=12))
        patch.setattr(boosted, "MOST_PAIRS", 4)
        patch.setattr(boosted, "MOST_BINS", 16)
        patch.setattr(weights, "MOST_DRAWN", 0)
        patch.setattr(weights, "FEWEST_RESAMPLES", 20)
        patch.setattr(boosted, "TRIALS", tuple(trial | quick for trial in boosted.TRIALS))
        yield
