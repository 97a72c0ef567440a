"""The kinds of folders and files that ehrseq writes, and how each is recognised.

A folder or JSON file names its kind and format version, a Parquet file has them in its metadata and a page in its
head. A command replaces only what it recognises. The names of files that every folder of a kind has are here too.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One kind of output."""

    name: str  # `kind` in its manifest
    what: str  # the name in messages
    needs: tuple[
        str, ...
    ] = ()  # the files that every folder of this kind must have, with their hashes
    format: int = 2  # the newest `format` that this version can read; from 2 on, a manifest has a digest of itself

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
LOCK = ".ehrseq-lock"  # in a folder that a command is writing: who it is
HISTORY = "history.jsonl"  # of a run: one line per epoch
# The files of a run that prediction needs. Its other files may be deleted or edited.
RUN_NEEDS = (
    "config.json",
    "config.yaml",
    "model.safetensors",
    "vocabulary.json",
    "vocabulary.safetensors",
)

_VOCABULARY = ("vocabulary.json", "vocabulary.safetensors")
_SPLITS, _CARD = "metadata/subject_splits.parquet", "metadata/dataset.json"

PREPARED = Kind("prepared", "a prepared data set", ("config.yaml", *_VOCABULARY))
IMPORTED = Kind("imported data set", "an imported data set", (_SPLITS, _CARD))
SIMULATION = Kind("simulation", "a simulated data set", (_SPLITS, _CARD, "task.yaml"))
RUN = Kind("run", "a run", RUN_NEEDS)
SHARED_RUN = Kind("shared run", "a shared model", RUN_NEEDS)
UNFINISHED_RUN = Kind("unfinished run", "an unfinished run")
PRETRAINED = Kind("pretraining", "a pretrained model", RUN_NEEDS)
UNFINISHED_PRETRAINING = Kind("unfinished pretraining", "an unfinished pretraining")
CHECKPOINT = Kind("checkpoint", "a checkpoint", ("state.json", "state.safetensors"))
EXTERNAL = Kind("external validation", "an external validation", ("metrics.json",))
SCORE = Kind("score", "a score of predictions", ("metrics.json",))
POOLED = Kind("pooled sites", "a pooling of sites", ("pooled.json",))
PLAIN_COPY = Kind("plain copy", "a plain copy of a data set")
CHECK = Kind("check", "a report of ehrseq check")
PREDICTIONS = Kind("predictions", "predictions")
EXPLORER = Kind("explorer", "an explorer")
EXPLANATION = Kind("explanation", "a table of ehrseq explain")
KINDS = (
    *(
        PREPARED,
        IMPORTED,
        SIMULATION,
        RUN,
        UNFINISHED_RUN,
        PRETRAINED,
        UNFINISHED_PRETRAINING,
        CHECKPOINT,
        EXTERNAL,
    ),
    *(
        SHARED_RUN,
        PLAIN_COPY,
        SCORE,
        POOLED,
        CHECK,
        PREDICTIONS,
        EXPLORER,
        EXPLANATION,
    ),
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
        return kind.is_of(
            json.loads((pq.read_schema(path).metadata or {}).get(b"ehrsequencing", b""))
        )
    except (OSError, ValueError, pa.ArrowException):
        return False


def page_mark(kind: Kind) -> str:
    """An element for the head of a page that names the kind."""
    return f'<meta name="ehrsequencing" content="{kind.name} {kind.format}">'


def is_page_of(path: Path, kind: Kind) -> bool:
    """Whether a file is a page of this kind: its mark is within the first 2,000 bytes."""
    try:
        with path.open("rb") as file:
            found = re.search(
                rb'<meta name="ehrsequencing" content="([a-z ]+) ([0-9]{1,6})">', file.read(2000)
            )
    except OSError:
        return False
    return found is not None and kind.is_of({"kind": found[1].decode(), "format": int(found[2])})
