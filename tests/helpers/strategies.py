"""Ragged records for tests: plain Python subjects, Hypothesis strategies for them, and how they become a batch."""

import random
from dataclasses import dataclass, field, replace

import torch
from hypothesis import strategies as st

from ehrsequencing.batches.visit_batch import VisitBatch

torch.set_num_threads(1)  # tiny tensors: threads would only wait for one another
NAN = float("nan")
VOCAB = 12
AGES = (NAN, 0.0, 44.9, 45.0, 67.3, 119.99, 120.0, 131.0)
DELTAS = (0.0, 0.03, 1 / 24, 0.3, 1.0, 3.9, 7.0, 30.0, 364.9, 3652.5, 9000.0)
CODE_TYPES = 4
NUMBERS = (None, (-1.7, -4.0), (-0.4, 0.1), (0.0, 0.0), (0.9, 2.5), (1.732, 4.0))


@dataclass(frozen=True)
class Visit:
    """One visit (or query), with its label."""

    codes: tuple[int, ...] = ()
    numbers: tuple[tuple[float, float] | None, ...] = ()  # rank and value of each code, or None
    age_years: float = 50.0
    delta_days: float = 0.0
    is_query: bool = False
    at_risk: bool = True
    duration_days: float = 100.0
    entry_days: float = 0.0
    cause: int = 0


def code_type(code: int, number: tuple[float, float] | None) -> int:
    """Any rule will do, but one that the code alone cannot tell."""
    return (code + 2 * (number is not None)) % CODE_TYPES


@dataclass(frozen=True)
class Subject:
    """A record: visits in time order with queries between them, and codes without a time."""

    visits: tuple[Visit, ...] = ()
    static: tuple[int, ...] = ()


Records = list[Subject]


@st.composite
def visits(draw: st.DrawFn, *, queries: bool = True, causes: int = 2) -> Visit:
    codes = tuple(draw(st.lists(st.integers(1, VOCAB - 1), max_size=4)))
    entry = draw(st.sampled_from((0.0, 7.0)))
    return Visit(
        codes=codes,
        numbers=tuple(draw(st.sampled_from(NUMBERS)) for _ in codes),
        age_years=draw(st.sampled_from(AGES)),
        delta_days=draw(st.sampled_from(DELTAS)),
        is_query=queries and draw(st.integers(0, 3)) == 0,
        at_risk=draw(st.booleans()),
        duration_days=entry + draw(st.sampled_from((0.5, 10.0, 23.0, 30.0, 365.0, 4000.0))),
        entry_days=entry,
        cause=draw(st.integers(0, causes)),
    )


def records(
    *, queries: bool = True, causes: int = 2, max_subjects: int = 4, max_visits: int = 7
) -> st.SearchStrategy[Records]:
    """Ragged records: empty subjects, empty visits, queries anywhere, unknown ages, codes with and without numbers."""
    static = st.lists(st.integers(1, VOCAB - 1), max_size=2).map(tuple)
    subject = st.builds(
        Subject, st.lists(visits(queries=queries, causes=causes), max_size=max_visits).map(tuple), static
    )
    return st.lists(subject, min_size=1, max_size=max_subjects)


def sample_records(seed: int = 0, *, lengths: tuple[int, ...] = (5, 0, 1, 8, 3), causes: int = 2) -> Records:
    """Fixed random records with everything in them: what every check, and every mutant, is run on."""
    rng = random.Random(seed)

    def visit(is_query: bool) -> Visit:
        codes = tuple(rng.randrange(1, VOCAB) for _ in range(rng.choice((0, 1, 2, 3, 5))))
        entry = rng.choice((0.0, 7.0))
        return Visit(
            codes=codes,
            numbers=tuple(rng.choice((None, None, (rng.gauss(0, 1), rng.gauss(0, 1)))) for _ in codes),
            age_years=rng.choice((NAN, rng.uniform(0, 125))),
            delta_days=rng.choice(DELTAS),
            is_query=is_query,
            at_risk=rng.random() < 0.7,
            duration_days=entry + rng.choice((10.0, 23.0, 30.0, rng.uniform(0.1, 800))),
            entry_days=entry,
            cause=rng.randrange(causes + 1),
        )

    subjects = []
    for length in lengths:
        rows = [visit(is_query=False) for _ in range(length)]
        for place in sorted(rng.sample(range(length + 1), k=min(2, length + 1)), reverse=True):
            rows.insert(place, visit(is_query=True))
        subjects.append(Subject(tuple(rows), tuple(rng.randrange(1, VOCAB) for _ in range(rng.randrange(3)))))
    return subjects


