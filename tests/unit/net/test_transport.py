"""One contract for everything that carries frames: over TCP, and inside one process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from holdfast.clock import Deadline
from holdfast.errors import Unavailable, UsageError
from holdfast.net.frames import FRAME_BYTES_MAX
from holdfast.net.tcp import TcpTransport
from holdfast.net.transport import Transport
from tests.unit.net import inproc

SOON = 30.0
Ends = tuple[Transport, Transport]


def over_tcp() -> Ends:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return TcpTransport(near, "far"), TcpTransport(far, "near")


@pytest.fixture(params=["tcp", "inproc"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    one, other = over_tcp() if request.param == "tcp" else inproc.pair("near", "far")
    yield one, other
    one.close()
    other.close()


def within(seconds: float = SOON) -> Deadline:
    return Deadline.after(seconds)


def take(transport: Transport, number: int) -> list[bytes]:
    """Receive this many frames."""
    frames: list[bytes] = []
    deadline = within()
    while len(frames) < number:
        assert not deadline.passed()
        frames += transport.receive(1.0)
    return frames


def test_frames_arrive_whole_and_in_order(ends: Ends) -> None:
    sent = [b"", b"a", bytes(100_000), b"", b"end"]
    one, other = ends
    for payload in sent:
        one.send(payload, within())
    assert take(other, len(sent)) == sent
    other.send(b"back", within())
    assert take(one, 1) == [b"back"]


def test_a_frame_larger_than_every_buffer_arrives(ends: Ends) -> None:
    payload = bytes(range(256)) * 65_536
    one, other = ends
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.extend(take(other, 1)))
    reader.start()
    one.send(payload, within())
    reader.join(SOON)
    assert received == [payload]


def test_nothing_comes_of_waiting_for_nothing(ends: Ends) -> None:
    one, _ = ends
    assert one.receive(0.0) == []
    assert one.receive(0.01) == []
    assert one.receive(-1.0) == []


def test_an_oversized_frame_is_refused_and_harms_nothing(ends: Ends) -> None:
    one, other = ends
    with pytest.raises(UsageError, match="at most"):
        one.send(bytes(FRAME_BYTES_MAX + 1), within())
    one.send(b"fine", within())
    assert take(other, 1) == [b"fine"]


def test_what_was_sent_before_a_close_arrives_and_then_the_end_is_told(ends: Ends) -> None:
    one, other = ends
    one.send(b"last words", within())
    one.close()
    assert take(other, 1) == [b"last words"]
    with pytest.raises(Unavailable, match="connection to near lost") as caught:
        take(other, 1)
    assert caught.value.address == "near"


def test_sending_to_a_closed_peer_fails_soon(ends: Ends) -> None:
    one, other = ends
    other.close()
    deadline = within()

    def keep_sending() -> None:  # the network needs a moment to tell
        while not deadline.passed():
            one.send(b"x", deadline)

    with pytest.raises(Unavailable, match="connection to far lost"):
        keep_sending()
    assert not deadline.passed()


def test_nothing_goes_through_what_was_closed_here(ends: Ends) -> None:
    one, _ = ends
    one.close()
    one.close()
    with pytest.raises(Unavailable):
        one.send(b"x", within())
    for wait_s in (0.0, 0.5, 2.0):
        with pytest.raises(Unavailable):
            one.receive(wait_s)


@pytest.mark.parametrize("wait_s", [0.9, SOON])
def test_close_wakes_a_thread_that_receives(ends: Ends, wait_s: float) -> None:
    one, _ = ends
    woken: list[Unavailable] = []
    ready = threading.Event()

    def read() -> None:
        ready.set()
        try:
            take(one, 1)
        except Unavailable as error:
            woken.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    ready.wait(SOON)
    one.close()
    reader.join(SOON)
    assert len(woken) == 1


def test_one_receives_while_others_send(ends: Ends) -> None:
    one, other = ends
    lock = threading.Lock()
    each, senders = 200, 4

    def send(name: int) -> None:
        for number in range(each):
            with lock:
                one.send(b"%d %d" % (name, number), within())

    threads = [threading.Thread(target=send, args=(name,)) for name in range(senders)]
    for thread in threads:
        thread.start()
    frames = take(other, each * senders)
    for thread in threads:
        thread.join(SOON)
    for name in range(senders):
        own = [frame for frame in frames if frame.startswith(b"%d " % name)]
        assert own == [b"%d %d" % (name, number) for number in range(each)]
