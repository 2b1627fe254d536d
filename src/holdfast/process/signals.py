"""Signals as events: what is sent to this process arrives where events are read."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable
from signal import Signals
from types import FrameType, TracebackType
from typing import Any, Self

from holdfast.errors import UsageError

__all__ = ["HeldSignals", "SignalEvents", "hear_of_children"]

_log = logging.getLogger("holdfast.process")


def hear_of_children() -> None:
    """Let the system keep how children of ours end, for us to ask.

    It does not where SIGCHLD is ignored, and a process inherits that from its parent.
    UsageError where it is, and this is not the main thread, which alone can change it.
    """
    if signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN:
        return
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            "SIGCHLD is ignored, so the end of a worker could not be seen: in the main thread, "
            "call signal.signal(signal.SIGCHLD, signal.SIG_DFL) first"
        )
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


class SignalEvents:
    """While entered, `report(number)` is called for each of these signals that arrives.

    `report` runs between any two instructions of the main thread, so it may only do what is safe
    there: `SimpleQueue.put` is. A SIGHUP that is ignored on entry stays ignored, so that
    `nohup` keeps its meaning. Others are heard even so: a shell starts its background jobs with
    SIGINT and SIGQUIT ignored, against the keyboard; one that a person sends must still count.
    Only the main thread can handle signals: elsewhere this does nothing.
    """

    def __init__(self, signals: Iterable[Signals], report: Callable[[int], None]) -> None:
        self._signals = tuple(signals)
        self._report = report
        self._earlier: dict[Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            _log.debug("signals are not handled: this is not the main thread")
            return self
        for one in self._signals:
            earlier = signal.getsignal(one)
            if one == Signals.SIGHUP and earlier == signal.SIG_IGN:
                _log.debug("SIGHUP stays ignored, as it was")
                continue
            self._earlier[one] = earlier
            signal.signal(one, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._earlier:
            one, earlier = self._earlier.popitem()
            # None: the earlier handler was not Python's, and cannot be put back.
            signal.signal(one, signal.SIG_DFL if earlier is None else earlier)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._report(number)


class HeldSignals:
    """From `hold` until the exit these signals wait, and SIGINT; then they have their usual effect.

    For a tidy-up that a signal must not cut short. Only SIGKILL ends the process meanwhile, so what
    is done meanwhile must be bounded. Elsewhere than in the main thread this does nothing.
    """

    def __init__(self, signals: Iterable[Signals]) -> None:
        self._came: list[int] = []
        # SIGINT is the first to be held and the last to be released: it may raise at once.
        others = [one for one in signals if one != Signals.SIGINT]
        self._events = SignalEvents((Signals.SIGINT, *others), self._came.append)

    def hold(self) -> None:
        """Let them wait from now on."""
        self._events.__enter__()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._events.__exit__(kind, error, trace)
        for number in dict.fromkeys(self._came):
            signal.raise_signal(number)
