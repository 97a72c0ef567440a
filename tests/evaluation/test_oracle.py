"""A model that beats the truth is leaking: said loudly where it is so, and not where the truth itself is rough."""

import shutil
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.config import StudyConfig, TaskConfig, load_task
from ehrsequencing.evaluation.oracle import (
    LEAK_Z,
    Truth,
    beside_the_truth,
    excess,
    excess_rows,
    foresight,
    oracle_warnings,
    truth_of,
)
from ehrsequencing.evaluation.population import Population
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.reporting.terminal import _oracle_lines
from ehrsequencing.simulate import SimulationConfig, simulate
from helpers.visits import one_row_each

FUTURES, EXACT = (4, 16), 192


# ---- a rough truth ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Worlds:
    """One world, its held-out prediction times, and its truth from so many futures."""

    folder: Path
    records: TaskRecords

    @cache  # noqa: B019
    def truth(self, futures: int) -> Truth:
        """The truth from so many simulated futures."""
        out = self.folder / str(futures)
        if not out.exists():
            simulate(out, subjects=600, seed=1, config=SimulationConfig(truth_futures=futures))
        found = Truth.read(out, self.records, causes=load_task(out / "task.yaml").causes)
        assert found is not None
        return found

    def judged(self, hazards: np.ndarray, futures: int) -> dict[str, Any]:
        """A model with these hazards beside the truth of so many futures."""
        truth, rows = self.truth(futures), self.records.rows
        sees = foresight(hazards, truth, rows)
        nll = Truth(truth.edges_days, hazards, {}).nll(rows)
        return beside_the_truth(nll, truth.nll(rows), foresight=sees, subject=rows.subject)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory, tiny_study: StudyConfig) -> Worlds:
    out = tmp_path_factory.mktemp("futures")
    simulate(out / "4", subjects=600, seed=1, config=SimulationConfig(truth_futures=4))
    prepare(out / "4", out / "set", study=tiny_study, tasks=[load_task(out / "4" / "task.yaml")])
    return Worlds(out, Prepared(out / "set").records("simulated", "held_out"))


@pytest.mark.slow
@pytest.mark.parametrize("futures", FUTURES)
def test_a_rough_truth_is_beaten_without_a_leak(worlds: Worlds, futures: int) -> None:
    """The truth of many futures as a model: few futures are a worse oracle than it, but it foresees nothing."""
    found = worlds.judged(worlds.truth(EXACT).hazards, futures)
    assert abs(found["foresight_z"]) < 2.5
    assert found["beats_oracle_z"] < LEAK_Z
    told = " ".join([*_oracle_lines(found), *oracle_warnings(found)])
    assert "leaking" not in told
    assert "LEAK" not in told
    assert (found["nll_z"] > LEAK_Z) == ("truth_futures" in told)
    if futures == 4:
        assert found["nll_z"] > LEAK_Z  # the false alarm that this is about


@pytest.mark.parametrize("futures", [4, *(pytest.param(m, marks=pytest.mark.slow) for m in FUTURES[1:])])
@pytest.mark.parametrize("spread", [0.0, 0.4])
def test_a_look_ahead_is_a_leak_beside_a_rough_truth_too(worlds: Worlds, futures: int, spread: float) -> None:
    """The exact model, or one with errors of its own, that has seen who will have the outcome."""
    noise = np.exp(np.random.default_rng(0).normal(0, spread, len(worlds.records.rows)))
    seen = np.where(np.asarray(worlds.records.rows.cause) == 1, 0.35, -0.35)
    found = worlds.judged(worlds.truth(EXACT).hazards * (noise * np.exp(seen))[:, None, None], futures)
    assert found["beats_oracle_z"] > LEAK_Z
    assert oracle_warnings(found) == [
        "The model beats the true hazards by more than three standard errors: it is leaking."
    ]
    assert any(line.startswith("LEAK: ") for line in _oracle_lines(found))


