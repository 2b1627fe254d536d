"""The last steps of a machine: what came in, what it decided, and why.

A shell steps its machine through a recorder. The recorder keeps each step as (now, event, effects,
reason) in a bounded ring, together with the state from which the first of them can be run again:
`observe/replay.py` does that, away from the cluster that failed.

The ring has two halves. Each begins with a copy of the machine's state. When the newer half is
full, the older one goes, and the state at which the newer one began is where the recording begins.
Nothing is encoded before a recording is asked for; what is kept are references to values that no
code changes, and copies of the containers that the machine does change.

Some inputs come again and again and seldom matter: time passes, the rendezvous is looked at. For
these alone the state is compared with that before, since copying it costs more than most steps.

Guarantees
    OB-1  A recorder keeps at most `steps_max` steps and about `bytes_max` bytes, the newest ones,
          and counts the steps that it dropped. Half of `steps_max` are there, if they are not too
          large; a step that alone is more than a quarter of `bytes_max` is dropped with all before.
    OB-4  A step by a quiet input that wanted nothing and changed nothing is not kept: machines that
          idle record nothing.
    OB-5  Whatever was dropped, the state of a recording and its steps give the machine's state of
          now: the state is the one before the first step that is kept.
    OB-6  A step that raised is kept with what it raised, and the error goes on to the caller.

A recorder belongs to the thread that steps its machine; `recording` may be called by any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from holdfast.errors import UsageError
from holdfast.records import dataclass

__all__ = [
    "BYTES_MAX",
    "STEPS_MAX",
    "MachineKind",
    "Part",
    "Raised",
    "Record",
    "Recorder",
    "Recording",
    "Steppable",
    "freeze",
    "run_step",
    "weigh",
]

STEPS_MAX = 256
BYTES_MAX = 2 * 1024 * 1024

_OBJECT_BYTES = 64
"""What an object counts for, beside the texts and bytes in it."""
_NUMBERS = frozenset({int, float, bool, type(None)})

I = TypeVar("I")  # noqa: E741  # a machine's inputs
E = TypeVar("E")


class Steppable(Protocol[E]):
    """What the machines have in common."""

    @property
    def reason(self) -> str:
        """Why the machine does what it does: one sentence for a person."""
        ...

    def take_effects(self) -> list[E]:
        """Return what to do, in order, and forget it."""
        ...


@dataclass(frozen=True, slots=True)
class MachineKind(Generic[I]):
    """One kind of machine, to a recorder.

    `give` hands an input to the machine. `parts` are the classes of the machine and of the objects
    in its state that change. `quiet` are the inputs that often change nothing. `overtaken` are
    those of which only the last of several counts, if none makes the machine want something.
    """

    name: str
    give: Callable[[Any, I, float], None]
    parts: tuple[type, ...]
    quiet: tuple[type, ...]
    overtaken: tuple[type, ...] = ()


@dataclass(frozen=True, slots=True)
class Raised:
    """In the place of an effect: the machine raised this, which is a bug."""

    error: str

    @classmethod
    def by(cls, error: Exception) -> Raised:
        """Say what was raised."""
        return cls(f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Record:
    """One step of a machine: at `now` came `event`, so `effects`, because of `reason`."""

    now: float
    event: object
    effects: tuple[object, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Part:
    """A copy of an object that changes: its class, and its attributes by name."""

    kind: type
    attributes: dict[str, object]


@dataclass(frozen=True, slots=True)
class Recording:
    """The last steps of a machine of the kind `machine`, and its state before them."""

    machine: str
    start: Part
    steps: tuple[Record, ...]
    dropped: int


class _Half:
    """Some steps, and the machine's state before them."""

    def __init__(self, start: Part) -> None:
        self.start = start
        self.steps: list[Record] = []
        self.weight = 0


