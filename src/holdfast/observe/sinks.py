"""Where events go. A sink takes one event after another and never raises into its caller.

    LogSink         the logger "holdfast", one line for each event, as text or as JSON
    FileSink        a file of JSON lines
    MemorySink      a list, for tests
    FanOut          several sinks, each shielded from the failures of the others

Events that any peer can provoke (`Event.provoked`) are written at most once a second for each
kind; the next line says how many were left out. So refusing a flood of connections fills neither
a log nor a disk.

Sinks may be called from several threads.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, TextIO

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.observe.events import Event, Level

__all__ = ["PROVOKED_INTERVAL_S", "FanOut", "FileSink", "LogSink", "MemorySink", "Sink"]

PROVOKED_INTERVAL_S = 1.0

_LEVELS = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.ERROR: logging.ERROR,
}

_log = logging.getLogger("holdfast.observe")

# A program that does not set up logging hears nothing of us; one that does hears everything.
logging.getLogger("holdfast").addHandler(logging.NullHandler())


class Sink(Protocol):
    """Takes events."""

    def emit(self, event: Event) -> None:
        """Take one event."""
        ...

    def close(self) -> None:
        """Write out what is left and close. Idempotent."""
        ...


class MemorySink:
    """Keeps events in a list."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass


class _Limit:
    """Decides which provoked events are written. Not thread-safe: its sink holds a lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_at: dict[type[Event], float] = {}
        self.left_out: dict[type[Event], int] = {}

    def admit(self, event: Event) -> int | None:
        """Return how many of its kind were left out since the last one, or None: leave it out."""
        if not event.provoked:
            return 0
        now, kind = self._clock.monotonic(), type(event)
        if now < self._next_at.get(kind, now):
            self.left_out[kind] = self.left_out.get(kind, 0) + 1
            return None
        self._next_at[kind] = now + PROVOKED_INTERVAL_S
        return self.left_out.pop(kind, 0)


class LogSink:
    """Writes events to a logger, `logging.getLogger("holdfast")` if none is given."""

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        as_json: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._logger = logger or logging.getLogger("holdfast")
        self._as_json = as_json
        self._clock = clock
        # Guards the limit; not held while logging, which may block.
        self._lock = threading.Lock()
        self._limit = _Limit(clock)

    def emit(self, event: Event) -> None:
        level = _LEVELS[event.level]
        if not self._logger.isEnabledFor(level):
            return
        with self._lock:
            left_out = self._limit.admit(event)
        if left_out is not None:
            self._logger.log(level, "%s", self._line(event, left_out))

    def close(self) -> None:
        """Say what was left out since the last line of each kind."""
        with self._lock:
            left_out, self._limit.left_out = self._limit.left_out, {}
        for kind, count in left_out.items():
            self._logger.log(_LEVELS[kind.level], "%d more %s left out", count, kind.__name__)

    def _line(self, event: Event, left_out: int) -> str:
        if self._as_json:
            return _json(event, self._clock, left_out)
        return f"{event} ({left_out} more like it left out)" if left_out else str(event)


class FileSink:
    """Appends events to a file as JSON lines.

    The file is made at the first event, readable by this user only; a link in its place is not
    followed. Every line is written at once, so a crash loses none that was emitted.
    """

    def __init__(self, path: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = path
        self._clock = clock
        # Guards everything below, and keeps lines whole.
        self._lock = threading.Lock()
        self._limit = _Limit(clock)
        self._file: TextIO | None = None
        self._closed = False

    def emit(self, event: Event) -> None:
        with self._lock:
            if self._closed:
                return
            left_out = self._limit.admit(event)
            if left_out is None:
                return
            if self._file is None:
                self._file = _open_private(self._path)
            self._file.write(_json(event, self._clock, left_out) + "\n")
            self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()
                self._file = None


class FanOut:
    """Gives each event to several sinks. One that fails is reported once and left out then."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = tuple(sinks)
        self._failed: set[Sink] = set()

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            if sink in self._failed:
                continue
            try:
                sink.emit(event)
            except Exception:
                # Observing must never stop what is observed.
                self._failed.add(sink)
                _log.exception("%s failed and gets no more events", type(sink).__name__)

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except Exception:
                _log.exception("%s failed while closing", type(sink).__name__)


def _json(event: Event, clock: Clock, left_out: int) -> str:
    return json.dumps({"time": clock.wall()} | event.to_dict() | {"left_out": left_out})


def _open_private(path: Path) -> TextIO:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    return os.fdopen(descriptor, "a", encoding="utf-8")
