"""A Slurm cluster of this machine alone: two nodes, each a `slurmd` of its own, in a folder that goes with the test.

The nodes have addresses for names, so that no file of the system must name them.
"""

import getpass
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ehrsequencing.cli.launch import free_port

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
NODES = ("127.0.0.1", "127.0.0.2")
_SBIN = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
_CONF = """
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
NodeName={one} NodeHostname=localhost NodeAddr=127.0.0.1 Port={first} CPUs=2 RealMemory=20000
NodeName={two} NodeHostname=localhost NodeAddr=127.0.0.1 Port={second} CPUs=2 RealMemory=20000
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def missing() -> list[str]:
    """Commands of Slurm that this machine lacks."""
    return [name for name in NEEDED if shutil.which(name, path=_SBIN) is None]


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        ehrseq = self.folder / "bin"
        paths = {"PATH": f"{ehrseq}{os.pathsep}{_SBIN}", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return {**os.environ, **paths, "SLURM_CONF": str(self.folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}

    def ask(self, *words: object) -> str:
        command = list(map(str, words))
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout.strip()

    @property
    def is_ready(self) -> bool:
        with suppress(subprocess.CalledProcessError):
            return self.ask("sinfo", "--noheader", "--format=%D %t") == f"{len(NODES)} idle"
        return False

    def submit(self, script: Path, *words: object, options: tuple[str, ...] = ()) -> str:
        """The number of the job. Its output is `NUMBER.out`, for an array `NUMBER_TASK.out`."""
        name = "%A_%a.out" if any(option.startswith("--array") for option in options) else "%j.out"
        given = ("--parsable", f"--output={self.folder / name}", "--time=10", "--mem=1G", *options)
        return self.ask("sbatch", *given, script, *words)

    def output(self, job: str) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob(f"{job}*.out")))

    def wait(self, job: str, seconds: float = 300.0) -> None:
        until = time.monotonic() + seconds
        while self.ask("squeue", "--noheader", "--jobs", job, "--states", "PENDING,RUNNING,COMPLETING"):
            if time.monotonic() > until:
                raise TimeoutError(self.output(job))
            time.sleep(0.2)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start the daemons, and end them after the block."""
    made = Cluster(folder)
    for name in ("state", "bin", *NODES):
        (folder / name).mkdir()
    conf = _CONF.format(
        folder=folder, user=getpass.getuser(), one=NODES[0], two=NODES[1], controller=free_port(),
        first=free_port(), second=free_port(),
    )  # fmt: skip
    (folder / "slurm.conf").write_text(conf)
    (folder / "bin" / "ehrseq").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ehrsequencing "$@"\n')
    (folder / "bin" / "ehrseq").chmod(0o755)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munge = [f"--{option}={folder}/munge.{ending}" for option, ending in files.items()]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        slurmds = [["slurmd", "-D", "-N", node] for node in NODES]
        commands = [["munged", "--foreground", "--force", *munge], ["slurmctld", "-D"], *slurmds]
        for number, command in enumerate(commands):
            with (folder / f"daemon-{number}.log").open("wb") as log:
                daemons.append(subprocess.Popen(command, env=made.environment, stdout=log, stderr=log))
            time.sleep(1.0)  # munged makes its socket, slurmctld its port
        until = time.monotonic() + 60
        while not made.is_ready:
            if time.monotonic() > until:
                raise TimeoutError((folder / "slurmctld.log").read_text())
            time.sleep(0.5)
        yield made
    finally:
        with suppress(subprocess.CalledProcessError):
            made.ask("scancel", "--signal=KILL", f"--user={getpass.getuser()}")
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)
