"""What the agents of a job say for its page; tests/e2e/test_page.py asks real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.control.folder import EntryFolder, open_folder
from holdfast.control.jobs import AgentEntry, LocalJob
from holdfast.control.messages import AskEvents, AskStacks, AskStatus, Request
from holdfast.control.server import Caller, ControlServer
from holdfast.page import source
from holdfast.page.source import JobAgents

Answer = Callable[[Request, Caller], dict[str, Any]]


class Agents:
    """Agents that answer, each with a number of events."""

    def __init__(self, folder: EntryFolder, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack

    def start(self, token: str, answer: Answer) -> tuple[AgentEntry, ControlServer]:
        entry = AgentEntry(
            token=token, run="j", host="vm", pid=7, started_at=1.0, endpoint="here:1"
        )
        server = ControlServer(self.folder, entry, answer)
        server.start()
        self._stack.callback(server.close)
        return entry, server


def telling(events: int, kept: int = 2) -> Answer:
    """Answer as an agent with so many events, of which its status tells the last few."""
    told = [{"number": n, "event": "X", "time": float(n)} for n in range(1, events + 1)]

    def answer(request: Request, caller: Caller) -> dict[str, Any]:
        match request:
            case AskStatus():
                return {"host": "vm", "events": told[-kept:]}
            case AskEvents(after):
                return {"host": "vm", "events": told[after:], "ended": False}
            case AskStacks(ranks):
                return {"host": "vm", "stacks": [{"rank": rank} for rank in ranks or (0, 1)]}
            case _:
                raise AssertionError(request)

    return answer


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agents]:
    monkeypatch.setattr(source, "ANSWER_WITHIN_S", 60.0)  # no test is about a slow machine
    with ExitStack() as stack:
        yield Agents(open_folder(tmp_path, host="vm"), stack)


def numbers(found: JobAgents) -> list[int]:
    news = found.poll()
    assert news is not None
    return [event["number"] for event in news.events]


def test_all_events_are_heard_once(agents: Agents) -> None:
    entry, _ = agents.start("a", telling(5))
    job = JobAgents(agents.folder, LocalJob("j", (entry,)))
    assert numbers(job) == [1, 2, 3, 4, 5]
    assert numbers(job) == [1, 2, 3, 4, 5]


def test_an_agent_that_joins_belongs_to_the_job_also_when_the_first_has_ended(
    agents: Agents,
) -> None:
    entry, first = agents.start("a", telling(1))
    job = JobAgents(agents.folder, LocalJob("j", (entry,)))
    _, second = agents.start("b", telling(2))
    assert sorted(numbers(job)) == [1, 1, 2]
    first.close()
    assert sorted(numbers(job)) == [1, 1, 2]
    assert job.stacks((3,)) == ([{"rank": 3}], [])
    second.close()
    assert job.poll() is None
    assert job.stacks(None) == ([], [])


def test_an_agent_without_an_answer_is_named(agents: Agents) -> None:
    def refuse(request: Request, caller: Caller) -> dict[str, Any]:
        raise ZeroDivisionError

    entry, _ = agents.start("a", refuse)
    news = JobAgents(agents.folder, LocalJob("j", (entry,))).poll()
    assert news is not None
    assert (news.agents, news.events) == ([], [])
    assert news.missing == ["no answer: a bug in holdfast: ZeroDivisionError()"]
