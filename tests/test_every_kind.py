"""Every model, and every command that makes or reads a run, on records of every kind: what they answer.

Sixty people and one epoch a training. A command that ends in exit code 3 fails its test by itself (conftest.py).
"""

import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from ehrsequencing.audit.audit import CHECKS
from ehrsequencing.audit.data import AuditData
from ehrsequencing.config import load_study, load_task
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import load_model
from ehrsequencing.prediction.predict import Request, predict
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.codes import read_parents
from ehrsequencing.records.meds import SPLITS as AUDITED, find_shards
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.reporting.report import render
from ehrsequencing.training.transfer import Pretrained
from helpers.command_line import ehrseq, refused
from helpers.kinds import KINDS, rows_of, write_kind, write_tasks
from helpers.meds import Row, write_meds
from helpers.training import NetworkTrainer, NetworkTrainer as Trainer
from reference.records import Records

SMALL = ("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=1", "training.min_steps=2")
ALONE = (*SMALL, "training.blend=false", "training.distillation=0")
ROWS: dict[str, tuple[str, ...]] = {
    **{
        name: (*ALONE, f"model.visit_encoder={name}")
        for name in ("attention", "bottleneck", "mean", "transformer", "sum", "scaled_sum", "max")
    },
    "flat": (*ALONE, "model.architecture=flat"),
    "visit_head": (*ALONE, "model.head=visit"),
    "members": (*ALONE, "training.members=2"),
    "no_network": ("training.network=false",),
    "blend": SMALL,
}
SOURCES = {
    "pretrained": ("pretrain", *ALONE),
    "pretrained_flat": ("pretrain", *ALONE, "model.architecture=flat"),
    "pretrained_on_codes": ("pretrain", *ALONE, "pretraining.objectives=[masked_codes]"),
    "pretrained_on_times": ("pretrain", *ALONE, "pretraining.objectives=[time_to_code]"),
    "run": ("train", *ALONE),
}
QUICK_SOURCES = ("pretrained", "pretrained_flat", "run")  # both objectives; each alone on the shared sets
NEW_PEOPLE = {"first": 1001, "seed": 1}
KEY = ["subject_id", "prediction_time", "cause", "horizon_days"]
SHARED_SETS = {
    "pbc2": (),
    "nafld": (),
    "physionet2012": ("visits.by=window", "visits.window=1h"),
    "delphi_sim": (),
    "mimic4_demo": (),
}


def done(*arguments: object) -> None:
    result = ehrseq(*arguments, "--quiet")
    assert result.exit_code == 0, (arguments, result.stderr)


class Kind:
    """Records of one kind, prepared, and the runs that tests share."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.data = write_kind(folder / "meds", name)
        self.new = write_kind(folder / "new", name, **NEW_PEOPLE)
        self.task, alone = write_tasks(folder)
        self.prepared = folder / "prepared"
        done("prepare", self.data, "--out", self.prepared, "--task", self.task, "--task", alone)
        self.run = cache(self._run)
        self.source = cache(self._source)
        self.risks = cache(self._risks)

    def _run(self, row: str) -> Path:
        task = "alone" if row == "visit_head" else "both"
        done("train", self.prepared, "--task", task, "--out", self.folder / row, *ROWS[row])
        return self.folder / row

    def _source(self, name: str) -> Path:
        command, *settings = SOURCES[name]
        done(command, self.prepared, "--task", "both", "--out", self.folder / name, *settings)
        return self.folder / name

    def _risks(self, row: str) -> pd.DataFrame:
        return answered(self.run(row), self.new, self.folder / f"{row}.parquet")

    def cut(self) -> Path:
        """The new people's records as they stood at the end of each one's first visit."""
        folder = self.folder / "cut"
        if not folder.exists():
            rows = rows_of(self.name, **NEW_PEOPLE)
            first = {row.subject: row.time for row in reversed(rows) if _is_of_a_visit(row.code)}
            known = [row for row in rows if row.time is None or row.time <= first[row.subject]]
            write_meds(folder, known, splits=dict.fromkeys(first, "held_out"))
        return folder


def _is_of_a_visit(code: str) -> bool:
    return code.startswith(("DX//", "LAB//")) and code != "DX//OUT"


def predicted(run: Path, data: Path, out: Path, *options: str) -> pd.DataFrame:
    done("predict", run, data, "--out", out, *options)
    return pd.read_parquet(out)


def answered(run: Path, data: Path, out: Path, at: str = "all") -> pd.DataFrame:
    """What the command writes, without the list's page and its reasons."""
    predict(run, data, out, Request(at=at))
    return pd.read_parquet(out)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    torch.set_num_threads(1)
    return Kind(tmp_path_factory.mktemp(request.param), request.param)


