"""One connection between two agents: messages in, messages out, nothing else.

Small messages cost one system call each way. The buffers of a large one are sent from where they
lie, and received into the memory that their reader keeps; those that are larger still are not sent
at all where the reader can fetch them (big.py).

Two ways to use one: `send` and `receive` block, until the limit that `set_limit` sets; `send_some`
and `advance` never do, and go on where they stopped. A connection whose blocking call timed out, or
that failed in any way, is closed, since nobody knows what is still on its way.

Guarantees
    LK-1  What blocks ends at the limit, however many signals come meanwhile. The system's own limit
          (SO_RCVTIMEO) starts afresh after each of them, so it serves only where somebody watches
          the connection, and hangs up when the limit has passed (`watched`). Else `poll` keeps it;
          the limit of a `sendmsg`, besides, counts anew for each piece on a Unix socket.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.forks import close_in_child
from holdfast.rpc.wire.codec import (
    ELSEWHERE,
    HEADER_BYTES,
    Head,
    decode_head,
    decode_lengths,
    decode_small,
    encode_head,
)
from holdfast.rpc.wire.messages import Buffer, Kind, Message
from holdfast.rpc.wire.parts import JOIN_BYTES, parts_of, take_off, views_of
from holdfast.rpc.wire.peer_memory import BIG_BYTES, PLACE_BYTES, PeerMemory, memory
from holdfast.rpc.wire.spin import SPINS, AdaptiveSpin

__all__ = ["CORES", "NEVER", "Connection", "ConnectionEnded"]

NEVER = float("inf")
CORES = os.cpu_count() or 1

_READ_BYTES = 64 * 1024
_SMALL_BYTES = _READ_BYTES // 2  # what is smaller is read with what follows it
_VECTOR_MAX = 512  # Linux takes 1,024 pieces in one call
_TIMEVAL, _TIMEVAL_MAX_S = struct.Struct("@ll"), 1e9
_CLOSE_ENOUGH_S = 0.002
_DONTWAIT = socket.MSG_DONTWAIT
_REPLY, _FAILURE, _OFFER, _TAKEN = Kind.REPLY, Kind.FAILURE, Kind.OFFER, Kind.TAKEN


class ConnectionEnded(ConnectionError):
    """The connection is over; the message says how, in the system's words."""


