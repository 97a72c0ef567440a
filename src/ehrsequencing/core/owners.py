"""Who made a temporary file or holds a lock: host, boot, process and its start, so that others can tell if it lives.

A process number alone is not enough. Numbers are used again, and every container has a process 1.
"""

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# of `str(owner)`
PATTERN = r"(?P<host>[0-9a-f]{8})\.(?P<boot>[0-9a-f]{8})\.(?P<pid>\d+)\.(?P<start>\d+)"


@dataclass(frozen=True)
class Owner:
    """One process.

    Attributes:
        host: Hash of the host's name and the namespace of process numbers, which differs between containers.
        boot: Hash of what the system drew when it started.
        pid: Number of the process.
        start: When it started, in clock ticks since the boot; 0 where the system does not tell.
    """

    host: str
    boot: str
    pid: int
    start: int

    def __str__(self) -> str:
        return f"{self.host}.{self.boot}.{self.pid}.{self.start}"

    @property
    def is_alive(self) -> bool | None:
        """Whether the process still runs; None for one of another host or container, which we cannot see."""
        here = this_process()
        if self.host != here.host:
            return None
        return self.boot == here.boot and is_running(self.pid) and _start(self.pid) == self.start


def this_process() -> Owner:
    """The process that runs."""
    return _owner(os.getpid())


@cache  # by number, so that a forked process is another owner
def _owner(pid: int) -> Owner:
    namespace = os.readlink("/proc/self/ns/pid") if Path("/proc/self/ns/pid").is_symlink() else ""
    boot = Path("/proc/sys/kernel/random/boot_id")
    drawn = boot.read_text().strip() if boot.is_file() else ""
    return Owner(_hash(f"{platform.node()} {namespace}"), _hash(drawn), pid, _start(pid))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def is_running(pid: int) -> bool:
    """Whether a process has this number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's process
        return True
    return True


def _start(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # the name before it may hold blanks and brackets
    return int(text.rpartition(")")[2].split()[19])
