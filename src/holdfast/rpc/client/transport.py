"""What carries the requests of an agent to its peers. Wrappers around it make faults."""

from __future__ import annotations

from typing import Protocol

from holdfast.rpc.client.future import Driver
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.client.pipe import Reply
from holdfast.rpc.wire.messages import Message

__all__ = ["CallTransport", "Direct"]


class CallTransport(Protocol):
    """Carries requests to peers."""

    def exchange(self, peer: Peer, message: Message, at: float) -> Message:
        """Send a request and return its answer; TimeoutError at that moment."""
        ...

    def post(self, peer: Peer, message: Message, reply: Reply, at: float) -> Driver | None:
        """Send a request whose answer `reply` hears; return what a waiter can drive."""
        ...

    def close(self) -> None:
        """End what it has begun. Idempotent."""
        ...


class Direct:
    """Carries requests as they are."""

    def exchange(self, peer: Peer, message: Message, at: float) -> Message:
        return peer.exchange(message, at)

    def post(self, peer: Peer, message: Message, reply: Reply, at: float) -> Driver | None:
        return peer.post(message, reply, at)

    def close(self) -> None:
        pass
