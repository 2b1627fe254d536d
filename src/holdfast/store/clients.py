"""What a store server keeps of each of its clients: sessions, connections, waits and watches.

Plain records; `service.py` decides what becomes of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.ids import LeaseId, SessionId
from holdfast.store.ops import Wait
from holdfast.store.pending import Pending

__all__ = ["ClientConnection", "ClientSession", "OpenWatch", "Parked"]


@dataclass(eq=False, slots=True)
class Parked:
    """A wait that waits."""

    session: ClientSession
    number: int
    op: Wait
    missing: set[str]


@dataclass(eq=False, slots=True)
class ClientSession:
    """A client, which may come back by another connection."""

    id: SessionId
    # Every write numbered below is settled at the client.
    floor: int
    # False while the client may not know yet that an older session of its was forgotten.
    resumable: bool
    connection: int = 0
    # Encoded answers to writes that the client may ask for again.
    answers: dict[int, bytes] = field(default_factory=dict)
    answers_bytes: int = 0
    parked: dict[int, Parked] = field(default_factory=dict)
    # Leases that end when the client's connection does, and how many seconds after it.
    lingers: dict[LeaseId, float] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class OpenWatch:
    """A watch of one connection."""

    connection: ClientConnection
    id: int
    key: str
    prefix: bool
    # Filled only while the connection is congested.
    pending: Pending


@dataclass(eq=False, slots=True)
class ClientConnection:
    """A connection whose peer has proved itself."""

    id: int
    session: ClientSession | None = None
    watches: dict[int, OpenWatch] = field(default_factory=dict)
    congested: bool = False
    # True once the client has said that it gives this connection up and goes on living.
    parting: bool = False
