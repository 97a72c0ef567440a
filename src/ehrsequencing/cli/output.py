"""What one command has told so far, and the JSON object that `--json` prints of it."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Output:
    """What one command has told so far.

    Attributes:
        command: As people type it, without `ehrseq`.
        json: Print one JSON object at the end, and nothing else on stdout.
        quiet: Print warnings and errors only.
        wrote: What it is → path.
        next: The command to type next.
        result: The command's own facts.
        notes: Remarks.
        warnings: Remarks that `quiet` does not silence.
        error: What went wrong, where, and how to fix it.
    """

    command: str = ""
    json: bool = False
    quiet: bool = False
    wrote: dict[str, str] = field(default_factory=dict)
    next: str | None = None
    result: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    error: dict[str, str] | None = None

    def as_json(self, exit_code: int) -> str:
        """The JSON object, on one line."""
        facts = {
            "command": self.command,
            "exit_code": exit_code,
            "error": self.error,
            "wrote": self.wrote,
            "next": self.next,
            "notes": self.notes,
            "warnings": self.warnings,
            "result": self.result,
        }
        return json.dumps(_finite(facts), default=str)


def _finite(value: Any) -> Any:
    """JSON without NaN and infinity, which many readers refuse: null instead."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value