def require_risks(risks: pd.DataFrame) -> None:
    """Finite, within 0 and 1, growing with the horizon, and causes that sum to one at most; not all people alike."""
    assert len(risks)
    assert risks["risk"].between(0.0, 1.0).all()
    assert risks["risk"].nunique() > 1
    if risks["horizon_days"].isna().all():
        return  # the visit head: before the next visit
    wide = risks.pivot(index=KEY[:3], columns="horizon_days", values="risk").to_numpy()
    assert np.all(np.diff(wide, axis=1) >= 0)
    assert risks.groupby(["subject_id", "prediction_time", "horizon_days"])["risk"].sum().max() <= 1 + 1e-6


@pytest.mark.parametrize("row", ROWS)
def test_each_model_answers_with_risks_that_the_future_does_not_move(kind: Kind, row: str) -> None:
    risks = kind.risks(row)
    require_risks(risks)
    cut = answered(kind.run(row), kind.cut(), kind.folder / f"{row}_cut.parquet")
    both = risks.merge(cut, on=KEY, suffixes=("", "_cut"))
    assert both["subject_id"].nunique() >= 50
    np.testing.assert_allclose(both["risk"], both["risk_cut"], atol=1e-5)


def code_tables(model: SurvivalModel) -> dict[str, torch.Tensor]:
    return {
        name: tensor.detach()
        for name, tensor in model.named_parameters()
        if name.endswith((".table.weight", ".value_table.weight"))
        and name.startswith(("code_embedding.", "encoder.embedding.code."))
    }


@pytest.mark.parametrize("mode", ["full", "frozen"])
@pytest.mark.parametrize("source", QUICK_SOURCES)
def test_a_transfer_starts_from_the_rows_of_its_source(kind: Kind, source: str, mode: str, tmp_path: Path) -> None:
    """All codes are the same here, so that each row of a code is that of the source; frozen ones stay so to the end."""
    origin = kind.source(source)
    settings = ("training.epochs=1", "training.min_steps=2", "training.blend=false", "training.distillation=0")
    study = load_study(None, [*settings, f"transfer.mode={mode}"])
    started = NetworkTrainer(
        Prepared(kind.prepared), "both", tmp_path / "no", study=study, init=Pretrained(origin)
    ).model
    done(
        "train",
        kind.prepared,
        "--task",
        "both",
        "--init",
        origin,
        "--out",
        tmp_path / "run",
        *settings,
        f"transfer.mode={mode}",
    )
    vocabulary = Prepared(kind.prepared).vocabulary
    codes = list(vocabulary.index.values())
    theirs = code_tables(load_model(origin))
    assert theirs
    for model, is_equal in ((started, True), (Run(tmp_path / "run").model, mode == "frozen")):
        for name, table in code_tables(model).items():
            terms = len(table) // len(vocabulary)
            rows = (
                table.reshape(len(vocabulary), terms, -1)[codes],
                theirs[name].reshape(len(vocabulary), terms, -1)[codes],
            )
            assert torch.equal(*rows) == is_equal or (not is_equal and "value_table" in name)
    require_risks(answered(tmp_path / "run", kind.new, tmp_path / "risks.parquet"))


