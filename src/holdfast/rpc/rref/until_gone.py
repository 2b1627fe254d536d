"""The retry policy of messages about references: until the receiver is gone."""

from __future__ import annotations

from typing import Protocol

from holdfast.rpc.wire.messages import Kind

__all__ = ["MessageDelays", "UntilGone"]

CONTROL_TRY_S = 10.0


class MessageDelays(Protocol):
    """Says when to retry: the table of an agent (`table.py`)."""

    def delay(self, kind: Kind, worker: str, tried: int) -> float | None:
        """Return the delay before the next retry of a message; None if its receiver is gone."""
        ...


class UntilGone:
    """Retry policy of protocol messages: retry until the receiver is gone."""

    try_s = CONTROL_TRY_S

    def __init__(self, rrefs: MessageDelays, kind: Kind, to: str) -> None:
        self._rrefs = rrefs
        self._kind = kind
        self._to = to

    def delay(self, tried: int) -> float | None:
        return self._rrefs.delay(self._kind, self._to, tried)

    def exhausted(self) -> str:
        return "Its receiver is gone."
