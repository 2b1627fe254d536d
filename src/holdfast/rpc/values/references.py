"""The references within a message: the table that packs or unpacks them, and the receiver.

Pickle calls back for each reference that it meets. The thread that pickles keeps the context of the
callback in a thread-local variable. A message without references costs little more than setting it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

from holdfast.errors import UsageError
from holdfast.rpc.wire.tickets import Number, Ticket
from holdfast.rpc.wire.worker_info import WorkerInfo

__all__ = ["Packing", "ReferenceTable", "Unpacking", "here", "receiver", "sender", "start_over"]


class ReferenceTable(Protocol):
    """Gives and takes references: the table of an agent (`rref/table.py`)."""

    def give(self, reference: Number, fork: Number | None, to: str) -> Ticket | None:
        """Make the ticket that gives a reference to a worker; None if the value is gone."""
        ...

    def not_given(self, tickets: Iterable[Ticket]) -> None:
        """Take back tickets whose message was not sent."""
        ...

    def take(self, ticket: Ticket, owner: WorkerInfo, is_answer: bool) -> Any:
        """Make the reference of a ticket that has arrived in a request, or in an answer."""
        ...


Packing: TypeAlias = tuple[ReferenceTable, str, list[Ticket], bool]
"""The table, the receiving worker, the tickets given so far, and whether this is a reply."""


Unpacking: TypeAlias = tuple[ReferenceTable, bool]
"""The table, and whether this is a reply."""


class _Here(threading.local):
    packing: Packing | None = None
    unpacking: Unpacking | None = None


here = _Here()
"""What this thread packs and unpacks. Code that sets it restores it afterwards: pickling a value
may make calls of its own."""


def sender(what: Any) -> Packing:
    """Return the packing of this message; UsageError outside of a call."""
    packing = here.packing
    if packing is None:
        raise UsageError(f"{what!r:.80}: can only be pickled as part of a call")
    return packing


def receiver() -> Unpacking:
    """Return the unpacking of this message; UsageError outside of a call."""
    unpacking = here.unpacking
    if unpacking is None:
        raise UsageError("an RRef can only be read as part of a call")
    return unpacking


def start_over() -> None:
    """Take back the tickets of the current message, which this thread packs anew."""
    if here.packing is not None:
        rrefs, _, tickets, _ = here.packing
        rrefs.not_given(tickets)
        tickets.clear()