def numbers_of(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from numbers_of(inner)
    elif isinstance(value, float):
        yield value


@pytest.mark.parametrize("row", ["blend", "no_network", "visit_head"])
def test_every_command_that_reads_a_run(kind: Kind, row: str, tmp_path: Path) -> None:
    run, risks = kind.run(row), kind.risks(row)
    has_horizons = row != "visit_head"
    done("audit", run)
    done("drift", run, kind.new)
    pd.testing.assert_frame_equal(predicted(run, kind.new, tmp_path / "risks.parquet"), risks)
    for at in ("last", "index"):
        some = answered(run, kind.new, tmp_path / f"{at}.parquet", at)
        same = risks.merge(some, on=KEY, suffixes=("", "_at"))
        assert len(same) == len(some) or at == "last"  # the newest moment may be no visit's end
        np.testing.assert_allclose(same["risk"], same["risk_at"], atol=1e-6)
    done("explain", run, kind.new, "--subject", NEW_PEOPLE["first"])
    done("export", run, "--format", "share", "--out", tmp_path / "share")
    shared = answered(tmp_path / "share", kind.new, tmp_path / "shared.parquet")
    np.testing.assert_array_equal(shared["risk"], risks["risk"])
    if not has_horizons:
        assert "visit head" in refused("evaluate", run)
        return
    done("evaluate", run, "evaluation.bootstrap=10")
    assert all(map(math.isfinite, numbers_of(json.loads((run / "metrics.json").read_text()))))
    done("explore", run, kind.new, "--out", tmp_path / "explorer.html")
    done("update", run, kind.new, "--task", kind.task, "--out", tmp_path / "updated")
    require_risks(answered(tmp_path / "updated", kind.new, tmp_path / "updated.parquet"))
    if row == "blend":
        done("compare", run, kind.run("mean"))
        done("score", kind.folder / "blend.parquet", kind.new, "--task", kind.task, "--out", tmp_path / "score")


def test_every_outcome_of_one_model(kind: Kind, tmp_path: Path) -> None:
    task = tmp_path / "all.yaml"
    text = kind.task.read_text().replace("name: both", "name: all").replace("event: DX//OUT", "death: MEDS_DEATH")
    lines = [line for line in text.splitlines() if not line.startswith("competing")]
    task.write_text("\n".join([*lines, "outcomes: {codes: '*', min_subjects: 5}"]))
    done("prepare", kind.data, "--out", tmp_path / "prepared", "--task", task)
    done("train", tmp_path / "prepared", "--out", tmp_path / "run", *SMALL)
    done("evaluate", tmp_path / "run", "evaluation.bootstrap=10")
    risks = predicted(tmp_path / "run", kind.new, tmp_path / "risks.parquet", "--outcome", "DX//OUT")
    require_risks(risks)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARED_SETS)
