"""Records in Python: imports from other formats, `check`, `codes`, `simulate`. The commands call them."""

import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from ehrsequencing.api.data import meds_folder, study_of, tasks_of
from ehrsequencing.api.progress import bar
from ehrsequencing.config import DataConfig, ImportConfig, StudyConfig, validated
from ehrsequencing.core.files import private_folder
from ehrsequencing.readers.import_report import ImportReport
from ehrsequencing.readers.registry import all_readers
from ehrsequencing.records.check import DataCheck, check_data
from ehrsequencing.records.code_search import FoundCode, find_codes
from ehrsequencing.simulate import SimulationConfig, simulate as write_simulation


def import_source(
    name: str,
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: bool = True,
    **settings: Any,
) -> ImportReport:
    """Turn records of a source format (`readers.registry`) into a MEDS data set.

    Args:
        name: Of the format.
        source: What to read.
        out: Folder to make.
        overwrite: Whether an earlier import there that nobody has changed is replaced.
        progress: Whether to show a bar.
        settings: What the source does not tell, as in `dates="dmy"` or `time_zone="Europe/Berlin"`.

    Returns:
        The account of every row and cell: `lines()`, `warnings()`, `as_json()`.

    Raises:
        EhrseqError: The source cannot be read, or nothing is left of a table.
    """
    chosen = validated(ImportConfig, settings, where="import")
    with bar("importing", show=progress) as tick:
        return all_readers()[name](
            os.fspath(source), Path(out), settings=chosen, overwrite=overwrite, progress=tick
        )


def import_omop(
    source: str | os.PathLike[str], out: str | os.PathLike[str], **options: Any
) -> ImportReport:
    """Turn tables of the OMOP model (a folder, or a database's URL) into MEDS.

    Options, explained at `import_csv`: `overwrite`, `progress`, `dates` and `time_zone`.
    """
    return import_source("omop", source, out, **options)


def import_fhir(
    source: str | os.PathLike[str], out: str | os.PathLike[str], **options: Any
) -> ImportReport:
    """Turn FHIR R4 resources (NDJSON files or Bundles) into MEDS.

    Options, explained at `import_csv`: `overwrite`, `progress`, `dates` and `time_zone`.
    """
    return import_source("fhir", source, out, **options)


def import_synthea(
    source: str | os.PathLike[str], out: str | os.PathLike[str], **options: Any
) -> ImportReport:
    """Turn the CSV files of Synthea into MEDS.

    Options, explained at `import_csv`: `overwrite`, `progress`, `dates` and `time_zone`.
    """
    return import_source("synthea", source, out, **options)


def import_csv(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    map: str | os.PathLike[str] | Mapping[str, Any],
    **options: Any,
) -> ImportReport:
    """Turn a flat table into MEDS.

    Args:
        source: A CSV, CSV.gz or Parquet file with a header; or the folder of the files that the map names.
        out: Folder to make.
        map: What the columns mean: a YAML file, or its content (docs/data.md#any-flat-table).
        options: `overwrite` (replace an earlier import that nobody has changed), `progress` (show a bar), `dates`
            (`dmy`, `mdy` or `ymd`), `time_zone`.

    Returns:
        The account of every row and cell: `lines()`, `warnings()`, `as_json()`.

    Raises:
        EhrseqError: The source cannot be read, a column is missing, or nothing is left.
    """
    if not isinstance(map, Mapping):
        return import_source("csv", source, out, map=Path(map), **options)
    with private_folder() as folder:
        file = folder / "map.yaml"
        file.write_text(yaml.safe_dump(dict(map)), encoding="utf-8")
        return import_source("csv", source, out, map=file, **options)


def check(
    data: Any,
    task: Any = None,
    *,
    study: StudyConfig | None = None,
    progress: bool = True,
    **sections: Any,
) -> DataCheck:
    """What is wrong in the records, the automatic fixes, and what a task makes of them; writes nothing.

    Args:
        data: A folder of MEDS data, or a frame of MEDS rows.
        task: As of `prepare`.
        study: All settings in one, in the place of sections.
        progress: Whether to show a bar.
        sections: As of `prepare`.

    Returns:
        What was found; `print` it, or take `as_json()`.

    Raises:
        EhrseqError: `prepare` would refuse the data or the task.

    Example:
        >>> import ehrsequencing as eh
        >>> checked = eh.check("meds/", task="task.yaml", progress=False)
        >>> checked.tasks[0].attrition["prediction_times"]
        3494
    """
    settings = study_of(study, sections, where="check")
    tasks = tasks_of(task, settings)
    with meds_folder(data) as folder, bar("checking", show=progress) as tick:
        return check_data(folder, study=settings, tasks=tasks, progress=tick)


def codes(
    data: Any, text: str = "", *, top: int | None = None, progress: bool = True, **facts: Any
) -> pd.DataFrame:
    """Codes by words of their names or descriptions, or by a pattern; without a text all of them.

    Args:
        data: A folder of MEDS data, or a frame of MEDS rows.
        text: Words, or a pattern as in `ICD10CM//E11*`.
        top: How many; default: all.
        progress: Whether to show a bar.
        facts: What the data's own files do not tell (the section `data`).

    Returns:
        Columns `code`, `description`, `subjects`, `rows`, those with most subjects first. Counts from 1 to 10 are
        hidden, except in simulated data.

    Raises:
        EhrseqError: Nothing fits; the message has words that come close.

    Example:
        >>> import ehrsequencing as eh
        >>> list(eh.codes("meds/", "enrolment", progress=False).code)
        ['ENROLLMENT']
    """
    settings = validated(DataConfig, facts, where="codes")
    with meds_folder(data) as folder, bar("searching", show=progress) as tick:
        matches = find_codes(folder, text, settings=settings, progress=tick)
    # objects, since whole numbers beside None would become floats
    return pd.DataFrame(
        map(asdict, matches[:top]), columns=[f.name for f in fields(FoundCode)], dtype=object
    )


def simulate(
    out: str | os.PathLike[str],
    *,
    subjects: int = 4000,
    seed: int = 0,
    truth: str = "held_out",
    overwrite: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Path:
    """Write a simulated MEDS data set with its true risks and its `task.yaml`.

    Args:
        out: Folder to make.
        subjects: How many subjects.
        seed: Of the simulation.
        truth: Whose truth to compute: `held_out` or `all`.
        overwrite: Whether an earlier simulation there that nobody has changed is replaced.
        progress: Whether to show a bar.
        settings: Those of the simulator, as in `pairs=12`.

    Returns:
        The folder.

    Raises:
        EhrseqError: A setting is unknown, or the folder cannot be made.

    Example:
        >>> import ehrsequencing as eh
        >>> folder = eh.simulate("simulated", subjects=20, truth_futures=4, progress=False)
        >>> (folder / "task.yaml").is_file()
        True
    """
    world = validated(SimulationConfig, settings, where="settings")
    with bar("simulating", show=progress) as tick:
        write_simulation(
            Path(out),
            subjects=subjects,
            seed=seed,
            truth=truth,  # type: ignore[arg-type]
            config=world,
            overwrite=overwrite,
            progress=tick,
        )
    return Path(out)