class Recorder(Generic[I, E]):
    """Steps a machine, and keeps its last steps."""

    def __init__(
        self,
        kind: MachineKind[I],
        machine: Steppable[E],
        *,
        steps_max: int = STEPS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        if steps_max < 2:
            raise UsageError(f"steps_max {steps_max!r}: a recorder holds at least 2 steps")
        self._kind = kind
        self._machine = machine
        self._parts = frozenset({dict, list, set, *kind.parts})
        self._steps_max = steps_max // 2
        self._bytes_max = bytes_max // 4
        # A copy of the machine's state; None if it has changed since.
        self._state: Part | None = None
        # In one tuple, so that another thread sees two halves that belong together.
        self._halves = (_Half(self._now_state()), _Half(self._now_state()))
        self._dropped = 0

    def step(self, event: I, now: float) -> tuple[E, ...]:
        """Give the machine an input, keep the step, and return what the machine wants.

        Raises what the machine raises (OB-6).
        """
        before = self._now_state() if isinstance(event, self._kind.quiet) else None
        self._state = None
        effects, error = run_step(self._kind, self._machine, event, now)
        if effects or before is None or self._now_state() != before:  # OB-4
            self._keep(Record(now, event, effects, self._machine.reason))
        if error is not None:
            raise error
        return effects

    def recording(self) -> Recording:
        """Return what is kept. From any thread."""
        older, newer = self._halves
        steps = (*older.steps, *newer.steps)
        return Recording(self._kind.name, older.start, steps, self._dropped)

    def _now_state(self) -> Part:
        if self._state is None:
            frozen = freeze(self._machine, self._parts)
            if not isinstance(frozen, Part):
                raise UsageError(f"{type(self._machine).__name__}: must be one of its kind's parts")
            self._state = frozen
        return self._state

    def _keep(self, record: Record) -> None:
        older, newer = self._halves
        weight = weigh(record)
        if weight > self._bytes_max:
            self._dropped += len(older.steps) + len(newer.steps) + 1
            self._halves = (_Half(self._now_state()), _Half(self._now_state()))
            return
        if newer.steps and self._is_overtaken(newer.steps[-1], record):
            newer.steps[-1] = record
            return
        newer.steps.append(record)
        newer.weight += weight
        if len(newer.steps) >= self._steps_max or newer.weight > self._bytes_max:
            self._dropped += len(older.steps)
            self._halves = (newer, _Half(self._now_state()))

    def _is_overtaken(self, last: Record, record: Record) -> bool:
        kind = type(record.event)
        quiet = not record.effects and not last.effects
        return quiet and kind in self._kind.overtaken and type(last.event) is kind


def run_step(
    kind: MachineKind[I], machine: Steppable[Any], event: I, now: float
) -> tuple[tuple[Any, ...], Exception | None]:
    """Give a machine an input; return what it wants, and the error if it raised one.

    What it raised is the last of what it wants.
    """
    try:
        kind.give(machine, event, now)
    except Exception as error:
        return (*machine.take_effects(), Raised.by(error)), error
    return tuple(machine.take_effects()), None


def freeze(value: Any, changing: frozenset[type]) -> object:
    """Return a copy that no code changes, of which equals are equal.

    `changing` are the classes of what is copied: dict, list, set, and those whose objects become a
    `Part`. Everything else is taken for a value that does not change.
    """
    kind = type(value)
    if kind not in changing:
        return value
    if kind is set:
        return set(value)
    if kind is list:
        return [freeze(item, changing) if type(item) in changing else item for item in value]
    items = value.items() if kind is dict else vars(value).items()
    copied = {
        key: freeze(item, changing) if type(item) in changing else item for key, item in items
    }
    return copied if kind is dict else Part(kind, copied)


def weigh(value: Any) -> int:
    """Return about how many bytes a value keeps in memory."""
    kind = type(value)
    if kind in _NUMBERS:
        return _OBJECT_BYTES
    if kind is str or kind is bytes:
        return _OBJECT_BYTES + len(value)
    if isinstance(value, (tuple, list, set, frozenset)):
        return _OBJECT_BYTES + sum(map(weigh, value))
    if isinstance(value, dict):
        return _OBJECT_BYTES + sum(map(weigh, value)) + sum(map(weigh, value.values()))
    if isinstance(value, BaseException):
        return _OBJECT_BYTES + weigh(value.args)
    names = getattr(kind, "__slots__", ())
    return _OBJECT_BYTES + sum([weigh(getattr(value, name)) for name in names])
