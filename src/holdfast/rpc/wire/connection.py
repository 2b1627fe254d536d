"""One connection between two agents: messages in, messages out, nothing else.

A small message costs one system call each way. The buffers of a large message are sent without a
copy, and received into the memory that the value keeps. Very large buffers are not sent at all if
the receiver can read them from the sender's memory (`peer_memory.py`).

A connection is used in two ways: `send` and `receive` block, until the limit that `set_limit` sets;
`send_some` and `advance` never block, and continue where they stopped. A connection whose blocking
call timed out, or that failed in any way, is closed, since the position in the stream is unknown.

Guarantees
    LK-1  A blocking call ends at the limit, however many signals arrive meanwhile. The system's own
          limit (SO_RCVTIMEO) restarts after each signal, so it is used only where another thread
          watches the connection and closes it when the limit has passed (`watched`). Otherwise
          `poll` enforces the limit; the system's limit for `sendmsg` also restarts for each piece
          on a Unix socket.
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
from holdfast.net.spin import SPINS, AdaptiveSpin
from holdfast.rpc.wire.codec import (
    AS_BYTES,
    ELSEWHERE,
    HEADER_BYTES,
    SIZE,
    Head,
    decode_head,
    decode_lengths,
    decode_small,
    encode_small,
    parts_of,
    take_off,
    views_of,
)
from holdfast.rpc.wire.memory import landing
from holdfast.rpc.wire.messages import NEVER, Buffer, Kind, Message
from holdfast.rpc.wire.peer_memory import PLACE_BYTES, PeerMemory

__all__ = ["CORES", "Connection", "ConnectionEnded"]

CORES = os.cpu_count() or 1

_READ_BYTES = 64 * 1024
_SMALL_BYTES = _READ_BYTES // 2  # smaller parts are read together with what follows
_VECTOR_MAX = 512  # Linux takes 1,024 pieces in one call
_TIMEVAL, _TIMEVAL_MAX_S = struct.Struct("@ll"), 1e9
_CLOSE_ENOUGH_S = 0.002
_DONTWAIT, _IN_OR_OUT = socket.MSG_DONTWAIT, select.POLLIN | select.POLLOUT
_REPLY, _FAILURE, _OFFER, _TAKEN = Kind.REPLY, Kind.FAILURE, Kind.OFFER, Kind.TAKEN


class ConnectionEnded(ConnectionError):
    """The connection is over; the message gives the system's reason."""


