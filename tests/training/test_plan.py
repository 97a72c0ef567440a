"""Every variant of every part, by configuration alone: `ehrseq train` fits it and `ehrseq predict` reads it back."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from ehrsequencing.config import ModelConfig, ModelSettings, ModelShape, StudyConfig, TaskConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepare import prepare
from helpers.command_line import ehrseq

Answer = tuple[ModelConfig, NDArray[np.float32]]  # the model that was written, and its risks
SHORT = (
    "training.epochs=1",
    "training.distillation=0",
    "training.blend=false",
    "training.min_steps=4",
    "training.warmup_steps=1",
    "training.learning_rate=0.01",
)
TINY = (
    *("model.dim=8", "model.heads=2", "model.layers=1"),
    # As given, not as the size of the cohort decides, so that each variant differs in its own setting alone.
    *("model.dropout=0", "model.code_dropout=0", "model.wide_head=false", "model.age_polynomial=false"),
)
VARIANTS = (
    "visit_encoder=mean",
    "visit_encoder=transformer",
    "visit_encoder=sum",
    "visit_encoder=scaled_sum",
    "visit_encoder=max",
    "visit_encoder=bottleneck",
    "visit_mlp=false",
    "layers=2",
    "wide_head=true",
    "table_dim=8",
    "head=visit",
    "head=visit architecture=flat",
    "position=sinusoidal",
    "position=none",
    "code_position=true",
    "code_types=true",
    "age_bin_years=0",
    "delta_bins=linear",
    "delta_bins=none",
    "max_visits=2",
    "architecture=flat max_tokens=100",
    "architecture=flat position=sinusoidal code_types=true wide_head=true",
)


def settings(variant: str) -> list[str]:
    """As on the command line."""
    return [*SHORT, *TINY, *(f"model.{part}" for part in variant.split())]


@pytest.fixture(scope="module")
def one_cause(
    sim_data: Path, sim_task: TaskConfig, tiny_study: StudyConfig, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The simulated set again, for the visit head: death is no competing cause but ends the record."""
    out = tmp_path_factory.mktemp("one_cause") / "set"
    prepare(sim_data, out, study=tiny_study, tasks=[sim_task.model_copy(update={"competing": {}})])
    return out


def train_and_predict(variant: str, prepared: Path, data: Path, folder: Path) -> Answer:
    """Both commands as a user types them, at each subject's newest moment."""
    run, out = folder / "run", folder / "p.parquet"
    for command in (
        ["train", prepared, "--out", run, *settings(variant)],
        ["predict", run, data, "--at", "last", "--out", out],
    ):
        done = ehrseq(*command)
        assert done.exit_code == 0, done.output
    return ModelConfig.model_validate_json((run / "config.json").read_text()), pq.read_table(out)["risk"].to_numpy()


@pytest.fixture(scope="module")
def default(sim_prepared: Path, sim_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Answer:
    return train_and_predict("", sim_prepared, sim_data, tmp_path_factory.mktemp("default"))


QUICK = {VARIANTS[k] for k in (1, 9, 11, 17)}


@pytest.mark.parametrize(
    "variant", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in VARIANTS]
)
def test_every_variant_trains_and_predicts_by_configuration(
    variant: str, default: Answer, sim_prepared: Path, one_cause: Path, sim_data: Path, tmp_path: Path
) -> None:
    visit_head = "head=visit" in variant
    config, risk = train_and_predict(variant, one_cause if visit_head else sim_prepared, sim_data, tmp_path)
    assert len(risk) > 100
    assert np.isfinite(risk).all()
    assert ((risk >= 0) & (risk <= 1)).all()
    assert len(np.unique(risk)) > len(risk) / 10  # subjects differ
    asked = load_study(None, settings(variant)).model
    for name in {*asked.model_fields_set, *(part.partition("=")[0] for part in variant.split())}:
        assert getattr(config, name) == getattr(asked, name), name
    if not visit_head:
        assert not np.array_equal(risk, default[1])  # a setting that nobody reads would leave the risks as they were
        curves = risk.reshape(-1, config.causes, 4)
        assert (np.diff(curves, axis=2) >= -1e-6).all()
        assert curves[:, :, -1].sum(1).max() <= 1 + 1e-6


@pytest.mark.parametrize(
    "mode", ["interpolate", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("bins", "none"))]
)
def test_every_way_of_numbers_trains_and_predicts(
    mode: str, default: Answer, sim_data: Path, sim_task: TaskConfig, tmp_path: Path
) -> None:
    """What a number becomes is decided when the data is prepared; the model follows."""
    study = load_study(None, [f"values.mode={mode}", "values.bins=3"])
    prepare(sim_data, tmp_path / "set", study=study, tasks=[sim_task])
    config, risk = train_and_predict("code_types=true", tmp_path / "set", sim_data, tmp_path)
    assert (config.values, config.value_bins) == ("interpolate" if mode == "interpolate" else "none", 3)
    assert np.isfinite(risk).all()
    assert not np.array_equal(risk, default[1])


@pytest.mark.parametrize("setting", ["values=none", "value_bins=7", "vocab_size=9", "causes=3", "edges_days=[5.0]"])
def test_what_data_and_task_decide_is_no_setting(setting: str) -> None:
    with pytest.raises(
        EhrseqError, match=f"unknown setting 'model.{setting.partition('=')[0]}'.*(leave it out|did you mean)"
    ):
        load_study(None, [*SHORT, *TINY, f"model.{setting}"])


def test_a_run_states_settings_and_shape(sim_run: Path) -> None:
    """`config.yaml` has what a user sets, `config.json` also what data and task decide; the two agree."""
    settings, built = Run(sim_run).study.model, Run(sim_run).model.config
    assert type(settings) is ModelSettings
    assert not {*ModelSettings.model_fields} & {*ModelShape.model_fields}
    shape = ModelShape.model_validate(built.model_dump(include={*ModelShape.model_fields}))
    assert ModelConfig.of(settings, shape) == built
    assert shape.vocab_size == len(Run(sim_run).vocabulary)
    assert shape.causes == len(Run(sim_run).task.causes)
