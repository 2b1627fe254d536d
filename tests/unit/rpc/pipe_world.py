"""A pipe, its other end, and those who hear what comes of calls."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from holdfast.clock import Deadline
from holdfast.errors import PeerLost
from holdfast.rpc.future import Future
from holdfast.rpc.link import Link
from holdfast.rpc.messages import Buffer, Kind, Message
from holdfast.rpc.pipe import Pipe, Reply
from holdfast.rpc.readers import Readers
from holdfast.rpc.way import make_way

SOON = 30.0


class World:
    """A pipe, the reader of last resort, and the link at the other end, which tests answer by."""

    def __init__(self) -> None:
        self.readers = Readers("test-read")
        self.socks: list[socket.socket] = []
        self.pipe, self.there, self.raw = self.make()

    def make(self, calls_max: int = 100, bytes_max: int = 1 << 20) -> tuple[Pipe, Link, Link]:
        one, other = socket.socketpair()
        self.socks += (one, other)
        link = Link(one)
        pipe = Pipe(link, self.readers, lost, calls_max=calls_max, bytes_max=bytes_max)
        return pipe, Link(other), link

    def close(self) -> None:
        self.pipe.close(PeerLost("the test is over"))
        self.readers.close()
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
        make_way()  # as whoever waits
        pipe.drive(self.future.done, Deadline.after(SOON))
        assert self.future.done() or pipe.lost is not None
        return self.future.wait(SOON)  # who ends a pipe tells everybody, but not all at once

    def asked(self, pipe: Pipe) -> Message:
        """Wait as whoever has the future."""
        self.future._driver = pipe
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


def serve(there: Link, times: int) -> None:
    for _ in range(times):
        there.send(reply(there.receive().call))
