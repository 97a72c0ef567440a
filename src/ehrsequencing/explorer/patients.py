"""A run and records → the arrays of an explorer: patients, visits with codes, prediction times with curves.

Times are days since the patient's first visit, and patients are in random order, so that neither a date nor the order
of ids is on the page.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints, Ints32, offsets, ragged
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.evaluation.subgroups import groups_of_rows
from ehrsequencing.prediction.predict import Moment, NewRecords, RiskPredictor, no_prediction_times
from ehrsequencing.records.cohort import CohortRows
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.events import DAY_US, STATIC, opens_run
from ehrsequencing.records.timelines import TaskRecords, joined
from ehrsequencing.records.visits import Record

CURVE_POINTS = 14  # of a whole risk curve, beside the horizons
OLDEST = 90.0  # years; higher ages are shown as 90 and over
NOT_KNOWN = 255  # in place of a cause, where nothing is known of what happened


@dataclass(frozen=True)
class ExplorerSettings:
    """What an explorer shows, and what it hides.

    Attributes:
        subjects: At most so many patients; where there are more, they are drawn at random.
        fewest: A code that fewer patients have is shown as "rare code".
        what_if: Whether single removals are computed in advance.
        megabytes: The what-if answers cover every prediction time where the file stays below this size; else only the
            latest one of each patient.
    """

    subjects: int = 10_000
    fewest: int = SMALLEST_COUNT
    what_if: bool = True
    megabytes: float = 15.0


@dataclass(frozen=True)
class Patients:
    """S patients with N visits, I items (a code in a visit) and R prediction times.

    Attributes:
        subject_id: (S,) ids, in the order of the page. They never enter it.
        age_years: (S,) age at day 0, NaN where unknown.
        sex: (S,) as the record's static codes have it, empty where unknown.
        visit_offsets: (S+1,) patient s owns visits `[offsets[s], offsets[s+1])`.
        visit_day: (N,) start of each visit in days since the patient's first.
        item_offsets: (N+1,) visit n owns items `[offsets[n], offsets[n+1])`.
        item_code: (I,) numbers of codes.
        item_value: (I,) the last number of the code in the visit, NaN without one.
        static_offsets: (S+1,) into `static_code`.
        static_code: (·,) numbers of codes without a time.
        row_offsets: (S+1,) patient s owns prediction times `[offsets[s], offsets[s+1])`.
        row_day: (R,) days since the first visit.
        row_index_day: (R,) the index that the prediction time belongs to.
        row_visits: (R,) how many visits had ended by then.
        is_query: (R,) whether the time is a landmark and not a visit's end.
        end_day: (R,) day of the event or of the end of follow-up, NaN where it is not known.
        cause: (R,) 0 for the end of follow-up, k for the task's k-th cause, `NOT_KNOWN`.
        risk: (R, causes, G) risk by each day of the curve.
    """

    subject_id: Ints
    age_years: Floats
    sex: NDArray[np.str_]
    visit_offsets: Ints
    visit_day: Floats
    item_offsets: Ints
    item_code: Ints
    item_value: Floats32
    static_offsets: Ints
    static_code: Ints
    row_offsets: Ints
    row_day: Floats
    row_index_day: Floats
    row_visits: Ints
    is_query: Bools
    end_day: Floats
    cause: NDArray[np.uint8]
    risk: Floats32

    def __len__(self) -> int:
        return len(self.subject_id)

    @property
    def latest(self) -> Ints:
        """(S,) each patient's latest prediction time."""
        return self.row_offsets[1:] - 1

    def take(self, chosen: Ints) -> "Patients":
        """Some patients, in the order given."""
        visits, visit_offsets = ragged(self.visit_offsets, chosen)
        items, item_offsets = ragged(self.item_offsets, visits)
        static, static_offsets = ragged(self.static_offsets, chosen)
        rows, row_offsets = ragged(self.row_offsets, chosen)
        new: dict[str, Any] = {
            "visit_offsets": visit_offsets,
            "item_offsets": item_offsets,
            "static_offsets": static_offsets,
            "row_offsets": row_offsets,
            "static_code": self.static_code[static],
            "visit_day": self.visit_day[visits],
            "item_code": self.item_code[items],
            "item_value": self.item_value[items],
            "subject_id": self.subject_id[chosen],
            "age_years": self.age_years[chosen],
            "sex": self.sex[chosen],
        }
        return Patients(
            **new,
            **{f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name not in new},
        )


@dataclass(frozen=True)
class Gathered:
    """The patients of a page, the codes that their numbers stand for, and how many patients the data has."""

    patients: Patients
    codes: tuple[str, ...]
    in_all: int


def curve_days(horizons_days: tuple[float, ...], *, start_days: float = 0.0) -> Floats:
    """(G,) days after a prediction time at which its curves are known, the horizons among them.

    >>> curve_days((90.0, 730.5))[[0, -1]].round(1).tolist()
    [3.7, 730.5]
    """
    last = max(horizons_days)
    # the points lie closer together at first, where curves bend most
    share = np.linspace(0.0, 1.0, CURVE_POINTS + 1)[1:] ** 2
    return np.unique(np.r_[start_days + (last - start_days) * share, horizons_days].round(6))


def gather(
    records: NewRecords, asked: RiskPredictor, days: Floats, settings: ExplorerSettings
) -> Gathered:
    """The patients of a data set who have a prediction time, in random order.

    Args:
        records: The data set.
        asked: The run, and which of its models answer.
        days: (G,) days of the curves.
        settings: How many patients at most.

    Raises:
        EhrseqError: Nobody has a prediction time.
    """
    chance, parts, keys, in_all = np.random.default_rng(), list[Patients](), list[Floats](), 0
    numbers: dict[str, int] = {}  # of the codes of all shards
    for record, rows in records.prediction_times(Moment("all")):
        own = np.unique(rows.subject)
        key, in_all = chance.random(len(own)), in_all + len(own)
        drawn = np.sort(np.argsort(key)[: settings.subjects])
        if len(drawn):
            keys.append(key[drawn])
            parts.append(_of_shard(record, rows, asked, records, days, numbers).take(own[drawn]))
    if not parts:
        raise no_prediction_times(records)
    order = np.argsort(np.concatenate(keys))[: settings.subjects]
    return Gathered(joined(parts).take(order), tuple(numbers), in_all)


