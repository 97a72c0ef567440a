"""Collating against plain loops, and who shares a step."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from ehrsequencing.batches.loader import MAX_VISIT_CODES, Step, SubjectLoader
from ehrsequencing.config import ModelConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics import hazards as plain
from ehrsequencing.models.hazards import horizon_nll
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords


@pytest.fixture(scope="module")
def arrays(sim_prepared: Path) -> TaskRecords:
    prepared = Prepared(sim_prepared)
    return prepared.records("simulated", "train")


def visible(step: Step, position: int) -> list[list[tuple[int, float]]]:
    """Codes and ranks of every element that a position of the batch may see, itself last."""
    batch = step.batch
    subject = int(batch.subject_of_visit[position])
    first = int(batch.subject_offsets[subject])
    seen = [n for n in range(first, position) if not batch.is_query[n]] + [position]
    spans = [slice(int(batch.visit_offsets[n]), int(batch.visit_offsets[n + 1])) for n in seen]
    return [list(zip(batch.codes[s].tolist(), batch.values[s, 0].tolist(), strict=True)) for s in spans]


def expected(records: TaskRecords, row: int) -> list[list[tuple[int, float]]]:
    """The same, straight from the store."""
    timelines, rows = records.timelines, records.rows
    subject = int(np.searchsorted(rows.row_offsets, row, side="right")) - 1
    first = int(timelines.subject_offsets[subject])
    visits = range(first, first + int(rows.visits_before[row]))
    spans = [slice(*timelines.visit_offsets[v : v + 2].tolist()) for v in visits]
    out = [list(zip(timelines.codes[s].tolist(), timelines.values[s, 0].tolist(), strict=True)) for s in spans]
    if rows.is_query[row]:
        s = slice(*rows.carry_offsets[row : row + 2].tolist())
        out.append(list(zip(rows.carry_codes[s].tolist(), rows.carry_values[s, 0].tolist(), strict=True)))
    return out


def same(a: list[list[tuple[int, float]]], b: list[list[tuple[int, float]]]) -> bool:
    return repr(a) == repr(b)  # NaN equals NaN in print


def test_every_prediction_time_sees_exactly_its_past(arrays: TaskRecords) -> None:
    rows = arrays.rows
    loader = SubjectLoader(arrays)
    answered = 0
    for step in loader.in_order(visit_budget=300):
        for row, position in zip(step.rows.tolist(), step.positions.tolist(), strict=True):
            assert same(visible(step, position), expected(arrays, row))
            assert bool(step.batch.is_query[position]) == bool(rows.is_query[row])
            assert float(step.batch.duration_days[position]) == float(rows.duration_days[row])
            assert int(step.batch.cause[position]) == int(rows.cause[row])
            answered += 1
        assert int(step.batch.at_risk.sum()) == len(step.rows)
    assert answered == len(rows)


def test_visit_head_takes_visits_only_and_one_cause_a_subject(arrays: TaskRecords) -> None:
    timelines, rows = arrays.timelines, arrays.rows
    loader = SubjectLoader(arrays, queries=False)
    step = loader.collate(loader.subjects)
    assert not step.batch.is_query.any()
    events = np.bincount(step.batch.subject_of_visit[step.batch.cause > 0].numpy(), minlength=len(loader))
    with_event = np.array([rows.cause[rows.row_offsets[s + 1] - 1] > 0 for s in loader.subjects])
    at_risk = np.bincount(step.batch.subject_of_visit[step.batch.at_risk].numpy(), minlength=len(loader)) > 0
    np.testing.assert_array_equal(events, (with_event & at_risk).astype(int))
    ends = np.asarray(timelines.end_us)
    subject = rows.subject
    own = [
        r
        for r in range(len(rows))
        if rows.visits_before[r] > 0
        and ends[timelines.subject_offsets[subject[r]] + rows.visits_before[r] - 1] == rows.prediction_us[r]
    ]
    assert int(step.batch.at_risk.sum()) == len(own) == len(step.rows)


def test_an_epoch_holds_every_subject_once_within_the_budget(arrays: TaskRecords) -> None:
    loader = SubjectLoader(arrays)
    steps = loader.shuffled(3, seed=1, visit_budget=200)
    np.testing.assert_array_equal(np.sort(np.concatenate(steps)), loader.subjects)
    assert all(loader.cost[s].sum() <= 200 or len(s) == 1 for s in steps)
    again, other = loader.shuffled(3, seed=1, visit_budget=200), loader.shuffled(4, seed=1, visit_budget=200)
    assert all(np.array_equal(a, b) for a, b in zip(steps, again, strict=True))
    assert not np.array_equal(np.concatenate(steps), np.concatenate(other))


def test_a_step_holds_so_many_subjects_at_most(arrays: TaskRecords) -> None:
    loader = SubjectLoader(arrays)
    steps = loader.shuffled(0, seed=0, visit_budget=10**9, most_subjects=7)
    assert [len(step) for step in steps[:-1]] == [7] * (len(steps) - 1)
    assert len(steps[-1]) == (len(loader) % 7 or 7)
    tight = loader.shuffled(0, seed=0, visit_budget=200, most_subjects=7)  # the budget still holds
    assert all(len(s) <= 7 and (loader.cost[s].sum() <= 200 or len(s) == 1) for s in tight)
    np.testing.assert_array_equal(np.sort(np.concatenate(tight)), loader.subjects)


def within_step_share(loader: SubjectLoader, epochs: list[list[np.ndarray]]) -> float:
    """Share of the variance of the length that lies within steps; 1 where length does not decide who shares one."""
    within, total = 0.0, 0.0
    for steps in epochs:
        cost = loader.cost[np.concatenate(steps)]
        for step in steps:
            part = loader.cost[step]
            within += float(part.var(ddof=1)) * len(part) if len(part) > 1 else 0.0
        total += float(cost.var(ddof=1)) * len(cost)
    return within / total


def test_length_does_not_decide_who_shares_a_step(arrays: TaskRecords) -> None:
    loader = SubjectLoader(arrays)
    drawn = [loader.shuffled(e, seed=0, visit_budget=250) for e in range(40)]
    assert within_step_share(loader, drawn) > 0.9
    by_length = loader.subjects[np.argsort(loader.cost[loader.subjects], kind="stable")]
    assert (
        within_step_share(loader, [loader.groups_in_order(visit_budget=250, subjects=by_length)]) < 0.3
    )  # the broken rule is seen


def check_types(step: Step, code_types: np.ndarray) -> None:
    """Every code of every visit and query has its own token's type, also where queries stand between visits."""
    assert step.batch.code_types is not None
    expected = [int(code_types[code]) for code in step.batch.codes.tolist()]
    assert step.batch.code_types.tolist() == expected


