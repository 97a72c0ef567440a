"""No argument is ignored: for each one there is a call whose result it changes, or a reason why it may be silent."""

import hashlib
import inspect
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
import typer.main
import yaml

import ehrsequencing as eh
from ehrsequencing.api.evaluation import EvaluationResult
from ehrsequencing.api.run import TrainedRun
from ehrsequencing.cli.app import app
from ehrsequencing.config import StudyConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.meds import MedsReader
from ehrsequencing.simulate import simulate
from helpers.command_line import ehrseq
from helpers.disclosure import records_of_people
from helpers.settings import TINY
from helpers.simulate import busy_world

SILENT = {
    "progress": "shows a bar",
    "say": "is called with remarks, which the result holds too or which need no answer",
}
OF_ALL_COMMANDS = {
    "as_json",
    "debug",
    "help",
    "help_all",
    "log",
    "quiet",
}  # how a result is printed: tests/cli/test_console.py


# ---- a folder in which every call runs, made anew for each -----------------------------------------------------------


class Place(NamedTuple):
    """What calls are made of: `fresh` is copied before each call, the rest is only read."""

    fresh: Path
    subjects: list[int]


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    """The working directory of before after all calls."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def place(patched: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Place:
    here = tmp_path_factory.mktemp("arguments")
    simulate(here / "simulated", subjects=150, seed=5, config=busy_world(outcome_per_year=0.3, truth_futures=4))
    sim_data = records_of_people(here / "simulated", here / "data")
    fresh = here / "fresh"
    fresh.mkdir()
    study: dict[str, dict[str, Any]] = {"vocabulary": {"min_subjects": 11}}
    for text in TINY:
        name, _, value = text.partition("=")
        section, _, key = name.partition(".")
        study.setdefault(section, {})[key] = yaml.safe_load(value)
    study["evaluation"] = {"bootstrap": 0, "baselines": "none"}
    task = yaml.safe_load((sim_data / "task.yaml").read_text()) | {"horizons": ["1y"]}
    task.pop("main")
    texts = {
        "tiny.yaml": study,
        "dim.yaml": {"model": {"dim": 99}},
        "seed.yaml": {"splits": {"seed": 99}},
        "task.yaml": task,
        "other.yaml": task | {"horizons": ["90d"]},
    }
    for name, content in texts.items():
        (here / name).write_text(yaml.safe_dump(content))
    reader = MedsReader(sim_data)
    subjects = sorted({subject for events in reader for subject in events.subject_id.tolist()})
    rows = eh.read_meds(sim_data, subjects=subjects[::3])
    _write_records(rows, sim_data, here / "meds")
    known = rows.code.str.startswith(tuple(_codes_of(task)))
    _write_records(rows.assign(code=rows.code.where(known, "ELSEWHERE//" + rows.code)), sim_data, here / "strange")
    patched.chdir(fresh)
    made = {part: study.pop(part) for part in ("model", "training", "evaluation")}
    eh.prepare(sim_data, "../task.yaml", out="study/prepared", progress=False, **study)
    eh.fit("study/prepared", out="study/run", progress=False, **made)
    eh.evaluate("study/run", progress=False)
    eh.audit("study/run", subjects=5, progress=False)
    shutil.copytree("study/run", "run")
    eh.fit("study/prepared", out="second", progress=False, seed=1, **made)
    for words in (
        "evaluate run --baselines none evaluation.bootstrap=0",
        "evaluate run --data ../meds --out validation --baselines none evaluation.bootstrap=0",
        f"predict run {sim_data} --out risks.parquet",
        f"predict second {sim_data} --out of-second.parquet",
        f"score risks.parquet {sim_data} --task ../task.yaml --prepared study/prepared --out scored"
        " evaluation.bootstrap=0 --baselines none",
        f"explain run ../meds --subject {subjects[0]} --out why.csv",
        "export run --out shared",
    ):
        done = ehrseq(*words.split())
        assert done.exit_code == 0, done.output
    moments = pd.read_parquet("risks.parquet")[["subject_id", "prediction_time"]].drop_duplicates()
    moments = moments[moments.subject_id.isin(subjects[::3])].assign(boolean_value=True)
    moments.to_parquet(here / "labels.parquet")
    moments.iloc[:5].to_parquet(here / "few.parquet")
    return Place(fresh, subjects)


def _write_records(rows: pd.DataFrame, simulation: Path, out: Path) -> None:
    (out / "data").mkdir(parents=True)
    rows.to_parquet(out / "data" / "0.parquet")
    shutil.copytree(simulation / "metadata", out / "metadata", ignore=shutil.ignore_patterns("subject_splits*"))


def _codes_of(task: Any) -> Iterator[str]:
    """Every text of a task, codes among them, and what births and deaths are called."""
    yield "MEDS_"
    for value in task.values() if isinstance(task, dict) else task:
        if isinstance(value, str):
            yield value.partition("*")[0]
        elif isinstance(value, dict | list):
            yield from _codes_of(value)


def shown(value: Any) -> str:
    """What a function gives back, as text."""
    if isinstance(value, EvaluationResult):
        return json.dumps([value.result, str(value.folder)], default=str)
    if isinstance(value, TrainedRun):
        return str(value.folder)
    return value.to_csv() if isinstance(value, pd.DataFrame) else str(value)


@pytest.fixture(scope="module")
def result_of(place: Place, patched: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Digest of all that a call does: what it gives or says, and every file that it leaves."""
    work = place.fresh.parent / "work"

    @cache
    def result(call: Any) -> str:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(place.fresh, work)
        patched.chdir(work)
        if isinstance(call, str):
            done = ehrseq(*call.format(S=place.subjects[0], T=place.subjects[3]).split())
            assert done.exit_code in (0, 2, 4), done.output
            said = done.output
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    said = shown(call(place.subjects))
                except EhrseqError as error:
                    said = str(error)
        found = [said]
        for path in sorted(work.rglob("*")):
            if path.is_file() and path.name != ".ehrseq-lock":
                found += [str(path.relative_to(work)), hashlib.sha256(path.read_bytes()).hexdigest()]
        return hashlib.sha256(json.dumps(found).encode()).hexdigest()

    return result


