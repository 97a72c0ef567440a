"""A run's risks at the moments of a MEDS label file, in the format of MEDS-DEV.

    subject_id, prediction_time, boolean_value        of the labels
    predicted_boolean_probability                     risk of one cause by one horizon after prediction_time
    predicted_boolean_value                           whether that is at least one half

MEDS-DEV 0.0.14 pins meds-evaluation 0.0.3, which reads 64-bit probabilities only.

The labels say who is asked and when; the records alone decide the risk. So the run's task is applied with these moments
as its index times, and without its rule of who may enter. Each moment is asked about as an index or a landmark is, also
where a visit ends at it.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ehrsequencing.config import DataConfig
from ehrsequencing.config.task import IndexConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import refuse_overlap
from ehrsequencing.core.outputs import PREDICTIONS, output_file, refuse_existing
from ehrsequencing.prediction.predict import Moment, NewRecords, RiskPredictor
from ehrsequencing.prediction.prediction_file import with_notes
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.labels import read_boolean_labels
from ehrsequencing.records.survey import Progress

_SCHEMA = pa.schema(
    [
        ("subject_id", pa.int64()),
        ("prediction_time", pa.timestamp("us")),
        ("boolean_value", pa.bool_()),
        ("predicted_boolean_value", pa.bool_()),
        ("predicted_boolean_probability", pa.float64()),
    ]
)


def _column(predictor: RiskPredictor, cause: str | None) -> int:
    """The number of the cause that is asked, by one horizon."""
    if len(predictor.horizons_days) != 1 or predictor.horizons_days[0] is None:
        raise EhrseqError(
            "a prediction in this format needs one horizon in days",
            where="--horizon",
            fix="name one with --horizon; the visit head has none",
        )
    if cause is not None and cause not in predictor.causes:
        raise EhrseqError(
            f"{cause!r} is no cause of the run",
            where="--cause",
            fix=f"use {', '.join(predictor.causes)}",
        )
    return 0 if cause is None else predictor.causes.index(cause)


def predict_labels(
    run_folder: Path,
    data: Path,
    out: Path,
    *,
    labels: Path,
    cause: str | None = None,
    horizons_days: list[float] | None = None,
    facts: DataConfig | None = None,
    force: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _: None,
    overwrite: bool = False,
) -> int:
    """Write the risk of one cause by one horizon at the moments of a label file.

    Args:
        run_folder: A trained run.
        data: A MEDS data set.
        out: The Parquet file to write.
        labels: MEDS labels, a file or a folder: `subject_id`, `prediction_time`, `boolean_value`.
        cause: Default: the run's cause of interest.
        horizons_days: One horizon; may be left out where the run's task has one.
        facts: What the data set's own files do not tell.
        force: Whether to answer even if hardly any code of the data is known to the run.
        overwrite: Whether predictions that are there are replaced.
        progress: Called with (shards done, shards to do).
        say: Called with what a reader of the file should know.

    Returns:
        The number of labels that have a risk.

    Raises:
        EhrseqError: Labels, run or data cannot be used, or no label has a risk.
    """
    if not out.name.endswith(".parquet"):
        raise EhrseqError("does not end in .parquet", where=str(out), fix="write Parquet")
    refuse_existing(out, PREDICTIONS, overwrite=overwrite)
    refuse_overlap(out, data)
    refuse_overlap(out, labels)
    run, wanted = Run(run_folder), read_boolean_labels(labels)
    predictor = RiskPredictor(run, horizons_days)
    column = _column(predictor, cause)
    # The labels are the index times, for everybody in them; the file of the run's own index may be gone.
    index = IndexConfig(file=str(labels), which="every")
    run.task = run.task.model_copy(
        update={"index": index, "eligibility": None, "landmarks": (0.0,)}
    )
    records = NewRecords(run, data, facts, progress)
    answers = predictor.answers(records, Moment("all"), force=force, say=say)
    count, schema = 0, with_notes(_SCHEMA, records.made_by)
    with (
        output_file(out, PREDICTIONS, overwrite=overwrite) as temporary,
        pq.ParquetWriter(temporary, schema) as file,
    ):
        for risks in answers:
            place, risk_row = wanted.find(risks.subject_id, risks.prediction_us)
            risk = risks.risk[risk_row, column, 0]
            file.write_table(
                pa.Table.from_arrays(
                    [
                        pa.array(risks.subject_id[risk_row]),
                        pa.array(risks.prediction_us[risk_row]).cast(pa.timestamp("us")),
                        pa.array(wanted.value[place[risk_row]]),
                        pa.array(risk >= 0.5),
                        pa.array(risk.astype(np.float32)).cast(pa.float64()),
                    ],
                    schema=schema,
                )
            )
            count += len(risk)
        if not count:
            raise EhrseqError(
                "no label has a risk",
                where=str(labels),
                fix="check that the labels are of these records, and lie before the outcome",
            )
    if missing := len(wanted.value) - count:
        why = (
            "their subjects have no records there, had the outcome before, or the data ends before"
        )
        say(f"warning: {missing:,} of {len(wanted.value):,} labels have no prediction: {why}")
    return count
