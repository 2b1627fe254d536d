"""The transport inside one process. What all transports promise is in test_transport.py."""

from __future__ import annotations

from holdfast.clock import Deadline
from holdfast.net.inproc import pair

NEVER = Deadline(None)


def test_the_two_ends_name_each_other() -> None:
    near, far = pair("client", "server")
    assert (near.peer, far.peer) == ("server", "client")


def test_pairs_are_separate() -> None:
    one, other = pair()
    third, fourth = pair()
    one.send(b"x", NEVER)
    assert third.receive(0.0) == fourth.receive(0.0) == []
    assert other.receive(0.0) == [b"x"]


def test_releasing_a_copy_leaves_the_connection_alone() -> None:
    near, far = pair()
    near.release()
    near.send(b"still here", NEVER)
    assert far.receive(0.0) == [b"still here"]


def test_many_frames_come_at_once() -> None:
    near, far = pair()
    for number in range(3):
        near.send(bytes((number,)), NEVER)
    assert far.receive(0.0) == [b"\0", b"\1", b"\2"]
    assert far.receive(0.0) == []
