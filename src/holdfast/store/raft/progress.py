"""What a leader knows of each other member: how far its log agrees, and what is under way to it.

A leader probes a member, one message at a time, until it knows where both logs agree. Then it
replicates: entries follow each other without waiting for answers, up to IN_FLIGHT_MAX messages.
If the entries that the member needs were dropped, a snapshot is sent, and nothing else meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from typing import assert_never

__all__ = ["IN_FLIGHT_MAX", "FollowerProgress", "Sending", "quorum_value"]

IN_FLIGHT_MAX = 256


class Sending(Enum):
    """How entries are sent to a member."""

    PROBE = auto()
    REPLICATE = auto()
    SNAPSHOT = auto()


class FollowerProgress:
    """One member, as its leader sees it. The log agrees up to `match`; `next` is sent next."""

    __slots__ = ("_in_flight", "active", "match", "next", "probed", "sending", "snapshot")

    def __init__(self, next_index: int, *, match: int = 0, active: bool = False) -> None:
        self.match = match
        self.next = next_index
        self.sending = Sending.PROBE
        self.active = active
        """True if the member was heard of since its leader last counted."""
        self.probed = False
        """True if a probe is under way."""
        self.snapshot: int | None = None
        """The index of the snapshot that is under way."""
        self._in_flight: deque[int] = deque()

    @property
    def paused(self) -> bool:
        """Say whether nothing may be sent until the member answers."""
        match self.sending:
            case Sending.PROBE:
                return self.probed
            case Sending.REPLICATE:
                return self.full
            case Sending.SNAPSHOT:
                return True
            case _:
                assert_never(self.sending)

    @property
    def full(self) -> bool:
        """Say whether as many messages are under way as may be."""
        return len(self._in_flight) >= IN_FLIGHT_MAX

    def probe(self) -> None:
        """Send one message at a time, from behind what is known to agree."""
        self._send_by(Sending.PROBE)
        self.next = self.match + 1

    def replicate(self) -> None:
        """Send one message after the other."""
        self._send_by(Sending.REPLICATE)
        self.next = self.match + 1

    def await_snapshot(self) -> None:
        """Send nothing until a snapshot has arrived."""
        self._send_by(Sending.SNAPSHOT)

    def sent(self, last_index: int) -> None:
        """Note that entries up to this one are under way."""
        if self.sending is Sending.REPLICATE:
            self.next = last_index + 1
            self._in_flight.append(last_index)
        else:
            self.probed = True

    def accepted(self, index: int) -> bool:
        """Note that the logs agree up to `index`; say whether that is new."""
        news = index > self.match
        if news:
            self.match = index
            self.probed = False
        self.next = max(self.next, index + 1)
        return news

    def freed(self, index: int) -> None:
        """Note that what was sent up to `index` has arrived."""
        while self._in_flight and self._in_flight[0] <= index:
            self._in_flight.popleft()

    def free_one(self) -> None:
        """Let one more message be sent, since the member is alive though its answers are lost."""
        self._in_flight.popleft()

    def rejected(self, index: int, hint: int) -> bool:
        """Note that the member lacks `index`, its log ending at `hint`; False for old news.

        Where both logs agreed once, they still do: what says otherwise was overtaken.
        """
        if index <= self.match:
            return False
        if self.sending is Sending.REPLICATE:
            self.probe()
            return True
        if self.next - 1 != index:
            return False
        self.next = max(self.match + 1, min(index, hint + 1))
        self.probed = False
        return True

    def _send_by(self, sending: Sending) -> None:
        self.sending = sending
        self.probed = False
        self.snapshot = None
        self._in_flight.clear()


def quorum_value(values: Iterable[int], quorum: int) -> int:
    """Return the greatest value that so many of the values reach."""
    return sorted(values, reverse=True)[quorum - 1]
