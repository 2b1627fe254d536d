"""Futures of torch for calls of ours.

The thread that waits for a call's future drives the call's connection: no other thread must be
woken. What is made of such a future (`then`, `collect_all`) is torch's own, and the thread that
reads the connection completes it.

The garbage collector does not see what torch's part of a future keeps. An error that is kept there
must not have a traceback that leads, by the frames of its callers, back to the future.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError
from holdfast.rpc.client.future import Future

__all__ = ["CallFuture", "OurFuture", "as_torch_error", "collect_all", "follow"]

_FOREVER = Deadline.after(None)


class OurFuture(torch.futures.Future):  # type: ignore[misc]
    """A future of torch that we complete. Its error is a value to torch (see `collect_all`).

    Each caller that asks for it gets a copy of the error: the kept one never has a traceback.
    """

    def set_exception(self, result: BaseException) -> None:
        self._set_unwrap_func(_raise_copy)
        self.set_result(_copied(result))


def _raise_copy(kept: BaseException) -> None:
    raise _copied(kept)


def _copied(error: BaseException) -> BaseException:
    """Return the same error without its traceback."""
    try:
        return copy.copy(error)
    except Exception:  # whatever its own code does
        return error.with_traceback(None)


class CallFuture(OurFuture):
    """The future of a call: what `read` makes of the answer.

    The thread that reads the answer completes it. If anything follows it, which may block, `later`
    does: on no thread that reads connections.
    """

    def __init__(
        self,
        call: Future[Any],
        later: Callable[[Callable[[], object]], object],
        read: Callable[[Any], Any],
    ) -> None:
        super().__init__()
        self._call: Future[Any] | None = call
        self._later = later
        self._read = read
        # Held while it is completed with nothing to follow: what comes then, follows at once.
        self._lock = threading.Lock()
        self._is_followed = False
        call.add_done_callback(self._heard)

    def wait(self) -> Any:
        call = self._call
        if call is not None and not call.done():
            call.wait_until(_FOREVER)
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        self._follow()
        return super().then(callback)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._follow()
        super().add_done_callback(callback)

    def _follow(self) -> None:
        with self._lock:
            self._is_followed = True

    def _heard(self, call: Future[Any]) -> None:
        self._call = None
        with self._lock:
            if not self._is_followed:
                self._complete(call)
                return
        self._later(lambda: self._complete(call))

    def _complete(self, call: Future[Any]) -> None:
        try:
            value = self._read(call.value())
        except BaseException as error:
            self.set_exception(as_torch_error(error))
            error.__traceback__ = None  # the call may keep it, and it would keep the call
        else:
            self.set_result(value)


_collect_all = torch._C._collect_all


def collect_all(futures: list[Any]) -> Any:
    """Do what `torch._C._collect_all` does: return the future of all these, or of the first error.

    torch would take an error of ours for a value, and wait for the others. So it gets futures that
    follow ours, and fail; the error itself, which they do not keep, is found where it was.
    """
    if not any(isinstance(future, OurFuture) for future in futures):
        return _collect_all(futures)
    given = [
        future.then(_value_of) if isinstance(future, OurFuture) else future for future in futures
    ]
    together = OurFuture()

    def heard(done: Any) -> None:
        error = _first_error([done])
        if error is None:
            together.set_result(futures)
        else:
            together.set_exception(_first_error(futures) or error)

    _collect_all(given).add_done_callback(heard)
    return together


def _value_of(done: Any) -> Any:
    return done.value()


def _first_error(futures: list[Any]) -> Exception | None:
    for future in futures:
        if future.done():
            try:
                future.value()
            except Exception as error:
                _forget_us(error)
                return error
    return None


def _forget_us(error: BaseException) -> None:
    """Let an error that a future of torch keeps forget that it was raised to be seen here."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_globals.get("__name__") in (__name__, "torch.futures"):
        trace = trace.tb_next
    error.__traceback__ = trace


def as_torch_error(error: BaseException) -> Exception:
    """Return what torch's users expect to be raised: a RuntimeError, if it is no plain error."""
    if isinstance(error, RuntimeError) or type(error) in (ValueError, TypeError):
        return error  # type: ignore[return-value]
    text = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
    told = RuntimeError(text)
    for note in getattr(error, "__notes__", ()):
        told.add_note(note)
    return told


def follow(theirs: Any, read: Callable[[Any], Any]) -> Future[Any]:
    """Return a future of ours that completes when one of torch's does."""
    ours: Future[Any] = Future()

    def heard(done: Any) -> None:
        try:
            value = read(done.value())
        except BaseException as error:
            _forget_us(error)
            ours.set_exception(as_torch_error(error))
        else:
            ours.set_result(value)

    theirs.add_done_callback(heard)
    return ours