@pytest.mark.parametrize("queries", [True, False])
def test_codes_carry_the_type_of_their_token(arrays: TaskRecords, sim_prepared: Path, queries: bool) -> None:
    code_types = Prepared(sim_prepared).vocabulary.code_types
    loader = SubjectLoader(arrays, queries=queries, code_types=code_types)
    for step in loader.in_order(visit_budget=300):
        check_types(step, code_types)
    assert step.batch.code_types is not None
    assert len(set(step.batch.code_types.tolist())) > 2
    assert SubjectLoader(arrays, queries=queries).collate(loader.subjects[:3]).batch.code_types is None


@pytest.mark.parametrize("chosen", [{"architecture": "flat"}, {"visit_encoder": "transformer"}])
def test_attention_among_too_many_codes_of_a_visit_is_refused(arrays: TaskRecords, chosen: dict[str, object]) -> None:
    def huge(codes: int) -> TaskRecords:
        """The first visit of somebody who has a later prediction time has so many codes."""
        lines, rows = arrays.timelines, arrays.rows
        first = int(lines.subject_offsets[rows.subject[np.flatnonzero(rows.visits_before)[0]]])
        more = codes - int(np.diff(lines.visit_offsets)[first])
        at = int(lines.visit_offsets[first])
        bounds = lines.visit_offsets + more * (np.arange(len(lines.visit_offsets)) > first)
        added = np.insert(lines.codes, at, np.full(more, 5, np.int32))
        values = np.insert(lines.values, at, np.full((more, 2), np.nan, np.float32), axis=0)
        return replace(arrays, timelines=replace(lines, visit_offsets=bounds, codes=added, values=values))

    config = ModelConfig.model_validate(chosen)
    SubjectLoader.of_model(config, huge(MAX_VISIT_CODES))
    with pytest.raises(EhrseqError, match="16,384 codes"):
        SubjectLoader.of_model(config, huge(MAX_VISIT_CODES + 1))
    SubjectLoader.of_model(ModelConfig(), huge(MAX_VISIT_CODES + 1))


