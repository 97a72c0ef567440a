"""Whether a rule treats people with and without an outcome alike, or the dead and the living."""

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
    from scipy.stats import fisher_exact  # which takes long to load

    others = [n - some for some, n in zip(touched, people, strict=True)]
    return bool(fisher_exact([touched, others]).pvalue < _CHANCE)
