"""The deadline of the call that runs in this context: nested calls inherit it.

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
from holdfast.errors import UsageError
from holdfast.rpc.wire.messages import NEVER

__all__ = [
    "NO_DEADLINE",
    "Served",
    "check_limit",
    "deadline_here",
    "detached",
    "serve",
    "served_here",
]

Served: TypeAlias = tuple[float, str]
"""The deadline of the call that runs here, on the monotonic clock, and the name of its caller."""

NO_DEADLINE: Served = (NEVER, "")

# A context variable, since the coroutines of a call have its deadline too.
_served: ContextVar[Served] = ContextVar("holdfast_rpc_deadline", default=NO_DEADLINE)

served_here: Callable[[], Served] = _served.get
"""Returns the deadline and caller of the call that runs here; NO_DEADLINE outside of one."""
serve: Callable[[Served], object] = _served.set
"""Sets the deadline and caller of the call that runs in this context."""


def check_limit(timeout: float) -> float | None:
    """Return the limit of a call if it is valid: seconds, 0 or None for no limit."""
    try:
        return check_timeout(timeout)
    except UsageError:
        raise UsageError(
            f"timeout {timeout!r:.60}: must be seconds, 0 for no limit, None for the default"
        ) from None


def deadline_here() -> float:
    """Return the deadline of the call that runs here; NEVER outside of one."""
    return _served.get()[0]


@contextmanager
def detached() -> Iterator[None]:
    """Make calls that do not inherit the deadline of the call that runs here.

    For work that continues after the reply was sent or the caller gave up. Calls made in this
    block, and by coroutines and callbacks that are started or added in it, have only their own
    limits.
    """
    before = _served.set(NO_DEADLINE)
    try:
        yield
    finally:
        _served.reset(before)
