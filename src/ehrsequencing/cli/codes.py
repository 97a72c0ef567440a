"""`ehrseq codes DATA TEXT`: finds codes for a task file."""

from typing import Annotated

import typer

from ehrsequencing.cli.console import bar, finish, say
from ehrsequencing.cli.options import Config, DataFolder, Overrides

LINE = 100  # columns


def codes(
    data: DataFolder,
    text: Annotated[str, typer.Argument(help="Words, or a pattern as in ICD10CM//E11*")],
    overrides: Overrides = None,
    top: Annotated[
        int, typer.Option("--top", min=1, help="How many codes to print; --json has all")
    ] = 10,
    config: Config = None,
) -> None:
    """Find codes by text in codes and descriptions, with how many subjects have them.

    Use them in a task file. Counts from 1 to 10 are hidden, except in simulated data.
    """
    from dataclasses import asdict

    from ehrsequencing.config import load_study, refuse_unused
    from ehrsequencing.records.codes import find_codes

    refuse_unused(overrides or (), "codes")
    study = load_study(config, overrides or ())
    with bar("searching") as tick:
        found = find_codes(data, text, settings=study.data, progress=tick)
    rows = [
        (one.code, _number(one.subjects), _number(one.rows), " ".join(one.description.split()))
        for one in found[:top]
    ]
    wide = max(len("code"), *(len(row[0]) for row in rows))
    say(f"{'code':<{wide}}  {'subjects':>9}  {'rows':>11}  description")
    for code, subjects, count, description in rows:
        line = f"{code:<{wide}}  {subjects:>9}  {count:>11}  {description}".rstrip()
        rest = max(LINE - len(line) + len(description), 20)
        say(
            line
            if len(line) <= LINE
            else f"{line.removesuffix(description)}{description[: rest - 1]}…"
        )
    if len(found) > top:
        more = len(found) - top
        say(
            f"and {more:,} other {'code' if more == 1 else 'codes'} (--top {len(found)} prints all)"
        )
    result = {"text": text, "codes": [asdict(one) for one in found]}
    finish(wrote={}, then=["check", data, "--task", "TASK.yaml"], result=result)


def _number(count: int | str | None) -> str:
    return f"{count:,}" if isinstance(count, int) else count or "hidden"
