"""What must not move the model's output, and what must. Each `check_*` is also run on broken models (the mutants)."""

import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ehrsequencing.batch import VisitBatch
from ehrsequencing.models.attention import build_plan
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival as Model
from ehrsequencing.models.segments import dropout
from strategies import NAN, NUMBERS, VOCAB, Records, Subject, Visit, pack, pad, records, sample_records
from test_models_reference import make_model

FEW = settings(max_examples=15, deadline=None)


def answers(model: Model, subjects: Records) -> list[Tensor]:
    """Logits of each subject's rows."""
    batch = pack(subjects)
    return list(model(batch.__class__(**vars_of(batch, model))).split(batch.visits_per_subject.tolist()))


def vars_of(batch: VisitBatch, model: Model) -> dict[str, Tensor]:
    """The batch's inputs (no labels), in the model's precision."""
    dtype = model.code_embedding.table.weight.dtype
    names = "codes visit_offsets subject_offsets age_years delta_days static_codes static_offsets values is_query"
    tensors = {name: getattr(batch, name) for name in names.split()}
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}


def same(ours: Tensor, theirs: Tensor, tolerance: float, what: str) -> None:
    assert ours.shape == theirs.shape, what
    error = float((ours - theirs).detach().abs().max()) if ours.numel() else 0.0
    assert error <= tolerance * max(1.0, float(theirs.detach().abs().max()) if theirs.numel() else 1.0), (what, error)


def noise(rng: random.Random, *, is_query: bool = False) -> Visit:
    """A visit of random everything: a constant shift would be cancelled by LayerNorm and pass vacuously."""
    codes = tuple(rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 6)))
    return Visit(
        codes=codes,
        numbers=tuple(rng.choice(NUMBERS) for _ in codes),
        age_years=rng.uniform(0, 120),
        delta_days=rng.uniform(0, 5000),
        is_query=is_query,
    )


# ---- codes of a visit are a set --------------------------------------------------------------------------------------


def check_code_order(model: Model, subjects: Records) -> None:
    rng = random.Random(0)

    def shuffled(visit: Visit) -> Visit:
        pairs = list(zip(visit.codes, visit.numbers, strict=True))
        rng.shuffle(pairs)
        return replace(visit, codes=tuple(p[0] for p in pairs), numbers=tuple(p[1] for p in pairs))

    turned = [replace(s, visits=tuple(map(shuffled, s.visits)), static=s.static[::-1]) for s in subjects]
    for mine, other in zip(answers(model, subjects), answers(model, turned), strict=True):
        same(mine, other, 1e-11, "order of codes")


@FEW
@given(records())
def test_order_of_codes(subjects: Records) -> None:
    check_code_order(make_model(), subjects)


# ---- what shares the batch -------------------------------------------------------------------------------------------


def check_composition(model: Model, subjects: Records, *, tolerance: float = 1e-11) -> None:
    together = answers(model, subjects)
    order = random.Random(1).sample(range(len(subjects)), len(subjects))
    shuffled = answers(model, [subjects[i] for i in order])
    for place, i in enumerate(order):
        same(shuffled[place], together[i], tolerance, "shuffled subjects")
        same(answers(model, [subjects[i]])[0], together[i], tolerance, "a subject alone")


@FEW
@given(records())
def test_batch_composition(subjects: Records) -> None:
    check_composition(make_model(max_visits=3), subjects)


@pytest.mark.parametrize("max_visits", [512, 37])
def test_beside_a_very_long_subject(max_visits: int) -> None:
    model = make_model(max_visits=max_visits).float()
    check_composition(model, sample_records(lengths=(4, 2100, 1, 9)), tolerance=1e-5)


@pytest.mark.slow
def test_beside_a_subject_of_ten_thousand_visits() -> None:
    check_composition(make_model().float(), sample_records(lengths=(4, 10_000, 1, 9)), tolerance=1e-5)


# ---- pads ------------------------------------------------------------------------------------------------------------


def check_pads(model: Model, subjects: Records) -> None:
    """The seeds' padded contract: pads left, right and between, full of junk, change nothing."""
    bare = [
        Subject(tuple(replace(v, numbers=(None,) * len(v.codes)) for v in s.visits if not v.is_query)) for s in subjects
    ]
    packed = pack(bare)
    expected, gradients = outputs_and_gradients(model, packed)
    for seed, junk in enumerate((0.0, NAN, 1e30, -1e30)):
        x = pad(bare, junk=junk, seed=seed)
        batch = VisitBatch.from_padded(
            x.codes, x.code_mask, x.ages, x.deltas, x.visit_mask,
            at_risk=x.at_risk, duration_days=x.duration_days, cause=x.cause,
        )  # fmt: skip
        logits, found = outputs_and_gradients(model, replace(batch, entry_days=packed.entry_days))
        same(logits, expected, 1e-12, f"logits beside {junk}")
        for mine, other in zip(found, gradients, strict=True):
            same(mine, other, 1e-12, f"gradients beside {junk}")
        padded = batch.to_padded(logits)
        assert padded.shape[:2] == x.visit_mask.shape
        same(padded[x.visit_mask], expected, 1e-12, "to_padded")
        assert (padded[~x.visit_mask] == 0).all()