# ---- the command line: the call without the argument, and what is added or put in its place --------------------------

E = "evaluate run --baselines none evaluation.bootstrap=0"
S = "score risks.parquet ../data --task ../task.yaml --prepared study/prepared evaluation.bootstrap=0 --baselines none"
C = "compare run second --split train --bootstrap 3"
P = "predict run ../meds --out p.parquet"
X = "explain run ../meds --subject {S}"
M = "export run ../meds --out p.parquet --format meds-dev --labels ../labels.parquet --horizon 30d"
R = "run ../data --task ../task.yaml --out study --config ../tiny.yaml"
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "evaluate": {
        "run": (E, E.replace("run", "second")),
        "overrides": (E, f"{E} evaluation.decision_thresholds=[.1]"),
        "split": (E, f"{E} --split tuning"),
        "prepared": (E, f"{E} --prepared nowhere"),
        "baselines": (E, f"{E} --baselines never"),
        "data": (E, f"{E} --data ../meds"),
        "out": (f"{E} --data ../meds", f"{E} --data ../meds --out there"),
        "overwrite": (f"{E} --data ../meds --out validation", f"{E} --data ../meds --out validation --overwrite"),
        "splits": (E, f"{E} --splits 1"),
        "split_seed": (f"{E} --splits 1", f"{E} --splits 1 --split-seed -1"),
        "walk": (E, f"{E} --walk ward"),
        "redraw": (f"{E} --split tuning", f"{E} --split tuning --redraw"),
        "config": (E, f"{E} --config ../dim.yaml"),
    },
    "score": {
        "predictions": (S, S.replace("risks", "of-second")),
        "data": (S, S.replace("../data", "../meds")),
        "overrides": (S, f"{S} evaluation.decision_thresholds=[.1]"),
        "task": (S, S.replace("../task", "../other")),
        "out": (S, f"{S} --out there"),
        "overwrite": (f"{S} --out scored", f"{S} --out scored --overwrite"),
        "name": (S, f"{S} --name mine"),
        "split": (S, f"{S} --split tuning"),
        "prepared": (S, S.replace("study/prepared", "nowhere")),
        "baselines": (S, f"{S} --baselines never"),
        "config": (S, f"{S} --config ../seed.yaml"),
    },
    "compare": {
        "runs": (C, f"{C} second"),
        "split": (C, C.replace("train", "tuning")),
        "bootstrap": (C, C.replace("3", "4")),
        "pool": ("compare a b --out there", "compare a b --out there --pool"),
        "out": ("compare a b --pool", "compare a b --pool --out there"),
        "ablate": ("compare a --out there", "compare a --out there --ablate model.position=none,learned"),
        "task": ("compare a b", "compare a b --task x"),
        "seeds": ("compare a b", "compare a b --seeds 3"),
        "overwrite": (C, f"{C} --overwrite"),
    },
    "predict": {
        "run": (P, P.replace("run", "second")),
        "data": (P, P.replace("../meds", "../data")),
        "overrides": (P, f"{P} data.extracted=2009-01-01"),
        "out": (P, P.replace("p.parquet", "p.csv")),
        "at": (P, f"{P} --at last"),
        "since": (P, f"{P} --since 2y"),
        "journal": (P, f"{P} --journal nights"),
        "key": (f"{P} --journal nights", f"{P} --journal nights --key other"),
        "horizons": (P, f"{P} --horizons 30d"),
        "outcome": (P, f"{P} --outcome DX//*"),
        "top": (P, f"{P} --top 3"),
        "threshold": (P, f"{P} --threshold 0.9"),
        "strict": (f"{P.replace('meds', 'strange')} --force", f"{P.replace('meds', 'strange')} --force --strict"),
        "force": (P.replace("meds", "strange"), f"{P.replace('meds', 'strange')} --force"),
        "overwrite": (P.replace("p.par", "risks.par"), f"{P.replace('p.par', 'risks.par')} --overwrite"),
        "config": (P, f"{P} --config ../dim.yaml"),
    },
    "explain": {
        "run": (X, X.replace("run", "second")),
        "data": (X, X.replace("../meds", "../strange")),
        "overrides": (X, f"{X} data.extracted=1990-01-01"),
        "subject": (X, X.replace("{S}", "{T}")),
        "horizon": (X, f"{X} --horizon 30d"),
        "cause": (X, f"{X} --cause death"),
        "out": (X, f"{X} --out there.csv"),
        "overwrite": (f"{X} --out why.csv", f"{X} --out why.csv --overwrite"),
        "subjects": ("explain run ../meds --subjects 2", "explain run ../meds --subjects 3"),
        "config": (X, f"{X} --config ../dim.yaml"),
    },
    "export": {
        "run": (M, M.replace("export run", "export second")),
        "data": (M, M.replace("../meds", "../strange")),
        "out": (M, M.replace("p.parquet", "q.parquet")),
        "overwrite": ("export run --out shared", "export run --out shared --overwrite"),
        "format": ("export run --out there", "export run --out there --format meds-dev"),
        "labels": (M, M.replace("labels.", "few.")),
        "cause": (M, f"{M} --cause death"),
        "horizon": (M, M.replace("30d", "90d")),
        "license": ("export run --out there", "export run --out there --license cc-by-nc-4.0"),
    },
    "run": {
        "data": (R, R.replace("../data", "../meds")),
        "overrides": (R, f"{R} model.dim=32"),
        "task": (R, R.replace("../task", "../other")),
        "out": (R, R.replace("--out study", "--out risks.parquet")),
        "config": (R, R.replace("../tiny", "../seed")),
        "quick": (R, f"{R} --quick"),
        "overwrite": (R.replace("../data", "../meds"), R.replace("../data", "../meds --overwrite")),
    },
}


