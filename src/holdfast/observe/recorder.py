"""The last steps of a machine: what came in, what it decided, and why.

A machine's shell records each step as (now, event, effects, reason) in a bounded ring. When
something goes wrong the ring is dumped into the report; `load` reads a dump back into the very
objects, so that the machine can be run again on them, away from the cluster that failed.

Guarantees
    OB-1  The ring holds the newest `capacity` steps, and counts what it dropped.
    OB-2  Loading a dump gives equal steps; sequences come back as tuples, sets as frozensets.
    OB-3  A field declared with `repr=False` is a secret: it is written, and comes back, as HIDDEN.

The ring refers to the events that it is given: one whose events carry megabytes needs a small
capacity. Not thread-safe; it belongs to the thread that steps the machine.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import cast

from holdfast.errors import UsageError
from holdfast.ids import CauseId
from holdfast.records import dataclass

__all__ = ["DUMP_VERSION", "HIDDEN", "Record", "Recorder", "from_plain", "load", "to_plain"]

DUMP_VERSION = 1
HIDDEN = "(hidden)"

_TAGS = frozenset({"$type", "$bytes", "$float", "$set", "$map"})


@dataclass(frozen=True, slots=True)
class Record:
    """One step of a machine: at `now` came `event`, so `effects`, because of `reason`."""

    now: float
    event: object
    effects: tuple[object, ...]
    reason: str

    def concerns(self, cause: CauseId) -> bool:
        """Say whether the event or one of the effects repeats this cause."""
        return any(getattr(part, "cause", None) == cause for part in (self.event, *self.effects))


class Recorder:
    """A bounded ring of steps."""

    def __init__(self, capacity: int = 1000) -> None:
        if capacity < 1:
            raise UsageError(f"capacity {capacity!r}: a recorder holds at least 1 step")
        self.dropped = 0
        self._steps: deque[Record] = deque(maxlen=capacity)

    def record(
        self, now: float, event: object, effects: Iterable[object] = (), reason: str = ""
    ) -> None:
        """Keep a step; the oldest one goes if the ring is full (OB-1)."""
        self.dropped += len(self._steps) == self._steps.maxlen
        self._steps.append(Record(now, event, tuple(effects), reason))

    def __iter__(self) -> Iterator[Record]:
        return iter(tuple(self._steps))

    def __len__(self) -> int:
        return len(self._steps)

    def story(self, cause: CauseId) -> tuple[Record, ...]:
        """Return every recorded step that belongs to this cause, oldest first."""
        return tuple(step for step in self._steps if step.concerns(cause))

    def dump(self) -> dict[str, object]:
        """Return the ring as a JSON object."""
        return {
            "version": DUMP_VERSION,
            "dropped": self.dropped,
            "steps": [
                {
                    "now": to_plain(step.now),
                    "event": to_plain(step.event),
                    "effects": to_plain(step.effects),
                    "reason": step.reason,
                }
                for step in self._steps
            ],
        }


def load(dump: object, types: Iterable[type]) -> tuple[Record, ...]:
    """Read the steps of a dump back; `types` are the classes that may appear in it (OB-2).

    UsageError if it is not a dump, is of another version, or names a class not in `types`.
    """
    if not isinstance(dump, Mapping) or dump.get("version") != DUMP_VERSION:
        raise UsageError(f"dump {dump!r:.80}: not a recorder's dump of version {DUMP_VERSION}")
    known = {kind.__name__: kind for kind in types}
    try:
        return tuple(
            Record(
                cast(float, from_plain(step["now"], known)),
                from_plain(step["event"], known),
                cast("tuple[object, ...]", from_plain(step["effects"], known)),
                step["reason"],
            )
            for step in dump["steps"]
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"dump: malformed, {type(error).__name__} {error}") from error


def to_plain(value: object) -> object:
    """Return a value as JSON's types; a class is kept as its name beside its fields.

    Takes None, bool, int, float, str, bytes, enums, dataclasses, named tuples, and sequences,
    sets and mappings of these. UsageError for anything else.
    """
    match value:
        case Enum():
            return {"$type": type(value).__name__, "name": value.name}
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"$float": str(value)}
        case bytes():
            return {"$bytes": value.hex()}
        case Mapping():
            return {"$map": [[to_plain(key), to_plain(item)] for key, item in value.items()]}
        case set() | frozenset():
            return {"$set": sorted(map(to_plain, value), key=repr)}
        case tuple() if hasattr(value, "_fields"):
            named = zip(value._fields, value, strict=True)
            return {"$type": type(value).__name__} | {key: to_plain(item) for key, item in named}
        case tuple() | list():
            return [to_plain(item) for item in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            plain: dict[str, object] = {"$type": type(value).__name__}
            for field in fields(value):
                hidden = not field.repr
                plain[field.name] = HIDDEN if hidden else to_plain(getattr(value, field.name))
            return plain
    raise UsageError(f"value {value!r:.80}: a {type(value).__name__} cannot be recorded")


def from_plain(plain: object, known: Mapping[str, type]) -> object:
    """Make the value again of which `to_plain` made this; `known` maps names to classes."""
    if isinstance(plain, list):
        return tuple(from_plain(item, known) for item in plain)
    if not isinstance(plain, dict):
        return plain
    tag = next(iter(_TAGS & plain.keys()), None)
    match tag:
        case "$float":
            return float(plain[tag])
        case "$bytes":
            return bytes.fromhex(plain[tag])
        case "$map":
            return {from_plain(k, known): from_plain(v, known) for k, v in plain[tag]}
        case "$set":
            return frozenset(from_plain(item, known) for item in plain[tag])
        case "$type":
            kind = known.get(plain[tag])
            if kind is None:
                raise UsageError(f"dump: unknown class {plain[tag]!r:.80}; give it in `types`")
            if issubclass(kind, Enum):
                return kind[plain["name"]]
            arguments = {key: from_plain(item, known) for key, item in plain.items() if key != tag}
            return kind(**arguments)
    raise UsageError(f"dump: {plain!r:.80} has none of {', '.join(sorted(_TAGS))}")
