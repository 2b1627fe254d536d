"""The last events of an agent, with numbers, for commands that ask later or wait for more.

It keeps EVENTS_MAX events at most, and of each text TEXT_MAX characters: its size does not grow
with the life of the job.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.observe.events import Event

__all__ = ["EVENTS_MAX", "TEXT_MAX", "Journal"]

EVENTS_MAX = 1000
TEXT_MAX = 2000


class Journal:
    """A sink that keeps the last events as JSON objects. For any thread.

    Each has a `number`, from 1 and without gaps, a `time` in seconds since 1970, and a `text` for
    people.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._count = 0
        self._closed = False

    def emit(self, event: Event) -> None:
        fields = {name: _clip(value) for name, value in event.to_dict().items()}
        fields["text"] = _clip(str(event))
        with self._changed:
            self._count += 1
            self._events.append({"number": self._count, "time": self._clock.wall(), **fields})
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def after(self, number: int, wait_s: float = 0.0) -> tuple[list[dict[str, Any]], bool]:
        """Return the events after this number, and whether there will be no more.

        Waits for the next one if there is none yet, so many seconds at most.
        """
        deadline = Deadline.after(wait_s)
        with self._changed:
            while self._count <= number and not self._closed and not deadline.passed():
                self._changed.wait(deadline.remaining())
            return [one for one in self._events if one["number"] > number], self._closed


def _clip(value: object) -> object:
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return value[: TEXT_MAX - 1] + "…"
    return value
