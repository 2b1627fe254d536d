"""The workers of simulated agents: they are done, fail, end late, or cannot be killed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from holdfast.agent.machine import Terms
from holdfast.ids import NodeId
from holdfast.process.outcome.failure import Failure, WorkerExited
from holdfast.process.spec import Exit
from holdfast.rendezvous.model import RoundRecord
from holdfast.testing.network import Host, Timer
from tests.sim.agent.judge import AgentJudge
from tests.sim.rendezvous.nodes import Behaviour

__all__ = ["KILL_WAIT_S", "AgentBehaviour", "Boss", "Workers"]

KILL_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class AgentBehaviour(Behaviour):
    """How workers behave, and by which terms. `failures` is how many rounds have one that fails."""

    terms: Terms | None = None
    workers: tuple[int, ...] = (1,)
    """How many a node has, by its number."""
    work_s: tuple[float, float] | None = None
    """How long a worker takes to be done, at least and at most; None: for ever."""
    collateral: float = 0.0
    """How likely a worker fails after another one did, of its own accord."""
    slow: float = 0.0
    """How likely a worker ends only when it is killed."""
    stuck: float = 0.0
    """How likely a worker cannot be killed."""
    cannot_start: float = 0.0
    """How likely the workers of a node cannot be started."""
    clocks_differ: bool = False


class Boss(Protocol):
    """The agent that the workers belong to."""

    host: Host
    id: NodeId
    judge: AgentJudge
    behaviour: AgentBehaviour
    seed: int

    def now(self) -> float:
        """Return the simulation's time."""
        ...

    def wall(self) -> float:
        """Return the time by the node's wall clock."""
        ...

    def worker_exited(self, told: WorkerExited) -> None:
        """Hear that a worker has ended."""
        ...

    def group_ended(self, workers: Workers, abandoned: tuple[int, ...]) -> None:
        """Hear that no more comes of the workers."""
        ...


class Workers:
    """The workers of one attempt."""

    def __init__(self, user: Boss, record: RoundRecord, first: int, world: int, own: int) -> None:
        self._user = user
        self._number = record.number
        self._first = first
        self.alive = set(range(own))
        self._ends: dict[int, Timer] = {}
        self._stopping_by: float | None = None
        self._silent = False
        behaviour = user.behaviour
        fate = random.Random(f"round {user.seed} {record.number}")
        fails = fate.random() < behaviour.failures and user.now() < behaviour.until
        victims = {fate.randrange(world)} if fails else set()
        if fails and fate.random() < 0.7:
            victims.add(fate.choice((fate.randrange(world), (min(victims) + 1) % world)))
        after = fate.uniform(0.2, 6.0)
        mine = random.Random(f"workers {user.seed} {user.id} {record.number}")
        self._slow = {rank for rank in self.alive if mine.random() < behaviour.slow}
        self.stuck = {rank for rank in self.alive if mine.random() < behaviour.stuck}
        self._raised: dict[int, float] = {}
        lag_s = fate.choice((0.0, 1.5, 1.5))
        for local in range(own):
            if first + local in victims:
                at = after + mine.uniform(0.0, fate.choice((0.01, 0.2)))
                user.host.call_later(at, self._raise, local)
                self._end_later(local, at + mine.uniform(0.0, lag_s), 1)
            elif fails and mine.random() < behaviour.collateral:
                self._end_later(local, after + mine.uniform(0.3, 5.0), 1)
            elif behaviour.work_s is not None:
                self._end_later(local, mine.uniform(*behaviour.work_s), 0)

    def stop(self, grace_s: float) -> None:
        """Begin to stop them; a shorter grace wins."""
        user = self._user
        by = user.now() + grace_s
        if self._stopping_by is not None and by >= self._stopping_by:
            return
        self._stopping_by = by
        rng = random.Random(f"stop {user.seed} {user.id} {self._number} {by}")
        for local in sorted(self.alive):
            if local in self._ends:
                self._ends.pop(local).cancel()
            if local not in self.stuck:
                delay = grace_s if local in self._slow else min(grace_s, rng.uniform(0.0, 0.3))
                self._end_later(local, delay, -9 if local in self._slow else -15)
        if self.stuck & self.alive:
            user.host.call_later(grace_s + KILL_WAIT_S, self._abandon)

    def kill(self) -> None:
        """Kill them all, and say no more."""
        self._silent = True
        self._user.judge.workers_died(self._user.id, len(self.alive - self.stuck))
        self.alive &= self.stuck

    def _end_later(self, local: int, delay: float, code: int) -> None:
        self._ends[local] = self._user.host.call_later(delay, self._end, local, code)

    def _raise(self, local: int) -> None:
        """Fail; the process needs some time to end."""
        if local in self.alive:
            self._raised[local] = self._user.now()

    def _end(self, local: int, code: int) -> None:
        user = self._user
        if self._silent or local not in self.alive:
            return
        self.alive.discard(local)
        user.judge.workers_died(user.id, 1)
        asked, failure = self._stopping_by is not None, None
        rank = self._first + local
        raised_at = self._raised.get(local, user.now())
        if code > 0 or local in self._raised:
            failure = Failure(
                rank=rank,
                local_rank=local,
                role="",
                host=user.host.name,
                pid=rank,
                exit=Exit(code),
                at=user.wall() - user.now() + raised_at,
                message="boom",
            )
            user.judge.worker_failed(user.id, self._number, rank, raised_at)
        elif code == 0:
            user.judge.worker_done(self._number)
        user.worker_exited(WorkerExited(local, rank, Exit(code), failure, asked))
        if not self.alive:
            user.group_ended(self, ())

    def _abandon(self) -> None:
        if not self._silent:
            self._silent = True
            self._user.group_ended(self, tuple(sorted(self.alive)))
