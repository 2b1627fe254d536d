"""What can happen, as data: one frozen class for each kind of event, in a closed union.

An event repeats the `cause` of the chain that it belongs to, so "why did this happen?" is a
lookup. `str(event)` is the sentence for a person, `to_dict` the form for a machine.

A field that is declared with `repr=False` is a secret: it appears in neither. Text that a
stranger chose (what a peer claims, how it broke the protocol) is shown with escapes, so that it
cannot forge lines of a log.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from typing import ClassVar, TypeAlias

from holdfast.errors import Step
from holdfast.ids import CauseId, LeaseId

__all__ = [
    "AnyEvent",
    "ConnectionClosed",
    "ConnectionOpened",
    "ConnectionRefused",
    "Event",
    "LeaseExpired",
    "Level",
    "ServerStarted",
    "ServerStopped",
    "printable",
]

_TEXT_MAX = 300


class Level(StrEnum):
    """How much an event matters to the person who runs the job."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def printable(text: str) -> str:
    """Return text with everything that is not plain and printable escaped, and cut if long."""
    cut = text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened: at `at` seconds of this process's monotonic clock."""

    level: ClassVar[Level] = Level.INFO
    provoked: ClassVar[bool] = False
    """Whether strangers can make it happen as often as they like; sinks limit its rate then."""

    cause: CauseId
    at: float

    def to_dict(self) -> dict[str, object]:
        """Return the event as a JSON object: `event` names its kind, then its fields."""
        plain: dict[str, object] = {"event": type(self).__name__}
        for field in fields(self):
            if field.repr:
                value = getattr(self, field.name)
                plain[field.name] = value.value if isinstance(value, Enum) else value
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStarted(Event):
    """A server accepts connections."""

    endpoint: str

    def __str__(self) -> str:
        return f"serving {self.endpoint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStopped(Event):
    """A server has closed its doors and every connection."""

    endpoint: str
    reason: str

    def __str__(self) -> str:
        return f"stopped serving {self.endpoint}: {printable(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOpened(Event):
    """A peer has shown that it may come in."""

    level: ClassVar[Level] = Level.DEBUG

    peer: str

    def __str__(self) -> str:
        return f"connection from {printable(self.peer)} opened"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosed(Event):
    """A connection that had been let in is over."""

    level: ClassVar[Level] = Level.DEBUG

    peer: str
    reason: str

    def __str__(self) -> str:
        return f"connection from {printable(self.peer)} closed: {printable(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRefused(Event):
    """A peer was turned away before it was let in; `step` says how far it came."""

    level: ClassVar[Level] = Level.WARNING
    provoked: ClassVar[bool] = True

    peer: str
    step: Step
    reason: str

    def __str__(self) -> str:
        return (
            f"connection from {printable(self.peer)} refused at {self.step}: "
            f"{printable(self.reason)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseExpired(Event):
    """A lease was not kept alive in time, and its keys are gone."""

    lease: LeaseId
    keys: int

    def __str__(self) -> str:
        keys = "1 key" if self.keys == 1 else f"{self.keys} keys"
        return f"lease {self.lease} expired with {keys}"


AnyEvent: TypeAlias = (
    ServerStarted
    | ServerStopped
    | ConnectionOpened
    | ConnectionClosed
    | ConnectionRefused
    | LeaseExpired
)
