"""The messages of RPC: their kinds, and one message as it is sent or has come.

Kinds have the names that faults are planned by. A request is answered by a REPLY or a FAILURE with
the same call number; NOTE kinds are not answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

__all__ = ["NO_BUDGET", "RETRYABLE", "Buffer", "Kind", "Message"]

Buffer: TypeAlias = bytes | bytearray | memoryview

NO_BUDGET = 0
"""A budget of a request that has no deadline."""


class Kind(IntEnum):
    """What a message is. The numbers are on the wire."""

    PYTHON_CALL = 1
    PYTHON_REMOTE_CALL = 2
    PYTHON_RREF_FETCH_CALL = 3
    SCRIPT_CALL = 4
    SCRIPT_REMOTE_CALL = 5
    SCRIPT_RREF_FETCH_CALL = 6
    RREF_FORK_REQUEST = 7
    RREF_CHILD_ACCEPT = 8
    RREF_USER_DELETE = 9
    CLEANUP_AUTOGRAD_CONTEXT_REQ = 10
    RREF_UNREAD = 11
    """Calls ended without their answers: what they gave comes to nothing, and what those gave."""

    REPLY = 64
    """The answer to a request: what it returned."""
    FAILURE = 65
    """The answer to a request: what it raised, or why it was not run."""

    HELLO = 96
    """The first message of a connection, from who opened it."""
    WELCOME = 97
    """The answer to it."""
    CANCEL = 98
    """A note: the answer to this call is not wanted any more."""
    ACKNOWLEDGE = 99
    """A note: answers to calls below this number have come; they need not be kept."""
    OFFER = 100
    """A note between connections: here is memory, see whether you can read it."""
    TAKEN = 101
    """A note between connections: the large buffers of this call were read; 0 for the offer."""

    @property
    def is_request(self) -> bool:
        """Whether it is answered."""
        return self < Kind.REPLY


RETRYABLE = frozenset(
    {
        Kind.RREF_FORK_REQUEST,
        Kind.RREF_CHILD_ACCEPT,
        Kind.RREF_USER_DELETE,
        Kind.CLEANUP_AUTOGRAD_CONTEXT_REQ,
        Kind.RREF_UNREAD,
    }
)
"""The kinds that are sent again by themselves when they fail."""


@dataclass(slots=True)
class Message:
    """One message.

    `call` numbers the requests of one agent. `budget_ms` is how long the caller will wait, in
    milliseconds, NO_BUDGET for as long as it takes. `once` asks the callee to remember the answer,
    since the request may come again. `body` is the part that is read at once, `buffers` what it
    refers to. Not sent are `given`, which is what to take back if it does not arrive, and
    `deadline_of`: the worker whose call set the deadline, "" if it is the request's own.
    """

    kind: Kind
    call: int
    body: Buffer = b""
    buffers: Sequence[Buffer] = ()
    budget_ms: int = NO_BUDGET
    once: bool = False
    given: Sequence[Any] = ()
    deadline_of: str = ""

    def size(self) -> int:
        """Return how many bytes it carries."""
        size = len(self.body)
        for buffer in self.buffers:
            size += memoryview(buffer).nbytes
        return size
