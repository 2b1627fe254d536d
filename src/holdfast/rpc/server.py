"""The callee's side: accepts connections, and runs what they ask for.

A connection is for synchronous calls ("direct") or for pipelined ones ("pipe"); who opens it says
which. Each has a thread that reads a request, runs it, and answers: a call pays for no hand-over
between threads, and there is no pool that nested calls could exhaust.

On a pipe many calls arrive at once, and one that blocks must not hold up those behind it. So the
thread that runs a call owns the pipe only as long as the call is quick. When the call waits for
something of ours it says so (`make_way`); when it blocks in any other way the watch notices that
nothing has moved for a tick. Either way another thread takes over reading and goes on, and the
old one answers its call and is done.

Guarantees
    SR-1  Nothing is read of a stranger but a handshake of fixed size, within a time limit; and of
          another user at a Unix socket nothing at all.
    SR-2  Every request that is read is answered once, unless the connection is gone.
    SR-3  A call that blocks delays the calls behind it on its pipe by at most two ticks.
    SR-4  Strangers, however many, keep nobody out: the oldest one of the address that holds the
          most makes room for the next.
    SR-5  When a connection of a caller ends and no pipe of it is left, `left` hears so: whatever it
          asked for by a pipe, it will not hear the answer. Not when we end ourselves.
    SR-6  A connection that is idle keeps neither the last request nor the last answer.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import HoldfastError, Overloaded, PeerViolation, Refused, Step
from holdfast.ids import CauseId
from holdfast.net.address import Address
from holdfast.net.auth import NONCE_BYTES, Key, ServerHandshake
from holdfast.net.credentials import check_peer
from holdfast.net.descriptors import share_of_descriptors
from holdfast.net.reactor import tune
from holdfast.net.unauthenticated import UnauthenticatedConnections
from holdfast.observe.events import ConnectionRefused
from holdfast.observe.sinks import LogSink
from holdfast.rpc.forks import keep_from_children
from holdfast.rpc.greeting import Greeting, Purpose, decode_greeting, encode_answer
from holdfast.rpc.link import NEVER, Link, LinkClosed
from holdfast.rpc.messages import Message
from holdfast.rpc.outlet import Outlet
from holdfast.rpc.way import rise, sit

__all__ = ["Handler", "Later", "Server"]

HANDSHAKE_WITHIN_S = 5.0
STRANGERS_MAX = 256
ACCEPT_AGAIN_S = 0.05
TICK_S = 0.002
_ANSWERS_AT_ONCE = 32
_QUIET_TICKS = 5

_log = logging.getLogger("holdfast.rpc")


Later = Callable[[Message], None]


class Handler(Protocol):
    """What a server does with what it reads."""

    def greeted(self, greeting: Greeting) -> None:
        """Judge who opened a connection; an error is sent to him, and ends it."""
        ...

    def handle(self, caller: Greeting, message: Message, later: Later) -> Message | None:
        """Run a request and return its answer; None for a note, or if `later` is given it.

        Must not raise. `later` may be called by any thread, once; it raises if the connection is
        gone.
        """
        ...


class Server:
    """Accepts connections at any number of sockets that listen."""

    def __init__(
        self,
        name: str,
        key: Key,
        handler: Handler,
        *,
        handshake_within_s: float = HANDSHAKE_WITHIN_S,
        strangers_max: int = STRANGERS_MAX,
    ) -> None:
        self._name = name
        self._key = key
        self._handler = handler
        self._handshake_within_s = handshake_within_s
        self._lock = threading.Lock()
        self._listeners: list[socket.socket] = []
        self._strangers = UnauthenticatedConnections[socket.socket](
            share_of_descriptors(strangers_max)
        )
        self._links: dict[Link, Greeting] = {}
        self.left: Callable[[Greeting], object] | None = None
        """Hears of callers that have no pipe any more, maybe more than once. Must not block."""
        self._handled = 0  # on links that are over
        self._closing = False
        self._watch = _Watch(name)
        self._cause = CauseId(name)
        self._sink = LogSink()

    def listen(self, sock: socket.socket) -> None:
        """Accept what comes at a socket that is bound; it belongs to the server from now on."""
        sock.listen(512)
        keep_from_children(sock)
        self._listeners.append(sock)
        if not _start(f"{self._name}-accept", self._accept, sock):
            raise Overloaded("there is no thread to be had that could accept connections")

    def hang_up(self, incarnation: str) -> None:
        """End the connections of one caller."""
        with self._lock:
            links = [link for link, by in self._links.items() if by.incarnation == incarnation]
        for link in links:
            link.shut()

    @property
    def links(self) -> dict[Link, Greeting]:
        """The connections that are served, and whose they are."""
        with self._lock:
            return dict(self._links)

    @property
    def handled(self) -> int:
        """How many messages have been handled so far."""
        with self._lock:
            return self._handled + sum(link.handled for link in self._links)

    def close(self) -> None:
        """Accept nothing more and hang up on everybody. Idempotent."""
        with self._lock:
            self._closing = True
            links, strangers = list(self._links), list(self._strangers)
        for sock in self._listeners:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes who accepts
            sock.close()
        for sock in strangers:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for link in links:
            link.shut()  # who serves it closes it
        self._watch.close()

    def _accept(self, listener: socket.socket) -> None:
        told = False
        while True:
            try:
                sock, address = listener.accept()
            except OSError as error:
                if self._closing:
                    return
                if not told:  # once: strangers that wait must not fill the log
                    _log.warning("a connection could not be accepted: %s", error)
                told = True
                SYSTEM_CLOCK.sleep(ACCEPT_AGAIN_S)  # as long as descriptors are short, say
                continue
            told = False
            keep_from_children(sock)
            try:
                check_peer(sock, self._key.group)
            except (Refused, OSError) as error:
                self._turned_away(sock, error)
                sock.close()
                continue
            with self._lock:
                refused = self._closing
                if not refused:
                    self._hold(sock, address[0] if address else "")
            if refused or not _start(f"{self._name}-link", self._welcome, sock):
                self._known(sock)
                sock.close()

    def _hold(self, sock: socket.socket, host: str) -> None:
        """Let one more stranger in, and hang up on the one that makes room for it."""
        crowded_out = self._strangers.admit(sock, host)
        if crowded_out is not None:
            with contextlib.suppress(OSError):
                crowded_out.shutdown(socket.SHUT_RDWR)  # the thread that reads from it ends it

    def _known(self, sock: socket.socket) -> None:
        """Count somebody no longer among the strangers."""
        with self._lock:
            self._strangers.forget(sock)

    def _welcome(self, sock: socket.socket) -> None:
        """Let somebody in who holds the secret, and serve him."""
        try:
            link, greeting = self._admit(sock)
        except Exception as error:  # whatever it is, it ends this connection and no other
            self._turned_away(sock, error)
            self._known(sock)
            sock.close()
            return
        with self._lock:
            refused = self._closing
            if not refused:
                self._links[link] = greeting
        if refused:
            link.close()
        elif greeting.purpose is Purpose.DIRECT:
            try:
                self._serve_direct(link, greeting)
            finally:
                self._forget(link)
        else:
            _PipeOwner(link, greeting, self._handler, self._watch, self._forget).run()

    def _turned_away(self, sock: socket.socket, error: Exception) -> None:
        """Tell of somebody who did not get in; people are told of those who do not belong here."""
        if not isinstance(error, Refused | PeerViolation):
            _log.debug("a connection was not opened: %s", error)
            return
        peer = "this machine"
        if sock.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):
                peer = str(Address(*sock.getpeername()[:2]))
        self._sink.emit(
            ConnectionRefused(
                cause=self._cause,
                at=SYSTEM_CLOCK.monotonic(),
                peer=peer,
                step=Step.HANDSHAKE,
                reason=str(error),
            )
        )

    def _admit(self, sock: socket.socket) -> tuple[Link, Greeting]:
        limit = Deadline.after(self._handshake_within_s)
        if sock.family != socket.AF_UNIX:
            tune(sock)
        machine = ServerHandshake(self._key, os.urandom(NONCE_BYTES))
        while not machine.done:
            if limit.passed():
                raise TimeoutError
            sock.settimeout(max(0.001, limit.remaining() or 0.0))
            data = sock.recv(256)
            if not data:
                raise LinkClosed("Connection closed by peer")
            try:
                answer = machine.receive(data)
            except HoldfastError:
                with contextlib.suppress(OSError):
                    sock.sendall(machine.farewell)
                raise
            sock.sendall(answer)
        link = Link(sock, machine.leftover())
        link.set_limit(limit.at or NEVER)
        greeting = decode_greeting(link.receive())
        try:
            self._handler.greeted(greeting)
        except HoldfastError as error:
            link.send(encode_answer(str(error)))
            raise
        self._known(sock)  # before he is told: who is welcome makes room for nobody
        link.send_all([*link.offer(), encode_answer("")])
        link.set_limit(NEVER)
        return link, greeting

    def _serve_direct(self, link: Link, caller: Greeting) -> None:
        handle, send, receive = self._handler.handle, link.send, link.receive
        later = Outlet(link).offer
        try:
            for link.handled in itertools.count():
                # Who calls sends nothing more before the answer, so nobody else sends either.
                answer = handle(caller, receive(), later)
                if answer is not None:
                    send(answer)
                del answer  # SR-6: it would stay until the next request comes
        except (OSError, PeerViolation) as error:
            _log.debug("a connection of %s ended: %s", caller.name, error)

    def _forget(self, link: Link) -> None:
        with self._lock:
            caller = self._links.pop(link, None)
            if caller is not None:
                self._handled += link.handled
            is_gone = caller is not None and not self._has_pipe(caller.incarnation)
            left = None if self._closing else self.left
        link.close()
        if caller is not None and is_gone and left is not None:
            left(caller)

    def has_pipe(self, incarnation: str) -> bool:
        """Say whether there is a pipe of this caller."""
        with self._lock:
            return self._has_pipe(incarnation)

    def _has_pipe(self, incarnation: str) -> bool:
        return any(
            by.incarnation == incarnation and by.purpose is Purpose.PIPE
            for by in self._links.values()
        )


def _start(name: str, target: Callable[..., None], *args: object) -> bool:
    """Start a thread; say whether there was one to be had."""
    try:
        threading.Thread(target=target, args=args, name=name, daemon=True).start()
    except RuntimeError as error:
        _log.warning("a thread could not be started: %s", error)
        return False
    return True


class _PipeOwner:
    """Reads and runs the calls of one pipe; see above for who owns it when."""

    def __init__(
        self,
        link: Link,
        caller: Greeting,
        handler: Handler,
        watch: _Watch,
        ended: Callable[[Link], None],
    ) -> None:
        self._link = link
        self._caller = caller
        self._handler = handler
        self._watch = watch
        self._ended = ended
        self._outlet = Outlet(link)
        # Guards what follows; never held while sending, since the watch takes it too.
        self._lock = threading.Lock()
        self._owner: object = None
        self._looked_at = 0
        # The owner, while it runs a call. Who takes it out says what comes next: the owner itself,
        # without the lock, that it goes on; others, with the lock, that it does not.
        self._running: dict[object, bool] = {}

    def run(self) -> None:
        """Serve, as the first owner; who owns it when the connection ends tells `ended`."""
        self._watch.add(self)
        self._own(self._claim())

    def make_way(self, owner: object) -> None:
        """Give the pipe to another thread, if its owner is still this one."""
        with self._lock:
            self._give_away(owner)

    def look(self) -> None:
        """Give the pipe to another thread if the call of the last look still runs."""
        handled = self._link.handled
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

    def _give_away(self, owner: object) -> None:
        """Let another thread own the pipe, if this owner runs a call. With the lock held."""
        if not self._running.pop(owner, False):
            return
        if not _start("holdfast-rpc-pipe", self._own, self._claim()):
            self._owner = owner  # he must go on himself
            self._running[owner] = True

    def _goes_on(self, owner: object) -> bool:
        """Say whether the pipe is an owner's still whom somebody has taken out."""
        with self._lock:  # nobody could be found to give it to, maybe
            self._running.pop(owner, False)
            return self._owner is owner

    def _own(self, token: object) -> None:
        sit(lambda: self.make_way(token))
        try:
            self._outlet.flush()  # what the owner before has gathered must not wait for it
            self._serve(token)
        except (OSError, PeerViolation) as error:
            _log.debug("a connection of %s ended: %s", self._caller.name, error)
        except Exception:
            _log.exception("a connection of %s ended", self._caller.name)
        finally:
            rise(None)
            with self._lock:
                last = self._owner is token
            if last:
                self._watch.remove(self)
                self._ended(self._link)

    def _serve(self, token: object) -> None:
        """Read, run and answer, until another one owns the pipe or the connection ends."""
        link, handle, caller, watch = self._link, self._handler.handle, self._caller, self._watch
        outlet, come, running = self._outlet, link.come, self._running
        while True:
            message = come.popleft() if come else link.receive()
            link.handled += 1
            running[token] = True
            if watch.asleep:
                watch.wake()
            answer = handle(caller, message, outlet.offer)
            mine = running.pop(token, False) or self._goes_on(token)
            # Of those that came later, too: who does not read his answers is not read either.
            gathered = len(outlet) if answer is None else outlet.gather(answer)
            if not mine or gathered >= _ANSWERS_AT_ONCE or not (come or link.ready()):
                outlet.flush()
            if not mine:
                return
            del message, answer  # SR-6: they would stay until the next request comes


