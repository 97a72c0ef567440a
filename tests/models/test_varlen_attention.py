"""The way of the GPU, on the CPU: ragged plans give the same numbers as the padded reference, and no step waits.

`torch.nn.attention.varlen` has no CPU kernel. Here a plain twin with its signature takes its place and holds every
call to the kernel's contract, so that the kernel itself is all that is left to a GPU (the tests at the end). That
nothing waits for the device is shown on `meta` tensors, which hold no numbers at all: whoever asks for one fails.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.attention.varlen
from hypothesis import given, strategies as st
from torch import Tensor

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models import attention, attention_spans, behrt
from ehrsequencing.models.attention import Plan, attend
from ehrsequencing.models.attention_blocks import AttentionPlan
from ehrsequencing.models.attention_spans import RaggedPlan, Spans, Stream
from helpers.attention_checks import any_reach, sightings
from helpers.model_checks import FEW, check_equals_reference, outputs_and_gradients
from helpers.models import MODELS, make_model
from helpers.mutants import Patch
from helpers.no_wait import Waits, check_no_wait, nobody_waits, step
from helpers.strategies import Records, Subject, Visit, pack, records, sample_records

SAMPLE = sample_records(lengths=(7, 0, 1, 8, 3))
RAGGED_KINDS = [kind for kind in MODELS if not kind.startswith("flat")]

# ---- the kernel's plain twin -----------------------------------------------------------------------------------------


def plain_varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """What `varlen_attn` is documented to do, span by span; sums in at least float32, as the kernel."""
    check_contract(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k)
    answers = []
    for (q0, q1), (k0, k1) in zip(pairs(cu_seq_q), pairs(cu_seq_k), strict=True):
        q, k, v = (
            x.to(torch.promote_types(x.dtype, torch.float32)).transpose(0, 1)
            for x in (query[q0:q1], key[k0:k1], value[k0:k1])
        )
        weights = (scale * q @ k.transpose(1, 2)).masked_fill(~visible(q1 - q0, k1 - k0, window_size), -torch.inf)
        weights = weights.softmax(2).to(query.dtype).to(v.dtype)  # the kernel multiplies in half precision
        answers.append((weights @ v).transpose(0, 1).to(query.dtype))
    return torch.cat(answers)


def visible(queries: int, keys: int, window: tuple[int, int]) -> Tensor:
    """(Lq, Lk): the last query stands beside the last key; −1 is no bound."""
    distance = torch.arange(keys) - (torch.arange(queries).unsqueeze(1) + keys - queries)
    left, right = (queries + keys if bound < 0 else bound for bound in window)
    return (distance >= -left) & (distance <= right)


def pairs(offsets: Tensor) -> list[tuple[int, int]]:
    numbers = offsets.tolist()
    return list(itertools.pairwise(numbers))


def check_contract(q: Tensor, k: Tensor, v: Tensor, of_q: Tensor, of_k: Tensor, longest_q: int, longest_k: int) -> None:
    """What the kernel takes for granted."""
    assert q.shape[1:] == k.shape[1:] == v.shape[1:]
    assert q.shape[2] % 8 == 0
    assert q.shape[2] <= 256
    assert all(x.stride(-1) == 1 for x in (q, k, v))
    assert type(longest_q) is type(longest_k) is int
    assert len(of_q) == len(of_k) <= 2**16  # spans are one dimension of a grid
    for offsets, rows, longest in ((of_q, q, longest_q), (of_k, k, longest_k)):
        assert offsets.dtype == torch.int32
        assert (int(offsets[0]), int(offsets[-1])) == (0, len(rows))
        assert offsets.diff().min() > 0  # a query without keys would answer 0, and without queries nobody asks
        assert int(offsets.diff().max()) == longest


@pytest.fixture
def on_gpu(monkeypatch: Patch) -> None:
    """Ragged plans, and the twin in the kernel's place."""
    go_ragged(monkeypatch)


