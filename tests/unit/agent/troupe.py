"""Agents of one run in one process: a real rendezvous over memory, and workers that are played."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from signal import Signals
from typing import Any

from holdfast.agent.agent import ElasticAgent
from holdfast.agent.attempt import Report
from holdfast.agent.job import Job
from holdfast.agent.machine import Terms
from holdfast.agent.outcome import Outcome
from holdfast.agent.policy import RestartBudget
from holdfast.agent.roles import NodeInfo
from holdfast.agent.status import AgentStatus
from holdfast.clock import Deadline
from holdfast.errors import HoldfastError
from holdfast.ids import NodeId, RunId
from holdfast.observe.metrics import Metrics
from holdfast.observe.sinks import MemorySink
from holdfast.process.outcome.failure import Failure, WorkerExited
from holdfast.process.output.logs import AttemptLogs, RunLogs
from holdfast.process.output.streams import LogOptions
from holdfast.process.spec import Exit, GroupEnded, Launch, Script
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.handler import StoreRendezvous
from holdfast.rendezvous.model import Announcement, Keys, Phase
from holdfast.store.memory import MemoryStore

__all__ = ["SOON_S", "PlayedAgent", "PlayedGroup", "Troupe", "a_job"]

SOON_S = 30.0
RUN = RunId("job")


def a_job(**changes: Any) -> Job:
    """Return a job of two workers on a node."""
    job = Job(
        run_id=RUN,
        node=NodeInfo("trainer", 2),
        entrypoint=Script("train.py"),
        terms=Terms(budget=RestartBudget(1), grace_s=5.0, exit_barrier_s=20.0),
        environment={"HOME": "/home/me"},
        host="a",
        torch_store=False,
        monitor_interval_s=0.01,
    )
    return replace(job, **changes)


class PlayedGroup:
    """Workers that do what the test says; they end as soon as they are told to stop."""

    def __init__(self, launches: Sequence[Launch], report: Report) -> None:
        self.launches = tuple(launches)
        self.cannot_start: HoldfastError | None = None
        self.stuck: tuple[int, ...] = ()
        self.stops: list[tuple[Signals, float]] = []
        self.closed = 0
        self.begun = threading.Event()
        self._report = report
        self._lock = threading.Lock()
        self._running: set[int] = set()

    def start(self) -> dict[int, int]:
        try:
            if self.cannot_start is not None:
                raise self.cannot_start
            with self._lock:
                self._running = {launch.local_rank for launch in self.launches}
                pids, stops = self.pids(), list(self.stops)
            for number, _ in stops:  # which came before
                self._end_by(number)
            return pids
        finally:
            self.begun.set()

    def pids(self) -> dict[int, int]:
        return {local_rank: 1000 + local_rank for local_rank in sorted(self._running)}

    def ask_stack(self, pid: int) -> bool:
        return False

    def stop(self, number: Signals, grace_s: float) -> None:
        with self._lock:
            self.stops.append((number, grace_s))
        self._end_by(number)

    def _end_by(self, number: Signals) -> None:
        for local_rank in sorted(self._running):
            self._exit(local_rank, Exit(-number), None, asked=True)

    def close(self) -> tuple[int, ...]:
        self.closed += 1
        return self.stuck

    # What the test says.

    def done(self, *local_ranks: int) -> None:
        """Let workers end well; all of them if none is named."""
        for local_rank in local_ranks or sorted(self._running):
            self._exit(local_rank, Exit(0), None, asked=False)

    def fail(self, local_rank: int, message: str = "boom") -> Failure:
        """Let a worker fail."""
        launch = self.launches[local_rank]
        failure = Failure(
            rank=launch.rank,
            local_rank=local_rank,
            role=launch.role,
            host="a",
            pid=1000 + local_rank,
            exit=Exit(3),
            at=time.time(),
            message=message,
        )
        self._exit(local_rank, Exit(3), failure, asked=False)
        return failure

    def _exit(self, local_rank: int, exit_: Exit, failure: Failure | None, *, asked: bool) -> None:
        with self._lock:
            if local_rank not in self._running:
                return
            self._running.discard(local_rank)
            was_last = not self._running
        self._report(WorkerExited(local_rank, 1000 + local_rank, exit_, failure, asked))
        if was_last:
            self._report(GroupEnded(self.stuck))


@dataclass(slots=True)
class PlayedAgent:
    """One of the troupe: its agent, its rendezvous, its groups as they are made."""

    agent: ElasticAgent
    rendezvous: StoreRendezvous
    logs: RunLogs
    groups: queue.SimpleQueue[PlayedGroup]
    sink: MemorySink
    metrics: Metrics
    shown: queue.SimpleQueue[AgentStatus]
    outcome: Future[Outcome]

    def next_group(self) -> PlayedGroup:
        """Wait for the workers of the next round."""
        group = self.groups.get(timeout=SOON_S)
        assert group.begun.wait(SOON_S)  # or it would not do yet what it is told
        return group

    def ended(self) -> Outcome:
        """Wait for the end."""
        return self.outcome.result(SOON_S)


class Troupe:
    """All agents of one run."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self._pool = ThreadPoolExecutor(8)
        self._agents: list[PlayedAgent] = []

    def add(
        self,
        name: str,
        rules: Rules,
        job: Job | None = None,
        prepare: Callable[[PlayedGroup], None] = lambda group: None,
        **more: Any,
    ) -> PlayedAgent:
        """Let an agent begin. `prepare` sees each of its groups before it is started."""
        me = Announcement(NodeId(name), name, "127.0.0.1", 4000, Phase.WAITING, 0, None, "")
        rendezvous = StoreRendezvous(
            "test", RUN, me, rules, self.store, release=_released, sink=MemorySink(), close_s=10.0
        )
        rendezvous.start()
        logs = RunLogs(LogOptions(), RUN)
        logs.open()
        groups: queue.SimpleQueue[PlayedGroup] = queue.SimpleQueue()
        shown: queue.SimpleQueue[AgentStatus] = queue.SimpleQueue()
        sink, metrics = MemorySink(), Metrics()

        def make(launches: Sequence[Launch], logs: AttemptLogs, report: Report) -> PlayedGroup:
            group = PlayedGroup(launches, report)
            prepare(group)
            groups.put(group)
            return group

        job = job or a_job()
        given: dict[str, Any] = {"show": shown.put, "sink": sink, "metrics": metrics}
        agent = ElasticAgent(job, rendezvous, logs, make, **given | more)
        outcome = self._pool.submit(self._run, agent, rendezvous)
        played = PlayedAgent(agent, rendezvous, logs, groups, sink, metrics, shown, outcome)
        self._agents.append(played)
        return played

    def _run(self, agent: ElasticAgent, rendezvous: StoreRendezvous) -> Outcome:
        try:
            return agent.run()
        finally:
            rendezvous.shutdown()

    def close(self) -> None:
        """End it all, also what a test that failed has left running."""
        for one in self._agents:
            one.agent._signalled(Signals.SIGTERM)
        for one in self._agents:
            one.rendezvous.shutdown()
            one.logs.close()
        self._pool.shutdown()
        self.store.close()


def _released(keys: Keys, deadline: Deadline) -> bool:
    return True
