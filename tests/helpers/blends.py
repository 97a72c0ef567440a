"""Blends that train in seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from ehrsequencing.predictors import blend, boosted, fitting_data as features, history


@contextmanager
def quick_parts() -> Iterator[None]:
    """Few codes, trees and resamples in the parts of a blend, where what is tested does not depend on them."""
    quick = {"learning_rate": 0.3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "fit_feature_spec", partial(history.fit_feature_spec, max_codes=12))
        patch.setattr(features, "MOST_PAIRS", 4)
        patch.setattr(features, "MOST_BINS", 16)
        patch.setattr(blend, "FOLDS", 2)
        patch.setattr(boosted, "MOST_TREES", 8)
        patch.setattr(boosted, "PATIENCE", 3)
        patch.setattr(boosted, "TRIALS", tuple(trial | quick for trial in boosted.TRIALS))
        yield