# ---- event times on the edges of the grid ----------------------------------------------------------------------------


DAY_US = 86_400_000_000
# hours, minutes and days that no float32 holds, as where dates meet clocks
TIES = st.one_of(
    st.integers(1, 2000).map(lambda hours: hours * 3_600_000_000),
    st.integers(1, 9000).map(lambda minutes: minutes * 60_000_000),
    st.tuples(st.integers(0, 60), st.integers(1, 23)).map(lambda x: x[0] * DAY_US + x[1] * 3_600_000_000),
)
PRECISIONS = {torch.float64: 1e-9, torch.float32: 1e-5}


@pytest.fixture(scope="module")
def records(sim_prepared: Path) -> TaskRecords:
    return Prepared(sim_prepared).records("simulated", "tuning")


def losses(
    records: TaskRecords, edges_us: list[int], dtype: torch.dtype, *, labels: torch.dtype = torch.float64
) -> tuple[np.ndarray, np.ndarray]:
    """The loss of each prediction time, by torch from batches, and by NumPy from the stored labels."""
    edges = [us / DAY_US for us in sorted(set(edges_us))]
    rng, n = np.random.default_rng(0), len(records.rows)
    log_hazard = rng.normal(-3, 1, (2, len(edges) + 1))
    entry = np.where(rng.random(n) < 0.3, edges[0], 0.0)
    later = np.array(edges[1:])[rng.integers(0, len(edges) - 1, n)]
    rows = replace(records.rows, duration_days=later, entry_days=entry, cause=rng.integers(0, 3, n).astype(np.int8))
    theirs = plain.horizon_nll(
        np.exp(log_hazard), edges, duration_days=rows.duration_days, cause=rows.cause, entry_days=rows.entry_days
    )
    ours = np.full(n, np.nan)
    for step in SubjectLoader(replace(records, rows=rows)).in_order(visit_budget=4000):
        batch, at = step.batch, torch.from_numpy(step.positions)
        logits = torch.from_numpy(log_hazard).to(dtype).expand(len(at), *log_hazard.shape)
        nll = horizon_nll(
            logits,
            edges,
            duration_days=batch.duration_days[at].to(labels),
            cause=batch.cause[at],
            entry_days=batch.entry_days[at].to(labels),
        )
        ours[step.rows] = nll.double().numpy()
    return ours, theirs


@pytest.mark.parametrize("dtype", PRECISIONS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(edges=st.lists(TIES, min_size=3, max_size=21, unique=True))
def test_the_loss_of_a_batch_is_the_loss_by_numpy(edges: list[int], dtype: torch.dtype, records: TaskRecords) -> None:
    ours, theirs = losses(records, edges, dtype)
    np.testing.assert_allclose(ours, theirs, rtol=PRECISIONS[dtype], atol=PRECISIONS[dtype])


def test_labels_in_float32_put_events_into_the_next_bin(records: TaskRecords) -> None:
    """The mutant of the test above."""
    edges = [hours * 3_600_000_000 for hours in (1, 25, 49, 97, 193)]
    ours, theirs = losses(records, edges, torch.float64, labels=torch.float32)
    assert np.mean(np.abs(ours - theirs) > 0.01) > 0.05