def test_the_models_on_shared_sets(name: str, real_data: Path, tmp_path: Path) -> None:
    """The same, on records of real people (and published simulated lives): each model, a transfer, each command."""
    torch.set_num_threads(1)
    data = real_data / f"{name}_meds"
    task = load_task(Path(__file__).parents[1] / "examples" / "tasks" / f"{name}.yaml")
    study = load_study(None, list(SHARED_SETS[name]))
    prepared = tmp_path / "prepared"
    prepare(data, prepared, study=study, tasks=[task])
    some = few_people(data, tmp_path / "some")
    for row, settings in ROWS.items():
        if row == "visit_head" and len(task.causes) > 1:
            continue
        done("train", prepared, "--out", tmp_path / row, *settings)
        require_risks(predicted(tmp_path / row, some, tmp_path / f"{row}.parquet"))
    for source, (command, *settings) in SOURCES.items():
        done(command, prepared, "--task", task.name, "--out", tmp_path / source, *settings)
        for mode in ("full", "frozen"):
            run = tmp_path / f"{source}_{mode}"
            done("train", prepared, "--init", tmp_path / source, "--out", run, *ALONE[3:], f"transfer.mode={mode}")
            require_risks(predicted(run, some, run.with_suffix(".parquet")))
    subject = int(pd.read_parquet(tmp_path / "blend.parquet")["subject_id"].iloc[0])
    for row in ("blend", "no_network"):
        done("evaluate", tmp_path / row, "evaluation.bootstrap=10")
        assert ehrseq("audit", tmp_path / row, "--quiet").exit_code in (0, 1)
        assert ehrseq("drift", tmp_path / row, some, "--quiet").exit_code in (0, 4)
        done("explain", tmp_path / row, some, "--subject", subject)
        done("explore", tmp_path / row, some, "--out", tmp_path / f"{row}_explorer.html")
        done("export", tmp_path / row, "--format", "share", "--out", tmp_path / f"{row}_share")


