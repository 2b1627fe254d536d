"""A Slurm of two nodes with munge: the controller on the login host, a slurmd on each node."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.engines.hosts import PATH, SOON_S, Hosts, TestHost, environment
from tests.waiting import until

CONF = """\
ClusterName=test
SlurmctldHost=login
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/run/slurmctld
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/run/slurmctld.log
SlurmdLogFile=/run/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
SlurmdTimeout=10
KillWait=30
JobRequeue=1
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=/run/jobcomp.log
NodeName=n[1-2] CPUs=1 State=UNKNOWN
PartitionName=normal Nodes=ALL Default=YES MaxTime=10
"""


class Slurm:
    """Its commands, typed on the login host."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self._servers: dict[str, list[subprocess.Popen[bytes]]] = {}

    def start(self, host: TestHost, server: str) -> None:
        """Start munge and a server of Slurm's on a host."""
        run = host.folder / "run"
        (run / "munge").mkdir(exist_ok=True)
        (run / "munge").chmod(0o755)
        key = run / "munge" / "key"
        if not key.exists():
            shutil.copy(self.hosts.folder / "munge.key", key)
            key.chmod(0o400)
        (run / "slurm.conf").write_text(CONF)
        for name in ("slurmctld", "slurmd"):
            (run / name).mkdir(exist_ok=True)
        files = [f"--{one}-file=/run/munge/{one}" for one in ("key", "log", "pid", "seed")]
        socket = "--socket=/run/munge/munge.socket.2"
        self._start(host, "munged", "--foreground", "--force", socket, *files)
        until((run / "munge" / "munge.socket.2").exists)
        self._start(host, server, "-D")

    def _start(self, host: TestHost, server: str, *words: str) -> None:
        program = str(shutil.which(server, path=PATH))
        process = subprocess.Popen(
            host.inside([program, *words]),
            env=environment() | {"SLURM_CONF": "/run/slurm.conf"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._servers.setdefault(host.name, []).append(process)

    def ready(self) -> None:
        """Wait until both nodes are free."""
        until(lambda: self.states() == {"idle"}, self.states, every_s=0.1)

    def states(self) -> set[str]:
        return set(self.login("sinfo", "-h", "-N", "-o", "%t").split())

    def login(self, *command: str, check: bool = True) -> str:
        """Type a command; return what it prints."""
        words = ["env", "SLURM_CONF=/run/slurm.conf", *command]
        return self.hosts.login.run(*words, check=check).stdout

    def submit(self, script: str, *flags: str) -> str:
        """Hand a script in; return the number of the job."""
        path = self.hosts.shared / "job.sh"
        path.write_text(script)
        return self.login("sbatch", "--parsable", "--output=/mnt/%j.out", *flags, "job.sh").strip()

    def state(self, job: str) -> str:
        """Return the state and the exit code of a job, as Slurm has it."""
        words = self.login("scontrol", "show", "job", job, "-o", check=False).split()
        found = dict(word.partition("=")[::2] for word in words)
        return f"{found.get('JobState')} {found.get('ExitCode')}"

    def ended(self, job: str) -> str:
        """Wait for the end of a job; return its state and exit code."""
        active = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED")
        state = ""

        def is_over() -> bool:
            nonlocal state
            state = self.state(job)
            return not state.startswith(active)

        until(is_over, lambda: (state, self.output(job)), every_s=0.2)
        return state

    def output(self, job: str) -> str:
        """Return what a job has printed."""
        node = self.hosts.shared / f"{job}.out"
        return node.read_text() if node.exists() else ""

    def close(self) -> None:
        for processes in self._servers.values():
            for process in processes:
                process.kill()
                process.wait(SOON_S)


@contextmanager
def made_slurm(hosts: Hosts) -> Iterator[Slurm]:
    """Start it on hosts that have been made."""
    (hosts.folder / "munge.key").write_bytes(os.urandom(1024))
    slurm = Slurm(hosts)
    with ExitStack() as stack:
        stack.callback(slurm.close)
        slurm.start(hosts.login, "slurmctld")
        for host in hosts.nodes:
            slurm.start(host, "slurmd")
        slurm.ready()
        yield slurm
        hosts.close()  # before the servers are waited for: they end with their hosts
