"""`save_pretrained` and `from_pretrained`: the same model again, and nothing else is ever loaded."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import ehrsequencing as eh
from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.config import StudyConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.censoring import aalen_johansen
from ehrsequencing.models.ensemble import build_model
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival as Model
from ehrsequencing.records.prepared import Prepared
from helpers.models import MODELS, make_model
from helpers.rows import risk_of_rows
from helpers.strategies import pack, sample_records
from helpers.training import NetworkTrainer as Trainer

SETTINGS: list[dict[str, object]] = [
    *MODELS.values(),
    {"code_position": True, "head": "visit"},
    {"visit_encoder": "mean", "visit_mlp": False, "values": "none", "position": "none", "head": "visit"},
    {"wide_head": True, "values": "interpolate", "age_bin_years": 0.0, "delta_bins": "none"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_same_model_again(tmp_path: Path, settings: dict[str, object]) -> None:
    model, batch = make_model(**settings), pack(sample_records())
    model.train().save_pretrained(tmp_path / "a" / "run")
    again = type(model).from_pretrained(tmp_path / "a" / "run")
    assert again.config == model.config
    assert not again.training
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
    assert {name: p.requires_grad for name, p in again.named_parameters()} == trained
    assert torch.equal(again(batch).nan_to_num(), model.eval()(batch).nan_to_num())
    again.double()(batch).nan_to_num().sum().backward()
    assert sorted(p.name for p in (tmp_path / "a" / "run").iterdir()) == ["config.json", "model.safetensors"]
    again.save_pretrained(tmp_path / "a" / "run")  # over a file that may still be mapped
    assert load_file(tmp_path / "a" / "run" / "model.safetensors").keys() == model.state_dict().keys()


def test_a_model_of_2_0_is_read(tmp_path: Path) -> None:
    """It has free bins alone, and no curves of time."""
    model, batch = make_model(wide_head=True), pack(sample_records())
    with torch.no_grad():
        for layer in (model.head.W2, model.wide_head):
            layer.curves.zero_()
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    old = {name: tensor for name, tensor in load_file(path).items() if not name.endswith(".curves")}
    assert len(old) == len(load_file(path)) - 2
    save_file(old, path, metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    del config["query_follows_visit"], config["code_effects"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.testing.assert_close(Model.from_pretrained(tmp_path)(batch), model(batch), rtol=0, atol=0)


def test_a_folder_of_the_other_architecture(tmp_path: Path) -> None:
    make_model(architecture="flat").save_pretrained(tmp_path)
    with pytest.raises(EhrseqError, match=r"HierarchicalBEHRTForSurvival is not 'flat', .*use BEHRTForSurvival"):
        Model.from_pretrained(tmp_path)


def saved(folder: Path) -> Path:
    make_model().save_pretrained(folder)
    return folder


def test_a_missing_folder_or_file(tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match=r"config\.json: cannot be read"):
        Model.from_pretrained(tmp_path / "nowhere")
    (saved(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(EhrseqError, match=r"model\.safetensors: cannot be read"):
        Model.from_pretrained(tmp_path)


class Bomb:
    """A pickle that leaves a trace where it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return open, ("executed", "w")  # type: ignore[return-value]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, -1])
