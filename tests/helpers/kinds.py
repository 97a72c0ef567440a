"""Small records of every kind: codes alone, numbers alone, both, and one visit a person without birth or sex."""

from pathlib import Path

import numpy as np

from helpers.meds import DAY_US, Row, us, write_meds

PEOPLE = 60
KINDS = ("codes", "numbers", "both", "one_visit")
TASK = """
name: {name}
index: {{first_visit: true}}
outcome: {{event: DX//OUT}}
{competing}
censoring: {{code: END}}
horizons: [180d, 1y]
landmarks: [0d]
"""
COMPETING = "competing: {death: MEDS_DEATH}"
_START, _BIRTH = us("2015-03-01 08:00"), us("1950-01-01")


def rows_of(kind: str, *, people: int = PEOPLE, first: int = 1, seed: int = 0) -> list[Row]:
    """MEDS rows of `people` subjects numbered from `first`: a third has the event, some die, the rest is censored."""
    rng, rows = np.random.default_rng(seed), list[Row]()
    for subject in range(first, first + people):
        start = _START + int(rng.integers(0, 400)) * DAY_US
        if kind != "one_visit":
            rows += [
                Row(subject, None, "SEX//F" if rng.random() < 0.5 else "SEX//M"),
                Row(subject, _BIRTH, "MEDS_BIRTH"),
            ]
        visits = 1 if kind == "one_visit" else int(rng.integers(2, 5))
        for day in np.sort(rng.choice(150, visits, replace=False)):
            time = start + int(day) * DAY_US
            if kind != "numbers":
                rows += [Row(subject, time, f"DX//{k}") for k in rng.choice(6, 2, replace=False)]
            if kind in ("numbers", "both"):
                rows.append(Row(subject, time, "LAB//X", float(rng.normal())))
        after = start + (160 + int(rng.integers(0, 500))) * DAY_US
        rows.append(Row(subject, after, ("DX//OUT", "MEDS_DEATH", "END")[subject % 3]))
    return rows


def write_kind(folder: Path, kind: str, **options: int) -> Path:
    """A MEDS data set of that kind: two thirds train, a sixth each is for tuning and held out."""
    rows = rows_of(kind, **options)
    splits = ("train", "train", "tuning", "train", "train", "held_out")
    return write_meds(folder, rows, splits={row.subject: splits[row.subject // 3 % 6] for row in rows})


def write_tasks(folder: Path) -> tuple[Path, Path]:
    """Task files `both` (death competes) and `alone` (one cause, as the visit head wants)."""
    paths = folder / "both.yaml", folder / "alone.yaml"
    for path, competing in zip(paths, (COMPETING, ""), strict=True):
        path.write_text(TASK.format(name=path.stem, competing=competing))
    return paths
