"""Futures: a value that will exist later, or the error that occurred instead.

The future of a call has a driver. A thread that waits for the future lets the driver read the
connection until the reply arrives, so that no thread must be woken. Another thread completes all
other futures, and waiting for them blocks.

Callbacks run on the thread that completes the future, or at once if it is complete already. If the
stack of that thread is nearly full, as in a long chain of `then`, they run on a new thread. They
run in the context (`contextvars`) of the code that added them, since the thread may be running an
unrelated call. An exception that a callback raises is logged: it belongs to no call.

A future can be cancelled, which completes it with CallCancelled. The callee of a call is notified,
and the futures from which a future was made (`then`, `collect_all`) are cancelled with it. A task
that is cancelled while it awaits a future cancels the future too, as in asyncio; `asyncio.shield`
prevents it.

Guarantees
    FU-1  A future is completed once; a second completion is refused with UsageError.
    FU-2  Every callback is called exactly once, after the completion.
    FU-3  A thread that waits for a future wakes as soon as the future is cancelled, whatever the
          callee does.
    FU-4  A complete future can be sent in a message, and arrives complete; an open one is refused
          with UsageError, since its copy would stay open for ever.
    FU-5  A callback runs in a copy of the context in which it was added.
    FU-6  A chain of futures of any length (`then`) is completed, or cancelled.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import copy_context
from functools import partial
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar, overload, runtime_checkable

from holdfast.clock import Deadline, check_timeout
from holdfast.errors import CallCancelled, TimeoutExpired, UsageError
from holdfast.forks import in_every_child
from holdfast.rpc.client.blocking import before_block, is_deep

__all__ = ["ASYNC_MARK", "Carrier", "Driver", "Future", "collect_all", "expected", "wait_all"]

ASYNC_MARK = "_holdfast_async_execution"
"""Marks a function that returns a future; the value of the future is the reply."""

T = TypeVar("T")
S = TypeVar("S")

_log = logging.getLogger("holdfast.rpc")
_CANCELLED = "the future was cancelled"
_NO_LIMIT = Deadline(None)
_is_complete = attrgetter("_complete")  # a waiting thread asks often, and this costs no frame
# One lock for all futures: it is held for a few instructions only, and saves memory per future.
# A signal handler or a finalizer may use futures on a thread that holds it: so it is reentrant, and
# the state that it guards is consistent whenever that may happen.
_lock = threading.RLock()


class Driver(Protocol):
    """Makes progress towards a future."""

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Work until `done()`, until the deadline, or until no work is left."""
        ...


@runtime_checkable
class Carrier(Driver, Protocol):
    """Carries calls."""

    def give_up(self, call: int) -> None:
        """Forget a call, and send nothing more of it: its arguments may change."""
        ...


