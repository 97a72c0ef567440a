"""Equal visits of a batch, so that a model encodes each once: copies of a person differ in one visit of many."""

import torch
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch

WORTH = 0.5  # of a batch's visits; with more distinct ones all are encoded


def distinct_visits(batch: VisitBatch) -> tuple[VisitBatch, Tensor] | None:
    """Visits and queries with the same codes and numbers in the same order, once.

    Args:
        batch: On the CPU.

    Returns:
        The distinct ones as the visits of one subject, without ages, gaps and labels, and (N,) which of them each visit
        equals. None where more than `WORTH` of them are distinct.
    """
    content = _content(batch)
    key = _mixed(content, batch)
    _, number = torch.unique(key, return_inverse=True)
    count = int(number.max()) + 1 if len(number) else 0
    if count > WORTH * batch.n_visits:
        return None
    first = number.new_full((count,), batch.n_visits)
    first = first.scatter_reduce(0, number, torch.arange(batch.n_visits, device=key.device), "amin")
    same = first[number]  # (N,) the visit that stands for each
    # two contents with one key are next to impossible, and are looked for
    sizes = batch.codes_per_visit
    if not torch.equal(sizes, sizes[same]):
        return None
    shift = (batch.visit_offsets[:-1][same] - batch.visit_offsets[:-1])[batch.visit_of_code]
    twin = torch.arange(batch.n_codes, device=key.device) + shift
    if not all(torch.equal(one, one[twin]) for one in content):
        return None
    kept = (same[batch.visit_of_code] == batch.visit_of_code).nonzero().squeeze(1)
    standing = (same == torch.arange(batch.n_visits, device=key.device)).nonzero().squeeze(1)
    order = torch.empty_like(first)
    order[number[standing]] = torch.arange(count, device=key.device)
    zeros = batch.delta_days.new_zeros(count)
    visits = VisitBatch(
        codes=batch.codes[kept],
        visit_offsets=torch.nn.functional.pad(sizes[standing].cumsum(0), (1, 0)),
        subject_offsets=batch.subject_offsets.new_tensor([0, count]),
        age_years=zeros,
        delta_days=zeros,
        values=None if batch.values is None else batch.values[kept],
        code_types=None if batch.code_types is None else batch.code_types[kept],
    )
    return visits, order[number]


def _content(batch: VisitBatch) -> list[Tensor]:
    """What tells codes of visits apart, as integers (K,)."""
    content = [batch.codes]
    if batch.values is not None:
        integer = torch.int64 if batch.values.dtype == torch.float64 else torch.int32
        content += batch.values.contiguous().view(integer).long().unbind(1)
    if batch.code_types is not None:
        content.append(batch.code_types)
    return content


def _mixed(content: list[Tensor], batch: VisitBatch) -> Tensor:
    """(N,) a hash of the codes of each visit, in their order."""
    place = torch.arange(batch.n_codes, device=batch.codes.device)
    mixed = place - batch.visit_offsets[batch.visit_of_code] + 1
    for column in content:
        mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B9 + column
        mixed = (mixed ^ (mixed >> 32)) * 0x14D049BB133111EB
    total = torch.nn.functional.pad(mixed.cumsum(0), (1, 0))
    return total[batch.visit_offsets].diff()
