"""`ehrseq train --init`: what learns, and what is refused."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from ehrsequencing.api.evaluate import report_outcomes
from ehrsequencing.audit.audit import audit
from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.cli.app import app
from ehrsequencing.config import EvaluationConfig, ModelConfig, OutcomesConfig, StudyConfig, TaskConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json
from ehrsequencing.evaluation.outcome_table import OutcomeRows, evaluate_outcomes
from ehrsequencing.evaluation.results import place_in_run
from ehrsequencing.models.ensemble import build_model
from ehrsequencing.models.hazards import cumulative_incidence
from ehrsequencing.models.outcomes import OutcomeHead
from ehrsequencing.prediction.predict import Request
from ehrsequencing.prediction.predict_some import predict_outcomes
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.reporting.pages import outcome_lines
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.pretraining.pretrain import Pretrainer
from ehrsequencing.training.transfer import MATCHES, Pretrained, match_vocabularies
from helpers.training import NetworkTrainer as Trainer
from helpers.visits import vocabulary_of

SHORT = ("training.epochs=1", "training.min_steps=2", "training.recalibration=0", "training.blend=false")


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
    return sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)


def test_only_what_was_copied_is_frozen(sim_prepared: Path, source: Path) -> None:
    """A third layer above two copied ones learns all of its weights, whatever the mode."""
    frozen, full = (start(sim_prepared, source, "model.layers=3", f"transfer.mode={m}") for m in ("frozen", "full"))
    assert learned(frozen) < learned(full)
    learns = {name: p.requires_grad for name, p in frozen.model.named_parameters()}
    assert learns["timeline.layers.2.qkv.weight"]
    assert learns["timeline.layers.2.W1.bias"]
    assert not learns["timeline.layers.1.qkv.weight"]
    assert not learns["timeline.layers.1.qkv.bias"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["model.architecture=flat"], "which a training from it keeps"),
        (["model.dim=32"], "has model.dim=16"),
    ],
)
def test_settings_that_do_nothing_are_refused(settings: list[str], told: str, sim_prepared: Path, source: Path) -> None:
    with pytest.raises(EhrseqError, match=told):
        start(sim_prepared, source, *settings)


def test_transfer_needs_a_model(sim_prepared: Path, tmp_path: Path) -> None:
    def told(*arguments: str) -> str:
        found = CliRunner().invoke(app, ["train", str(sim_prepared), "--out", str(tmp_path / "no"), *arguments])
        assert found.exit_code == 2
        return " ".join(found.output.split())

    assert "transfer.mode: needs a model to start from" in told("transfer.mode=frozen")
    file = tmp_path / "study.yaml"
    file.write_text("transfer: {mode: frozen}\n")
    assert "transfer.mode: needs a model to start from" in told("--config", str(file))


def test_each_code_is_found_by_the_first_rule_that_applies() -> None:
    codes, kinds = ("DX//A", "DX//A1", "LAB//X", "RX//NEW", "ZZ//LOST"), ("DX", "LAB", "RX")
    ours = vocabulary_of(*codes, kinds=(*kinds, "ZZ"), numeric=("LAB//X",), carry=True)
    theirs = vocabulary_of("DX//A", "DX//UP", "LAB//Y", "RX//OLD", kinds=kinds, numeric=("LAB//Y",), carry=True)
    parents = {"DX//A": ["DX//UP"], "DX//A1": ["DX//MID"], "DX//MID": ["DX//UP"], "LAB//X": ["LAB//Y"]}
    match = match_vocabularies(ours, theirs, parents=parents)
    names = {
        name: (theirs.tokens[match.source[token]] if match.source[token] >= 0 else None, MATCHES[match.how[token]])
        for token, name in enumerate(ours.tokens)
    }
    assert names["DX//A"] == ("DX//A", "name")
    assert names["DX//A1"] == ("DX//UP", "ancestor")
    assert names["LAB//X//Q2"] == ("LAB//Y//Q2", "ancestor")
    assert names["LAST//LAB//X"] == ("LAST//LAB//Y", "ancestor")
    assert names["RX//NEW"] == (None, "none")
    assert names["[UNK//RX]"] == ("[UNK//RX]", "name")
    assert names["[UNK//ZZ]"] == (None, "none")
    weight = np.zeros(len(ours), dtype=np.int64)
    weight[[ours.index["DX//A"], ours.index["ZZ//LOST"]]] = 3, 1
    overlap = match.overlap(ours, weight)
    assert (overlap["name"], overlap["none"]["share"]) == ({"codes": 1, "share": 0.75}, 0.25)
    assert sum(each["codes"] for each in overlap.values()) == 5


# ---- a run with many outcomes: trained, resumed, loaded, asked, evaluated and audited --------------------------------


TINY = (
    *("model.dim=16", "model.heads=2", "model.layers=1", "training.grid_bins=4"),
    *("training.epochs=3", "training.min_steps=6", "training.checkpoint_seconds=0"),
    *("training.learning_rate=0.01", "training.warmup_steps=1", "training.masked_codes=0"),
)


@pytest.fixture(scope="module")
def asked(sim_data: Path, sim_task: TaskConfig, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Every code with an event in 30 training subjects."""
    out = tmp_path_factory.mktemp("outcomes") / "set"
    outcomes = OutcomesConfig(codes=("*",), min_subjects=30)
    prepare(sim_data, out, study=load_study(None), tasks=[sim_task.model_copy(update={"outcomes": outcomes})])
    return Prepared(out)


