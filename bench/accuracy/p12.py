"""The published benchmark P12: `python -m bench p12 DATA OUT [section.key=value …]`.

P12 is PhysioNet's challenge of 2012: 48 hours of intensive care, then death in hospital or discharge. The literature
trains classifiers on five published divisions of 11,988 stays and reports AUROC and AUPRC. Here death and discharge are
competing risks, and the risk of death by 365 days, asked at 48 hours, stands for the probability.

DATA holds sets A and B as MEDS, `task.yaml` and `published_splits.parquet`. With `--raw FOLDER …` the stays come from
the challenge's own text files instead (one a stay, and `Outcomes-*.txt` beside them or in the folder above), so that
whoever has set C gets the table of all stays. Held-out stays choose nothing.
"""

import argparse
import csv
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.metrics import average_precision_score, roc_auc_score

from ehrsequencing.config import StudyConfig
from ehrsequencing.config.files import load_study, load_task
from ehrsequencing.core.arrays import Bools, Floats
from ehrsequencing.core.files import digest, read_json, write_json
from ehrsequencing.core.made_of import FORMULAS
from ehrsequencing.core.outputs import MANIFEST
from ehrsequencing.core.signals import keep_freed_memory
from ehrsequencing.evaluation.comparison import NETWORK
from ehrsequencing.evaluation.rivals import known_baselines
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.blend import STACKED
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.cox import LandmarkCox
from ehrsequencing.predictors.fit import fit_baselines
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.predictor import Predictor
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan

SETTINGS = ("visits.by=window", "visits.window=12h", "training.blend=true")
HORIZON_DAYS = 365.0
ADMISSION = datetime(2000, 1, 1)
# Hanley & McNeil (1982) at AUROC .88
ONE_TEST_PART = "AUROC of one test part: standard error 1.7 with 1,199 stays, 2.1 with 800."
#: Mean of the five published divisions, in percent. Raindrop's, ViTST's, Warpformer's, GraFITi's and MTM's papers.
PUBLISHED = (
    ("GRU-D", "81.9 ± 2.1", "46.1 ± 4.7"),
    ("Raindrop", "82.8", "44.0"),
    ("mTAND", "84.2", "48.2"),
    ("ViTST", "85.1", "51.1"),
    ("Warpformer", "86.5", "54.3"),
    ("GraFITi", "86.6", "54.8"),
    ("MTM", "88.0 ± 1.0", "58.6 ± 4.1"),
)
Row = tuple[int, datetime | None, str, float | None]  # of MEDS: subject, time, code, number
Scores = dict[str, float]


# ---- the challenge's text files → MEDS ------------------------------------------------------------------------------


def read_stay(path: Path) -> list[Row]:
    """The rows of one stay, from its file of `Time,Parameter,Value`; a number below 0 stands for unknown."""
    subject, rows = int(path.stem), list[Row]()
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            hours, minutes = map(int, line["Time"].split(":"))
            time = ADMISSION + timedelta(hours=hours, minutes=minutes)
            name, number = line["Parameter"], float(line["Value"])
            if name in ("", "RecordID") or number < 0:
                continue
            if name == "Age":
                birth = ADMISSION.replace(year=ADMISSION.year - int(number))
                rows.append((subject, birth, "MEDS_BIRTH", None))
            elif name == "Gender":
                rows.append((subject, None, "GENDER//M" if number else "GENDER//F", None))
            elif name == "ICUType":
                rows.append((subject, None, f"ICUTYPE//{int(number)}", None))
            else:
                rows.append((subject, time, f"OBS//{name}", number))
    return rows


def read_outcomes(paths: Iterable[Path]) -> dict[int, tuple[datetime, str]]:
    """Record id → when and how the stay ended: death on day `Survival`, or discharge on day `Length_of_stay`."""
    ends = {}
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                died = int(line["In-hospital_death"]) == 1
                day = int(line["Survival"] if died else line["Length_of_stay"])
                time = ADMISSION + timedelta(days=max(day, 2), hours=1)
                code = "IN_HOSPITAL_DEATH" if died else "DISCHARGE_ALIVE"
                ends[int(line["RecordID"])] = time, code
    return ends


