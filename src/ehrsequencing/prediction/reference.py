"""Reference records: made-up people whose risks a run keeps, so that a moved answer is noticed before it is used.

Another version of ehrsequencing or torch, or another processor, should give the risks that the training gave. No row of
a patient is among the records: codes are drawn from the vocabulary, numbers by the mean and deviation of each code.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT, rounded
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, remembered, sha256, write_json
from ehrsequencing.core.version import __version__
from ehrsequencing.prediction.moment import Moment
from ehrsequencing.prediction.run import Run, add_to_run
from ehrsequencing.predictors.network import visit_hazards
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.cohort import CohortRows
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.events import BIRTH, DAY_US, Events
from ehrsequencing.records.people import (
    PEOPLE,
    mean_and_sd,
    measure,
    quantiles,
    rows_a_visit,
    visits_a_year,
)
from ehrsequencing.records.timelines import TaskRecords, Timelines
from ehrsequencing.records.visits import make_record
from ehrsequencing.records.vocabulary import Vocabulary

REFERENCE = "reference.json"  # of a run: the records, column by column, and their risks
TOLERANCE = 0.001  # in risk
_SHAPE = (20, 16)  # people, and rows of each
_MOST = 20_000  # people whose records and risks are kept as quantiles


def write_reference(folder: Path) -> None:
    """Add the reference records and their risks to a finished run that has none.

    Raises:
        EhrseqError: A file of that name is there that ehrseq did not write, or the disk refused.
    """
    run = Run(folder)
    if REFERENCE not in run.manifest["files"]:
        reference = _drawn(run.vocabulary)
        reference["risk"] = _risk(run, reference).round(6).tolist()
        add_to_run(folder, REFERENCE, lambda path: write_json(path, reference))


def write_people(
    folder: Path, counts: dict[str, Any], people: Timelines, asked: TaskRecords, *, end_us: int
) -> None:
    """Add what the training people were like to a finished run.

    Args:
        folder: The run.
        counts: How many there are, and how many have each code, as of a prepared set's `people.json`.
        people: Their visits.
        asked: Of whom 129 quantiles are kept of the first cause's risk by the main horizon, at each subject's newest
            index, at the newest prediction time, and at all of them: of a training, its tuning people.
        end_us: The end of the data.
    """
    run = Run(folder)
    if PEOPLE in run.manifest["files"]:
        return
    tuning = asked.take(_some(len(asked.timelines)))
    risk = _risks(run, tuning)
    risk = risk[:, 0, risk.shape[2] // 2]
    subject, risks = tuning.rows.subject, dict[str, list[float]]()
    for at in ("index", "last", "all"):
        chosen = Moment(at).chosen(tuning.rows) & ~np.isnan(risk)
        knots = quantiles(risk[chosen], subject[chosen])
        if knots is not None:
            risks[at] = rounded(knots.tolist(), 5)
    people = people.take(_some(len(people)))
    measured = measure(
        people.subject_offsets,
        people.start_us,
        people.end_us,
        people.birth_us,
        np.r_[np.repeat(people.owner, np.diff(people.visit_offsets)), people.static_owner],
        run.vocabulary.base[np.r_[people.codes, people.static_codes]].astype(np.int32),
    )
    rate = visits_a_year(measured["visits"], measured["history"])
    measured["last_visit"] = end_us / DAY_US - measured["last_visit"]
    kept = {name: quantiles(values) for name, values in measured.items()}
    measures = {name: rounded(knots.tolist()) for name, knots in kept.items() if knots is not None}
    sums = rows_a_visit(
        np.repeat(people.owner, np.diff(people.visit_offsets)),
        run.vocabulary.base[people.codes].astype(np.int32),
        np.diff(people.subject_offsets),
    )
    each = {c: run.vocabulary.index.get(c, len(sums[0])) for c in counts["codes"]}
    found = counts | {
        "measures": measures,
        "visits_a_year": rounded(rate),
        "risks": risks,
        "rates": {
            code: rounded(mean_and_sd(sums[:, token]))
            for code, token in each.items()
            if token < len(sums[0]) and sums[0, token] >= SMALLEST_COUNT
        },
    }
    add_to_run(folder, PEOPLE, lambda path: write_json(path, found))


def _some(n: int) -> Ints:
    """Numbers of some of n people, evenly over all."""
    return np.linspace(0, n - 1, min(n, _MOST)).astype(np.int64)


def check_reference(run: Run) -> list[str]:
    """Why the run should not be trusted here; nothing where its reference risks are as they were, or it has none.

    What was computed is remembered in the user's cache, for each version of ehrsequencing and torch and each processor.
    """
    path = run.folder / REFERENCE
    if REFERENCE not in run.manifest["files"] or not path.is_file():
        return []
    here = [__version__, torch.__version__, torch.backends.cpu.get_cpu_capability()]
    moved = remembered([run.fingerprint, sha256(path), *here], lambda: _moved(run, path))
    if moved <= TOLERANCE:
        return []
    return [
        f"the risks of the run's made-up reference records differ by up to {moved:.2g} from those at its training: "
        "use the versions of ehrsequencing and torch that its manifest names, or train again"
    ]


def _moved(run: Run, path: Path) -> float:
    """The largest difference of a risk; 1 where the file is damaged."""
    try:
        reference = read_json(path)
        moved = np.abs(_risk(run, reference) - np.array(reference["risk"], dtype=np.float64))
        return float(np.nan_to_num(moved, nan=1.0, posinf=1.0).max(initial=0.0))
    except (EhrseqError, LookupError, TypeError, ValueError, ArithmeticError):
        return 1.0


def _drawn(vocabulary: Vocabulary) -> dict[str, Any]:
    """Columns of the records: each person has a birth, a code that no run knows, and codes of the vocabulary."""
    random, known = np.random.default_rng(0), len(vocabulary.codes)
    place = random.integers(0, known + 1, _SHAPE)
    place[:, :2] = known + 1, known
    gaps = random.integers(-20, 45, _SHAPE).clip(0) ** 2  # short ones are frequent
    days = np.cumsum(gaps, axis=1)
    code = np.array([*vocabulary.codes, "MADE_UP//UNKNOWN", BIRTH])[place]
    # the row of each code among the means; the last row is added for codes without numbers
    scale = np.r_[vocabulary.scale[vocabulary.n_unknown :][:known], -1, -1][place]
    mean, sd = (np.r_[numbers, 0.0][scale] for numbers in (vocabulary.mean, vocabulary.sd))
    return {
        "subject": np.indices(_SHAPE)[0].ravel().tolist(),
        "day": days.ravel().tolist(),
        "code": code.ravel().tolist(),
        "value": (mean + sd * random.standard_normal(_SHAPE)).ravel().tolist(),
    }


def _risk(run: Run, kept: dict[str, Any]) -> Floats:
    """(visits, causes, horizons) at the end of every visit; every other person is asked about by a query there.

    The `visit` head knows no horizons and no queries.
    """
    codes, code = np.unique(np.array(kept["code"], dtype=str), return_inverse=True)
    subject, day = (np.array(kept[name], dtype=np.int64) for name in ("subject", "day"))
    value, alone = np.array(kept["value"], np.float32), np.full(len(code), -1, np.int32)
    events = Events(
        subject, day * DAY_US, code.astype(np.int32), tuple(codes.tolist()), value, alone
    )
    excluded = CodeMatcher(run.manifest["excluded"])
    record = make_record(events, excluded=excluded, settings=run.study.visits)
    visits, nothing = record.visits, np.zeros(len(record.visits))
    rows = CohortRows(
        subject=visits.subject,
        prediction_us=visits.end_us,
        index_us=visits.start_us,
        is_query=(visits.subject % 2 == 0) & (not run.is_visit_head),
        visits_before=1 + np.arange(len(visits)) - np.searchsorted(visits.subject, visits.subject),
        duration_days=nothing,
        cause=nothing.astype(np.int8),
        entry_days=nothing,
    )
    timelines = encode_timelines(record, run.vocabulary)[0]
    return _risks(run, TaskRecords(timelines, encode_rows(record, rows, run.vocabulary)))


def _risks(run: Run, records: TaskRecords) -> Floats:
    """(R, causes, horizons) by the task's horizons."""
    if run.is_visit_head:
        return visit_hazards(run.model, records, code_types=run.code_types).astype(np.float64)
    return run.predictor.risk(records, run.task.horizons, start_days=run.task.blanking)
