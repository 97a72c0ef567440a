"""`ehrseq train`."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from ehrsequencing.cli.console import current, finish, say, training_bar, unfinished, warn
from ehrsequencing.cli.inputs import make_room, read_study
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
    from ehrsequencing.baselines.blend.train import trainer_of
    from ehrsequencing.cli.results import kept_epochs
    from ehrsequencing.config import refuse_changes, refuse_other_task
    from ehrsequencing.core.outputs import RUN
    from ehrsequencing.records.prepared import Prepared
    from ehrsequencing.reporting.pretraining import transfer_advice, transfer_lines
    from ehrsequencing.training.distributed import joined_processes
    from ehrsequencing.training.run_folder import Pretrained, alone_in

    with ExitStack() as stack:
        processes = stack.enter_context(joined_processes())
        if overwrite and processes.is_first:
            make_room(prepared, out, RUN, resume=resume)
        if processes.is_first:
            stack.enter_context(alone_in(out))  # before the work begins
        store = Prepared(prepared)
        refuse_changes(study, store.study, "train", file=config, by=prepared)
        if config is not None and study.task is not None:
            refuse_other_task(study.task, store.task(study.task.name), file=config, by=prepared)
            task = task or study.task.name
        source = None if init is None else Pretrained(init)
        trainer = trainer_of(
            store,
            task or store.only_task(),
            out,
            study=study,
            init=source,
            processes=processes,
        )
        if not processes.is_first:
            current().json = False  # process 0 prints
            trainer.fit(resume=resume)
            return
        for line in transfer_lines(trainer.started_from):
            say(line)
        if advice := transfer_advice(trainer.started_from):
            warn(advice)
        with unfinished(out), training_bar() as show:
            trainer.fit(resume=resume, on_progress=show)
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