def test_excess_is_what_a_wrong_hazard_costs_on_average() -> None:
    """One cause and two bins by hand: the mean NLL of the model less that of the truth."""
    edges, true, model = np.array([0.0, 1.0, 2.0]), np.array([[[0.5, 2.0]]]), np.array([[[1.0, 1.5]]])
    truth = Truth(edges, true, {})

    def rows(duration: np.ndarray, cause: int) -> TaskRows:
        n = len(duration)
        told = {"cause": np.full(n, cause), "is_query": np.ones(n, dtype=bool)}
        return one_row_each(n, duration_days=duration, **told)

    def nll(hazards: np.ndarray, of: TaskRows) -> np.ndarray:
        return Truth(edges, np.repeat(hazards, len(of), 0), {}).nll(of)

    # by quadrature over when the event comes, if nobody leaves: Σ density · (NLL of the model − NLL of the truth)
    at = (np.arange(20_000) + 0.5) / 1000  # days, up to 20
    hazard = np.where(at <= 1, 0.5, 2.0)
    density = hazard * np.exp(-np.cumsum(hazard) / 1000) / 1000
    many = rows(at, 1)
    costs = excess(np.repeat(model, len(at), 0), Truth(edges, np.repeat(true, len(at), 0), {}), many).sum(axis=1)
    assert float(density @ costs) == pytest.approx(float(density @ (nll(model, many) - nll(true, many))), rel=2e-3)
    assert not excess(true, truth, rows(np.array([1.5]), 1)).any()
    first = 1.0 * (1.0 - 0.5 - 0.5 * np.log(2.0))
    second = 0.5 * (1.5 - 2.0 - 2.0 * np.log(0.75))  # half of the second bin was lived
    one = rows(np.array([1.5]), 0)
    np.testing.assert_allclose(excess(model, truth, one), [[first, second]])
    table = excess_rows(excess(model, truth, one), truth, one)
    assert [row["kind"] for row in table] == ["query"] * 3  # in whole, and bin by bin
    assert table[0]["value"] == pytest.approx(first + second)
    assert sum(row["value"] for row in table[1:]) == pytest.approx(first + second)


def test_foresight_of_an_honest_model_is_nothing_on_average() -> None:
    """Events drawn from known hazards, judged beside a truth of 40 % noise, by honest models right and wrong."""
    z: dict[str, list[float]] = {"exact": [], "flat": [], "bold": [], "seeing": []}
    for seed in range(120):
        chance = np.random.default_rng(seed)
        pair = chance.normal(0, 0.7, 500)
        hazard = 0.002 * np.exp(pair)
        end = chance.uniform(100, 900, 500)
        event = chance.exponential(1 / hazard)
        rows = one_row_each(500, duration_days=np.minimum(event, end), cause=(event < end).astype(np.int8))
        noise = np.exp(chance.normal(-0.08, 0.4, (500, 1, 2)))  # of mean 1
        truth = Truth(np.array([0.0, 200.0, 1000.0]), hazard[:, None, None] * noise, {"pair": pair})
        models = {"exact": hazard, "flat": 0 * hazard + 0.002, "bold": 0.002 * np.exp(2 * pair)}
        models["seeing"] = hazard * np.exp(0.5 * (event < end))
        for name, model in models.items():
            sees = foresight(np.repeat(model[:, None, None], 2, axis=2), truth, rows)
            z[name].append(sees.mean() / (sees.std() / np.sqrt(500)))
    for name in ("exact", "flat", "bold"):
        assert abs(np.mean(z[name])) < 3 / np.sqrt(120), name
        assert np.std(z[name]) == pytest.approx(1, abs=0.25), name
    assert min(z["seeing"]) > LEAK_Z


# ---- the truth of another task ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("index", {"first_visit": True}),
        ("outcome", {"outcome": ["DX//FLARE"]}),
        ("competing", {"death": ["MEDS_DEATH", "END_OF_FOLLOWUP"]}),
        ("censoring", {"dataset_end": True}),
        ("recurrent", True),
    ],
)
def test_a_task_that_asks_something_else_differs(sim_data: Path, sim_prepared: Path, setting: str, value: Any) -> None:
    own = load_task(sim_data / "task.yaml")
    people = Population.of_split(Prepared(sim_prepared), own, "held_out")
    chosen = own.model_copy(
        update={"landmarks": (0.0, 90.0), "horizons": (30.0,), "main": None, "blanking": 7.0, "name": "other"}
    )
    for same in (own, chosen):
        assert truth_of(people, same)[1] == []
    _, notes = truth_of(people, own.model_validate({**own.model_dump(), setting: value}))
    assert [note.partition("has another ")[2] for note in notes] == [f"{setting}."]


def test_a_changed_truth_is_not_compared_with(sim_prepared: Path, sim_task: TaskConfig, tmp_path: Path) -> None:
    population = Population.of_split(Prepared(sim_prepared), sim_task, "held_out")
    assert population.source is not None
    copy = Path(shutil.copytree(population.source, tmp_path / "copy"))
    moved = replace(population, source=copy)
    assert truth_of(moved, sim_task)[0] is not None
    for spoil in (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"), Path.unlink):
        spoil(copy / "truth_hazards.parquet")
        truth, notes = truth_of(moved, sim_task)
        assert truth is None
        assert "truth_hazards.parquet is missing or has changed" in notes[0]
