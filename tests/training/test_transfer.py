"""`ehrseq train --init` with LoRA: what learns, how fast, what is saved beside the run, and what is refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from ehrsequencing.cli.app import app
from ehrsequencing.config import load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json
from ehrsequencing.models import lora
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.reporting.pretraining import transfer_advice
from ehrsequencing.training.loop import Trainer
from ehrsequencing.training.pretrained import Pretrained
from ehrsequencing.training.pretraining.loop import Pretrainer

SHORT = ("training.epochs=1", "training.min_steps=2", "training.recalibration=0")


@pytest.fixture(scope="module")
def source(sim_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, 16 wide."""
    out = tmp_path_factory.mktemp("source") / "model"
    study = load_study(None, ["model.dim=16", "model.heads=2", "model.layers=2", *SHORT])
    Pretrainer(Prepared(sim_prepared), out, study=study, task_name="simulated").fit()
    return out


def start(prepared: Path, source: Path, *settings: str) -> Trainer:
    study = load_study(None, [*SHORT, *settings])
    return Trainer(Prepared(prepared), "simulated", prepared / "nowhere", study=study, init=Pretrained(source))


def learned(trainer: Trainer) -> int:
    assert trainer.started_from is not None
    count: int = trainer.started_from["trained_weights"]
    return count


def test_lora_freezes_only_what_was_copied(sim_prepared: Path, source: Path) -> None:
    """A third layer above two copied ones learns all of its weights, whatever the mode."""
    deeper = [start(sim_prepared, source, "model.layers=3", f"transfer.mode={m}") for m in ("frozen", "lora", "full")]
    frozen, adapted, full = deeper
    assert learned(frozen) < learned(adapted) < learned(full)
    learns = {name: p.requires_grad for name, p in adapted.model.named_parameters()}
    assert learns["timeline.layers.2.qkv.weight"]
    assert learns["timeline.layers.2.W1.bias"]
    assert learns["timeline.layers.1.qkv.A"]
    assert not learns["timeline.layers.1.qkv.base.weight"]
    assert not learns["timeline.layers.1.qkv.base.bias"]
    assert not any("layers.2" in name and name.endswith((".A", ".B")) for name in learns)


def test_lora_without_a_copied_layer_is_refused(sim_prepared: Path, source: Path) -> None:
    """Between architectures only embeddings are copied. Frozen, the new layers learn all of their weights."""
    frozen = start(sim_prepared, source, "model.architecture=flat", "transfer.mode=frozen")
    assert all(p.requires_grad for name, p in frozen.model.named_parameters() if ".layers." in name)
    with pytest.raises(EhrseqError, match="no layer was copied"):
        start(sim_prepared, source, "model.architecture=flat", "transfer.mode=lora")


@pytest.mark.parametrize("way", ["members", "blend"])
def test_members_and_blends_save_their_adapters(way: str, sim_prepared: Path, source: Path, tmp_path: Path) -> None:
    """The adapters of a file, put on the pretrained matrices and merged, give the run's matrices."""
    out = tmp_path / "run"
    more = ("training.members=2",) if way == "members" else ("training.blend=true", "training.blend_folds=2")
    arguments = ["train", str(sim_prepared), "--init", str(source), "--transfer", "lora", "--out", str(out)]
    found = CliRunner().invoke(app, [*arguments, *SHORT, *more])
    assert found.exit_code == 0, found.output
    numbers = (1, 2) if way == "members" else (None,)
    names = ["adapters.safetensors" if n is None else f"adapters-{n:03d}.safetensors" for n in numbers]
    assert f"the adapters alone: {', '.join(names)}" in found.output
    ours, files = load_file(out / "model.safetensors"), read_json(out / "manifest.json")["files"]
    for n, name in zip(numbers, names, strict=True):
        base = Pretrained(source).model
        lora.load_adapters(base, out / name)
        merged = lora.merge(base)
        assert "timeline.layers.1.qkv" in merged
        for layer in merged:
            weight = base.get_submodule(layer).weight
            assert isinstance(weight, torch.Tensor)
            key = f"{layer}.weight" if n is None else f"members.{n - 1}.{layer}.weight"
            torch.testing.assert_close(ours[key], weight.detach())
        assert name in files


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["transfer.lora_rank=4"], "do nothing with mode=full"),
        (["transfer.mode=lora", "transfer.lora_rank=17"], "a rank of 16 at most"),
    ],
)
def test_settings_that_do_nothing_are_refused(settings: list[str], told: str, sim_prepared: Path, source: Path) -> None:
    with pytest.raises(EhrseqError, match=told):
        start(sim_prepared, source, *settings)


def test_transfer_needs_a_model_and_one_mode(sim_prepared: Path, source: Path, tmp_path: Path) -> None:
    def told(*arguments: str) -> str:
        found = CliRunner().invoke(app, ["train", str(sim_prepared), "--out", str(tmp_path / "no"), *arguments])
        assert found.exit_code == 2
        return " ".join(found.output.split())

    assert "transfer.mode=full needs --init" in told("transfer.mode=full")
    assert "--transfer needs --init" in told("--transfer", "lora")
    contradicted = told("--init", str(source), "--transfer", "lora", "transfer.mode=full")
    assert "--transfer lora contradicts transfer.mode=full" in contradicted
    file = tmp_path / "study.yaml"
    file.write_text("transfer: {mode: lora}\n")
    assert "transfer.mode: needs a model to start from" in told("--config", str(file))


def test_advice_comes_where_few_codes_are_known() -> None:
    assert transfer_advice(None) is None
    assert transfer_advice({"overlap": {"none": {"share": 0.4}}}) is None
    assert (transfer_advice({"overlap": {"none": {"share": 1.0}}}) or "").startswith("little is transferred: the model")