def outputs_and_gradients(model: Model, batch: VisitBatch) -> tuple[Tensor, tuple[Tensor, ...]]:
    parameters = tuple(model.parameters())
    gradients = torch.autograd.grad(model.loss(batch), parameters, allow_unused=True, materialize_grads=True)
    return model(batch), gradients


@FEW
@given(records())
def test_pads(subjects: Records) -> None:
    check_pads(make_model(), subjects)


# ---- the future ------------------------------------------------------------------------------------------------------


def check_causality(model: Model, subjects: Records, *, tolerance: float = 1e-12) -> None:
    """Alter, drop or append rows after row v, for every v: rows up to v stay."""
    rng = random.Random(2)
    for subject, expected in zip(subjects, answers(model, subjects), strict=True):
        n = len(subject.visits)
        variants, kept = [], []
        for v in range(n):
            past = subject.visits[: v + 1]
            future = subject.visits[v + 1 :]
            altered = tuple(noise(rng, is_query=visit.is_query) for visit in future)
            extra = tuple(noise(rng, is_query=rng.random() < 0.3) for _ in range(3))
            variants += [replace(subject, visits=past + rest) for rest in (altered, (), future + extra, extra)]
            kept += [v + 1] * 4
        if variants:
            for found, rows in zip(answers(model, variants), kept, strict=True):
                same(found[:rows], expected[:rows], tolerance, f"future of row {rows - 1}")


def check_future_gradient(model: Model) -> None:
    """Each row has its own code: the gradient of row v's logits is exactly 0 for later codes and not for its own."""
    queries = (False, False, True, False, True, True, False, False, True)
    rows = tuple(Visit((i + 1,), (None,), is_query=q, delta_days=1.0) for i, q in enumerate(queries))
    weight = model.code_embedding.table.weight
    (logits,) = answers(model, [Subject(rows)])
    for v in range(len(rows)):
        (gradient,) = torch.autograd.grad(logits[v].sum(), weight, retain_graph=True)
        seen = gradient.abs().amax(1)[1 : len(rows) + 1] != 0
        expected = [i == v or (i < v and not queries[i]) for i in range(len(rows))]
        assert seen.tolist() == expected, f"row {v}"


@FEW
@given(records(max_subjects=2))
def test_causality(subjects: Records) -> None:
    check_causality(make_model(), subjects)


@pytest.mark.parametrize("max_visits", [1, 2, 4, 512])
@pytest.mark.parametrize("encoder", ["mean", "attention"])
def test_causality_on_the_sample(max_visits: int, encoder: str) -> None:
    model = make_model(max_visits=max_visits, visit_encoder=encoder)
    check_causality(model, sample_records(lengths=(9, 1, 6)))
    check_causality(model.float(), sample_records(lengths=(9, 1, 6)), tolerance=1e-5)


def test_gradient_to_the_future_is_exactly_zero() -> None:
    check_future_gradient(make_model())
    check_future_gradient(make_model(visit_encoder="mean", values="none").float())


def check_prefix(model: Model, subjects: Records, *, tolerance: float = 1e-11) -> None:
    """A truncated record answers as the prefix of the whole."""
    for subject, whole in zip(subjects, answers(model, subjects), strict=True):
        for n in range(len(subject.visits)):
            part = replace(subject, visits=subject.visits[:n])
            same(answers(model, [part])[0], whole[:n], tolerance, f"prefix of {n}")


@FEW
@given(records(max_subjects=2))
def test_prefix(subjects: Records) -> None:
    check_prefix(make_model(max_visits=3), subjects)


# ---- queries ---------------------------------------------------------------------------------------------------------


def check_queries(model: Model, subjects: Records) -> None:
    """Adding, moving and dropping queries changes no other row, visits and other queries alike."""
    rng = random.Random(3)
    for subject in subjects:
        visits = [v for v in subject.visits if not v.is_query]
        (bare,) = answers(model, [replace(subject, visits=tuple(visits))])
        for place in range(len(visits) + 1):
            first, second = noise(rng, is_query=True), noise(rng, is_query=True)
            rows = (*visits[:place], first, *visits[place:])
            (asked,) = answers(model, [replace(subject, visits=rows)])
            same(torch.cat([asked[:place], asked[place + 1 :]]), bare, 1e-11, f"a query at {place}")
            (twice,) = answers(model, [replace(subject, visits=(*visits[:place], second, first, *visits[place:]))])
            same(twice[place + 1], asked[place], 1e-11, "a query before a query")
            (later,) = answers(model, [replace(subject, visits=(*visits[:place], first, second, *visits[place:]))])
            same(later[place], asked[place], 1e-11, "a query after a query")


