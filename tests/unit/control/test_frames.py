"""One frame on a socket, within a deadline."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from holdfast.clock import Deadline
from holdfast.control.frames import receive_frame, send_frame
from holdfast.errors import PeerViolation, TimeoutExpired, UsageError


def soon() -> Deadline:
    return Deadline.after(60.0)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_a_frame_comes_whole_also_in_pieces(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    send_frame(one, b"hello", 10, soon())
    assert receive_frame(other, 10, soon()) == b"hello"
    one.sendall(b"\0\0\0")
    one.sendall(b"\x02h")
    one.sendall(b"i")
    assert receive_frame(other, 10, soon()) == b"hi"


def test_limits_are_kept_on_both_sides(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    send_frame(one, b"x" * 10, 10, soon())
    assert receive_frame(other, 10, soon()) == b"x" * 10
    with pytest.raises(UsageError):
        send_frame(one, b"x" * 11, 10, soon())
    one.sendall(b"\0\0\0\x0b")
    with pytest.raises(PeerViolation, match="11 bytes was announced"):
        receive_frame(other, 10, soon())


def test_no_frame_comes(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    one.sendall(b"\0\0\0\x05hel")
    for timeout in (0.0, 0.01):
        with pytest.raises(TimeoutExpired):
            receive_frame(other, 10, Deadline.after(timeout))
    one.close()
    with pytest.raises(ConnectionResetError):
        receive_frame(other, 10, soon())
