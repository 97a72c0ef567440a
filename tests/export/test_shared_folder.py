"""`ehrseq export --format share`: it predicts as the run does, and tells nothing of few people or of this machine."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import ehrsequencing as eh
from ehrsequencing.config import load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, sha256
from ehrsequencing.core.outputs import MANIFEST, RUN_NEEDS, save_manifest
from ehrsequencing.export.anonymous import count_carriers, forget_rare, rare_parts, without
from ehrsequencing.export.model_card import rounded
from ehrsequencing.export.samples import own_risk, sample_questions
from ehrsequencing.export.share import CARD, share_run
from ehrsequencing.prediction.predict import predict
from ehrsequencing.prediction.run import Run, add_to_run
from ehrsequencing.records.codes import code_type
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.training.pretrained import Pretrained
from helpers.command_line import ehrseq

RESULTS = ("metrics", "metrics-individual", "report", "report-details", "outcomes", "audit", "recalibration")


@pytest.fixture(scope="module")
def sim_run(sim_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy as training left it: other tests may have evaluated theirs."""
    run = Path(shutil.copytree(sim_run, tmp_path_factory.mktemp("as_trained") / "run"))
    manifest = read_json(run / MANIFEST)
    for name in sorted(set(manifest["files"]) - set(manifest["required"])):
        if name.partition(".")[0] in RESULTS:
            del manifest["files"][name]
            (run / name).unlink()
    save_manifest(run, manifest)
    return run


