"""`ehrseq serve` and `ehrseq export`: the run as a service on this machine, or as a folder for others."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ehrsequencing.cli.console import bar, finish, note, remark, say, shown
from ehrsequencing.cli.options import open_run
from ehrsequencing.core.errors import EhrseqError, install
from ehrsequencing.core.signals import keep_freed_memory

if TYPE_CHECKING:
    from ehrsequencing.prediction.run import Run


def serve(
    run: Path,
    data: Path | None,
    token: str | None,
    allow_host: Sequence[str] | None,
    stale: str,
    max_body: int,
    max_rows: int,
    max_visits: int,
    page: bool,
    what_if: bool,
    force: bool,
    timeout: float,
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
        token=token,
        names=tuple(allow_host or ()),
        limits=limits,
        explorer=explorer,
        on_start=on_start,
        say=remark,
        **given,
    )
    finish(wrote={}, then=["predict", run, data or "DATA"], result={"url": started[0]})


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
