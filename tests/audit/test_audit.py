"""The audit on honest runs: no false alarm, nothing passed that was not tested, and what people see of it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import ehrsequencing.records.vocabulary_fit as fit_room
from ehrsequencing.api.evaluate import report_evaluation
from ehrsequencing.audit.audit import CHECKS, audit
from ehrsequencing.audit.data import AuditData
from ehrsequencing.audit.predictions import MOVED, answers, movement
from ehrsequencing.config import EvaluationConfig, load_study, load_task
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import write_json
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.models.base import WEIGHTS_FILE
from ehrsequencing.prediction.run import Run, add_to_run, saved_audit
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.scales import Scale
from ehrsequencing.records.vocabulary_fit import VocabularyFit
from ehrsequencing.reporting.report import PAGES
from ehrsequencing.simulate import SimulationConfig, simulate
from helpers.audit import (
    FIRST_ID,
    TASK,
    TINY,
    assemble,
    broken_set,
    hospital_rows,
    hospital_splits,
    in_stays,
    in_touching_stays,
    leaks,
    load,
    make_set,
    rewrite_manifest,
    save,
    task,
    verdicts,
)
from helpers.command_line import ehrseq
from helpers.meds import Row, write_meds
from helpers.planted import PLANTED, planted
from helpers.planted_codes import PLANTED as PLANTED_CODES
from helpers.training import NetworkTrainer as Trainer

NEED_RECORDS = {check.name for check in CHECKS if check.needs_records}
ALWAYS = {"future_perturbation", "prefix_equality", "labels_in_records", "splits"}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("hospital"), hospital_rows())


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    return assemble(honest, tmp_path / "run")


# ---- clean cohorts of many kinds: no false alarm ---------------------------------------------------------------------

MODELS = (
    ("model.visit_encoder=attention",),
    ("model.visit_encoder=bottleneck",),
    ("model.visit_encoder=mean", "model.wide_head=true", "model.table_dim=8"),
    ("model.visit_encoder=transformer",),
    ("model.max_visits=3",),
    ("model.architecture=flat",),
    ("model.architecture=flat", "model.max_tokens=20"),
    ("model.position=sinusoidal", "model.code_position=true", "model.code_types=true"),
    ("model.visit_encoder=max", "model.delta_bins=linear", "model.age_bin_years=0"),
    ("model.head=visit",),
)
VISITS = ((), ("visits.by=window", "visits.window=6h"), ("visits.by=gap", "visits.gap=60h"), ("visits.ignore=[DX//1]",))
VALUES = ((), ("values.mode=interpolate",), ("values.mode=bins",), ("values.mode=none",), ("values.carry=false",))
TASKS: tuple[dict[str, Any], ...] = (
    {},
    {"index": {"first_visit": True}},
    {"index": {"code": "INDEX", "after": "48h"}},
    {"index": {"code": "DX//2", "which": "every"}},
    {"index": {"date": "2012-05-01"}, "censoring": {}},
    {"index": {"age": "60y"}},
    {"censoring": {"date": "2016-01-01"}},
    {"censoring": {"dataset_end": True}},
    {"blanking": "7d", "landmarks": ["30d", "1y"]},
)

TRAINED = (
    ("two members on a simulation", "training.members=2"),
    *(
        pytest.param(s, marks=pytest.mark.slow)
        for s in (("hospital",), ("flat on a hospital", "model.architecture=flat", "training.recalibration=0.5"))
    ),
)


def drawn(number: int) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, Any]]:
    """Settings of prepare and of the model, and the task, of one cohort: every choice comes up."""
    rng = np.random.default_rng(number)
    model = MODELS[number // 2 % len(MODELS)]  # each for a hospital and for a simulation
    changes = dict(TASKS[int(rng.integers(len(TASKS)))] if number >= len(TASKS) else TASKS[number])
    if "model.head=visit" in model:
        changes = {key: value for key, value in changes.items() if key != "index"} | {"competing": {}}
    settings = (*VISITS[int(rng.integers(len(VISITS)))], *VALUES[int(rng.integers(len(VALUES)))])
    return (*settings, f"vocabulary.min_subjects={rng.integers(1, 9)}"), model, changes


def simulated(number: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A simulated world with its knobs drawn at random."""
    rng = np.random.default_rng(1000 + number)
    knobs = {
        "outcome_per_year": rng.uniform(0.15, 0.4),
        "visits_per_year": rng.uniform(1, 4),
        "pairs": rng.integers(2, 9),
        "truth_futures": 4,
        "background_codes": rng.integers(5, 80),
        "stay_days": rng.choice([2.0, 20.0]),
        **{
            name: rng.choice([0.0, most])
            for name, most in (
                ("gap_effect", 2.0),
                ("chronic_effect", 1.5),
                ("lab_effect", 1.0),
                ("death_per_year", 0.1),
                ("frailty_spread", 1),
                ("visit_rate_spread", 1),
                ("stay_visit_share", 0.5),
                ("drop_out_per_year", 0.3),
                ("decay_effect", 3.0),
            )
        },
    }
    config = SimulationConfig.model_validate({name: np.asarray(value).item() for name, value in knobs.items()})
    simulate(folder / "data", subjects=150, seed=number, config=config)
    return folder / "data", load_task(folder / "data" / "task.yaml").model_dump(mode="json")