def _of_shard(
    record: Record,
    rows: CohortRows,
    asked: RiskPredictor,
    records: NewRecords,
    days: Floats,
    numbers: dict[str, int],
) -> Patients:
    """Everybody of a shard, with nobody left out."""
    run, visits, events = asked.run, record.visits, record.events
    encoded = TaskRecords(
        encode_timelines(record, run.vocabulary)[0], encode_rows(record, rows, run.vocabulary)
    )
    assert asked.of_run is not None  # `require_curves`
    exact = asked.of_run.risk(encoded, days, start_days=asked.start_days)
    risk = exact.astype(np.float32)
    n, row_offsets = len(record.subject_id), encoded.rows.row_offsets
    first = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(first, visits.subject, visits.start_us)
    np.minimum.at(first, rows.subject, rows.prediction_us)  # of a patient without a visit

    def day(moment_us: Ints, subject: Ints) -> Floats:
        return np.asarray((moment_us - first[subject]) / DAY_US, dtype=np.float64)

    end_day, cause = _what_happened(record, rows, first, records)
    number = np.array(
        [numbers.setdefault(code, len(numbers)) for code in events.codes], dtype=np.int64
    )
    item_visit, item_code, item_value = _items(record)
    static = np.flatnonzero((events.time_us == STATIC) & ~record.excluded)
    born = record.birth_us != STATIC
    return Patients(
        subject_id=record.subject_id,
        age_years=np.where(
            born, (first - np.where(born, record.birth_us, 0)) / DAY_US / DAYS_PER_YEAR, np.nan
        ),
        sex=_sex(encoded, asked),
        visit_offsets=offsets(visits.subject, n),
        visit_day=day(visits.start_us, visits.subject),
        item_offsets=offsets(item_visit, len(visits)),
        item_code=number[item_code],
        item_value=item_value,
        static_offsets=offsets(record.subject[static], n),
        static_code=number[events.code[static]],
        row_offsets=row_offsets,
        row_day=day(rows.prediction_us, rows.subject),
        row_index_day=day(rows.index_us, rows.subject),
        row_visits=rows.visits_before,
        is_query=rows.is_query,
        end_day=end_day,
        cause=cause,
        risk=risk,
    )


def _what_happened(
    record: Record, rows: CohortRows, first_us: Ints, records: NewRecords
) -> tuple[Floats, NDArray[np.uint8]]:
    """Day and cause of what ended the follow-up of each prediction time; unknown for those after its end."""
    known = records.builder.build(record, dataset_end_us=records.end_us).rows
    moments, moment = np.unique(np.r_[rows.prediction_us, known.prediction_us], return_inverse=True)
    key = np.r_[rows.subject, known.subject] * len(moments) + moment
    _, at, at_known = np.intersect1d(key[: len(rows)], key[len(rows) :], return_indices=True)
    end, cause = np.full(len(rows), np.nan), np.full(len(rows), NOT_KNOWN, dtype=np.uint8)
    begun = (known.prediction_us[at_known] - first_us[known.subject[at_known]]) / DAY_US
    end[at], cause[at] = begun + known.duration_days[at_known], known.cause[at_known]
    return end, cause


def _items(record: Record) -> tuple[Ints, Ints32, Floats32]:
    """Each code of each visit once, in the order of its first time, with its last number."""
    visits, events = record.visits, record.events
    code, value = events.code[visits.event], events.value[visits.event]
    key = visits.visit * max(len(events.codes), 1) + code
    order = np.argsort(key, kind="stable")
    opens = np.flatnonzero(opens_run(key[order]))
    first, last = order[opens], order[np.append(opens[1:], len(order))[: len(opens)] - 1]
    by_time = np.argsort(first, kind="stable")
    first, last = first[by_time], last[by_time]
    return visits.visit[first], code[first], value[last]


def _sex(encoded: TaskRecords, asked: RiskPredictor) -> NDArray[np.str_]:
    """(S,) level of the static code that tells the sex; empty where there is none."""
    n, rows = len(encoded.timelines), encoded.rows
    out = np.full(n, "", dtype=object)
    own = np.flatnonzero(np.diff(rows.row_offsets))
    if len(own):
        levels = groups_of_rows(encoded, asked.run.vocabulary, chosen=rows.row_offsets[own])
        if "sex" in levels:
            out[own] = levels["sex"]
    return out.astype(np.str_)


def landmark_rows(patients: Patients, landmark_days: float) -> Ints:
    """(S,) each patient's prediction time at a landmark after its first index, -1 where there is none.

    Where the task asks at the landmark, it is that query. At the index itself it is the first prediction time.
    """
    out = np.full(len(patients), -1, dtype=np.int64)
    owner = np.repeat(np.arange(len(patients)), np.diff(patients.row_offsets))
    is_query = patients.is_query & (
        np.abs(patients.row_day - patients.row_index_day - landmark_days) < 1 / 24
    )
    for_index = patients.row_index_day == patients.row_index_day[patients.row_offsets[:-1]][owner]
    rows = np.flatnonzero(is_query & for_index)[::-1]
    out[owner[rows]] = rows
    if landmark_days == 0:
        out = np.where(out < 0, patients.row_offsets[:-1], out)
    return out
