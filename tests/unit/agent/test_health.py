"""The health endpoint answers whatever the agent does, and whatever clients do to it."""

from __future__ import annotations

import http.client
import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from holdfast.agent import health
from holdfast.agent.health import (
    REQUEST_BYTES_MAX,
    STUCK_S,
    HealthServer,
)
from holdfast.net.address import Address
from holdfast.observe.metrics import Metrics
from holdfast.observe.prometheus import CONTENT_TYPE

WAIT_S = 60.0
LOCAL = "127.0.0.1:0"


def running() -> dict[str, object]:
    return {"state": "running", "round": 3, "turned_s_ago": 0.25, "reason": "rank 3 failed: hush"}


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., HealthServer]]:
    monkeypatch.setattr(health, "REQUEST_S", WAIT_S)  # no test is about a slow machine
    with ExitStack() as stack:

        def start(where: str = LOCAL, **given: object) -> HealthServer:
            server = HealthServer(where, **({"status": running} | given))  # type: ignore[arg-type]
            server.start()
            stack.callback(server.close)
            return server

        yield start


def ask(
    server: HealthServer, path: str = "/", method: str = "GET"
) -> tuple[int, dict[str, str], str]:
    host, port = server.addresses[0]
    host = "127.0.0.1" if host == "0.0.0.0" else host
    with closing(http.client.HTTPConnection(host, port, timeout=WAIT_S)) as connection:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read().decode()


def connect(server: HealthServer) -> socket.socket:
    return socket.create_connection(server.addresses[0], timeout=WAIT_S)


def raw(server: HealthServer, data: bytes) -> bytes:
    """Send anything; return all that comes back."""
    with connect(server) as sock:
        sock.sendall(data)
        return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    with sock.makefile("rb") as file:
        return file.read()


@pytest.mark.parametrize("path", ["/", "/healthz", "/a/b?c=d"])
def test_an_agent_whose_loop_turns_is_alive(start: Callable[..., HealthServer], path: str) -> None:
    status, headers, body = ask(start(), path)
    assert status == 200
    # HE-3: why it is so may hold words of a worker, and is not shown here.
    assert json.loads(body) == {"state": "running", "round": 3, "turned_s_ago": 0.25}
    assert headers["Content-Type"] == "application/json"


def test_an_agent_whose_loop_is_stuck_is_not(start: Callable[..., HealthServer]) -> None:
    seconds = STUCK_S
    server = start(status=lambda: {"state": "joining", "turned_s_ago": seconds})
    assert ask(server)[0] == 200
    seconds = STUCK_S + 1
    status, _, body = ask(server)
    assert status == 503
    assert json.loads(body)["state"] == "joining"


def test_an_agent_that_has_not_begun_is_alive(start: Callable[..., HealthServer]) -> None:
    """HE-1."""
    status, _, body = ask(start(status=lambda: {"state": "starting"}))
    assert (status, json.loads(body)) == (200, {"state": "starting"})


def test_an_agent_that_waits_for_anything_is_alive(start: Callable[..., HealthServer]) -> None:
    """HE-1: this thread stands for an agent that blocks in a phase; the answer does not need it."""
    server = start()
    answers: list[int] = []
    prober = threading.Thread(target=lambda: answers.append(ask(server)[0]))
    prober.start()
    prober.join(WAIT_S)
    assert answers == [200]


def test_one_that_cannot_say_how_it_is_is_not_alive(
    start: Callable[..., HealthServer], caplog: pytest.LogCaptureFixture
) -> None:
    def status() -> dict[str, object]:
        raise ZeroDivisionError

    server = start(status=status)
    assert ask(server)[0] == 503
    assert "the health of the agent cannot be determined" in caplog.text
    assert ask(server)[0] == 503


def test_head_is_answered_without_a_body(start: Callable[..., HealthServer]) -> None:
    server = start()
    status, headers, _ = ask(server, method="HEAD")
    assert status == 200
    assert int(headers["Content-Length"]) == len(ask(server)[2])
    assert raw(server, b"HEAD / HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")


def test_metrics_are_shown_as_prometheus_reads_them(start: Callable[..., HealthServer]) -> None:
    metrics = Metrics()
    metrics.counter("holdfast_restarts_total", "Restarts").add(2)
    status, headers, body = ask(start(metrics=metrics), "/metrics")
    assert (status, headers["Content-Type"]) == (200, CONTENT_TYPE)
    assert "holdfast_restarts_total 2.0\n" in body


def test_without_metrics_there_are_none(start: Callable[..., HealthServer]) -> None:
    assert ask(start(), "/metrics")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "get", "OPTIONS"])
