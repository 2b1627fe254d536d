"""A pipe, its other end, and callbacks that record the outcomes of calls."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from holdfast.clock import Deadline
from holdfast.errors import PeerLost
from holdfast.rpc.client.background_reader import BackgroundReader
from holdfast.rpc.client.blocking import before_block
from holdfast.rpc.client.future import Future
from holdfast.rpc.client.pipe import Pipe, Reply
from holdfast.rpc.wire.connection import Connection
from holdfast.rpc.wire.messages import Buffer, Kind, Message

SOON = 30.0


class World:
    """A pipe, its background reader, and the other end, by which tests answer."""

    def __init__(self) -> None:
        self.background = BackgroundReader("test-read")
        self.socks: list[socket.socket] = []
        self.pipe, self.there, self.raw = self.make()

    def make(
        self, calls_max: int = 100, bytes_max: int = 1 << 20
    ) -> tuple[Pipe, Connection, Connection]:
        one, other = socket.socketpair()
        self.socks += (one, other)
        connection = Connection(one)
        pipe = Pipe(connection, self.background, lost, calls_max=calls_max, bytes_max=bytes_max)
        return pipe, Connection(other), connection

    def close(self) -> None:
        self.pipe.close(PeerLost("the test is over"))
        self.background.close()
        for sock in self.socks:
            sock.close()


def lost(error: OSError) -> Exception:
    return PeerLost(f"lost: {error}")


class Heard:
    """A reply that remembers what it heard, and can be waited for by drivers and others."""

    def __init__(self) -> None:
        self.future: Future[Message] = Future()
        self.times = 0

    def __call__(self, answer: Message | Exception) -> None:
        self.times += 1
        if isinstance(answer, Message):
            self.future.set_result(answer)
        else:
            self.future.set_exception(answer)

    def wait(self) -> Message:
        """Wait without driving."""
        return self.future.wait(SOON)

    def driven(self, pipe: Pipe) -> Message:
        before_block()  # as a thread that waits
        pipe.drive(self.future.done, Deadline.after(SOON))
        assert self.future.done() or pipe.lost is not None
        return self.future.wait(SOON)  # calls are told one by one that a pipe ended

    def asked(self, pipe: Pipe) -> Message:
        """Wait as a thread that has the future."""
        self.future.driver = pipe
        return self.future.wait(SOON)

    def fails(self, pipe: Pipe) -> None:
        with pytest.raises(PeerLost):
            self.driven(pipe)


def request(call: int, body: bytes = b"", *buffers: bytes) -> Message:
    return Message(Kind.PYTHON_CALL, call, body, list(buffers))


def reply(call: int, body: Buffer = b"") -> Message:
    return Message(Kind.REPLY, call, body)


def beside(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def then(reply: Reply, act: Callable[[], object]) -> Reply:
    """Return a reply that does something first."""

    def hear(answer: Message | Exception) -> None:
        act()
        reply(answer)

    return hear


def serve(there: Connection, times: int) -> None:
    for _ in range(times):
        there.send(reply(there.receive().call))