def check_query_sees_the_past(model: Model) -> None:
    """A query depends on every visit before it in the window, and on itself."""
    rng = random.Random(4)
    rows = [noise(rng) for _ in range(4)] + [noise(rng, is_query=True), noise(rng)]
    (expected,) = answers(model, [Subject(tuple(rows))])
    for i in range(5):
        altered = [noise(rng, is_query=r.is_query) if i == j else r for j, r in enumerate(rows)]
        (found,) = answers(model, [Subject(tuple(altered))])
        assert not torch.allclose(found[4], expected[4], rtol=0, atol=1e-9), f"visit {i}"
    real = [*rows[:4], replace(rows[4], is_query=False), rows[5]]
    (as_visit,) = answers(model, [Subject(tuple(real))])
    assert not torch.allclose(as_visit[4], expected[4], rtol=0, atol=1e-9), "a query is told from a visit"


@FEW
@given(records(max_subjects=2))
def test_queries(subjects: Records) -> None:
    check_queries(make_model(), subjects)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_queries_on_the_sample(attention: str) -> None:
    model = make_model(max_visits=3, attention=attention)
    check_queries(model, sample_records(lengths=(6, 0, 1)))
    check_query_sees_the_past(make_model(attention=attention))


# ---- the window ------------------------------------------------------------------------------------------------------


def check_window(*, window: int = 3, visits: int = 12) -> None:
    """In one layer, row v sees itself and the `window - 1` real visits before it: no more and no fewer."""
    rng = random.Random(5)
    model = make_model(max_visits=window, layers=1, position="none")
    rows: list[Visit] = []
    for i in range(visits):
        rows += [noise(rng), noise(rng, is_query=True)] if i % 3 == 1 else [noise(rng)]
    (expected,) = answers(model, [Subject(tuple(rows))])
    for i, row in enumerate(rows):
        if row.is_query:
            continue
        altered = noise(rng)
        (found,) = answers(model, [Subject((*rows[:i], altered, *rows[i + 1 :]))])
        moved = (found - expected).abs().flatten(1).amax(1) > 1e-9
        for v, other in enumerate(rows):
            between = sum(not r.is_query for r in rows[i + 1 : v]) + (not other.is_query)
            seen = v == i or (v > i and (between if not other.is_query else between + 1) <= window - 1)
            assert bool(moved[v]) == seen, f"row {v} and visit {i}"


@pytest.mark.parametrize("window", [1, 2, 3, 5, 100])
def test_window(window: int) -> None:
    check_window(window=window)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_cost_is_linear_in_the_length_of_a_subject(bidirectional: bool) -> None:
    scores = []
    for visits in (10_000, 20_000):
        batch = pack([Subject((Visit(),) * visits)])
        plan = build_plan(batch, window=512, bidirectional=bidirectional)
        scores.append(sum(b.groups * b.query_length * b.key_length for b in plan.blocks))
        assert scores[-1] < visits * 512 * 3
        assert all(b.mask is None or b.mask.numel() < visits * 512 * 3 for b in plan.blocks)
    assert scores[1] < 2.2 * scores[0]


def test_plan_has_few_blocks_and_little_padding() -> None:
    rng = random.Random(6)
    lengths = [max(1, min(400, round(rng.lognormvariate(2.5, 1.1)))) for _ in range(128)]
    batch = pack([Subject((Visit(),) * n) for n in lengths])
    plan = build_plan(batch, window=512)
    assert len(plan.blocks) <= 12
    assert len(plan.query_rows) <= 1.5 * batch.n_visits
    assert sorted(plan.query_rows[plan.answer_slot].tolist()) == list(range(batch.n_visits))


# ---- empty things ----------------------------------------------------------------------------------------------------


def check_empty(model: Model, subjects: Records) -> None:
    """An empty visit is the zero vector without a gradient; nothing is NaN; empty subjects change nothing."""
    batch = pack(subjects)
    u = model.visit_encoder(model.code_embedding(batch), batch)
    empty = batch.codes_per_visit == 0
    assert (u[empty] == 0).all()
    gradients = torch.autograd.grad(
        u[empty].sum(), tuple(model.parameters()), allow_unused=True, materialize_grads=True
    )
    assert all((g == 0).all() for g in gradients)
    _, gradients = outputs_and_gradients(model, batch)
    assert all(g.isfinite().all() for g in gradients)
    with_empty = [s for subject in subjects for s in (Subject((), subject.static), subject, Subject())]
    for mine, other in zip(answers(model, with_empty)[1::3], answers(model, subjects), strict=True):
        same(mine, other, 1e-11, "empty subjects")


