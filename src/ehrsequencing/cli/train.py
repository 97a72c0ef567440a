"""`ehrseq train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ehrsequencing.cli.console import current, finish, say, unfinished, warn
from ehrsequencing.cli.inputs import read_study
from ehrsequencing.cli.options import Config, Overrides, Overwrite
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.process import keep_freed_memory


def train(
    prepared: Annotated[Path, typer.Argument(help="What ehrseq prepare made")],
    overrides: Overrides = None,
    task: Annotated[
        str | None, typer.Option("--task", help="Name of the task; the only one by default")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run")] = ...,  # type: ignore[assignment]
    init: Annotated[
        Path | None,
        typer.Option(
            "--init", help="Start from this model: made by ehrseq pretrain or ehrseq train"
        ),
    ] = None,
    transfer: Annotated[
        str | None, typer.Option("--transfer", help="With --init: full, frozen or lora [full]")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue after an interruption")
    ] = False,
    overwrite: Overwrite = False,
    config: Config = None,
) -> None:
    """Fit a model, with early stopping on the tuning split."""
    keep_freed_memory()
    given = _with_mode(overrides or [], transfer, init)
    study = read_study(config, given, "train")
    from ehrsequencing.api.training import train as train_run
    from ehrsequencing.cli.results import kept_epochs
    from ehrsequencing.config import refuse_changes, refuse_other_task
    from ehrsequencing.records.prepared import Prepared
    from ehrsequencing.reporting.pages import transfer_advice, transfer_lines

    store = Prepared(prepared)
    refuse_changes(study, store.study, "train", file=config, by=prepared)
    if config is not None and study.task is not None:
        refuse_other_task(study.task, store.task(study.task.name), file=config, by=prepared)
        task = task or study.task.name

    def show_start(started_from: Any) -> None:
        for line in transfer_lines(started_from):
            say(line)
        if advice := transfer_advice(started_from):
            warn(advice)

    show = not current().quiet
    with unfinished(out):
        is_first = train_run(
            store,
            out,
            study=study,
            task=task,
            init=init,
            resume=resume,
            overwrite=overwrite,
            progress=show,
            on_start=show_start,
        )
    if not is_first:
        current().json = False  # the first process prints
        return
    lines, facts = kept_epochs(out)
    for line in lines:
        say(line)
    finish(wrote={"run": out}, then=["evaluate", out], result=facts)


def _with_mode(overrides: list[str], transfer: str | None, init: Path | None) -> list[str]:
    """The settings of the command line with that of `--transfer`.

    Raises:
        EhrseqError: There is no model to transfer from, or the two name different modes.
    """
    of_transfer = [text for text in overrides if text.strip().startswith("transfer.")]
    if init is None and (transfer is not None or of_transfer):
        what = f"{of_transfer[0] if of_transfer else '--transfer'} needs --init"
        raise EhrseqError(
            what, where="ehrseq train", fix="name the model to start from, or leave it out"
        )
    if transfer is None:
        return overrides
    for text in of_transfer:
        name, _, mode = text.partition("=")
        if name.strip() == "transfer.mode" and mode.strip() != transfer:
            raise EhrseqError(
                f"--transfer {transfer} contradicts {text}",
                where="ehrseq train",
                fix="leave out one",
            )
    return [*overrides, f"transfer.mode={transfer}"]
