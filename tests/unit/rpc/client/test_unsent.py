"""Messages of calls that are given up: taken back, or copied as they are then."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import PeerLost
from holdfast.rpc.client.unsent import exposed, take_back, take_back_views
from holdfast.rpc.wire.codec import parts_of, views_of
from holdfast.rpc.wire.messages import NEVER, Buffer, Kind, Message
from tests.unit.rpc.pipe_world import SOON, Heard, World, beside, reply, request

SIZES = (20_000, 0, 30_000)


def message(call: int, body: int) -> tuple[list[Buffer], list[bytearray]]:
    """Return the parts of a message, and the memory of its arguments."""
    memory = [bytearray([call]) * size for size in SIZES]
    parts: list[Buffer] = []
    buffers = [memoryview(each) for each in memory]
    parts_of(Message(Kind.PYTHON_CALL, call, b"b" * body, buffers), parts)
    return exposed(parts), memory


def small(call: int) -> list[Buffer]:
    parts: list[Buffer] = []
    parts_of(Message(Kind.PYTHON_CALL, call, b"small"), parts)
    return parts


def joined(out: list[Buffer]) -> bytes:
    return b"".join(views_of(out))


@pytest.mark.parametrize("body", [0, 100, 4097, 4120, 10_000])
def test_a_message_that_has_not_begun_is_taken_back(body: int) -> None:
    (one, _), (other, _) = message(1, body), message(2, body)
    out = [*small(3), *one, *small(4), *other, *small(5)]
    views = views_of(out)
    without_one = joined([*small(3), *small(4), *other, *small(5)])
    without_both = joined([*small(3), *small(4), *small(5)])
    take_back_views(one, views)
    assert b"".join(views) == without_one
    take_back_views(other, views)
    assert b"".join(views) == without_both
    assert take_back(one, out)
    assert not take_back(one, out)
    assert joined(out) == without_one
    assert take_back(other, out)
    assert joined(out) == without_both


@pytest.mark.parametrize("sent", [1, 30, 15_000, 25_000, 50_020])
def test_of_a_message_that_has_begun_the_rest_is_as_it_was(sent: int) -> None:
    parts, memory = message(1, 10)
    after = small(2)
    whole = joined([*parts, *after])
    views = views_of([*parts, *after])
    left = sent
    while left >= views[0].nbytes:
        left -= views.pop(0).nbytes
    views[0] = views[0][left:]
    take_back_views(parts, views)
    for each in memory:
        each[:] = b"?" * len(each)
    assert b"".join(views) == whole[sent:]


def test_taking_back_a_sent_message_changes_no_other() -> None:
    (one, _), (other, _) = message(1, 10), message(2, 10)
    views = views_of(other)
    take_back_views(one, views)
    assert views == views_of(other)


# By a pipe.


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


def arguments(call: int, size: int) -> tuple[Message, bytearray]:
    """Return a request, and the memory of what it is to be run with."""
    memory = bytearray(b"first") * (size // 5)
    return Message(Kind.PYTHON_CALL, call, b"body", [memoryview(memory)]), memory


@pytest.mark.parametrize("expires", [True, False])
def test_pi7_a_call_that_is_given_up_is_not_sent_or_sent_unchanged(
    world: World, expires: bool
) -> None:
    pipe, there, _ = world.make(bytes_max=1 << 24)
    now = SYSTEM_CLOCK.monotonic()
    begun, waits, stays = (arguments(call, 1_000_000) for call in (1, 2, 3))
    heard = [Heard() for _ in range(3)]
    for (message, _), each, at in zip((begun, waits, stays), heard, (now, now, NEVER), strict=True):
        pipe.post(message, each, at if expires else NEVER)
    assert pipe.blocked
    if expires:
        for each in heard[:2]:
            with pytest.raises(TimeoutError):
                each.wait()
    else:
        pipe.give_up(1)
        pipe.give_up(2)
        assert [each.times for each in heard] == [0, 0, 0]
    assert pipe.under_way[0] == 1
    for _, memory in (begun, waits):
        memory[:] = b"later" * (len(memory) // 5)
    reading = beside(lambda: pipe.drive(heard[2].future.done, Deadline.after(SOON)))
    came = [there.receive(), there.receive()]
    assert [message.call for message in came] == [1, 3]
    assert [bytes(message.buffers[0][:5]) for message in came] == [b"first"] * 2
    assert [bytes(message.buffers[0][-5:]) for message in came] == [b"first"] * 2
    there.send(reply(1))  # to no reader
    there.send(reply(3))
    reading.join()
    assert heard[2].wait().call == 3
    assert [each.times for each in heard] == [int(expires), int(expires), 1]
    assert pipe._exposed == {}
    pipe.close(PeerLost("the test is over"))


def test_pi7_a_call_that_is_not_being_sent_is_taken_back(world: World) -> None:
    pipe = world.pipe
    pipe.post(request(1), Heard())
    pipe._sender = threading.get_ident()  # which we have interrupted, say
    message, _ = arguments(2, 20_000)
    pipe.post(message, Heard())
    pipe.post(request(3), Heard())
    pipe.give_up(2)
    pipe._sender = 0
    pipe.flush()
    assert [world.there.receive().call for _ in range(2)] == [1, 3]
    assert not world.there.ready()


def test_pi7_a_thread_that_sends_is_waited_for(world: World) -> None:
    pipe, there, _ = world.make(bytes_max=1 << 24)
    message, memory = arguments(1, 1_000_000)
    pipe.post(message, Heard())
    pipe._sender = -1
    giving_up = beside(lambda: pipe.give_up(1))
    giving_up.join(0.02)
    assert giving_up.is_alive()
    pipe._sender = 0
    giving_up.join()
    memory[:] = bytes(len(memory))
    sending = beside(lambda: pipe.drive(lambda: not pipe.blocked, Deadline.after(SOON)))
    assert bytes(there.receive().buffers[0][-5:]) == b"first"
    sending.join()
    pipe.post(message, Heard())
    pipe._sender = threading.get_ident()  # it has begun, and cannot be waited for
    pipe.give_up(1)
    pipe._sender = 0
    pipe.close(PeerLost("the test is over"))


def test_pi7_buffers_that_the_peer_fetches_are_sealed_off(world: World) -> None:
    pipe, there, here = world.make(bytes_max=1 << 26)
    for connection, other in ((here, there), (there, here)):
        connection.send_all(connection.peer_memory.offer())
        assert other.advance() is None
        other.send_all(other.due())
        assert connection.advance() is None
    assert here.peer_memory.open
    message, _ = arguments(1, 5_000_000)
    pipe.post(message, Heard())
    pipe.post(request(2), Heard())
    pipe.flush()
    pipe.give_up(1)
    assert there.receive().call == 2
    pipe.close(PeerLost("the test is over"))
