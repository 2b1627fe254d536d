"""An RPC agent: one named worker, who calls others and is called by them."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import CallTimedOut, HoldfastError, PeerLost, UsageError
from holdfast.net.address import Address
from holdfast.net.auth import Key
from holdfast.rpc.errands import Errands
from holdfast.rpc.future import Driver, Future
from holdfast.rpc.greeting import Greeting
from holdfast.rpc.holdings import Holdings, Packing, Unpacking
from holdfast.rpc.loop import Loop
from holdfast.rpc.messages import NO_BUDGET, Kind, Message
from holdfast.rpc.names import WorkerInfo
from holdfast.rpc.peers import Contact, Peer, machine_id
from holdfast.rpc.pipe import NEVER, Readers, Reply
from holdfast.rpc.rref import RRef
from holdfast.rpc.rref_protocol import Number
from holdfast.rpc.serialize import dump, dump_error, load, load_error
from holdfast.rpc.server import Later, Server
from holdfast.rpc.way import make_way

__all__ = ["ASYNC_MARK", "Agent", "Direct", "Directory", "Target", "Transport"]

ASYNC_MARK = "_holdfast_async_execution"
"""Marks a function that returns a future, whose value is the answer."""

_log = logging.getLogger("holdfast.rpc")


Target: TypeAlias = str | int | WorkerInfo


class Transport(Protocol):
    """Carries requests to peers. Faults are put in here, by a wrapper."""

    def exchange(self, peer: Peer, message: Message, at: float) -> Message:
        """Send a request and return its answer; TimeoutError at that moment."""
        ...

    def post(self, peer: Peer, message: Message, reply: Reply, at: float) -> Driver | None:
        """Send a request whose answer `reply` hears; return what a waiter can drive."""
        ...


class Direct:
    """Carries requests as they are."""

    def exchange(self, peer: Peer, message: Message, at: float) -> Message:
        return peer.exchange(message, at)

    def post(self, peer: Peer, message: Message, reply: Reply, at: float) -> Driver | None:
        return peer.post(message, reply, at)


class Directory(Protocol):
    """Who is where."""

    def find(self, target: Target) -> Contact:
        """Return where a worker is now; UsageError if nobody of that name is known."""
        ...

    def find_incarnation(self, incarnation: str) -> Contact:
        """Return where this life of a worker is; PeerLost if it is over."""
        ...


class Agent:
    """One worker. `start()` before use; `close()` ends it."""

    def __init__(
        self,
        info: WorkerInfo,
        directory: Directory,
        key: Key,
        *,
        timeout_s: float = 60.0,
        transport: Transport | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._info = info
        self._directory = directory
        self._key = key
        self._clock = clock
        self.timeout_s = timeout_s
        self._transport = transport or Direct()
        self._numbers = itertools.count(1)
        self._peers: dict[str, Peer] = {}
        self._lock = threading.Lock()
        self._folder = ""
        self._readers: Readers | None = None
        self._server = Server(f"holdfast-rpc-{info.name}", key, self)
        self._here = threading.local()
        self._errands = Errands(f"holdfast-rpc-{info.name}-errands", clock)
        self._incarnation = secrets.token_hex(8)
        self.holdings = Holdings(self, info, self._incarnation, self._errands)
        self._handlers: dict[Kind, Callable[[Greeting, Any], Any]] = {
            Kind.PYTHON_CALL: self._run_call,
            Kind.PYTHON_REMOTE_CALL: self._run_remote,
            Kind.PYTHON_RREF_FETCH_CALL: self._run_fetch,
            Kind.RREF_FORK_REQUEST: self._count(Kind.RREF_FORK_REQUEST),
            Kind.RREF_CHILD_ACCEPT: self._count(Kind.RREF_CHILD_ACCEPT),
            Kind.RREF_USER_DELETE: self._count(Kind.RREF_USER_DELETE),
        }
        self._loop = Loop(f"holdfast-rpc-{info.name}-loop")
        self.contact: Contact | None = None

    def start(self, tcp_host: str = "") -> None:
        """Listen: on a Unix socket, and on a port of this address for workers of other hosts."""
        # Linux has names for sockets that are no files: they end with the process, whatever ends it.
        # Anybody on this machine can connect; the handshake is what keeps them out.
        if sys.platform == "linux":
            path = f"\0holdfast-rpc-{secrets.token_hex(16)}"
        else:
            self._folder = tempfile.mkdtemp(prefix="holdfast_rpc_")
            path = os.path.join(self._folder, "s")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(path)
        self._readers = Readers(f"holdfast-rpc-{self._info.name}-read", self._clock)
        self._server.listen(sock)
        tcp = ""
        if tcp_host:
            family = socket.AF_INET6 if ":" in tcp_host else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.bind((tcp_host, 0))
            tcp = str(Address(tcp_host, listener.getsockname()[1]))
            self._server.listen(listener)
        self.contact = Contact(self._info, self._incarnation, machine_id(), path, tcp)

    @property
    def info(self) -> WorkerInfo:
        """Who this agent is."""
        return self._info

    def find(self, target: Target) -> Contact:
        """Return where a worker is."""
        return self._directory.find(target)

    def close(self) -> None:
        """End everything."""
        self._server.close()
        self._loop.close()
        self._errands.close()
        for peer in list(self._peers.values()):
            peer.lose("Connection closed by peer (this agent has been shut down)")
        if self._readers is not None:
            self._readers.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    # Calling.

    def call(
        self,
        to: Target,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Call a function over there and return what it returns."""
        peer = self._peer(to)
        at, budget_ms = self._deadline(timeout)
        message = self._message(peer, Kind.PYTHON_CALL, (function, args, kwargs), budget_ms)
        make_way()
        try:
            answer = self._transport.exchange(peer, message, at)
        except TimeoutError as error:
            if isinstance(error, HoldfastError):
                raise
            raise _timed_out(budget_ms) from None
        return self._read(answer)

    def call_async(
        self,
        to: Target,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Future[Any]:
        """Call a function over there; return the future of what it returns."""
        return self._post(self._peer(to), Kind.PYTHON_CALL, (function, args, kwargs), timeout)

    def remote(
        self,
        to: Target,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> RRef[Any]:
        """Call a function over there and leave what it returns there; return a reference to it."""
        peer = self._peer(to)
        ticket = self.holdings.ask(peer.contact.incarnation)
        value = (ticket.reference, ticket.fork, function, args, kwargs)
        creation = self._post(peer, Kind.PYTHON_REMOTE_CALL, value, timeout)
        # However it ends: a request that was not answered may still arrive, and be counted there.
        creation.add_done_callback(lambda _: self.holdings.settled(ticket.fork))
        info = peer.contact.info
        return RRef._made(self.holdings, ticket.reference, info, ticket.fork, creation)

    def fetch(self, owner: WorkerInfo, reference: Number, timeout: float | None) -> Any:
        """Return a copy of a value that lives over there."""
        kind = Kind.PYTHON_RREF_FETCH_CALL
        return self._post(self._peer(owner), kind, reference, timeout).wait()

    def request(self, to: str, kind: Kind, value: Any, timeout: float | None) -> Future[Any]:
        """Send a request of a kind to an incarnation; return the future of its answer."""
        peer = self._peers.get(to)
        if peer is None:
            peer = self._peer_of(self._directory.find_incarnation(to))
        return self._post(peer, kind, value, timeout)

    def _message(self, peer: Peer, kind: Kind, value: Any, budget_ms: int) -> Message:
        with Packing(self.holdings, peer.contact.incarnation):
            body, buffers = dump(value)
        return Message(kind, next(self._numbers), body, buffers, budget_ms)

    def _post(self, peer: Peer, kind: Kind, value: Any, timeout: float | None) -> Future[Any]:
        at, budget_ms = self._deadline(timeout)
        message = self._message(peer, kind, value, budget_ms)
        future: Future[Any] = Future()

        def hear(answer: Message | Exception) -> None:
            if isinstance(answer, Message):
                try:
                    value = self._read(answer)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(value)
            elif isinstance(answer, TimeoutError) and not isinstance(answer, HoldfastError):
                future.set_exception(_timed_out(budget_ms))
            else:
                future.set_exception(answer)

        try:
            future._driver = self._transport.post(peer, message, hear, at)
        except TimeoutError as error:
            hear(error)
        except PeerLost as error:
            hear(error)
        return future

    def _deadline(self, timeout: float | None) -> tuple[float, int]:
        seconds = self.timeout_s if timeout is None else timeout
        at = getattr(self._here, "at", NEVER)
        if seconds:
            at = min(at, self._clock.monotonic() + seconds)
        if at == NEVER:
            return at, NO_BUDGET
        return at, max(1, int((at - self._clock.monotonic()) * 1000))

    def _read(self, answer: Message) -> Any:
        if answer.kind is not Kind.REPLY:
            raise load_error(answer.body, answer.buffers)
        with Unpacking(self.holdings):
            return load(answer.body, answer.buffers)

    def _peer(self, to: Target) -> Peer:
        return self._peer_of(self._directory.find(to))

    def _peer_of(self, contact: Contact) -> Peer:
        peer = self._peers.get(contact.incarnation)
        if peer is None:
            if self._readers is None or self.contact is None:
                raise UsageError("this agent has not been started")
            with self._lock:
                peer = self._peers.get(contact.incarnation)
                if peer is None:
                    peer = Peer(contact, self.contact, self._key, self._readers, self._clock)
                    self._peers[contact.incarnation] = peer
        return peer

    def lost(self, contact: Contact) -> None:
        """Hear that a worker is gone: whoever waits for it must know."""
        peer = self._peers.pop(contact.incarnation, None)
        if peer is not None:
            peer.lose("Connection closed by peer (it is gone)")
        self.holdings.died(contact.incarnation)

    # Being called.

    def greeted(self, greeting: Greeting) -> None:
        if self.contact is None or greeting.target != self.contact.incarnation:
            raise PeerLost("Connection closed by peer (another one has its name now)")

    def handle(self, caller: Greeting, message: Message, later: Later) -> Message | None:
        here, budget_ms = self._here, message.budget_ms
        here.at = self._clock.monotonic() + budget_ms / 1000 if budget_ms else NEVER
        try:
            with Unpacking(self.holdings):
                request = load(message.body, message.buffers)
            run = self._handlers[message.kind]
            value = run(caller, request)
            if isinstance(value, Future):
                value.add_done_callback(
                    lambda done: self._answer_later(caller, message, done, later)
                )
                return None
            return self._answer(caller, message, value)
        except BaseException as error:
            return self._failure(message, error)
        finally:
            here.at = NEVER

    def _run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function; a future if its answer comes later."""
        value = function(*args, **kwargs) if kwargs else function(*args)
        if isinstance(value, Coroutine):
            return self._loop.run(value)
        if isinstance(value, Future) and not getattr(function, ASYNC_MARK, False):
            raise UsageError(f"{function!r:.80} returns a future: mark it with async_execution")
        return value

    def _run_call(self, caller: Greeting, request: Any) -> Any:
        return self._run(*request)

    def _run_remote(self, caller: Greeting, request: Any) -> Any:
        reference, fork, function, args, kwargs = request
        room = self.holdings.create(Number(*reference), Number(*fork), caller.incarnation)
        if room is None:
            return None  # it was here before
        try:
            value = self._run(function, args, kwargs)
        except BaseException as error:
            room.set_exception(error)
            return None
        if not isinstance(value, Future):
            room.set_result(value)
            return None
        value.add_done_callback(lambda done: _copy(done, room))
        return value.then(lambda done: None)

    def _run_fetch(self, caller: Greeting, request: Any) -> Any:
        return self.holdings.value(Number(*request))

    def _count(self, kind: Kind) -> Callable[[Greeting, Any], Any]:
        def run(caller: Greeting, request: Any) -> bool:
            reference, fork = request
            user = caller.incarnation
            return self.holdings.handle(kind, Number(*reference), Number(*fork), user)

        return run

    def _answer(self, caller: Greeting, message: Message, value: Any) -> Message:
        with Packing(self.holdings, caller.incarnation):
            body, buffers = dump(value)
        return Message(Kind.REPLY, message.call, body, buffers)

    def _failure(self, message: Message, error: BaseException) -> Message:
        body, buffers = dump_error(error, str(self._info))
        return Message(Kind.FAILURE, message.call, body, buffers)

    def _answer_later(
        self, caller: Greeting, message: Message, done: Future[Any], later: Later
    ) -> None:
        try:
            answer = self._answer(caller, message, done.value())
        except BaseException as error:
            answer = self._failure(message, error)
        try:
            later(answer)
        except OSError as error:
            _log.debug("an answer came too late: %s", error)


def _timed_out(budget_ms: int) -> CallTimedOut:
    return CallTimedOut(
        f"RPC ran for more than set timeout ({budget_ms} ms) and will now be marked with an error"
    )


def _copy(done: Future[Any], room: Future[Any]) -> None:
    error = done.exception()
    if error is None:
        room.set_result(done.value())
    else:
        room.set_exception(error)
