"""External validation: the same numbers on the same people, foreign codes counted, foreign data refused in words."""

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import EvaluationConfig, TaskConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json
from ehrsequencing.core.outputs import MANIFEST, save_manifest
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.evaluation.external import External, read_external, validate
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.simulate import SimulationConfig, simulate
from helpers.command_line import refused

QUICK = EvaluationConfig(baselines="none", bootstrap=20)
Change = Callable[[pa.Table], pa.Table]


def rewritten(source: Path, out: Path, change: Change, *, shards: int = 1) -> Path:
    """A copy of a data set under other rows, without its truth and its splits."""
    tables = [pq.read_table(path) for path in sorted((source / "data").rglob("*.parquet"))]
    table = change(pa.concat_tables(tables))
    (out / "data").mkdir(parents=True)
    (out / "metadata").mkdir()
    (out / "metadata" / "dataset.json").write_text(json.dumps({"dataset_name": "a hospital/elsewhere"}))
    shard = np.array(table["subject_id"]) % shards
    for number in range(shards):
        pq.write_table(table.filter(pa.array(shard == number)), out / "data" / f"{number}.parquet")
    return out


def only(ids: np.ndarray) -> Change:
    return lambda table: table.filter(pc.is_in(table["subject_id"], pa.array(ids)))


def renamed(*prefixes: str) -> Change:
    """Codes of another hospital: everything with these prefixes has another name there."""

    def change(table: pa.Table) -> pa.Table:
        codes = [f"LOCAL//{c}" if c.startswith(prefixes) else c for c in table["code"].to_pylist()]
        return table.set_column(table.column_names.index("code"), "code", pa.array(codes))

    return change


