"""Event times on the edges of the grid: the loss of a batch is the loss by NumPy, whatever the model's precision."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.metrics import hazards as plain
from ehrsequencing.models.hazards import horizon_nll
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords

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