class Connection:
    """A connection whose handshake is over, over a socket that blocks.

    One thread may send while another one receives; not two of a kind.
    """

    def __init__(
        self, sock: socket.socket, beginning: bytes = b"", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        sock.settimeout(None)
        close_in_child(sock)
        self._sock = sock
        self._clock = clock
        self.limit = NEVER
        """When what blocks is to end."""
        self.watched = False
        self._limit_s = 0.0
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        # What has been read and not been taken yet.
        self._buffer = bytearray(max(_READ_BYTES, len(beginning)))
        self._buffer[: len(beginning)] = beginning
        self._view = memoryview(self._buffer)
        self._start, self._end = 0, len(beginning)
        self.come: deque[Message] = deque()
        """Small messages that have been read and decoded; for who receives, and they come first."""
        # A message of which only a part has come: the sizes that are still to come, the last
        # first; what is whole; and the one that is read into memory of its own.
        self._head: Head | None = None
        self._sizes: list[int] = []
        self._whole: list[Buffer] = []
        self._part: memoryview | None = None
        self._filled = 0
        self._fetched = self._void = False  # have buffers been fetched; had the peer let go of one
        self._spin = AdaptiveSpin(CORES)
        self._peer_memory = PeerMemory(sock)
        self.seal_off = self._peer_memory.release  # for who gives a call up
        self.handled = 0
        """How many messages of the peer have been handled; kept by who serves it."""

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 when it is closed."""
        return self._sock.fileno()

    def set_limit(self, at: float) -> None:
        """Let what blocks raise TimeoutError at this moment of the monotonic clock."""
        self.limit = at
        self._tell_limit()

    def set_idle_limit(self, seconds: float) -> None:
        """Let `receive` raise TimeoutError after a wait of so long; it may be called again then."""
        value = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)

    def close(self) -> None:
        """Hang up. From any thread; who waits in `receive` hears of it. Idempotent."""
        self.shut()
        self._sock.close()

    def shut(self) -> None:
        """Hang up, and keep the descriptor: no other connection gets its number yet."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was over already
        self._peer_memory.release_all()

    # Large buffers.

    def offer(self) -> list[Message]:
        """Return what is to be sent before anything else, so that the peer may fetch from here."""
        return self._peer_memory.offer()

    @property
    def owes(self) -> bool:
        """Whether the peer is to be told something about its buffers."""
        return bool(self._peer_memory.due)

    def due(self) -> list[Message]:
        """Return what the peer is to be told about its buffers; once, to who receives."""
        due = self._peer_memory.due
        if due:
            self._peer_memory.due = []
        return due

    @property
    def fetches(self) -> bool:
        """Whether large buffers of the peer are fetched by us, not sent by it."""
        return self._peer_memory.reads

    @property
    def fetched(self) -> bool:
        """Whether large buffers of ours are fetched by the peer, not sent by us."""
        return self._peer_memory.open

    @property
    def mode(self) -> str:
        """How messages go, in words, for people."""
        if self._sock.family != socket.AF_UNIX:
            return "tcp"
        ways = {self.fetches, self.fetched}
        if True not in ways:
            return "unix, sockets"
        return "unix, fetch by process_vm_readv" + (" one way" if False in ways else "")

    # Out.

    def send(self, message: Message) -> None:
        """Send one message. Blocks until the system has taken all of it."""
        body = message.body
        if message.buffers or len(body) > JOIN_BYTES:
            self.send_all([message])
            return
        data = encode_head(message) + body
        try:
            sent = self._sock.send(data, _DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise _closed(error) from None
        if sent < len(data):
            self.send_parts([memoryview(data)[sent:]])

    def send_all(self, messages: Sequence[Message]) -> None:
        """Send several messages with as few system calls as it takes."""
        parts: list[Buffer] = []
        for message in messages:
            self.put(message, parts)
        self.send_parts(parts)

    def put(self, message: Message, parts: list[Buffer]) -> None:
        """Add a message to what is to be sent; the peer may fetch its buffers from now on."""
        body = message.body
        if not message.buffers and len(body) <= JOIN_BYTES:
            parts.append(encode_head(message) + body)  # nearly all: as below, without the detour
            return
        reach = self._peer_memory
        parts_of(message, parts, reach if message.buffers and reach.has_room() else None)

    def send_some(self, views: list[memoryview]) -> bool:
        """Send what the system takes at once, and take it off the list; say whether all went."""
        try:
            while views:
                take_off(views, self._sock.sendmsg(views[:_VECTOR_MAX], (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False
        except OSError as error:
            raise _closed(error) from None
        return True

    def send_parts(self, parts: Sequence[Buffer]) -> None:
        """Send what `put` has gathered, or what `send_some` has left. Blocks."""
        views = views_of(parts)
        while not self.send_some(views):
            self._wait_for_room()

    def _wait_for_room(self) -> None:
        """Wait until the system takes more; TimeoutError at the limit."""
        poll = select.poll()
        try:
            poll.register(self._sock, select.POLLOUT)
        except ValueError:  # it has been closed here
            raise ConnectionEnded("Connection closed by peer") from None
        self._wait(poll)

    def _wait(self, poll: select.poll) -> None:
        """Wait until something can be done; TimeoutError at the limit, if it is in days at most."""
        left_s = self.limit - self._clock.monotonic()
        if left_s <= 0 or not poll.poll(1000 * left_s if left_s < 1e6 else None):
            raise TimeoutError

    # In.

    def receive(self) -> Message:
        """Return the next message. Blocks; ConnectionEnded at the connection's end.

        Tells the peer what is due, so who calls this is the only one who sends meanwhile, unless
        it only ever receives requests.
        """
        if self._start == self._end and not self.come:
            if self._part is None:
                self._start = self._end = 0  # also if nothing comes
                self._end = self._await()
            else:
                self._fetch(0)
        message = self.here()
        while message is None:
            self._tell_limit()
            self._fetch(0)
            message = self.here()
        if self._peer_memory.due:
            try:
                self.send_all(self.due())
            except OSError:
                self.shut()  # the message is here all the same
        return message

    def advance(self) -> Message | None:
        """Return the next message if all of it has come; else read what there is of it."""
        while True:
            message = self.here()
            if message is not None:
                return message
            try:
                self._fetch(socket.MSG_DONTWAIT)
            except TimeoutError:
                return None

    def ready(self) -> bool:
        """Say whether the next message is small and here already: `receive` will not block."""
        return bool(self.come) or self._decode()

    def here(self) -> Message | None:
        """Return the next message if it has been read already."""
        if self.come or self._decode():
            return self.come.popleft()
        message = self._here()
        while message is not None:
            kind = message.kind
            if kind >= _OFFER:  # or TAKEN
                self._peer_memory.hear(message)
            else:
                if kind is _REPLY or kind is _FAILURE:
                    self._peer_memory.release(message.call)
                if not self._void:
                    return message
                self._void = False
            if self._decode():
                return self.come.popleft()
            message = self._here()
        return None

    def _decode(self) -> bool:
        """Take out the small messages that have been read, if one is next; say whether one is."""
        if self._head is not None or self._start == self._end:
            return False
        come = self.come
        self._start = decode_small(self._buffer, self._start, self._end, come)
        if self._peer_memory.held:
            for message in come:
                if message.kind is _REPLY or message.kind is _FAILURE:
                    self._peer_memory.release(message.call)
        return bool(come)

    def _here(self) -> Message | None:
        """Return the next message, one of several parts, if all of them have been read."""
        head = self._head
        if head is None:
            if self._end - self._start < HEADER_BYTES:
                return None
            head = decode_head(self._buffer, self._start)
            self._start += HEADER_BYTES
            self._head = head
            self._sizes = [8 * head.buffers if head.buffers else head.body_bytes]
        if not self._gather(head):
            return None
        self._head = None
        whole, self._whole = self._whole, []
        return Message(head.kind, head.call, whole[0], whole[1:], head.budget_ms, head.once)

    def _gather(self, head: Head) -> bool:
        """Take what has come of the parts of a message; say whether that is all of them."""
        lengths_first = head.buffers > 0 and not self._whole and len(self._sizes) == 1
        while self._sizes:
            size = self._sizes[-1]
            part = self._take()
            if part is None:
                return False
            if size & ELSEWHERE:
                part = self._fetch_large(part, size & ~ELSEWHERE)
                self._fetched = True
            if lengths_first:
                self._sizes = [*reversed(decode_lengths(part, head)), head.body_bytes]
                lengths_first = False
            else:
                self._whole.append(part)
        if self._fetched:
            self._fetched = False
            if head.kind is _REPLY or head.kind is _FAILURE:
                self._peer_memory.due.append(Message(_TAKEN, head.call))
        return True

    def _fetch_large(self, place: Buffer, size: int) -> Buffer:
        """Return a buffer of the peer's that it has not sent."""
        try:
            found = self._peer_memory.read(place, size)
        except OSError as error:
            raise _closed(error) from None
        if found is None:
            self._void = True
            return b""
        return found

    def _take(self) -> Buffer | None:
        """Return the next part in memory of its own; None if it has not come yet."""
        if self._part is None:
            size, start = self._sizes[-1], self._start
            if size & ELSEWHERE:
                size = PLACE_BYTES
            here = self._end - start
            if size <= here:
                self._sizes.pop()
                self._start = start + size
                return bytearray(self._view[start : start + size])
            if size <= _SMALL_BYTES:
                return None
            try:
                self._part = memoryview(bytearray(size)) if size < BIG_BYTES else memory(size)
            except OSError as error:  # there is not as much as was announced
                raise _closed(error) from None
            self._part[:here] = self._view[start : self._end]
            self._filled = here
            self._start = self._end = 0
            return None
        if self._filled < self._part.nbytes:
            return None
        self._sizes.pop()
        part, self._part = self._part, None
        return part

    def _fetch(self, flags: int) -> None:
        """Read once: into the part that is being read, or behind what has not been taken."""
        part = self._part
        if part is not None and part.nbytes - self._filled >= _SMALL_BYTES:
            self._filled += self._receive_into(part[self._filled :], flags)
            return
        if self._start == self._end:
            self._start = self._end = 0  # also if nothing comes
            self._end = self._receive_into(self._view, flags)
        else:
            here = self._end - self._start
            if self._start:
                self._view[:here] = bytes(self._view[self._start : self._end])
                self._start, self._end = 0, here
            self._end += self._receive_into(self._view[here:], flags)
        if part is not None:
            more = min(part.nbytes - self._filled, self._end)
            part[self._filled : self._filled + more] = self._view[:more]
            self._filled += more
            self._start = more

    def _await(self) -> int:
        """Read what comes next, once it comes; return how much."""
        if self._spin.now:
            size = self._look()
            self._spin.record_spin(size > 0)
            if size:
                return size
        begun = self._clock.monotonic()
        size = self._receive_into(self._view, 0)
        self._spin.record_sleep(self._clock.monotonic() - begun)
        return size

    def _look(self) -> int:
        """Read what comes within a moment; return how much, nothing for nothing."""
        receive, view = self._sock.recv_into, self._view
        for _ in range(SPINS):
            try:
                size = receive(view, 0, _DONTWAIT)
            except BlockingIOError:
                continue
            except OSError as error:
                raise _closed(error) from None
            return size or self._receive_into(view, 0)  # which tells the end
        return 0

    def _receive_into(self, view: memoryview, flags: int) -> int:
        if not (self.watched or flags or self.limit == NEVER):
            self._wait(self._readable)
        try:
            size = self._sock.recv_into(view, 0, flags)
        except OSError as error:
            raise _closed(error) from None
        if not size:
            is_late = self.limit <= self._clock.monotonic()  # whoever watches has closed it, then
            raise TimeoutError if is_late else ConnectionEnded("Connection closed by peer")
        return size

    def _tell_limit(self) -> None:
        """Tell the system how long reading may take: only if that is new, since it costs a call."""
        wanted = 0.0
        if self.limit != NEVER:
            wanted = self.limit - self._clock.monotonic()
            if wanted <= 0:
                raise TimeoutError
        if not self.watched or abs(wanted - self._limit_s) < _CLOSE_ENOUGH_S:
            return
        micros = max(1, int(min(wanted, _TIMEVAL_MAX_S) * 1e6)) if wanted else 0  # zero: no limit
        value = _TIMEVAL.pack(*divmod(micros, 1_000_000))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._limit_s = wanted


def _closed(error: OSError) -> OSError:
    """Return what to raise for an error of the system."""
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return TimeoutError()
    if isinstance(error, (BrokenPipeError, ConnectionResetError)):
        return ConnectionEnded("Connection reset by peer")
    return ConnectionEnded(f"Connection closed by peer ({error.strerror or error})")
