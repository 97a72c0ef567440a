"""`ehrseq export --format share`: a run for other people, which tells nothing of few people or of this machine."""

import json
import re
import shutil
from fnmatch import fnmatch
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

import ehrsequencing as eh
from ehrsequencing.config import StudyConfig, TaskConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, sha256
from ehrsequencing.core.outputs import MANIFEST, RUN_NEEDS, save_manifest
from ehrsequencing.prediction.predict import Request, predict
from ehrsequencing.prediction.run import Run, add_to_run
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import REFERENCE, Prepared
from ehrsequencing.reporting.report import render
from ehrsequencing.reporting.share import APPLIED_CARD, CARD, share_run
from ehrsequencing.results.redaction import redact
from ehrsequencing.training.transfer import Pretrained
from helpers.command_line import ehrseq
from helpers.disclosure import as_real, records_of_people
from helpers.training import NetworkTrainer as Trainer


@pytest.fixture(scope="module")
def run(
    sim_data: Path, sim_task: TaskConfig, tiny_study: StudyConfig, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run without codes or numbers of fewer than 11 training subjects."""
    folder = tmp_path_factory.mktemp("eleven")
    vocabulary = tiny_study.vocabulary.model_copy(update={"min_subjects": 11})
    study = tiny_study.model_copy(update={"vocabulary": vocabulary})
    prepare(sim_data, folder / "set", study=study, tasks=[sim_task])
    Trainer(Prepared(folder / "set"), "simulated", folder / "run", study=study).fit()
    return folder / "run"


@pytest.fixture(scope="module")
def shared(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shared") / "model"
    done = ehrseq("export", run, "--format", "share", "--license", "cc-by-4.0", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.stdout)["result"]["files"]) == {
        *RUN_NEEDS,
        "reference.json",
        "people.json",
        MANIFEST,
        CARD,
        APPLIED_CARD,
    }
    return out


def test_it_is_the_same_model_and_names_no_rare_code(run: Path, shared: Path, sim_data: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "vocabulary.json", "vocabulary.safetensors"):
        assert (shared / name).read_bytes() == (run / name).read_bytes()
    predict(run, sim_data, tmp_path / "own.parquet", Request(at="last"))
    predict(shared, sim_data, tmp_path / "shared.parquet", Request(at="last"))
    own, other = (pq.read_table(tmp_path / f"{name}.parquet")["risk"].to_numpy() for name in ("own", "shared"))
    assert len(own) > 100
    np.testing.assert_array_equal(own, other)
    people: dict[str, set[int]] = {}  # counted in the data itself
    for path in sorted((sim_data / "data" / "train").rglob("*.parquet")):
        table = pq.read_table(path, columns=["subject_id", "code"])
        for subject, code in zip(table["subject_id"].to_pylist(), table["code"].to_pylist(), strict=True):
            people.setdefault(code, set()).add(subject)
    assert all(len(people.get(code, ())) >= 11 for code in Run(shared).vocabulary.codes)


@pytest.mark.parametrize("fewest", [1, 10])
def test_a_run_with_codes_of_fewer_people_is_refused_unless_they_are_simulated(
    run: Path, tmp_path: Path, fewest: int
) -> None:
    copy = changed(run, tmp_path / "run", {"vocabulary": {"min_subjects": fewest}})
    assert share_run(copy, tmp_path / "simulated")
    as_real(copy)
    with pytest.raises(EhrseqError, match=rf"min_subjects={fewest}.*min_subjects=11"):
        share_run(copy, tmp_path / "shared")
    assert not (tmp_path / "shared").exists()


def changed(run: Path, out: Path, settings: dict[str, dict[str, object]]) -> Path:
    """A copy of a run with other settings in its `config.yaml`."""
    shutil.copytree(run, out, dirs_exist_ok=True)
    path = out / "config.yaml"
    config = yaml.safe_load(path.read_text())
    for section, values in settings.items():
        config.setdefault(section, {}).update(values)
    path.write_text(yaml.safe_dump(config))
    manifest = read_json(out / MANIFEST)
    manifest["files"]["config.yaml"] = sha256(path)
    save_manifest(out, manifest)
    return out


def test_no_byte_tells_of_people_or_of_this_machine(shared: Path, run: Path, sim_data: Path) -> None:
    content = {path.name: path.read_bytes() for path in shared.rglob("*") if path.is_file()}
    everything = b"\n".join(content.values())
    assert b"LAB//MARKER" in everything, "common codes are named"
    places = [run.parent, sim_data.parent, Path.cwd(), Path.home(), Path(read_json(run / MANIFEST)["prepared"])]
    assert not [place for place in places if str(place).encode() in everything]
    ids = pq.read_table(sim_data / "metadata" / "subject_splits.parquet")["subject_id"].to_numpy()
    text = b"\n".join(data for name, data in content.items() if not name.endswith(".safetensors"))
    assert not [one for one in ids.tolist() if re.search(rb"(?<![0-9a-f.])%d(?![0-9a-f])" % one, text) and one > 999]
    assert not re.search(rb"20\d\d-\d\d-\d\d", text)
    manifest = read_json(shared / MANIFEST)
    assert not {"recalibration", "tuning_nll", "best_epoch", "seed", "codes", "values"} & set(manifest)


@pytest.mark.parametrize("known", ["latest", "earliest", None])
def test_the_copy_and_its_card_tell_how_the_records_were_imported(run: Path, tmp_path: Path, known: str | None) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    noted = {"time_zone": "Europe/Berlin"} | ({"known": known} if known else {})
    save_manifest(copy, read_json(copy / MANIFEST) | {"import": noted})
    share_run(copy, tmp_path / "shared")
    manifest = read_json(tmp_path / "shared" / MANIFEST)
    assert manifest["import"] == ({"known": known} if known else {})
    text = (tmp_path / "shared" / CARD).read_text(encoding="utf-8")
    assert (f"import.known={known}" in text) == bool(known)
    assert "Berlin" not in text


def test_a_copy_knows_what_made_it_and_tells_no_part(run: Path, shared: Path, tmp_path: Path) -> None:
    made = read_json(shared / MANIFEST)["made_of"]
    assert re.fullmatch("[0-9a-f]{16}", made)
    again = Path(shutil.copytree(run, tmp_path / "run"))
    quick = ("--baselines", "none", "evaluation.bootstrap=0")
    assert ehrseq("evaluate", again, *quick).exit_code == 0
    share_run(again, tmp_path / "evaluated")
    assert read_json(tmp_path / "evaluated" / MANIFEST)["made_of"] != made


def test_the_card_is_what_hubs_read(shared: Path) -> None:
    text = (shared / CARD).read_text(encoding="utf-8")
    _, head, body = text.split("---\n", 2)
    facts = yaml.safe_load(head)
    assert facts["license"] == "cc-by-4.0"
    assert "survival-analysis" in facts["tags"]
    assert facts["library_name"] == "ehrsequencing"
    assert "Nobody has evaluated this model" in body
    assert "an unknown number of people" in body


def test_the_card_has_metrics_with_intervals(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    row = {"model": "ehrsequencing", "landmark_days": 0.0, "cause": "outcome", "horizon_days": 365.25}
    metrics = {
        "data": {"subjects": {"train": "<11"}},
        "split": "held_out",
        "models": ["ehrsequencing"],
        "causes": ["outcome"],
        "landmarks_days": [0.0],
        "main": {"landmark_days": 0.0, "horizon_days": 365.25},
        "metrics": [
            {**row, "metric": "c", "value": 0.712, "low": 0.651, "high": 0.77},
            {**row, "metric": "oe", "value": 1.123, "low": None, "high": None},
        ],
        "subgroups": [
            {**row, "group": "sex", "level": "F", "oe": {"value": 0.9, "low": 0.8, "high": 1.0}},
            {**row, "group": "sex", "level": "M", "oe": {"value": None, "low": None, "high": None}},
        ],
    }
    add_to_run(copy, "metrics.json", lambda path: path.write_text(json.dumps(metrics)))
    share_run(copy, tmp_path / "shared")
    text = (tmp_path / "shared" / CARD).read_text(encoding="utf-8")
    assert "the records of <11 people" in text
    assert "| outcome by 1y | 0.712 | 0.651 to 0.770 |" in text
    assert "| outcome by 1y | 1.123 | – |" in text
    applied = ElementTree.parse(tmp_path / "shared" / APPLIED_CARD).getroot()
    found = [tuple(child.text or "" for child in one) for one in applied.iterfind(".//{*}MetricResult")]
    assert [(label, json.loads(value)) for label, value in found] == [
        ("C, outcome by 1y", {"kind": "estimate_ci", "estimate": 0.712, "lower": 0.651, "upper": 0.77, "level": 95}),
        (
            "O/E, outcome by 1y, sex F",
            {"kind": "estimate_ci", "estimate": 0.9, "lower": 0.8, "upper": 1.0, "level": 95},
        ),
        ("O/E, outcome by 1y", {"kind": "single", "value": 1.123}),
    ]
    whose = {"held_out": "held-out people", "tuning": "tuning people", "train": "training people"}
    for split, people in whose.items():
        named = json.dumps(metrics | {"split": split})
        add_to_run(copy, "metrics.json", lambda path, text=named: path.write_text(text))  # type: ignore[misc]
        share_run(copy, tmp_path / split)
        text = (tmp_path / split / CARD).read_text(encoding="utf-8")
        applied_text = (tmp_path / split / APPLIED_CARD).read_text(encoding="utf-8")
        for name in whose.values():
            assert (f"On {name}, predicted" in text) == (f"on {name} of the" in applied_text) == (name == people)
    add_to_run(copy, "metrics.json", lambda path: path.write_text(json.dumps(metrics | {"metrics": []})))
    share_run(copy, tmp_path / "without")
    text = (tmp_path / "without" / CARD).read_text(encoding="utf-8")
    assert "Too few people had the event to judge it." in text
    (copy / "metrics.json").write_text(json.dumps(metrics | {"causes": ["other"]}))
    share_run(copy, tmp_path / "edited")
    assert "0.712" not in (tmp_path / "edited" / CARD).read_text(encoding="utf-8"), "an edited file is not told"


def test_the_applied_card_has_the_elements_of_the_schema_in_their_order(shared: Path) -> None:
    """CHAI's schema 0.2: every element is required, in this order."""
    facts = ["OutcomesAndOutputs", "ModelType", "InputDataSource", "OutputAndInputDataTypes"]
    facts += ["DevelopmentDataCharacterization", "BiasMitigationApproaches", "OngoingMaintenance"]
    metric = ["MetricGoal", "Results", "Interpretation", "TestType", "TestingDataDescription"]
    metric += ["ValidationProcessAndJustification"]
    expected = {
        ".": [
            "BasicInfo",
            "ReleaseInfo",
            "ModelSummary",
            "UsesAndDirections",
            "Warnings",
            "TrustIngredients",
            "KeyMetrics",
            "Resources",
            "Bibliography",
        ],
        "BasicInfo": ["ModelName", "ModelDeveloper", "DeveloperContact"],
        "ReleaseInfo": ["ReleaseStage", "ReleaseDate", "ReleaseVersion", "GlobalAvailability"],
        "ModelSummary": ["Summary", "Keywords"],
        "UsesAndDirections": [
            "IntendedUseAndWorkflow",
            "PrimaryIntendedUsers",
            "HowToUse",
            "TargetedPatientPopulation",
            "CautionedOutOfScopeSettings",
        ],
        "Warnings": ["KnownRisksAndLimitations", "KnownBiasesOrEthicalConsiderations", "ClinicalRiskLevel"],
        "TrustIngredients": ["AISystemFacts", "TransparencyInformation"],
        "TrustIngredients/AISystemFacts": facts,
        "TrustIngredients/TransparencyInformation": ["FundingSource", "StakeholdersConsulted"],
        "KeyMetrics": ["UsefulnessUsabilityEfficacy", "FairnessEquity", "SafetyReliability"],
        "KeyMetrics/UsefulnessUsabilityEfficacy": metric,
        "KeyMetrics/FairnessEquity": metric,
        "KeyMetrics/SafetyReliability": metric,
        "Resources": ["PeerReviewedPublications", "PatientConsentOrDisclosure"],
    }
    root = ElementTree.parse(shared / APPLIED_CARD).getroot()
    space = {"": "https://mc.chai.org/v0.2/schema.xsd"}
    for path, names in expected.items():
        element = root if path == "." else root.find(path, space)
        assert element is not None, path
        assert [child.tag for child in element] == [f"{{{space['']}}}{name}" for name in names], path
    results = root.findall(".//MetricResult", space)
    assert len(results) == 3  # not evaluated: each key metric says so
    assert {child.text for one in results for child in one} == {"Not measured", "null"}


def test_it_loads_everywhere_and_nothing_is_added(shared: Path, sim_data: Path) -> None:
    loaded = eh.load(str(shared))
    assert len(loaded.predict(str(sim_data), progress=False)) > 100
    assert Pretrained(shared).is_run
    for words in (("evaluate", shared), ("audit", shared), ("evaluate", shared, "--data", sim_data)):
        done = ehrseq(*words)
        assert done.exit_code == 2, done.output
    with pytest.raises(EhrseqError, match="nothing is added"):
        add_to_run(shared, "notes.json", lambda path: path.write_text("{}"))
    assert {path.name for path in shared.iterdir()} == {
        *RUN_NEEDS,
        "reference.json",
        "people.json",
        MANIFEST,
        CARD,
        APPLIED_CARD,
    }


def test_what_a_hub_adds_to_the_folder_changes_nothing(shared: Path, tmp_path: Path) -> None:
    """`.gitattributes` on the Hugging Face Hub, and `.cache/huggingface` in a folder that `hf download` made."""
    copy = Path(shutil.copytree(shared, tmp_path / "model"))
    (copy / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (copy / ".cache/huggingface").mkdir(parents=True)
    assert Run(copy).fingerprint == Run(shared).fingerprint


def test_a_path_in_the_task_is_not_shared(run: Path, tmp_path: Path) -> None:
    """An index by file names a folder of this machine; so may a code."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    settings: dict[str, dict[str, object]] = {
        "task": {"index": {"file": str(tmp_path / "index.csv")}},
        "data": {"extracted": "2026-03-01"},
        "splits": {"by": "site", "column": "site", "held_out_sites": ["Elm Street Clinic"]},
    }
    copy = changed(run, tmp_path / "run", settings)
    share_run(copy, tmp_path / "shared")
    text = "".join((tmp_path / "shared" / name).read_text() for name in ("config.yaml", CARD))
    assert not [word for word in (str(tmp_path), "2026-03-01", "Elm Street") if word in text]
    assert load_study(tmp_path / "shared" / "config.yaml").task is not None
    outcome = {name: [f"{tmp_path}//x"] for name in config["task"]["outcome"]}
    again = changed(copy, tmp_path / "again", {"task": {"outcome": outcome}})
    with pytest.raises(EhrseqError, match="would name a folder of this machine"):
        share_run(again, tmp_path / "refused")


# ---- every file that commands leave in a run's folder is in the one list of files ------------------------------------


PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
QUICK = ("--baselines", "none", "evaluation.bootstrap=0")


def table() -> dict[str, str]:
    """Name or pattern → kind; a pattern of an ending alone, as `*.csv`, names no file of a run."""
    rows = PAGE.read_text(encoding="utf-8").partition("## May it leave")[2]
    found = {}
    for kind, names in re.findall(r"^- \*\*(May leave|Owner's)[^*]*\*\*[^:]*: (.+)$", rows, flags=re.MULTILINE):
        listed = [name.replace("NAME", "*") for name in re.findall(r"`([^` ]+)`", names)]
        found |= {name: kind for name in listed if not name.startswith("*.")}
    return found


def unlisted(folder: Path) -> list[str]:
    names = [path.name for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in names if not any(fnmatch(name, known) for known in table()))


def test_every_file_of_a_run_is_in_the_list(sim_run: Path, sim_data: Path, tmp_path: Path) -> None:
    run = as_real(Path(shutil.copytree(sim_run, tmp_path / "run")))
    people = records_of_people(sim_data, tmp_path / "hospital")
    for command in (
        ("evaluate", run, *QUICK),
        ("evaluate", run, "--data", people, *QUICK),
        ("audit", run, "--subjects", 5),
        ("predict", run, people, "--out", run / "predictions.parquet"),
        ("export", sim_run, "--format", "share", "--out", tmp_path / "shared"),
    ):
        done = ehrseq(*command)
        assert done.exit_code == 0, done.output
    written = {path.name for path in run.rglob("*") if path.is_file()}
    assert REFERENCE in written
    assert written >= {"metrics.json", "report-details.html", "audit.json", "predictions.parquet"}
    assert unlisted(run) == unlisted(tmp_path / "shared") == []
    (run / "secret.json").write_text("{}")
    assert unlisted(run) == ["secret.json"]


def test_single_people_are_on_their_owners_page_alone(sim_run: Path, tmp_path: Path) -> None:
    run = as_real(Path(shutil.copytree(sim_run, tmp_path / "run")))
    assert ehrseq("evaluate", run, *QUICK).exit_code == 0
    details = run / "report-details.html"
    assert details.stat().st_mode & 0o777 == 0o600
    assert "Do not share this page" in details.read_text(encoding="utf-8")
    assert "Do not share this page" not in (run / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_owners_page_keeps_exact_curves_as_long_as_the_exact_result_is_there(sim_run: Path, tmp_path: Path) -> None:
    run = as_real(Path(shutil.copytree(sim_run, tmp_path / "run")))
    assert ehrseq("evaluate", run, *QUICK).exit_code == 0
    details = run / "report-details.html"
    before = details.read_text(encoding="utf-8")
    assert "Do not share this page" in before
    exact = read_json(run / "metrics-individual.json")
    assert before != render(redact(exact), details.name)
    for command in (("evaluate", run, "--redraw"), ("audit", run, "--subjects", 5)):
        assert ehrseq(*command).exit_code == 0
        assert "Do not share this page" in details.read_text(encoding="utf-8")
    (run / "metrics-individual.json").unlink()
    assert ehrseq("evaluate", run, "--redraw").exit_code == 0
    assert "Do not share this page" not in details.read_text(encoding="utf-8")


def test_the_list_knows_both_kinds() -> None:
    kinds = table()
    assert kinds["metrics.json"] == kinds["report.html"] == "May leave"
    assert kinds["report-details.html"] == "Owner's"
    assert kinds["metrics-individual.json"] == kinds[MANIFEST] == "Owner's"