def go_ragged(patch: Patch, kernel: Callable[..., Tensor] = plain_varlen_attn) -> None:
    patch.setattr(attention, "is_ragged", lambda device: True)
    patch.setattr(torch.nn.attention.varlen, "varlen_attn", kernel)


# ---- who sees whom ---------------------------------------------------------------------------------------------------


def ragged_sightings(plan: RaggedPlan, n_rows: int) -> Tensor:
    """(rows, rows) how often the query that answers for row i sees row j; as `sightings` of a dense plan."""
    every = torch.arange(n_rows)
    seen_by_query, asked = [], []
    for stream in plan.streams:
        rows = every if stream.rows is None else stream.rows
        key_rows = rows if stream.key_rows is None else stream.key_rows
        assert sum(call.queries for call in stream.calls) == len(rows)
        assert sum(call.keys for call in stream.calls) == len(key_rows)
        at_query = at_key = 0
        for call in stream.calls:
            for (q0, q1), (k0, k1) in zip(pairs(call.query_offsets), pairs(call.key_offsets), strict=True):
                counts = torch.zeros(q1 - q0, n_rows, dtype=torch.int64)
                mask = visible(q1 - q0, k1 - k0, call.window).long()
                seen_by_query.append(counts.index_add(1, key_rows[at_key + k0 : at_key + k1], mask))
                asked.append(rows[at_query + q0 : at_query + q1])
            at_query, at_key = at_query + call.queries, at_key + call.keys
    seen = torch.cat([*seen_by_query, torch.zeros(0, n_rows, dtype=torch.int64)])
    answer_slot = every if plan.answer_slot is None else plan.answer_slot
    assert torch.equal(torch.cat([*asked, every[:0]])[answer_slot], every)
    return seen[answer_slot]


def both(build: Callable[[], Plan]) -> tuple[AttentionPlan, RaggedPlan]:
    """A dense plan and its ragged twin."""
    dense = build()
    with pytest.MonkeyPatch.context() as patch:
        go_ragged(patch)
        ragged = build()
    assert isinstance(dense, AttentionPlan)
    assert isinstance(ragged, RaggedPlan)
    return dense, ragged