def test_nothing_can_be_changed(start: Callable[..., HealthServer], method: str) -> None:
    """HE-3."""
    status, headers, _ = ask(start(), method=method)
    assert status == 405
    assert headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00 tls?\r\n\r\n",
        b"\x00" * 100 + b"\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(start: Callable[..., HealthServer], data: bytes) -> None:
    server = start()
    assert raw(server, data).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert ask(server)[0] == 200


def test_a_request_may_come_in_pieces(start: Callable[..., HealthServer]) -> None:
    with connect(start()) as sock:
        for byte in b"GET /\xff HTTP/1.0\r\nHost: x\r\n\r\n":
            sock.sendall(bytes([byte]))
        assert read_all(sock).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_request_without_an_end_is_refused(start: Callable[..., HealthServer]) -> None:
    """HE-4."""
    server = start()
    reply = raw(server, b"GET / HTTP/1.1\r\nX: ".ljust(REQUEST_BYTES_MAX + 1, b"x"))
    assert reply.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")


def test_a_silent_client_is_disconnected(
    start: Callable[..., HealthServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HE-4."""
    monkeypatch.setattr(health, "REQUEST_S", 0.01)
    # Nothing is sent: what comes after the server's end would break the connection.
    assert raw(start(), b"") == b""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let there be few connections, so that tests need not open many."""
    monkeypatch.setattr(health, "CONNECTIONS_MAX", 16)
    return 16


def test_clients_that_hold_connections_do_not_keep_others_out(
    start: Callable[..., HealthServer], few: int
) -> None:
    """HE-4."""
    server = start()
    with ExitStack() as stack:
        held = [stack.enter_context(connect(server)) for _ in range(3 * few)]
        assert ask(server)[0] == 200
        for sock in held[: 2 * few]:
            assert read_all(sock) == b""  # the oldest gave way
        # The newest of them could still ask: the one that was answered took one more place.
        held[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert read_all(held[-1]).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_flood_from_one_address_silences_no_probe_from_another(
    start: Callable[..., HealthServer], few: int
) -> None:
    """HE-4: not even a slow one that came first."""
    server = start()
    with ExitStack() as stack:
        source = ("127.0.0.2", 0)
        probe = socket.create_connection(server.addresses[0], WAIT_S, source_address=source)
        stack.enter_context(probe).sendall(b"GET / HTTP/1.1\r\n")
        flood = [stack.enter_context(connect(server)) for _ in range(5 * few)]
        assert read_all(flood[4 * few]) == b""  # so many have been accepted
        probe.sendall(b"\r\n")
        assert read_all(probe).startswith(b"HTTP/1.1 200 OK\r\n")


# Where it answers.


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as sock:
        try:
            sock.bind(("::1", 0))
        except OSError:
            return False
    return True


def test_a_bare_port_is_one_of_all_interfaces(
    start: Callable[..., HealthServer], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        server = start("0")
    hosts = [address.host for address in server.addresses]
    assert hosts == (["0.0.0.0", "::"] if has_ipv6() else ["0.0.0.0"])
    assert len({address.port for address in server.addresses}) == 1
    assert "of all interfaces, since probes come from outside" in caplog.text
    assert ask(server)[0] == 200


def test_an_address_is_bound_and_no_other(start: Callable[..., HealthServer]) -> None:
    server = start("127.0.0.1:0")
    (address,) = server.addresses
    assert address.host == "127.0.0.1"
    with socket.socket() as other:
        other.bind(("127.0.0.2", address.port))  # still free there


def test_a_port_that_is_taken_is_one_warning(
    start: Callable[..., HealthServer], caplog: pytest.LogCaptureFixture
) -> None:
    """HE-2."""
    taken = start()
    where = str(taken.addresses[0])
    caplog.clear()
    second = start(where)
    assert second.addresses == ()
    assert [r.getMessage() for r in caplog.records] == [
        f"health checks are not answered: cannot listen on {where}: {os.strerror(98)}"
    ]
    assert ask(taken)[0] == 200


@pytest.mark.parametrize("where", ["", "http", "-1", "65536", "8080 ", "a:b", "[::1", "1" * 5000])
def test_a_port_that_is_none_is_one_warning(
    start: Callable[..., HealthServer], caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """HE-2."""
    assert start(where).addresses == ()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert len(record.getMessage()) < 300


def test_it_ends_with_its_connections_and_twice(start: Callable[..., HealthServer]) -> None:
    server = start()
    with connect(server) as sock:
        # Answered once, so that this connection is known to be there.
        assert ask(server)[0] == 200
        server.close()
        assert read_all(sock) == b""
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(Address("127.0.0.1", server.addresses[0].port), timeout=WAIT_S)


def test_one_that_was_never_started_can_be_closed() -> None:
    HealthServer(LOCAL, running).close()
