"""The machines of a job in its report: their last steps are written, and read again.

Two machines decide on each node: the agent's, over its workers, and the rendezvous's, over rounds.
A recording says which code decided, as a fingerprint of the files that hold the decisions: the
version of holdfast is the same in every commit between two releases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from holdfast import __version__
from holdfast.agent.story import AGENT_STORY
from holdfast.errors import UsageError
from holdfast.observe.recorder import Recording
from holdfast.observe.replay import LoadedRecording, Replayable, read, write
from holdfast.records import dataclass
from holdfast.rendezvous.story import NODE_STORY

__all__ = ["LeftOut", "code_of", "read_machines", "write_machines"]

_STORIES = (AGENT_STORY, NODE_STORY)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A machine whose steps are not in the report, and why."""

    machine: str
    why: str


def write_machines(recordings: Iterable[Recording]) -> list[dict[str, object]]:
    """Return recordings as the report's `machines`."""
    stories = {story.kind.name: story for story in _STORIES}
    return [
        write(recording, story, version=__version__, code=code_of(story))
        for recording in recordings
        if (story := stories[recording.machine])
    ]


def read_machines(report: object) -> list[LoadedRecording | LeftOut]:
    """Return the machines of a report. UsageError says what is wrong with it."""
    machines = report.get("machines") if isinstance(report, dict) else None
    if not isinstance(machines, list) or not machines:
        raise UsageError("it holds no steps of machines, as the report of a failed job does")
    return [_read(machine) for machine in machines]


def _read(machine: Any) -> LoadedRecording | LeftOut:
    if isinstance(machine, dict) and machine.keys() == {"machine", "left_out"}:
        return LeftOut(str(machine["machine"]), str(machine["left_out"]))
    return read(machine, _STORIES)


def code_of(story: Replayable) -> str:
    """Return the fingerprint of the code that decides in machines of this kind."""
    digest = hashlib.sha256()
    for name in story.modules:
        module: Any = import_module(name)
        digest.update((module.__spec__.loader.get_source(name) or "").encode())
    return digest.hexdigest()[:16]
