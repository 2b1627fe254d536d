"""Hosts for the tests of engines: namespaces with a network, a name, processes and folders.

The first host, "login", is where commands are typed. The other ones are nodes: they have processes
of their own, so that a node can be lost as a whole. `/tmp`, `/root` and `/run` are each host's own;
`/mnt` is one folder of all of them, as a cluster's file system is. Only the checkout and Python are
those of the machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.waiting import until

ROOT = Path(__file__).parents[2]
INIT = Path(__file__).with_name("host_init.py")
LOGIN = "login"
SOON_S = 120.0
THERE = ("sh", "-c", 'cd /mnt && exec "$@"', "sh")

# What provides the commands that the tests of each engine need.
PACKAGES = {
    "ip": "iproute2",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "mpirun.openmpi": "openmpi-bin",
    "mpirun.mpich": "mpich",
    "munged": "munge",
    "slurmd": "slurmd",
    "slurmctld": "slurmctld",
    "sbatch": "slurm-client",
}
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def need(*commands: str) -> None:
    """Skip the tests of a module unless these commands are there, and hosts can be made."""
    missing = [PACKAGES[one] for one in ("ip", *commands) if not shutil.which(one, path=PATH)]
    if missing:
        pytest.skip(f"Debian packages are missing: {' '.join(missing)}", allow_module_level=True)
    if os.geteuid() != 0:
        pytest.skip("only root can make hosts (namespaces)", allow_module_level=True)
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "true"],
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
    )
    if tried.returncode:
        pytest.skip(f"this system gives no namespaces: {tried.stderr}", allow_module_level=True)


class Command:
    """A command that runs beside the test; what it prints goes to files."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, env=environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def out(self) -> str:
        return self._out.read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8")

    def ended(self) -> int:
        """Wait for its end; return how it ended."""
        return self.process.wait(SOON_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(SOON_S)


class TestHost:
    """A host. `folder` is where its own folders lie, as seen from outside."""

    __test__ = False

    def __init__(self, name: str, address: str, folder: Path, shared: Path) -> None:
        self.name, self.address, self.folder = name, address, folder
        self._shared = shared
        self._init: subprocess.Popen[str] | None = None
        self.is_login = name == LOGIN

    def start(self, hosts_file: Path) -> None:
        folders = {"/tmp": "tmp", "/root": "root", "/run": "run"}
        for name in folders.values():
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "root").chmod(0o700)
        own = {over: str(self.folder / name) for over, name in folders.items()}
        wish = {
            "name": self.name,
            "over": {**own, "/mnt": str(self._shared), "/etc/hosts": str(hosts_file)},
            "keep": sorted({str(ROOT), sys.prefix, sys.base_prefix}),
        }
        apart = ["unshare", "--net", "--mount", "--uts"]
        if not self.is_login:
            apart += ["--pid", "--fork", "--kill-child", "--mount-proc"]
        self._init = subprocess.Popen(
            [*apart, sys.executable, str(INIT), json.dumps(wish)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._init.stdout is not None
        assert self._init.stdout.readline() == "ready\n"

    @property
    def pid(self) -> int:
        """The number of its first process, as seen from outside."""
        assert self._init is not None
        if self.is_login:
            return self._init.pid
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children")
        return int(children.read_text().split()[0])

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs one on this host."""
        spaces = ["--mount", "--net", "--uts", *([] if self.is_login else ["--pid"])]
        return ["nsenter", "--target", str(self.pid), *spaces, "--", *THERE, *command]

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on this host and wait for it."""
        done = subprocess.run(
            self.inside(command),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=SOON_S,
            check=False,
        )
        assert not check or done.returncode == 0, (command, done)
        return done

    def start_command(self, *command: str) -> Command:
        """Run a command on this host beside the test."""
        return Command(self.inside(command), Path(mkdtemp(dir=self.folder)))

    def processes(self, word: str) -> list[str]:
        """Return the command lines of its processes that have a word in them."""
        assert not self.is_login
        shown = self.run("ps", "-e", "-o", "args=").stdout.splitlines()
        return [line for line in shown if word in line and not line.startswith("ps ")]

    def has_none(self, word: str) -> None:
        """Wait until it has no such process."""
        until(lambda: not self.processes(word), lambda: self.processes(word), every_s=0.05)

    def lose(self) -> None:
        """Lose the host: all its processes at once, and its network."""
        if self._init is not None:
            self._init.kill()
            self.close()

    def close(self) -> None:
        if self._init is not None:
            assert self._init.stdin
            assert self._init.stdout
            self._init.stdin.close()
            self._init.stdout.close()
            self._init.wait(SOON_S)
            self._init = None


class Hosts:
    """All of them, and the cables between them."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self.folder, self.shared = folder, folder / "shared"
        self.shared.mkdir(parents=True)
        self._hosts_file = folder / "hosts"
        self._all = {
            name: TestHost(name, f"10.98.0.{number}", folder / name, self.shared)
            for number, name in enumerate((LOGIN, *names), 1)
        }
        self.login, *self.nodes = self._all.values()
        lines = [f"{host.address} {host.name}\n" for host in self._all.values()]
        self._hosts_file.write_text("127.0.0.1 localhost\n" + "".join(lines))

    def __getitem__(self, name: str) -> TestHost:
        return self._all[name]

    def start(self) -> None:
        self.login.start(self._hosts_file)
        self.login.run("ip", "link", "add", "hub", "type", "bridge")
        self.login.run("ip", "addr", "add", f"{self.login.address}/24", "dev", "hub")
        self.login.run("ip", "link", "set", "hub", "up")
        for host in self.nodes:
            self._bring(host)

    def _bring(self, host: TestHost) -> None:
        """Start a node and lay its cable."""
        host.start(self._hosts_file)
        words = ["type", "veth", "peer", "name", "eth0", "netns", str(host.pid)]
        # The network of a process is named by its number, as this machine counts them.
        self.login.run("ip", "link", "add", f"to-{host.name}", *words)
        self.login.run("ip", "link", "set", f"to-{host.name}", "master", "hub", "up")
        host.run("ip", "addr", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")

    def close(self) -> None:
        for host in reversed(self._all.values()):
            host.close()


def environment() -> dict[str, str]:
    """Return the environment of a person who has just logged in."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{PATH}",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def made_hosts(names: Sequence[str], folder: Path) -> Iterator[Hosts]:
    """Make hosts of these names, besides login."""
    hosts = Hosts(names, folder)
    with ExitStack() as stack:
        stack.callback(hosts.close)
        hosts.start()
        yield hosts


SSHD = """\
Port 22
HostKey /root/.ssh/id_ed25519
AuthorizedKeysFile /root/.ssh/id_ed25519.pub
PasswordAuthentication no
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
PidFile none
MaxStartups 100
SetEnv PATH={path} OMP_NUM_THREADS=1
"""
SSH = """\
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
"""


def _answers(login: TestHost, name: str) -> bool:
    return login.run("ssh", name, "true", check=False).returncode == 0


@contextmanager
def serving_ssh(hosts: Hosts) -> Iterator[None]:
    """Let every host reach every node by ssh."""
    key = hosts.folder / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    everywhere = [hosts.login, *hosts.nodes]
    for host in everywhere:
        home = host.folder / "root" / ".ssh"
        home.mkdir(mode=0o700, exist_ok=True)
        for name in (key.name, f"{key.name}.pub"):
            shutil.copy(hosts.folder / name, home / name)
        (home / "config").write_text(SSH)
        (home / "sshd_config").write_text(SSHD.format(path=environment()["PATH"]))
        (host.folder / "run" / "sshd").mkdir(exist_ok=True)
    with ExitStack() as stack:
        for host in hosts.nodes:
            process = subprocess.Popen(
                host.inside(
                    [str(shutil.which("sshd", path=PATH)), "-D", "-f", "/root/.ssh/sshd_config"]
                ),
                env=environment(),
                stdin=subprocess.DEVNULL,
            )
            stack.callback(process.wait, SOON_S)
            stack.callback(process.kill)
        for host in hosts.nodes:
            until(partial(_answers, hosts.login, host.name))
        yield
        hosts.close()  # before the servers are waited for: they end with their hosts
