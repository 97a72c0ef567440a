"""`ehrseq train`, `pretrain`, `update`, and what a run is for: `serve` and `export`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ehrsequencing.api.progress import bar
from ehrsequencing.cli.console import (
    finish,
    note,
    outputs,
    remark,
    say,
    shown,
    unfinished,
    warn,
)
from ehrsequencing.cli.options import open_run, read_study
from ehrsequencing.core.errors import EhrseqError, install
from ehrsequencing.core.signals import keep_freed_memory
from ehrsequencing.results.result_types import Origin

if TYPE_CHECKING:
    from ehrsequencing.prediction.run import Run

FEW_FOUND = 0.5  # share of the records' codes below which little is transferred


def train(
    prepared: Path,
    out: Path,
    overrides: Sequence[str] | None,
    config: Path | None,
    task: str | None,
    **given: Any,
) -> None:
    """Fit a model, with early stopping on the tuning split."""
    study = read_study(config, overrides, "train")
    from ehrsequencing.api.training import refuse_of_network, train as train_run
    from ehrsequencing.config import refuse_changes, refuse_other_task
    from ehrsequencing.records.prepared import Prepared

    if not study.training.network:
        refuse_of_network(
            read_study(None, [*(overrides or ()), "training.network=false"], "train"),
            where="ehrseq train",
        )
    store = Prepared(prepared)
    if config is not None:  # settings of the command line are the command's own
        refuse_changes(study, store.study, "train", file=config, by=prepared)
    if config is not None and study.task is not None:
        refuse_other_task(study.task, store.task(study.task.name), file=config, by=prepared)
        task = task or study.task.name

    def show_start(started_from: Origin | None) -> None:
        if started_from is None:
            return
        overlap = started_from["overlap"]
        shares = [
            f"{each['share']:.0%} by {reason}"
            for reason, each in overlap.items()
            if reason != "none" and each["codes"]
        ]
        known = 1.0 - overlap["none"]["share"]
        say(
            f"starts from {started_from['folder']}: {', '.join(shares) or 'none'} of the records' codes;"
            f" {1.0 - known:.0%} not found"
        )
        if known < FEW_FOUND:
            warn(
                f"little is transferred: the model knows {known:.0%} of the records' codes. Give codes the names of the"
                " other data, or name their parents in metadata/codes.parquet. Compare with a training without --init."
            )

    given |= {"study": study, "task": task, "progress": shown()}
    with unfinished(out):
        is_first = train_run(store, out, on_start=show_start, say=note, **given)
    if not is_first:
        outputs[-1].json = False  # the first process prints
        return
    lines, facts = kept_epochs(out)
    for line in lines:
        say(line)
    finish(wrote={"run": out}, then=["evaluate", out], result=facts)


def kept_epochs(run: Path) -> tuple[list[str], dict[str, Any]]:
    """Which epoch a finished run kept and why, one line per model; and the same as facts for `--json`."""
    from ehrsequencing.core.files import read_json_lines
    from ehrsequencing.core.outputs import HISTORY, RUN, read_manifest
    from ehrsequencing.prediction.run import Run

    manifest, training = read_manifest(run, what=RUN.what, verify=False), Run(run).study.training
    history, members = read_json_lines(run / HISTORY), manifest.get("members")
    lines, facts = [], []
    for number, member in enumerate(members or [manifest], start=1):
        rows = [row for row in history if row.get("member", 1) == number]
        row_of_best = next((row for row in rows if row["epoch"] == member.get("best_epoch")), None)
        if row_of_best is None:
            continue
        who = f"model {number}: " if members else ""
        ended = f"training ran all {training.epochs} epochs"
        if len(rows) < training.epochs:
            ended = f"training stopped early, after {training.patience} epochs without a gain"
        nll = row_of_best["tuning_nll"]
        lines.append(
            f"{who}kept epoch {row_of_best['epoch']} of {len(rows)}, whose tuning NLL is lowest ({nll:.4f}); {ended}"
        )
        facts.append({"epoch": row_of_best["epoch"], "epochs": len(rows), "tuning_nll": nll})
    epochs = {
        "kept": facts,
        "tuning_nll": manifest.get("tuning_nll"),
        "parameters": manifest.get("parameters"),
    }
    for cause, weight in manifest.get("blend", {}).get("weight_of_network", {}).items():
        network = f"{100 * weight:.0f} %"
        lines.append(
            f"blend for {cause}: network {network}, trees and Cox {100 - 100 * weight:.0f} %"
        )
    return lines, epochs


def pretrain(
    prepared: Path,
    out: Path,
    overrides: Sequence[str] | None,
    config: Path | None,
    **given: Any,
) -> None:
    """Fit a model to records without labels; ehrseq train --init starts from it."""
    study = read_study(config, overrides, "pretrain")
    from ehrsequencing.api.training import pretrain as pretrain_model
    from ehrsequencing.config import refuse_changes
    from ehrsequencing.records.prepared import Prepared
    from ehrsequencing.reporting.pages import pretraining_lines

    store = Prepared(prepared)
    refuse_changes(study, store.study, "pretrain", file=config, by=prepared)
    with unfinished(out):
        results = pretrain_model(store, out=out, study=study, progress=shown(), **given)
    say("\n".join(pretraining_lines(results)))
    finish(
        wrote={"pretrained": out},
        then=["train", prepared, "--init", out, "--out", "run"],
        result=results,
    )


def update(run: Path, data: Path, out: Path, **given: Any) -> None:
    """Update a run for another hospital: the level, or level and slope.

    A closed test chooses what the events allow to learn: the level from 11 people with the event, the slope from 50.
    It may leave the run as it is.
    """
    opened, _ = open_run(run, data=data)
    from ehrsequencing.api.new_people import update as update_run

    made = update_run(opened.folder, data, out=out, progress=shown(), **given)
    facts = made.manifest["update"]
    judged = facts["judged"]
    for cause in made.task.causes:
        one = facts[cause]
        say(f"{cause}: {one['method']} (tested against {one['tested_against']})")
    say(f"on {judged['people']} people ({judged['how']}), before → after:")
    for name in ("nll", *made.task.causes):
        before, after = (judged[side][name] for side in ("before", "after"))
        say(f"  {name}: {before} → {after}")
    finish(wrote={"run": out}, then=["evaluate", out, "--data", data], result=facts)


def serve(
    run: Path,
    data: Path | None,
    allow_host: Sequence[str] | None,
    page: bool,
    **given: Any,
) -> None:
    """Answer requests for risks over HTTP: MEDS rows, CDS Hooks.

    With DATA it also shows the explorer's page.
    Listens on this machine only, unless --host says otherwise. Keeps nothing of a request. Stop it with Ctrl-C.
    """
    keep_freed_memory()
    try:
        from ehrsequencing.serve.app import serve as listen
    except ImportError as error:
        raise EhrseqError(
            f"needs {error.name}", where="ehrseq serve", fix=install("serve")
        ) from error
    from ehrsequencing.core.text import day_of
    from ehrsequencing.serve.predictor import Limits

    mebibytes, rows = given.pop("max_body"), given.pop("max_rows")
    limits = Limits(
        body_bytes=mebibytes * 2**20,
        held_bytes=4 * mebibytes * 2**20,
        objects=2 * rows,
        values=20 * rows,
        rows=rows,
        visits=given.pop("max_visits"),
        seconds=given.pop("timeout"),
        stale_days=day_of(given.pop("stale"), where="--stale"),
    )
    of_page = {name: given.pop(name) for name in ("what_if", "force")}
    open_run(run, data=data)
    started: list[str] = []

    def on_start(url: str) -> None:
        started.append(url)
        how = "with" if given["token"] else "without"
        say(
            f"listening on {url} ({how} a token); one patient: {url}/patient; the API is "
            f"described at {url}/openapi.json"
        )

    listen(
        run,
        data,
        names=tuple(allow_host or ()),
        limits=limits,
        explorer=partial(_explorer, data if page else None, **of_page),
        on_start=on_start,
        say=remark,
        **given,
    )
    finish(wrote={}, then=["predict", run, data or "DATA"], result={"url": started[0]})


def _explorer(data: Path | None, opened: "Run", *, what_if: bool, force: bool) -> str | None:
    """The explorer's page of some records, where there are some."""
    if data is None:
        return None
    if opened.is_visit_head:
        note("note: the visit head has no risk curves, so there is no explorer")
        return None
    from ehrsequencing.explorer import ExplorerSettings, collect, page
    from ehrsequencing.prediction.predict import NewRecords

    with bar("reading the patients", show=shown()) as tick:
        records, settings = NewRecords(opened, data), ExplorerSettings(what_if=what_if)
        return page(collect(records, settings, force=force, progress=tick, say=note))


# ---- `ehrseq export RUN`: a folder that may be shared, or risks for MEDS-DEV -----------------------------------------


def export(run: Path, data: Path | None, out: Path, **given: Any) -> None:
    """Write the run for other people, or its risks for MEDS-DEV.

    share: a folder for ehrseq predict and ehrseq evaluate --data elsewhere, with a model card and without ids, dates,
    results and paths. It needs a run that was prepared with vocabulary.min_subjects of at least 11. meds-dev: the
    risk of one cause by one horizon for each label, as MEDS-DEV reads it.
    """
    from ehrsequencing.api.predictions import export as write

    open_run(run)
    written = write(run, out, data, progress=shown(), say=remark, **given)
    if isinstance(written, list):
        say(f"read {out / 'README.md'} before you give the folder away")
        finish(
            wrote={"shared": out},
            then=["predict", out, "DATA", "--at", "last", "--out", "risks.csv"],
            result={"files": written},
        )
        return
    say(f"risks at {written:,} labels")
    finish(
        wrote={"predictions": out},
        then=f"meds-dev-evaluation predictions_path={out} output_dir=results",
        result={"labels": written},
    )