@pytest.mark.parametrize("number", [0, 1, *(pytest.param(number, marks=pytest.mark.slow) for number in range(2, 22))])
def test_no_false_alarm_on_clean_cohorts(number: int, tmp_path: Path) -> None:
    """Half hospitals, half simulations; every way to cut visits, read values, ask, and model."""
    settings, model, changes = drawn(number)
    if number % 2:
        data, own = simulated(number, tmp_path)
        kept = {key: value for key, value in changes.items() if key in ("competing", "blanking", "landmarks")}
        settings = tuple(s for s in settings if not s.startswith("visits.ignore"))
        question = task(**own | kept)
    else:
        rows = hospital_rows(subjects=150, seed=number)
        data, question = write_meds(tmp_path / "data", rows, splits=hospital_splits(rows)), task(**changes)
    prepare(data, tmp_path / "set", study=load_study(None, settings), tasks=[question])
    found = verdicts(assemble(tmp_path / "set", tmp_path / "run", *model, seed=number), seed=number, subjects=15)
    assert {"leak", "warning"}.isdisjoint(found.values())
    assert all(found[name] == "passed" for name in ALWAYS)


@pytest.mark.parametrize("settings", TRAINED, ids=lambda settings: settings[0])
def test_no_false_alarm_on_trained_runs(settings: tuple[str, ...], tmp_path: Path) -> None:
    """Weights that have learned something, from the first step to the correction at the end."""
    if "hospital" in settings[0]:
        prepared = make_set(tmp_path, hospital_rows(subjects=150, seed=7))
    else:
        data, own = simulated(101, tmp_path)
        prepare(data, tmp_path / "set", study=load_study(None, []), tasks=[task(**own)])
        prepared = tmp_path / "set"
    store = Prepared(prepared)
    study = load_study(None, [*TINY, "training.epochs=4", "training.learning_rate=1e-2", *settings[1:]])
    Trainer(store, store.only_task(), tmp_path / "run", study=study).fit()
    found = verdicts(tmp_path / "run", subjects=15)
    assert {"leak", "warning"}.isdisjoint(found.values())
    assert all(found[name] == "passed" for name in ALWAYS)


OUTCOME = TASK["outcome"]
KINDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "recurrent": ({"recurrent": True}, []),
    "a death that is no cause": ({"competing": {}, "censoring": {"dataset_end": True}}, []),
    "by value": ({"outcome": {name: [codes, "LAB//1 > 1"] for name, codes in OUTCOME.items()}}, []),
    "stays that overlap": ({"landmarks": ["0d", "77d", "300d"]}, ["visits.by=encounter", "visits.column=hadm_id"]),
    "stays that touch": ({}, ["visits.by=encounter", "visits.column=hadm_id"]),
}


