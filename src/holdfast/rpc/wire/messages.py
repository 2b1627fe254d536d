"""The messages of RPC: their kinds, and one message as it is sent or received.

Fault plans name messages by their kinds. The reply to a request is a REPLY or a FAILURE with the
same call number; notes have no reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

__all__ = ["NEVER", "NO_BUDGET", "RETRYABLE", "Buffer", "Kind", "Message"]

Buffer: TypeAlias = bytes | bytearray | memoryview

NEVER = float("inf")
"""The deadline of a call that has none, on the monotonic clock."""
NO_BUDGET = 0
"""The budget of a request that has no deadline."""


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
    """Calls ended without a reply: the references in these calls and their replies are dropped."""

    REPLY = 64
    """The reply to a request that succeeded: what it returned."""
    FAILURE = 65
    """The reply to a request that failed: what it raised, or why it was not run."""

    HELLO = 96
    """The first message of a connection, from the worker that opened it."""
    WELCOME = 97
    """The reply to HELLO."""
    CANCEL = 98
    """A note: the caller no longer wants the reply to this call."""
    ACKNOWLEDGE = 99
    """A note: replies to calls below this number have arrived; they need not be kept."""
    OFFER = 100
    """A note between connections: the peer is to test whether it can read this memory."""
    TAKEN = 101
    """A note between connections: the large buffers of this call were read; 0 for the offer."""

    @property
    def is_request(self) -> bool:
        """Whether it has a reply."""
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
"""The kinds that are retried automatically when they fail."""


@dataclass(slots=True)
class Message:
    """One message.

    `call` numbers the requests of one agent. `budget_ms` is how long the caller will wait, in
    milliseconds; NO_BUDGET: without limit. `once` asks the callee to keep the reply, since the
    request may be retried. `body` is the part that is read at once, `buffers` are what it refers
    to. Two fields are not sent: `given` holds the references to take back if the message does not
    arrive; `deadline_of` names the worker whose call set the deadline, "" if it is the request's
    own. `has_references` says of a message that has arrived whether it contains references: plain
    ones are read without the table that counts these.
    """

    kind: Kind
    call: int
    body: Buffer = b""
    buffers: Sequence[Buffer] = ()
    budget_ms: int = NO_BUDGET
    once: bool = False
    given: Sequence[Any] = ()
    deadline_of: str = ""
    has_references: bool = False

    def size(self) -> int:
        """Return how many bytes the body and the buffers have."""
        size = len(self.body)
        for buffer in self.buffers:
            size += memoryview(buffer).nbytes
        return size
