"""The doctor tries each step alone and says at which one it ends. Real servers, real output."""

from __future__ import annotations

import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from holdfast.net.address import Address
from holdfast.net.auth import MAGIC, NONCE_BYTES, VERSION
from holdfast.net.secret import new_secret
from holdfast.store.c10d.server import C10dServer
from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.open import open_store, serve_store
from tests.unit.cli.conftest import Run

pytestmark = pytest.mark.usefixtures("home")


def examined(run: Run, endpoint: str, timeout: float = 10) -> tuple[int, list[str]]:
    """Return the exit code and the lines, with `_` for times."""
    code, out, err = run("doctor", endpoint, "--timeout", str(timeout))
    assert err == ""
    return code, re.sub(r"\d+\.\d ms", "_ ms", out).splitlines()


@contextmanager
def serving(server: socketserver.TCPServer) -> Iterator[str]:
    """Run one of the standard library's servers; gives host:port."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class Answering(socketserver.BaseRequestHandler):
    """Reads a greeting and answers with one of another version."""

    def handle(self) -> None:
        self.request.recv(64)
        self.request.sendall(MAGIC + bytes((VERSION + 1, 1)) + bytes(NONCE_BYTES))


# tcp://


def test_all_is_well(run: Run) -> None:
    with serve_store() as server, open_store(server.endpoint) as store:
        store.set("k", b"v")
        where = server.address
        assert examined(run, server.endpoint) == (
            0,
            [
                f"ok    endpoint         tcp://{where}",
                "ok    name resolution  127.0.0.1 is 127.0.0.1",
                f"ok    TCP connection   {where} in _ ms",
                "ok    handshake        version 1; both sides hold the same secret",
                "ok    store            answers in _ ms; keys: 1",
            ],
        )


def test_a_name_that_does_not_resolve(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET", new_secret().reveal())
    code, lines = examined(run, "tcp://no-such-host.invalid:7")
    assert code == 69
    assert lines[0] == "ok    endpoint         tcp://no-such-host.invalid:7"
    assert lines[1].startswith("FAIL  name resolution  cannot resolve 'no-such-host.invalid': ")
    (hint,) = lines[2:]
    assert hint.strip().startswith("is the name right, and known to this machine's name servers")


def test_no_server_listens(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        code, lines = examined(run, f"tcp://{where}")
    assert code == 69
    assert lines[:3] == [
        f"ok    endpoint         tcp://{where}",
        "ok    name resolution  127.0.0.1 is 127.0.0.1",
        f"FAIL  TCP connection   cannot connect to {where}: Connection refused",
    ]
    (hint,) = lines[3:]
    assert hint.strip().startswith(
        "is the server running there, and does a firewall allow this port"
    )


class Web(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def test_an_http_server(run: Run) -> None:
    with serving(HTTPServer(("127.0.0.1", 0), Web)) as where:
        code, lines = examined(run, f"tcp://{where}", 0.3)
    assert code in {69, 76}  # it answers if our random bytes have a line feed, else it waits
    assert lines[2].startswith(f"ok    TCP connection   {where}")
    assert lines[3].startswith(f"FAIL  handshake        handshake with {where}: ")
    assert lines[4].strip() == "does a holdfast store listen there, or another program?"


def test_a_server_that_greets_first(run: Run) -> None:
    class Greeting(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
            self.request.recv(1000)

    with serving(socketserver.TCPServer(("127.0.0.1", 0), Greeting)) as where:
        code, lines = examined(run, f"tcp://{where}")
    assert code == 76
    assert lines[3] == (
        f"FAIL  handshake        handshake with {where}: the server does not speak holdfast: "
        "it answered b'SSH-2.0-OpenSSH_'"
    )


def test_a_silent_server(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        code, lines = examined(run, f"tcp://{where}", 0.2)
    assert code == 69
    assert lines[3] == f"FAIL  handshake        handshake with {where}: the server is silent"


def test_another_version(run: Run) -> None:
    with serving(socketserver.TCPServer(("127.0.0.1", 0), Answering)) as where:
        code, lines = examined(run, f"tcp://{where}")
    assert code == 76
    assert lines[3].startswith(f"FAIL  protocol version handshake with {where}: ")
    assert lines[4].strip() == "install the same version of holdfast on both sides"


def test_another_secret(run: Run) -> None:
    with serve_store(secret=new_secret()) as server:
        code, lines = examined(run, server.endpoint)
    assert code == 77
    assert lines[3].startswith(f"FAIL  secret           handshake with {server.address}: ")
    assert lines[4].strip() == (
        "give both sides the same HOLDFAST_SECRET_FILE; on loopback: run as the same user"
    )


def test_the_name_is_tried_before_a_secret_is_asked_for(run: Run, home: Path) -> None:
    code, lines = examined(run, "no-such-host.invalid:7")
    assert code == 69
    assert lines[0] == "ok    endpoint         tcp://no-such-host.invalid:7"
    assert lines[1].startswith("FAIL  name resolution  cannot resolve 'no-such-host.invalid'")
    assert list(home.iterdir()) == []


def test_no_secret_for_another_host(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.open.is_loopback", lambda host: False)
    with serve_store(secret=new_secret()) as server:
        code, lines = examined(run, str(server.address))
    assert code == 2
    assert lines[3].startswith(
        f"FAIL  secret           tcp://{server.address} can be reached from other hosts, so the job"
    )


def test_the_secret_of_a_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, path = new_secret(), tmp_path / "job.secret"
    path.touch(mode=0o600)
    path.write_text(secret.reveal())
    monkeypatch.setenv("HOLDFAST_SECRET", "another-one-of-16-bytes")
    with serve_store(secret=secret) as server:
        done = run("doctor", str(server.address), "--secret-file", str(path))
    assert (done.code, done.err) == (0, ""), done.out
    assert "both sides hold the same secret" in done.out


@pytest.mark.parametrize("endpoint", ["", "x", "tcp://h", "tcp://a:1?b=2", "c10d://h:0"])
def test_a_wrong_endpoint(run: Run, home: Path, endpoint: str) -> None:
    code, out, err = run("doctor", endpoint)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("holdfast doctor: argument ENDPOINT: ")
    assert list(home.iterdir()) == []


# The others.


def test_memory(run: Run) -> None:
    assert examined(run, "memory://") == (
        0,
        ["ok    endpoint         memory://", "ok    store            answers in _ ms; keys: 0"],
    )


def test_a_file_is_not_made_by_looking(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.store"
    first = f"ok    endpoint         file://{path}"
    assert examined(run, f"file://{path}") == (
        0,
        [
            first,
            "ok    file             does not exist yet; the first process that uses it creates it",
        ],
    )
    assert not path.exists()
    with open_store(f"file://{path}") as store:
        store.set("k", b"v")
    assert examined(run, f"file://{path}") == (
        0,
        [first, "ok    store            answers in _ ms; keys: 1"],
    )


def test_a_file_that_is_no_store(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("dear diary\n")
    code, lines = examined(run, f"file://{tmp_path / 'notes'}")
    assert code in {2, 76}
    assert lines[1].startswith("FAIL  store            ")


def test_a_server_for_torch(run: Run) -> None:
    with C10dServer(Address("127.0.0.1", 0)) as store_server:
        assert examined(run, store_server.endpoint) == (
            0,
            [
                f"ok    endpoint         {store_server.endpoint}",
                "ok    name resolution  127.0.0.1 is 127.0.0.1",
                f"ok    TCP connection   {store_server.address} in _ ms",
                "ok    store            answers in _ ms; keys: 0",
            ],
        )


def test_of_three_etcd_members_one_is_dead(run: Run) -> None:
    with LocalEtcdServer(3) as etcd:
        etcd.kill((etcd.leader() + 1) % 3)
        code, lines = examined(run, etcd.endpoint)
    assert code == 0
    assert sum(line.startswith("ok    TCP connection") for line in lines) == 2
    (dead,) = [line for line in lines if line.startswith("FAIL")]
    assert dead.startswith("FAIL  TCP connection   cannot connect to 127.0.0.1:")
    assert lines[-1] == "ok    store            answers in _ ms; keys: 0"


@pytest.mark.parametrize("version", ["endpoint", "endpoint_v2"])
def test_one_etcd(run: Run, version: str) -> None:
    with LocalEtcdServer() as etcd:
        code, lines = examined(run, getattr(etcd, version))
    assert (code, len(lines)) == (0, 4)
    assert lines[-1] == "ok    store            answers in _ ms; keys: 0"


def test_no_etcd_at_all(run: Run) -> None:
    with socket.socket() as one, socket.socket() as two:
        for taken in (one, two):
            taken.bind(("127.0.0.1", 0))
        ports = [taken.getsockname()[1] for taken in (one, two)]
        endpoint = f"etcd://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
        code, lines = examined(run, endpoint, 0.2)
    assert code in {69, 75}
    assert [line[:22].strip() for line in lines if line.startswith("FAIL")] == [
        "FAIL  TCP connection",
        "FAIL  TCP connection",
        "FAIL  store",
    ]
