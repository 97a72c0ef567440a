"""What people's records are like: how many people have each code and its numbers, and the shape of their records.

The same is kept of a run's training people and counted of new people, whose number does not matter to memory.
"""

from collections import Counter

import numpy as np

from ehrsequencing.config import DAYS_PER_YEAR, VisitsConfig
from ehrsequencing.core.arrays import Floats, Ints, Ints32, hash_u64, offsets
from ehrsequencing.core.disclosure import SMALLEST_COUNT, rounded
from ehrsequencing.records.account import (
    N,
    PeopleCounts,
    TrainingPeople,
)
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.encoding import MAX_AGE_YEARS, Moment
from ehrsequencing.records.events import DAY_US, STATIC, Events
from ehrsequencing.records.scales import Sample, fit_scale
from ehrsequencing.records.survey import CodeCounts
from ehrsequencing.records.timelines import TaskRows, Timelines
from ehrsequencing.records.visits import make_record
from ehrsequencing.records.vocabulary import Vocabulary

# of a prepared set: what its training people are like; of a run: with the risks of its tuning people
PEOPLE = "people.json"
_MOST = 20_000  # people whose records and risks are kept as quantiles
# what is measured of each person, and how it is printed
MEASURES = {
    "rows": "rows a person",
    "visits": "visits a person",
    "codes": "different codes a person",
    "history": "days from the first to the last visit",
    "age": "age at the last visit, in years",
}


