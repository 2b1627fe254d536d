"""What the agents of a job on this machine say, for its page."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, Protocol

from holdfast.control.client import AgentAnswer, ask_all
from holdfast.control.folder import EntryFolder
from holdfast.control.jobs import LocalJob, group_jobs
from holdfast.control.messages import AskEvents, AskStacks, AskStatus
from holdfast.control.summary import AgentTold
from holdfast.page.view import EVENTS_SHOWN

__all__ = ["JobAgents", "JobNews", "JobSource"]

ANSWER_WITHIN_S = 1.0
STACKS_WITHIN_S = 5.0


class JobNews(NamedTuple):
    """What the agents say, a line for each that does not, and the last events, with their host."""

    agents: list[AgentTold]
    missing: list[str]
    events: list[AgentTold]


class JobSource(Protocol):
    """Where the page gets what it shows. Its methods may block for seconds.

    One thread calls `poll`; any thread may call `stacks` meanwhile.
    """

    def poll(self) -> JobNews | None:
        """Return how the job is now; None if it has ended."""
        ...

    def stacks(self, ranks: tuple[int, ...] | None) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the stacks of these ranks or all, and a line for each agent without an answer."""
        ...


class JobAgents:
    """The agents of one job, by their entries: those that join it later belong to it, too."""

    def __init__(self, folder: EntryFolder, job: LocalJob) -> None:
        self._folder = folder
        self._tokens = {one.token for one in job.agents}
        self._numbers: dict[str, int] = {}
        self._events: deque[AgentTold] = deque(maxlen=2 * EVENTS_SHOWN)

    def poll(self) -> JobNews | None:
        job = self._job()
        if job is None:
            return None
        self._tokens |= {one.token for one in job.agents}
        answers = ask_all(self._folder, job.agents, AskStatus(), ANSWER_WITHIN_S)
        agents = [one.fields for one in answers if one.fields is not None]
        if not agents and all(one.error is None for one in answers):
            return None
        for answer in answers:
            if answer.fields is not None:
                self._hear(answer)
        return JobNews(agents, _missing(answers), list(self._events))

    def stacks(self, ranks: tuple[int, ...] | None) -> tuple[list[dict[str, Any]], list[str]]:
        job = self._job()
        answers = (
            ask_all(self._folder, job.agents, AskStacks(ranks), STACKS_WITHIN_S) if job else []
        )
        found = [one.fields for one in answers if one.fields is not None]
        return [stack for one in found for stack in one["stacks"]], _missing(answers)

    def _job(self) -> LocalJob | None:
        for job in group_jobs(self._folder.entries()):
            if not self._tokens.isdisjoint(one.token for one in job.agents):
                return job
        return None

    def _hear(self, answer: AgentAnswer) -> None:
        """Add the events of an agent that are new, all of them if its status leaves out some."""
        fields, entry = answer.fields or {}, answer.entry
        last = self._numbers.get(entry.token, 0)
        events = fields.get("events", [])
        if events and events[0]["number"] > last + 1:
            (more,) = ask_all(self._folder, [entry], AskEvents(last), ANSWER_WITHIN_S) or (answer,)
            events = (more.fields or fields)["events"]
        for event in events:
            if event["number"] > last:
                self._numbers[entry.token] = event["number"]
                self._events.append({"host": fields["host"], "agent": entry.pid, **event})


def _missing(answers: list[AgentAnswer]) -> list[str]:
    return [f"no answer: {one.error}" for one in answers if one.error is not None]
