"""What a folder or a file of ours says that it is, so that a command can tell it from a stranger's."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Kind:
    """What a folder or a file of ours is.

    Attributes:
        name: `kind` in its manifest.
        what: The same in words.
        format: The newest `format` that this version knows.
    """

    name: str
    what: str
    format: int = 1

    @property
    def facts(self) -> dict[str, Any]:
        """What a manifest says of it."""
        return {"kind": self.name, "format": self.format}

    def is_of(self, facts: object) -> bool:
        """Whether a manifest names this kind, in a format that this version knows."""
        if not isinstance(facts, dict) or facts.get("kind") != self.name:
            return False
        return type(facts.get("format")) is int and 1 <= facts["format"] <= self.format


PREPARED = Kind("prepared", "a prepared data set")
IMPORTED = Kind("imported data set", "an imported data set")
SIMULATION = Kind("simulation", "a simulated data set")
RUN = Kind("run", "a run")
UNFINISHED_RUN = Kind("unfinished run", "an unfinished run")
CHECKPOINT = Kind("checkpoint", "a checkpoint")
EXTERNAL = Kind("external validation", "an external validation")
CHECK = Kind("check", "a report of ehrseq check")
PREDICTIONS = Kind("predictions", "predictions")
KINDS = (PREPARED, IMPORTED, SIMULATION, RUN, UNFINISHED_RUN, CHECKPOINT, EXTERNAL, CHECK, PREDICTIONS)


def is_json_of(path: Path, kind: Kind) -> bool:
    """Whether a file is JSON that names a kind of ours."""
    try:
        return kind.is_of(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return False


def parquet_mark(kind: Kind) -> dict[str, str]:
    """Metadata of a Parquet schema that says what the file is."""
    return {"ehrsequencing": json.dumps(kind.facts)}


def is_parquet_of(path: Path, kind: Kind) -> bool:
    """Whether a file is Parquet with our mark."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return kind.is_of(json.loads((pq.read_schema(path).metadata or {}).get(b"ehrsequencing", b"")))
    except (OSError, ValueError, pa.ArrowException):
        return False