def raw_rows(folders: Sequence[Path]) -> Iterator[list[Row]]:
    """The rows of each stay, by rising record id; stays without a measurement or an outcome are left out."""
    outcomes = {
        path for one in folders for path in (*one.glob("Outcomes*"), *one.parent.glob("Outcomes*"))
    }
    ends = read_outcomes(sorted(outcomes))
    stays = {int(path.stem): path for one in folders for path in one.glob("[0-9]*.txt")}
    for subject in sorted(stays):
        rows = read_stay(stays[subject])
        measured = any(code.startswith("OBS//") for _, _, code, _ in rows)
        if measured and subject in ends:
            rows.append((subject, ADMISSION, "ICU_ADMISSION", None))
            rows.append((subject, *ends[subject], None))
            yield sorted(rows, key=lambda row: row[1] or datetime.min)


def write_meds(folders: Sequence[Path], out: Path) -> None:
    """Write the stays of the challenge's folders as a MEDS data set of one shard."""
    schema = pa.schema(
        {
            "subject_id": pa.int64(),
            "time": pa.timestamp("us"),
            "code": pa.string(),
            "numeric_value": pa.float32(),
        }
    )
    (out / "data").mkdir(parents=True)
    with pq.ParquetWriter(out / "data" / "0.parquet", schema) as writer:
        for rows in raw_rows(folders):
            columns = [list(column) for column in zip(*rows, strict=True)]
            writer.write_table(pa.table(columns, schema=schema))


# ---- divisions -------------------------------------------------------------------------------------------------------


def published(path: Path) -> dict[str, dict[int, str]]:
    """Division → record id → `train`, `tuning` or `held_out`, of Raindrop's `phy12_split1` to `5`."""
    table = pq.read_table(path).to_pydict()
    ids = table.pop("subject_id")
    return {name: dict(zip(ids, splits, strict=True)) for name, splits in table.items()}


def divided(meds: Path, out: Path, splits: Mapping[int, str]) -> Path:
    """A copy of the stays that a division names, with its file of splits."""
    if not (out / "metadata" / "subject_splits.parquet").is_file():
        shutil.rmtree(out, ignore_errors=True)
        (out / "data").mkdir(parents=True)
        (out / "metadata").mkdir()
        named = pa.array(splits, pa.int64())
        for shard in sorted((meds / "data").glob("*.parquet")):
            table = pq.read_table(shard, filters=pa.compute.field("subject_id").isin(named))
            pq.write_table(table, out / "data" / shard.name)
        columns = {"subject_id": named, "split": list(splits.values())}
        pq.write_table(pa.table(columns), out / "metadata" / "subject_splits.parquet")
    return out


# ---- scores ----------------------------------------------------------------------------------------------------------


def of_risk(model: Predictor, records: TaskRecords) -> tuple[Floats, Bools]:
    """Risk of death by 365 days at each stay's query, and who died."""
    rows = records.at_landmark(0.0)
    risk = model.risk(records, [HORIZON_DAYS])[rows, 0, 0]
    return risk, records.rows.cause[rows] == 1


def scores(model: Predictor, held_out: TaskRecords, tuning: TaskRecords) -> Scores:
    """All scores of one model on one division."""
    risk, died = of_risk(model, held_out)
    return {
        "auroc": float(roc_auc_score(died, risk)),
        "auprc": float(average_precision_score(died, risk)),
        "nll": float(model.nll(held_out)[held_out.at_landmark(0.0)].mean()),
        "tuning_nll": float(model.nll(tuning)[tuning.at_landmark(0.0)].mean()),
    }


