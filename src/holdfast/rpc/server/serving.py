"""Serves one connection: reads its requests, runs them, and sends the replies.

The thread that reads a request runs it, and replies: a call costs no hand-over. A connection on
which nothing arrives for PARK_AFTER_S releases its thread (`parking.py`).

A pipe carries many calls at once, and one that blocks must not hold up those behind it. So the
thread that runs a call owns the pipe only as long as the call is quick. Another thread of the pool
takes over reading

- before a function runs that was slow recently (`durations.py`),
- when the call waits for something of this library (`client/blocking.py`),
- when the call blocks in any other way: the watch notices that the call still runs after a tick.

The old owner replies to its call and then leaves the pipe.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import PeerViolation
from holdfast.rpc.client.blocking import pop_release, push_release
from holdfast.rpc.server.parking import Parking
from holdfast.rpc.server.reply_writer import ReplyWriter
from holdfast.rpc.server.worker_pool import WorkerPool, try_start
from holdfast.rpc.wire.connection import Connection
from holdfast.rpc.wire.hello import WorkerHello
from holdfast.rpc.wire.messages import Message

__all__ = [
    "PARK_AFTER_S",
    "TICK_S",
    "DirectConnection",
    "Later",
    "PipeConnection",
    "RequestHandler",
    "Serving",
    "StallWatch",
]

TICK_S = 0.002
PARK_AFTER_S = 1.0
"""How long a thread waits for the next request of its connection."""
_REPLIES_AT_ONCE = 32
_QUIET_TICKS = 5

_log = logging.getLogger("holdfast.rpc")

Later = Callable[[Message], None]


class RequestHandler(Protocol):
    """What a server does with the messages that it reads."""

    def check_hello(self, hello: WorkerHello) -> None:
        """Check the worker that opened a connection; an error is sent, and ends the connection."""
        ...

    def handle(self, caller: WorkerHello, message: Message, later: Later) -> Message | None:
        """Run a request and return its reply; None for a note, or if `later` will get the reply.

        Must not raise. `later` may be called by any thread, once; it raises if the connection is
        gone.
        """
        ...


@dataclass(frozen=True, slots=True)
class Serving:
    """What the connections of one server share. `ended` is called for each that is over."""

    handler: RequestHandler
    pool: WorkerPool
    parking: Parking
    watch: StallWatch
    ended: Callable[[Connection], None]


class DirectConnection:
    """A connection for one call after another: its caller waits for each reply."""

    def __init__(self, connection: Connection, caller: WorkerHello, serving: Serving) -> None:
        self._connection = connection
        self._caller = caller
        self._serving = serving
        self._later = ReplyWriter(connection).offer
        connection.set_idle_limit(PARK_AFTER_S)

    def run(self) -> None:
        """Serve until nothing arrives for a while, or the connection ends."""
        parked = False
        try:
            parked = self._serve()
        except (OSError, PeerViolation) as error:
            _log.debug("a connection of %s ended: %s", self._caller.name, error)
        finally:
            if not parked:
                self._serving.ended(self._connection)

    def _serve(self) -> bool:
        """Serve; say whether the connection has been parked."""
        connection, caller, later = self._connection, self._caller, self._later
        handle, send, receive = self._serving.handler.handle, connection.send, connection.receive
        while True:
            try:
                message = receive()
            except TimeoutError:
                if self._serving.parking.park(connection, self.run):
                    return True
                continue
            # The caller sends nothing before the reply, so no other thread sends either.
            answer = handle(caller, message, later)
            connection.handled += 1
            if answer is not None:
                send(answer)
            del message, answer  # SR-6: they would stay until the next request comes


class PipeConnection:
    """A connection for many calls at once; the module explains which thread owns it."""

    def __init__(self, connection: Connection, caller: WorkerHello, serving: Serving) -> None:
        self._connection = connection
        self._caller = caller
        self._serving = serving
        self._writer = ReplyWriter(connection)
        # Guards what follows; never held while sending, since the watch takes it too.
        self._lock = threading.Lock()
        self._owner: object = None
        self._looked_at = 0
        # The owner, while it runs a call. The thread that removes it decides: if the owner itself
        # does, without the lock, it keeps the pipe; if another does, with the lock, it does not.
        self._running: dict[object, bool] = {}
        connection.set_idle_limit(PARK_AFTER_S)
        serving.watch.add(self)

    def run(self) -> None:
        """Own the pipe: serve until another thread owns it, nothing arrives, or it ends."""
        self._own(self._claim())

    def give_away(self, owner: object) -> bool:
        """Give the pipe to another thread, if this owner runs a call; False if there is none."""
        with self._lock:
            return self._give_away(owner)

    def look(self) -> None:
        """Give the pipe to another thread if the call of the last check still runs."""
        handled = self._connection.handled
        with self._lock:
            if handled == self._looked_at:
                self._give_away(self._owner)
            self._looked_at = handled

    @property
    def running(self) -> bool:
        """Whether a call runs."""
        return bool(self._running)

    def _claim(self) -> object:
        self._owner = object()
        return self._owner

    def _give_away(self, owner: object) -> bool:
        """Let another thread own the pipe, if this owner runs a call. With the lock held."""
        if not self._running.pop(owner, False):
            return True
        token = self._claim()
        if self._serving.pool.run(lambda: self._own(token)):
            return True
        self._owner = owner  # it keeps the pipe
        self._running[owner] = True
        return False

    def _goes_on(self, owner: object) -> bool:
        """Say whether an owner that was removed still owns the pipe."""
        with self._lock:  # no thread may have been free to take it
            self._running.pop(owner, False)
            return self._owner is owner

    def _own(self, token: object) -> None:
        push_release(lambda: self.give_away(token))
        try:
            self._writer.flush()  # replies of the previous owner must not wait
            self._serve(token)
        except (OSError, PeerViolation) as error:
            _log.debug("a connection of %s ended: %s", self._caller.name, error)
        except Exception:
            _log.exception("a connection of %s ended", self._caller.name)
        finally:
            pop_release(None)
            with self._lock:
                last = self._owner is token
            if last:
                self._serving.watch.remove(self)
                self._serving.ended(self._connection)

    def _serve(self, token: object) -> None:
        """Read, run and reply, until another thread owns the pipe or the connection ends."""
        connection, caller, watch = self._connection, self._caller, self._serving.watch
        handle, writer, running = self._serving.handler.handle, self._writer, self._running
        come = connection.come
        while True:
            try:
                message = come.popleft() if come else connection.receive()
            except TimeoutError:
                if self._parked(token):
                    return
                continue
            connection.handled += 1
            running[token] = True
            if watch.asleep:
                watch.wake()
            answer = handle(caller, message, writer.offer)
            mine = running.pop(token, False) or self._goes_on(token)
            # Backpressure: later replies count too. The server stops reading from a caller that
            # does not read its replies.
            gathered = len(writer) if answer is None else writer.gather(answer)
            if not mine or gathered >= _REPLIES_AT_ONCE or not (come or connection.ready()):
                writer.flush()
            if not mine:
                return
            del message, answer  # SR-6: they would stay until the next request comes

    def _parked(self, token: object) -> bool:
        """Release the thread, since nothing arrives; False if the pipe cannot be parked."""
        with self._lock:
            self._owner = None
        if self._serving.parking.park(self._connection, self.run):
            return True
        with self._lock:
            self._owner = token
        return False


class StallWatch:
    """Gives a pipe whose call does not end to another thread. Sleeps while no call runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._owners: dict[PipeConnection, None] = {}
        self._awake = threading.Event()
        self._closing = False
        self._begun = False
        self.asleep = True
        """Whether it must be woken. Read without the lock: being late by a call is harmless."""

    def add(self, owner: PipeConnection) -> None:
        """Watch a pipe."""
        with self._lock:
            self._owners[owner] = None
            if not self._begun and not self._closing:
                self._begun = try_start(f"{self._name}-watch", self._run)

    def remove(self, owner: PipeConnection) -> None:
        """Stop watching a pipe."""
        with self._lock:
            self._owners.pop(owner, None)

    def wake(self) -> None:
        """Start checking: a call runs."""
        self.asleep = False
        self._awake.set()

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        self._awake.set()

    def _run(self) -> None:
        quiet = 0
        while not self._closing:
            if quiet > _QUIET_TICKS:
                # In this order: no thread wakes the watch before `asleep` is set, so clearing can
                # undo only the `set` of `close`. A call that started before that is found running.
                self._awake.clear()
                self.asleep = True
                if not self._closing and not any(owner.running for owner in list(self._owners)):
                    self._awake.wait()
                self.asleep = False
            SYSTEM_CLOCK.sleep(TICK_S)
            quiet = 0 if self._look() else quiet + 1

    def _look(self) -> bool:
        """Check the pipes that run a call; say whether there are any."""
        found = False
        # There may be very many pipes, few of which run a call. Skip the others: a busy machine has
        # no time to spare for them.
        for owner in list(self._owners):
            if owner.running:
                found = True
                owner.look()
        return found
