"""A small data set in several shards."""

from ehrsequencing.config import TaskConfig, load_study
from helpers.meds import DAY_US, Row, us

TASK = TaskConfig.model_validate(
    {
        "name": "t",
        "index": {"first_visit": True},
        "outcome": {"death": ["MEDS_DEATH"]},
        "horizons": ["1y"],
        "landmarks": ["0d", "30d"],
    }
)
STUDY = load_study(None, ["vocabulary.min_subjects=3"])
PARENTS = {"DX//3": ["DX"], "DX//4": ["DX"]}


def rows_of(subjects: int) -> list[Row]:
    """Subjects with codes, rare codes, numbers, repeats, a static row, and rows that must be fixed."""
    rows, start = [], us("2010-01-01")
    for who in range(subjects):
        rows += [Row(who, None, f"SEX//{who % 2}"), Row(who, start - 9000 * DAY_US, "MEDS_BIRTH")]
        for k in range(who % 5 + 2):
            time = start + (who + 40 * k) * DAY_US
            rows += [Row(who, time, f"DX//{(who + k) % 5}"), Row(who, time, f"DX//{(who + k) % 5}")]
            rows.append(Row(who, time + 5, "LAB//A", float((who * 7 + k) % 11)))
            rows.append(Row(who, time + 9, f"LAB//{'BC'[who % 2]}", float("nan") if k == 1 else float(who)))
        if who % 3 == 0:
            rows.append(Row(who, start + 400 * DAY_US, "MEDS_DEATH"))
    return rows