def judged(meds: Path, folder: Path, study: StudyConfig) -> dict[str, Scores]:
    """Model → its scores on one division; what is finished in its folder is kept."""
    done = folder / "scores.json"
    if done.is_file():
        return dict(read_json(done))
    assert study.task is not None
    if not (folder / "prepared" / MANIFEST).is_file():
        prepare(meds, folder / "prepared", study=study, tasks=[study.task])
    prepared = Prepared(folder / "prepared")
    fit(Plan.of(prepared, study.task.name, study), folder / "run", resume=True)
    run = Run(folder / "run")
    models = {NETWORK: run.predictor}
    if run.blend is not None:
        models = {NETWORK: run.blend.parts[0], "blend": run.blend}
    train, tuning, held_out = (
        prepared.records(study.task.name, name) for name in ("train", "tuning", "held_out")
    )
    rivals = FittingData(
        run.task,
        run.vocabulary,
        train,
        tuning,
        run.model.config.edges_days,
        study.evaluation.seed,
        enough=prepared.study.vocabulary.min_subjects,
        recalibration=study.training.recalibration,
    )
    kept = (STACKED, BoostedVisits.name, LandmarkCox.name)
    known = known_baselines(run, seed=study.evaluation.seed, trials=None)
    fitted = fit_baselines("fast", rivals, known=known)
    models |= {one.model.name: one.model for one in fitted if one.model.name in kept}
    found = {name: scores(model, held_out, tuning) for name, model in models.items()}
    write_json(done, found)
    shutil.rmtree(folder / "prepared")
    return found


# ---- tables ----------------------------------------------------------------------------------------------------------


def benchmark_table(divisions: Sequence[Mapping[str, Scores]]) -> str:
    """Mean ± sd over divisions in percent; what others published of all stays stands apart, below."""
    lines = [f"| {len(divisions)} divisions | AUROC | AUPRC | NLL |", "|---|---|---|---|"]
    for name in divisions[0]:
        auroc, auprc, nll = (
            [one[name][score] for one in divisions] for score in ("auroc", "auprc", "nll")
        )
        lines.append(f"| {name} | {percent(auroc)} | {percent(auprc)} | {np.mean(nll):.4f} |")
    lines += ["", "| published, 11,988 stays | AUROC | AUPRC |", "|---|---|---|"]
    lines += [f"| {name} | {auroc} | {auprc} |" for name, auroc, auprc in PUBLISHED]
    return "\n".join([*lines, "", ONE_TEST_PART])


def percent(values: Sequence[float]) -> str:
    """`86.1 ± 1.2`; no deviation of one value."""
    mean = f"{100 * np.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {100 * np.std(values, ddof=1):.1f}"


def main() -> None:
    """Train what is missing, then print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "data", type=Path, help="folder with task.yaml and published_splits.parquet"
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("settings", nargs="*", metavar="section.key=value")
    parser.add_argument("--raw", type=Path, nargs="+", help="the challenge's folders of text files")
    parser.add_argument("--divisions", type=int, default=5, help="how many of the five")
    arguments = parser.parse_intermixed_args()
    keep_freed_memory()
    study = load_study(None, [*SETTINGS, *arguments.settings])
    study = study.model_copy(update={"task": load_task(arguments.data / "task.yaml")})
    # of other settings, stays or models nothing is taken
    stays = sorted(map(str, arguments.raw or [arguments.data]))
    out = arguments.out / digest([study.model_dump(mode="json"), stays, FORMULAS])[:12]
    meds = arguments.data
    if arguments.raw:
        meds = out / "meds"
        if not (meds / "data").is_dir():
            write_meds(arguments.raw, meds)
    divisions = published(arguments.data / "published_splits.parquet")
    found = []
    for name, splits in list(divisions.items())[: arguments.divisions]:
        folder = out / name
        found.append(judged(divided(meds, folder / "meds", splits), folder, study))
        print(f"{name} is done", flush=True)
    print(benchmark_table(found))


if __name__ == "__main__":
    main()