def check_same_plan(build: Callable[[], Plan], n_rows: int) -> None:
    """The same rows are seen, and attention in float64 gives the same answers and gradients to 1e-10."""
    dense, ragged = both(build)
    assert torch.equal(ragged_sightings(ragged, n_rows), sightings(dense, n_rows))
    torch.manual_seed(0)
    qkv = [torch.randn(n_rows, 24, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    weight = torch.randn(n_rows, 24, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        go_ragged(patch)
        results = []
        for plan in (dense, ragged):
            out = attend(*qkv, plan, heads=2)
            results.append([out, *torch.autograd.grad((out * weight).sum(), qkv, allow_unused=not n_rows)])
    for found, wanted in zip(results[1], results[0], strict=True):
        if n_rows:
            torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@FEW
@given(records(), any_reach, st.booleans(), st.booleans())
def test_visits(subjects: Records, window: int, bidirectional: bool, queries: bool) -> None:
    if not queries:
        subjects = [replace(s, visits=tuple(v for v in s.visits if not v.is_query)) for s in subjects]
    batch = pack(subjects)
    check_same_plan(lambda: attention.visits_plan(batch, window=window, bidirectional=bidirectional), batch.n_visits)


@FEW
@given(st.lists(st.sampled_from([0, 1, 2, 3, 17, 40]), max_size=12))
def test_codes(sizes: list[int]) -> None:
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    check_same_plan(lambda: attention.codes_plan(offsets), sum(sizes))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_long_subjects(bidirectional: bool) -> None:
    subject = Subject(tuple(Visit(is_query=i % 50 == 7) for i in range(600)))
    batch = pack([subject, *sample_records(3, lengths=(40, 1, 23, 2, 0))])
    check_same_plan(lambda: attention.visits_plan(batch, window=300, bidirectional=bidirectional), batch.n_visits)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_more_spans_than_one_call_takes(most: int, monkeypatch: Patch) -> None:
    monkeypatch.setattr(attention_spans, "MOST_SPANS", most)
    batch = pack(SAMPLE)
    check_same_plan(lambda: attention.visits_plan(batch, window=3), batch.n_visits)
    check_same_plan(lambda: attention.codes_plan(batch.visit_offsets), batch.n_codes)
    _, ragged = both(lambda: attention.visits_plan(batch, window=3))
    assert max(len(call.query_offsets) - 1 for stream in ragged.streams for call in stream.calls) == most


def test_tokens_stay_dense(on_gpu: None) -> None:
    """Whole visits back, up to a number of tokens: no window of the kernel says that."""
    batch = pack(SAMPLE)
    offsets = torch.arange(batch.n_visits + 1)
    assert isinstance(behrt.tokens_plan(batch, offsets, max_tokens=9), AttentionPlan)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("kind", RAGGED_KINDS)
def test_ragged_equals_the_padded_reference(kind: str, attention: str, on_gpu: None) -> None:
    check_equals_reference(make_model(**MODELS[kind], attention=attention), SAMPLE)


def test_heads_that_are_too_wide_are_refused(on_gpu: None) -> None:
    batch = pack(SAMPLE)
    x = torch.zeros(batch.n_visits, 264)
    with pytest.raises(EhrseqError, match="wider than 256"):
        attend(x, x, x, attention.visits_plan(batch, window=9), heads=1)


@pytest.mark.parametrize(
    ("device", "autocast", "dtype", "capability", "ragged"),
    [
        ("cuda", True, torch.bfloat16, (9, 0), True),
        ("cuda", True, torch.float16, (8, 0), True),
        ("cuda", True, torch.bfloat16, (7, 5), False),
        ("cuda", False, torch.bfloat16, (9, 0), False),
        ("cuda", True, torch.float32, (9, 0), False),
        ("cpu", True, torch.bfloat16, (9, 0), False),
    ],
)
def test_which_devices_go_ragged(
    device: str, autocast: bool, dtype: torch.dtype, capability: tuple[int, int], ragged: bool, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: autocast)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: dtype)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert attention.is_ragged(torch.device(device)) == ragged


Change = Callable[[RaggedPlan], RaggedPlan]


def in_calls(change: Callable[[Spans], Spans], *, of_queries: bool) -> Change:
    """Change the calls of the queries' stream, or of the others."""

    def changed(stream: Stream) -> Stream:
        if (stream.key_rows is not None) != of_queries:
            return stream
        return replace(stream, calls=tuple(map(change, stream.calls)))

    return lambda plan: replace(plan, streams=tuple(map(changed, plan.streams)))


def widened(bound: int, by: int) -> Callable[[Spans], Spans]:
    def change(call: Spans) -> Spans:
        window = list(call.window)
        window[bound] += by
        return replace(call, window=(window[0], window[1]))

    return change


def merged(call: Spans) -> Spans:
    """All spans as one: subjects see one another."""
    ends = [0, -1]
    return replace(
        call,
        query_offsets=call.query_offsets[ends],
        key_offsets=call.key_offsets[ends],
        longest_query=call.queries,
        longest_key=call.keys,
    )


MUTANTS: dict[str, Change] = {
    "the window is one wider": in_calls(widened(0, 1), of_queries=False),
    "the next visit is seen": in_calls(widened(1, 1), of_queries=False),
    "subjects see one another": in_calls(merged, of_queries=False),
    "queries are windowed": in_calls(lambda call: replace(call, window=(0, 0)), of_queries=True),
    "offsets are int64": in_calls(lambda call: replace(call, key_offsets=call.key_offsets.long()), of_queries=False),
    "answers are put back one row off": lambda plan: replace(plan, answer_slot=plan.answer_slot.roll(1)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_plan_is_caught(name: str, monkeypatch: Patch) -> None:
    go_ragged(monkeypatch)
    build = attention.visits_plan
    monkeypatch.setattr(attention, "visits_plan", lambda *args, **kwargs: MUTANTS[name](build(*args, **kwargs)))
    with pytest.raises(AssertionError):
        check_equals_reference(make_model(max_visits=3), SAMPLE)


# ---- nobody waits ----------------------------------------------------------------------------------------------------


QUICK = [("query", "horizon", True), ("flat", "horizon", False), ("table", "horizon", False), ("query", "visit", False)]
EVERY = [(kind, "horizon", ragged) for kind in MODELS for ragged in (False, True)]


@pytest.mark.parametrize(
    ("kind", "head", "ragged"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in EVERY if case not in QUICK)],
)
def test_no_step_waits(kind: str, head: str, ragged: bool, monkeypatch: Patch) -> None:
    history = {"history_dropout": 0.1}
    model = make_model(**MODELS[kind], head=head, dropout=0.1, code_dropout=0.1, **history)
    check_no_wait(model, pack(SAMPLE, visit_labels=head == "visit", dtype=torch.float32), monkeypatch, ragged=ragged)


def waits_backward(x: Tensor) -> None:
    x.register_hook(lambda gradient: gradient + torch.ones(7).to("meta"))
    x.sum().backward()


WAITING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).any()),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked assignment": lambda x: x.index_put((x > 0,), x[:1]),
    "repeats": lambda x: x.repeat_interleave(x.long()),
    "a new tensor": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "a blocking copy": lambda x: torch.ones(3).to(x.device),
    "a blocking assignment": lambda x: x.copy_(torch.ones(7)),
    "in a backward": lambda x: waits_backward(x.clone().requires_grad_()),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_is_seen(name: str) -> None:
    x = torch.ones(7, device="meta")
    with pytest.raises((Waits, RuntimeError)), nobody_waits():  # RuntimeError: a meta tensor refuses by itself
        WAITING[name](x)


# ---- on a GPU --------------------------------------------------------------------------------------------------------

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and EHRSEQ_TEST_GPU=1")


@needs_gpu
@pytest.mark.parametrize("kind", ["query", "transformer", "table"])
def test_the_kernel_equals_its_twin(kind: str) -> None:
    model = make_model(**MODELS[kind], dim=32, max_visits=4).float()
    batch = pack(sample_records(lengths=(40, 0, 1, 90, 3)), dtype=torch.float32)
    with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", torch.bfloat16):
        go_ragged(patch)
        logits, gradients = outputs_and_gradients(model, batch)
    with torch.autocast("cuda", torch.bfloat16):
        found, found_gradients = outputs_and_gradients(model.cuda(), batch.to("cuda"))
    assert float(((found.cpu() - logits).norm() / logits.norm()).detach()) < 0.03
    largest = max(float(g.norm()) for g in gradients)
    for a, b in zip(gradients, found_gradients, strict=True):
        if float(a.norm()) > 1e-4 * largest:
            assert torch.nn.functional.cosine_similarity(a.flatten(), b.cpu().flatten(), dim=0) > 0.99


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["query", "flat", "table", "flat table"])
def test_no_step_waits_for_a_gpu(kind: str, precision: torch.dtype) -> None:
    model = make_model(**MODELS[kind], dim=32).float().cuda()
    host = pack(SAMPLE, dtype=torch.float32).pin_memory()
    with torch.autocast("cuda", precision, enabled=precision == torch.bfloat16):
        step(model, host.to("cuda", non_blocking=True))
        try:
            torch.cuda.set_sync_debug_mode("error")
            step(model, host.to("cuda", non_blocking=True))
        finally:
            torch.cuda.set_sync_debug_mode("default")
