"""One thread that serves thousands of sockets.

A `Reactor` accepts connections, hands what arrives to each connection's handler, queues what
the handlers send, and keeps timers. Handlers run on the reactor's thread only, so they need no
locks; they must not block.

Guarantees
    RE-1  A handler's error closes its own connection and no other.
    RE-2  `send` never blocks; a peer that does not read is dropped once OUTPUT_BYTES_MAX wait.
    RE-3  `closed` is called exactly once for each handler, and nothing after it; nothing is
          received after `ReactorConnection.close()`.
    RE-4  `close()` ends the thread and every socket within its bound. Idempotent.
    RE-5  Running out of descriptors pauses accepting instead of spinning.
    RE-6  A connection that is closing ends within FLUSH_WITHIN_S, whether its peer reads or not.
    RE-7  A forked child keeps none of a reactor's sockets open: they end with the parent.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Protocol

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import HoldfastError, UsageError
from holdfast.forks import in_child
from holdfast.net.address import Address
from holdfast.net.poller import READABLE, WRITABLE, Poller
from holdfast.threads import start_thread

__all__ = ["OUTPUT_BYTES_MAX", "Handler", "Reactor", "ReactorConnection", "Timer", "tune"]

OUTPUT_BYTES_MAX = 64 * 1024 * 1024
READ_BYTES = 64 * 1024  # more would be memory that malloc maps and unmaps at every read
ACCEPT_PAUSE_S = 0.1
COMPLAIN_EVERY_S = 1.0
FLUSH_WITHIN_S = 5.0
CLOSE_WITHIN_S = 5.0
BACKLOG = 4096  # the kernel cuts it to net.core.somaxconn

_TIMERS_KEPT = 1024  # so few that sweeping out the cancelled ones is not worth it

_log = logging.getLogger("holdfast.net")


class Handler(Protocol):
    """What a server does with one connection."""

    def received(self, data: bytes) -> None:
        """Take the bytes that arrived, at least one. A HoldfastError closes the connection."""
        ...

    def closed(self, reason: str) -> None:
        """Hear that the connection is over."""
        ...


class Timer:
    """A callback that is due; `cancel()` takes it back."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    @property
    def cancelled(self) -> bool:
        """Say whether `cancel()` was called."""
        return self.callback is None

    def cancel(self) -> None:
        """Make sure that the callback is not called (any more), and release it. Idempotent."""
        self.callback = None


class ReactorConnection:
    """One accepted socket. Used on the reactor's thread only."""

    __slots__ = (
        "_closing",
        "_handler",
        "_out",
        "_out_bytes",
        "_reactor",
        "_socket",
        "closed_by_peer",
        "host",
        "on_drained",
        "peer",
    )

    def __init__(self, reactor: Reactor, sock: socket.socket, peer: Address) -> None:
        self._reactor = reactor
        self._socket = sock
        self._handler: Handler | None = None
        # What the kernel did not take yet.
        self._out: deque[memoryview] = deque()
        self._out_bytes = 0
        # Set once close() was asked for while output is still queued.
        self._closing: str | None = None
        self.on_drained: Callable[[], None] | None = None
        """Called each time that queued output has all left."""
        self.host = peer.host
        self.peer = str(peer)
        self.closed_by_peer = False
        """Whether the other end, or its kernel, has closed the connection."""

    @property
    def socket(self) -> socket.socket:
        """The socket, to look at: only the reactor reads, writes and closes it."""
        return self._socket

    def send(self, data: bytes) -> None:
        """Send, or queue what the kernel does not take now. Never blocks."""
        if self._handler is None or self._closing is not None:
            return
        if not self._out:
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._fail("sending", error)
                return
            if sent == len(data):
                return
            self._reactor._watch(self, READABLE | WRITABLE)
            self._queue(memoryview(data)[sent:])
        else:
            self._queue(memoryview(data))

    def pause(self) -> None:
        """Receive nothing more until everything that is queued now or later has left.

        Receiving goes on right before `on_drained` is called. With nothing queued, nothing is done.
        """
        if self._out and self._closing is None:
            # send() does not watch anew while something is queued, so the pause holds.
            self._reactor._watch(self, WRITABLE)

    def unsent(self) -> int:
        """Return how many bytes wait because the peer does not read them."""
        return self._out_bytes

    def close(self, reason: str = "closed here") -> None:
        """Close once everything queued is sent, which the peer can delay only so long (RE-6)."""
        if self._handler is None or self._closing is not None:
            return
        if self._out:
            self._closing = reason
            self._reactor._watch(self, WRITABLE)
            self._reactor.call_later(FLUSH_WITHIN_S, lambda: self._finish(reason))
        else:
            self._finish(reason)

    # Called by the reactor.

    def _queue(self, data: memoryview) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > OUTPUT_BYTES_MAX:
            self._finish(f"the peer left {self._out_bytes} bytes unread")

    def _flush(self) -> None:
        while self._out:
            data = self._out[0]
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._fail("sending", error)
                return
            self._out_bytes -= sent
            if sent < len(data):
                self._out[0] = data[sent:]
                return
            self._out.popleft()
        if self._closing is not None:
            self._finish(self._closing)
            return
        self._reactor._watch(self, READABLE)
        if self.on_drained is not None:
            self._reactor._guard(self.on_drained)

    def _read(self) -> None:
        handler = self._handler
        if handler is None or self._closing is not None:  # since this batch of events was taken
            return
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail("receiving", error)
            return
        if not data:
            self.closed_by_peer = True
            self._finish("the peer closed the connection")
            return
        try:
            handler.received(data)
        except HoldfastError as error:
            self.close(str(error))
        except Exception:  # RE-1: a bug met by one connection must not stop the others
            _log.exception("a handler failed; its connection from %s is closed", self.peer)
            self.close("internal error")

    def _fail(self, what: str, error: OSError) -> None:
        # Silence is something else: the other end may live, and only the way there is cut.
        self.closed_by_peer = isinstance(error, (ConnectionResetError, BrokenPipeError))
        self._finish(f"{what} failed: {error.strerror}")

    def _finish(self, reason: str) -> None:
        handler, self._handler = self._handler, None
        if handler is None:
            return
        self._out.clear()
        self._out_bytes = 0
        self._reactor._forget(self)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # though a child may hold a copy of it
        self._socket.close()
        try:
            handler.closed(reason)
        except Exception:  # RE-1
            _log.exception("a handler failed while closing the connection from %s", self.peer)


