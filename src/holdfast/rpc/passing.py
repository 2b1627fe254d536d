"""References within messages: who packs them for whom, and who unpacks them.

Pickling calls back for each reference that it meets. What it needs to know then (by whom, and to
which worker) is kept for the thread that pickles. A message without references pays for little
more than that.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.rpc.holdings import Holdings
    from holdfast.rpc.rref_protocol import Ticket

__all__ = ["Packing", "here", "receiver", "sender", "start_over"]

Packing: TypeAlias = "tuple[Holdings, str, list[Ticket], bool]"
"""Who packs, for which worker, what was given so far, and whether it answers him."""


class _Here(threading.local):
    packing: Packing | None = None
    unpacking: Holdings | None = None


here = _Here()
"""What this thread packs and unpacks. Who sets it puts back what was there: what is packed may make
calls of its own."""


def sender(what: Any) -> Packing:
    """Return who packs; UsageError outside of a call."""
    packing = here.packing
    if packing is None:
        raise UsageError(f"{what!r:.80}: can only be pickled as part of a call")
    return packing


def receiver() -> Holdings:
    """Return who unpacks; UsageError outside of a call."""
    unpacking = here.unpacking
    if unpacking is None:
        raise UsageError("an RRef can only be read as part of a call")
    return unpacking


def start_over() -> None:
    """Take back what this thread has packed into its message so far: it is packed anew."""
    if here.packing is not None:
        holdings, _, tickets, _ = here.packing
        holdings.not_given(tickets)
        tickets.clear()
