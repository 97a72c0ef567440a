"""Checks that any model must pass."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import settings, strategies as st
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.models.base import SurvivalModel
from helpers.models import MODELS, code_table, code_table_name
from helpers.settings import examples
from helpers.strategies import NUMBERS, VOCAB, Padded, Records, Subject, Visit, pack, pad, sample_records
from reference.blocks import code_effects
from reference.flat import flat_logits
from reference.likelihood import reference_nll
from reference.padded import reference_logits


def expected_logits(model: SurvivalModel, x: Padded) -> Tensor:
    twin = flat_logits if model.config.architecture == "flat" else reference_logits
    parameters = dict(model.named_parameters())
    logits = twin(parameters, model.config, x)
    if model.config.code_effects and model.config.head == "horizon":
        logits = logits + code_effects(parameters, model.config, x)
    return logits


def check_equals_reference(
    model: SurvivalModel, subjects: Records, *, tolerance: float = 1e-10, junk_seed: int | None = 1
) -> None:
    """Logits, loss and gradients against the padded twin, whose pads hold NaN in random places."""
    visit_labels = model.config.head == "visit"
    batch = pack(subjects, visit_labels=visit_labels)
    padded = pad(subjects, seed=junk_seed, visit_labels=visit_labels)
    expected = expected_logits(model, padded)
    counted = ~batch.is_query if visit_labels else torch.ones_like(batch.is_query)
    logits = model(batch)
    torch.testing.assert_close(logits[counted], expected[padded.visit_mask][counted], rtol=tolerance, atol=tolerance)
    if visit_labels:
        assert logits[batch.is_query].isnan().all()
    if model.config.attention == "bidirectional":  # no likelihood: compare gradients of an arbitrary function
        ours, theirs = logits[counted].sin().sum(), expected[padded.visit_mask][counted].sin().sum()
    else:
        ours = model.nll(batch).sum()
        theirs = sum(reference_nll(model.config, expected, padded), start=expected.sum() * 0)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    names, tensors = zip(*model.named_parameters(), strict=True)
    mine, others = (torch.autograd.grad(f, tensors, allow_unused=True, materialize_grads=True) for f in (ours, theirs))
    scale = max(1.0, *(float(gradient.abs().max()) for gradient in others))  # some sum to 0 from terms of this size
    for name, gradient, other in zip(names, mine, others, strict=True):
        if name == code_table_name(model.config):
            other[0] = 0.0  # [PAD] is not learned
        error = float((gradient - other).abs().max())
        assert error <= tolerance * scale, f"{name}: {error} beside {scale}"


FEW = settings(max_examples=examples(60), deadline=None)
any_model = st.sampled_from(list(MODELS))
every_model = pytest.mark.parametrize("kind", MODELS)


def answers(model: SurvivalModel, subjects: Records) -> list[Tensor]:
    """Logits of each subject's rows."""
    batch = pack(subjects)
    return list(model(batch.__class__(**vars_of(batch, model))).split(batch.subject_offsets.diff().tolist()))


def vars_of(batch: VisitBatch, model: SurvivalModel) -> dict[str, Tensor]:
    """The batch's inputs (no labels), in the model's precision."""
    dtype = next(model.parameters()).dtype
    names = "codes visit_offsets subject_offsets age_years delta_days static_codes static_offsets values is_query"
    tensors = {name: getattr(batch, name) for name in (*names.split(), "code_types")}
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


def turned(subjects: Records) -> Records:
    """The same records with the codes of every visit in another order."""
    rng = random.Random(0)

    def shuffled(visit: Visit) -> Visit:
        pairs = list(zip(visit.codes, visit.numbers, strict=True))
        rng.shuffle(pairs)
        return replace(visit, codes=tuple(p[0] for p in pairs), numbers=tuple(p[1] for p in pairs))

    return [replace(s, visits=tuple(map(shuffled, s.visits)), static=s.static[::-1]) for s in subjects]


def check_code_order(model: SurvivalModel, subjects: Records) -> None:
    for mine, other in zip(answers(model, subjects), answers(model, turned(subjects)), strict=True):
        same(mine, other, 1e-11, "order of codes")


