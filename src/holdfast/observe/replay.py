"""Recordings as JSON, and run again: today's machine decides beside the recorded one.

A recording is written as

    machine    which kind of machine
    version    the version of holdfast
    code       a fingerprint of the files that decide
    dropped    how many older steps were not kept
    start      the machine's state before the first step
    steps      a list of now, event, effects, reason

and `machine` and `left_out`, the reason, where it could not be.

Guarantees
    OB-8  A replay ends at the first step whose effects or reason differ from the recorded ones, or
          that raises what the recorded one did not; it has no other cause to end early.
    OB-9  A written recording is at most WRITTEN_MAX bytes of JSON; a larger one is left out, and
          says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from holdfast.errors import UsageError
from holdfast.observe.plain import Codec
from holdfast.observe.recorder import MachineKind, Raised, Record, Recording, run_step
from holdfast.records import dataclass

__all__ = ["WRITTEN_MAX", "LoadedRecording", "Replayable", "ReplayedStep", "read", "write"]

WRITTEN_MAX = 4 * 1024 * 1024
_FIELDS = {"machine", "version", "code", "dropped", "start", "steps"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayable:
    """What it takes to write, read and tell the steps of one kind of machine.

    `inputs` are the classes of its inputs, `values` those of everything else in its steps and its
    state; `modules` name the files that decide; `tell` says an input or an effect in words.
    """

    kind: MachineKind[Any]
    inputs: tuple[type, ...]
    values: tuple[type, ...]
    functions: tuple[Callable[..., object], ...] = ()
    modules: tuple[str, ...]
    tell_input: Callable[[Any], str]
    tell_effect: Callable[[Any], str]

    @property
    def codec(self) -> Codec:
        """The codec of its steps and its state."""
        types = (*self.inputs, *self.values, Raised)
        return Codec(types, self.kind.parts, self.functions)

    def decision(self, effects: Iterable[object], reason: str) -> str:
        """Say in a line what a machine decided, and why."""
        told = [
            f"raises {effect.error}" if isinstance(effect, Raised) else self.tell_effect(effect)
            for effect in effects
        ]
        text = "; ".join(told) or "nothing"
        return f"{text} ({reason})" if reason and reason not in text else text


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """One step that was run again.

    `now` is the machine's own clock, `came` and `decided` are words, with the reason if that is
    news; `recorded` is what was decided when it was recorded if that differs, else None.
    """

    now: float
    came: str
    decided: str
    recorded: str | None


@dataclass(frozen=True, slots=True)
class LoadedRecording:
    """A recording that was read from a file; its parts are known to be readable."""

    replayable: Replayable
    version: str
    code: str
    dropped: int
    steps: tuple[Record, ...]
    start: object

    def replay(self) -> Iterator[ReplayedStep]:
        """Run the steps through a machine of today's code, up to the first that differs (OB-8)."""
        codec, kind = self.replayable.codec, self.replayable.kind
        machine = codec.decode(self.start)
        tell, told = self.replayable.decision, ""
        for step in self.steps:
            recorded = (codec.encode(step.effects), step.reason)
            try:
                effects, _ = run_step(kind, machine, step.event, step.now)
                reason = machine.reason
                same = (codec.encode(effects), reason) == recorded
                decided = tell(effects, "" if same and reason == told else reason)
            except Exception as error:  # a state that is not of today's code
                decided, same = tell((Raised.by(error),), ""), False
            came, told = self.replayable.tell_input(step.event), step.reason
            differs = None if same else tell(step.effects, step.reason)
            yield ReplayedStep(step.now, came, decided, differs)
            if not same:
                return


def write(
    recording: Recording, replayable: Replayable, *, version: str, code: str
) -> dict[str, object]:
    """Return a recording as a JSON object; one that cannot be written says why in `left_out`."""
    codec = replayable.codec
    try:
        written = {
            "machine": recording.machine,
            "version": version,
            "code": code,
            "dropped": recording.dropped,
            "start": codec.encode(recording.start),
            "steps": [
                {
                    "now": step.now,
                    "event": codec.encode(step.event),
                    "effects": codec.encode(step.effects),
                    "reason": step.reason,
                }
                for step in recording.steps
            ],
        }
    except UsageError as error:
        return {"machine": recording.machine, "left_out": str(error)}
    size = len(json.dumps(written))
    if size > WRITTEN_MAX:
        why = f"{size} bytes, at most {WRITTEN_MAX} are written"
        return {"machine": recording.machine, "left_out": why}
    return written


def read(written: object, replayables: Iterable[Replayable]) -> LoadedRecording:
    """Read a recording. UsageError says what is wrong with it."""
    if not isinstance(written, dict) or written.keys() != _FIELDS:
        wanted = ", ".join(sorted(_FIELDS))
        raise UsageError(f"{written!r:.60} is no recording: it must have {wanted}")
    known = {one.kind.name: one for one in replayables}
    name, steps = written["machine"], written["steps"]
    if not isinstance(name, str) or name not in known:
        raise UsageError(f"machine {name!r:.60} is unknown: it must be one of {', '.join(known)}")
    replayable = known[name]
    codec = replayable.codec
    try:
        if not isinstance(codec.decode(written["start"]), replayable.kind.parts[0]):
            raise UsageError("the state is of something else")
        loaded = tuple(_read_step(step, replayable, codec) for step in steps)
        told = (str(written["version"]), str(written["code"]), int(written["dropped"]))
    except UsageError as error:
        raise UsageError(f"machine {name}: {error}") from None
    except Exception as error:  # whatever the file holds in the place of what should be there
        raise UsageError(f"machine {name}: {type(error).__name__}: {error}") from None
    return LoadedRecording(replayable, *told, loaded, written["start"])


def _read_step(step: Any, replayable: Replayable, codec: Codec) -> Record:
    event = codec.decode(step["event"])
    if not isinstance(event, replayable.inputs):
        raise UsageError(f"{event!r:.60} is no input of it")
    effects, reason = tuple(codec.decode(step["effects"])), str(step["reason"])
    replayable.tell_input(event)  # which finds a field of a wrong type
    replayable.decision(effects, reason)
    return Record(float(step["now"]), event, effects, reason)