class Reactor:
    """A poller, its thread, and everything that it waits for."""

    def __init__(self, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._name = name
        self._clock = clock
        self._poller: Poller[ReactorConnection | Callable[[], None]] = Poller()
        self._thread: threading.Thread | None = None
        # Wakes the thread out of its select: one byte for each burst of call_soon.
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._poller.add(self._wake_out, READABLE, self._drain_wakeups)
        # Given by any thread, run by the reactor's.
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._timer_numbers = count()
        self._sweep_at = _TIMERS_KEPT
        self._complain_at = 0.0
        self._connections: set[ReactorConnection] = set()
        self._listeners: list[socket.socket] = []
        self._stopping = False
        self._closed = self._has_ended = False
        in_child(self, Reactor._close_in_child)  # RE-7

    # From any thread.

    def start(self) -> None:
        """Start the thread."""
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        start_thread(thread)  # which may fail: only what runs can be waited for
        self._thread = thread

    def listen(self, address: Address, make: Callable[[ReactorConnection], Handler]) -> Address:
        """Bind exactly this address and serve it; return the bound one (port 0 picks one).

        Call it before `start()`. UsageError if the address cannot be bound.
        """
        sock = _bind(address)
        self._listeners.append(sock)

        def accept() -> None:
            self._accept(sock, make)

        self._poller.add(sock, READABLE, accept)
        return Address(address.host, sock.getsockname()[1])

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run the callback on the reactor's thread, soon. It is dropped if that has ended."""
        self._soon.append(callback)
        if self._has_ended:
            self._soon.clear()  # what it holds is to be released now, not by the garbage collector
        with contextlib.suppress(BlockingIOError, OSError):  # full: awake already; closed: over
            self._wake_in.send(b"\0")

    def close(self) -> None:
        """Stop serving, close every connection, end the thread."""
        if self._closed:
            return
        self._closed = True
        self._stopping = True
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self.call_soon(lambda: None)
            thread.join(CLOSE_WITHIN_S)
            if thread.is_alive():
                _log.error("reactor %s did not end within %g s", self._name, CLOSE_WITHIN_S)
                return
        if thread is None:
            self._shut()

    # On the reactor's thread.

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run the callback after a delay, unless it is cancelled first."""
        timer = Timer(callback)
        due = self._clock.monotonic() + delay_s
        if len(self._timers) >= self._sweep_at:
            self._sweep_timers()
        heapq.heappush(self._timers, (due, next(self._timer_numbers), timer))
        return timer

    def _sweep_timers(self) -> None:
        """Drop the cancelled ones, so that they never outnumber the others by much."""
        self._timers = [entry for entry in self._timers if not entry[2].cancelled]
        heapq.heapify(self._timers)
        self._sweep_at = max(_TIMERS_KEPT, 2 * len(self._timers))

    def _run(self) -> None:
        wait, targets = self._poller.wait, self._poller.targets
        try:
            while not self._stopping:
                for number, events in wait(self._wait_s()):
                    target = targets.get(number)
                    if isinstance(target, ReactorConnection):
                        # An error or an end shows itself to whichever of the two is tried.
                        if events & READABLE or not target._out:
                            target._read()
                        if events & ~READABLE and target._out:
                            target._flush()
                    elif target is not None:  # None: removed since these events were taken
                        self._guard(target)
                if self._timers:
                    self._run_timers()
                for _ in range(len(self._soon)):  # what these add comes after the next events
                    self._guard(self._soon.popleft())
        finally:
            self._shut()

    def _wait_s(self) -> float | None:
        if self._soon:
            return 0.0
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - self._clock.monotonic())

    def _run_timers(self) -> None:
        now = self._clock.monotonic()
        due = []
        while self._timers and self._timers[0][0] <= now:
            due.append(heapq.heappop(self._timers)[2])
        for timer in due:
            if timer.callback is not None:
                self._guard(timer.callback)

    def _guard(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # RE-1
            _log.exception("a callback of reactor %s failed", self._name)

    def _accept(
        self, listener: socket.socket, make: Callable[[ReactorConnection], Handler]
    ) -> None:
        for _ in range(64):  # bounded: a burst of connects must not starve the others
            try:
                sock, peer = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:  # most likely out of descriptors
                self._pause_accepting(listener, make, error)
                return
            try:
                self.adopt(sock, Address(*peer[:2]), make)
            except Exception:  # RE-1
                _log.exception("a connection from %s could not be served", peer[0])
                sock.close()

    def adopt(
        self, sock: socket.socket, peer: Address, make: Callable[[ReactorConnection], Handler]
    ) -> None:
        """Serve a connected socket."""
        sock.setblocking(False)
        tune(sock)
        connection = ReactorConnection(self, sock, peer)
        self._poller.add(sock, READABLE, connection)
        try:
            connection._handler = make(connection)
        except BaseException:
            self._poller.remove(sock)
            raise
        self._connections.add(connection)

    def _pause_accepting(
        self, listener: socket.socket, make: Callable[[ReactorConnection], Handler], error: OSError
    ) -> None:
        now = self._clock.monotonic()
        if now >= self._complain_at:  # any peer can provoke this: it must not fill the log
            self._complain_at = now + COMPLAIN_EVERY_S
            _log.error("cannot accept connections for now: %s", error.strerror)
        self._poller.remove(listener)
        self.call_later(
            ACCEPT_PAUSE_S,
            lambda: self._resume_accepting(listener, make),
        )

    def _resume_accepting(
        self, listener: socket.socket, make: Callable[[ReactorConnection], Handler]
    ) -> None:
        self._poller.add(listener, READABLE, lambda: self._accept(listener, make))

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_out.recv(4096):
                pass

    def _watch(self, connection: ReactorConnection, events: int) -> None:
        if connection in self._connections:
            self._poller.change(connection._socket, events)

    def _forget(self, connection: ReactorConnection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._poller.remove(connection._socket)

    def _shut(self) -> None:
        for connection in list(self._connections):
            connection._finish("the server is closing")
        self._timers.clear()
        self._has_ended = True
        self._soon.clear()
        for listener in self._listeners:
            listener.close()
        self._poller.close()
        self._wake_in.close()
        self._wake_out.close()

    def _close_in_child(self) -> None:
        """Close a forked child's copies, and nothing more: what they stand for is the parent's."""
        self._stopping = self._closed = True
        for connection in self._connections:
            connection._socket.close()
        self._connections.clear()
        for sock in (*self._listeners, self._wake_in, self._wake_out):
            sock.close()
        self._poller.close()


def tune(sock: socket.socket) -> None:
    """Send at once, and show signs of life while there is nothing to send.

    So a machine that vanished is noticed within a minute, and no device on the path forgets about a
    connection that is idle.
    """
    with contextlib.suppress(OSError, AttributeError):  # the peer is gone; not every system has all
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _bind(address: Address) -> socket.socket:
    """Bind and listen on exactly the given address, never on more."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise UsageError(f"cannot listen on {address}: {error.strerror}") from None
    except UnicodeError:  # a label that is empty or too long
        raise UsageError(f"cannot listen on {address}: not a host name") from None
    with contextlib.ExitStack() as undo:
        try:
            sock = undo.enter_context(socket.socket(family, kind, proto))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(where)
            sock.listen(BACKLOG)
            sock.setblocking(False)
        except OSError as error:
            raise UsageError(f"cannot listen on {address}: {error.strerror}") from None
        undo.pop_all()
    return sock
