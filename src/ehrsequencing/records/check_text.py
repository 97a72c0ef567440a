"""What `check` and `prepare` print: facts, fixes and tasks as lines of text for a terminal."""

from collections.abc import Mapping
from typing import Any

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.attrition import attrition_lines
from ehrsequencing.records.check import LONG_VISIT_DAYS, DataCheck, TaskCheck
from ehrsequencing.records.data_end import LateRows
from ehrsequencing.records.fixes import FIXES, FixLog
from ehrsequencing.records.meds import SPLITS

_SPLIT_WORDS = {
    "file": "by metadata/subject_splits.parquet",
    "folders": "by the folders data/{train,tuning,held_out}, since there is no metadata/subject_splits.parquet",
    "hash": "by hashed subject id",
    "date": "by the date of the index",
    "site": "by site",
}


def format_check(found: DataCheck) -> str:
    """The check as text for a terminal."""
    lines = (
        [f"{label:>14}  {text}" for label, text in _fact_lines(found.facts)] if found.facts else []
    )
    lines += [f"warning: {text}" for text in found.facts.get("warnings", ())]
    lines += fix_lines(found.fixes)
    lines += ["nothing to fix"] if found.facts and not found.fixes else []
    kinds: dict[str, list[EhrseqError]] = {}
    for error in found.refused:
        kinds.setdefault(error.what, []).append(error)
    for what, errors in (
        kinds.items() if len(found.refused) > 1 else ()
    ):  # the command itself ends with the first
        others = f" and {len(errors) - 1:,} other places" if len(errors) > 1 else ""
        lines.append(f"refused: {what}; {errors[0].where}{others} ({errors[0].fix})")
    for task in found.tasks:
        lines += attrition_lines(task.task, task.attrition, warnings=task.warnings)
        lines += _horizon_lines(task)
    return "\n".join(lines)


def _fact_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    subjects, rows, codes, visits, values = (
        facts[k] for k in ("subjects", "rows", "codes", "visits", "values")
    )
    by_split, late = ", ".join(f"{subjects[name]:,} {name}" for name in SPLITS), facts["late_rows"]
    long = f"; {visits[f'over_{LONG_VISIT_DAYS}_days']:,} longer than {LONG_VISIT_DAYS} days"
    return [
        (
            "subjects",
            f"{subjects['all']:,} ({by_split}); {subjects['without_birth']:,} without a birth",
        ),
        ("splits", _SPLIT_WORDS[facts["splits"]]),
        (
            "rows",
            f"{rows['all']:,} in {rows['shards']:,} shards; {rows['static']:,} without a time",
        ),
        ("years", " to ".join(map(str, facts["years"])) or "no row but births"),
        *(
            [("left out", f"{LateRows(**late).text}: they do not move the data's end")]
            if late
            else []
        ),
        ("codes", f"{codes['all']:,}, of which {codes['tokens']:,} become tokens"),
        ("visits", f"{visits['all']:,}{long if visits[f'over_{LONG_VISIT_DAYS}_days'] else ''}"),
        ("per subject", f"{_spread(visits['per_subject'])} visits"),
        ("per visit", f"{_spread(visits['codes_per_visit'])} distinct codes"),
        (
            "numbers",
            f"in {values['share_of_rows']:.0%} of the rows; {values['codes']:,} codes have them, in "
            f"{values['share_of_their_rows']:.0%} of their rows",
        ),
    ]


def _spread(s: Mapping[str, float]) -> str:
    return f"median {s['median']:,}, 90 % from {s['p05']:,} to {s['p95']:,}, at most {s['most']:,}"


def fix_lines(fixes: Mapping[str, int]) -> list[str]:
    """What was fixed, one line a kind, with the place of an example where it is known."""
    places = fixes.places if isinstance(fixes, FixLog) else {}
    first = {name: f"; first in {where}" for name, where in places.items()}
    return [f"fixed: {count:,} {FIXES[name]}{first.get(name, '')}" for name, count in fixes.items()]


def _horizon_lines(task: TaskCheck) -> list[str]:
    """Events per cause and horizon, counted from each subject's first prediction time."""
    rows = {"subjects with an event within": list(task.known_at)}
    rows |= {
        cause: [f"{n:,}" for n in within.values()] for cause, within in task.events_within.items()
    }
    rows["state known"] = [f"{n:,}" for n in task.known_at.values()]
    width = max(map(len, rows))
    return [
        f"  {label:<{width}}" + "".join(f"{cell:>9}" for cell in cells)
        for label, cells in rows.items()
    ]