@pytest.fixture(scope="module")
def study() -> StudyConfig:
    return load_study(None, TINY)


@pytest.fixture(scope="module")
def outcome_run(asked: Prepared, study: StudyConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("outcomes") / "run"
    Trainer(asked, "simulated", out, study=study).fit()
    return out


def test_an_ensemble_with_outcomes_is_refused_by_name(asked: Prepared) -> None:
    with pytest.raises(EhrseqError, match=r"training.members: every outcome is asked of one network"):
        Plan.of(asked, "simulated", load_study(None, [*TINY, "training.members=2"]))
    with pytest.raises(EhrseqError, match=r"ModelConfig\.members: every outcome"):  # a run of 2.0
        build_model(ModelConfig(members=2, outcomes=3))


def test_training_learns_every_outcome(asked: Prepared, study: StudyConfig, outcome_run: Path, tmp_path: Path) -> None:
    """The tuning NLL is that of all outcomes together, and falls from that of the training rates."""
    trainer = Trainer(asked, "simulated", tmp_path / "fresh", study=study)
    at_rates = trainer.objective.tuning_nll(trainer.model)
    trained = Run(outcome_run)
    assert trainer.objective.tuning_nll(trained.model) < at_rates
    assert trained.outcomes == asked.outcomes("simulated")
    records = asked.outcome_records("simulated", "tuning")
    step = SubjectLoader.of_model(trained.model.config, records).collate(np.arange(5))
    alone = SubjectLoader.of_model(trained.model.config, asked.records("simulated", "tuning")).collate(np.arange(5))
    with torch.no_grad():
        both, causes = trained.model.nll(step.batch), trained.model.nll(alone.batch)
    assert bool((both != causes)[step.positions].all()), "labels of outcomes add to the likelihood of the causes"


def test_a_run_with_outcomes_can_start_one_without(
    outcome_run: Path, sim_prepared: Path, asked: Prepared, study: StudyConfig, tmp_path: Path
) -> None:
    """The outcomes are the data's; their head stays behind, and a new one starts at the training rates."""
    source = Pretrained(outcome_run)
    alone = Trainer(Prepared(sim_prepared), "simulated", tmp_path / "run", study=study, init=source)
    assert alone.config.outcomes == 0
    again = Trainer(asked, "simulated", tmp_path / "again", study=study, init=source)
    fresh = Trainer(asked, "simulated", tmp_path / "fresh", study=study)
    for head in (again.model.outcomes, fresh.model.outcomes):
        assert isinstance(head, OutcomeHead)
    assert torch.equal(again.model.outcomes.bias, fresh.model.outcomes.bias)
    assert not torch.equal(again.model.outcomes.vectors.weight, source.model.outcomes.vectors.weight)


def test_predictions_are_the_incidence_of_each_code_against_the_causes(
    asked: Prepared, sim_data: Path, outcome_run: Path, tmp_path: Path
) -> None:
    """For one code: the formula of any two causes, at every prediction time before the code's first record."""
    run, out = Run(outcome_run), tmp_path / "risks.parquet"
    code = run.outcomes[1]
    predict_outcomes(outcome_run, sim_data, out, Request(horizons_days=[365.25]), outcomes=[code])
    table = pq.read_table(out)
    assert set(table["cause"].to_pylist()) == {code}
    times = table["prediction_time"].cast("int64").to_pylist()
    found = dict(zip(zip(table["subject_id"].to_pylist(), times, strict=True), table["risk"].to_pylist(), strict=True))
    records = asked.outcome_records("simulated", "held_out")
    assert records.outcomes is not None
    assert run.model.outcomes is not None
    first = {}
    for s, subject in enumerate(records.timelines.subject_id.tolist()):
        own = slice(*records.outcomes.outcome_offsets[s : s + 2].tolist())
        at = records.outcomes.outcome_us[own][records.outcomes.outcome_codes[own] == 1]
        first[subject] = int(at[0]) if len(at) else None
    step = SubjectLoader.of_model(run.model.config, records).collate(np.arange(len(records.timelines)))
    with torch.no_grad():
        _, z = run.model.states(step.batch)
        logits = torch.cat([run.model.outcomes.log_hazards(z)[:, 1:2], run.model(step.batch)], 1)
        risk = cumulative_incidence(logits, run.model.config.edges_days, horizons_days=[365.25])[:, 0, 0]
    asked_of = 0
    for row, position in zip(step.rows.tolist(), step.positions.tolist(), strict=True):
        subject, moment = int(records.subject_id[row]), int(records.rows.prediction_us[row])
        onset = first[subject]
        if onset is not None and onset <= moment:
            assert (subject, moment) not in found, "who has the code already is not at risk"
        else:
            assert found[subject, moment] == pytest.approx(float(risk[position]), rel=1e-4)
            asked_of += 1
    assert asked_of > 20


def test_top_outcomes_are_the_highest_of_all(sim_data: Path, outcome_run: Path, tmp_path: Path) -> None:
    every, top = tmp_path / "all.parquet", tmp_path / "top.parquet"
    predict_outcomes(outcome_run, sim_data, every, Request(at="last", horizons_days=[365.25]), outcomes=["*"])
    predict_outcomes(outcome_run, sim_data, top, Request(at="last", horizons_days=[365.25]), top=3)
    risks: dict[int, list[float]] = {}
    for subject, risk in zip(*(pq.read_table(every)[name].to_pylist() for name in ("subject_id", "risk")), strict=True):
        risks.setdefault(subject, []).append(risk)
    best: dict[int, list[float]] = {}
    for subject, risk in zip(*(pq.read_table(top)[name].to_pylist() for name in ("subject_id", "risk")), strict=True):
        best.setdefault(subject, []).append(risk)
    assert best == {subject: sorted(found, reverse=True)[:3] for subject, found in risks.items()}


def test_an_unknown_outcome_is_refused_with_those_that_come_close(
    sim_data: Path, sim_run: Path, outcome_run: Path, tmp_path: Path
) -> None:
    code = Run(outcome_run).outcomes[0]
    with pytest.raises(EhrseqError, match="outcomes that come close"):
        predict_outcomes(outcome_run, sim_data, tmp_path / "x.parquet", Request(), outcomes=[code + "x"])
    with pytest.raises(EhrseqError, match="predicts no outcomes"):
        predict_outcomes(sim_run, sim_data, tmp_path / "x.parquet", Request(), top=3)


def test_the_page_and_the_audit(outcome_run: Path) -> None:
    """Rare outcomes are pooled, so that no number on the page is of few; no check of the audit finds a leak."""
    settings = EvaluationConfig(bootstrap=10)
    told = report_outcomes(outcome_run, split="train", prepared=None, settings=settings, progress=lambda *_: None)
    assert told is not None
    assert any("outcomes with 50 events or more" in line for line in outcome_lines(told))
    place = outcome_run / place_in_run("train")
    found = read_json(place / "outcome-metrics.json")
    assert found["outcomes"]
    assert all(row["events"] >= 50 for row in found["outcomes"])
    assert found["pooled"]["outcomes"] + len(found["outcomes"]) == len(Run(outcome_run).outcomes)
    for row in found["outcomes"]:
        for name in ("auc", "c", "oe"):
            one = row[name]
            assert one["low"] is None or one["low"] <= one["value"] <= one["high"]
    page = (place / "outcomes.html").read_text(encoding="utf-8")
    assert all(row["code"] in page for row in found["outcomes"])
    verdicts = {check["name"]: check["verdict"] for check in audit(outcome_run, subjects=20)["checks"]}
    assert verdicts["labels_in_records"] == verdicts["future_perturbation"] == "passed"
    assert "leak" not in verdicts.values()


@dataclass
class AskedRow:
    """One prediction time."""

    number: int
    moment_us: int
    stop_days: float
    stratum: str
    is_landmark: bool
    hazards: list[float]
    near_risk: float


@dataclass
class Person:
    """One subject with its prediction times and the first record of the outcome."""

    subject: int
    rows: list[AskedRow]
    onset_us: int | None


def loops(run: Run, records: TaskRecords, number: int) -> list[Person]:
    """Everybody with a prediction time."""
    assert run.model.outcomes is not None
    assert records.outcomes is not None
    rows, timelines = records.rows, records.timelines
    step = SubjectLoader.of_model(run.model.config, records).collate(np.arange(len(timelines)))
    with torch.no_grad():
        _, z = run.model.states(step.batch)
        own = run.model.outcomes.log_hazards(z)[:, number : number + 1]
        logits, near = torch.cat([own, run.model(step.batch)], 1), run.task.horizons[0]
        risk = cumulative_incidence(logits, run.model.config.edges_days, horizons_days=[near])[:, 0, 0]
    position = dict(zip(step.rows.tolist(), step.positions.tolist(), strict=True))
    people = []
    for s, subject in enumerate(timelines.subject_id.tolist()):
        static = timelines.static_codes[slice(*timelines.static_offsets[s : s + 2].tolist())]
        names = [run.vocabulary.tokens[token] for token in static.tolist()]
        sex = next((name for name in sorted(names) if name.upper().startswith(("GENDER", "SEX"))), "")
        events = slice(*records.outcomes.outcome_offsets[s : s + 2].tolist())
        at = records.outcomes.outcome_us[events][records.outcomes.outcome_codes[events] == number]
        own_rows = [
            AskedRow(
                number=r,
                moment_us=int(rows.prediction_us[r]),
                stop_days=float(rows.duration_days[r]),
                stratum=f"{sex} {int(rows.age_years[r] // 5)}",
                is_landmark=any(r in records.at_landmark(days).tolist() for days in run.task.landmarks),
                hazards=own[position[r], 0].exp().tolist(),
                near_risk=float(risk[position[r]]),
            )
            for r in range(int(rows.row_offsets[s]), int(rows.row_offsets[s + 1]))
        ]
        if own_rows:
            people.append(Person(subject, own_rows, int(at[0]) if len(at) else None))
    return people


def control_rows(run: Run, prepared: Prepared, *, seed: int) -> set[int]:
    """The rows at which controls are asked about: random ones, so they cannot be found by a loop."""
    return set(OutcomeRows(run, prepared, "train", EvaluationConfig(bootstrap=0, seed=seed)).control_rows.tolist())


def test_numbers_of_the_table_are_those_of_loops(outcome_run: Path, asked: Prepared) -> None:
    """Events, O/E and AUC of the most frequent outcome, person by person and pair by pair."""
    run, task = Run(outcome_run), asked.task("simulated")
    settings = EvaluationConfig(bootstrap=0, seed=3)
    table = evaluate_outcomes(run, asked, split="train", settings=settings)
    line = max(table["outcomes"], key=lambda row: int(row["events"]))
    number, far = run.outcomes.index(line["code"]), task.horizons[-1]
    people = loops(run, asked.outcome_records("simulated", "train"), number)
    seen, expected, who = 0, 0.0, set[int]()
    for person in people:
        for row in person.rows:
            onset = person.onset_us
            if not row.is_landmark or (onset is not None and onset <= row.moment_us):
                continue
            days = np.inf if onset is None else (onset - row.moment_us) / DAY_US
            until = min(days, row.stop_days, far)
            if days <= min(row.stop_days, far):
                seen, who = seen + 1, who | {person.subject}
            edges = [0.0, *run.model.config.edges_days, np.inf]
            for k, hazard in enumerate(row.hazards):
                expected += hazard * max(0.0, min(until, edges[k + 1]) - edges[k])
    assert line["events"] == len(who)
    assert line["oe"]["value"] == pytest.approx(seen / expected, abs=1e-4)

    controls = control_rows(run, asked, seed=3)
    cases, others = dict[str, list[float]](), dict[str, list[float]]()
    for person in people:
        onset, first = person.onset_us, person.rows[0]
        end_us = first.moment_us + first.stop_days * DAY_US
        if onset is not None and first.moment_us < onset <= end_us:
            early = [row for row in person.rows if row.moment_us <= onset - 36.5 * DAY_US]
            if early:
                cases.setdefault(early[-1].stratum, []).append(early[-1].near_risk)
        elif onset is None or onset > end_us:
            for row in person.rows:
                if row.number in controls:
                    others.setdefault(row.stratum, []).append(row.near_risk)
    aucs = [
        np.mean([(a > b) + 0.5 * (a == b) for a in cases[stratum] for b in others[stratum]])
        for stratum in cases.keys() & others.keys()
    ]
    assert len(aucs) > 3
    assert line["auc"]["value"] == pytest.approx(float(np.mean(aucs)), abs=1e-3)
