"""Ragged attention in spans of rows of any length without a pad, by `torch.nn.attention.varlen`.

The kernel exists on CUDA, in half precision and from torch 2.11 on (with a window); sums and softmax are in float32.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.attention_blocks import SubjectRows, ranges
from ehrsequencing.models.segments import gather_distinct_rows, gather_rows, to_device

WIDEST_HEAD = 256  # of the kernel
MOST_SPANS = 2**16 - 1  # of one call of the kernel: one dimension of a CUDA grid


def is_ragged(device: torch.device) -> bool:
    """Whether attention on this device runs in ragged spans: a GPU that has the kernel, and half precision (autocast).

    Elsewhere it runs in dense blocks, in float32.
    """
    if device.type != "cuda" or not torch.is_autocast_enabled("cuda"):
        return False
    if torch.__version__ < "2.11":
        return False
    half = torch.get_autocast_dtype("cuda").itemsize == 2
    return half and torch.cuda.get_device_capability(device) >= (8, 0)


@dataclass(frozen=True)
class Spans:
    """One call of the ragged kernel: G spans of queries, each against its own span of keys.

    Query i of a span of Lq sees key j of its Lk where `−left ≤ j − (i + Lk − Lq) ≤ right`: the last query stands
    beside the last key. A bound of −1 is none.
    """

    query_offsets: Tensor  # (G+1,) int32, span g holds queries `query_offsets[g]:query_offsets[g+1]`, at least one
    key_offsets: Tensor  # (G+1,) int32, the same for keys
    queries: int  # number of queries; known on the CPU, as the lengths are, so that nothing waits for the device
    keys: int  # number of keys
    longest_query: int  # most queries of a span
    longest_key: int  # most keys of a span
    window: tuple[int, int]  # (left, right)


@dataclass(frozen=True)
class Stream:
    """Packed rows, and the calls that cut them into spans, one after another."""

    rows: Tensor | None  # (P,) packed rows of the queries, none twice; None: all in order
    key_rows: Tensor | None  # (Q,) packed rows of the keys, may repeat; None: the queries
    calls: tuple[Spans, ...]  # the kernel's calls


@dataclass(frozen=True)
class RaggedPlan:
    """What each of N packed rows attends to, as streams without pads.

    Attributes:
        streams: Together they hold every row once as a query.
        answer_slot: (N,) which of the streams' queries answers for each packed row; None: they stand in order.
    """

    streams: tuple[Stream, ...]
    answer_slot: Tensor | None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, heads: int) -> Tensor:
        """See `attention.attend`; in the half precision of q, k and v."""
        if not self.streams:
            return v
        answers = []
        for stream in self.streams:
            of_queries, of_keys = (
                [call.queries for call in stream.calls],
                [call.keys for call in stream.calls],
            )
            queries = torch.split(gather_distinct_rows(q, stream.rows), of_queries)
            if stream.key_rows is None:
                keys, values = (
                    torch.split(gather_distinct_rows(x, stream.rows), of_keys) for x in (k, v)
                )
            else:
                keys, values = (
                    torch.split(gather_rows(x, stream.key_rows), of_keys) for x in (k, v)
                )
            parts = zip(queries, keys, values, stream.calls, strict=True)
            answers += [_attend_spans(*part, heads=heads) for part in parts]
        return gather_distinct_rows(torch.cat(answers), self.answer_slot)


def _attend_spans(q: Tensor, k: Tensor, v: Tensor, spans: Spans, *, heads: int) -> Tensor:
    """(queries, d), twice (keys, d) → (queries, d)."""
    from torch.nn.attention.varlen import (
        varlen_attn,  # loads the compiler: two seconds that only a GPU shall cost
    )

    size = q.shape[1] // heads
    if size > WIDEST_HEAD:
        raise EhrseqError(
            f"heads wider than {WIDEST_HEAD}", where="ModelConfig.heads", fix="use more heads"
        )
    q, k, v = (x.view(len(x), heads, size) for x in (q, k, v))
    if size % 8:  # the kernel's heads are multiples of 8; zeros change no score
        q, k, v = (F.pad(x, (0, -size % 8)) for x in (q, k, v))
    out = varlen_attn(
        q,
        k,
        v,
        spans.query_offsets,
        spans.key_offsets,
        spans.longest_query,
        spans.longest_key,
        scale=size**-0.5,
        window_size=spans.window,
    )
    assert isinstance(out, Tensor)  # not the pair that `return_aux` asks for
    return out[..., :size].flatten(1)


# ---- plans -------------------------------------------------------------------------------------------------


def visits_spans(batch: VisitBatch, *, window: int, bidirectional: bool) -> RaggedPlan:
    """Two streams: the real visits of each subject, and each query alone with the visits that it sees."""
    device, batch = batch.codes.device, batch.host
    subjects = SubjectRows(batch)
    has_queries = len(subjects.query_row) > 0
    longest = int(subjects.length.max()) if batch.n_subjects else 0
    back = window - 1 if window < longest else -1
    visits = make_stream(
        subjects.real_rows if has_queries else None,  # None: all rows in their order
        subjects.length,
        window=(back, back if bidirectional else 0),
        device=device,
    )
    if not has_queries:
        return RaggedPlan((visits,) if visits.calls else (), None)
    seen = subjects.seen.clamp(max=window - 1)
    nth = ranges(subjects.before - seen, seen + 1)  # of `real_rows`, and a place for itself
    own = torch.cat([subjects.real_rows, subjects.real_rows.new_zeros(1)])[nth]
    own[(seen + 1).cumsum(0) - 1] = subjects.query_row
    queries = make_stream(
        subjects.query_row,
        torch.ones_like(seen),
        key_rows=own,
        key_lengths=seen + 1,
        device=device,
    )
    answered = torch.cat([subjects.real_rows, subjects.query_row])
    answer_slot = torch.empty_like(answered)
    answer_slot[answered] = torch.arange(len(answered))
    streams = tuple(stream for stream in (visits, queries) if stream.calls)
    return RaggedPlan(streams, to_device(answer_slot, device))


def codes_spans(offsets: Tensor, *, device: torch.device) -> RaggedPlan:
    """One span a visit: its codes see one another."""
    stream = make_stream(None, offsets.cpu().diff(), device=device)
    return RaggedPlan((stream,) if stream.calls else (), None)


# ---- made from lengths -----------------------------------------------------------------------------------------------


def make_stream(
    rows: Tensor | None,
    lengths: Tensor,
    *,
    device: torch.device,
    key_rows: Tensor | None = None,
    key_lengths: Tensor | None = None,
    window: tuple[int, int] = (-1, -1),
) -> Stream:
    """Spans of so many queries (and keys; none: as many), as few calls as possible; empty spans are left out.

    All is counted on the CPU, and then moved to the device without waiting for it.
    """

    def span_offsets(lengths: Tensor) -> Tensor:
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return to_device(offsets.to(torch.int32), device)

    queries = lengths[lengths > 0]
    keys = queries if key_lengths is None else key_lengths[lengths > 0]
    pairs = zip(torch.split(queries, MOST_SPANS), torch.split(keys, MOST_SPANS), strict=True)
    calls = tuple(
        Spans(
            span_offsets(q),
            span_offsets(k),
            int(q.sum()),
            int(k.sum()),
            int(q.max()),
            int(k.max()),
            window,
        )
        for q, k in pairs
        if len(q)
    )
    rows = None if rows is None else to_device(rows, device)
    key_rows = None if key_rows is None else to_device(key_rows, device)
    return Stream(rows, key_rows, calls)
