"""The small server of HTTP; tests/unit/agent/test_health.py tries what hostile clients may do."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from holdfast.net import http_server
from holdfast.net.address import Address
from holdfast.net.http_messages import REQUEST_BYTES_MAX, ServedReply
from holdfast.net.http_server import HttpExchange, HttpServer
from tests.waiting import until

WAIT_S = 60.0
GET = b"GET / HTTP/1.1\r\n\r\n"

Start = Callable[..., Address]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def start(answer: Callable[[HttpExchange], None], **given: object) -> Address:
            server = HttpServer("test-http", answer, **({"request_s": WAIT_S} | given))  # type: ignore[arg-type]
            stack.callback(server.close)
            bound = server.listen(Address("127.0.0.1", 0))
            server.start()
            return bound

        yield start


def connect(where: Address) -> socket.socket:
    return socket.create_connection(where, timeout=WAIT_S)


def ask(where: Address, data: bytes = GET) -> bytes:
    with closing(connect(where)) as sock:
        sock.sendall(data)
        return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    with sock.makefile("rb") as file:
        return file.read()


def hello(exchange: HttpExchange) -> None:
    exchange.reply(ServedReply(f"{exchange.request.path}\n", "text/plain"))


def test_one_request_is_answered(start: Start) -> None:
    where = start(hello)
    assert ask(where, b"GET /a HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n/a\n")
    # What comes after the request is not read as a second one.
    assert ask(where, GET + GET).count(b"HTTP/1.1 200") == 1


def test_hs1_slow_and_large_requests_are_refused(start: Start) -> None:
    where = start(hello)
    reply = ask(where, b"GET / HTTP/1.1\r\nX: ".ljust(REQUEST_BYTES_MAX + 1, b"x"))
    assert reply.startswith(b"HTTP/1.1 431 ")
    # Nothing is sent: what comes after the server's end would break the connection.
    assert ask(start(hello, request_s=0.01), b"") == b""


def test_hs1_the_oldest_of_many_silent_clients_is_closed(start: Start) -> None:
    where = start(hello, connections_max=2)
    with ExitStack() as stack:
        held = [stack.enter_context(connect(where)) for _ in range(3)]
        assert read_all(held[0]) == b""
        assert ask(where).startswith(b"HTTP/1.1 200 ")


def test_hs2_a_bug_is_answered(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    def fail(exchange: HttpExchange) -> None:
        if exchange.request.path == "/bug":
            raise ZeroDivisionError
        hello(exchange)

    where = start(fail)
    assert ask(where, b"GET /bug HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 503 ")
    assert "could not be answered" in caplog.text
    assert ask(where).startswith(b"HTTP/1.1 200 ")


def test_hs3_streams_are_few_and_their_end_is_heard(start: Start) -> None:
    opened: list[HttpExchange] = []
    closed: list[HttpExchange] = []

    def stream(exchange: HttpExchange) -> None:
        if exchange.stream(("Content-Type", "text/event-stream")):
            exchange.on_closed = lambda: closed.append(exchange)
            opened.append(exchange)
            exchange.send(b"data: 1\n\n")

    where = start(stream, streams_max=1)
    with connect(where) as first:
        first.sendall(GET)
        with first.makefile("rb") as file:
            while file.readline() != b"data: 1\n":
                pass
        refused = ask(where)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"too many pages are open" in refused
    until(lambda: closed == opened)
    with connect(where) as second:
        second.sendall(GET)
        assert second.recv(15) == b"HTTP/1.1 200 OK"


def test_hs3_a_client_that_does_not_read_is_disconnected(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "UNREAD_BYTES_MAX", 1000)
    closed: list[int] = []

    def flood(exchange: HttpExchange) -> None:
        exchange.on_closed = lambda: closed.append(1)
        exchange.stream()
        for _ in range(100):
            exchange.send(b"x" * 1_000_000)

    where = start(flood, streams_max=1)
    with connect(where) as sock:
        sock.sendall(GET)
        until(lambda: closed)