def words_of(command: str) -> set[str]:
    """The arguments of a command."""
    found = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    return {parameter.name for parameter in found}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_argument_of_a_command_changes_a_result(command: str, result_of: Callable[[Any], str]) -> None:
    assert set(COMMANDS[command]) == words_of(command) - OF_ALL_COMMANDS
    for name, (plain, given) in COMMANDS[command].items():
        assert plain != given
        assert result_of(plain) != result_of(given), name


@pytest.mark.parametrize("call", [E, S, C, P, M, R])
def test_the_same_call_gives_the_same_result(call: str, result_of: Callable[[Any], str]) -> None:
    assert result_of(call) == result_of.__wrapped__(call)  # type: ignore[attr-defined]


# ---- Python: the arguments of a call without it, and those that replace or join them ---------------------------------

Arguments = dict[str, Any]
_QUICK: Arguments = {"bootstrap": 0, "baselines": "none", "report": False, "progress": False}
_EVALUATION = {"evaluation": {"bootstrap": 0, "baselines": "none"}}
_ELSEWHERE: Arguments = {"data": "../meds"}
_SCORE: Arguments = {
    "predictions": "risks.parquet",
    "data": "../data",
    "task": "../task.yaml",
    "prepared": "study/prepared",
    "report": False,
    "progress": False,
    **_EVALUATION,
}
_MEDS_DEV: Arguments = {
    "run": "run",
    "out": "p.parquet",
    "data": "../meds",
    "format": "meds-dev",
    "labels": "../labels.parquet",
    "horizon": "30d",
    "progress": False,
}
_SHARE: Arguments = {"run": "run", "out": "shared", "progress": False}


