"""What the tests of clusters share: settings, and work that kills whoever does it."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from ehrsequencing.config import load_study
from ehrsequencing.records.shard_work import ShardWork

STUDY = load_study(None, ["vocabulary.rollup=ancestors", "vocabulary.min_subjects=3"])


def fragile(folder: Path, victim: str) -> type[ShardWork]:
    """A `ShardWork` that kills its own process, or the JVM that started it, once in each pass.

    A class inside a function is sent to the workers with its code, since they cannot import the tests.
    """

    class Fragile(ShardWork):
        def _die_once(self, name: str) -> None:
            def parent(process: int) -> int:
                return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])

            chosen = os.getpid() if victim == "worker" else parent(os.getppid())
            try:
                with open(folder / name, "xb") as file:
                    file.write(Path(f"/proc/{chosen}/cmdline").read_bytes())
            except FileExistsError:
                return
            os.kill(chosen, signal.SIGKILL)
            time.sleep(60)

        def fit(self, *words: Any) -> Any:
            self._die_once("fit")
            return super().fit(*words)

        def encode(self, *words: Any) -> Any:
            self._die_once("encode")
            return super().encode(*words)

    return Fragile
