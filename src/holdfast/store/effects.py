"""What the machine of a store server wants done, and the numbers that it shows."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

__all__ = ["Effect", "Hangup", "SendFrame", "ServiceStatus"]


class SendFrame(NamedTuple):
    """Send a frame to a connection."""

    connection: int
    payload: bytes


class Hangup(NamedTuple):
    """Close a connection."""

    connection: int
    reason: str


Effect: TypeAlias = SendFrame | Hangup


class ServiceStatus(NamedTuple):
    """A snapshot for people and metrics."""

    keys: int
    revision: int
    sessions: int
    connections: int
    waits: int
    watches: int
    calls: int
