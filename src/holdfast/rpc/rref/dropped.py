"""References that were dropped, gathered: one step handles all of them, one message each owner.

Programs make and drop references by the thousand. To wake the scheduler's thread for each of them,
and to send a message of its own for each, costs several times as much as the call that made it. So
what was dropped waits for GATHER_S.

Guarantees
    DR-1  Every reference that was dropped is reported once, about GATHER_S later, and so is every
          deletion; deletions for one owner are reported together, at most DELETIONS_MAX at a time.
    DR-2  `drop` is safe within the garbage collector, at any line of this file: it takes no lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.rref.protocol import ControlMessage
from holdfast.rpc.wire.tickets import Number

__all__ = ["DELETIONS_MAX", "GATHER_S", "Dropped", "DroppedReferences"]

T = TypeVar("T")

GATHER_S = 0.002
DELETIONS_MAX = 1024

Dropped: TypeAlias = tuple[Number, Number | None]
"""A reference and its fork; None for the fork if its value lives here."""


class DroppedReferences:
    """Gathers dropped references and deletions; gives both to functions on the scheduler's thread.

    Handling references may bring deletions: `delete` is for these, and for those of other steps.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        handle: Callable[[list[Dropped]], None],
        send: Callable[[list[ControlMessage]], None],
    ) -> None:
        self._scheduler = scheduler
        self._handle = handle
        self._send = send
        # Any thread adds, the scheduler's thread removes: each is one instruction.
        self._dropped: deque[Dropped] = deque()
        self._deletions: deque[ControlMessage] = deque()
        self._is_due = False

    def drop(self, reference: Number, fork: Number | None) -> None:
        """Record that a reference was dropped."""
        self._dropped.append((reference, fork))
        self._report_soon()

    def delete(self, message: ControlMessage) -> None:
        """Record that an owner is to be asked to forget a fork."""
        self._deletions.append(message)
        self._report_soon()

    def _report_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._scheduler.submit(self._report, GATHER_S)

    def _report(self) -> None:
        dropped = _taken(self._dropped)
        if dropped:
            self._handle(dropped)
        self._is_due = False  # before the last look: what is added later schedules itself
        owners: dict[str, list[ControlMessage]] = {}
        for message in _taken(self._deletions):
            owners.setdefault(message.to, []).append(message)
        for several in owners.values():
            for first in range(0, len(several), DELETIONS_MAX):
                self._send(several[first : first + DELETIONS_MAX])
        if self._dropped:
            self._report_soon()


def _taken(queue: deque[T]) -> list[T]:
    return [queue.popleft() for _ in range(len(queue))]
