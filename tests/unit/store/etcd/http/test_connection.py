"""A connection is kept, replaced when it is stale, and every failure says whether bytes left."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.clock import Deadline
from holdfast.errors import PeerViolation, Refused, Step
from holdfast.net import tcp
from holdfast.net.address import Address
from holdfast.net.tls import load_client_tls
from holdfast.store.etcd.http import connection as etcd_http
from holdfast.store.etcd.http.connection import HttpConnection, HttpRequest, Lost, NoAnswer, NotSent
from holdfast.store.etcd.local_server import LocalEtcdServer
from tests.unit.net.certificates import Certificates, by_tls, server_context, serving
from tests.unit.store.etcd.fakes import answering, http

HEALTH = HttpRequest("GET", "/health")
TIMEOUT_S = 30.0


def soon(seconds: float = TIMEOUT_S) -> Deadline:
    return Deadline.after(seconds)


@pytest.fixture
def connection(etcd_server: LocalEtcdServer) -> Iterator[HttpConnection]:
    made = HttpConnection(etcd_server.addresses[0])
    yield made
    made.close()


def test_a_connection_is_used_again(connection: HttpConnection) -> None:
    assert connection.call(HEALTH, soon()).json()["health"] == "true"
    first = connection._socket
    assert connection.call(HttpRequest("GET", "/version"), soon()).status == 200
    assert connection._socket is first


def test_a_stale_connection_is_replaced_before_anything_is_sent() -> None:
    with answering(http(200, b"{}")) as address:  # which closes after each answer
        connection = HttpConnection(address)
        for _ in range(3):
            assert connection.call(HEALTH, soon()).body == b"{}"
            while not connection.readable():
                pass
        connection.close()


def test_a_server_that_closes_says_so() -> None:
    with answering(http(200, b"{}", "Connection: close")) as address:
        connection = HttpConnection(address)
        assert connection.call(HEALTH, soon()).body == b"{}"
        assert connection._socket is None


def test_a_refused_connection_was_not_sent(unused: Address) -> None:
    with pytest.raises(NotSent, match=f"cannot connect to {unused}") as caught:
        HttpConnection(unused).call(HEALTH, soon())
    assert caught.value.step is Step.TCP
    assert caught.value.address == str(unused)


def test_a_name_that_does_not_resolve_was_not_sent() -> None:
    with pytest.raises(NotSent, match="cannot resolve") as caught:
        HttpConnection(Address("no-such-host.invalid", 1)).call(HEALTH, soon())
    assert caught.value.step is Step.RESOLVE


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", http(200, b"{}")[:-1]])
def test_a_reply_that_breaks_off_is_lost(answer: bytes) -> None:
    with answering(answer) as address:
        connection = HttpConnection(address)
        with pytest.raises(Lost, match="connection lost|lost: ") as caught:
            connection.call(HEALTH, soon())
        assert not isinstance(caught.value, NoAnswer)
        assert connection._socket is None


def test_a_reply_without_a_length_is_whole_at_the_end_of_the_connection() -> None:
    with answering(b"HTTP/1.1 200 OK\r\n\r\n{}") as address:
        assert HttpConnection(address).call(HEALTH, soon()).body == b"{}"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"])
def test_silence_ends_at_the_deadline(answer: bytes) -> None:
    with answering(answer, hang=True) as address:
        connection = HttpConnection(address)
        with pytest.raises(NoAnswer, match="did not answer in time"):
            connection.call(HEALTH, soon(0.05))
        assert connection._socket is None  # what comes late must not be taken for another reply


def test_a_server_that_reads_nothing_ends_at_the_deadline() -> None:
    with answering(b"", hang=True) as address:
        request = HttpRequest("POST", "/", bytes(64 * 1024 * 1024))
        with pytest.raises(NoAnswer):
            HttpConnection(address).call(request, soon(0.1))


def test_what_is_not_http_is_a_violation_that_names_the_address() -> None:
    with answering(b"SSH-2.0-OpenSSH_9.2p1\r\n") as address:
        with pytest.raises(PeerViolation, match=f"{address}: not an HTTP reply") as caught:
            HttpConnection(address).call(HEALTH, soon())
        assert caught.value.address == str(address)


def test_shutting_wakes_a_reader() -> None:
    with answering(b"", hang=True) as address, ThreadPoolExecutor() as pool:
        connection = HttpConnection(address)
        parser = connection.send(HEALTH, soon())
        reading = pool.submit(connection.read_body, parser, soon())
        connection.shut()
        with pytest.raises(Lost):
            reading.result(TIMEOUT_S)
        connection.close()


def test_after_shutting_no_call_begins() -> None:
    with answering(b"", hang=True) as address:
        connection = HttpConnection(address)
        connection.open(soon())
        connection.shut()
        with pytest.raises(NotSent, match="shut here"):
            connection.send(HEALTH, soon())
        connection.close()


def test_shutting_while_connecting_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(b"", hang=True) as address:
        connection = HttpConnection(address)

        def connect_late(where: Address, deadline: Deadline) -> socket.socket:
            connection.shut()
            return tcp.open_socket(where, deadline)

        monkeypatch.setattr(etcd_http, "open_socket", connect_late)
        with pytest.raises(Lost):
            connection.call(HEALTH, soon())
        connection.close()


def test_reading_in_steps_keeps_what_came_before_a_deadline() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc", hang=True) as address:
        connection = HttpConnection(address)
        parser = connection.send(HEALTH, soon())
        assert connection.read_body(parser, soon()) == b"abc"
        with pytest.raises(NoAnswer):
            connection.read_body(parser, soon(0.01))
        assert not parser.done
        connection.close()
        with pytest.raises(Lost, match="it is closed"):
            connection.read_body(parser, soon())
        assert not connection.readable()


# By TLS.


def read_request(sock: ssl.SSLSocket) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        more = sock.recv(65536)
        if not more:
            return b""
        data += more
    return data


def answer_all(sock: ssl.SSLSocket) -> None:
    while read_request(sock):
        sock.sendall(http(200, b"{}"))


def test_by_tls_a_connection_is_used_again(certificates: Certificates) -> None:
    """What TLS itself sends after the handshake, tickets, is not taken for the end."""
    talks: list[ssl.SSLSocket] = []

    def talk(sock: ssl.SSLSocket) -> None:
        talks.append(sock)
        answer_all(sock)

    with serving(by_tls(server_context(certificates), talk)) as address:
        connection = HttpConnection(address, load_client_tls(cacert=certificates.ca))
        connection.open(soon())
        sock = connection._socket
        assert sock is not None
        assert select.select([sock], [], [], TIMEOUT_S)[0]  # a ticket
        assert not connection.readable()
        for _ in range(3):
            assert connection.call(HEALTH, soon()).body == b"{}"
        connection.close()
    assert len(talks) == 1


def test_by_tls_looking_whether_there_is_something_loses_nothing(
    certificates: Certificates,
) -> None:
    body = b"x" * 40_000  # several records of TLS, and one reading

    def talk(sock: ssl.SSLSocket) -> None:
        read_request(sock)
        sock.sendall(http(200, body))
        sock.recv(1)

    with serving(by_tls(server_context(certificates), talk)) as address:
        connection = HttpConnection(address, load_client_tls(cacert=certificates.ca))
        parser = connection.send(HEALTH, soon())
        found = b""
        while not parser.done:
            while not connection.readable():
                pass
            assert connection.readable()
            found += connection.read_body(parser, soon())
        connection.close()
    assert found == body


def test_by_tls_a_stale_connection_is_replaced_before_anything_is_sent(
    certificates: Certificates,
) -> None:
    def talk(sock: ssl.SSLSocket) -> None:
        read_request(sock)
        sock.sendall(http(200, b"{}"))

    with serving(by_tls(server_context(certificates), talk)) as address:
        connection = HttpConnection(address, load_client_tls(cacert=certificates.ca))
        for _ in range(3):
            assert connection.call(HEALTH, soon()).body == b"{}"
            while not connection.readable():
                pass
        connection.close()


def deaf(sock: ssl.SSLSocket) -> None:
    while sock.recv(65536):
        pass


def test_by_tls_a_reading_thread_is_woken(certificates: Certificates) -> None:
    with (
        serving(by_tls(server_context(certificates), deaf)) as there,
        ThreadPoolExecutor() as pool,
    ):
        connection = HttpConnection(there, load_client_tls(cacert=certificates.ca))
        parser = connection.send(HEALTH, soon())
        reading = pool.submit(connection.read_body, parser, soon())
        connection.shut()
        with pytest.raises(Lost, match="lost"):
            reading.result(TIMEOUT_S)
        connection.close()


def test_by_tls_a_refused_certificate_is_final(certificates: Certificates) -> None:
    with serving(by_tls(server_context(certificates, asks=True), answer_all)) as address:
        connection = HttpConnection(address, load_client_tls(cacert=certificates.ca))
        with pytest.raises(Refused, match="certificate required") as caught:
            connection.read_body(connection.send(HEALTH, soon()), soon())
        connection.close()
    assert caught.value.step is Step.HANDSHAKE


def test_by_tls_a_server_that_hangs_up_was_not_asked(certificates: Certificates) -> None:
    with serving(lambda sock: None) as address:
        connection = HttpConnection(address, load_client_tls(cacert=certificates.ca))
        with pytest.raises(NotSent, match="TLS handshake") as caught:
            connection.call(HEALTH, soon())
    assert caught.value.step is Step.HANDSHAKE
