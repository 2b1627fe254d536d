"""References within messages: who packs them for whom, and who unpacks them.

Pickling calls back for each reference that it meets. What it needs to know then (by whom, and to
which worker) is kept for the thread that pickles.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.rpc.holdings import Packing, Unpacking

__all__ = ["here", "receiver", "sender", "start_over"]

here = threading.local()
"""`packing` and `unpacking` of this thread, where there is one."""


def sender(what: Any) -> Packing:
    """Return who packs; UsageError outside of a call."""
    packing: Packing | None = getattr(here, "packing", None)
    if packing is None:
        raise UsageError(f"{what!r:.80}: can only be pickled as part of a call")
    return packing


def receiver() -> Unpacking:
    """Return who unpacks; UsageError outside of a call."""
    unpacking: Unpacking | None = getattr(here, "unpacking", None)
    if unpacking is None:
        raise UsageError("an RRef can only be read as part of a call")
    return unpacking


def start_over() -> None:
    """Take back what this thread has packed into its message so far: it is packed anew."""
    packing: Packing | None = getattr(here, "packing", None)
    if packing is not None:
        packing.undo()
