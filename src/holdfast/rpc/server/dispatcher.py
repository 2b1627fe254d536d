"""The callee's side of an agent: runs the requests of other workers, and replies.

Guarantees
    AN-1  Every request gets one reply on the connection that brought it, if that is still open.
    AN-2  A request that may be retried runs at most once for each incarnation of its caller.
    AN-3  A coroutine whose caller has given up, or is gone, is cancelled. A coroutine that makes
          the value of a reference is not: other workers may hold the reference.
    AN-4  Nothing is run for a caller that was declared gone: what it retries would run twice.
    AN-5  A call that waits for the value of a reference fails if the creation was refused, or its
          request could not be read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, Overloaded, PeerLost, ReferenceFailed, UsageError
from holdfast.rpc.client.blocking import before_block
from holdfast.rpc.client.deadlines import NO_DEADLINE, serve
from holdfast.rpc.client.future import Future, expected
from holdfast.rpc.rref.table import RRefTable
from holdfast.rpc.server.dedup import DedupTable, DedupVerdict
from holdfast.rpc.server.durations import SLOW_S, Durations
from holdfast.rpc.server.event_loop import EventLoop
from holdfast.rpc.server.serving import Later
from holdfast.rpc.server.worker_pool import THREADS_MAX
from holdfast.rpc.values.errors import dump_error, in_short
from holdfast.rpc.values.funcref import NAMED_BY, resolve_function
from holdfast.rpc.values.pickling import dump_plain, load
from holdfast.rpc.wire.hello import WorkerHello
from holdfast.rpc.wire.messages import Buffer, Kind, Message
from holdfast.rpc.wire.tickets import CREATION_BYTES, Number, decode_creation
from holdfast.rpc.wire.worker_info import WorkerInfo

__all__ = ["Dispatcher"]

DEAD_MAX = CANCELLED_MAX = 4096
# Each access to a member of an enumeration costs a lookup.
_CALL, _REPLY = Kind.PYTHON_CALL, Kind.REPLY
_CREATIONS = frozenset({Kind.PYTHON_REMOTE_CALL, Kind.SCRIPT_REMOTE_CALL})

_log = logging.getLogger("holdfast.rpc")


class Dispatcher:
    """Runs the requests that one agent receives."""

    def __init__(
        self,
        info: WorkerInfo,
        incarnation: str,
        rrefs: RRefTable,
        loop: EventLoop,
        clock: Clock,
        knows: Callable[[str], bool],
    ) -> None:
        self._info = info
        self._incarnation = incarnation
        self._rrefs = rrefs
        self._loop = loop
        self._clock = clock
        self._knows = knows
        # Guards what follows.
        self._lock = threading.Lock()
        self._dedup = DedupTable()
        self._durations = Durations()  # needs no lock: each step is one instruction
        self._tasks: dict[tuple[str, int], Future[Any]] = {}
        self._dead: dict[str, None] = {}  # the newest ones
        self._cancelled: dict[tuple[str, int], None] = {}  # the newest calls that had no task then
        self._handlers: dict[Kind, Callable[[WorkerHello, Message], Any]] = {}
        # A SCRIPT kind does the same as its PYTHON kind, for users that tell the two apart.
        for kind in _CREATIONS:
            self._handlers[kind] = self._run_remote
        self.add_handler(Kind.SCRIPT_CALL, lambda caller, request: self._run(*request))
        for kind in (Kind.PYTHON_RREF_FETCH_CALL, Kind.SCRIPT_RREF_FETCH_CALL):
            self.add_handler(kind, self._run_fetch)
        for kind in (Kind.RREF_FORK_REQUEST, Kind.RREF_CHILD_ACCEPT, Kind.RREF_USER_DELETE):
            self.add_handler(kind, self._counting(kind))
        self.add_handler(Kind.RREF_UNREAD, self._run_unread)

    def add_handler(self, kind: Kind, handler: Callable[[WorkerHello, Any], Any]) -> None:
        """Run requests of a kind by this handler; its result, or its future's, is the reply."""
        self._handlers[kind] = lambda caller, message: handler(
            caller, self._load(message, message.body)
        )

    @property
    def open_answers(self) -> int:
        """How many replies wait for a coroutine or a future."""
        return len(self._tasks)

    @property
    def kept_answers(self) -> int:
        """How many replies are kept for callers that may retry."""
        with self._lock:
            return self._dedup.kept()

    def check_hello(self, hello: WorkerHello) -> None:
        """Refuse a caller that wants an earlier incarnation, or was itself declared gone."""
        if hello.target != self._incarnation:
            raise PeerLost("Connection closed by peer (another one has its name now)")
        # It may have been declared gone before we started: only the directory knows that.
        try:
            given_up = hello.incarnation in self._dead or not self._knows(hello.incarnation)
        except HoldfastError as error:  # the directory failed: with no reply, the caller retries
            raise ConnectionError(f"{hello.name} is not known, and cannot be: {error}") from None
        if given_up:
            raise PeerLost("Connection closed by peer (the caller has been given up)")

    def is_dead(self, worker: str) -> bool:
        """Say whether this incarnation of a worker was declared gone recently."""
        return worker in self._dead

    def died(self, worker: str) -> None:
        """Forget a caller that is gone. If it still runs, its requests are refused."""
        with self._lock:
            _keep(self._dead, worker, DEAD_MAX)
            self._dedup.gone(worker)
            tasks = [task for (caller, _), task in self._tasks.items() if caller == worker]
        for task in tasks:
            self._loop.cancel(task)

    def handle(self, caller: WorkerHello, message: Message, later: Later) -> Message | None:
        """Run a request and return its reply; None if that comes later, or none is due."""
        if message.kind >= _REPLY:  # not a request
            self._note(caller, message)
            return None
        if not message.once:
            if caller.incarnation in self._dead:
                return self._failure(message, _given_up())
            return self._perform(caller, message, later)
        with self._lock:
            # With the lock: `died` removes what is known of a caller's calls.
            if caller.incarnation in self._dead:
                return self._failure(message, _given_up())
            verdict, kept = self._dedup.arrived(caller.incarnation, message.call, later)
        match verdict:
            case DedupVerdict.RUN:
                answer = self._perform(caller, message, self._answer_all(caller, message))
                if answer is not None:
                    self._answer_all(caller, message)(answer)
                return None
            case DedupVerdict.ANSWERED:
                return kept
            case DedupVerdict.WAIT:
                return None
            case DedupVerdict.FULL:
                full = Overloaded("too many, or too large, answers are not acknowledged")
                if message.kind in _CREATIONS and len(message.body) >= CREATION_BYTES:
                    self._fail(self._room(caller, message), full)
                return self._failure(message, full)
            case DedupVerdict.FORGOTTEN if message.kind in _CREATIONS:
                # The caller gave up the call, not the reference: make the value if it is missing.
                return self._perform(caller, message, later)
            case DedupVerdict.FORGOTTEN:
                return self._failure(message, UsageError("this call was answered long ago"))

    def _answer_all(self, caller: WorkerHello, message: Message) -> Later:
        """Return a function that sends a reply to every request for this call."""

        def answer(answer: Message) -> None:
            with self._lock:
                waiters = self._dedup.answered(caller.incarnation, message.call, answer)
            for waiter in waiters:
                _send(waiter, answer)

        return answer

    def _note(self, caller: WorkerHello, message: Message) -> None:
        match message.kind:
            case Kind.ACKNOWLEDGE:
                with self._lock:
                    if caller.incarnation not in self._dead:
                        self._dedup.acknowledged(caller.incarnation, message)
            case Kind.CANCEL:
                key = (caller.incarnation, message.call)
                with self._lock:
                    task = self._tasks.get(key)
                    if task is None:  # it has ended, or CANCEL has overtaken its start
                        _keep(self._cancelled, key, CANCELLED_MAX)
                if task is not None:
                    self._loop.cancel(task)
            case _:
                _log.debug("%s sent a %s, which is ignored", caller.name, message.kind.name)

    def _perform(self, caller: WorkerHello, message: Message, later: Later) -> Message | None:
        if message.budget_ms:
            serve((self._clock.monotonic() + message.budget_ms / 1000, caller.name))
        try:
            if message.kind is _CALL:
                if message.has_references:
                    called = self._rrefs.unpack(message.body, message.buffers)
                else:
                    called = load(message.body, message.buffers)
                value = self._run(*called)
            else:
                handler = self._handlers.get(message.kind)
                if handler is None:
                    raise UsageError(f"{message.kind.name}: this worker does not serve it")
                value = handler(caller, message)
            if isinstance(value, Future):
                self._when_done(caller, message, value, later)
                return None
            return self._answer(caller, message, value)
        except BaseException as error:
            return self._failure(message, error)
        finally:
            serve(NO_DEADLINE)

    def _load(self, message: Message, body: Buffer) -> Any:
        """Load the value of a request, with its references if it has any."""
        if message.has_references:
            return self._rrefs.unpack(body, message.buffers)
        return load(body, message.buffers)

    # The kinds of requests.

    def _run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function; return a future if its result comes later."""
        name = function if type(function) is str else ""
        if name:
            function = resolve_function(name)
            position = getattr(function, NAMED_BY, None)
            if position is not None:
                name = args[position]
        if name in self._durations.slow and not before_block():
            raise Overloaded(f"{name}: {THREADS_MAX} calls block at this worker, the most")
        begun = self._clock.monotonic()
        try:
            value = function(*args, **kwargs) if kwargs else function(*args)
        finally:
            took = self._clock.monotonic() - begun
            if took >= SLOW_S or name in self._durations.slow:
                self._durations.record(name, took)
        if not hasattr(value, "__await__"):  # nearly all values; cheaper than what follows
            return value
        if isinstance(value, Coroutine):
            return self._loop.run(value)
        return expected(function, value)

    def _room(self, caller: WorkerHello, message: Message) -> Future[Any] | None:
        """Make the future of a requested value; None if it was requested before."""
        reference, fork = decode_creation(message.body)
        life = caller.incarnation
        return self._rrefs.create(Number(life, reference), Number(life, fork), life)

    def _fail(self, room: Future[Any] | None, error: BaseException) -> None:
        """Fail the future of a value that will not be made."""
        if room is not None:
            why = in_short(error)
            room.set_exception(
                ReferenceFailed(f"RRef creation via rpc.remote() failed at {self._info}: {why}")
            )

    def _run_remote(self, caller: WorkerHello, message: Message) -> Any:
        room = self._room(caller, message)
        try:
            rest = memoryview(message.body)[CREATION_BYTES:]
            request = self._load(message, rest)
        except BaseException as error:
            self._fail(room, error)
            raise  # the caller must know: its references may not have been taken
        if room is None:
            return None  # a retry; its references are taken now, if they were not before
        try:
            value = self._run(*request)
        except BaseException as error:
            room.set_exception(error)
            del room  # the error keeps this frame, and would keep itself
            return None
        if not isinstance(value, Future):
            room.set_result(value)
            return None
        value.add_done_callback(lambda done: _copy(done, room))
        return value.then(lambda done: None)

    def _run_fetch(self, caller: WorkerHello, request: Any) -> Any:
        return self._rrefs.value(Number(*request))

    def _run_unread(self, caller: WorkerHello, request: Any) -> Any:
        return self._rrefs.unread_by(caller.incarnation, request)

    def _counting(self, kind: Kind) -> Callable[[WorkerHello, Any], Any]:
        def run(caller: WorkerHello, request: Any) -> bool:
            user, handle = caller.incarnation, self._rrefs.handle
            return all(handle(kind, Number(*one), Number(*fork), user) for one, fork in request)

        return run

    # Replies.

    def _when_done(
        self, caller: WorkerHello, message: Message, value: Future[Any], later: Later
    ) -> None:
        key = (caller.incarnation, message.call)
        with self._lock:
            self._tasks[key] = value
            unwanted = key in self._cancelled or caller.incarnation in self._dead

        def done(future: Future[Any]) -> None:
            with self._lock:
                self._tasks.pop(key, None)
            failed = future.exception()  # not raised: a kept error would gather our frames
            try:
                if failed is None:
                    answer = self._answer(caller, message, future.value())
                else:
                    answer = self._failure(message, failed)
            except BaseException as error:
                answer = self._failure(message, error)
            _send(later, answer)

        value.add_done_callback(done)
        if unwanted:
            self._loop.cancel(value)

    def _answer(self, caller: WorkerHello, message: Message, value: Any) -> Message:
        body = dump_plain(value)
        if body is not None:
            return Message(_REPLY, message.call, body)
        body, buffers, given = self._rrefs.pack(caller.incarnation, value, True)
        if given:
            self._rrefs.answered(caller.incarnation, message.call, given)
        return Message(_REPLY, message.call, body, buffers, given=given)

    def _failure(self, message: Message, error: BaseException) -> Message:
        body, buffers = dump_error(error, str(self._info))
        return Message(Kind.FAILURE, message.call, body, buffers)


def _given_up() -> PeerLost:
    return PeerLost("Connection closed by peer (it was given up)")


def _send(later: Later, answer: Message) -> None:
    try:
        later(answer)
    except OSError as error:
        _log.debug("an answer came too late: %s", error)


def _keep(latest: dict[Any, None], new: object, most: int) -> None:
    """Add an entry; forget the oldest one if there are too many."""
    latest[new] = None
    while len(latest) > most:
        del latest[next(iter(latest))]


def _copy(done: Future[Any], room: Future[Any]) -> None:
    error = done.exception()
    if error is None:
        room.set_result(done.value())
    else:
        room.set_exception(error)
