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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from holdfast.clock import SYSTEM_CLOCK, Clock, check_timeout
from holdfast.errors import HoldfastError, Overloaded, PeerLost, UsageError
from holdfast.net.address import Address
from holdfast.net.auth import Key
from holdfast.rpc.answering import Answerer, deadline_here
from holdfast.rpc.errands import Errands
from holdfast.rpc.future import Driver, Future
from holdfast.rpc.holdings import Holdings, timed_out
from holdfast.rpc.loop import Loop
from holdfast.rpc.messages import NO_BUDGET, Kind, Message
from holdfast.rpc.names import WorkerInfo
from holdfast.rpc.peers import Contact, Peer, machine_id
from holdfast.rpc.pipe import NEVER, Readers, Reply
from holdfast.rpc.retry import RetryPolicy
from holdfast.rpc.rref import RRef
from holdfast.rpc.serialize import load_error
from holdfast.rpc.server import Server
from holdfast.rpc.way import make_way

__all__ = ["Agent", "Direct", "Directory", "Target", "Transport"]

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

    def close(self) -> None:
        """End what it has begun. Idempotent."""
        ...


class Direct:
    """Carries requests as they are."""

    def exchange(self, peer: Peer, message: Message, at: float) -> Message:
        return peer.exchange(message, at)

    def post(self, peer: Peer, message: Message, reply: Reply, at: float) -> Driver | None:
        return peer.post(message, reply, at)

    def close(self) -> None:
        pass


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
        self._errands = Errands(f"holdfast-rpc-{info.name}-errands", clock)
        self._incarnation = secrets.token_hex(8)
        self.holdings = Holdings(self, info, self._incarnation, self._errands)
        self._loop = Loop(f"holdfast-rpc-{info.name}-loop")
        self._answerer = Answerer(
            info, self._incarnation, self.holdings, self._loop, clock, self.knows
        )
        self._server = Server(f"holdfast-rpc-{info.name}", key, self._answerer)
        # Calls that may be sent again and are not answered yet; the callees keep what is newer.
        self._open_once: set[int] = set()
        self._closed = False
        self.contact: Contact | None = None

    def start(self, tcp_host: str = "") -> None:
        """Listen: on a Unix socket, and on a port of this address for workers of other hosts."""
        # Linux has names for sockets that are no files: they end with the process, however it ends.
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

    @property
    def transport(self) -> Transport:
        """What carries its messages."""
        return self._transport

    def find(self, target: Target) -> Contact:
        """Return where a worker is."""
        return self._directory.find(target)

    def close(self) -> None:
        """End everything: what is under way fails. Idempotent."""
        with self._lock:
            self._closed = True
        self._server.close()
        self._transport.close()
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
        retries: RetryPolicy | None = None,
    ) -> Any:
        """Call a function over there and return what it returns.

        With `retries` it is sent again when the connection breaks, and runs at most once all the
        same: a callee that has it already gives the answer that it kept.
        """
        peer = self._peer(to)
        at, budget_ms = self._deadline(timeout)
        message = self._message(peer, Kind.PYTHON_CALL, (function, args, kwargs), budget_ms)
        make_way()
        try:
            if retries is None:
                answer = self._transport.exchange(peer, message, at)
            else:
                answer = self._insist(peer, message, at, retries)
        except TimeoutError as error:
            if isinstance(error, HoldfastError):
                raise
            self._note(peer, Message(Kind.CANCEL, message.call))
            raise timed_out(budget_ms) from None
        return self._read(answer)

    def _insist(self, peer: Peer, message: Message, at: float, retries: RetryPolicy) -> Message:
        """Send a request until it is answered, the policy gives up, or its receiver is gone."""
        message.once = True
        with self._lock:  # a number that is not among the open ones may be acknowledged by others
            message.call = next(self._numbers)
            self._open_once.add(message.call)
        tried = 0
        try:
            while True:
                tried += 1
                now = self._clock.monotonic()
                until = at if retries.try_s is None else min(at, now + retries.try_s)
                try:
                    return self._transport.exchange(peer, message, until)
                except (PeerLost, TimeoutError) as error:
                    self._wait_to_retry(peer, at, retries.delay(tried), error, retries)
        finally:
            with self._lock:
                self._open_once.discard(message.call)
                below = min(self._open_once, default=message.call + 1)
            self._note(peer, Message(Kind.ACKNOWLEDGE, below))

    def _note(self, peer: Peer, message: Message) -> None:
        """Send what is not answered, sometime: nobody waits for it, or is told of its failure."""

        def send() -> None:
            try:
                peer.note(message)
            except (OSError, HoldfastError) as error:
                _log.debug("a note to %s was not sent: %s", peer.contact.info, error)

        self._errands.do(send)

    def _wait_to_retry(
        self,
        peer: Peer,
        at: float,
        delay: float | None,
        error: PeerLost | TimeoutError,
        retries: RetryPolicy,
    ) -> None:
        """Wait before the next try; raise if there will be none."""
        if delay is None:
            raise PeerLost(f"{retries.exhausted()} {error}", peer=peer.contact.info.name) from None
        if peer.lost is not None:  # another incarnation must not run it: it may have run
            raise peer.lost from None
        if self._clock.monotonic() + delay >= at:
            raise TimeoutError from None
        self._clock.sleep(delay)

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
        return RRef._made(
            self.holdings, ticket.reference, info, ticket.owner, ticket.fork, creation
        )

    def knows(self, incarnation: str) -> bool:
        """Say whether this life of a worker is, as far as the directory knows, not over."""
        try:
            self._directory.find_incarnation(incarnation)
        except PeerLost:
            return False
        return True

    def request(self, to: str, kind: Kind, value: Any, timeout: float | None) -> Future[Any]:
        """Send a request of a kind to an incarnation; return the future of its answer."""
        peer = self._peers.get(to)
        if peer is None:
            peer = self._peer_of(self._directory.find_incarnation(to))
        return self._post(peer, kind, value, timeout)

    def _message(self, peer: Peer, kind: Kind, value: Any, budget_ms: int) -> Message:
        body, buffers, _ = self.holdings.pack(peer.contact.incarnation, value)
        return Message(kind, next(self._numbers), body, buffers, budget_ms)

    def _post(self, peer: Peer, kind: Kind, value: Any, timeout: float | None) -> Future[Any]:
        at, budget_ms = self._deadline(timeout)
        message = self._message(peer, kind, value, budget_ms)
        future: Future[Any] = Future()

        def stop() -> None:
            self._note(peer, Message(Kind.CANCEL, message.call))

        def hear(answer: Message | Exception) -> None:
            # It may have been cancelled: then nobody hears it, but what it brings is taken all the
            # same, since references may be among it.
            if isinstance(answer, Message):
                try:
                    value = self._read(answer)
                except BaseException as error:
                    # Without this frame, which knows the future, which would keep the error: all
                    # that its traceback gathers would stay until the garbage collector comes.
                    future._settle(None, error.with_traceback(None))
                else:
                    future._settle(value, None)
            elif isinstance(answer, TimeoutError) and not isinstance(answer, HoldfastError):
                if future._settle(None, timed_out(budget_ms)):
                    stop()
            elif isinstance(answer, PeerLost):
                # A new one: many are told the same, and what one gathers on its way up would stay
                # as long as any of them, and the peer, keeps it.
                lost = PeerLost(str(answer), peer=answer.peer, incarnation=answer.incarnation)
                future._settle(None, lost)
            else:
                future._settle(None, answer)

        future._stop = stop
        try:
            future._driver = self._transport.post(peer, message, hear, at)
        except (TimeoutError, PeerLost, Overloaded) as error:
            hear(error)
        return future

    def _deadline(self, timeout: float | None) -> tuple[float, int]:
        seconds = self.timeout_s if timeout is None else check_timeout(timeout)
        at = deadline_here()
        if seconds:
            at = min(at, self._clock.monotonic() + seconds)
        if at == NEVER:
            return at, NO_BUDGET
        return at, max(1, int((at - self._clock.monotonic()) * 1000))

    def _read(self, answer: Message) -> Any:
        if answer.kind is not Kind.REPLY:
            raise load_error(answer.body, answer.buffers)
        return self.holdings.unpack(answer.body, answer.buffers)

    def _peer(self, to: Target) -> Peer:
        return self._peer_of(self._directory.find(to))

    def _peer_of(self, contact: Contact) -> Peer:
        peer = self._peers.get(contact.incarnation)
        if peer is None:
            if self._readers is None or self.contact is None:
                raise UsageError("this agent has not been started")
            with self._lock:
                peer = self._peers.get(contact.incarnation)
                if self._closed:
                    raise PeerLost("Connection closed by peer (this agent has been shut down)")
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
        self._answerer.died(contact.incarnation)
        self._server.hang_up(contact.incarnation)
