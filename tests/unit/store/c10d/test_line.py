"""Connections to servers of torch's protocol: silent, rude, dying and closing ones."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import (
    PeerViolation,
    Step,
    StoreUnavailable,
    TimeoutExpired,
    Unavailable,
    UsageError,
)
from holdfast.net.address import Address
from holdfast.store.c10d import line as c10d_line
from holdfast.store.c10d import messages as c10d
from holdfast.store.c10d.line import ConnectionPool, ConnectionSlot, Line
from holdfast.store.c10d.server import C10dServer
from holdfast.store.c10d.wire import encode_request, read_i64, read_u8, read_u32
from tests.unit.store.c10d.peers import HELLO, LOOPBACK, WITHIN_S, ScriptedServer

PING = encode_request(c10d.Ping(0x01020304))
NEVER = Deadline(None)


def soon() -> Deadline:
    return Deadline.after(WITHIN_S)


def shake_hands(sock: socket.socket) -> None:
    """Do the server's part, and require one segment as torch's server does."""
    greeting = sock.recv(100)
    assert len(greeting) == 10, greeting
    assert greeting.startswith(HELLO)
    sock.sendall(greeting[6:])


def until_closed(sock: socket.socket) -> None:
    while sock.recv(1 << 16):
        pass


@pytest.fixture
def store_server() -> Iterator[C10dServer]:
    with C10dServer(LOOPBACK) as store_server:
        yield store_server


def lines_to(address: Address) -> ConnectionPool:
    return ConnectionPool(f"c10d://{address}", address, SYSTEM_CLOCK)


def ping(line: Line) -> int:
    line.send(PING, soon())
    return line.read(read_u32(), soon())


# One connection.


def test_a_line_asks_and_reads(store_server: C10dServer) -> None:
    line = Line.open(store_server.address, soon())
    assert ping(line) == 0x01020304
    assert ping(line) == 0x01020304
    line.close()
    line.close()


def test_the_handshake_comes_in_one_piece() -> None:
    def serve(sock: socket.socket) -> None:
        shake_hands(sock)
        until_closed(sock)

    with ScriptedServer(serve) as server:
        Line.open(server.address, soon()).close()


def test_a_refused_connection_names_the_step() -> None:
    with socket.create_server(LOOPBACK) as free:
        address = Address("127.0.0.1", free.getsockname()[1])
    with pytest.raises(Unavailable) as caught:
        Line.open(address, soon())
    assert (caught.value.step, caught.value.address) == (Step.TCP, str(address))


@pytest.mark.parametrize("deadline_s", [None, WITHIN_S])
def test_a_server_that_is_silent_in_the_handshake_is_left(
    monkeypatch: pytest.MonkeyPatch, deadline_s: float | None
) -> None:
    monkeypatch.setattr(c10d_line, "HANDSHAKE_WITHIN_S", 0.05)
    with ScriptedServer(until_closed) as server:
        with pytest.raises(Unavailable, match="silent") as caught:
            Line.open(server.address, Deadline.after(deadline_s))
        assert caught.value.step is Step.HANDSHAKE


def test_a_server_that_hangs_up_in_the_handshake_is_unavailable() -> None:
    with ScriptedServer(lambda sock: sock.close()) as server:
        with pytest.raises(Unavailable) as caught:
            Line.open(server.address, soon())
        assert caught.value.step is Step.HANDSHAKE


def test_another_protocol_is_a_violation() -> None:
    def serve(sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        until_closed(sock)

    with ScriptedServer(serve) as server:
        with pytest.raises(PeerViolation, match="not a server of torch") as caught:
            Line.open(server.address, soon())
        assert caught.value.step is Step.HANDSHAKE


def test_unasked_bytes_are_a_violation() -> None:
    def serve(sock: socket.socket) -> None:
        shake_hands(sock)
        sock.recv(100)
        sock.sendall(b"\x01\x00\x00\x00 and more")
        until_closed(sock)

    with ScriptedServer(serve) as server:
        line = Line.open(server.address, soon())
        assert ping(line) == 1
        with pytest.raises(PeerViolation, match="unsolicited"):
            line.send(PING, soon())
        line.close()


def test_reading_and_sending_end_at_their_deadline() -> None:
    over = threading.Event()

    def serve(sock: socket.socket) -> None:
        shake_hands(sock)
        over.wait(WITHIN_S)

    with ScriptedServer(serve) as server:
        line = Line.open(server.address, soon())
        with pytest.raises(TimeoutError):
            line.read(read_u8(), Deadline.after(0.02))
        with pytest.raises(TimeoutError):
            line.send(b"x" * (64 << 20), Deadline.after(0.02))
        with pytest.raises(TimeoutError):
            line.send(b"x", Deadline.after(0.0))
        line.close()
        over.set()


def test_a_reader_can_be_woken(store_server: C10dServer) -> None:
    line = Line.open(store_server.address, soon())
    errors: list[Exception] = []

    def read() -> None:
        try:
            line.read(read_u8(), NEVER)
        except Unavailable as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    line.wake()
    reader.join(WITHIN_S)
    line.wake()
    line.close()
    line.wake()
    assert "lost" in str(errors[0])


# The connections of a client.


def dying(times: int, answer: bytes) -> ScriptedServer:
    """A server whose first connections die on the first request."""
    left = [times]

    def serve(sock: socket.socket) -> None:
        shake_hands(sock)
        while sock.recv(1 << 16):
            if left[0] > 0:
                left[0] -= 1
                return
            sock.sendall(answer)

    return ScriptedServer(serve)


def test_a_read_goes_on_over_a_new_connection() -> None:
    with dying(2, b"\x01\x00\x00\x00") as server:
        lines, lane = lines_to(server.address), ConnectionSlot()
        assert lines.use(lane, ping, soon(), write=False) == 1
        line = lane.line
        assert lines.use(lane, ping, soon(), write=False) == 1
        assert lane.line is line
        lines.close()


def test_a_read_gives_up_after_some_tries() -> None:
    with dying(1000, b"") as server:
        lines = lines_to(server.address)
        with pytest.raises(StoreUnavailable) as caught:
            lines.use(ConnectionSlot(), ping, soon(), write=False)
        assert not caught.value.maybe_applied
        assert caught.value.address == str(server.address)
        lines.close()


def test_a_write_is_not_repeated() -> None:
    with dying(1, b"\x01\x00\x00\x00") as server:
        lines, lane = lines_to(server.address), ConnectionSlot()
        with pytest.raises(StoreUnavailable) as caught:
            lines.use(lane, ping, soon(), write=True)
        assert caught.value.maybe_applied
        assert lines.use(lane, ping, soon(), write=True) == 1
        lines.close()


@pytest.mark.parametrize("write", [False, True])
def test_a_silent_server_ends_a_call_at_its_deadline(write: bool) -> None:
    def serve(sock: socket.socket) -> None:
        shake_hands(sock)
        until_closed(sock)

    def talk(line: Line) -> int:
        line.send(PING, soon())
        return line.read(read_i64(), deadline)

    with ScriptedServer(serve) as server:
        lines, lane = lines_to(server.address), ConnectionSlot()
        lane.line = Line.open(server.address, soon())
        deadline = Deadline.after(0.05)
        with pytest.raises(TimeoutExpired) as caught:
            lines.use(lane, talk, deadline, write=write)
        assert caught.value.maybe_applied is write
        assert lane.line is None
        lines.close()


def test_a_server_that_is_silent_without_a_deadline_is_unavailable() -> None:
    def serve(sock: socket.socket) -> None:
        shake_hands(sock)
        until_closed(sock)

    def talk(line: Line) -> int:
        return line.read(read_u8(), Deadline.after(0.02))

    with ScriptedServer(serve) as server:
        lines = lines_to(server.address)
        with pytest.raises(StoreUnavailable, match="silent"):
            lines.use(ConnectionSlot(), talk, NEVER, write=False)
        lines.close()


def test_a_server_may_come_up_after_the_first_call() -> None:
    with socket.create_server(LOOPBACK) as free:
        address = Address("127.0.0.1", free.getsockname()[1])
    lines, lane = lines_to(address), ConnectionSlot()
    store_servers: list[C10dServer] = []

    class Opening:
        """A clock on which the store_server opens during the first pause."""

        def __getattr__(self, name: str) -> object:
            return getattr(SYSTEM_CLOCK, name)

        def sleep(self, seconds: float) -> None:
            store_servers.append(C10dServer(address))
            store_servers[0].start()

    lines._clock = Opening()  # type: ignore[assignment]
    assert lines.use(lane, ping, soon(), write=True) == 0x01020304
    store_servers[0].close()
    with pytest.raises(StoreUnavailable) as lost:
        lines.use(lane, ping, soon(), write=True)
    assert lost.value.maybe_applied
    with pytest.raises(StoreUnavailable) as refused:  # met before, so not waited for
        lines.use(lane, ping, NEVER, write=True)
    assert refused.value.step is Step.TCP
    assert not refused.value.maybe_applied
    lines.close()


def test_a_server_that_never_comes_is_unavailable_at_the_deadline() -> None:
    with socket.create_server(LOOPBACK) as free:
        address = Address("127.0.0.1", free.getsockname()[1])
    with pytest.raises(StoreUnavailable) as caught:
        lines_to(address).use(ConnectionSlot(), ping, Deadline.after(0.5), write=True)
    assert caught.value.step is Step.TCP


def test_a_handshake_that_outlasts_the_deadline_names_the_step() -> None:
    with ScriptedServer(until_closed) as server:
        with pytest.raises(StoreUnavailable, match="silent") as caught:
            lines_to(server.address).use(ConnectionSlot(), ping, Deadline.after(0.5), write=True)
        assert caught.value.step is Step.HANDSHAKE
        assert not caught.value.maybe_applied


def test_without_time_nothing_is_sent(store_server: C10dServer) -> None:
    lines, lane = lines_to(store_server.address), ConnectionSlot()
    lines.use(lane, ping, soon(), write=True)
    line = lane.line
    with pytest.raises(TimeoutExpired) as caught:
        lines.use(lane, ping, Deadline.after(0.0), write=True)
    assert not caught.value.maybe_applied
    assert lane.line is line
    lines.close()


def test_a_busy_lane_is_waited_for_until_the_deadline(store_server: C10dServer) -> None:
    lane = ConnectionSlot()
    with lane.lock, pytest.raises(TimeoutExpired, match="busy"):
        lines_to(store_server.address).use(lane, ping, Deadline.after(0.02), write=False)


def test_an_error_of_the_talk_closes_the_line(store_server: C10dServer) -> None:
    def talk(line: Line) -> None:
        raise KeyboardInterrupt

    lines, lane = lines_to(store_server.address), ConnectionSlot()
    with pytest.raises(KeyboardInterrupt):
        lines.use(lane, talk, soon(), write=False)
    assert lane.line is None
    assert not lines._idle | lines._busy


def test_one_spare_lane_is_kept(store_server: C10dServer) -> None:
    lines = lines_to(store_server.address)
    with lines.spare_lane() as one, lines.spare_lane() as two:
        assert one is not two
        for lane in (one, two):
            lines.use(lane, ping, soon(), write=False)
        assert len(lines._idle) == 2
    assert len(lines._idle) == 1
    with lines.spare_lane() as again:
        assert again is two
        assert again.line is not None
    lines.close()


def test_closing_ends_calls_with_a_usage_error(store_server: C10dServer) -> None:
    lines = lines_to(store_server.address)
    talking = threading.Event()
    errors: list[Exception] = []

    def talk(line: Line) -> int:
        talking.set()
        return line.read(read_u8(), NEVER)

    def call() -> None:
        try:
            with lines.spare_lane() as lane:
                lines.use(lane, talk, NEVER, write=False)
        except UsageError as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert talking.wait(WITHIN_S)
    lines.close()
    lines.close()
    caller.join(WITHIN_S)
    assert "closed" in str(errors[0])
    with pytest.raises(UsageError, match="closed"):
        lines.use(ConnectionSlot(), ping, soon(), write=False)


def test_what_ends_well_after_closing_is_closed(store_server: C10dServer) -> None:
    lines, lane = lines_to(store_server.address), ConnectionSlot()

    def talk(line: Line) -> int:
        answer = ping(line)
        lines.close()
        return answer

    assert lines.use(lane, talk, soon(), write=False) == 0x01020304
    assert lane.line is None
    lane.line = Line.open(
        store_server.address, soon()
    )  # as if it had been opened during the closing
    with pytest.raises(UsageError, match="closed"):
        lines.use(lane, ping, soon(), write=False)