def check_code_order_counts(model: SurvivalModel) -> None:
    """Two different codes of one visit, swapped: every row from there on moves, no row before does."""
    pair = Visit((3, 5), (None, None), delta_days=2.0)
    before, rows = [noise(random.Random(8)), pair, pair], [pair, Visit((4,), (None,))]
    (straight,) = answers(model, [Subject((*before, *rows))])
    (swapped,) = answers(model, [Subject((*before, replace(pair, codes=(5, 3)), *rows[1:]))])
    moved = (straight - swapped).abs().flatten(1).amax(1) > 1e-9
    assert moved.tolist() == [False, False, False, True, True]


def check_composition(model: SurvivalModel, subjects: Records, *, tolerance: float = 1e-11) -> None:
    together = answers(model, subjects)
    order = random.Random(1).sample(range(len(subjects)), len(subjects))
    shuffled = answers(model, [subjects[i] for i in order])
    for place, i in enumerate(order):
        same(shuffled[place], together[i], tolerance, "shuffled subjects")
        same(answers(model, [subjects[i]])[0], together[i], tolerance, "a subject alone")


def plain(subjects: Records) -> Records:
    """What the padded contract can say: no queries, numbers or codes without a time."""
    return [
        Subject(tuple(replace(v, numbers=(None,) * len(v.codes)) for v in s.visits if not v.is_query)) for s in subjects
    ]


def outputs_and_gradients(model: SurvivalModel, batch: VisitBatch) -> tuple[Tensor, tuple[Tensor, ...]]:
    parameters = tuple(model.parameters())
    gradients = torch.autograd.grad(model.loss(batch), parameters, allow_unused=True, materialize_grads=True)
    return model(batch), gradients


def check_causality(model: SurvivalModel, subjects: Records, *, tolerance: float = 1e-12) -> None:
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


def check_future_gradient(model: SurvivalModel) -> None:
    """Each row has its own code: the gradient of row v's logits is exactly 0 for later codes and not for its own."""
    queries = (False, False, True, False, True, True, False, False, True)
    rows = tuple(Visit((i + 1,), (None,), is_query=q, delta_days=1.0) for i, q in enumerate(queries))
    weight = code_table(model)
    (logits,) = answers(model, [Subject(rows)])
    for v in range(len(rows)):
        (gradient,) = torch.autograd.grad(logits[v].sum(), weight, retain_graph=True)
        seen = gradient.abs().amax(1)[1 : len(rows) + 1] != 0
        expected = [i == v or (i < v and not queries[i]) for i in range(len(rows))]
        assert seen.tolist() == expected, f"row {v}"


def check_queries(model: SurvivalModel, subjects: Records) -> None:
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


def check_rows(model: SurvivalModel, subjects: Records) -> None:
    """Logits of some rows, in any order, are those of the whole batch, whichever others are asked."""
    packed = pack(subjects)
    batch = VisitBatch(**vars_of(packed, model))
    whole, generator = model(batch), torch.Generator().manual_seed(5)
    for count in {0, 1, batch.n_visits // 2, batch.n_visits}:
        rows = torch.randperm(batch.n_visits, generator=generator)[:count]
        found = model.logits_at(batch, rows)
        torch.testing.assert_close(found, whole[rows], rtol=1e-11, atol=1e-11, equal_nan=True)


def check_query_sees_the_past(model: SurvivalModel) -> None:
    """A query depends on what every visit before it in the window holds, and on itself.

    Gaps stay: rotary places would betray a changed one even of a visit that the query does not see.
    """
    rng = random.Random(4)
    rows = [noise(rng) for _ in range(4)] + [noise(rng, is_query=True), noise(rng)]
    (expected,) = answers(model, [Subject(tuple(rows))])
    for i in range(5):
        other = replace(noise(rng, is_query=rows[i].is_query), delta_days=rows[i].delta_days)
        (found,) = answers(model, [Subject((*rows[:i], other, *rows[i + 1 :]))])
        assert not torch.allclose(found[4], expected[4], rtol=0, atol=1e-9), f"visit {i}"
    real = [*rows[:4], replace(rows[4], is_query=False), rows[5]]
    (as_visit,) = answers(model, [Subject(tuple(real))])
    assert not torch.allclose(as_visit[4], expected[4], rtol=0, atol=1e-9), "a query is told from a visit"


def check_changes_in_training_only(model: SurvivalModel) -> None:
    """Answers of a model that drops parts of the record at random are still in evaluation and move in training."""
    batch = pack(sample_records())
    still = model(batch)
    assert torch.equal(model(batch), still)
    model.train()
    assert not torch.equal(model(batch), still)
