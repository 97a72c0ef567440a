"""Work on files of strangers in a child process with limits of memory, time and file sizes.

A bomb, an endless loop or a crash of a decoder ends the child, and the command ends with one clear error. The child
gets the name of the work and its arguments as JSON, and returns JSON: nothing that the parent loads can run code. On
Linux it dies with its parent. This is no sandbox: the child may read and write what the user may.
"""

import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ehrsequencing.core.errors import EhrseqError

_SLOW = "takes too long"
_CHILD = "ehrsequencing.core.limited"  # the module that the child runs
_WORK: dict[str, Callable[[], Callable[..., Any]]] = {  # what a child may do, imported there only
    "rewrite": lambda: import_module("ehrsequencing.records.plain_copy").rewrite,
    "import_source": lambda: import_module("ehrsequencing.readers.report_of_import").import_source,
}
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
_MEMORY = 17  # exit code of a child that asked for more memory than it may have


@dataclass(frozen=True)
class Limits:
    """What a child may use.

    Attributes:
        memory_bytes: Private memory, of which Python and Arrow themselves need about 300 MB.
        seconds: On the clock; processor time is limited to twice as much.
        file_bytes: Size of a file that it writes.
        shard_bytes: Memory that the rows of one file may take when they are decoded.
    """

    memory_bytes: int = 4 << 30
    seconds: int = 1800
    file_bytes: int = 2 << 30
    shard_bytes: int = 1 << 30


def in_limited_child(work: str, arguments: Mapping[str, Any], *, where: str, limits: Limits) -> Any:
    """Call a function in a limited child process and return its result.

    Args:
        work: Its name in the table of what a child may do.
        arguments: Keyword arguments, as JSON.
        where: What the work is about, for messages.
        limits: Memory, time, file sizes.

    Raises:
        EhrseqError: The function raised one; or the child came to one of its limits, or crashed.
    """
    words = [sys.executable, "-m", _CHILD, json.dumps(asdict(limits)), work, str(os.getpid())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
    ) as child:
        try:
            out, _ = child.communicate(json.dumps(arguments).encode(), timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            raise _beyond(_SLOW, f"{limits.seconds} s", where) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    return _result(child.returncode, out, where, limits)


def _result(code: int, out: bytes, where: str, limits: Limits) -> Any:
    """What a child returned, or the error that its end stands for."""
    told = _parsed(out)
    if code == 0 and "result" in told:
        return told["result"]
    if error := told.get("error"):
        raise EhrseqError(str(error["what"]), where=str(error["where"]), fix=str(error["fix"]))
    if code in (_MEMORY, -signal.SIGABRT, -signal.SIGKILL):
        raise _beyond("needs too much memory", f"{limits.memory_bytes / 2**30:g} GiB", where)
    if code == -signal.SIGXCPU:
        raise _beyond(_SLOW, f"{2 * limits.seconds} s of processor time", where)
    raise EhrseqError(
        "made the process that read it crash", where=where, fix="do not trust this data"
    )


def _parsed(out: bytes) -> dict[str, Any]:
    try:
        told = json.loads(out.decode())
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _beyond(what: str, limit: str, where: str) -> EhrseqError:
    fix = "do not trust it; if you do, split it into smaller files, or leave out --untrusted"
    return EhrseqError(f"{what}: the limit is {limit}", where=where, fix=fix)


def _restrict(limits: Limits) -> None:
    """Apply the limits to this process; where the system has none of a kind, it goes without."""
    try:
        import resource
    except ImportError:  # Windows
        return
    memory = resource.RLIMIT_DATA if sys.platform.startswith("linux") else resource.RLIMIT_AS
    for kind, most in (
        (memory, limits.memory_bytes),
        (resource.RLIMIT_CPU, 2 * limits.seconds),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))
    if hasattr(signal, "SIGXFSZ"):
        # then the write fails with an error of its own
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _die_with(parent: int) -> None:
    """Let the system kill this process when its parent dies, so that nothing goes on writing; Linux only."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        os._exit(1)


def _main() -> None:
    """The child: limits, work and parent on the command line, arguments on stdin, one JSON object on stdout."""
    limits = Limits(**json.loads(sys.argv[1]))
    _die_with(int(sys.argv[3]))
    _restrict(limits)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing but the result gets there
    code, told = 0, {}
    try:
        arguments = json.loads(sys.stdin.read())
        told = {"result": _WORK[sys.argv[2]]()(**arguments)}
    except EhrseqError as error:
        code, told = 2, {"error": {"what": error.what, "where": error.where, "fix": error.fix}}
    except MemoryError:
        code = _MEMORY
    except OSError as error:
        code, told = _of_system(error, limits)
    with suppress(MemoryError, ValueError):
        out.write(json.dumps(told))
        out.flush()
    os._exit(code)


def _of_system(error: OSError, limits: Limits) -> tuple[int, dict[str, Any]]:
    if error.errno == errno.ENOMEM:
        return _MEMORY, {}
    what = "would become too large" if error.errno == errno.EFBIG else "cannot be written or read"
    fix = (
        f"the limit of a file is {limits.file_bytes / 2**30:g} GiB"
        if error.errno == errno.EFBIG
        else error.strerror
    )
    where = os.fsdecode(error.filename) if error.filename else str(Path.cwd())
    return 2, {"error": {"what": what, "where": where, "fix": fix or "check the disk"}}


if __name__ == "__main__":
    _main()
