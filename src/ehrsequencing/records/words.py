"""Lines for a terminal, from templates that lie beside the code."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ehrsequencing.config import format_days
from ehrsequencing.core.disclosure import count_text


def lines_of(path: Path, **values: Any) -> list[str]:
    """The lines that a template makes of some values; blank ones are left out."""
    return [line for line in _template(path).render(values).split("\n") if line.strip()]


@cache
def _template(path: Path) -> Any:
    from jinja2 import Environment, StrictUndefined

    made = Environment(
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: str(value).replace("\n", " "),  # a name stays in its line
    )
    made.filters["n"] = "{:,}".format
    made.filters["wide"] = "{:>10,}".format
    made.filters["percent"] = "{:.1%}".format
    made.filters["few"] = count_text
    made.filters["days"] = format_days
    made.filters["each"] = each
    return made.from_string(path.read_text("utf-8"))


def each(counts: Mapping[str, int], between: str = " ") -> str:
    """Counts of things, as in `3,000 train, 7 tuning`."""
    return ", ".join(f"{count:,}{between}{name}" for name, count in counts.items())
