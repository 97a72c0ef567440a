"""Whether a rule treats people with and without an outcome alike, or the dead and the living."""

import numpy as np

# below and above which a rule acts unequally: probability, difference of shares
_CHANCE, _FAR = 1e-6, 0.2


def unequal(touched: tuple[int, int], people: tuple[int, int]) -> bool:
    """Whether a rule touches another share of two groups, beyond chance (Fisher's exact test) and by a fifth or more.

    >>> unequal((45, 100), (60, 1000)), unequal((5, 1), (10, 10)), unequal((150, 1000), (300, 10000))
    (True, False, True)
    """
    shares = [some / max(n, 1) for some, n in zip(touched, people, strict=True)]
    if min(people) == 0 or abs(shares[0] - shares[1]) < _FAR:
        return False
    total = sum(touched)
    first = np.arange(max(0, total - people[1]), min(total, people[0]) + 1)  # in the first group
    log_factorial = np.cumsum(np.log(np.maximum(np.arange(sum(people) + 1), 1)))
    cells = first, people[0] - first, total - first, people[1] - total + first
    log_chance = -np.sum([log_factorial[cell] for cell in cells], axis=0)
    chance = np.exp(log_chance - log_chance.max())
    as_rare = log_chance <= log_chance[touched[0] - first[0]] + 1e-7
    return bool(chance[as_rare].sum() < _CHANCE * chance.sum())
