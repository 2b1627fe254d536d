"""The main stories of a job's agents, told in tests/transcripts/agent/*.txt."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from signal import Signals

import pytest

from holdfast.agent.effects import (
    Close,
    CountFailure,
    Effect,
    Finish,
    Join,
    Meet,
    Place,
    Publish,
    Remember,
    StartWorkers,
    Stop,
)
from holdfast.agent.machine import AgentMachine, State, Terms
from holdfast.agent.policy import RestartBudget
from holdfast.agent.story import tell_effect
from holdfast.errors import RendezvousClosed, UsageError
from holdfast.process.outcome.failure import Failure, WorkerExited
from holdfast.process.spec import Exit
from holdfast.testing.transcript import Command

STORIES = sorted((Path(__file__).parent / "agent").glob("*.txt"))
WORKERS = 2


class StoryAgent:
    """An agent of the story: its machine, and where it is."""

    def __init__(self, name: str, terms: Terms) -> None:
        self.name = name
        self.machine = AgentMachine(terms)
        self.waits: str | None = None
        self.round = self.node = 0
        self.dead = self.done = False


class AgentStory:
    """Agents over a rendezvous and a store that always work. The output says what agents do.

    job [restarts=] [grace=]       before the first agent
    agent A...                     start agents; a round begins when all that live wait for one
    fails A RANK [at=], done A RANK            a worker of A ends: with an error, or well
    stopped A, stuck A PID         the workers of A have ended, or cannot be killed
    cannot-start A WHY             the next workers of A cannot be started
    signal A NAME, kill A          a signal to the agent; its death, which the others notice
    barrier A WHY                  the exit barrier of A is over, with trouble
    advance S                      let time pass
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._terms = Terms(budget=RestartBudget(1))
        self._agents: dict[str, StoryAgent] = {}
        self._round = self._failures = self._counted = 0
        self._kept: dict[int, str] = {}
        self._refused: dict[str, str] = {}
        self._closed: Close | None = None
        self._lines: list[str] = []
        self._soon: deque[Callable[[], None]] = deque()

    def __call__(self, command: Command) -> str:
        self._lines = []
        self._obey(command)
        self._settle()
        return "\n".join(self._lines)

    def _obey(self, command: Command) -> None:
        args, options = command.args, command.options
        match command.name:
            case "job":
                budget = RestartBudget(int(options.get("restarts", 1)))
                self._terms = Terms(budget=budget, grace_s=float(options.get("grace", 30)))
            case "agent":
                for name in args:
                    agent = self._agents[name] = StoryAgent(name, self._terms)
                    agent.machine.start()
            case "advance":
                self._now += float(args[0])
                for agent in self._living():
                    agent.machine.tick(self._now)
            case _:
                self._act(self._agents[args[0]], command)

    def _act(self, agent: StoryAgent, command: Command) -> None:
        machine, args, now = agent.machine, command.args, self._now
        match command.name:
            case "fails":
                at = float(command.options.get("at", now))
                failure = self._failure(agent, int(args[1]), at)
                asked = machine.state is State.STOPPING
                told = WorkerExited(int(args[1]), failure.pid, failure.exit, failure, asked)
                machine.worker_exited(told, now)
            case "done":
                machine.worker_exited(WorkerExited(int(args[1]), 0, Exit(0), None, False), now)
            case "stopped":
                machine.group_ended((), now)
            case "stuck":
                machine.group_ended((int(args[1]),), now)
            case "cannot-start":
                self._refused[agent.name] = args[1]
            case "signal":
                machine.signalled(Signals[args[1]], now)
            case "kill":
                agent.dead = True
                self._left(agent, f"{agent.name} is gone")
            case "barrier":
                machine.met(agent.round, args[1], now)
            case _:
                raise UsageError(f"no such command: {command.name}")

    def _failure(self, agent: StoryAgent, local_rank: int, at: float) -> Failure:
        return Failure(
            rank=agent.node * WORKERS + local_rank,
            local_rank=local_rank,
            role="",
            host=agent.name,
            pid=100,
            exit=Exit(1),
            at=at,
            message="boom",
        )

    # The world.

    def _living(self) -> list[StoryAgent]:
        agents = self._agents.values()
        return [one for one in agents if not one.dead and one.machine.state is not State.ENDED]

    def _others(self, agent: StoryAgent) -> list[StoryAgent]:
        """Return the other agents of its round."""
        here = [one for one in self._agents.values() if one.round == agent.round and not one.dead]
        return [one for one in here if one is not agent and agent.round]

    def _settle(self) -> None:
        busy = True
        while busy:
            busy = False
            for agent in self._agents.values():
                for effect in [] if agent.dead else agent.machine.take_effects():
                    busy = True
                    self._say(agent, effect)
                    self._perform(agent, effect)
            if not busy and self._soon:
                self._soon.popleft()()
                busy = True
            busy = busy or self._form()

    def _form(self) -> bool:
        living = self._living()
        waiting = [one for one in living if one.waits is not None]
        if not waiting or self._closed is not None:
            return False
        inside = [one for one in living if one.waits is None]
        if not inside:
            self._round += 1
            for node, agent in enumerate(waiting):
                agent.waits, agent.round, agent.node, agent.done = None, self._round, node, False
                place = Place(self._round, node, len(waiting), WORKERS, self._failures)
                agent.machine.joined(place, self._now)
            return True
        newcomers = [one for one in waiting if one.round == 0]
        for agent in inside if newcomers else ():
            agent.machine.newcomers(len(newcomers), self._now)
        return any(one.machine._effects for one in inside)

    def _left(self, agent: StoryAgent, why: str) -> None:
        for other in self._others(agent):
            other.machine.round_over(f"round {agent.round} is over: {why}", self._now)

    def _perform(self, agent: StoryAgent, effect: Effect) -> None:
        machine, now = agent.machine, self._now
        match effect:
            case Join(why):
                agent.waits = why
                if self._closed is not None:
                    self._tell_closed(agent, self._closed)
                elif why:
                    self._left(agent, f"{agent.name}: {why}")
            case StartWorkers():
                if agent.name in self._refused:
                    machine.start_failed(UsageError(self._refused.pop(agent.name)))
            case Publish(failures, final):
                for other in self._others(agent):
                    other.machine.peer_told(agent.round, agent.node, failures, final, now)
            case CountFailure(compared):
                self._failures += agent.round > self._counted
                self._counted = agent.round
                count = self._failures
                before = tuple(self._kept.get(count - n, "") for n in range(1, compared + 1))
                self._soon.append(lambda: machine.counted(count, (), now, now, before))
            case Remember(number, description):
                self._kept[number] = description
            case Meet():
                agent.done = True
                here = [agent, *self._others(agent)]
                for one in here if all(one.done for one in here) else ():
                    self._soon.append(lambda one=one: one.machine.met(one.round, None, now))  # type: ignore[misc]
            case Close():
                self._closed = self._closed or effect
                for other in self._living():
                    if other is not agent:
                        self._tell_closed(other, self._closed)
            case Finish():
                if not agent.done:
                    self._left(agent, f"{agent.name} is gone")
            case Stop():
                pass

    def _tell_closed(self, agent: StoryAgent, closed: Close) -> None:
        if agent.waits is not None:
            error = RendezvousClosed(f"the run is closed: {closed.reason}", failed=closed.failed)
            agent.waits = None
            agent.machine.join_failed(error, self._now)
        else:
            agent.machine.run_ended(closed.reason, closed.failed, self._now)

    def _say(self, agent: StoryAgent, effect: Effect) -> None:
        self._lines.append(f"{self._now:6.2f}  {agent.name} {tell_effect(effect)}")


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, transcript: Callable[[Path, Callable[[Command], str]], None]) -> None:
    transcript(path, AgentStory())


def test_the_main_stories_are_there() -> None:
    assert {path.stem for path in STORIES} >= {
        "budget-spent",
        "cannot-start",
        "drift",
        "newcomer",
        "node-lost",
        "peer-fails",
        "restart",
        "signal",
        "unkillable",
    }
