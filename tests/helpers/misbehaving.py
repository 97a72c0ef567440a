"""What a child process of `limited.py` may do wrong: run in place of that module, with other work."""

import os
import time
from pathlib import Path

from ehrsequencing.core import limited
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import private_folder


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


def write_on(folder: str) -> None:
    """Write more and more, until somebody kills this process."""
    for number in range(6000):
        Path(folder, "written").write_text(f"{os.getpid()} {number}")
        time.sleep(0.05)


def wait_for(folder: str) -> None:
    """In a parent: a private folder, in which a child writes on."""
    limited._CHILD = "helpers.misbehaving"
    with private_folder() as place:
        limited.in_limited_child("write_on", {"folder": str(place)}, where="x", limits=limited.Limits())


if __name__ == "__main__":
    work = {work.__name__: work for work in (eat, sleep, crash, write, refuse, write_on)}
    limited._WORK = {name: lambda function=function: function for name, function in work.items()}  # type: ignore[misc]
    limited._main()
