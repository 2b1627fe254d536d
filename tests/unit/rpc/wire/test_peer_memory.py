"""Large buffers between processes: equal, the reader's own, held just as long as it takes."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import random
import socket
import subprocess
import sys
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import PeerViolation
from holdfast.rpc.wire import memory as memories
from holdfast.rpc.wire import peer_memory
from holdfast.rpc.wire.codec import BIG_BYTES, parts_of, views_of
from holdfast.rpc.wire.connection import Connection
from holdfast.rpc.wire.memory import pooled_bytes
from holdfast.rpc.wire.messages import Buffer, Kind, Message
from holdfast.rpc.wire.peer_memory import (
    PLACE_BYTES,
    BufferLease,
    PeerMemory,
    read,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads memory as Linux does")

Ends = tuple[Connection, Connection]
LARGE = 5_000_000  # far more than a socket takes, and enough for several threads
LIMIT_S = 60.0


class Watched(bytearray):
    """A buffer that can be seen to end."""


def introduce(here: Connection, there: Connection) -> None:
    """Let both ends find out whether they can read each other's memory."""
    for connection in (here, there):
        connection.send_all(connection.peer_memory.offer())
    for connection in (here, there):
        assert connection.advance() is None
        connection.send_all(connection.due())
    for connection in (here, there):
        assert connection.advance() is None


@pytest.fixture
def unacquainted() -> Iterator[Ends]:
    one, other = socket.socketpair()
    with one, other:
        ends = Connection(one), Connection(other)
        for connection in ends:  # what goes through the socket by mistake fails, and does not hang
            connection.set_limit(SYSTEM_CLOCK.monotonic() + LIMIT_S)
        yield ends


@pytest.fixture
def ends(unacquainted: Ends) -> Ends:
    introduce(*unacquainted)
    assert all(
        connection.peer_memory.reads and connection.peer_memory.open for connection in unacquainted
    )
    return unacquainted


def random_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def request(call: int, *buffers: Buffer) -> Message:
    """Make a request whose buffers arrive as memory."""
    return Message(Kind.PYTHON_CALL, call, b"body", [memoryview(buffer) for buffer in buffers])