def pack(subjects: Records, *, visit_labels: bool = False, dtype: torch.dtype = torch.float64) -> VisitBatch:
    """Records → `VisitBatch`. With `visit_labels`, only the last real visit at risk keeps its cause (0 or 1)."""
    if visit_labels:
        subjects = [visit_labelled(subject) for subject in subjects]
    rows = [visit for subject in subjects for visit in subject.visits]

    def column(name: str, kind: torch.dtype) -> torch.Tensor:
        return torch.tensor([getattr(visit, name) for visit in rows], dtype=kind)

    def offsets(sizes: list[int]) -> torch.Tensor:
        return torch.tensor([0, *sizes], dtype=torch.int64).cumsum(0)

    pairs = [pair for visit in rows for pair in zip(visit.codes, visit.numbers, strict=True)]
    return VisitBatch(
        codes=torch.tensor([code for code, _ in pairs], dtype=torch.int64),
        visit_offsets=offsets([len(visit.codes) for visit in rows]),
        subject_offsets=offsets([len(subject.visits) for subject in subjects]),
        age_years=column("age_years", dtype),
        delta_days=column("delta_days", dtype),
        static_codes=torch.tensor([code for subject in subjects for code in subject.static], dtype=torch.int64),
        static_offsets=offsets([len(subject.static) for subject in subjects]),
        values=torch.tensor([number or (NAN, NAN) for _, number in pairs], dtype=dtype).view(-1, 2),
        code_types=torch.tensor([code_type(*pair) for pair in pairs], dtype=torch.int64),
        is_query=column("is_query", torch.bool),
        at_risk=column("at_risk", torch.bool),
        duration_days=column("duration_days", dtype),
        entry_days=column("entry_days", dtype),
        cause=column("cause", torch.int64),
    )


def visit_labelled(subject: Subject) -> Subject:
    """The `visit` head's labels: at most one cause, on the subject's last real visit at risk."""
    last = max((i for i, visit in enumerate(subject.visits) if visit.at_risk and not visit.is_query), default=None)
    labelled = [
        visit if visit.is_query else replace(visit, cause=min(visit.cause, 1) if i == last else 0)
        for i, visit in enumerate(subject.visits)
    ]
    return replace(subject, visits=tuple(labelled))


@dataclass
class Padded:
    """The same records as dense tensors with masks; pads hold junk that must never be read."""

    codes: torch.Tensor  # (B, V, C)
    code_mask: torch.Tensor
    types: torch.Tensor
    values: torch.Tensor  # (B, V, C, 2)
    ages: torch.Tensor  # (B, V)
    deltas: torch.Tensor
    visit_mask: torch.Tensor  # visits and queries
    is_query: torch.Tensor
    at_risk: torch.Tensor
    duration_days: torch.Tensor
    entry_days: torch.Tensor
    cause: torch.Tensor
    static: list[tuple[int, ...]] = field(default_factory=list)


def pad(subjects: Records, *, junk: float = NAN, seed: int | None = None, visit_labels: bool = False) -> Padded:
    """Records → `Padded`. With a `seed`, real slots stand at random (rising) places instead of the left."""
    if visit_labels:
        subjects = [visit_labelled(subject) for subject in subjects]
    rng = random.Random(seed)
    extra = 0 if seed is None else 3

    def places(count: int, room: int) -> list[int]:
        return list(range(count)) if seed is None else sorted(rng.sample(range(room), count))

    b = len(subjects)
    v = max((len(subject.visits) for subject in subjects), default=0) + extra
    c = max((len(visit.codes) for subject in subjects for visit in subject.visits), default=0) + extra
    junk_code = rng.randrange(10**6)
    padded = Padded(
        codes=torch.full((b, v, c), junk_code),
        code_mask=torch.zeros(b, v, c, dtype=torch.bool),
        types=torch.full((b, v, c), junk_code),
        values=torch.full((b, v, c, 2), junk, dtype=torch.float64),
        visit_mask=torch.zeros(b, v, dtype=torch.bool),
        is_query=torch.zeros(b, v, dtype=torch.bool),
        at_risk=torch.ones(b, v, dtype=torch.bool),
        cause=torch.full((b, v), 77),
        **{
            name: torch.full((b, v), junk, dtype=torch.float64)
            for name in ("ages", "deltas", "duration_days", "entry_days")
        },
        static=[subject.static for subject in subjects],
    )
    for i, subject in enumerate(subjects):
        for visit, j in zip(subject.visits, places(len(subject.visits), v), strict=True):
            padded.visit_mask[i, j], padded.is_query[i, j] = True, visit.is_query
            padded.ages[i, j], padded.deltas[i, j] = visit.age_years, visit.delta_days
            padded.at_risk[i, j], padded.cause[i, j] = visit.at_risk, visit.cause
            padded.duration_days[i, j], padded.entry_days[i, j] = visit.duration_days, visit.entry_days
            for k, code, number in zip(places(len(visit.codes), c), visit.codes, visit.numbers, strict=True):
                padded.codes[i, j, k], padded.code_mask[i, j, k] = code, True
                padded.types[i, j, k] = code_type(code, number)
                padded.values[i, j, k] = torch.tensor(number or (NAN, NAN), dtype=torch.float64)
        # a pad visit may even claim to hold codes
        padded.code_mask[i, ~padded.visit_mask[i]] = seed is not None
    return padded
