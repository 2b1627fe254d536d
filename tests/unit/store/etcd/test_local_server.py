"""A real etcd starts, is killed, comes back, and never outlives the process that started it."""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import TimeoutExpired, Unavailable, UsageError
from holdfast.net.address import parse_endpoint
from holdfast.store.etcd import local_server as module
from holdfast.store.etcd.local_server import LocalEtcdServer, find_binary
from holdfast.store.etcd.v3.store import EtcdStore
from tests.waiting import with_more_time

TIMEOUT_S = 60.0


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# Which etcd.


@pytest.fixture
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no variable name an etcd, as in a run of these tests with another one."""
    for name in ("HOLDFAST_ETCD_BINARY", "TORCHELASTIC_ETCD_BINARY_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("unnamed")
def test_a_given_binary_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, named = tmp_path / "given", tmp_path / "named"
    for path in (given, named):
        path.write_bytes(b"")
    monkeypatch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", str(named))
    assert find_binary(given) == given
    assert find_binary() == named


@pytest.mark.usefixtures("unnamed")
def test_a_binary_on_the_path_comes_before_the_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "etcd"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary() == program


@pytest.mark.usefixtures("unnamed")
def test_a_script_on_the_path_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "etcd", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary().parent.name == "etcdbin"


@pytest.mark.usefixtures("unnamed")
def test_no_etcd_at_all_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(module, "_packaged_binary", lambda: None)
    with pytest.raises(UsageError, match=r"no etcd found: .*HOLDFAST_ETCD_BINARY"):
        find_binary()


def test_a_given_binary_must_exist() -> None:
    with pytest.raises(UsageError, match="'/no/such/etcd': there is no such file"):
        LocalEtcdServer(binary="/no/such/etcd").start()


@pytest.mark.parametrize("members", [0, 2, 5, "3"])
def test_one_member_or_three(members: int) -> None:
    with pytest.raises(UsageError, match="must be 1 or 3"):
        LocalEtcdServer(members)


# Starting.


def test_what_is_no_etcd_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its --version says b'hello"):
        LocalEtcdServer(binary=script(tmp_path / "etcd", "echo hello")).start()


def test_the_error_of_a_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    fake = script(
        tmp_path / "etcd",
        'test "$1" = --version && echo "etcd Version: 3.5.9" && exit 0\n'
        "echo first line; echo the real reason >&2; exit 3",
    )
    with pytest.raises(Unavailable, match=r"status 3: first line \| the real reason"):
        LocalEtcdServer(binary=fake).start(TIMEOUT_S)


def test_a_member_that_never_serves_ends_at_the_deadline(tmp_path: Path) -> None:
    fake = script(
        tmp_path / "etcd",
        'test "$1" = --version && echo "etcd Version: 3.6.1" && exit 0\necho "$@"; exec sleep 600',
    )

    def wait_in_vain(seconds: float) -> None:
        with pytest.raises(TimeoutExpired, match="does not serve: .*--name=member-0") as caught:
            LocalEtcdServer(binary=fake).start(timeout=seconds)
        assert "--enable-v2" not in str(caught.value)  # 3.6 does not know it

    with_more_time(wait_in_vain, 0.5)


def test_other_ports_are_tried_when_an_old_etcd_finds_one_taken(tmp_path: Path) -> None:
    """An etcd before 3.5 cannot share the ports that we hold; the first try shall find a clash."""
    real = find_binary()
    fake = script(
        tmp_path / "etcd",
        f'test "$1" = --version && echo "etcd Version: 3.4.1" && exit 0\n'
        f"test -e {tmp_path}/tried || {{ touch {tmp_path}/tried; "
        'echo "listen tcp: bind: address already in use"; exit 1; }\n'
        f'exec {real} "$@"',
    )
    with LocalEtcdServer(binary=fake) as server:
        assert server.leader() == 0
    assert (tmp_path / "tried").exists()


def test_an_unstarted_or_closed_server_refuses(etcd_server: LocalEtcdServer) -> None:
    server = LocalEtcdServer()
    for ask in (lambda: server.endpoint, server.leader, lambda: server.kill(0)):
        with pytest.raises(UsageError, match="start it first"):
            ask()
    server.close()
    with pytest.raises(UsageError, match="started already"):
        etcd_server.start()


# What it offers.


def test_the_endpoints(etcd_server: LocalEtcdServer) -> None:
    where = parse_endpoint(etcd_server.endpoint)
    assert where.scheme == "etcd"
    assert where.addresses == etcd_server.addresses
    assert parse_endpoint(etcd_server.endpoint_v2).scheme == "etcd-v2"


def test_the_ports_are_held_against_others(etcd_server: LocalEtcdServer) -> None:
    with socket.socket() as sock, pytest.raises(OSError, match="in use"):
        sock.bind(etcd_server.addresses[0])


def test_a_killed_member_is_away_and_comes_back_with_its_data() -> None:
    with LocalEtcdServer() as server, EtcdStore(server.addresses) as store:
        store.set("k", b"v")
        with pytest.raises(UsageError, match="kill it first"):
            server.restart(0)
        server.kill(0)
        server.kill(0)
        with pytest.raises(Unavailable):
            store.get("k", timeout=1.0)
        with pytest.raises(TimeoutExpired, match="no etcd member leads"):
            server.leader(timeout=0.1)
        server.restart(0)
        assert server.leader() == 0
        assert store.get("k") == b"v"
        with pytest.raises(UsageError, match="must be 0 to 0"):
            server.kill(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    """There could be a link in the place of any file that etcd or we would write."""
    folder = tmp_path / "data"
    folder.mkdir()
    os.chown(folder, 12345, -1)
    with pytest.raises(UsageError, match=r"data': belongs to user 12345, not to us"):
        LocalEtcdServer(data_dir=folder).start()


def test_a_given_folder_keeps_the_data_and_the_ports(tmp_path: Path) -> None:
    with LocalEtcdServer(data_dir=tmp_path / "data") as server:
        before = server.addresses
        with EtcdStore(server.addresses) as store:
            store.set("k", b"v")
    with LocalEtcdServer(data_dir=tmp_path / "data") as server:
        assert server.addresses == before
        with EtcdStore(server.addresses) as store:
            assert store.get("k") == b"v"
    with pytest.raises(UsageError, match="holds 1 members, not 3"):
        LocalEtcdServer(3, data_dir=tmp_path / "data").start()


def test_the_temporary_folder_is_removed() -> None:
    server = LocalEtcdServer().start()
    folder = server._folder
    assert folder is not None
    assert folder.is_dir()
    server.close()
    server.close()
    assert not folder.exists()


# No survivors.

PARENT = """
import sys, threading
from holdfast.store.etcd.local_server import LocalEtcdServer
server = LocalEtcdServer()
starter = threading.Thread(target=server.start)  # a thread that ends: etcd must not end with it
starter.start()
starter.join()
server.leader()
children = [member.process.pid for member in server._members]
print(*server.addresses, *children, flush=True)
sys.stdin.read()
"""


def test_no_etcd_survives_a_killed_parent(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout is not None
        _, guard = parent.stdout.readline().split()
        children = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
        assert len(children) == 1
        processes = [os.pidfd_open(int(pid)) for pid in (guard, *children)]
        try:
            parent.send_signal(signal.SIGKILL)
            for process in processes:
                assert select.select([process], [], [], TIMEOUT_S)[0], "it survived"
        finally:
            for process in processes:
                os.close(process)
