"""`ehrseq pretrain`: a prepared set goes in; a model that `ehrseq train --init` starts from comes out."""

from pathlib import Path
from typing import Annotated

import typer

from ehrsequencing.cli.console import current, finish, say, unfinished
from ehrsequencing.cli.inputs import read_study
from ehrsequencing.cli.options import Config, Overrides, Overwrite
from ehrsequencing.core.process import keep_freed_memory


def pretrain(
    prepared: Annotated[Path, typer.Argument(help="What ehrseq prepare made")],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the pretrained model")] = ...,  # type: ignore[assignment]
    task: Annotated[
        str | None,
        typer.Option(
            "--task", help="Task whose outcomes, their relatives and near-synonyms are no targets"
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue after an interruption")
    ] = False,
    overwrite: Overwrite = False,
    config: Config = None,
) -> None:
    """Fit a model to records without labels; ehrseq train --init starts from it."""
    keep_freed_memory()
    study = read_study(config, overrides, "pretrain")
    from ehrsequencing.api.training import train_pretraining
    from ehrsequencing.config import refuse_changes
    from ehrsequencing.core.files import write_bytes
    from ehrsequencing.prediction.run import add_to_run
    from ehrsequencing.records.prepared import Prepared
    from ehrsequencing.reporting.pages import pretraining_lines, render_pretraining
    from ehrsequencing.reporting.report import ANSWER

    store = Prepared(prepared)
    refuse_changes(study, store.study, "pretrain", file=config, by=prepared)
    show = not current().quiet
    with unfinished(out):
        results = train_pretraining(
            store, out, study=study, task=task, resume=resume, overwrite=overwrite, progress=show
        )
    say("\n".join(pretraining_lines(results)))
    page = out / ANSWER
    html = render_pretraining(results).encode()
    add_to_run(out, ANSWER, lambda path: write_bytes(path, html))
    finish(
        wrote={"pretrained": out, "report": page},
        then=["train", prepared, "--init", out, "--out", "run"],
        result=results,
    )