class Future(Generic[T]):
    """A value that will exist later. Thread-safe; can be awaited too."""

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_complete",
        "_error",
        "_gates",
        "_stop",
        "_value",
        "driver",
    )

    def __init__(self, driver: Driver | None = None) -> None:
        self._complete = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future[T]], object]] | None = None
        self._gates: list[threading.Lock] | None = None  # one per waiting thread, released once
        self.driver = driver
        # A function that stops the work; or the future from which it was made, to be cancelled too.
        self._stop: Callable[[], object] | Future[Any] | None = None

    # Completing.

    def set_result(self, value: T) -> None:
        """Complete it with a value."""
        if not self.finish(value, None):
            raise UsageError("the future is complete already")

    def set_exception(self, error: BaseException) -> None:
        """Complete it with an error."""
        if not isinstance(error, BaseException):
            raise UsageError(f"error {error!r:.80}: must be an exception")
        if not self.finish(None, error):
            raise UsageError("the future is complete already")

    def cancel(self) -> bool:
        """Complete it with CallCancelled. Return False if it was complete already.

        The callee of a call is notified: it cancels a coroutine; a function that has begun runs to
        its end, and its result is dropped.
        """
        if self._complete:
            return False
        chain: list[Future[Any]] = [self]  # and the futures from which it was made: maybe many
        while isinstance(stop := chain[-1]._stop, Future):
            chain.append(stop)
        *made_of, first = chain
        first._withdraw()  # before any waiting thread or callback is notified
        cancelled = [one.finish(None, CallCancelled(_CANCELLED)) for one in made_of or [first]]
        if made_of:
            first.cancel()
        elif cancelled[0] and callable(stop):
            stop()
        return cancelled[0]

    def _withdraw(self) -> None:
        """Send nothing more of the call that it belongs to."""

    def finish(self, value: T | None, error: BaseException | None) -> bool:
        """Complete it, if it is open; return whether it was."""
        with _lock:
            if self._complete:
                return False
            self._value, self._error = value, error
            self._complete = True
            callbacks, self._callbacks = self._callbacks, None
            gates, self.driver, self._stop = self._gates, None, None
        if gates is not None:
            for gate in gates:
                gate.release()
        if callbacks is not None:
            self._run_callbacks(callbacks)
        return True

    # Querying.

    def done(self) -> bool:
        """Return whether it is complete."""
        return self._complete

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return isinstance(self._error, CallCancelled)

    def wait(self, timeout: float | None = None) -> T:
        """Wait for it; return the value or raise the error. TimeoutExpired after `timeout`."""
        if not self._complete:
            limited = timeout is not None
            self.wait_until(Deadline.after(check_timeout(timeout)) if limited else _NO_LIMIT)
            if not self._complete:
                raise TimeoutExpired(f"the future was not complete within {timeout} s")
        if self._error is None:
            return self._value  # type: ignore[return-value]
        try:
            return self.value()
        finally:
            del self  # see value()

    result = wait

    def value(self) -> T:
        """Return the value or raise the error; UsageError if it is not complete."""
        if not self._complete:
            raise UsageError("the future is not complete")
        try:
            if self._error is not None:
                raise self._error
            return self._value  # type: ignore[return-value]
        finally:
            # The error refers to this frame, and the future to the error: this cycle would keep
            # the frames of the waiting thread, and their variables, until a garbage collection.
            del self

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for it; return the error, or None if there is a value."""
        if not self._complete:
            try:
                self.wait(timeout)
            except BaseException:
                if not self._complete:
                    raise
        return self._error

    # Callbacks.

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Call this with the future when it is complete, in a copy of the current context."""
        run = copy_context().run
        self._add(lambda done: run(callback, done))

    def _add(self, callback: Callable[[Future[T]], object]) -> None:
        """Call this with the future when it is complete, in any context."""
        more = [callback]
        with _lock:
            if not self._complete:
                if self._callbacks is None:
                    self._callbacks = more
                else:
                    self._callbacks += more
                return
        self._run_callbacks(more)

    def then(self, callback: Callable[[Future[T]], S]) -> Future[S]:
        """Return a future of the callback's result; it is called when this future is complete."""
        following: Future[S] = Future(self.driver)
        following._stop = self

        def follow(done: Future[T]) -> None:
            try:
                value = callback(done)
            except BaseException as error:
                following.finish(None, error)
            else:
                following.finish(value, None)

        self.add_done_callback(follow)
        return following

    def __await__(self) -> Generator[Any, None, T]:
        if not self._complete:
            import asyncio  # takes longer to import than everything else here

            loop = asyncio.get_running_loop()
            waiting = loop.create_future()

            def wake() -> None:
                if not waiting.done():
                    waiting.set_result(None)

            self._add(lambda _: loop.call_soon_threadsafe(wake))
            try:
                yield from waiting.__await__()
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.value()

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._complete:
            raise UsageError(
                "an open future cannot be sent or copied: wait for it first, or let a function "
                "that is marked with async_execution return it"
            )
        return _completed, (self._value, self._error)

    def __repr__(self) -> str:
        state = "open" if not self._complete else "failed" if self._error else "done"
        return f"<Future {state}>"

    def _run_callbacks(self, callbacks: list[Callable[[Future[T]], object]]) -> None:
        """Call these, on a new thread if the stack of this one is nearly full."""
        if is_deep():
            aside = threading.Thread(
                target=self._call_all,
                args=(iter(callbacks),),
                name="holdfast-rpc-callbacks",
                daemon=True,
            )
            try:
                aside.start()
            except RuntimeError as error:
                _log.warning("a thread could not be started: %s", error)
            else:
                return
        self._call_all(iter(callbacks))

    def _call_all(self, callbacks: Iterator[Callable[[Future[T]], object]]) -> None:
        try:
            for callback in callbacks:
                self._call(callback)
        finally:
            for callback in callbacks:  # the rest, after an interrupt in one of them
                self._call(callback)

    def _call(self, callback: Callable[[Future[T]], object]) -> None:
        try:
            callback(self)
        except KeyboardInterrupt:
            raise
        except BaseException:  # the thread does not belong to the callback
            _log.exception("a callback of a future failed")

    def wait_until(self, deadline: Deadline) -> None:
        before_block()
        driver, last = None if is_deep() else self.driver, None
        while driver is not None and driver is not last:
            driver.drive(partial(_is_complete, self), deadline)
            if self._complete or deadline.passed():
                return
            last, driver = driver, self.driver
        # It has no driver, or the driver left it to another thread.
        gate = threading.Lock()  # not an Event, which an interrupting signal handler could not set
        gate.acquire()
        more = [gate]
        with _lock:
            if self._complete:
                return
            if self._gates is None:
                self._gates = more
            else:
                self._gates += more
        remaining = deadline.remaining()
        if not gate.acquire(timeout=-1 if remaining is None else remaining):
            with _lock:
                if not self._complete:
                    self._gates.remove(gate)


