"""`ehrseq serve` and `ehrseq export`: the run as a service on this machine, or as a folder for others."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ehrsequencing.cli.console import bar, finish, note, remark, say, shown
from ehrsequencing.cli.options import Force, Overwrite, RunFolder, open_run
from ehrsequencing.core.errors import EhrseqError, install
from ehrsequencing.core.signals import keep_freed_memory

if TYPE_CHECKING:
    from ehrsequencing.prediction.run import Run


# options of the command
_ServeData = Annotated[
    Path | None, typer.Argument(help="Folder of a MEDS data set, for the explorer's page")
]
_ServeToken = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="EHRSEQ_TOKEN",
        help="What clients must send; needed beyond this machine",
    ),
]
_ServeAllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        hidden=True,
        help="Another host name of this server, as behind a proxy; may be repeated",
    ),
]
_ServeStale = Annotated[
    str,
    typer.Option("--stale", help="A card gives no risk where the newest row is older"),
]
_ServeMaxBody = Annotated[
    int,
    typer.Option("--max-body", hidden=True, min=1, max=1024, help="Largest request, in MiB"),
]
_ServeMaxRows = Annotated[
    int,
    typer.Option(
        "--max-rows",
        hidden=True,
        min=1,
        help="Most rows of a record, and half the JSON objects",
    ),
]
_ServeMaxVisits = Annotated[
    int, typer.Option("--max-visits", hidden=True, min=1, help="Most visits of a record")
]
_ServePage = Annotated[
    bool, typer.Option("--page/--no-page", hidden=True, help="Show DATA in the explorer")
]
_ServeWhatIf = Annotated[
    bool,
    typer.Option(
        "--what-if/--no-what-if",
        hidden=True,
        help="Compute the risk without each code and each visit",
    ),
]
_ServeTimeout = Annotated[
    float,
    typer.Option("--timeout", hidden=True, min=0.1, help="Longest wait for an answer, in seconds"),
]


def serve(
    run: RunFolder,
    data: _ServeData = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0: any free one")] = 8000,
    token: _ServeToken = None,
    allow_host: _ServeAllowHost = None,
    stale: _ServeStale = "1y",
    max_body: _ServeMaxBody = 16,
    max_rows: _ServeMaxRows = 20_000,
    max_visits: _ServeMaxVisits = 5_000,
    page: _ServePage = True,
    what_if: _ServeWhatIf = True,
    force: Force = False,
    timeout: _ServeTimeout = 30.0,
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
    from ehrsequencing.serve.security import Limits

    limits = Limits(
        body_bytes=max_body * 2**20,
        held_bytes=4 * max_body * 2**20,
        objects=2 * max_rows,
        values=20 * max_rows,
        rows=max_rows,
        visits=max_visits,
        seconds=timeout,
        stale_days=day_of(stale, where="--stale"),
    )
    open_run(run, data=data)
    started: list[str] = []

    def explorer(opened: "Run") -> str | None:
        if data is None or not page:
            return None
        if opened.is_visit_head:
            note("note: the visit head has no risk curves, so there is no explorer")
            return None
        from ehrsequencing.explorer import ExplorerSettings, collect, page as page_of
        from ehrsequencing.prediction.predict import NewRecords

        settings = ExplorerSettings(what_if=what_if)
        with bar("reading the patients") as tick:
            records = NewRecords(opened, data)
            return page_of(collect(records, settings, force=force, progress=tick, say=note))

    def on_start(url: str) -> None:
        started.append(url)
        say(
            f"listening on {url} ({'with' if token else 'without'} a token); one patient: {url}/patient; the API is "
            f"described at {url}/openapi.json"
        )

    listen(
        run,
        data,
        host=host,
        port=port,
        token=token,
        names=tuple(allow_host or ()),
        limits=limits,
        explorer=explorer,
        on_start=on_start,
        say=remark,
    )
    finish(wrote={}, then=["predict", run, data or "DATA"], result={"url": started[0]})


# ---- `ehrseq export RUN`: a folder that may be shared, or risks for MEDS-DEV -----------------------------------------


def export(
    run: RunFolder,
    data: Annotated[
        Path | None, typer.Argument(help="meds-dev: folder of a MEDS data set, seen or not")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder or file to make")] = ...,  # type: ignore[assignment]
    overwrite: Overwrite = False,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="share: a folder for others; meds-dev: a risk for each of --labels (docs/scale.md)",
        ),
    ] = "share",
    labels: Annotated[
        Path | None, typer.Option("--labels", help="meds-dev: MEDS labels, a file or a folder")
    ] = None,
    cause: Annotated[
        str | None, typer.Option("--cause", help="meds-dev: which cause [the first]")
    ] = None,
    horizon: Annotated[
        str | None, typer.Option("--horizon", help="meds-dev: as in 90d [the task's only one]")
    ] = None,
    license_: Annotated[
        str | None,
        typer.Option(
            "--license", help="share: the licence that the model card names, as in cc-by-nc-4.0"
        ),
    ] = None,
) -> None:
    """Write the run for other people, or its risks for MEDS-DEV.

    share: a folder for ehrseq predict and ehrseq evaluate --data elsewhere, with a model card and without ids, dates,
    results and paths. It needs a run that was prepared with vocabulary.min_subjects of at least 11. meds-dev: the
    risk of one cause by one horizon for each label, as MEDS-DEV reads it.
    """
    from ehrsequencing.api.predictions import export as write

    open_run(run)
    written = write(
        run,
        out,
        data,
        format=format_,
        license=license_,
        labels=labels,
        cause=cause,
        horizon=horizon,
        overwrite=overwrite,
        progress=shown(),
        say=remark,
    )
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