def measure(
    visit_offsets: Ints, start_us: Ints, end_us: Ints, birth_us: Ints, who: Ints, token: Ints32
) -> dict[str, Floats]:
    """What the records of S people are like, by the names of `MEASURES`; who has no visit is left out.

    Args:
        visit_offsets: (S+1,) person s owns visits `[offsets[s], offsets[s+1])`.
        start_us: (N,) start of each visit.
        end_us: (N,) its end.
        birth_us: (S,) `STATIC` where it is not known.
        who: (n,) the person of each row that makes a token.
        token: (n,) its token.

    Returns:
        (S',) each; `age` is NaN where it is not known.
    """
    n_visits, n_tokens = np.diff(visit_offsets), int(token.max(initial=0)) + 1
    seen = np.flatnonzero(n_visits)
    pairs = np.unique(who.astype(np.int64) * n_tokens + token)
    first_us, last_us = start_us[visit_offsets[seen]], end_us[visit_offsets[seen + 1] - 1]
    age = (last_us - birth_us[seen]) / DAY_US / DAYS_PER_YEAR
    is_known = (birth_us[seen] != STATIC) & (age <= MAX_AGE_YEARS)
    return {
        "rows": np.bincount(who, minlength=len(birth_us))[seen].astype(np.float64),
        "visits": n_visits[seen].astype(np.float64),
        "codes": np.bincount(pairs // n_tokens, minlength=len(birth_us))[seen].astype(np.float64),
        "history": (last_us - first_us) / DAY_US,
        "age": np.where(is_known, age, np.nan),
    }


def quantiles(values: Floats, owner: Ints | None = None) -> Floats | None:
    """129 quantiles of groups of 11 people; None of fewer. Without an owner each value is of another person."""
    who = np.arange(len(values)) if owner is None else owner
    known = ~np.isnan(values)
    scale = fit_scale(values[known], who[known].astype(np.uint32), enough=SMALLEST_COUNT)
    return None if scale is None else scale.knots


def some_people(n: int) -> Ints:
    """Numbers of some of n people, evenly over all."""
    return np.linspace(0, n - 1, min(n, _MOST)).astype(np.int64)


def measures_to_keep(
    counts: PeopleCounts[N], people: Timelines, vocabulary: Vocabulary, *, end_us: int
) -> PeopleCounts[N]:
    """Content of `people.json`: counts, and quantiles of what is measured.

    Args:
        counts: How many people there are, and how many have each code.
        people: Their visits.
        vocabulary: Of their tokens.
        end_us: The end of the data.
    """
    people = people.take(some_people(len(people)))
    owner = np.repeat(people.owner, np.diff(people.visit_offsets))
    token = vocabulary.base[people.codes].astype(np.int32)
    measured = measure(
        people.subject_offsets,
        people.start_us,
        people.end_us,
        people.birth_us,
        np.r_[owner, people.static_owner],
        np.r_[token, vocabulary.base[people.static_codes].astype(np.int32)],
    )
    rate = visits_a_year(measured["visits"], measured["history"])
    kept = {name: quantiles(values) for name, values in measured.items()}
    return {
        **counts,
        "measures": {n: rounded(knots.tolist()) for n, knots in kept.items() if knots is not None},
        "visits_a_year": rounded(rate),
    }


def quantiles_of_risks(risk: Floats, rows: TaskRows) -> dict[str, list[float]]:
    """129 quantiles of risks at each subject's newest index, at its newest prediction time, and at all of them.

    Args:
        risk: (R, causes, horizons) of which the first cause's by the middle horizon are kept.
        rows: The prediction times.
    """
    risk, kept = risk[:, 0, risk.shape[2] // 2], {}
    for at in ("index", "last", "all"):
        chosen = Moment(at).chosen(rows) & ~np.isnan(risk)
        knots = quantiles(risk[chosen], rows.subject[chosen])
        if knots is not None:
            kept[at] = rounded(knots.tolist(), 5)
    return kept


def coarse_people(kept: TrainingPeople) -> TrainingPeople:
    """What training people were like, for a shared copy: shares in per cent, and quantiles by 17 places.

    Their number is the next below of 11, 20, 50, 100, 200 …, so that chance has wider limits, and counts are shares of
    it; a code that all but 10 people have is one that all have.
    """
    people, size = kept["people"], SMALLEST_COUNT
    for larger in (base * 10**power for power in range(1, 10) for base in (2, 5, 10)):
        size = larger if larger <= people else size

    def share(count: int) -> int:
        return round(size * (1.0 if people - count < SMALLEST_COUNT else round(count / people, 2)))

    def coarse(curves: dict[str, list[float]]) -> dict[str, list[float]]:
        found = dict[str, list[float]]()
        for name, knots in curves.items():
            places = np.arange(len(knots))
            found[name] = np.interp(places, places[::8], knots[::8]).round(5).tolist()
        return found

    return {
        **kept,
        "people": size,
        "codes": {code: (share(had), share(n)) for code, (had, n) in kept["codes"].items()},
        "measures": coarse(kept["measures"]),
        "risks": coarse(kept["risks"]),
    }


class People(CodeCounts):
    """Counts new people by code, judges their numbers, and samples what their records are like.

    Attributes:
        total: People with a row that makes a token.
        unknown_share: Sum over them of the share of their rows with a code that the run does not know.
        all_rows: Their rows, and those of them with such a code.
        numbers: Code → rows with a number.
        judged: Code → people whose numbers have a scale.
        outside: Code → sum over these people of the share of their numbers outside the scale's 1st to 99th percentile.
    """

    def __init__(self, vocabulary: Vocabulary, excluded: CodeMatcher, visits: VisitsConfig) -> None:
        super().__init__()
        self.vocabulary, self.excluded, self.visits = vocabulary, excluded, visits
        self.numbers, self.judged, self.outside = Counter[str](), Counter[str](), Counter[str]()
        self.total, self.unknown_share, self.all_rows = 0, 0.0, np.zeros(2, np.int64)
        self._sample = Sample()

    def add(self, events: Events) -> None:
        """Count one shard."""
        super().add(events)
        record = make_record(events, excluded=self.excluded, settings=self.visits)
        n, rows = len(record.subject_id), np.flatnonzero(~record.excluded)
        code, who = events.code[rows], record.subject[rows]
        ids = self.vocabulary.ids(events.codes)
        is_unknown = (ids < self.vocabulary.n_unknown)[code]
        each, unknown = np.bincount(who, minlength=n), np.bincount(who[is_unknown], minlength=n)
        self.total += int((each > 0).sum())
        self.unknown_share += float((unknown / np.maximum(each, 1)).sum())
        self.all_rows += [len(rows), int(unknown.sum())]
        # numbers outside the usual; a person's numbers of a code weigh 1 together
        value, size = events.value[rows], int(who.max(initial=0)) + 1
        rank = self.vocabulary.ranks(ids[code], value)
        ranked = np.flatnonzero(~np.isnan(rank))
        pair = code[ranked].astype(np.int64) * size + who[ranked]
        pair, place, count = np.unique(pair, return_inverse=True, return_counts=True)
        outside = np.bincount(place, weights=np.abs(rank[ranked] - 0.5) > 0.49) / count
        for counter, of_code, weights in (
            (self.numbers, code, ~np.isnan(value)),
            (self.judged, pair // size, None),
            (self.outside, pair // size, outside),
        ):
            counts = np.bincount(of_code, weights=weights, minlength=len(events.codes)).tolist()
            counter.update(dict(zip(events.codes, counts, strict=True)))
        visits = record.visits
        found = measure(
            offsets(visits.subject, n),
            visits.start_us,
            visits.end_us,
            record.birth_us,
            who,
            ids[code],
        )
        has_visit = np.bincount(visits.subject, minlength=n) > 0
        identity = hash_u64(record.subject_id[has_visit].view(np.uint64))
        owner = (identity >> np.uint64(32)).astype(np.uint32)
        for key, values in enumerate(found.values()):
            self._sample.add(np.full(len(values), key), identity, values, owner)

    def measured(self) -> dict[str, tuple[Floats, Floats | None]]:
        """By measure: the values of a sample of people, and their `quantiles`."""
        sample, found = self._sample.by_key(), {}
        for key, name in enumerate(MEASURES):
            values, owner = sample.of(key)
            found[name] = values[~np.isnan(values)], quantiles(values, owner.astype(np.int64))
        return found


def visits_a_year(visits: Floats, history_days: Floats) -> float:
    """Visits after the first, over the years from the first to the last: a cut makes them seem more, never fewer."""
    return float((visits - 1).sum() / max(history_days.sum() / DAYS_PER_YEAR, 1e-9))