def test_truncated_or_foreign_weights(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weights = saved(tmp_path) / "model.safetensors"
    whole = weights.read_bytes()
    for data in (whole[:size], pickle.dumps(Bomb())[:size], b"\xff" * 8 + whole, b"PK\x03\x04" + whole):
        weights.write_bytes(data)
        with pytest.raises(EhrseqError, match=r"model\.safetensors: is not a safetensors file"):
            Model.from_pretrained(tmp_path)
    torch.save({"a": torch.zeros(1)}, weights)
    with pytest.raises(EhrseqError, match="is not a safetensors file"):
        Model.from_pretrained(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_weights_of_another_model(tmp_path: Path) -> None:
    tensors = load_file(saved(tmp_path) / "model.safetensors")

    def refused(message: str, changes: dict[str, torch.Tensor | None]) -> None:
        changed = {name: t for name, t in {**tensors, **changes}.items() if t is not None}
        (tmp_path / "model.safetensors").unlink()  # `tensors` are views of the file that was read
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(EhrseqError, match=message):
            Model.from_pretrained(tmp_path)

    name = "timeline.layers.0.out.weight"
    refused(f"has no tensor {name}", {name: None})
    refused("unknown tensor 'stranger'", {"stranger": torch.zeros(1)})
    refused(rf"{name}: expected float of shape \(8, 8\), got torch.float32 \(8, 4\)", {name: torch.zeros(8, 4)})
    refused(name, {name: torch.zeros(8, 8, dtype=torch.int64)})
    refused(name, {name: torch.zeros(8, 8, dtype=torch.float16)})
    refused("not every weight is finite", {name: torch.full((8, 8), float("nan"))})
    make_model(table_dim=3).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    refused("table.column: a column outside the table", {"table.column": tensors["table.column"] + 1})
    refused("table.column: expected torch.int64", {"table.column": tensors["table.column"].float()})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must hold settings"),
        ('{"dim": 8, "dim": 16}', "has the key 'dim' twice"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"vocab_size": 12, "dims": 8}', "unknown setting 'dims'"),
        ('{"vocab_size": 0}', "vocab_size"),
        ('{"architecture": "flat"}', "architecture"),
        ('{"layers": 1000000000}', "fewer tensors than the configuration has layers"),
        ('{"vocab_size": 1000000000000}', "expected float of shape"),
        ('{"vocab_size": 10000000000000000000}', "describes no possible model"),
        ('{"age_bin_years": 1e-300}', "describes no possible model"),
        ('{"edges_days": [1.0, Infinity]}', "edges_days.1: .*finite"),
        ('{"edges_days": [NaN]}', "edges_days.0: .*finite"),
    ],
)
def test_hostile_configuration(tmp_path: Path, text: str, message: str) -> None:
    (saved(tmp_path) / "config.json").write_text(text)
    with pytest.raises(EhrseqError, match=message):
        Model.from_pretrained(tmp_path)


# ---- a new model starts at the training rates: in training, and by `start_at_rates` in a loop of one's own -----------


def test_a_new_model_predicts_the_observed_incidence(
    sim_prepared: Path, tiny_study: StudyConfig, tmp_path: Path
) -> None:
    """The trainer's first model, and another one by `start_at_rates`; without it everybody has the event at once."""
    torch.manual_seed(0)
    prepared = Prepared(sim_prepared)
    trainer = Trainer(prepared, "simulated", tmp_path / "run", study=load_study(None, ["model.size=small"]))
    records = prepared.records("simulated", "train")
    batch = SubjectLoader.of_model(trainer.config, records).collate(np.arange(len(records.timelines))).batch
    own = build_model(trainer.config)
    before = risk_of_rows(own.eval(), records, horizons_days=[365.25])[:, 0, 0]
    own.start_at_rates(batch)
    rows = records.rows
    observed = aalen_johansen(rows.duration_days, rows.cause.astype(int), n_causes=2).at([365.25])[0, 0]
    for model in (trainer.model, own):
        risk = risk_of_rows(model.eval(), records, horizons_days=[365.25])[:, 0, 0]
        assert risk.mean() == pytest.approx(observed, rel=0.1)
        assert risk.std() < 0.05
    assert before.mean() > 0.4


def test_a_visit_head_and_a_batch_without_labels_are_refused() -> None:
    one = torch.ones(1, 1)
    batch = eh.VisitBatch.from_padded(one.long().unsqueeze(2), one.bool().unsqueeze(2), one, 0 * one, one.bool())
    small = {"vocab_size": 5, "dim": 8, "heads": 2, "layers": 1}
    with pytest.raises(EhrseqError, match="no labels"):
        eh.HierarchicalBEHRTForSurvival(eh.ModelConfig(**small, edges_days=(30.0,))).start_at_rates(batch)
    with pytest.raises(EhrseqError, match="no rates per day"):
        eh.HierarchicalBEHRTForSurvival(eh.ModelConfig(**small, head="visit")).start_at_rates(batch)