@pytest.fixture(scope="module")
def shared(sim_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shared") / "model"
    done = ehrseq("export", sim_run, "--format", "share", "--license", "cc-by-4.0", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["result"]["removed_codes"] > 0
    return out


@pytest.fixture(scope="module")
def rare_codes(sim_data: Path, sim_run: Path) -> set[str]:
    """Codes of the vocabulary that fewer than 11 training subjects have, counted in the data itself."""
    people: dict[str, set[int]] = {}
    for path in sorted((sim_data / "data" / "train").rglob("*.parquet")):
        table = pq.read_table(path, columns=["subject_id", "code"])
        for subject, code in zip(table["subject_id"].to_pylist(), table["code"].to_pylist(), strict=True):
            people.setdefault(code, set()).add(subject)
    return {code for code in Run(sim_run).vocabulary.codes if len(people.get(code, ())) < 11}


def common_run(run: Path, out: Path) -> Path:
    """A copy whose settings say that every code has at least 11 people."""
    shutil.copytree(run, out)
    path = out / "config.yaml"
    path.write_text(path.read_text().replace("min_subjects: 5", "min_subjects: 11"))
    manifest = read_json(out / MANIFEST)
    manifest["files"]["config.yaml"] = sha256(path)
    save_manifest(out, manifest | {"prepared": str(out / "gone")})
    return out


def test_it_predicts_as_the_run_does_with_rare_codes_unknown(
    shared: Path, sim_run: Path, sim_data: Path, rare_codes: set[str], tmp_path: Path
) -> None:
    """The run itself, on records whose rare codes have a name that nobody knows, is the oracle."""
    assert rare_codes
    renamed = Path(shutil.copytree(sim_data, tmp_path / "data"))
    (renamed / MANIFEST).unlink()
    for path in (renamed / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        codes = [f"{code_type(c)}//nobody" if c in rare_codes else c for c in table["code"].to_pylist()]
        at = table.schema.get_field_index("code")
        pq.write_table(table.set_column(at, "code", pa.array(codes, table["code"].type)), path)
    predict(sim_run, renamed, tmp_path / "wanted.parquet", at="last")
    predict(shared, sim_data, tmp_path / "found.parquet", at="last")
    predict(sim_run, sim_data, tmp_path / "before.parquet", at="last")
    wanted, found, before = (
        pq.read_table(tmp_path / f"{name}.parquet")["risk"].to_numpy() for name in ("wanted", "found", "before")
    )
    assert len(found) > 100
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert np.abs(found - before).max() > 1e-5, "nobody has a rare code"
    assert (np.abs(found - before) < 1e-6).mean() > 0.3


def test_without_rare_codes_it_is_the_same_model(sim_run: Path, tmp_path: Path) -> None:
    """No prepared set is needed, the weights are the same bytes, and so are the risks."""
    run = common_run(sim_run, tmp_path / "run")
    found = share_run(run, tmp_path / "shared")
    assert (found.codes, found.numbers) == (0, 0)
    for name in ("model.safetensors", "vocabulary.json", "vocabulary.safetensors"):
        assert (tmp_path / "shared" / name).read_bytes() == (run / name).read_bytes()
    own, other = Run(run), Run(tmp_path / "shared")
    for question in sample_questions(own, 12):
        np.testing.assert_allclose(own_risk(other, question), own_risk(own, question), atol=1e-6)


def test_no_byte_tells_of_people_or_of_this_machine(
    shared: Path, sim_run: Path, sim_data: Path, rare_codes: set[str]
) -> None:
    content = {path.name: path.read_bytes() for path in shared.rglob("*") if path.is_file()}
    assert set(content) == {*RUN_NEEDS, MANIFEST, CARD}
    everything = b"\n".join(content.values())
    assert b"LAB//MARKER" in everything, "common codes are named"
    assert not [code for code in rare_codes if code.encode() in everything]
    places = [sim_run.parent, sim_data.parent, Path.cwd(), Path.home(), Path(read_json(sim_run / MANIFEST)["prepared"])]
    assert not [place for place in places if str(place).encode() in everything]
    ids = pq.read_table(sim_data / "metadata" / "subject_splits.parquet")["subject_id"].to_numpy()
    text = b"\n".join(data for name, data in content.items() if not name.endswith(".safetensors"))
    assert not [one for one in ids.tolist() if re.search(rb"(?<![0-9a-f.])%d(?![0-9a-f])" % one, text) and one > 999]
    assert not re.search(rb"20\d\d-\d\d-\d\d", text)
    manifest = read_json(shared / MANIFEST)
    assert not {"recalibration", "tuning_nll", "best_epoch", "seed", "codes", "values"} & set(manifest)


def test_weights_of_rare_codes_are_forgotten(shared: Path, sim_run: Path, rare_codes: set[str]) -> None:
    own, other = Run(sim_run), Run(shared)
    before, after = own.model.code_embedding, other.model.code_embedding
    for code in rare_codes:
        token, unknown = own.vocabulary.index[code], own.vocabulary.tokens.index(f"[UNK//{code_type(code)}]")
        assert not (after.table.weight[token] == before.table.weight[token]).all()
        assert (after.table.weight[token] == after.table.weight[unknown]).all()
    kept = [token for code, token in own.vocabulary.index.items() if code not in rare_codes]
    assert (after.table.weight[kept] == before.table.weight[kept]).all()


def test_numbers_of_few_people_have_no_effect(sim_prepared: Path, sim_run: Path) -> None:
    """A code that 40 people have and 8 of them with a number, in a vocabulary of its own."""
    prepared = Prepared(sim_prepared)
    vocabulary = prepared.vocabulary
    carried = count_carriers(prepared, vocabulary)
    marker = vocabulary.index["LAB//MARKER"]
    assert carried.codes[marker] >= carried.numbers[marker] >= carried.gaps[marker] > 11
    carried.numbers[marker] = 8
    rare = rare_parts(carried, vocabulary, enough=11)
    assert marker in rare.scales
    assert marker not in rare.codes
    cleaned = without(vocabulary, rare)
    row = vocabulary.scale[marker]
    assert (cleaned.knots[row] == 0).all()
    assert not (vocabulary.knots[row] == 0).all()
    other = vocabulary.scale[vocabulary.index["LAB//OTHER"]]
    assert (cleaned.knots[other] == vocabulary.knots[other]).all()
    model = Run(sim_run).model
    forget_rare(model, vocabulary, rare)
    weights = model.code_embedding.value_table.weight.view(len(vocabulary), 3, -1)
    assert (weights[marker] == 0).all()
    assert (weights[vocabulary.index["LAB//OTHER"]] != 0).any()


def test_a_type_of_few_people_loses_its_name(sim_prepared: Path) -> None:
    prepared = Prepared(sim_prepared)
    carried = count_carriers(prepared, prepared.vocabulary)
    place = prepared.vocabulary.kinds.index("PROC")
    carried.kinds[place] = 6
    carried.codes[[i for i, name in enumerate(prepared.vocabulary.tokens) if name.startswith("PROC//")]] = 6
    cleaned = without(prepared.vocabulary, rare_parts(carried, prepared.vocabulary, enough=11))
    assert not [name for name in cleaned.tokens if "PROC" in name]
    assert len(cleaned) == len(prepared.vocabulary)
    assert (cleaned.code_types == prepared.vocabulary.code_types).all()


def test_the_card_is_what_hubs_read(shared: Path, sim_run: Path) -> None:
    text = (shared / CARD).read_text(encoding="utf-8")
    _, head, body = text.split("---\n", 2)
    facts = yaml.safe_load(head)
    assert facts["license"] == "cc-by-4.0"
    assert "survival-analysis" in facts["tags"]
    assert facts["library_name"] == "ehrsequencing"
    assert not {"metrics", "model-index"} & set(facts), "it names no metric without a value"
    assert "Nobody has evaluated this model" in body
    train = len(Prepared(Path(Run(sim_run).manifest["prepared"])).timelines("train"))
    assert f"about {round(train, -1)} people" in body
    assert f" {train} " not in body


def test_the_card_has_metrics_with_intervals(sim_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(sim_run, tmp_path / "run"))
    row = {"model": "ehrsequencing", "landmark_days": 0.0, "cause": "outcome", "horizon_days": 365.25}
    told = {
        "data": {"subjects": {"train": "<11"}}, "models": ["ehrsequencing"], "causes": ["outcome"],
        "landmarks_days": [0.0], "metrics": [
            {**row, "metric": "c", "value": 0.7123, "low": 0.6512, "high": 0.7699, "subjects": 7, "events": 3},
            {**row, "metric": "oe", "value": 1.123, "low": None, "high": None, "subjects": 7, "events": 3},
        ],
    }  # fmt: skip
    add_to_run(run, "metrics.json", lambda path: path.write_text(json.dumps(told)))
    share_run(run, tmp_path / "shared")
    text = (tmp_path / "shared" / CARD).read_text(encoding="utf-8")
    assert "| outcome by 1y | 0.712 | 0.651 to 0.770 |" in text
    assert "| outcome by 1y | 1.12 | – |" in text
    facts = yaml.safe_load(text.split("---\n")[1])
    results = facts["model-index"][0]["results"][0]["metrics"]
    assert [row["type"] for row in results] == facts["metrics"] == ["c", "oe"]
    add_to_run(run, "metrics.json", lambda path: path.write_text(json.dumps(told | {"metrics": []})))
    share_run(run, tmp_path / "shared")
    text = (tmp_path / "shared" / CARD).read_text(encoding="utf-8")
    assert "Too few people had the event to judge it." in text
    assert "metrics" not in yaml.safe_load(text.split("---\n")[1])
    (run / "metrics.json").write_text(json.dumps(told | {"causes": ["other"]}))
    share_run(run, tmp_path / "shared")
    assert "0.712" not in (tmp_path / "shared" / CARD).read_text(encoding="utf-8"), "an edited file is not told"


def test_counts_are_rounded() -> None:
    assert [rounded(n) for n in (10, 11, 96, 104, 99_949)] == [
        "fewer than 11", "about 10", "about 100", "about 100", "about 100,000"
    ]  # fmt: skip


def test_it_loads_everywhere_and_nothing_is_added(shared: Path, sim_data: Path, tmp_path: Path) -> None:
    run = eh.load(str(shared))
    assert "about" not in repr(run)
    assert len(run.predict(str(sim_data), progress=False)) > 100
    assert Pretrained(shared).is_run
    for words in (("evaluate", shared), ("audit", shared), ("evaluate", shared, "--data", sim_data)):
        done = ehrseq(*words)
        assert done.exit_code == 2, done.output
    with pytest.raises(EhrseqError, match="nothing is added"):
        add_to_run(shared, "notes.json", lambda path: path.write_text("{}"))
    assert {path.name for path in shared.iterdir()} == {*RUN_NEEDS, MANIFEST, CARD}


def test_what_a_hub_adds_to_the_folder_changes_nothing(shared: Path, tmp_path: Path) -> None:
    """`.gitattributes` on the Hugging Face Hub, and `.cache/huggingface` in a folder that `hf download` made."""
    copy = Path(shutil.copytree(shared, tmp_path / "model"))
    (copy / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (copy / ".cache/huggingface").mkdir(parents=True)
    assert Run(copy).fingerprint == Run(shared).fingerprint


def test_a_set_that_is_gone_or_another_is_refused(sim_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(sim_run, tmp_path / "run"))
    save_manifest(run, read_json(run / MANIFEST) | {"prepared": str(tmp_path / "gone")})
    with pytest.raises(EhrseqError, match="--prepared"):
        share_run(run, tmp_path / "shared")
    assert not (tmp_path / "shared").exists()
    share_run(run, tmp_path / "shared", prepared=Path(Run(sim_run).manifest["prepared"]))
    with pytest.raises(EhrseqError, match="not a shared model"):
        share_run(sim_run, Path(shutil.copytree(sim_run, tmp_path / "precious")))


@pytest.mark.parametrize("words", [("--format", "share", "--network-only"), ("--cause", "x"), ("--format", "onnx")])
def test_options_of_another_format_are_refused(sim_run: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = ehrseq("export", sim_run, "--out", tmp_path / "out", *words)
    assert done.exit_code == 2
    assert not (tmp_path / "out").exists()


def test_a_path_in_the_task_is_not_shared(sim_run: Path, tmp_path: Path) -> None:
    """An index by file names a folder of this machine; so may a code."""
    run = common_run(sim_run, tmp_path / "run")
    path = run / "config.yaml"
    settings = yaml.safe_load(path.read_text())
    settings["task"]["index"] = {"file": str(tmp_path / "index.csv")}
    settings["data"] = {"extracted": "2026-03-01"}
    settings["splits"] = {"by": "site", "column": "site", "held_out_sites": ["Elm Street Clinic"]}
    path.write_text(yaml.safe_dump(settings))
    save_manifest(run, sealed := read_json(run / MANIFEST) | {"files": {**_files(run), "config.yaml": sha256(path)}})
    assert sealed
    share_run(run, tmp_path / "shared")
    text = "".join((tmp_path / "shared" / name).read_text() for name in ("config.yaml", CARD))
    assert not [word for word in (str(tmp_path), "2026-03-01", "Elm Street") if word in text]
    assert load_study(tmp_path / "shared" / "config.yaml").task is not None
    settings["task"]["outcome"] = {"outcome": [f"{tmp_path}//x"]}
    path.write_text(yaml.safe_dump(settings))
    save_manifest(run, read_json(run / MANIFEST) | {"files": {**_files(run), "config.yaml": sha256(path)}})
    with pytest.raises(EhrseqError, match="would name a folder of this machine"):
        share_run(run, tmp_path / "again")


def _files(run: Path) -> dict[str, str]:
    found: dict[str, str] = read_json(run / MANIFEST)["files"]
    return found


def test_the_vocabulary_of_a_shared_folder_is_whole(shared: Path, sim_run: Path) -> None:
    assert len(Vocabulary.load(shared)) == len(Run(sim_run).vocabulary)
