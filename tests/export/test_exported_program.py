"""`ehrseq export`: the example in NumPy and torch alone reproduces the run, and what it could not is refused."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.export import example
from ehrsequencing.export.example import ExportedRun, cumulative_incidence, rank_among
from ehrsequencing.export.folder import _require_simple, export_run
from ehrsequencing.export.program import SubjectProgram, seen
from ehrsequencing.export.samples import sample_questions, worst_difference
from ehrsequencing.models.build import build_model
from ehrsequencing.prediction.run import Run
from ehrsequencing.core import hazards
from ehrsequencing.records.vocabulary import _Ranks
from helpers.command_line import ehrseq
from helpers.serve import subject_rows


@pytest.fixture(scope="module")
def exported(sim_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exports") / "exported"
    done = ehrseq("export", str(sim_run), "--out", str(out), "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)["result"]
    assert (result["answers"], result["questions"]) == ("the run", 24)
    assert result["difference"] <= 1e-5
    return out


def test_the_example_needs_torch_and_numpy_only() -> None:
    tree = ast.parse(Path(example.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert others == {"numpy", "torch", "pyarrow"}, "PyArrow is used where it is installed"
    assert "torch.load" not in Path(example.__file__).read_text(encoding="utf-8")


def test_the_example_matches_patterns_without_pyarrow_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in ("pyarrow", "none"):
        monkeypatch.setitem(sys.modules, name, None)  # then its import fails
        found.append([example.matches(r"DX//\d{2}", code) for code in ("DX//12", "DX//123", "DX//12\n")])
        monkeypatch.undo()
    assert found == [[True, False, False]] * 2


def test_the_example_reproduces_predict_on_new_records(exported: Path, sim_run: Path) -> None:
    """Other made-up records than those that the export was checked with; with a wrong scale it would fail."""
    run, own = Run(sim_run), ExportedRun(exported)
    questions = sample_questions(run, 40, seed=7)
    assert {question.is_query for question in questions} == {False, True}
    assert worst_difference(run, own, questions) <= 1e-5
    own.arrays["mean"] = own.arrays["mean"] + 0.5 * own.arrays["sd"]
    assert worst_difference(run, own, questions) > 1e-5


@pytest.mark.slow
def test_the_folder_alone_predicts(exported: Path, sim_data: Path, tmp_path: Path, sim_run: Path) -> None:
    rows = max(subject_rows(sim_data).values(), key=len)
    lines = ["time,code,numeric_value"]
    lines += [
        f"{row['time'] or ''},{row['code']},{'' if row['numeric_value'] is None else row['numeric_value']}"
        for row in rows
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-I", str(exported / "predict.py"), str(tmp_path / "rows.csv"), "--at", "2016-06-01"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    shown = [line.split(": ") for line in done.stdout.splitlines()]
    task = Run(sim_run).task
    assert len(shown) == len(task.causes) * len(task.horizons)
    assert all(0 <= float(risk) <= 1 for _, risk in shown)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_the_mask_is_who_sees_whom(attention: str) -> None:
    """By the definition, row by row: itself, and real visits of the past (or future) within the window."""
    is_query = torch.tensor([False, True, False, False, True, True, False, False])
    batch: Any = type("Rows", (), {"is_query": is_query})
    found = seen(batch, window=3, bidirectional=attention == "bidirectional")
    number = [int((~is_query[:k]).sum()) for k in range(len(is_query))]
    for i in range(len(is_query)):
        for j in range(len(is_query)):
            back = number[i] - number[j]
            sees = not is_query[j] and 0 < back < 3
            sees |= attention == "bidirectional" and not is_query[i] and not is_query[j] and 0 < -back < 3
            assert bool(found[i, j]) == (sees or i == j), (i, j)


MODELS: list[dict[str, Any]] = [
    {},
    {"visit_encoder": "mean", "rotary": False, "position": "sinusoidal"},
    {"visit_encoder": "max", "values": "none"},
    {"visit_encoder": "scaled_sum", "values": "interpolate", "code_position": True},
    {"head": "visit", "edges_days": ()},
    {"scorer": "bottleneck", "visit_mlp": False, "wide_head": True, "max_visits": 2},
    {"members": 2, "delta_bins": "linear"},
    {"code_types": True, "n_code_types": 4, "age_polynomial": True, "attention": "bidirectional"},
]


@pytest.mark.parametrize("changed", MODELS, ids=lambda changed: "-".join(changed) or "default")
def test_the_graph_is_the_model(changed: dict[str, Any]) -> None:
    """The module that is exported, against the model's own packed path, on one subject of random visits."""
    torch.manual_seed(0)
    given = {"vocab_size": 30, "dim": 16, "heads": 2, "layers": 2, "causes": 1, "edges_days": (30.0, 365.0)}
    model = build_model(ModelConfig.model_validate({**given, **changed})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    batch = one_subject(model.config)
    static = batch.static_codes
    with torch.no_grad():
        expected = model(batch)
        found = SubjectProgram(model)(
            batch.codes,
            batch.visit_offsets,
            batch.age_years,
            batch.delta_days,
            batch.is_query,
            batch.values,
            torch.zeros_like(batch.codes) if batch.code_types is None else batch.code_types,
            static,
            torch.full((len(static),), 1 / len(static)),
        )
    torch.testing.assert_close(found[~batch.is_query], expected[~batch.is_query], atol=2e-6, rtol=1e-5)
    if model.config.head == "horizon":
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


def one_subject(config: ModelConfig) -> VisitBatch:
    """A subject of nine rows, two of them queries, one an empty visit."""
    offsets = torch.tensor([0, 3, 4, 4, 6, 9, 11, 12, 15, 16])
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(16, 2, generator=generator)
    values[::3] = float("nan")
    return VisitBatch(
        torch.randint(1, config.vocab_size, (16,), generator=generator),
        offsets,
        torch.tensor([0, 9]),
        torch.tensor([60.0, 60.5, 61, 61, 62, float("nan"), 63, 64, 65]),
        torch.rand(9, generator=generator) * 90,
        is_query=torch.tensor([False, False, False, True, False, False, False, True, False]),
        values=values,
        static_codes=torch.tensor([4, 7, 9]),
        static_offsets=torch.tensor([0, 3]),
        code_types=torch.randint(0, 4, (16,), generator=generator) if config.code_types else None,
    )


def test_the_formulas_are_those_of_the_package() -> None:
    chance = np.random.default_rng(0)
    edges, logits = [30.0, 90.0, 400.0], chance.normal(-6, 1, (2, 4))
    for start in (0.0, 7.0):
        expected = hazards.cumulative_incidence(
            np.exp(logits)[None], edges, np.array([30.0, 365.0, 900.0]), start_days=start
        )
        np.testing.assert_allclose(
            cumulative_incidence(logits, edges, [30.0, 365.0, 900.0], start), expected[0], atol=1e-12
        )
    knots = np.sort(np.round(chance.normal(size=129), 1))
    numbers = np.r_[chance.normal(size=200), knots[::9], -99, 99]
    expected = _Ranks(knots[None]).of(np.zeros(len(numbers), np.int32), numbers)
    np.testing.assert_allclose([rank_among(knots, number) for number in numbers], expected, atol=1e-12)


def test_models_of_other_kinds_are_refused() -> None:
    flat = build_model(ModelConfig(vocab_size=9, dim=8, heads=2, layers=1, architecture="flat"))
    with pytest.raises(EhrseqError, match="only hierarchical models"):
        SubjectProgram(flat)


@pytest.mark.slow
def test_an_export_that_differs_is_not_written(sim_run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("ehrsequencing.export.folder.TOLERANCE", -1.0)
    with pytest.raises(EhrseqError, match="differs from the run"):
        export_run(sim_run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_blend_is_refused_unless_its_network_is_asked_for(sim_run: Path) -> None:
    study = Run(sim_run).study
    blend = study.model_copy(update={"training": study.training.model_copy(update={"blend": True})})
    run = Run(sim_run)
    run.study = blend
    with pytest.raises(EhrseqError, match="is a blend"):
        _require_simple(run, network_only=False)
    _require_simple(run, network_only=True)
