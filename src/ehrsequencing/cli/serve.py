"""`ehrseq serve RUN DATA`: the run as a service on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ehrsequencing.cli.console import bar, finish, note, say
from ehrsequencing.cli.options import Force, Recalibrate, RunFolder, open_run
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.process import keep_freed_memory

if TYPE_CHECKING:
    from ehrsequencing.prediction.run import Run
    from ehrsequencing.serve.page import LivePage


def serve(
    run: RunFolder,
    data: Annotated[
        Path | None, typer.Argument(help="Folder of a MEDS data set, for the explorer's page")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0: any free one")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="EHRSEQ_TOKEN",
            help="What clients must send; needed beyond this machine",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            hidden=True,
            help="Another host name of this server, as behind a proxy; may be repeated",
        ),
    ] = None,
    recalibrate: Recalibrate = False,
    max_body: Annotated[
        int,
        typer.Option("--max-body", hidden=True, min=1, max=1024, help="Largest request, in MiB"),
    ] = 16,
    max_rows: Annotated[
        int, typer.Option("--max-rows", hidden=True, min=1, help="Most rows of a record")
    ] = 100_000,
    max_visits: Annotated[
        int, typer.Option("--max-visits", hidden=True, min=1, help="Most visits of a record")
    ] = 10_000,
    page: Annotated[
        bool, typer.Option("--page/--no-page", hidden=True, help="Show DATA in the explorer")
    ] = True,
    what_if: Annotated[
        bool,
        typer.Option(
            "--what-if/--no-what-if",
            hidden=True,
            help="Strike each code and each visit in advance, for tables",
        ),
    ] = True,
    force: Force = False,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", hidden=True, min=0.1, help="Longest wait for an answer, in seconds"
        ),
    ] = 30.0,
) -> None:
    """Answer requests for risks over HTTP: MEDS rows, FHIR R4 bundles, CDS Hooks.

    With DATA it also shows the explorer, as a page on which any codes and visits may be struck.
    Listens on this machine only, unless --host says otherwise. Keeps nothing of a request. Stop it with Ctrl-C.
    """
    keep_freed_memory()
    try:
        from ehrsequencing.serve.app import serve as listen
    except ImportError as error:
        fix = 'install it with pip install "ehrsequencing[serve]"'
        raise EhrseqError(f"needs {error.name}", where="ehrseq serve", fix=fix) from error
    from ehrsequencing.serve.page import live_page
    from ehrsequencing.serve.security import Limits

    limits = Limits(body_bytes=max_body * 2**20, rows=max_rows, visits=max_visits, seconds=timeout)
    open_run(run)
    started: list[str] = []

    def live(found: "Run") -> "LivePage | None":
        if data is None or not page:
            return None
        if found.is_visit_head:
            note("note: the visit head has no risk curves, so there is no explorer")
            return None
        from ehrsequencing.prediction.predict import NewRecords

        with bar("reading the patients") as tick:
            records = NewRecords(found, data)
            return live_page(
                records,
                recalibrated=recalibrate,
                what_if=what_if,
                force=force,
                progress=tick,
                say=note,
            )

    def on_start(url: str) -> None:
        started.append(url)
        say(
            f"listening on {url} ({'with' if token else 'without'} a token); the API is described at {url}/openapi.json"
        )

    listen(
        run,
        data,
        host=host,
        port=port,
        token=token,
        names=tuple(allow_host or ()),
        recalibrated=recalibrate,
        limits=limits,
        live=live,
        on_start=on_start,
    )
    finish(wrote={}, then=["predict", run, data or "DATA"], result={"url": started[0]})
