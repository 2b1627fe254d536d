"""Serving a connection: calls that block hold up no others, and nothing is left behind."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pytest

from holdfast.rpc.server import serving
from holdfast.rpc.server.serving import Later, PipeConnection, StallWatch
from holdfast.rpc.wire.codec import HEADER, encode_head
from holdfast.rpc.wire.connection import ConnectionEnded
from holdfast.rpc.wire.hello import Purpose, WorkerHello
from holdfast.rpc.wire.messages import Kind, Message
from tests.unit.rpc.server_world import SOON, World, ask, ended, raises
from tests.waiting import until


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("purpose", list(Purpose))
def test_sr2_requests_are_answered(
    world: World, purpose: Purpose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PipeConnection, "look", lambda owner: None)  # nothing is slow
    connection = world.open(purpose)
    for number in range(20):
        connection.send(ask(number, b"%d" % number, b"x" * number))
        answer = connection.receive()
        assert (answer.call, answer.body) == (number, b"%d" % number)
    assert len(world.desk.threads) == 1


@pytest.mark.parametrize("purpose", list(Purpose))
def test_sr6_neither_the_last_request_nor_the_last_answer_is_kept(
    world: World, purpose: Purpose, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, handle = threading.Semaphore(0), world.desk.handle

    class Block(bytearray):
        """Tells when it is gone."""

    def watch(caller: WorkerHello, message: Message, later: Later) -> Message | None:
        block = Block(b"answer")
        message.buffers = [Block(message.buffers[0])]  # bytes cannot be watched
        for watched in (block, message.buffers[0]):
            weakref.finalize(watched, gone.release).atexit = False
        assert handle(caller, message, later) is not None
        return Message(Kind.REPLY, message.call, b"", [memoryview(block)])

    monkeypatch.setattr(world.desk, "handle", watch)
    connection = world.open(purpose)
    connection.send(ask(1, b"", bytes(100_000)))
    assert connection.receive().buffers == [b"answer"]
    assert gone.acquire(timeout=SOON)
    assert gone.acquire(timeout=SOON)


def test_sr2_many_requests_at_once_on_a_pipe_are_all_answered(world: World) -> None:
    connection = world.open(Purpose.PIPE)
    sender = threading.Thread(
        target=lambda: connection.send_all([ask(n, b"%d" % n) for n in range(5000)])
    )
    sender.start()
    assert sorted(connection.receive().call for _ in range(5000)) == list(range(5000))
    sender.join()


@pytest.mark.parametrize("blocking", [b"block", b"way"])
def test_sr3_a_call_that_blocks_does_not_delay_those_behind_it(
    world: World, blocking: bytes
) -> None:
    connection = world.open(Purpose.PIPE)
    connection.send_all([ask(1, b"before"), ask(2, blocking), ask(3, blocking), ask(4, b"behind")])
    assert {connection.receive().call, connection.receive().call} == {1, 4}
    connection.send(ask(5))
    assert connection.receive().call == 5
    world.desk.gate.set()
    assert {connection.receive().call, connection.receive().call} == {2, 3}
    connection.send(ask(6))
    assert connection.receive().call == 6


def test_threads_of_calls_that_blocked_end(world: World) -> None:
    connection = world.open(Purpose.PIPE)
    before = threading.active_count()
    for round_ in range(3):
        connection.send_all([ask(round_ * 100 + n, b"way") for n in range(20)])
        for _ in range(20):
            world.desk.entered.acquire()
        world.desk.gate.set()
        assert len({connection.receive().call for _ in range(20)}) == 20
        world.desk.gate.clear()
    until(lambda: threading.active_count() <= before + 1)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_an_answer_may_come_later_from_any_thread(world: World, purpose: Purpose) -> None:
    connection = world.open(purpose)
    connection.send(ask(1, b"later"))
    world.desk.entered.acquire()
    if purpose is Purpose.PIPE:
        connection.send(ask(2))
        assert connection.receive().call == 2
    world.desk.later.pop()(Message(Kind.REPLY, 1, b"here"))
    assert connection.receive().body == b"here"
    connection.send(ask(3, b"later"))
    world.desk.entered.acquire()
    connection.close()
    later = world.desk.later.pop()
    until(lambda: raises(lambda: later(Message(Kind.REPLY, 3))))


@pytest.mark.parametrize("purpose", list(Purpose))
def test_an_answer_that_comes_later_waits_for_no_caller_that_does_not_read(
    world: World, purpose: Purpose
) -> None:
    connection = world.open(purpose)
    connection.send(ask(1, b"later"))
    assert world.desk.entered.acquire(timeout=SOON)
    world.desk.later.pop()(Message(Kind.REPLY, 1, bytes(8 << 20)))  # or it would hang here
    assert len(connection.receive().body) == 8 << 20
    connection.send(ask(2))
    assert connection.receive().call == 2


def test_of_a_caller_that_does_not_read_no_more_is_read(world: World) -> None:
    connection = world.open(Purpose.PIPE)
    connection.send_all([ask(n, b"large") for n in range(300)])
    run = 0
    while world.desk.entered.acquire(timeout=0.5):
        run += 1
    assert run < 60  # those that are sent, or fit the socket, and those that are kept
    assert sorted(connection.receive().call for _ in range(300)) == list(range(300))


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_note_is_not_answered(world: World, purpose: Purpose) -> None:
    connection = world.open(purpose)
    connection.send(ask(1, b"note"))
    world.desk.entered.acquire()
    connection.send(ask(2))
    assert connection.receive().call == 2


def test_a_caller_that_does_not_read_holds_up_no_other_one(world: World) -> None:
    lazy, connection = world.open(Purpose.PIPE), world.open(Purpose.PIPE)
    big = bytes(1 << 20)
    lazy.send_all([ask(n, b"", big) for n in range(1)])
    threading.Thread(target=lambda: raises(lambda: lazy.send(ask(9, b"", big * 9)))).start()
    for number in range(5):
        connection.send_all([ask(number * 2, b"block"), ask(number * 2 + 1)])
        assert connection.receive().call == number * 2 + 1  # the watch is not stuck
    lazy.close()


def test_a_connection_may_end_while_its_calls_run(world: World) -> None:
    for purpose in Purpose:
        connection = world.open(purpose)
        connection.send(ask(1, b"block"))
        world.desk.entered.acquire()
        connection.close()
    world.desk.gate.set()
    connection = world.open(Purpose.PIPE)
    connection.send(ask(2))
    assert connection.receive().call == 2


def test_a_peer_that_sends_nonsense_is_hung_up_on(world: World) -> None:
    for purpose in Purpose:
        connection = world.open(purpose)
        world.socks[-1].sendall(HEADER.pack(99, 0, 65535, 0, 0, 2**63))
        with pytest.raises(ConnectionEnded):
            connection.receive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_bug_in_the_handler_ends_the_connection_instead_of_leaving_it_unread(
    world: World, purpose: Purpose
) -> None:
    connection = world.open(purpose)
    connection.send(ask(1, b"bug"))
    with pytest.raises(ConnectionEnded):
        connection.receive()


@pytest.mark.parametrize("body", [b"way", b"block"])
def test_without_a_thread_to_be_had_a_call_goes_on_where_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    connection = world.open(Purpose.PIPE)
    connection.send(ask(0))
    assert connection.receive().call == 0

    def none(*args: object, **kwargs: object) -> threading.Thread:
        refused.set()
        raise RuntimeError("can't start new thread")

    refused = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", none)
        connection.send_all([ask(1, body), ask(2)])
        assert refused.wait(SOON)
        other = world.connect()  # cannot be served, and is told so
        assert ended(other)
    world.desk.gate.set()
    assert {connection.receive().call, connection.receive().call} == {1, 2}
    assert world.open(Purpose.DIRECT)


def test_a_pipe_works_without_a_thread_that_watches_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StallWatch, "wake", lambda watch: None)
    connection = world.open(Purpose.PIPE)
    connection.send_all([ask(1), ask(2, b"way"), ask(3)])
    assert {connection.receive().call, connection.receive().call} == {1, 3}


def test_sr3_a_sleeping_watch_can_be_woken_by_a_call_that_came_as_it_fell_asleep() -> None:
    watch = StallWatch("test")
    could_be_woken: list[bool] = []

    class Late(threading.Event):
        """A quick call comes while the watch falls asleep."""

        def clear(self) -> None:
            if watch.asleep:
                watch.wake()
            super().clear()

        def wait(self, timeout: float | None = None) -> bool:
            could_be_woken.append(watch.asleep)
            watch.close()
            return True

    watch._awake, watch.asleep = Late(), False
    thread = threading.Thread(target=watch._run, daemon=True)
    thread.start()
    thread.join(SOON)
    assert could_be_woken == [True]


def test_a_watch_that_is_about_to_sleep_notices_its_end() -> None:
    watch = StallWatch("test")

    class Late(threading.Event):
        """Is closed at the last moment."""

        def clear(self) -> None:
            watch.close()
            super().clear()

    watch._awake = Late()
    thread = threading.Thread(target=watch._run, daemon=True)
    thread.start()
    thread.join(SOON)
    assert not thread.is_alive()


# Idle connections.


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PARK_AFTER_S", 0.01)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("purpose", list(Purpose))
def test_sr6_idle_connections_have_no_thread_and_are_still_served(
    world: World, purpose: Purpose
) -> None:
    connections = [world.open(purpose, f"life {number}") for number in range(20)]
    for round_ in range(3):
        until(lambda: len(world.server._parking) == len(connections))
        for connection in connections:
            connection.send(ask(round_))
            assert connection.receive().call == round_
    until(lambda: len(world.server._parking) == len(connections))
    until(lambda: len(world.server._pool._idle) == len(world.server._pool))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_message_of_which_only_a_part_has_come_is_read_on(world: World, purpose: Purpose) -> None:
    connection = world.open(purpose)
    data = encode_head(ask(1, b"x" * 200_000)) + b"x" * 200_000
    for part in (data[:7], data[7:100], data[100:150_000], data[150_000:]):
        until(lambda: len(world.server._parking) == 1)
        connection._sock.sendall(part)
    assert connection.receive().body == b"x" * 200_000


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("purpose", list(Purpose))
def test_an_idle_connection_that_ends_is_forgotten(world: World, purpose: Purpose) -> None:
    connection, other = world.open(purpose, "gone"), world.open(purpose)
    until(lambda: len(world.server._parking) == 2)
    connection.close()
    until(lambda: len(world.server.connections) == 1)
    other.send(ask(1))
    assert other.receive().call == 1
    until(lambda: len(world.server._parking) == 1)
    world.server.close()
    assert raises(other.receive)
    until(lambda: not world.server.connections)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_connection_that_cannot_be_parked_keeps_its_thread(
    world: World, purpose: Purpose, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Semaphore(0)
    monkeypatch.setattr(world.server._parking, "park", lambda *_: tried.release())
    connection = world.open(purpose)
    assert tried.acquire(timeout=SOON)
    assert tried.acquire(timeout=SOON)
    connection.send(ask(1))
    assert connection.receive().call == 1
