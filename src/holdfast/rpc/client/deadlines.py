"""The deadline of the call that runs here: calls that are made within it inherit it.

Guarantees
    DL-1  A call that is made within a call of the same context, also of its coroutines, ends at the
          deadline of that call at the latest, unless it is made within `detached()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from holdfast.clock import check_timeout
from holdfast.errors import CallTimedOut, UsageError
from holdfast.rpc.wire.connection import NEVER

__all__ = [
    "NO_DEADLINE",
    "Served",
    "check_limit",
    "deadline_here",
    "detached",
    "serve",
    "served_here",
    "timed_out",
]

Served: TypeAlias = tuple[float, str]
"""When the call that runs here must be answered, on the monotonic clock, and whose call it is."""

NO_DEADLINE: Served = (NEVER, "")

# A context variable, since the deadline goes on in the coroutines of a call.
_served: ContextVar[Served] = ContextVar("holdfast_rpc_deadline", default=NO_DEADLINE)

served_here: Callable[[], Served] = _served.get
"""Returns what is known of the call that runs here; NO_DEADLINE outside of one."""
serve: Callable[[Served], object] = _served.set
"""Lets the context of this thread run a call with this deadline, or none any more."""


def check_limit(timeout: float) -> float | None:
    """Return the limit of a call if it is one: seconds, 0 or None for none."""
    try:
        return check_timeout(timeout)
    except UsageError:
        raise UsageError(
            f"timeout {timeout!r:.60}: must be seconds, 0 for no limit, None for the default"
        ) from None


def deadline_here() -> float:
    """Return when the call that runs here must be answered; NEVER outside of one."""
    return _served.get()[0]


def timed_out(budget_ms: int, deadline_of: str, why: str = "") -> CallTimedOut:
    """Return what to raise when a call, or a fetch, has used up its time, and whose time it was."""
    text = (
        f"RPC ran for more than set timeout ({budget_ms} ms) and will now be marked with an error"
    )
    if deadline_of:
        text = (
            f"RPC ran for more than the {budget_ms} ms that were left of the call of {deadline_of} "
            "within which it was made; rpc.detached() makes calls that do not inherit a deadline"
        )
    return CallTimedOut(f"{text}: {why}" if why else text, deadline_of=deadline_of)


@contextmanager
def detached() -> Iterator[None]:
    """Make calls that do not inherit the deadline of the call that runs here.

    For what goes on after the caller has been answered, or has given up: calls that are made in
    this block, and by coroutines and callbacks that are begun or added in it, have their own limits
    alone.
    """
    before = _served.set(NO_DEADLINE)
    try:
        yield
    finally:
        _served.reset(before)