def few_people(data: Path, out: Path) -> Path:
    """The first 300 people of a set, or as many as have 60,000 rows: MIMIC's have ten thousand each."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    tables = [pq.read_table(path) for path in sorted(data.glob("data/**/*.parquet"))]
    rows = pa.concat_tables(tables, promote_options="permissive")
    counts = pc.value_counts(rows["subject_id"])
    n_people = int(np.searchsorted(np.cumsum(counts.field("counts")), 60_000))
    people = counts.field("values")[: min(n_people, 300)]
    (out / "data").mkdir(parents=True)
    (out / "metadata").mkdir()
    pq.write_table(rows.filter(pc.is_in(rows["subject_id"], people)), out / "data" / "0.parquet")
    for file in ("dataset.json", "codes.parquet"):
        if (data / "metadata" / file).exists():
            (out / "metadata" / file).write_bytes((data / "metadata" / file).read_bytes())
    return out


# ---- real records, end to end ----------------------------------------------------------------------------------------


TASKS = Path(__file__).parents[1] / "examples" / "tasks"
# Subjects, prediction times, and subjects with the event; the slow test below counts them again by plain loops.
COUNTS = {
    "nafld": ([], 14051, 82748, 1080),
    "pbc2": ([], 312, 2682, 140),
    "physionet2012": (["visits.by=window", "visits.window=1h"], 3911, 3911, 957),
    "mimic4_demo": ([], 95, 2356, 26),
}
#: Checks of the audit for which a set has too few people or frequent inputs.
UNTESTABLE = {"physionet2012": {"leaving", "filled_backwards"}, "mimic4_demo": {"leaving", "static_codes"}}


@pytest.fixture(scope="module", params=COUNTS)
def prepared(request: pytest.FixtureRequest, real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    name = request.param
    out = tmp_path_factory.mktemp("real") / name
    prepare(
        real_data / f"{name}_meds",
        out,
        study=load_study(None, COUNTS[name][0]),
        tasks=[load_task(TASKS / f"{name}.yaml")],
    )
    return Prepared(out)


def test_cohorts_have_the_known_counts(prepared: Prepared) -> None:
    name = prepared.only_task()
    _, subjects, times, events = COUNTS[name]
    attrition = prepared.attrition(name)
    cohort = pq.read_table(prepared.folder / "tasks" / name / "cohort.parquet")
    assert attrition["steps"][-1]["subjects"] == subjects
    assert len(cohort) == attrition["prediction_times"] == times
    assert attrition["events"][prepared.task(name).causes[0]] == events
    assert np.all(cohort["duration_days"].to_numpy() > 0)


@pytest.mark.slow
def test_cohorts_are_those_of_plain_loops(prepared: Prepared, real_data: Path) -> None:
    """Every label of every real prediction time, against the brute-force reference."""
    name = prepared.only_task()
    task, parents = prepared.task(name), read_parents(real_data / f"{name}_meds")
    rows = []
    for shard in find_shards(real_data / f"{name}_meds"):
        table = pq.read_table(shard, columns=["subject_id", "time", "code", "numeric_value"])
        times = table["time"].cast("int64").to_pylist()
        columns = [table[c].to_pylist() for c in ("subject_id", "code", "numeric_value")]
        rows += [Row(s, t, c, v) for s, t, c, v in zip(columns[0], times, *columns[1:], strict=True)]
    records = Records(rows, [task], prepared.study.visits, parents=parents)
    expected = {(row.subject, row.prediction_us): row for row in records.cohort(task)}
    cohort = pq.read_table(prepared.folder / "tasks" / name / "cohort.parquet")
    found = zip(
        *(cohort[c].cast("int64").to_pylist() for c in ("subject_id", "prediction_time", "index_time")),
        *(cohort[c].to_pylist() for c in ("kind", "duration_days", "cause")),
        strict=True,
    )
    assert len(cohort) == len(expected)
    for subject, moment, index, kind, duration, cause in found:
        row = expected[subject, moment]
        assert (row.index_us, row.kind, row.cause) == (index, kind, cause)
        assert row.duration_days == pytest.approx(duration, abs=1e-9)


@pytest.mark.parametrize("prepared", ["mimic4_demo"], indirect=True)
def test_mimic_asks_nobody_after_the_discharge_as_died(prepared: Prepared) -> None:
    """It is stamped up to a day before the death, which has a date alone: whoever sees it knows the outcome."""
    died = prepared.vocabulary.index["HOSPITAL_DISCHARGE//DIED"]
    for split in AUDITED:
        records = prepared.records("mimic4_demo", split)
        first, seen = records.timelines.subject_offsets[records.rows.subject], records.rows.visits_before
        has_it = np.r_[0, np.cumsum(records.timelines.codes == died)][records.timelines.visit_offsets]
        assert not np.any(has_it[first + seen] > has_it[first])


@pytest.mark.parametrize(
    "prepared",
    ["pbc2", *(pytest.param(name, marks=pytest.mark.slow) for name in COUNTS if name != "pbc2")],
    indirect=True,
)
def test_the_whole_way_to_a_report(prepared: Prepared, real_data: Path, tmp_path: Path) -> None:
    """Few steps of a tiny model: that it runs, not how good it is."""
    name = prepared.only_task()
    tiny = [
        "model.dim=16",
        "model.heads=2",
        "model.layers=1",
        "training.epochs=1",
        "training.visit_budget=8192",
        "training.blend=false",
    ]
    Trainer(prepared, name, tmp_path / "run", study=load_study(None, tiny)).fit()
    audited = AuditData(Run(tmp_path / "run"), prepared, split="held_out", subjects=5, seed=0)
    audited.read_source(None)
    found = {check.name: check.make(audited).verdict for check in CHECKS}
    not_tested = {name for name, verdict in found.items() if verdict == "not_tested"}
    assert not_tested == UNTESTABLE.get(name, set())
    assert found.pop("event_after_code") in ("passed", "warning")  # NAFLD's cardiac arrests stand before deaths
    assert {verdict for check, verdict in found.items() if check not in not_tested} == {"passed"}
    settings = load_study(None, ["evaluation.bootstrap=10", "evaluation.baselines=none"]).evaluation
    metrics = evaluate(tmp_path / "run", settings=settings)
    assert json.loads((tmp_path / "run" / "metrics-individual.json").read_text()) == json.loads(json.dumps(metrics))
    assert "</html>" in render(metrics)
    predict(tmp_path / "run", real_data / f"{name}_meds", tmp_path / "p.parquet", Request(at="last"))
    risk = pq.read_table(tmp_path / "p.parquet")["risk"].to_numpy()
    assert np.all((risk >= 0) & (risk <= 1))
