"""What a run of chaos will do: kills of workers and of agents, drawn from a seed.

`WorkerKills` is one job whose workers are killed again and again. Its long form forgives everything
and ends well at last; its short forms have a small budget of restarts, and end by the last kill.

`AgentKill` is one job of two nodes and a spare in which one agent is killed, at a named phase of
its life: the node that hosts the job's store, or the other one.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from signal import Signals

__all__ = [
    "DEADLY",
    "WORKERS",
    "AgentKill",
    "How",
    "Kill",
    "Phase",
    "Role",
    "When",
    "WorkerKills",
    "draw_agent_kills",
    "draw_worker_kills",
    "kinds",
]

WORKERS = 2
"""How many workers each agent has."""
KILLS_PER_JOB_MAX = 500
SHORT_EVERY = 25
"""Of so many kills of workers, a few belong to a job that may not survive them."""


class How(StrEnum):
    """How a worker ends."""

    KILL = "SIGKILL"
    SEGV = "SIGSEGV"
    TERM = "SIGTERM"
    EXIT = "exit(3)"
    RAISE = "raise"

    @property
    def code(self) -> int:
        """The exit code that its agent sees: minus the number of a signal."""
        codes = {How.EXIT: 3, How.RAISE: 1}
        return codes[self] if self in codes else -Signals[self.value]


class When(StrEnum):
    """When it ends."""

    START = "start"
    """As soon as its process is there: before its program has begun, or just after."""
    WORK = "work"
    """While all workers of the job are at work."""
    END = "end"
    """When all the others are done."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One blow: these ranks, all at once."""

    how: How
    when: When
    ranks: tuple[int, ...]

    @property
    def kind(self) -> str:
        """What it is counted as."""
        return f"{self.how} at {self.when}"


@dataclass(frozen=True, slots=True)
class WorkerKills:
    """One job, and the blows that it gets, one in each round."""

    agents: int
    kills: tuple[Kill, ...]
    max_restarts: int

    @property
    def world(self) -> int:
        """How many workers the job has."""
        return self.agents * WORKERS

    @property
    def survives(self) -> bool:
        """Whether the job is to end well."""
        return len(self.kills) <= self.max_restarts


class Phase(StrEnum):
    """Where an agent is in its life when it is killed."""

    CREATING = "creating the rendezvous"
    WAITING = "waiting for a round"
    FORMED = "round formed"
    STARTING = "one worker started"
    STARTED = "all workers started"
    RUNNING = "running"
    FAILED = "a worker failed"
    STOPPING = "stopping workers"
    RESTARTING = "asking for the next round"
    FINISHED = "workers finished"
    BARRIER = "in the exit barrier"
    LEAVING = "leaving"


class Role(StrEnum):
    """Which of the agents."""

    HOST = "host"
    MEMBER = "member"
    SPARE = "spare"


DEADLY = (Signals.SIGKILL, Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP, Signals.SIGQUIT)


@dataclass(frozen=True, slots=True)
class AgentKill:
    """Kill the agent of this role in this phase."""

    phase: Phase
    signal: Signals
    role: Role

    @property
    def kind(self) -> str:
        """What it is counted as."""
        return f"{self.signal.name}, {self.phase}"

    @property
    def sudden(self) -> bool:
        """Whether the agent dies at once: it cannot help it, or does not heed signals then."""
        return self.signal is Signals.SIGKILL or self.phase in (Phase.CREATING, Phase.LEAVING)

    def __str__(self) -> str:
        return f"{self.signal.name} to the {self.role}, {self.phase}"


def draw_worker_kills(seed: int, kills: int, agents: int) -> tuple[WorkerKills, ...]:
    """Draw jobs with so many blows in all; every kind comes as often as any other, but for one."""
    rng = random.Random(f"storms {seed}")
    blows = [_draw_kill(rng, how, when, agents) for how, when in _endless(rng, kills)]
    jobs = []
    for _ in range(kills // SHORT_EVERY):
        allowed = rng.randrange(3)
        taken, blows = blows[: allowed + 1], blows[allowed + 1 :]
        jobs.append(WorkerKills(agents, tuple(taken), allowed))
    while blows:
        taken, blows = blows[:KILLS_PER_JOB_MAX], blows[KILLS_PER_JOB_MAX:]
        jobs.append(WorkerKills(agents, tuple(taken), max_restarts=10_000))
    return tuple(jobs)


def draw_agent_kills(seed: int, number: int) -> tuple[AgentKill, ...]:
    """Draw so many kills of agents; sixty are each phase with each signal, and with both roles."""
    rng = random.Random(f"murders {seed}")
    roles = (Role.HOST, Role.MEMBER)
    drawn: list[AgentKill] = []
    for turn in itertools.count(rng.randrange(2)):
        if len(drawn) >= number:
            return tuple(drawn[:number])
        pairs = itertools.product(enumerate(Phase), enumerate(DEADLY))
        batch = [AgentKill(p, s, roles[(i + j + turn) % 2]) for (i, p), (j, s) in pairs]
        rng.shuffle(batch)
        drawn += batch
    raise AssertionError


def kinds(deeds: Iterable[Kill | AgentKill]) -> Counter[str]:
    """Count deeds by their kind."""
    return Counter(deed.kind for deed in deeds)


def _endless(rng: random.Random, number: int) -> list[tuple[How, When]]:
    pairs = [pair for pair in itertools.product(How, When) if _possible(*pair)]
    drawn: list[tuple[How, When]] = []
    while len(drawn) < number:
        drawn += rng.sample(pairs, len(pairs))
    return drawn[:number]


def _possible(how: How, when: When) -> bool:
    """Say whether it can be done: a program that has not begun cannot be asked to end itself."""
    return when is not When.START or how not in (How.EXIT, How.RAISE)


def _draw_kill(rng: random.Random, how: How, when: When, agents: int) -> Kill:
    world = agents * WORKERS
    number = 1 if rng.random() < 0.7 else rng.randint(2, max(2, world // 2))
    return Kill(how, when, tuple(sorted(rng.sample(range(world), min(number, world)))))