def _completed(value: T, error: BaseException | None) -> Future[T]:
    """Return a complete future, as it was before it was sent."""
    future: Future[T] = Future()
    future.finish(value, error)
    return future


def expected(function: Callable[..., Any], value: Any) -> Any:
    """Return a function's result; UsageError if it is a future and the function is not marked."""
    if isinstance(value, Future) and not getattr(function, ASYNC_MARK, False):
        raise UsageError(f"{function!r:.80} returns a future: mark it with async_execution")
    return value


@overload
def collect_all(futures: Iterable[Future[T]]) -> Future[list[Future[T]]]: ...
@overload
def collect_all(futures: Iterable[Future[Any]]) -> Future[list[Future[Any]]]: ...  # of many types
def collect_all(futures: Iterable[Future[Any]]) -> Future[list[Future[Any]]]:
    """Return a future of the list of these futures, complete when all of them are."""
    waited = list(futures)
    together: Future[list[Future[Any]]] = Future(_Drivers(waited))
    if not waited:
        together.set_result(waited)
    together._stop = lambda: [future.cancel() for future in waited]
    counted = itertools.count(1)

    def count(_: Future[Any]) -> None:
        if next(counted) == len(waited):
            together.finish(waited, None)

    for future in waited:
        future._add(count)
    return together


@overload
def wait_all(futures: Iterable[Future[T]]) -> list[T]: ...
@overload
def wait_all(futures: Iterable[Future[Any]]) -> list[Any]: ...  # of many types
def wait_all(futures: Iterable[Future[Any]]) -> list[Any]:
    """Wait for all of them and return their values; raise the first error, in list order."""
    waited = list(futures)
    for future in waited:
        future.exception()
    return [future.value() for future in waited]


class _Drivers:
    """Drives several futures, one after the other."""

    def __init__(self, futures: list[Future[Any]]) -> None:
        self._futures = futures

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        for future in self._futures:
            if done() or deadline.passed() or is_deep():  # other threads complete them, too
                return
            if not future.done():
                future.wait_until(deadline)


@in_every_child
def _after_fork() -> None:
    global _lock  # noqa: PLW0603  # all futures share it
    _lock = threading.RLock()  # another thread may have held the old one
