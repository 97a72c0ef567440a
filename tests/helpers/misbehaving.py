"""What a child process of `limited.py` may do wrong."""

import os
import time
from pathlib import Path

from ehrsequencing.errors import EhrseqError


def eat(gib: int, folder: str) -> int:
    return len(bytearray(gib << 30))


def sleep(seconds: int, folder: str) -> None:
    time.sleep(seconds)


def crash(folder: str) -> None:
    os.kill(os.getpid(), 11)


def write(mib: int, folder: str) -> None:
    Path(folder, "large").write_bytes(bytes(mib << 20))


def refuse(folder: str) -> None:
    raise EhrseqError("is refused", where=folder, fix="none")
