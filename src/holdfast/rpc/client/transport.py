"""Transports, which carry the requests of an agent to its peers. Wrappers inject faults."""

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
        """Send a request and return its reply; TimeoutError at the time `at`."""
        ...

    def post(self, peer: Peer, message: Message, reply: Reply, at: float) -> Driver | None:
        """Send a request, and call `reply` with the outcome; return what a waiter can drive."""
        ...

    def close(self) -> None:
        """Stop its threads and timers. Idempotent."""
        ...


class Direct:
    """Carries requests unchanged."""

    def exchange(self, peer: Peer, message: Message, at: float) -> Message:
        return peer.exchange(message, at)

    def post(self, peer: Peer, message: Message, reply: Reply, at: float) -> Driver | None:
        return peer.post(message, reply, at)

    def close(self) -> None:
        pass