@pytest.mark.parametrize(("changes", "settings"), KINDS.values(), ids=KINDS)
def test_whatever_a_task_says_an_honest_pipeline_raises_no_alarm(
    changes: dict[str, Any], settings: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rows = hospital_rows(subjects=150, seed=3)
    arranged = {"stays that overlap": in_stays, "stays that touch": in_touching_stays}
    rows = arranged.get(request.node.callspec.id, list)(rows)
    parents = {row.code: ["GROUP"] for row in rows}
    column = "hadm_id" if "visits.by=encounter" in settings else None
    prepared = make_set(tmp_path, rows, *settings, parents=parents, column=column, **changes)
    found = verdicts(assemble(prepared, tmp_path / "run"))
    assert {"leak", "warning"}.isdisjoint(found.values())
    assert found["prefix_equality"] == "passed"


def test_index_times_from_a_file_are_cut_with_the_records(tmp_path: Path) -> None:
    rows = hospital_rows(subjects=60)
    index = [row for row in rows if row.code == "INDEX" and row.time]
    times = pa.array([row.time for row in index], pa.timestamp("us"))
    table = pa.table({"subject_id": [row.subject for row in index], "prediction_time": times})
    pq.write_table(table, tmp_path / "index.parquet")
    prepared = make_set(tmp_path, rows, index={"file": str(tmp_path / "index.parquet")})
    found = verdicts(assemble(prepared, tmp_path / "run"))
    assert found["prefix_equality"] == found["labels_in_records"] == "passed"


def test_rounding_moves_a_prediction_by_far_less_than_a_leak(honest: Path, tmp_path: Path) -> None:
    """In float64 the company in a batch changes a logit by less than a millionth of the bound."""
    run = Run(assemble(honest, tmp_path / "run", "model.dim=128", "model.layers=4"))
    data = AuditData(run, Prepared(honest), split="held_out", subjects=20, seed=0)
    together = answers(data, data.asked)
    alone = [answers(data, data.asked.take(np.array([k]))) for k in range(20)]
    assert movement(together, np.concatenate(alone)).max() < 1e-6 * MOVED


# ---- nothing is passed that was not tested ---------------------------------------------------------------------------


def test_without_the_records_their_checks_are_not_tested(run: Path, honest: Path, tmp_path: Path) -> None:
    def forget(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(path.read_text().replace(str(honest.parent / "data"), str(tmp_path / "gone")))

    moved = broken_set(honest, tmp_path / "moved", forget)
    found = verdicts(run, prepared=moved)
    assert {name for name, verdict in found.items() if verdict == "not_tested"} == NEED_RECORDS
    assert "leak" not in found.values()
    # ... and with the records named again, they are.
    assert set(verdicts(run, prepared=moved, data=honest.parent / "data").values()) == {"passed"}


def test_other_records_are_refused_or_not_used(run: Path, honest: Path, tmp_path: Path) -> None:
    rows = hospital_rows(subjects=100)
    write_meds(tmp_path / "other", rows, splits=hospital_splits(rows))
    with pytest.raises(EhrseqError, match="not the records that were prepared"):
        audit(run, data=tmp_path / "other")
    with pytest.raises(EhrseqError, match="moved"):
        audit(run, prepared=tmp_path / "nowhere")
    with pytest.raises(EhrseqError, match="no split"):
        audit(run, split="test")


def test_a_model_that_says_the_same_to_everyone_passes_nothing(run: Path) -> None:
    """Where no input moves an answer, that the future moves none is no news."""
    model = Run(run).model
    with torch.no_grad():
        model.head.W2.weight.zero_()
    model.save_pretrained(run)
    rewrite_manifest(run)
    found = verdicts(run)
    assert found["future_perturbation"] == found["prefix_equality"] == "not_tested"


def test_too_few_events_are_not_tested(tmp_path: Path) -> None:
    prepared = make_set(tmp_path, hospital_rows(subjects=25), "vocabulary.min_subjects=1")
    assert verdicts(assemble(prepared, tmp_path / "run"))["telling_token"] == "not_tested"


def test_same_seed_same_audit(run: Path) -> None:
    first, again, other = (audit(run, subjects=5, seed=seed) for seed in (0, 0, 1))
    assert first["checks"] == again["checks"]
    assert first["checks"] != other["checks"]
    assert all(check["tested"] for check in first["checks"])


# ---- what people see of it -------------------------------------------------------------------------------------------


def test_the_command_names_the_leak_and_exits_with_1(run: Path, honest: Path, tmp_path: Path) -> None:
    done = ehrseq("audit", run, "--subjects", 10)
    assert done.exit_code == 0, done.output
    assert f"no leak found: {len(CHECKS)} checks passed, 0 could not be made" in done.stdout
    assert all(check.name in done.stdout for check in CHECKS)

    def change(folder: Path) -> None:
        save(folder / "visits" / "held_out", "age_years", load(folder / "visits" / "held_out", "age_years") + 1)

    broken = assemble(broken_set(honest, tmp_path / "set", change), tmp_path / "broken")
    done = ehrseq("audit", broken, "--subjects", 10)
    assert done.exit_code == 1
    assert "LEAK: prefix_equality" in done.stdout
    done = ehrseq("audit", tmp_path / "nowhere")
    assert done.exit_code == 2
    assert "not a finished run" in done.stderr
    assert ehrseq("audit", run, "--subjects", 0).exit_code == 2
    saved = saved_audit(broken)
    assert saved["leaks"] == 1


def test_the_run_stays_valid_and_the_audit_is_of_this_very_run(run: Path, tmp_path: Path) -> None:
    assert saved_audit(run) is None
    result = audit(run, subjects=5)
    assert saved_audit(run) == json.loads((run / "audit.json").read_text()) == json.loads(json.dumps(result))
    assert str(FIRST_ID)[:4] not in (run / "audit.json").read_text()  # nobody's id
    for check in result["checks"]:
        keys = {"name", "question", "verdict", "reason", "tested", "measured", "bound", "matter"}
        assert set(check) == keys
        assert not {*check["tested"].values()} & {*range(1, 11)}
    other = shutil.copytree(run, tmp_path / "other")
    model = Run(other).model
    with torch.no_grad():
        model.head.W2.bias += 0.1
    model.save_pretrained(other)
    assert (other / WEIGHTS_FILE).read_bytes() != (run / WEIGHTS_FILE).read_bytes()
    rewrite_manifest(other)
    assert saved_audit(other) is None


def test_the_audit_draws_the_report_again(run: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(run, tmp_path / "bare")
    assert "report.html" not in ehrseq("audit", bare, "--subjects", 5).stdout  # there is none, and none is made
    assert not (bare / "report.html").exists()
    metrics = evaluate(run, settings=EvaluationConfig(baselines="none", bootstrap=0))
    report_evaluation(run, metrics)
    before = (run / "report-details.html").read_text()
    assert "NOT RUN" in before
    done = ehrseq("audit", run, "--subjects", 5)
    assert done.exit_code == 0, done.output
    assert f"report  {run / 'report.html'}" in done.stdout
    after = (run / "report-details.html").read_text()
    assert "found no leak" in after
    assert "NOT RUN" not in after
    assert f"No leak was found. {len(CHECKS)} checks passed" in (run / "report.html").read_text()
    assert {"audit.json", "metrics.json", *PAGES} <= set(Run(run).manifest["files"])  # and all of them whole
    assert json.loads((run / "metrics-individual.json").read_text()) == json.loads(json.dumps(metrics))
    (tmp_path / "told.yaml").write_text("ethics: Board 7, reference 12\n")
    done = ehrseq("evaluate", run, "--redraw", f"evaluation.tripod={tmp_path / 'told.yaml'}")
    assert done.exit_code == 0, done.output
    assert "Board 7, reference 12" in (run / "report.html").read_text()
    assert ehrseq("evaluate", run, "--redraw").exit_code == 0  # and as it was
    told = ehrseq("evaluate", run, "--redraw", "--split", "tuning").stderr
    assert "--split would do nothing beside --redraw" in told
    assert (run / "report-details.html").read_text() == after
    assert "has no results of an evaluation" in ehrseq("evaluate", bare, "--redraw").stderr
    # Metrics that cannot be drawn change neither the verdict nor the report.
    add_to_run(run, "metrics.json", lambda path: write_json(path, {"checks": None}))
    done = ehrseq("audit", run, "--subjects", 6)
    assert done.exit_code == 0, done.output
    assert "does not show this audit" in done.stderr
    assert (run / "report-details.html").read_text() == after
    assert Run(run).manifest["files"]


# ---- the planted-leak suite: pipelines with one thing broken, each found by the check that is there for it -----------


# ---- what tells of single people -------------------------------------------------------------------------------------


@planted("single_people")
def quantiles_that_are_single_values(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """The scales that were stored until 2026: the lowest, the highest, and every other number is somebody's."""

    def plain(value: Any, owner: Any, *, enough: int) -> Scale | None:
        if len(value) < enough:
            return None
        return Scale(np.quantile(value, np.linspace(0, 1, 129)), float(value.mean()), float(value.std() or 1.0))

    patch.setattr(fit_room, "fit_scale", plain)  # also when the audit fits again
    return assemble(make_set(tmp, hospital_rows(subjects=120)), tmp / "run")


@planted("single_people")
def type_of_one_held_out_person(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """An unknown token for every type of codes that anybody has, as there was one until 2026."""
    finish = VocabularyFit.finish

    def all_types(self: VocabularyFit) -> Any:
        return replace(finish(self), kinds=tuple(sorted(set(self.kinds) - {""})))

    patch.setattr(VocabularyFit, "finish", all_types)
    rows = hospital_rows(subjects=120)
    return assemble(make_set(tmp, [*rows, Row(FIRST_ID + 4, rows[-1].time, "JANE-DOE//1")]), tmp / "run")


# ---- inputs that know too much ---------------------------------------------------------------------------------------


@planted("telling_token")
def target_encoded_token(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """A risk score, computed by somebody who knew the outcomes, is in the records from the index on."""
    rows = hospital_rows()
    ends = {row.subject: row.time for row in rows if row.code == "END"}
    relapses = [row for row in rows if row.code == "DX//RELAPSE"]
    high = {row.subject for row in relapses if row.time <= ends.get(row.subject, row.time)}
    rows += [
        Row(row.subject, row.time, "SCORE//HIGH" if row.subject in high else "SCORE//LOW")
        for row in rows
        if row.code == "INDEX" and row.time
    ]
    return assemble(make_set(tmp, rows), tmp / "run")


@planted("telling_token")
def death_flag_in_the_records(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """A static code that somebody filled in at the end of the study."""
    rows = hospital_rows(subjects=400)
    dead = {row.subject for row in rows if row.code == "MEDS_DEATH"}
    ends = {row.subject: row.time for row in rows if row.code in ("END", "DX//RELAPSE")}
    dead -= set(ends)
    rows += [Row(subject, None, "VITAL//DECEASED") for subject in sorted(dead)]
    return assemble(make_set(tmp, rows), tmp / "run")


@pytest.mark.parametrize("name", PLANTED)
def test_planted_leak_is_found_by_the_right_check(
    name: str, honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, found_by = PLANTED[name]
    run = make(honest, tmp_path, monkeypatch)
    assert leaks(run, only=found_by) == found_by


def test_every_check_finds_something() -> None:
    """A check that no planted leak sets off could be empty."""
    found = [found_by for _, found_by in PLANTED.values()] + [set(found_by) for _, found_by in PLANTED_CODES.values()]
    elsewhere = {"event_after_code", "immortal_time", "row_density", "events_by_level", "filled_backwards"}
    assert {check.name for check in CHECKS} == set().union(*found) | elsewhere


def test_a_run_holds_no_code_of_a_few_people(tmp_path: Path) -> None:
    """Canaries: codes, types and static codes of training and held-out people."""
    rows, people = hospital_rows(subjects=60), [FIRST_ID, FIRST_ID + 1, FIRST_ID + 4]
    rows += [Row(who, rows[-1].time, f"CANARY-{who}//1") for who in people]
    rows += [Row(who, rows[-1].time, f"DX//CANARY-{who}", 7.5) for who in people] * 9
    rows += [Row(FIRST_ID + 4, None, "[CANARY]")]
    run = assemble(make_set(tmp_path, rows), tmp_path / "run")
    assert verdicts(run)["single_people"] == "passed"
    files = [path for path in run.rglob("*") if path.is_file()]
    assert len(files) > 4
    assert not [path.name for path in files if b"CANARY" in path.read_bytes()]


@pytest.mark.parametrize("architecture", ["hierarchical", pytest.param("flat", marks=pytest.mark.slow)])
def test_the_honest_hospital_passes_every_check(architecture: str, honest: Path, tmp_path: Path) -> None:
    run = assemble(honest, tmp_path / "run", f"model.architecture={architecture}")
    assert set(verdicts(run).values()) == {"passed"}
    assert str(FIRST_ID)[:5] not in (run / "audit.json").read_text()  # nobody's id