def _tiny() -> Arguments:
    return yaml.safe_load(Path("../tiny.yaml").read_text())


def _first(subjects: list[int]) -> int:
    return subjects[0]


Case = tuple[Arguments, Arguments]
FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Case | str]]] = {
    "evaluate": (
        lambda _, run="run", **given: eh.evaluate(run, **{**_QUICK, **given}),
        {
            "run": ({}, {"run": "second"}),
            "bootstrap": ({}, {"bootstrap": 3}),
            "baselines": ({}, {"baselines": "never"}),
            "split": ({}, {"split": "tuning"}),
            "data": ({}, _ELSEWHERE),
            "out": (_ELSEWHERE, {"out": "there"}),
            "overwrite": (_ELSEWHERE | {"out": "validation"}, {"overwrite": True}),
            "facts": (_ELSEWHERE, {"facts": {"extracted": "1990-01-01"}}),
            "prepared": ({}, {"prepared": "nowhere"}),
            "splits": ({}, {"splits": 1}),
            "split_seed": ({"splits": 1}, {"split_seed": -1}),
            "walk": ({}, {"walk": "ward"}),
            "report": ({}, {"report": True}),
            "settings": ({}, {"decision_thresholds": [0.1]}),
            "progress": SILENT["progress"],
            "say": SILENT["say"],
        },
    ),
    "score": (
        lambda _, **given: eh.score(given.pop("predictions"), given.pop("data"), given.pop("task"), **given),
        {
            "predictions": (_SCORE, {"predictions": "of-second.parquet"}),
            "data": (_SCORE, {"data": "../meds"}),
            "task": (_SCORE, {"task": "../other.yaml"}),
            "out": (_SCORE, {"out": "there"}),
            "name": (_SCORE, {"name": "mine"}),
            "split": (_SCORE, {"split": "tuning"}),
            "prepared": (_SCORE, {"prepared": "nowhere"}),
            "overwrite": (_SCORE | {"out": "scored"}, {"overwrite": True}),
            "report": (_SCORE, {"report": True}),
            "study": (_SCORE, {"study": StudyConfig()}),
            "sections": (_SCORE, {"splits": {"seed": 9}}),
            "progress": SILENT["progress"],
        },
    ),
    "compare": (
        lambda _, runs=("run", "second"), **given: (
            eh.compare(list(runs), **{"split": "train", "bootstrap": 3, "progress": False, **given}).result
        ),
        {
            "runs": ({}, {"runs": ("second", "run")}),
            "split": ({}, {"split": "tuning"}),
            "bootstrap": ({}, {"bootstrap": 4}),
            "seed": ({}, {"seed": 5}),
            "progress": SILENT["progress"],
        },
    ),
    "predict": (
        lambda _, data="../meds", **given: eh.load("run").predict(data, progress=False, **given),
        {
            "data": ({}, {"data": "../data"}),
            "at": ({}, {"at": "all"}),
            "since": ({}, {"since": "1d"}),
            "horizons": ({}, {"horizons": "30d"}),
            "force": ({"data": "../strange"}, {"force": True}),
            "journal": ({}, {"journal": "nights"}),
            "key": ({"journal": "nights"}, {"key": "other"}),
            "facts": ({}, {"facts": {"extracted": "2009-01-01"}}),
            "progress": SILENT["progress"],
        },
    ),
    "explain": (
        lambda subjects, data="../meds", subject=_first, **given: eh.load("run").explain(
            data, subject=subject and subject(subjects), progress=False, **given
        ),
        {
            "data": ({}, {"data": "../strange"}),
            "subject": ({}, {"subject": None}),
            "horizon": ({}, {"horizon": "30d"}),
            "cause": ({}, {"cause": "death"}),
            "kind": ({}, {"kind": "visit"}),
            "facts": ({}, {"facts": {"extracted": "1990-01-01"}}),
            "progress": SILENT["progress"],
        },
    ),
    "export": (
        lambda _, **given: eh.export(given.pop("run"), given.pop("out"), **given),
        {
            "run": (_MEDS_DEV, {"run": "second"}),
            "out": (_MEDS_DEV, {"out": "q.parquet"}),
            "data": (_MEDS_DEV, {"data": "../strange"}),
            "format": (_SHARE | {"out": "there"}, {"format": "meds-dev"}),
            "license": (_SHARE | {"out": "there"}, {"license": "cc-by-nc-4.0"}),
            "labels": (_MEDS_DEV, {"labels": "../few.parquet"}),
            "cause": (_MEDS_DEV, {"cause": "death"}),
            "horizon": (_MEDS_DEV, {"horizon": "90d"}),
            "overwrite": (_SHARE, {"overwrite": True}),
            "progress": SILENT["progress"],
            "say": SILENT["say"],
        },
    ),
    "run": (
        lambda _, data="../data", task="../task.yaml", out="study", **given: eh.run(
            data, task, out=out, progress=False, **(_tiny() if "study" not in given else {}), **given
        ),
        {
            "data": ({}, {"data": "../meds"}),
            "task": ({}, {"task": "../other.yaml"}),
            "out": ({}, {"out": "risks.parquet"}),
            "study": ({}, {"study": StudyConfig()}),
            "sections": ({}, {"values": {"mode": "none"}}),
            "quick": ({}, {"quick": True}),
            "overwrite": ({"data": "../meds"}, {"overwrite": True}),
            "progress": SILENT["progress"],
            "say": SILENT["say"],
        },
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_argument_of_a_function_changes_a_result(name: str, result_of: Callable[[Any], str]) -> None:
    call, cases = FUNCTIONS[name]
    owner = TrainedRun if name in ("predict", "explain") else eh
    assert set(cases) == set(inspect.signature(getattr(owner, name)).parameters) - {"self"}
    results: dict[str, str] = {}

    def result(given: Arguments) -> str:
        key = repr(sorted(given.items(), key=str))
        if key not in results:
            results[key] = result_of(lambda subjects: call(subjects, **given))
        return results[key]

    for argument, case in cases.items():
        if isinstance(case, str):
            assert case in SILENT.values()
            continue
        plain, more = case
        assert result(plain) != result(plain | more), argument
