"""Settings of the import commands."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import create_model

from ehrsequencing.config.base import Settings, TimeZone
from ehrsequencing.config.files import read_settings, validated


class ImportConfig(Settings):
    """How an import reads its source, where the source itself does not tell."""

    # Order of day, month and year in dates written as text. None: found out, and refused where it is ambiguous.
    dates: Literal["dmy", "mdy", "ymd"] | None = None
    # Clock of the hospital, for times that are written in UTC: Europe/Berlin.
    time_zone: TimeZone | None = None
    # What the columns of a flat table mean, for `ehrseq import csv`.
    map: Path | None = None


_Sections: Any = create_model(
    "_Sections", __base__=Settings, **{"import": (ImportConfig, ImportConfig())}
)  # type: ignore[call-overload]


def load_import(overrides: Iterable[str] = ()) -> ImportConfig:
    """Settings of an import from `import.key=value` overrides."""
    sections = validated(_Sections, read_settings(None, overrides), where="settings")
    config: ImportConfig = getattr(sections, "import")
    return config