class _Watch:
    """Sees calls of pipes that do not get on, and lets others pass. Asleep while none runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._owners: dict[_PipeOwner, None] = {}
        self._awake = threading.Event()
        self._closing = False
        self._begun = False
        self.asleep = True
        """Whether it must be woken; read without the lock, since being late by a call is fine."""

    def add(self, owner: _PipeOwner) -> None:
        """Watch a pipe."""
        with self._lock:
            self._owners[owner] = None
            if not self._begun and not self._closing:
                self._begun = _start(f"{self._name}-watch", self._run)

    def remove(self, owner: _PipeOwner) -> None:
        """Watch it no longer."""
        with self._lock:
            self._owners.pop(owner, None)

    def wake(self) -> None:
        """Begin to look: a call runs."""
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
                # In this order: nobody wakes it before it says that it sleeps, so that clearing
                # undoes nothing but what `close` has set. Whoever came before that is seen to run.
                self._awake.clear()
                self.asleep = True
                if not self._closing and not any(owner.running for owner in list(self._owners)):
                    self._awake.wait()
                self.asleep = False
            SYSTEM_CLOCK.sleep(TICK_S)
            quiet = 0 if self._look() else quiet + 1

    def _look(self) -> bool:
        """Look at the pipes that run a call; say whether there are any."""
        found = False
        # There may be very many, of which few run; and a machine that is short of time has none to
        # spare for those that do not.
        for owner in list(self._owners):
            if owner.running:
                found = True
                owner.look()
        return found
