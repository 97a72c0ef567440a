"""`ehrseq train`."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from ehrsequencing.cli.console import finish, say, training_bar, unfinished, warn
from ehrsequencing.cli.inputs import make_room, read_study
from ehrsequencing.cli.launch import launch, launches, one_of_several
from ehrsequencing.cli.options import Config, Devices, Nodes, Overrides, Overwrite
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
    devices: Devices = 1,
    nodes: Nodes = 1,
    config: Config = None,
) -> None:
    """Fit a model, with early stopping on the tuning split."""
    if launches(devices, nodes):
        raise SystemExit(launch("train", devices, nodes))
    with one_of_several() as processes:
        keep_freed_memory()
        given = _with_mode(overrides or [], transfer, init)
        study = read_study(config, given, "train")
        from ehrsequencing.baselines.blend.train import trainer_of
        from ehrsequencing.cli.results import adapter_lines, kept_epochs
        from ehrsequencing.config import refuse_changes, refuse_other_task
        from ehrsequencing.core.outputs import RUN
        from ehrsequencing.records.prepared import Prepared
        from ehrsequencing.reporting.pretraining import transfer_advice, transfer_lines
        from ehrsequencing.training.pretrained import Pretrained
        from ehrsequencing.training.processes import ALONE
        from ehrsequencing.training.run_folder import alone_in

        all_of_them = processes or ALONE
        if overwrite and all_of_them.is_first:
            make_room(prepared, out, RUN, resume=resume)
        with alone_in(out) if all_of_them.is_first else nullcontext():  # before the work begins
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
                processes=all_of_them,
            )
            for line in transfer_lines(trainer.started_from):
                say(line)
            if advice := transfer_advice(trainer.started_from):
                warn(advice)
            with unfinished(out), training_bar() as show:
                trainer.fit(resume=resume, on_progress=show)
            if not all_of_them.is_first:
                return
            lines, facts = kept_epochs(out)
            for line in [*lines, *adapter_lines(out)]:
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
