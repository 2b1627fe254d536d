"""The seam at which messages can be changed: between the table of calls and the connection.

Every call is in the table, with its deadline, before its message comes here, and a reply comes here
before its call is completed. So a transport that drops a message keeps nothing: the call ends at
its deadline, or when its connection breaks. Fault injection is such a transport.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.rpc.client.contact import Contact
from holdfast.rpc.wire.messages import Message

__all__ = ["Link", "MessageTransport"]


class Link(Protocol):
    """The connection to one peer, as a transport uses it."""

    @property
    def contact(self) -> Contact:
        """The peer."""
        ...

    def transmit(self, message: Message) -> None:
        """Send a message now, also of a call that is not open any more. Does not block."""
        ...

    def complete(self, call: int, answer: Message | Exception) -> None:
        """Complete an open call with its reply, or with the reason why none will come."""
        ...

    def reset(self, why: str) -> None:
        """Break the connection; calls that are under way fail."""
        ...


class MessageTransport(Protocol):
    """Carries the requests of an agent to its peers, and the replies back."""

    @property
    def repeats(self) -> bool:
        """Whether a message may arrive twice."""
        ...

    def check(self, link: Link, message: Message) -> None:
        """Raise an error if a request must fail now, before it waits for a connection."""
        ...

    def send(self, link: Link, message: Message) -> None:
        """Carry a request to the peer: `link.transmit` sends it. Does not block."""
        ...

    def receive(self, link: Link, message: Message) -> None:
        """Carry a reply that has arrived to its call: `link.complete` completes it."""
        ...

    def close(self) -> None:
        """Stop its threads and timers. Idempotent."""
        ...
