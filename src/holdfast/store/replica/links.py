"""The connections from a member to the other members: the shell around `link.py`.

Connections are made and authenticated by short-lived threads, and then belong to the reactor of the
store's server. A message that finds no connection, or one on which too much waits, is dropped.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping

from holdfast.clock import Clock, Deadline
from holdfast.errors import HoldfastError, UsageError
from holdfast.net.address import Address, parse_address
from holdfast.net.frames import FrameDecoder, encode_frame
from holdfast.net.reactor import Reactor, ReactorConnection
from holdfast.net.tcp import open_socket, shake_hands
from holdfast.store.raft.messages import Message
from holdfast.store.replica.link import DIAL_WITHIN_S, LinkStep, MemberLink
from holdfast.store.replica.messages import (
    ALIVE,
    ASK,
    PARTING,
    Dismissal,
    MemberHello,
    decode_answer,
    encode_first,
    encode_message,
    parts_of,
)
from holdfast.threads import start_thread

__all__ = ["MemberLinks"]

QUEUED_BYTES_MAX = 64 * 1024 * 1024
"""How much may wait for a member before messages to it are dropped; one snapshot may be more."""

_AHEAD_BYTES = 4 * 1024 * 1024


class MemberLinks:
    """The outgoing connections of one member. On the reactor's thread, except for `close`."""

    def __init__(
        self,
        reactor: Reactor,
        key: bytes,
        member: int,
        clock: Clock,
        *,
        lost: Callable[[int], None],
        dismissed: Callable[[int, str], None],
    ) -> None:
        self.reactor = reactor
        self._key = key
        self._member = member
        self._clock = clock
        self.lost = lost
        self.dismissed = dismissed
        self._links: dict[int, _Link] = {}
        self._lock = threading.Lock()  # guards what follows
        self._closed = False
        self._dialing: dict[threading.Thread, socket.socket | None] = {}

    def send(self, member: int, address: str, message: Message) -> bool:
        """Send a message, or drop it; say whether it is under way."""
        link = self._link(member, address)
        return link.machine.want() and link.send(encode_message(message))

    def _link(self, member: int, address: str) -> _Link:
        link = self._links.get(member)
        if link is None:
            link = self._links[member] = _Link(self, member)
        link.address = address
        return link

    def tick(self, now: float, peers: Mapping[int, str]) -> None:
        """Make, ask and give up connections; those to `peers` are made before they are needed."""
        for member, address in peers.items():
            self._link(member, address).machine.want()
        for link in list(self._links.values()):
            match link.machine.tick(now):
                case LinkStep.DIAL:
                    self._dial(link)
                case LinkStep.ASK:
                    link.say(ASK)
                case LinkStep.CLOSE:
                    link.part("the member is silent")
                case None:
                    pass

    def part(self) -> None:
        """Close all connections, and say that this is no death: the process lives on."""
        for link in list(self._links.values()):
            link.part("this member ends")

    def close(self) -> None:
        """End what is under way; the reactor, which owns the rest, is closed already."""
        with self._lock:
            self._closed = True
            dialing = dict(self._dialing)
        for sock in dialing.values():
            if sock is not None:
                _shut(sock)
        for thread in dialing:
            thread.join(2 * DIAL_WITHIN_S)

    # Dialing.

    def _dial(self, link: _Link) -> None:
        try:
            address = parse_address(link.address)
        except UsageError:
            link.failed()
            return
        thread = threading.Thread(
            target=self._connect, args=(link, address), name="holdfast-member-dial", daemon=True
        )
        with self._lock:
            self._dialing[thread] = None
        start_thread(thread)

    def _connect(self, link: _Link, address: Address) -> None:
        """Make a connection, on a thread of its own, and hand it to the reactor."""
        this = threading.current_thread()
        deadline = Deadline.after(DIAL_WITHIN_S, self._clock)

        def made(sock: socket.socket) -> None:
            with self._lock:
                self._dialing[this] = sock

        sock: socket.socket | None = None
        try:
            sock = open_socket(address, deadline, made)
            shake_hands(sock, self._key, address, deadline)
        except HoldfastError:
            if sock is not None:
                sock.close()
            sock = None
        with self._lock:
            del self._dialing[this]
            if self._closed:
                if sock is not None:
                    sock.close()
                return
            if sock is None:
                self.reactor.call_soon(link.failed)
            else:
                # If the reactor ends first, this closes it: callbacks that never run are dropped.
                self.reactor.call_soon(_Adoption(self.reactor, sock, address, link))

    def now(self) -> float:
        """Return the time."""
        return self._clock.monotonic()

    def hello(self, to: int) -> bytes:
        """Return the first frame of a connection."""
        return encode_first(MemberHello(self._member, to))


class _Adoption:
    """A connection on its way to the reactor."""

    def __init__(
        self, reactor: Reactor, sock: socket.socket, address: Address, link: _Link
    ) -> None:
        self._reactor = reactor
        self._socket: socket.socket | None = sock
        self._address = address
        self._link = link

    def __call__(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            self._reactor.adopt(sock, self._address, self._link.adopted)

    def __del__(self) -> None:
        if self._socket is not None:
            self._socket.close()


class _Link:
    """One connection, and the reactor's handler of it."""

    def __init__(self, links: MemberLinks, member: int) -> None:
        self.machine = MemberLink()
        self.address = ""
        self._links = links
        self._member = member
        self._connection: ReactorConnection | None = None
        self._decoder = FrameDecoder()
        self._queue: deque[bytes] = deque()
        self._queued = 0

    def adopted(self, connection: ReactorConnection) -> _Link:
        self._connection = connection
        connection.on_drained = self._pump
        self._decoder = FrameDecoder()
        self.machine.opened(self._links.now())
        self._queue.append(encode_frame(self._links.hello(self._member)))
        self._links.reactor.call_soon(self._pump)
        return self

    def failed(self) -> None:
        self.machine.closed(self._links.now())
        self._links.lost(self._member)

    def send(self, data: bytes) -> bool:
        if self._queued > QUEUED_BYTES_MAX:
            return False
        for part in parts_of(data):
            self.say(part)
        return True

    def say(self, frame: bytes) -> None:
        self._queue.append(encode_frame(frame))
        self._queued += len(frame)
        self._pump()

    def _pump(self) -> None:
        connection = self._connection
        while self._queue and connection is not None and connection.unsent() <= _AHEAD_BYTES:
            data = self._queue.popleft()
            self._queued -= len(data) - 4
            connection.send(data)

    def part(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.send(encode_frame(PARTING))
            self._connection.close(reason)

    def received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self.machine.heard(self._links.now())
            if frame != ALIVE:
                answer = decode_answer(frame)
                if isinstance(answer, Dismissal):
                    self._links.dismissed(self._member, answer.why)

    def closed(self, reason: str) -> None:
        self._connection = None
        self._queue.clear()
        self._queued = 0
        self.failed()


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # not connected yet, or closed already
