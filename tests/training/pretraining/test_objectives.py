"""The objectives: what a masked visit still shows, their losses beside the formulas, and that no target is seen."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from ehrsequencing.batches.loader import Step, SubjectLoader
from ehrsequencing.config import ModelConfig
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import build_model
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.timelines import TaskRecords, Timelines
from ehrsequencing.training.objectives import Masked, mask_codes
from ehrsequencing.training.pretraining import objectives
from ehrsequencing.training.pretraining.objectives import CodeObjective, Guesses, ObjectiveInputs, measured
from ehrsequencing.training.pretraining.targets import TargetCodes, times_to_codes, visit_rows
from helpers.strategies import VOCAB, Records, pack, records
from helpers.visits import Record, timelines_of

NUMBER = np.array([-1, -1, 0, 1, 2, 3, -1, -1, 4, 5, 2, 3])  # tokens 10 and 11 are joint tokens of 4's and 5's codes
CODES = TargetCodes(np.array([2, 3, 4, 5, 8, 9]), NUMBER)


def inputs(**chosen: Any) -> ObjectiveInputs:
    rates = np.random.default_rng(0).dirichlet(np.ones(len(CODES)))
    sizes = {"vocab_size": VOCAB, "dim": 8, "heads": 2, "layers": 1, "dropout": 0.0, "history_dropout": 0.0}
    config = ModelConfig.model_validate({**sizes, **chosen})
    waits = times_to_codes(found := timelines(9), np.arange(len(found.end_us)), CODES)
    return ObjectiveInputs(config, CODES, rates, waits)


def timelines(seed: int = 0) -> Timelines:
    rng = np.random.default_rng(seed)
    found: list[Record] = []
    for _ in range(4):
        days = np.cumsum(rng.integers(1, 300, rng.integers(1, 6)))
        codes = [
            tuple((int(t), float(rng.choice([math.nan, rng.normal()]))) for t in rng.integers(1, VOCAB, 3))
            for _ in days
        ]
        found.append(tuple(zip(days.astype(float).tolist(), codes, strict=True)))
    return timelines_of(found)


class Whole(NamedTuple):
    """What an objective is asked about."""

    model: SurvivalModel
    step: Step
    timelines: Timelines
    states: Tensor


def batch_of(found: Timelines, config: ModelConfig, model: SurvivalModel) -> Whole:
    loader = SubjectLoader.of_model(config, TaskRecords(found, visit_rows(found)))
    (step,) = loader.in_order(visit_budget=1000)
    return Whole(model, step, found, model.states(step.batch)[1])


def made(name: str, *, seed: int = 0, **chosen: Any) -> tuple[CodeObjective, Whole]:
    torch.manual_seed(3)
    own = inputs(**chosen)
    model = build_model(own.config)
    one: CodeObjective = objectives.OBJECTIVES[name](own)
    for parameter in one.parameters():  # away from the start, where scores do not depend on states
        torch.nn.init.normal_(parameter, std=0.3)
    return one, batch_of(timelines(seed), own.config, model)


@settings(max_examples=25)
@given(records(), st.integers(0, 10**6))
def test_a_masked_visit_holds_no_copy_of_its_target(subjects: Records, seed: int) -> None:
    batch = pack(subjects)
    torch.manual_seed(seed)
    among = (torch.arange(batch.n_visits) % 2 == 0) & ~batch.is_query
    found = mask_codes(batch, torch.from_numpy(NUMBER)[batch.codes], among, most=3)
    if found is None:
        return
    taken = dict(zip(found.row.tolist(), found.code.tolist(), strict=True))
    assert 0 < len(taken) <= 3
    assert set(taken) <= set(among.nonzero().squeeze(1).tolist())
    for row in range(batch.n_visits):
        before = batch.codes[batch.visit_offsets[row] : batch.visit_offsets[row + 1]].tolist()
        after = found.batch.codes[found.batch.visit_offsets[row] : found.batch.visit_offsets[row + 1]].tolist()
        assert after == [code for code in before if NUMBER[code] != taken.get(row, -2)]
        assert (len(after) < len(before)) == (row in taken)


def loss_with_another_target(architecture: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """States of visits that lost code 0, and of the same visits where the lost code was 1 from the beginning."""
    torch.manual_seed(0)
    own = inputs(architecture=architecture)
    model = build_model(own.config).eval()
    states: list[Tensor] = []
    for token in (2, 3):
        found = timelines_of([((0.0, ((8, math.nan), (token, math.nan))), (9.0, ((9, math.nan), (token, math.nan))))])
        whole = batch_of(found, own.config, model)
        monkeypatch.setattr(
            torch, "rand", lambda *shape: torch.arange(float(np.prod(shape))) / 100 % 0.9
        )  # takes the last
        number = torch.from_numpy(NUMBER)[whole.step.batch.codes]
        held = objectives.mask_codes(whole.step.batch, number, torch.ones(2, dtype=torch.bool), most=9)
        assert held is not None
        assert held.code.tolist() == [token - 2] * 2
        states.append(model.states(held.batch)[1].detach())
    return states[0], states[1]


@pytest.mark.parametrize("architecture", ["hierarchical", "flat"])
def test_no_state_knows_what_was_taken(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = loss_with_another_target(architecture, monkeypatch)
    assert torch.equal(ours, other)


def test_a_mask_that_leaves_the_code_in_the_visit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: the codes are chosen, but the batch keeps them."""

    def leaky(batch: Any, *given: Any, **named: Any) -> Any:
        found = mask_codes(batch, *given, **named)
        return None if found is None else Masked(batch, found.row, found.code)

    monkeypatch.setattr(objectives, "mask_codes", leaky)
    ours, other = loss_with_another_target("hierarchical", monkeypatch)
    assert not torch.equal(ours, other)


