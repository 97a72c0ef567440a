"""What is drawn at random: subjects with replacement, and the seed of each step."""

import numpy as np

from ehrsequencing.core.arrays import Ints


def resampled(subjects: Ints, *, seed: int) -> Ints:
    """As many subjects, drawn with replacement: some twice or more, about a third of them not at all."""
    drawn: Ints = np.random.default_rng([seed, len(subjects)]).choice(subjects, len(subjects))
    return drawn


def hash_seed(seed: int, step: int, rank: int = 0) -> int:
    """A well-mixed seed for one step, and one process."""
    given = [seed, step, rank] if rank else [seed, step]
    return int(np.random.SeedSequence(given).generate_state(1, np.uint64)[0] >> np.uint64(1))
