"""An RPC agent: one named worker, who calls others and is called by them."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import CallTimedOut, HoldfastError, PeerLost, UsageError
from holdfast.net.auth import Key
from holdfast.rpc.future import Future
from holdfast.rpc.greeting import Greeting
from holdfast.rpc.loop import Loop
from holdfast.rpc.messages import NO_BUDGET, Kind, Message
from holdfast.rpc.names import WorkerInfo
from holdfast.rpc.peers import Contact, Peer, machine_id
from holdfast.rpc.pipe import NEVER, Readers
from holdfast.rpc.serialize import dump, dump_error, load, load_error
from holdfast.rpc.server import Later, Server

__all__ = ["ASYNC_MARK", "Agent", "Directory"]

ASYNC_MARK = "_holdfast_async_execution"
"""Marks a function that returns a future, whose value is the answer."""

_log = logging.getLogger("holdfast.rpc")


class Directory(Protocol):
    """Who is where."""

    def find(self, target: str | int | WorkerInfo) -> Contact:
        """Return where a worker is now; UsageError if nobody of that name is known."""
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
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._info = info
        self._directory = directory
        self._key = key
        self._clock = clock
        self.timeout_s = timeout_s
        self._numbers = itertools.count(1)
        self._peers: dict[str, Peer] = {}
        self._lock = threading.Lock()
        self._folder = ""
        self._readers: Readers | None = None
        self._server = Server(f"holdfast-rpc-{info.name}", key, self)
        self._here = threading.local()
        self._loop = Loop(f"holdfast-rpc-{info.name}-loop")
        self.contact: Contact | None = None

    def start(self) -> None:
        """Listen."""
        self._folder = tempfile.mkdtemp(prefix="holdfast_rpc_")
        path = os.path.join(self._folder, "s")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(path)
        self._readers = Readers(f"holdfast-rpc-{self._info.name}-read", self._clock)
        self.contact = Contact(self._info, secrets.token_hex(8), machine_id(), path, "")
        self._server.listen(sock)

    def close(self) -> None:
        """End everything."""
        self._server.close()
        self._loop.close()
        for peer in list(self._peers.values()):
            peer.lose("Connection closed by peer (this agent has been shut down)")
        if self._readers is not None:
            self._readers.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # Calling.

    def call(
        self,
        to: str | int | WorkerInfo,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Call a function over there and return what it returns."""
        peer = self._peer(to)
        body, buffers = dump((function, args, kwargs))
        at, budget_ms = self._deadline(timeout)
        message = Message(Kind.PYTHON_CALL, next(self._numbers), body, buffers, budget_ms)
        try:
            answer = peer.exchange(message, at)
        except TimeoutError:
            raise self._timed_out(budget_ms) from None
        return self._read(answer)

    def call_async(
        self,
        to: str | int | WorkerInfo,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Future[Any]:
        """Call a function over there; return the future of what it returns."""
        peer = self._peer(to)
        body, buffers = dump((function, args, kwargs))
        at, budget_ms = self._deadline(timeout)
        message = Message(Kind.PYTHON_CALL, next(self._numbers), body, buffers, budget_ms)
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
                future.set_exception(self._timed_out(budget_ms))
            else:
                future.set_exception(answer)

        future._driver = peer.post(message, hear, at)
        return future

    def _deadline(self, timeout: float | None) -> tuple[float, int]:
        seconds = self.timeout_s if timeout is None else timeout
        at = getattr(self._here, "at", NEVER)
        if seconds:
            at = min(at, self._clock.monotonic() + seconds)
        if at == NEVER:
            return at, NO_BUDGET
        return at, max(1, int((at - self._clock.monotonic()) * 1000))

    def _timed_out(self, budget_ms: int) -> CallTimedOut:
        return CallTimedOut(
            f"RPC ran for more than set timeout ({budget_ms} ms) and will now be marked with an "
            "error"
        )

    def _read(self, answer: Message) -> Any:
        if answer.kind is Kind.REPLY:
            return load(answer.body, answer.buffers)
        raise load_error(answer.body, answer.buffers)

    def _peer(self, to: str | int | WorkerInfo) -> Peer:
        contact = self._directory.find(to)
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

    # Being called.

    def greeted(self, greeting: Greeting) -> None:
        if self.contact is None or greeting.target != self.contact.incarnation:
            raise PeerLost("Connection closed by peer (another one has its name now)")

    def handle(self, caller: Greeting, message: Message, later: Later) -> Message | None:
        here, budget_ms = self._here, message.budget_ms
        here.at = self._clock.monotonic() + budget_ms / 1000 if budget_ms else NEVER
        try:
            function, args, kwargs = load(message.body, message.buffers)
            value = function(*args, **kwargs) if kwargs else function(*args)
            if isinstance(value, Coroutine):
                value = self._loop.run(value)
                value.add_done_callback(lambda done: self._answer_later(message, done, later))
                return None
            if isinstance(value, Future) and getattr(function, ASYNC_MARK, False):
                value.add_done_callback(lambda done: self._answer_later(message, done, later))
                return None
            return self._answer(message, value)
        except BaseException as error:
            return self._failure(message, error)
        finally:
            here.at = NEVER

    def _answer(self, message: Message, value: Any) -> Message:
        body, buffers = dump(value)
        return Message(Kind.REPLY, message.call, body, buffers)

    def _failure(self, message: Message, error: BaseException) -> Message:
        body, buffers = dump_error(error, str(self._info))
        return Message(Kind.FAILURE, message.call, body, buffers)

    def _answer_later(self, message: Message, done: Future[Any], later: Later) -> None:
        try:
            answer = self._answer(message, done.value())
        except BaseException as error:
            answer = self._failure(message, error)
        try:
            later(answer)
        except OSError as error:
            _log.debug("an answer came too late: %s", error)