class Connection:
    """A connection after its handshake, on a blocking socket.

    One thread may send while another one receives. No two threads may send, or receive, at once.
    """

    def __init__(
        self, sock: socket.socket, beginning: bytes = b"", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        sock.settimeout(None)
        close_in_child(sock)
        self._sock = sock
        self._clock = clock
        self.limit = NEVER
        """When blocking calls end, on the monotonic clock."""
        self.watched = False
        self._limit_s = 0.0
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._buffer = bytearray(max(_READ_BYTES, len(beginning)))
        self._buffer[: len(beginning)] = beginning
        self._view = memoryview(self._buffer)
        self.start, self.end = 0, len(beginning)
        """Where the bytes are that were read and are not decoded yet."""
        self.come: deque[Message] = deque()
        """Small messages, read and decoded; the receiving thread takes these first."""
        # A message that has arrived only in part: the sizes of the missing parts, the last one
        # first; the complete parts; and the part that is read into memory of its own.
        self._head: Head | None = None
        self._sizes: list[int] = []
        self._whole: list[Buffer] = []
        self._part: memoryview | None = None
        self._landing: Buffer = b""  # the object that the part is the memory of
        self._filled = 0
        self._fetched = self._void = False  # were buffers fetched; was one released too early
        self._spin = AdaptiveSpin(CORES)
        self.peer_memory = PeerMemory(sock)
        self.seal_off = self.peer_memory.release  # for a caller that gives up a call
        self.handled = 0
        """How many messages of the peer were handled; the thread that serves it counts them."""

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 if it is closed."""
        return self._sock.fileno()

    def set_limit(self, at: float) -> None:
        """Let blocking calls raise TimeoutError at this time of the monotonic clock."""
        self.limit = at
        self._apply_limit()

    def set_idle_limit(self, seconds: float) -> None:
        """Let `receive` raise TimeoutError after this long a wait; it may be called again then."""
        value = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)

    def close(self) -> None:
        """Close the connection, from any thread. A blocked `receive` ends. Idempotent."""
        self.shut()
        self._sock.close()

    def shut(self) -> None:
        """Shut the connection down, but keep the descriptor: its number is not reused yet."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already
        self.peer_memory.release_all()

    # Large buffers.

    def due(self) -> list[Message]:
        """Return the messages to be sent about the peer's buffers, once. For the receiver."""
        due, self.peer_memory.due = self.peer_memory.due, []
        return due

    @property
    def mode(self) -> str:
        """How messages are carried, as text for people."""
        if self._sock.family != socket.AF_UNIX:
            return "tcp"
        ways = {self.peer_memory.reads, self.peer_memory.open}
        if True not in ways:
            return "unix, sockets"
        return "unix, fetch by process_vm_readv" + (" one way" if False in ways else "")

    # Out.

    def send(self, message: Message) -> None:
        """Send one message. Blocks until the system has accepted all of it."""
        data = encode_small(message)
        if data is None:
            self.send_all([message])
        else:
            self.send_small(data)

    def send_small(self, data: bytes) -> None:
        """Send one message that `encode_small` has encoded."""
        try:
            sent = self._sock.send(data, _DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise _closed(error) from None
        if sent < len(data):
            self.send_parts([memoryview(data)[sent:]])

    def send_all(self, messages: Sequence[Message]) -> None:
        """Send several messages with as few system calls as possible."""
        parts: list[Buffer] = []
        for message in messages:
            self.put(message, parts)
        self.send_parts(parts)

    def put(self, message: Message, parts: list[Buffer]) -> None:
        """Add a message to the parts to be sent; the peer may read its buffers from now on."""
        small = encode_small(message)
        if small is not None:
            parts.append(small)
            return
        reach = self.peer_memory
        parts_of(message, parts, reach if message.buffers and reach.has_room() else None)

    def send_some(self, views: list[memoryview]) -> bool:
        """Send what the system accepts at once, and remove it; say whether all was sent."""
        try:
            while views:
                sent = self._sock.sendmsg(views[:_VECTOR_MAX], (), _DONTWAIT)
                if sent == views[0].nbytes:
                    del views[0]  # nearly always: a fast path of `take_off`
                else:
                    take_off(views, sent)
        except BlockingIOError:
            return False
        except OSError as error:
            raise _closed(error) from None
        return True

    def send_parts(self, parts: Sequence[Buffer]) -> None:
        """Send the parts that `put` gathered, or that `send_some` left. Blocks."""
        views = views_of(parts)
        while not self.send_some(views):
            self._wait(self._poll_for(select.POLLOUT))

    def _poll_for(self, events: int) -> select.poll:
        """Return what polls the socket; ConnectionEnded if it has been closed here."""
        poll = select.poll()
        try:
            poll.register(self._sock, events)
        except ValueError:
            raise ConnectionEnded("Connection closed by peer") from None
        return poll

    def _wait(self, poll: select.poll) -> None:
        """Wait for the socket; TimeoutError at the limit, if that is days away at most."""
        left_s = self.limit - self._clock.monotonic()
        if left_s <= 0 or not poll.poll(1000 * left_s if left_s < 1e6 else None):
            raise TimeoutError

    # In.

    def receive(self) -> Message:
        """Return the next message. Blocks; ConnectionEnded at the connection's end.

        It also sends messages that are due. So no other thread may send meanwhile, unless only
        requests are ever received here.
        """
        come = self.come
        if self.start == self.end and not come:
            if self._head is None:
                self.start = self.end = 0  # also if nothing arrives
                self.end = self._await()
                if not self.peer_memory.held:  # else `here` releases what is held
                    self.start = decode_small(self._buffer, 0, self.end, come)
                    if come and not self.peer_memory.due:
                        return come.popleft()  # nearly always: a fast path of what follows
            elif self._part is not None:
                self._fetch(0)
        message = self.here()
        while message is None:
            self._apply_limit()
            self._fetch(0)
            message = self.here()
        if self.peer_memory.due:
            try:
                self.send_all(self.due())
            except OSError:
                self.shut()  # the message has arrived nevertheless
        return message

    def advance(self) -> Message | None:
        """Read what has arrived; return the next message if it is whole. Never blocks."""
        return self.here() or self._read_on()

    def advance_within(self, seconds: float, with_room: bool) -> Message | None:
        """Wait at most so long until something arrives; return the next message if it is whole.

        With `with_room`, wait no longer than until the system accepts more to send. For a thread
        that has taken all messages which were read before.
        """
        spin = self._spin
        poll = (self._poll_for(_IN_OR_OUT) if with_room else self._readable).poll
        if spin.now:
            came = next(filter(None, map(poll, [0] * SPINS)), None)
            message = self._read_on() if came else None
            spin.record_spin(came is not None)
            if came:
                return message
        begun = self._clock.monotonic()
        came = poll(max(0.0, seconds) * 1000)
        slept_s = self._clock.monotonic() - begun
        message = self._read_on() if came else None
        spin.record_sleep(slept_s)
        return message

    def _read_on(self) -> Message | None:
        """Read what has arrived; return the next message if it is whole. Never blocks."""
        message = None
        while message is None:
            try:
                self._fetch(_DONTWAIT)
            except TimeoutError:
                return None
            message = self.here()
        return message

    def ready(self) -> bool:
        """Say whether the next message is small and was read already: `receive` will not block."""
        return bool(self.come) or self._decode()

    def here(self) -> Message | None:
        """Return the next message if it was read already."""
        if self.come or self._decode():
            return self.come.popleft()
        message = self._here()
        while message is not None:
            kind = message.kind
            if kind >= _OFFER:  # or TAKEN
                self.peer_memory.receive(message)
            else:
                if kind is _REPLY or kind is _FAILURE:
                    self.peer_memory.release(message.call)
                if not self._void:
                    return message
                self._void = False
            if self._decode():
                return self.come.popleft()
            message = self._here()
        return None

    def _decode(self) -> bool:
        """Decode the small messages that were read, if one is next; say whether one is."""
        if self._head is not None or self.start == self.end:
            return False
        come = self.come
        self.start = decode_small(self._buffer, self.start, self.end, come)
        if self.peer_memory.held:
            for message in come:
                if message.kind is _REPLY or message.kind is _FAILURE:
                    self.peer_memory.release(message.call)
        return bool(come)

    def _here(self) -> Message | None:
        """Return the next message, one of several parts, if all its parts were read."""
        head = self._head
        if head is None:
            if self.end - self.start < HEADER_BYTES:
                return None
            head = decode_head(self._buffer, self.start)
            self.start += HEADER_BYTES
            self._head = head
            self._sizes = [8 * head.buffers if head.buffers else head.body_bytes]
        if not self._gather(head):
            return None
        self._head = None
        whole, self._whole = self._whole, []
        message = Message(head.kind, head.call, whole[0], whole[1:], head.budget_ms, head.once)
        message.has_references = head.has_references
        return message

    def _gather(self, head: Head) -> bool:
        """Take the parts of a message that have arrived; say whether those are all."""
        lengths_first = head.buffers > 0 and not self._whole and len(self._sizes) == 1
        while self._sizes:
            size = self._sizes[-1]
            part = self._take()
            if part is None:
                return False
            if size & ELSEWHERE:
                part = self._fetch_large(part, size)
                self._fetched = True
            if lengths_first:
                self._sizes = [*reversed(decode_lengths(part, head)), head.body_bytes]
                lengths_first = False
            else:
                self._whole.append(part)
        if self._fetched:
            self._fetched = False
            if head.kind is _REPLY or head.kind is _FAILURE:
                self.peer_memory.due.append(Message(_TAKEN, head.call))
        return True

    def _fetch_large(self, place: Buffer, length: int) -> Buffer:
        """Return a buffer that is read from the peer's memory."""
        try:
            found = self.peer_memory.read(place, length & SIZE, length & ~SIZE & ~ELSEWHERE)
        except (OSError, MemoryError) as error:
            raise _closed(error) from None
        if found is None:
            self._void = True
            return b""
        return found

    def _take(self) -> Buffer | None:
        """Return the next part in memory of its own; None if it has not arrived yet."""
        if self._part is None:
            length, start = self._sizes[-1], self.start
            size = PLACE_BYTES if length & ELSEWHERE else length & SIZE
            here = self.end - start
            if size <= here:
                self._sizes.pop()
                self.start = start + size
                part = self._view[start : start + size]
                return bytes(part) if length & AS_BYTES else bytearray(part)
            if size <= _SMALL_BYTES:
                return None
            try:
                self._landing, self._part = landing(length & ~SIZE, size)
            except (OSError, MemoryError) as error:  # less is available than was announced
                raise _closed(error) from None
            self._part[:here] = self._view[start : self.end]
            self._filled = here
            self.start = self.end = 0
            return None
        if self._filled < self._part.nbytes:
            return None
        self._sizes.pop()
        whole, self._landing, self._part = self._landing, b"", None
        return whole

    def _fetch(self, flags: int) -> None:
        """Read once: into the current part, or behind the bytes that are not decoded yet."""
        part = self._part
        if part is not None and part.nbytes - self._filled >= _SMALL_BYTES:
            self._filled += self._receive_into(part[self._filled :], flags)
            return
        if self.start == self.end:
            self.start = self.end = 0  # also if nothing arrives
            self.end = self._receive_into(self._view, flags)
        else:
            here = self.end - self.start
            if self.start:
                self._view[:here] = bytes(self._view[self.start : self.end])
                self.start, self.end = 0, here
            self.end += self._receive_into(self._view[here:], flags)
        if part is not None:
            more = min(part.nbytes - self._filled, self.end)
            part[self._filled : self._filled + more] = self._view[:more]
            self._filled += more
            self.start = more

    def _await(self) -> int:
        """Wait for bytes and read them; return how many."""
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
        """Spin: read what arrives within a moment; return how many bytes, 0 if none."""
        receive, view = self._sock.recv_into, self._view
        for _ in range(SPINS):
            try:
                size = receive(view, 0, _DONTWAIT)
            except BlockingIOError:
                continue
            except OSError as error:
                raise _closed(error) from None
            return size or self._receive_into(view, 0)  # which raises at the end
        return 0

    def _receive_into(self, view: memoryview, flags: int) -> int:
        if not (self.watched or flags or self.limit == NEVER):
            self._wait(self._readable)
        try:
            size = self._sock.recv_into(view, 0, flags)
        except OSError as error:
            raise _closed(error) from None
        if not size:
            is_late = self.limit <= self._clock.monotonic()  # then the watcher has closed it
            raise TimeoutError if is_late else ConnectionEnded("Connection closed by peer")
        return size

    def _apply_limit(self) -> None:
        """Set the system's limit for reading, only if it has changed: it costs a system call."""
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


def _closed(error: OSError | MemoryError) -> OSError:
    """Return the exception to raise for an error of the system."""
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return TimeoutError()
    if isinstance(error, (BrokenPipeError, ConnectionResetError)):
        return ConnectionEnded("Connection reset by peer")
    why = getattr(error, "strerror", None) or str(error) or "not enough memory"
    return ConnectionEnded(f"Connection closed by peer ({why})")
