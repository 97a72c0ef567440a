"""A flat table, as a biostatistician has one."""

import numpy as np
import pandas as pd


def flat_table(people: int = 60) -> pd.DataFrame:
    """People with a laboratory value at each of four days, who relapse on the last of them if it was high."""
    rng, rows = np.random.default_rng(1), []
    for person in range(people):
        level = rng.normal(size=4).cumsum()
        for visit in range(4):
            has_event = visit == 3 and level[-2] > 0
            rows.append((person, 100 * visit + person % 7, level[visit], "fm"[person % 2], int(has_event)))
    return pd.DataFrame(rows, columns=["id", "day", "albumin", "sex", "status"])