@pytest.fixture(scope="module")
def run(sim_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the run: external validations are written beside it."""
    return Path(shutil.copytree(sim_run, tmp_path_factory.mktemp("external") / "run"))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another simulation with other knobs, whose laboratory and background codes have other names."""
    folder = tmp_path_factory.mktemp("elsewhere")
    other = SimulationConfig(outcome_per_year=0.25, visits_per_year=2.0, pairs=5, truth_futures=4)
    simulate(folder / "simulated", subjects=200, seed=77, config=other)
    return rewritten(folder / "simulated", folder / "data", renamed("LAB//", "BG//", "NOISE//"))


@pytest.fixture(scope="module")
def held_out(run: Path, sim_data: Path, sim_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's own held-out subjects as a data set of its own, cut into other shards."""
    ids = np.asarray(Prepared(sim_prepared).timelines("held_out").subject_id)
    return rewritten(sim_data, tmp_path_factory.mktemp("held_out") / "data", only(ids), shards=3)


@pytest.mark.slow
def test_the_held_out_subjects_as_other_data_give_the_same_numbers(
    run: Path, held_out: Path, sim_prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ehrsequencing.predictors.fitting_data.MOST_CELLS", 250_000)  # quick boosting
    settings = EvaluationConfig(baselines="fast", bootstrap=20, tuning_trials=1)
    inside = evaluate(run, settings=settings)
    outside, folder = validate(run, held_out, settings=settings)
    assert folder == run / "external-a-hospital-elsewhere"
    assert json.loads((folder / "metrics-individual.json").read_text()) == outside
    assert json.loads((folder / "metrics.json").read_text())["individual"] == "metrics-individual.json"
    assert outside["models"] == inside["models"]
    assert len(outside["models"]) > 3
    for key in ("metrics", "differences", "at_risk", "smooth_calibration"):
        assert outside[key] == inside[key]
    assert outside["events"]["external"] == inside["events"]["held_out"]
    assert outside["data"]["prediction_times"]["external"] == inside["data"]["prediction_times"]["held_out"]
    assert outside["split"] == "external"
    assert outside["external"]["seen_in_training"] == 0
    assert outside["external"]["subjects"] == inside["data"]["subjects"]["held_out"]
    rates = inside["inputs"]["by_split"]
    assert outside["external"]["unknown_token_rate"] == rates["held_out"]["unknown_token_rate"]
    assert outside["external"]["training_unknown_token_rate"] == rates["train"]["unknown_token_rate"]
    # And a test that can fail: one subject less gives other numbers.
    ids = np.asarray(Prepared(sim_prepared).timelines("held_out").subject_id)
    fewer, _ = validate(run, rewritten(held_out, tmp_path / "data", only(ids[1:])), settings=QUICK, out=tmp_path / "o")
    assert [m for m in fewer["metrics"] if m["metric"] == "brier"] != [
        m for m in outside["metrics"] if m["metric"] == "brier" and m["model"] == fewer["models"][0]
    ]


def test_encoding_is_that_of_the_prepared_set(run: Path, held_out: Path, sim_prepared: Path) -> None:
    """Array by array, from three shards, in which subjects stand in another order; the files are gone by then."""
    found, store = read_external(Run(run), held_out).population.records, Prepared(sim_prepared)
    assert isinstance(found.timelines.codes.base, np.memmap)
    for here, there in (
        (found.timelines, store.timelines("held_out")),
        (found.rows, store.rows("simulated", "held_out")),
    ):
        for field in fields(here):
            np.testing.assert_array_equal(getattr(here, field.name), getattr(there, field.name), err_msg=field.name)
    tampered = store.timelines("held_out").codes.copy()
    tampered[0] += 1
    assert not np.array_equal(found.timelines.codes, tampered)


def read(run: Path, data: Path) -> External:
    return read_external(Run(run), data)


def test_another_world_is_judged_and_its_unknown_codes_are_named(run: Path, elsewhere: Path, tmp_path: Path) -> None:
    result, _ = validate(run, elsewhere, settings=QUICK, out=tmp_path / "out")
    external = result["external"]
    assert external["unknown_token_rate"] > external["training_unknown_token_rate"] + 0.1
    assert any("unknown to the run" in text for text in result["warnings"])
    assert sum(row["code"].startswith("LOCAL//") for row in external["new_codes"]) >= 2
    assert not {row["code"] for row in external["new_codes"]} & set(Run(run).vocabulary.tokens)
    assert all(row["subjects"] >= 11 for row in external["new_codes"])
    counts = [row["subjects"] for row in external["new_codes"]]
    assert counts == sorted(counts, reverse=True)
    values = [m["value"] for m in result["metrics"] if m["metric"] == "c"]
    assert any(value is not None for value in values)
    assert result["inputs"]["by_split"]["external"]["unknown_token_rate"] == external["unknown_token_rate"]


@pytest.mark.slow
def test_ids_that_training_also_has_are_counted(run: Path, sim_data: Path, sim_prepared: Path, tmp_path: Path) -> None:
    result, _ = validate(run, sim_data, settings=QUICK, out=tmp_path / "out")
    store = Prepared(sim_prepared)
    assert result["external"]["seen_in_training"] == sum(len(store.timelines(s)) for s in ("train", "tuning"))
    assert any("not external validation" in text for text in result["warnings"])


def test_foreign_data_is_refused_in_words(run: Path, sim_data: Path, tmp_path: Path) -> None:
    foreign = rewritten(sim_data, tmp_path / "foreign", renamed(""))
    message = refused("evaluate", run, "--data", foreign)
    for words in (
        "matches nothing here",
        "index.code: ENROLLMENT",
        "outcome.outcome: DX//OUTCOME",
        "censoring.code",
        "codes are unknown to the run",
        "map its codes",
    ):
        assert words in message
    assert not list(run.glob("external-*foreign*"))
    known = len(read(run, sim_data).unknown)
    total = int(message.split(" of its ")[1].split(" codes")[0])
    assert f"{total} of its {total} codes" in message
    assert known < total


def test_an_absent_competing_cause_is_a_warning(run: Path, sim_data: Path, tmp_path: Path) -> None:
    immortal = rewritten(sim_data, tmp_path / "data", renamed("MEDS_DEATH"))
    assert read(run, immortal).unmatched == []  # a data set without deaths is no typing error
    found = Run(run)
    found.task = TaskConfig.model_validate(
        {**found.task.model_dump(), "competing": {"death": ["MEDS_DEATH"], "graft": ["TRANSPLANT"]}}
    )
    assert read_external(found, sim_data).unmatched == ["competing.graft: TRANSPLANT"]


def test_a_subject_in_two_shards_and_no_subject_at_all(run: Path, sim_data: Path, tmp_path: Path) -> None:
    data = rewritten(sim_data, tmp_path / "data", lambda table: table)
    shutil.copy(data / "data" / "0.parquet", data / "data" / "1.parquet")
    with pytest.raises(EhrseqError, match="in two shards"):
        read(run, data)
    empty = rewritten(sim_data, tmp_path / "empty", lambda table: table.slice(0, 0))
    with pytest.raises(EhrseqError, match="no subject"):
        read(run, empty)


def test_without_the_prepared_set_there_are_words_and_no_baselines(run: Path, held_out: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    save_manifest(tmp_path / "run", read_json(run / MANIFEST) | {"prepared": str(tmp_path / "gone")})
    settings = EvaluationConfig(baselines="fast", bootstrap=0)
    result, _ = validate(tmp_path / "run", held_out, settings=settings)
    assert result["models"] == ["ehrsequencing"]
    assert result["external"]["seen_in_training"] is None
    assert any("no baselines" in text for text in result["warnings"])
    with pytest.raises(EhrseqError, match="--prepared"):
        validate(tmp_path / "run", held_out, settings=settings, prepared=tmp_path / "nowhere")


def test_options_that_would_do_nothing_are_refused(run: Path, held_out: Path, tmp_path: Path) -> None:
    assert "out would do nothing without data" in refused("evaluate", run, "--out", tmp_path / "x")
    assert "split would do nothing beside data" in refused("evaluate", run, "--data", held_out, "--split", "tuning")


@pytest.mark.slow
def test_other_records_of_one_name_do_not_replace_a_validation(run: Path, elsewhere: Path, tmp_path: Path) -> None:
    first, second = (rewritten(elsewhere, tmp_path / name / "data", lambda table: table) for name in "ab")
    run = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("external-*"))
    _, folder = validate(run, first, settings=QUICK)
    before = read_json(folder / "metrics.json")
    assert validate(run, second, settings=QUICK)[1] == folder  # the same rows
    fewer = rewritten(elsewhere, tmp_path / "c" / "data", lambda table: table.slice(0, len(table) - 1))
    with pytest.raises(EhrseqError, match=r"holds the validation of other records, which are called .*--out"):
        validate(run, fewer, settings=QUICK)
    assert read_json(folder / "metrics.json") == before
    again, _ = validate(run, fewer, settings=QUICK, overwrite=True)
    assert again["made_of"] != before["made_of"]
    assert again["external"]["people"] != before["external"]["people"]
    shutil.rmtree(folder)
