"""`ehrseq score PREDICTIONS DATA --task TASK.yaml`: evaluates the risks of any model."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ehrsequencing.cli.console import finish, note, say, stages
from ehrsequencing.cli.inputs import read_study, read_tasks
from ehrsequencing.cli.options import Config, DataFolder, Overrides, Overwrite
from ehrsequencing.core.process import keep_freed_memory


def score(
    predictions: Annotated[
        Path, typer.Argument(help="Risks of any model: .parquet, .csv or .csv.gz")
    ],
    data: DataFolder,
    overrides: Overrides = None,
    task: Annotated[Path, typer.Option("--task", help="Task file")] = ...,  # type: ignore[assignment]
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to make [NAME-score beside PREDICTIONS]")
    ] = None,
    overwrite: Overwrite = False,
    name: Annotated[
        str | None, typer.Option("--name", help="What the model is called [the file's name]")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="train, tuning or held_out")] = "held_out",
    prepared: Annotated[
        Path | None,
        typer.Option(
            "--prepared", help="What ehrseq prepare made of DATA and the task, to save time"
        ),
    ] = None,
    baselines: Annotated[str | None, typer.Option("--baselines", help="fast or none")] = None,
    config: Config = None,
) -> None:
    """Evaluate the risks of any model as evaluate does: same cohort, metrics, baselines and report.

    PREDICTIONS has the columns of what ehrseq predict writes: subject_id, prediction_time, cause, horizon_days, risk.
    Settings of prepare say how records become visits and splits; they matter for the baselines and the cohort.
    """
    keep_freed_memory()
    given = [*(overrides or ()), *([f"evaluation.baselines={baselines}"] if baselines else ())]
    study = read_study(config, given, "score" if prepared is None else "score --prepared")
    from ehrsequencing.api.evaluate import report_score
    from ehrsequencing.cli.results import main_results
    from ehrsequencing.evaluation.score import score as score_file
    from ehrsequencing.reporting.terminal import metric_lines

    question = read_tasks([task], study)[0]
    with stages("scoring") as stage:
        scored = partial(
            score_file, predictions, data, question, out=out, name=name, split=split, study=study
        )
        result, folder = scored(
            prepared=prepared, overwrite=overwrite, progress=stage, draw=report_score
        )
    for text in result["warnings"]:
        note(f"note: {text}")
    say("\n".join(metric_lines(result)))
    report = folder / "report.html"
    finish(
        wrote={"report": report, "metrics": folder / "metrics.json"},
        then=f"open {report} in a browser",
        result=main_results(folder),
    )
