"""Links: whole messages in and out of a real socket, whatever pieces it cuts them into."""

from __future__ import annotations

import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import PeerViolation, UsageError
from holdfast.rpc.wire.codec import BUFFERS_MAX, HEADER, encode_head, parts_of, views_of
from holdfast.rpc.wire.connection import Connection, ConnectionEnded
from holdfast.rpc.wire.messages import NEVER, Buffer, Kind, Message

SOON = 20.0

Ends = tuple[Connection, Connection, socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = socket.socketpair()
    with one, other:
        yield Connection(one), Connection(other), one, other


def beside(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def within(seconds: float, connection: Connection, act: Callable[[], object]) -> None:
    """Act with a limit; on a slow machine it may have passed before it is set."""
    connection.set_limit(SYSTEM_CLOCK.monotonic() + seconds)
    act()


def flat(message: Message) -> bytes:
    parts: list[Buffer] = []
    parts_of(message, parts)
    return b"".join(views_of(parts))


def same(one: Message, other: Message) -> bool:
    return (
        one.kind is other.kind
        and (one.call, one.budget_ms, one.once) == (other.call, other.budget_ms, other.once)
        and bytes(one.body) == bytes(other.body)
        and [bytes(buffer) for buffer in one.buffers] == [bytes(b) for b in other.buffers]
    )


SIZES = [0, 1, 100, 4096, 4097, 30_000, 33_000, 65_536, 65_537, 200_000, 3_000_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("buffers", [(), (0,), (1, 40_000), (5_000_000, 3, 70_000)])
def test_messages_of_every_size_arrive(ends: Ends, size: int, buffers: tuple[int, ...]) -> None:
    here, there, _, _ = ends
    rng = random.Random(size)
    message = Message(
        Kind.PYTHON_CALL, 7, rng.randbytes(size), [rng.randbytes(n) for n in buffers], 9, True
    )
    after = Message(Kind.REPLY, 8, b"after")

    def send() -> None:
        here.send(message)
        here.send_all([after, message, after])

    sender = beside(send)
    assert same(there.receive(), message)
    assert same(there.receive(), after)
    assert same(there.receive(), message)
    assert same(there.receive(), after)
    assert not there.ready()
    sender.join()


def test_a_stream_cut_at_every_byte_gives_the_same_messages(ends: Ends) -> None:
    _, there, raw, _ = ends
    messages = [
        Message(Kind.PYTHON_CALL, 1, b"ab", budget_ms=3),
        Message(Kind.REPLY, 2, b"", [b"12345", b""]),
        Message(Kind.FAILURE, 3, b"xyz", once=True),
    ]
    stream = b"".join(flat(message) for message in messages)
    for cut in range(1, len(stream)):
        got = []
        for piece in (stream[:cut], stream[cut:]):
            raw.sendall(piece)
            while (message := there.advance()) is not None:
                got.append(message)
        assert len(got) == 3
        assert all(same(*pair) for pair in zip(got, messages, strict=True)), cut


def test_a_large_message_in_random_pieces_is_put_together(ends: Ends) -> None:
    _, there, raw, _ = ends
    rng = random.Random(3)
    messages = [
        Message(Kind.REPLY, n, rng.randbytes(rng.choice(SIZES[:9])), [rng.randbytes(150_000)] * 2)
        for n in range(8)
    ]
    stream = memoryview(b"".join(flat(message) for message in messages))
    got = []
    while stream:
        size = min(len(stream), rng.choice([1, 7, 24, 1000, 30_000, 60_000]))
        raw.sendall(stream[:size])
        stream = stream[size:]
        while (message := there.advance()) is not None:
            got.append(message)
    assert all(same(*pair) for pair in zip(got, messages, strict=True))


def test_calls_that_never_block_continue_where_they_stopped(ends: Ends) -> None:
    here, there, _, _ = ends
    message = Message(Kind.REPLY, 1, b"b" * 100, [bytes(range(256)) * 20_000, b"end"])
    parts: list[Buffer] = []
    parts_of(message, parts)
    views = views_of(parts)
    rounds, got = 0, None
    while got is None:
        here.send_some(views)
        got = there.advance()
        rounds += 1
    assert same(got, message)
    assert not views
    assert rounds > 1
    assert here.send_some([])


def test_a_received_buffer_belongs_to_the_receiver(ends: Ends) -> None:
    here, there, _, _ = ends
    mine = bytearray(b"x" * 20_000)
    here.send(Message(Kind.REPLY, 1, b"", [mine]))
    theirs = there.receive().buffers[0]
    assert not memoryview(theirs).readonly
    mine[:] = b"y" * len(mine)
    assert bytes(theirs) == b"x" * 20_000


def test_joining_leaves_the_buffers_of_others_alone() -> None:
    mine = bytearray(b"mine")
    parts: list[Buffer] = []
    parts_of(Message(Kind.REPLY, 1, b"a", [mine]), parts)
    parts_of(Message(Kind.REPLY, 2, b"b"), parts)
    parts_of(Message(Kind.REPLY, 3, b"c"), parts)
    views = views_of(parts)
    assert mine == b"mine"
    assert len(views) == 3
    assert bytes(views[1]) == b"mine"


def test_ready_means_that_receiving_will_not_block(ends: Ends) -> None:
    here, there, raw, _ = ends
    assert not there.ready()
    here.send_all([Message(Kind.REPLY, 1, b"a"), Message(Kind.REPLY, 2, b"b")])
    assert there.receive().call == 1
    assert there.ready()
    assert there.receive().call == 2
    whole = flat(Message(Kind.REPLY, 3, b"c"))
    raw.sendall(flat(Message(Kind.REPLY, 0)) + whole[:-1])
    assert there.receive().call == 0
    assert not there.ready()
    raw.sendall(whole[-1:])
    assert there.receive().call == 3


def test_the_beginning_may_have_been_read_already() -> None:
    one, other = socket.socketpair()
    with one, other:
        first = flat(Message(Kind.REPLY, 1, b"z" * 70_000))
        connection = Connection(other, first[:66_000])
        one.sendall(first[66_000:])
        assert connection.receive().body == b"z" * 70_000


def test_a_limit_ends_waiting_and_does_not_stay(ends: Ends) -> None:
    here, there, raw, _ = ends
    with pytest.raises(TimeoutError):
        within(0.02, there, there.receive)
    with pytest.raises(TimeoutError):
        there.set_limit(SYSTEM_CLOCK.monotonic() - 1)
    there.set_limit(NEVER)
    timer = threading.Timer(0.1, raw.sendall, [flat(Message(Kind.REPLY, 5))])
    timer.start()
    assert there.receive().call == 5  # later than the old limit
    timer.join()
    there.set_limit(SYSTEM_CLOCK.monotonic() + 1e12)
    here.send(Message(Kind.REPLY, 6))
    assert there.receive().call == 6


def test_a_limit_holds_for_a_message_that_comes_drop_by_drop(ends: Ends) -> None:
    _, there, raw, _ = ends
    stop = threading.Event()

    def drip() -> None:
        for byte in flat(Message(Kind.REPLY, 1, b"x" * 5000)):
            raw.sendall(bytes([byte]))
            if stop.wait(0.01):
                return

    dripping = beside(drip)
    with pytest.raises(TimeoutError):
        within(0.1, there, there.receive)
    stop.set()
    dripping.join()


def send_forever(connection: Connection, message: Message) -> None:
    while True:
        connection.send(message)


def test_a_limit_ends_sending_to_a_peer_that_does_not_read(ends: Ends) -> None:
    here, _, _, _ = ends
    for message in (
        Message(Kind.REPLY, 1, b"", [bytes(5_000_000)]),
        Message(Kind.REPLY, 1, b"x" * 4000),
    ):
        with pytest.raises(TimeoutError):
            within(0.05, here, lambda message=message: send_forever(here, message))  # type: ignore[misc]


def test_a_limit_ends_sending_to_a_peer_that_reads_slowly(ends: Ends) -> None:
    here, _, _, there = ends
    over = threading.Event()

    def read_slowly() -> None:
        while not over.wait(0.005):
            there.recv(65536)

    reader = beside(read_slowly)
    with pytest.raises(TimeoutError):
        within(0.1, here, lambda: here.send(Message(Kind.REPLY, 1, bytes(1 << 26))))
    over.set()
    here.shut()  # the reader may be waiting for more
    reader.join()


def test_a_sending_thread_fails_when_the_connection_is_closed_here(ends: Ends) -> None:
    here, _, one, _ = ends
    message = Message(Kind.REPLY, 1, b"", [bytes(5_000_000)])
    views = views_of(message.buffers)
    assert not here.send_some(views)
    one.close()
    with pytest.raises(ConnectionEnded):
        here.advance_within(1.0, True)
    with pytest.raises(ConnectionEnded):
        here.send_parts(views)


@pytest.mark.parametrize("sends", [True, False])
def test_lk1_signals_do_not_stretch_the_limit(ends: Ends, sends: bool) -> None:
    here, there, _, _ = ends
    large = Message(Kind.REPLY, 1, bytes(1 << 26))
    connection, act = (here, lambda: here.send(large)) if sends else (there, there.receive)
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: came.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    giving_up = threading.Timer(SOON, here.shut)
    giving_up.start()
    try:
        with pytest.raises(TimeoutError):
            within(0.1, connection, act)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        giving_up.cancel()
    giving_up.join()
    assert came


def test_the_end_of_the_connection_is_an_error(ends: Ends) -> None:
    here, there, raw, _ = ends
    raw.sendall(flat(Message(Kind.REPLY, 1, b"abc"))[:-1])
    here.close()
    here.close()
    assert here.fileno() == -1
    with pytest.raises(ConnectionEnded, match="^Connection closed by peer$"):
        there.receive()
    with pytest.raises(ConnectionEnded, match="Connection closed by peer"):
        there.advance()
    with pytest.raises(ConnectionEnded, match="Connection reset by peer"):
        there.send(Message(Kind.REPLY, 1))
    with pytest.raises(ConnectionEnded, match="Connection reset by peer"):
        there.send_some(views_of([b"x"]))
    with pytest.raises(ConnectionEnded, match="Connection closed by peer"):
        here.send(Message(Kind.REPLY, 1, b"", [b"x"]))


def test_a_reset_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with other, closing(Connection(one)) as connection:
        connection.send(Message(Kind.REPLY, 1))
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        other.close()
        with pytest.raises(ConnectionEnded, match="Connection reset by peer"):
            connection.receive()


def test_a_receiving_thread_fails_when_the_connection_is_closed_here(ends: Ends) -> None:
    here, _, _, _ = ends
    heard: list[str] = []

    def receive() -> None:
        try:
            here.receive()
        except ConnectionEnded as error:
            heard.append(str(error))

    thread = beside(receive)
    here.shut()
    thread.join()
    assert heard == ["Connection closed by peer"]


def test_nonsense_is_refused_without_memory_for_it(ends: Ends) -> None:
    for fields in [(1, 0, 0, 0, 1, 2**63), (77, 0, 0, 0, 1, 0), (1, 0, 40_000, 0, 1, 0)]:
        one, other = socket.socketpair()
        with one, other:
            one.sendall(HEADER.pack(*fields))
            with pytest.raises(PeerViolation):
                Connection(other).receive()
    # Two gibibytes are announced and do not come: nothing of them is touched.
    _, there, raw, _ = ends
    raw.sendall(HEADER.pack(1, 0, 0, 0, 1, 2**31) + b"a")
    before = resident()
    assert there.advance() is None
    assert resident() - before < 64 << 20


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def test_a_message_that_cannot_be_sent_is_refused_and_the_connection_stays_usable(
    ends: Ends,
) -> None:
    here, there, _, _ = ends
    with pytest.raises(UsageError):
        here.send(Message(Kind.REPLY, 1, b"", [b""] * (BUFFERS_MAX + 1)))
    here.send(Message(Kind.REPLY, 2))
    assert there.receive().call == 2


def test_as_many_buffers_as_can_be(ends: Ends) -> None:
    here, there, _, _ = ends
    message = Message(Kind.REPLY, 1, b"", [b"ab"] * BUFFERS_MAX)
    sender = beside(lambda: here.send(message))
    assert there.receive().buffers == [bytearray(b"ab")] * BUFFERS_MAX
    sender.join()
    assert encode_head(message)


def test_a_spinning_reader_gets_what_is_there_and_the_end(ends: Ends) -> None:
    here, there, _, _ = ends
    message = Message(Kind.REPLY, 1, b"x" * 100)
    there._spin.now = True
    here.send(message)
    assert same(there.receive(), message)
    assert there._spin.now  # it was worth it
    here.close()
    with pytest.raises(ConnectionEnded, match="Connection closed by peer"):
        there.receive()


def test_a_reader_that_spun_for_nothing_sleeps_until_data_or_the_limit(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, _, _ = ends
    message = Message(Kind.REPLY, 1, b"x" * 100)
    there._spin.now = True
    with pytest.raises(TimeoutError):
        within(0.02, there, there.receive)
    assert not there._spin.now
    there.set_limit(NEVER)
    monkeypatch.setattr("holdfast.rpc.wire.connection.SPINS", 0)  # it comes after the last look
    there._spin.now = True
    sender = beside(lambda: here.send(message))
    assert same(there.receive(), message)
    assert not there._spin.now
    sender.join()
