"""Futures of torch for calls of ours.

Who waits for a call's future drives the call's connection: no other thread must be woken. What is
made of such a future (`then`, `collect_all`) is torch's own, and completed by whoever reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError
from holdfast.rpc.future import Future
from holdfast.rpc.way import make_way

__all__ = ["CallFuture", "as_torch_error", "follow"]

_FOREVER = Deadline.after(None)


class CallFuture(torch.futures.Future):  # type: ignore[misc]
    """The future of a call: what `read` makes of the answer.

    `check`, if there is one, is called with the value whenever somebody asks for it, and may raise.
    """

    def __init__(
        self,
        call: Future[Any],
        read: Callable[[Any], Any],
        check: Callable[[Any], object] | None = None,
    ) -> None:
        super().__init__()
        self._call: Future[Any] | None = call
        self._read = read
        self._check = check
        self._driven = False
        call.add_done_callback(self._heard)

    def wait(self) -> Any:
        call = self._call
        if call is not None and not call.done():
            self._driven = True
            call._wait(_FOREVER)
        return super().wait()

    def _heard(self, call: Future[Any]) -> None:
        self._call = None
        if not self._driven:
            make_way()  # callbacks may block, and this thread may be the one that reads
        try:
            value = self._read(call.value())
        except BaseException as error:
            self.set_exception(as_torch_error(error))
            return
        if self._check is not None:
            self._set_unwrap_func(self._check)
        self.set_result(value)


def as_torch_error(error: BaseException) -> Exception:
    """Return what torch's users expect to be raised: a RuntimeError."""
    if isinstance(error, RuntimeError):
        return error
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
            ours.set_exception(as_torch_error(error))
        else:
            ours.set_result(value)

    theirs.add_done_callback(heard)
    return ours
