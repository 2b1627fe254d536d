"""An RPC agent: one named worker, which calls other workers and serves their calls."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import HoldfastError, Overloaded, PeerLost, UsageError
from holdfast.forks import in_child
from holdfast.net.address import Address
from holdfast.net.auth import Key
from holdfast.rpc.client.background_reader import BackgroundReader
from holdfast.rpc.client.blocking import before_block
from holdfast.rpc.client.calls import Backoff, timed_out
from holdfast.rpc.client.contact import Contact, PeerDirectory, Target, machine_id
from holdfast.rpc.client.deadlines import NO_DEADLINE, check_limit, served_here
from holdfast.rpc.client.future import Future
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.client.retrying import RetryingCalls, note
from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.client.transport import MessageTransport
from holdfast.rpc.completion import HasReferences, ReplyFuture, complete, read
from holdfast.rpc.metrics import AgentMetrics
from holdfast.rpc.rref.rref import RRef, make_rref
from holdfast.rpc.rref.table import RRefTable
from holdfast.rpc.server.dispatcher import Dispatcher
from holdfast.rpc.server.event_loop import EventLoop
from holdfast.rpc.server.listener import Server
from holdfast.rpc.values.funcref import encode_function
from holdfast.rpc.values.pickling import dump_plain, load
from holdfast.rpc.wire.hello import WorkerHello
from holdfast.rpc.wire.messages import NEVER, NO_BUDGET, Kind, Message
from holdfast.rpc.wire.tickets import encode_creation
from holdfast.rpc.wire.worker_info import WorkerInfo

__all__ = ["Agent", "Target"]


_ONE_TRY = RetryPolicy(max_retries=0)
_GONE = "Connection closed by peer (it is gone)"
# Each access to a member of an enumeration costs a lookup.
_CALL, _REPLY = Kind.PYTHON_CALL, Kind.REPLY


class Agent:
    """One worker. `start()` before use; `close()` ends it.

    An agent that is dropped while it runs ends by itself: none of its threads keeps it alive. Its
    own calls keep it alive until they are complete; references that it made do not.

    In a forked child it is shut down.
    """

    def __init__(
        self,
        info: WorkerInfo,
        directory: PeerDirectory,
        key: Key,
        *,
        timeout_s: float = 60.0,
        transport: MessageTransport | None = None,
        clock: Clock = SYSTEM_CLOCK,
        inherits: bool = True,
    ) -> None:
        self._info = info
        self._directory = directory
        self._key = key
        self._clock = clock
        self.timeout_s = timeout_s
        self._inherits = inherits  # whether its calls inherit the deadline of the enclosing call
        self._transport = transport
        # Whether messages may arrive twice: then all are marked `once`: callees detect copies.
        self._repeats = transport is not None and transport.repeats
        self._numbers = itertools.count(1)
        self._peers: dict[str, Peer] = {}
        self._found: dict[Target, Peer] = {}  # cached lookups, until a worker is lost
        self._lock = threading.Lock()
        self._folder = ""
        self._background: BackgroundReader | None = None
        self._scheduler = Scheduler(f"holdfast-rpc-{info.name}-scheduler", clock)
        self._incarnation = secrets.token_hex(8)
        self.rrefs = RRefTable(self, info, self._incarnation, self._scheduler)
        self._loop = EventLoop(f"holdfast-rpc-{info.name}-loop")
        self._dispatcher = Dispatcher(
            *(info, self._incarnation, self.rrefs, self._loop, clock),
            knows=partial(_is_known, directory),
        )
        mine = key.meant_for(self._incarnation)
        self._server = Server(f"holdfast-rpc-{info.name}", mine, self._dispatcher)
        self._retrying = RetryingCalls(info, self._numbers, self._scheduler, clock)
        self._metrics = AgentMetrics(
            *(info, self._numbers, self._peers, self._retrying),
            *(self._server, self._dispatcher, self.rrefs),
        )
        self._closed = False
        self.contact: Contact | None = None
        in_child(self, Agent._disable_in_child)

    def start(self, tcp_host: str = "") -> None:
        """Listen: on a Unix socket, and on a port of this address for workers of other hosts."""
        # Linux has socket names that are no files: they vanish with the process in any case.
        if sys.platform == "linux":
            path = f"\0holdfast-rpc-{secrets.token_hex(16)}"
        else:
            self._folder = tempfile.mkdtemp(prefix="holdfast_rpc_")
            path = os.path.join(self._folder, "s")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(path)
        self._background = BackgroundReader(f"holdfast-rpc-{self._info.name}-read", self._clock)
        # On the scheduler's thread: the garbage collector may run while any of our locks is held.
        dropped = weakref.finalize(self, self._scheduler.submit, self._parts().end)
        dropped.atexit = False
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
        """The name and number of this worker."""
        return self._info

    @property
    def transport(self) -> MessageTransport | None:
        """The transport that its messages pass through; None: no transport changes them."""
        return self._transport

    @property
    def server(self) -> Server:
        """The server, which accepts the connections of callers."""
        return self._server

    def find(self, target: Target) -> Contact:
        """Return where a worker is."""
        return self._directory.find(target)

    def close(self) -> None:
        """End everything: calls that are under way fail. Idempotent."""
        with self._lock:
            self._closed = True
        self._parts().end()

    def _disable_in_child(self) -> None:
        """Disable this agent in a forked child: its peers would take the child for the parent."""
        self._lock = threading.Lock()  # another thread may have held the old one
        self._closed = True
        self._found = {}
        self._peers.clear()

    def _parts(self) -> _Parts:
        return _Parts(
            *(self._retrying, self._server, self._transport, self._loop, self._scheduler),
            *(self._metrics, self._peers, self._background, self._folder),
        )

    def add_handler(self, kind: Kind, handler: Callable[[WorkerHello, Any], Any]) -> None:
        """Run requests of a kind with this; its result, or the future's value, is the reply."""
        self._dispatcher.add_handler(kind, handler)

    # For people.

    def metrics(self) -> dict[str, str]:
        """Return the metrics by name; see `metrics.py` for the names."""
        return self._metrics.metrics()

    def debug_info(self) -> dict[str, str]:
        """Return the metrics, and a description of the connections."""
        return self._metrics.debug_info()

    def enable_gil_profiling(self, flag: bool) -> None:
        """Start or stop to measure how long threads wait for the GIL (`InterpreterWait`)."""
        self._metrics.wait.switch(flag)

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
        """Call a function at a worker and return its result.

        With `retries` the call is sent again when the connection breaks, and still runs at most
        once: a callee that has run it already sends the reply that it kept.
        """
        if retries is not None or self._repeats:
            return self.call_async(to, function, args, kwargs, timeout, retries).wait()
        peer = self.peer(to)
        at, budget_ms, whose = self.deadline(timeout)
        value = (encode_function(function), args, kwargs)
        body = dump_plain(value)
        if body is not None:  # no reference is in it
            message = Message(_CALL, next(self._numbers), body, (), budget_ms, False, (), whose)
        else:
            message = self._request(peer.contact.incarnation, _CALL, value, budget_ms, whose)
            message.call = next(self._numbers)
        before_block()
        try:
            answer = peer.exchange(message, at)
        except BaseException as error:
            self.rrefs.unread(peer.contact.incarnation, message)
            if not isinstance(error, TimeoutError) or isinstance(error, HoldfastError):
                raise
            self.give_up(peer, message)
            raise timed_out(budget_ms, whose, str(error)) from None
        if answer.kind is _REPLY and not (answer.has_references or message.given):
            return load(answer.body, answer.buffers)  # nearly always: no reference is involved
        return read(self.rrefs, peer.contact.incarnation, message, answer)

    def _request(
        self, to: str, kind: Kind, value: Any, budget_ms: int, whose: str, head: bytes = b""
    ) -> Message:
        """Return the request that carries a head and a value; it has no number yet."""
        body = dump_plain(value)
        if body is not None:
            return Message(kind, 0, head + body, (), budget_ms, False, (), whose)
        body, buffers, given = self.rrefs.pack(to, value)
        return Message(kind, 0, head + body, buffers, budget_ms, False, given, whose)

    def give_up(self, peer: Peer, request: Message) -> None:
        """Cancel a call: tell the callee, later on another thread, that no reply is needed."""
        self._scheduler.submit(partial(note, peer, Message(Kind.CANCEL, request.call)))

    def call_async(
        self,
        to: Target,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        retries: RetryPolicy | None = None,
        kind: Kind = _CALL,
    ) -> Future[Any]:
        """Call a function at a worker; return the future of its result."""
        value = (encode_function(function), args, kwargs)
        try:
            peer = self.peer(to)
        except PeerLost as error:  # as if the worker was lost just after the call was sent
            lost: Future[Any] = Future()
            lost.set_exception(error.with_traceback(None))
            return lost
        return self._post(peer, kind, value, timeout, retries)

    def remote(
        self,
        to: Target,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        retries: RetryPolicy | None = None,
        kind: Kind = Kind.PYTHON_REMOTE_CALL,
    ) -> RRef[Any]:
        """Call a function at a worker and leave the result there; return a reference to it."""
        called, peer = encode_function(function), self.peer(to)
        ticket = self.rrefs.ask(peer.contact.incarnation)
        value, head = (called, args, kwargs), encode_creation(ticket)
        try:
            creation = self._post(peer, kind, value, timeout, retries, head)
        except BaseException:
            self.rrefs.creation_ended(ticket.fork)
            self.rrefs.dropped(ticket.reference, ticket.fork)
            raise
        # Also if it fails: a request without a reply may still arrive, and the owner counts it.
        creation.add_done_callback(lambda _: self.rrefs.creation_ended(ticket.fork))
        info = peer.contact.info
        return make_rref(self.rrefs, ticket.reference, info, ticket.owner, ticket.fork, creation)

    def knows(self, incarnation: str) -> bool:
        """Return whether this incarnation of a worker is alive, or may be."""
        try:
            return _is_known(self._directory, incarnation)
        except HoldfastError:
            return True

    def worker_name(self, incarnation: str) -> str:
        """Return the worker of this incarnation; the incarnation itself if that is not known."""
        try:
            return self._directory.find_incarnation(incarnation).info.name
        except HoldfastError:
            return incarnation

    def request(
        self,
        to: str,
        kind: Kind,
        value: Any,
        timeout: float | None,
        retries: Backoff | None = None,
    ) -> Future[Any]:
        """Send a request of a kind to an incarnation; return the future of its reply.

        With `retries` the incarnation may not be known yet. Such a request does not keep the agent
        alive, since it may be retried without limit.
        """
        if retries is None:
            return self._post(self._peer_at(to), kind, value, timeout)
        agent = weakref.ref(self)

        def find() -> Peer:
            found = agent()
            if found is None:
                raise PeerLost("Connection closed by peer (this agent has been shut down)")
            return found._peer_at(to)

        weak = _OnlyReferences(self.rrefs)
        return self._post_retried(to, find, kind, value, timeout, retries, weak)

    def _post_retried(
        self,
        to: str,
        find: Peer | Callable[[], Peer],
        kind: Kind,
        value: Any,
        timeout: float | None,
        retries: Backoff,
        holder: HasReferences,
        head: bytes = b"",
    ) -> Future[Any]:
        """Send a request, and retry it by its policy; `holder` lives until it is completed."""
        if not hasattr(retries, "exhausted"):
            raise UsageError(f"retries {retries!r:.40}: must be a RetryPolicy, or None")
        at, budget_ms, whose = self.deadline(timeout)
        message = self._request(to, kind, value, budget_ms, whose, head)
        finish = partial(complete, holder, to)
        return self._retrying.post(to, find, message, finish, at, retries)

    def _post(
        self,
        peer: Peer,
        kind: Kind,
        value: Any,
        timeout: float | None,
        retries: Backoff | None = None,
        head: bytes = b"",
    ) -> Future[Any]:
        """Send a request: a head, then a value; return the future of the reply."""
        to = peer.contact.incarnation
        if retries is None and self._repeats:
            retries = _ONE_TRY
        if retries is not None:
            return self._post_retried(to, peer, kind, value, timeout, retries, self, head)
        at, budget_ms, whose = self.deadline(timeout)
        body = None if head else dump_plain(value)
        if body is not None:  # nearly always: a fast path of `_request`
            message = Message(kind, next(self._numbers), body, (), budget_ms, False, (), whose)
        else:
            message = self._request(to, kind, value, budget_ms, whose, head)
            message.call = next(self._numbers)
        future = ReplyFuture()
        future.asked = (self, peer, message)
        try:
            future.driver = peer.post(message, future.receive, at)
        except (TimeoutError, PeerLost, Overloaded) as error:
            # The future keeps the error, and its traceback would keep this frame and its arguments.
            future.receive(error.with_traceback(None))
        except BaseException:  # such as a refusal or an interrupt
            self.rrefs.unread(to, message)
            raise
        return future

    def deadline(self, timeout: float | None) -> tuple[float, int, str]:
        """Return a call's deadline, the milliseconds left, and the caller it is inherited from."""
        seconds = self.timeout_s if timeout is None else check_limit(timeout)
        now, (at, whose) = self._clock.monotonic(), served_here() if self._inherits else NO_DEADLINE
        if seconds and now + seconds < at:
            at, whose = now + seconds, ""
        if at == NEVER:
            return at, NO_BUDGET, whose
        return at, int((at - now) * 1000 + 0.5) if at - now >= 0.001 else 1, whose

    def _peer_at(self, incarnation: str) -> Peer:
        peer = self._peers.get(incarnation)
        if peer is None:
            peer = self._peer_of(self._directory.find_incarnation(incarnation))
        return peer

    def peer(self, to: Target) -> Peer:
        """Return the caller's side of a worker."""
        found = self._found
        try:
            return found[to]
        except (KeyError, TypeError):  # not cached yet, or not a valid name
            peer = self._peer_of(self._directory.find(to))
        found[to] = peer  # without effect if a worker was lost since: `lost` replaces the cache
        return peer

    def _peer_of(self, contact: Contact) -> Peer:
        peer = self._peers.get(contact.incarnation)
        if peer is None:
            if self._background is None or self.contact is None:
                raise UsageError("this agent has not been started")
            with self._lock:
                peer = self._peers.get(contact.incarnation)
                if self._closed:
                    raise PeerLost("Connection closed by peer (this agent has been shut down)")
                if peer is None:
                    me, key, background = self.contact, self._key, self._background
                    peer = Peer(contact, me, key, background, self._clock, self._transport)
                    self._peers[contact.incarnation] = peer
            if self._dispatcher.is_dead(contact.incarnation):  # `lost` may have run before us
                self._peers.pop(contact.incarnation, None)
                peer.lose(_GONE)
        return peer

    def lost(self, contact: Contact) -> None:
        """Forget a worker that is gone, and fail the calls that wait for it."""
        self.forget_worker(contact)()

    def forget_worker(self, contact: Contact) -> Callable[[], None]:
        """Forget a worker that is gone; return a function that fails its calls, and may block."""
        life = contact.incarnation
        self._dispatcher.died(life)  # first: none of its requests runs after the loss is reported
        self._server.hang_up(life)
        peer = self._peers.pop(life, None)
        self._found = {}  # a new one: `peer` may be about to add the lost worker to the old one

        def fail_calls() -> None:
            if peer is not None:
                self._retrying.lost(life, peer.lose(_GONE))
            self.rrefs.died(life)

        return fail_calls


def _is_known(directory: PeerDirectory, incarnation: str) -> bool:
    """Return whether an incarnation is alive; raise an error if that is not known now."""
    with contextlib.suppress(PeerLost):
        return bool(directory.find_incarnation(incarnation))
    return False


class _OnlyReferences(NamedTuple):
    """What completes a request that does not keep its agent alive."""

    rrefs: RRefTable


class _Parts(NamedTuple):
    """The parts that end with an agent. None of them keeps the agent alive."""

    retrying: RetryingCalls
    server: Server
    transport: MessageTransport | None
    loop: EventLoop
    scheduler: Scheduler
    metrics: AgentMetrics
    peers: dict[str, Peer]
    background: BackgroundReader | None
    folder: str

    def end(self) -> None:
        """End everything: calls that are under way fail. Idempotent."""
        self.retrying.close()  # before the connections break, or it would retry
        self.server.close()
        if self.transport is not None:
            self.transport.close()
        self.loop.close()
        self.scheduler.close()
        self.metrics.wait.close()
        for peer in list(self.peers.values()):
            peer.lose("Connection closed by peer (this agent has been shut down)")
        if self.background is not None:
            self.background.close()
        shutil.rmtree(self.folder, ignore_errors=True)  # if there is one