def writable(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    assert not view.readonly
    return view


def found(place: bytes, size: int) -> bytes | None:
    """Read what is at a place of this process."""
    got = read(os.getpid(), place, size)
    return None if got is None else bytes(got)


# Equality and ownership.


@pytest.mark.parametrize("size", [BIG_BYTES, BIG_BYTES + 1, 17_000_001])
def test_bi1_a_fetched_buffer_is_equal_and_belongs_to_the_reader(ends: Ends, size: int) -> None:
    here, there = ends
    sent = bytearray(random_bytes(size))
    before = bytes(sent)
    here.send_all([request(1, sent), request(2, sent)])
    first, second = (writable(there.receive().buffers[0]) for _ in range(2))
    assert first == before
    assert second == before
    first[0] ^= 255
    first[-1] ^= 255
    assert sent == before
    assert second == before
    sent[1] ^= 255
    assert first[1] == before[1]


def test_one_message_has_buffers_of_all_kinds_and_sizes(ends: Ends) -> None:
    here, there = ends
    data = random_bytes(LARGE)
    buffers: list[Buffer] = [
        b"",
        data,
        b"small",
        bytearray(data[::-1]),
        memoryview(b""),
        memoryview(data)[7 : BIG_BYTES + 7],
        memoryview(array("d", range(BIG_BYTES // 8))),
        memoryview(data[: 1 << 22]).cast("B", (1 << 11, 1 << 11)),
        data[:BIG_BYTES],
    ]
    here.send(request(1, *buffers))
    message = there.receive()
    assert (message.kind, message.call, bytes(message.body)) == (Kind.PYTHON_CALL, 1, b"body")
    assert list(map(bytes, message.buffers)) == list(map(bytes, buffers))
    for buffer in message.buffers:
        assert (writable(buffer).format, writable(buffer).ndim) == ("B", 1)


@pytest.mark.parametrize("size", [BIG_BYTES, 40_000_001])
def test_bytes_and_bytearrays_are_fetched_as_themselves(ends: Ends, size: int) -> None:
    here, there = ends
    data = random_bytes(size)
    here.send(Message(Kind.PYTHON_CALL, 1, b"", [data, bytearray(data)]))
    one, other = there.receive().buffers
    assert (type(one), type(other)) == (bytes, bytearray)
    assert one == other == data


PEER = """
import socket, sys
from holdfast.rpc.wire.connection import Connection
from holdfast.rpc.wire.messages import Kind, Message

with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(bytes.fromhex(sys.argv[1]))
    connection = Connection(sock)
    connection.send_all(connection.peer_memory.offer())
    for _ in range(3):
        message = connection.receive()
        for buffer in message.buffers:
            buffer[:] = bytes(buffer)[::-1]
        connection.send(Message(Kind.REPLY, message.call, b"", message.buffers))
    connection.receive()  # what it holds would end with it
"""


def test_two_processes_fetch_from_each_other() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(b"")  # the system finds a name
        listener.listen()
        listener.settimeout(LIMIT_S)
        name: bytes = listener.getsockname()
        with subprocess.Popen([sys.executable, "-c", PEER, name.hex()]) as peer:
            try:
                sock, _ = listener.accept()
                with sock:
                    converse(Connection(sock))
                assert peer.wait(LIMIT_S) == 0
            finally:
                peer.kill()


def converse(connection: Connection) -> None:
    connection.set_limit(SYSTEM_CLOCK.monotonic() + LIMIT_S)
    connection.send_all(connection.peer_memory.offer())
    data = random_bytes(LARGE)
    for call in (1, 2, 3):
        sent = bytearray(data)
        connection.send(request(call, sent, b"abc"))
        answer = connection.receive()
        assert [bytes(buffer) for buffer in answer.buffers] == [data[::-1], b"cba"]
        assert sent == data  # the peer has changed its own
    connection.send(request(4))
    assert connection.peer_memory.reads  # a process may always read what it has started


def test_bi1_a_fork_of_the_reader_has_memory_of_its_own(ends: Ends) -> None:
    here, there = ends
    here.send(request(1, bytes(LARGE)))
    got = writable(there.receive().buffers[0])
    child = os.fork()
    if child == 0:
        got[0] = got[-1] = 1
        os._exit(got[0])
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert (got[0], got[-1]) == (0, 0)


# How long buffers are held.


@pytest.mark.parametrize("kind", [Kind.REPLY, Kind.FAILURE])
def test_bi3_a_request_is_held_until_its_answer(ends: Ends, kind: Kind) -> None:
    here, there = ends
    sent = Watched(LARGE)
    ended = weakref.ref(sent)
    here.send(request(1, sent))
    with pytest.raises(BufferError):
        sent.clear()  # what is held cannot be resized
    del sent
    there.receive()
    there.send(Message(kind, 2))
    here.receive()
    assert ended() is not None
    there.send(Message(kind, 1))
    here.receive()
    assert ended() is None


def test_bi3_an_answer_is_held_until_it_has_been_taken(ends: Ends) -> None:
    here, there = ends
    sent = Watched(LARGE)
    ended = weakref.ref(sent)
    there.send(Message(Kind.REPLY, 1, b"", [sent, sent]))
    del sent
    assert there.advance() is None
    assert ended() is not None
    assert [bytes(buffer) for buffer in here.receive().buffers] == [bytes(LARGE)] * 2
    assert there.advance() is None
    assert ended() is None


def test_bi3_waiting_buffers_are_released_when_the_connection_ends(ends: Ends) -> None:
    here, _ = ends
    sent = Watched(LARGE)
    ended = weakref.ref(sent)
    here.send_all([request(1, sent), request(2, sent)])
    del sent
    assert ended() is not None
    here.close()
    assert ended() is None


def test_bi3_buffers_beyond_the_limit_go_through_the_socket(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = ends
    monkeypatch.setattr(peer_memory, "HELD_BYTES_MAX", LARGE)
    data = random_bytes(LARGE)
    first, second, third = Watched(data), Watched(data), Watched(data)
    there.send(Message(Kind.REPLY, 1, b"", [first]))
    sender = threading.Thread(target=there.send, args=[Message(Kind.REPLY, 2, b"", [second])])
    sender.start()
    assert [bytes(here.receive().buffers[0]) == data for _ in range(2)] == [True, True]
    sender.join()
    second.clear()  # it was not held
    assert there.advance() is None
    first.clear()  # it has been taken, so there is room again
    there.send(Message(Kind.REPLY, 3, b"", [third]))
    assert here.receive().buffers[0] == data
    with pytest.raises(BufferError):
        third.clear()


# When it cannot be done.


def refuses(number: int) -> Callable[[], Callable[..., int]]:
    def call(*_args: object) -> int:
        ctypes.set_errno(number)
        return -1

    return lambda: call


def is_missing() -> Callable[..., int]:
    raise OSError(errno.ENOSYS, "there is no such function")


@pytest.mark.parametrize("system", [refuses(errno.EPERM), refuses(errno.ESRCH), is_missing])
def test_buffers_that_cannot_be_fetched_go_through_the_socket(
    unacquainted: Ends,
    monkeypatch: pytest.MonkeyPatch,
    system: Callable[[], Callable[..., int]],
) -> None:
    here, there = unacquainted
    monkeypatch.setattr(peer_memory, "_readv", system)
    introduce(here, there)
    assert not any(
        connection.peer_memory.reads or connection.peer_memory.open for connection in (here, there)
    )
    data = random_bytes(LARGE)
    sent = bytearray(data)
    sender = threading.Thread(target=here.send, args=[request(1, sent, b"x")])
    sender.start()
    got = there.receive().buffers
    sender.join()
    sent.clear()  # it is not held
    assert [bytes(buffer) for buffer in got] == [data, b"x"]
    writable(got[0])[0] = 1


def test_nothing_is_offered_over_a_network() -> None:
    with socket.socket(socket.AF_INET) as sock:
        assert Connection(sock).peer_memory.offer() == []


def test_a_peer_that_was_not_found_readable_may_not_send_places() -> None:
    one, other = socket.socketpair()
    with one, other:
        reach, parts = PeerMemory(one), list[Buffer]()
        parts_of(request(1, bytes(BIG_BYTES)), parts, reach)
        one.sendmsg(views_of(parts))
        with pytest.raises(PeerViolation, match="unreadable"):
            Connection(other).receive()
        reach.release_all()


@pytest.mark.parametrize("body", [b"", b"short", bytes(PLACE_BYTES), bytes(PLACE_BYTES + 1)])
def test_an_offer_that_makes_no_sense_is_not_taken(unacquainted: Ends, body: bytes) -> None:
    here, there = unacquainted
    here.send(Message(Kind.OFFER, 0, body))
    assert there.advance() is None
    assert not there.peer_memory.reads
    assert there.due() == []


def test_a_peer_that_offered_no_memory_gets_no_note(unacquainted: Ends) -> None:
    here, there = unacquainted
    there.send(Message(Kind.TAKEN, 0))
    assert here.advance() is None
    assert not here.peer_memory.open


# Seals.


def test_bi2_a_message_whose_buffers_were_released_is_dropped(ends: Ends) -> None:
    here, there = ends
    kept = bytes(LARGE)  # still there, and readable
    here.send_all([request(1, kept, b"x", kept), request(2, kept)])
    there.send(Message(Kind.FAILURE, 1))
    here.receive()
    message = there.receive()
    assert message.call == 2
    assert [bytes(buffer) for buffer in message.buffers] == [kept]


def test_bi2_buffers_released_while_they_are_read_are_not_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = bytearray(2 * LARGE)  # the seal of less is read by the same system call
    held = BufferLease([sent])
    [place] = held.places()
    real = peer_memory._readv()

    def late(*args: object) -> int:
        got = real(*args)
        held.release()
        return got

    assert found(place, 2 * LARGE) == bytes(2 * LARGE)
    monkeypatch.setattr(peer_memory, "_readv", lambda: late)
    assert found(place, 2 * LARGE) is None
    sent.clear()  # it is held no longer


def test_memory_that_does_not_exist_is_not_read() -> None:
    held = BufferLease([bytes(BIG_BYTES), b""])
    large, empty = held.places()
    assert held.bytes == BIG_BYTES
    assert found(empty, 0) == b""
    assert found(bytes(8) + large[8:], BIG_BYTES) is None
    assert found(large[:8] + bytes(8) + large[16:], BIG_BYTES) is None
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait(LIMIT_S)
    assert read(gone.pid, large, BIG_BYTES) is None
    held.release()
    held.release()
    assert held.bytes == 0


def test_messages_one_after_the_other_use_the_same_memory(ends: Ends) -> None:
    here, there = ends
    gc.collect()
    memories._MappingLease.pool._free.clear()  # of tests before
    free = set()
    for call in range(1, 20):
        here.send(request(call, bytes([call]) * LARGE))
        got = writable(there.receive().buffers[0])
        assert got == bytes([call]) * LARGE
        del got
        free.add(pooled_bytes())
        there.send(Message(Kind.REPLY, call))
        here.receive()
    assert len(free) == 1
