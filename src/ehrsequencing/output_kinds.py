"""The kinds of folders and files that ehrseq writes, and how each is recognised.

A folder or JSON file names its kind and format version, a Parquet file has them in its metadata. A command replaces
only what it recognises. The names of files that every folder of a kind has are here too.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One kind of output."""

    name: str  # `kind` in its manifest
    what: str  # the name in messages
    format: int = 1  # the newest `format` that this version can read

    @property
    def facts(self) -> dict[str, Any]:
        """The entries of a manifest that name the kind."""
        return {"kind": self.name, "format": self.format}

    def is_of(self, facts: object) -> bool:
        """Whether a manifest names this kind, in a format that this version can read."""
        if not isinstance(facts, dict) or facts.get("kind") != self.name:
            return False
        return type(facts.get("format")) is int and 1 <= facts["format"] <= self.format


MANIFEST = "manifest.json"  # of a folder: its kind and the hash of each file
HISTORY = "history.jsonl"  # of a run: one line per epoch
# The files of a run that prediction needs. Its other files may be deleted or edited.
RUN_NEEDS = ("config.json", "config.yaml", "model.safetensors", "vocabulary.json", "vocabulary.safetensors")

PREPARED = Kind("prepared", "a prepared data set")
IMPORTED = Kind("imported data set", "an imported data set")
SIMULATION = Kind("simulation", "a simulated data set")
RUN = Kind("run", "a run")
UNFINISHED_RUN = Kind("unfinished run", "an unfinished run")
PRETRAINED = Kind("pretraining", "a pretrained model")
UNFINISHED_PRETRAINING = Kind("unfinished pretraining", "an unfinished pretraining")
CHECKPOINT = Kind("checkpoint", "a checkpoint")
EXTERNAL = Kind("external validation", "an external validation")
SCORE = Kind("score", "a score of predictions")
CHECK = Kind("check", "a report of ehrseq check")
PREDICTIONS = Kind("predictions", "predictions")
KINDS = (
    *(PREPARED, IMPORTED, SIMULATION, RUN, UNFINISHED_RUN, PRETRAINED, UNFINISHED_PRETRAINING, CHECKPOINT, EXTERNAL),
    *(SCORE, CHECK, PREDICTIONS),
)


def is_json_of(path: Path, kind: Kind) -> bool:
    """Whether a file is JSON of this kind."""
    try:
        return kind.is_of(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return False


def parquet_mark(kind: Kind) -> dict[str, str]:
    """Metadata for a Parquet schema that names the kind."""
    return {"ehrsequencing": json.dumps(kind.facts)}


def is_parquet_of(path: Path, kind: Kind) -> bool:
    """Whether a file is Parquet of this kind."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return kind.is_of(json.loads((pq.read_schema(path).metadata or {}).get(b"ehrsequencing", b"")))
    except (OSError, ValueError, pa.ArrowException):
        return False
