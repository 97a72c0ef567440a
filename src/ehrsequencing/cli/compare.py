"""`ehrseq compare --pool A/metrics.json B/metrics.json`: one model at several sites."""

from pathlib import Path
from typing import Annotated

import typer

from ehrsequencing.cli.console import finish, say
from ehrsequencing.cli.options import Overwrite
from ehrsequencing.core.errors import EhrseqError


def compare(
    files: Annotated[list[Path], typer.Argument(help="The metrics.json of each site")],
    out: Annotated[Path, typer.Option("--out", help="Folder to make")],
    pool_sites: Annotated[
        bool, typer.Option("--pool", help="Pool sites by random effects")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Pool the evaluations of one model at several sites.

    Each site runs ehrseq evaluate RUN --data on its own records and sends its metrics.json. C, O/E, IPA and the
    calibration slope are pooled by random effects, with an interval for their mean and one for another site.
    """
    if not pool_sites:
        raise EhrseqError("compares sites only", where="compare", fix="add --pool")
    from ehrsequencing.core.files import write_bytes, write_json
    from ehrsequencing.core.outputs import POOLED, complete_folder, write_manifest
    from ehrsequencing.evaluation.pooling import pool, read_sites
    from ehrsequencing.metrics.registry import METRICS
    from ehrsequencing.reporting.pages import mean, render_pooled, where

    result = pool(read_sites(files))
    with complete_folder(out, POOLED, overwrite=overwrite) as folder:
        write_json(folder / "pooled.json", result)
        write_bytes(folder / "pooled.html", render_pooled(result).encode())
        write_manifest(folder, POOLED.facts)
    for row in result["rows"]:
        say(f"{where(row)}: {METRICS[row['metric']].name} {mean(row)}, {row['pooled']} sites")
    page = out / "pooled.html"
    finish(wrote={"report": page}, then=f"open {page} in a browser", result=result)