@FEW
@given(records(), st.sampled_from(["mean", "attention"]))
def test_empty(subjects: Records, encoder: str) -> None:
    check_empty(make_model(visit_encoder=encoder), subjects)


@pytest.mark.parametrize("subjects", [[], [Subject()], [Subject((Visit(),))], [Subject((Visit(is_query=True),))]])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_next_to_nothing(subjects: Records, attention: str) -> None:
    model = make_model(attention=attention)
    logits = model(pack(subjects))
    assert len(logits) == sum(len(s.visits) for s in subjects)
    assert logits.isfinite().all()
    logits.sum().backward()
    if attention == "causal":
        assert model.loss(pack(subjects)).isfinite()


# ---- importance weights ----------------------------------------------------------------------------------------------


def check_weights(model: Model, subjects: Records) -> None:
    """α is positive, sums to 1 over every visit with codes, and depends on the code alone up to that sum."""
    batch = pack(subjects)
    e = model.code_embedding(batch)
    u, alpha = model.visit_encoder.pooling(e, batch, return_weights=True)
    assert alpha.shape == (batch.n_codes,)
    assert (alpha > 0).all()
    sums = torch.zeros(batch.n_visits, dtype=alpha.dtype).index_add(0, batch.visit_of_code, alpha)
    torch.testing.assert_close(sums, (batch.codes_per_visit > 0).to(alpha.dtype), rtol=1e-12, atol=1e-12)
    weighted = torch.zeros_like(u).index_add(0, batch.visit_of_code, alpha.unsqueeze(1) * e.expand())
    torch.testing.assert_close(u, weighted, rtol=1e-12, atol=1e-12)
    pooling = model.visit_encoder.pooling
    logits = pooling.q @ torch.tanh(pooling.W(e.expand())).T
    for n in range(batch.n_visits):
        own = slice(int(batch.visit_offsets[n]), int(batch.visit_offsets[n + 1]))
        torch.testing.assert_close(alpha[own], logits[own].softmax(0), rtol=1e-11, atol=1e-12)


@FEW
@given(records())
def test_weights(subjects: Records) -> None:
    check_weights(make_model(), subjects)


def test_scores_far_apart_stay_finite() -> None:
    model = make_model()
    with torch.no_grad():
        model.visit_encoder.pooling.q.mul_(1e5)
    batch = pack(sample_records())
    _, alpha = model.visit_encoder.pooling(model.code_embedding(batch), batch, return_weights=True)
    assert alpha.isfinite().all()
    assert alpha.max() == 1.0


# ---- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
def test_same_seed_same_bits(threads: int) -> None:
    subjects = sample_records(lengths=(40, 30, 3, 60, 25, 1, 1, 2))
    torch.set_num_threads(threads)
    try:
        runs = []
        for _ in range(2):
            torch.manual_seed(0)
            model = make_model(dim=32, dropout=0.2).float().train()
            runs.append(outputs_and_gradients(model, pack(subjects, dtype=torch.float32)))
    finally:
        torch.set_num_threads(1)
    assert torch.equal(runs[0][0], runs[1][0])
    assert all(torch.equal(a, b) for a, b in zip(runs[0][1], runs[1][1], strict=True))


def test_dropout_keeps_the_mean_and_drops_its_share() -> None:
    torch.manual_seed(0)
    ones = torch.ones(1001, 333, requires_grad=True)
    out = dropout(ones, 0.3, training=True)
    kept = out != 0
    assert abs(float(kept.double().mean()) - 0.7) < 0.005
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / 0.7), rtol=1e-4, atol=0)
    assert abs(float(kept.double().mean(0).std()) - (0.21 / 1001) ** 0.5) < 0.002  # no column is favoured
    (gradient,) = torch.autograd.grad(out.sum(), ones)
    assert torch.equal(gradient, out.detach())
    assert dropout(ones, 0.3, training=False) is ones


# ---- bfloat16 --------------------------------------------------------------------------------------------------------


def test_bf16_autocast_stays_near_float32() -> None:
    """Scores of the pooling and attention are kept in float32: their gradients keep their direction."""
    model = make_model(dim=32).float()
    batch = pack(sample_records(lengths=(9, 1, 14, 6)), dtype=torch.float32)
    logits, gradients = outputs_and_gradients(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        rough_logits, rough = outputs_and_gradients(model, batch)
    assert rough_logits.dtype == torch.bfloat16
    assert (rough_logits - logits).norm() < 0.05 * logits.norm()
    for (name, _), fine, coarse in zip(model.named_parameters(), gradients, rough, strict=True):
        if float(fine.norm()) > 1e-4 * max(float(g.norm()) for g in gradients):
            assert float(F.cosine_similarity(fine.flatten(), coarse.flatten(), dim=0)) > 0.97, name