@pytest.mark.parametrize("architecture", ["hierarchical", "flat"])
def test_the_future_is_no_input(architecture: str) -> None:
    """Other codes in the last visits change targets, and no state that predicts them."""
    one, whole = made("time_to_code", architecture=architecture)
    batch, last = whole.step.batch, (whole.step.batch.subject_offsets[1:] - 1).tolist()
    codes = batch.codes.clone()
    for row in last:
        codes[batch.visit_offsets[row] : batch.visit_offsets[row + 1]] = 9
    states = whole.model.states(replace(batch, codes=codes))[1]
    asks = [row for row in range(batch.n_visits) if row not in last]
    torch.testing.assert_close(states[asks], whole.states[asks])
    loss = one(*whole).loss.mean()
    assert loss.requires_grad
    assert math.isfinite(float(loss.detach()))


def codes_of(found: Timelines, visit: int) -> dict[int, float]:
    out: dict[int, float] = {}
    for at in range(int(found.visit_offsets[visit]), int(found.visit_offsets[visit + 1])):
        code, rank = int(NUMBER[found.codes[at]]), float(found.values[at, 0])
        if code >= 0 and (not math.isnan(rank) or code not in out):
            out[code] = rank
    return out


def test_the_loss_of_the_time_to_every_code_is_its_formula() -> None:
    """Visit by visit, code by code, bin by bin; a record's last visit has no exposure."""
    one, whole = made("time_to_code")
    found, head = whole.timelines, one.get_submodule("head")
    log_hazards, edges = head.log_hazards(whole.states).double(), (0.0, *head.edges_days, math.inf)  # type: ignore[operator, misc]
    total, count = torch.zeros((), dtype=torch.float64), 0
    for subject in range(len(found)):
        first, end = found.subject_offsets[subject : subject + 2].tolist()
        for visit in range(first, end - 1):
            count += 1
            after = (found.start_us[visit + 1 : end] - found.end_us[visit]) / DAY_US
            for code in range(len(CODES)):
                waits = [
                    day for day, at in zip(after, range(visit + 1, end), strict=True) if code in codes_of(found, at)
                ]
                stop = waits[0] if waits else float(found.end_us[end - 1] - found.end_us[visit]) / DAY_US
                for k in range(len(edges) - 1):
                    at_risk = min(max(stop, edges[k]), edges[k + 1]) - edges[k]
                    total = total + log_hazards[visit, code, k].exp() * at_risk
                    if waits and edges[k] < stop <= edges[k + 1]:
                        total = total - log_hazards[visit, code, k]
    torch.testing.assert_close(one(*whole).loss.double().mean(), total / count, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", sorted(objectives.OBJECTIVES))
def test_frequencies_lose_what_the_untrained_objective_does(name: str) -> None:
    """Scores that are the starting ones alone: the model and the codes' frequencies then say the same."""
    one, whole = made(name, seed=2)
    fresh: CodeObjective = objectives.OBJECTIVES[name](one.inputs)
    with torch.no_grad():
        for part, parameter in fresh.named_parameters():
            if part in ("scores.W_q.weight", "scores.W_q.bias", "head.vectors.weight"):
                parameter.zero_()
    torch.manual_seed(5)
    guesses = fresh(*whole, measure=True)
    assert guesses is not None
    assert len(guesses.loss) == len(guesses.visit) > 1
    torch.testing.assert_close(guesses.loss, guesses.by_frequency)
    torch.manual_seed(5)
    away: Guesses = one(*whole, measure=True)
    torch.testing.assert_close(away.by_frequency, guesses.by_frequency)
    assert not torch.allclose(away.loss, guesses.loss)


def test_the_gains_interval_is_that_of_a_mean_over_clusters() -> None:
    """One target a subject: the standard error of a mean; every target twice: the same interval."""
    gains = np.random.default_rng(0).normal(size=50)
    owner, nothing = np.arange(50), np.zeros(50)
    found = measured(owner, nothing, gains)["gain"]
    half = 1.96 * gains.std(ddof=1) / math.sqrt(50)
    assert [found[end] for end in ("low", "high")] == pytest.approx([gains.mean() - half, gains.mean() + half])
    twice = measured(*(np.repeat(x, 2) for x in (owner, nothing, gains)))
    assert twice["targets"] == 100
    assert twice["gain"] == pytest.approx(found)
    assert measured(owner[:1], nothing[:1], gains[:1])["gain"] == {"value": gains[0], "low": None, "high": None}
    assert measured(owner[:0], nothing[:0], gains[:0])["loss"] is None


def test_without_a_target_there_is_no_guess() -> None:
    own = inputs()
    model = build_model(own.config)
    found = timelines_of([((0.0, ((6, math.nan),)),)])  # one visit, whose code is no target
    for name in objectives.OBJECTIVES:
        one: CodeObjective = objectives.OBJECTIVES[name](own)
        assert one(*batch_of(found, own.config, model)) is None
