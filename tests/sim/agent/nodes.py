"""Agents of a simulated cluster: the product's own machine over a simulated node.

`AgentUser` is a shell around `agent/machine.py` as `agent/agent.py` is, over a simulated node
instead of a rendezvous with threads: scheduler to the store one after the other, waits for a round
and for the exit barrier beside them, reports read from a watch.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from signal import Signals
from types import SimpleNamespace
from typing import Any, assert_never

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
from holdfast.agent.exchange import decode_report, publish
from holdfast.agent.machine import NOT_HELD, State
from holdfast.agent.machine import AgentMachine as Machine
from holdfast.agent.outcome import Outcome
from holdfast.agent.roles import NodeShare
from holdfast.clock import Deadline
from holdfast.errors import (
    HoldfastError,
    RendezvousClosed,
    RendezvousLost,
    RendezvousTimedOut,
    StoreUnavailable,
    TimeoutExpired,
    UsageError,
)
from holdfast.process.outcome.failure import WorkerExited
from holdfast.rendezvous.effects import (
    Closed,
    Counted,
    Explained,
    Left,
    Notice,
    RoundOver,
    RoundReady,
    StoreLost,
    TimedOut,
)
from holdfast.rendezvous.model import RoundRecord
from holdfast.store.ops import AnyOp, Set
from holdfast.testing.network import Link, Timer
from tests.sim.agent.exchange import meet, swap
from tests.sim.agent.judge import AgentJudge
from tests.sim.agent.workers import AgentBehaviour, Workers
from tests.sim.rendezvous.nodes import Agent, Behaviour, NodeProgram
from tests.sim.store.actors import WatchRecord

__all__ = ["STORE_WITHIN_S", "AgentProgram", "AgentUser"]

_LOOKING = (State.RUNNING, State.STOPPING, State.BACKOFF, State.FINISHED)

STORE_WITHIN_S = 30.0
LAST_WORDS_S = 10.0


class AgentUser(Agent):
    """The user of a node that is an agent with workers."""

    def __init__(self, program: AgentProgram, behaviour: AgentBehaviour, seed: int) -> None:
        super().__init__(program, behaviour, seed)
        assert behaviour.terms is not None
        self.program = program
        self.host = program.host
        self.id = program.id
        self.judge: AgentJudge = program.agent_judge
        self.behaviour = behaviour
        self.seed = seed
        self.machine = Machine(behaviour.terms)
        self.outcome: Outcome | None = None
        self.own_workers = behaviour.workers[int(self.host.name.removeprefix("n"))]
        skew = random.Random(f"clock {seed} {self.host.name}").uniform(-3600.0, 3600.0)
        self._wall_skew = 1e9 + (skew if behaviour.clocks_differ else 0.0)
        # What the rendezvous would say.
        self._record: RoundRecord | None = None
        self._rank = 0
        self._share: NodeShare | None = None
        self._over_why: str | None = None
        self._is_closed: Closed | None = None
        self._lost: str | None = None
        self._joining = False
        self._counted: Callable[[], None] | None = None  # ends the task of counting
        self._closed: Callable[[], None] | None = None  # ends that of closing
        self._tasks: deque[Callable[[Callable[[], None]], None]] = deque()
        self._task_busy = False
        self.workers: Workers | None = None
        self._reports: WatchRecord | None = None
        self._wake: Timer | None = None
        self._turning = False

    def __str__(self) -> str:
        state = f"{self.id} {self.machine.state} ({self.machine.reason})"
        return f"{state}, {self.ended or 'here'}: {self._said}"

    # Time.

    def now(self) -> float:
        """Return the simulation's time."""
        return self.program.now()

    def local(self) -> float:
        """Return the time by the node's monotonic clock."""
        return self.program.local()

    def wall(self) -> float:
        """Return the time by the node's wall clock."""
        return self._wall_skew + self.now()

    # The loop.

    def begin(self) -> None:
        """Start."""
        self.turn(self.machine.start)

    def signal(self) -> None:
        """Hear a signal."""
        if self.program._started:
            self.judge.signalled.add(self.id)
            self.turn(lambda: self.machine.signalled(Signals.SIGTERM, self.local()))

    def turn(self, act: Callable[[], None]) -> None:
        """Let the machine hear something, look at the round, and do what the machine wants."""
        if self.ended is not None or self.outcome is not None:
            return
        self.machine.held(self.program.held)
        self.machine.tick(self.local())
        act()
        if self._turning:
            return  # the outer turn goes on with it
        self._turning = True
        self._look()
        while self.outcome is None and (effects := self.machine.take_effects()):
            for effect in effects:
                self._perform(effect)
        self._turning = False
        self._set_wake()

    def _look(self) -> None:
        if self.machine.state not in _LOOKING:
            return
        machine, now = self.machine, self.local()
        if self._is_closed is not None:
            machine.run_ended(self._is_closed.reason, self._is_closed.failed, now)
        elif (over := self._over_why or self._lost) is not None:
            machine.round_over(over, now)
        elif (number := self._nodes_waiting()) > 0:
            machine.newcomers(number, now)

    def _nodes_waiting(self) -> int:
        progress, record = self._progress, self._record
        stale = progress is None or (record is not None and progress.number < record.number)
        return 0 if progress is None or stale else progress.waiting

    def _set_wake(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if (wake_at := self.machine.next_wake()) is not None and self.outcome is None:
            delay = max(0.0, wake_at - self.local()) / self.program.plan.clock_rate + 1e-6
            self._wake = self.host.call_later(delay, self.turn, lambda: None)

    def _perform(self, effect: Effect) -> None:
        self.program.note(self.id, effect)
        match effect:
            case Join(why):
                if why == NOT_HELD:
                    self.judge.lapsed(self._here().number)
                self._ask_for(why)
            case StartWorkers(place):
                self._start(place)
            case Stop(_, grace_s):
                if self.workers is not None:
                    self.workers.stop(grace_s)
            case Publish():
                where = (self._here().number, self._rank)
                self._submit(lambda done: self._publish(where, effect, done))
            case CountFailure():
                self._submit(self._count)
            case Remember(number, description):
                self._submit(lambda done: self._remember(number, description, done))
            case Meet(timeout_s):
                meet(self, timeout_s)
            case Close(reason, failed):
                number = self.machine.place.round if self.machine.place else 0
                self.judge.closing(number, reason, failed)
                self._submit(lambda done: self._close_run(reason, failed, done))
            case Finish(outcome):
                self._finish_all(outcome)
            case _:
                assert_never(effect)

    def _here(self) -> RoundRecord:
        assert self._record is not None
        return self._record

    # What the node tells.

    def heard(self, notice: Notice) -> None:
        """Act on what the node tells."""
        self._said = notice
        match notice:
            case RoundReady(record, rank):
                self._over_why = None
                if self.outcome is None:
                    swap(self, record, rank)
            case RoundOver(_, reason):
                self._over_why = reason
                self.turn(lambda: None)
            case Explained(progress):
                self._progress = progress
                self.turn(lambda: None)
            case Counted(number, failures) if number == self._here().number:
                self._answer_count(
                    lambda: self.machine.counted(
                        failures.count, failures.times, self.wall(), self.local()
                    )
                )
            case TimedOut(reason):
                self.last_reason = reason
                self._join_failed(RendezvousTimedOut(reason))
            case Closed(reason, failed):
                self._is_closed = notice
                self._run_over(RendezvousClosed(reason, failed=failed))
            case Left():
                self.end("left")
            case StoreLost(reason):
                if self._rng.random() < 0.5 and self._reports is not None:  # any node
                    self.turn(lambda: self.machine.broke(StoreUnavailable(reason)))
                self._lost = self.last_reason = reason
                self._run_over(RendezvousLost(reason))
                if self.outcome is not None:
                    self.end("lost")

    def _run_over(self, error: HoldfastError) -> None:
        """End every wait for the rendezvous."""
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()
        self._count_failed(error)
        self._join_failed(error)
        self.turn(lambda: None)

    def _end_of_run(self) -> HoldfastError | None:
        if self._lost is not None:
            return RendezvousLost(self._lost)
        if self._is_closed is not None:
            return RendezvousClosed(self._is_closed.reason, failed=self._is_closed.failed)
        return None

    def _join_failed(self, error: HoldfastError) -> None:
        if self._joining:
            self._joining = False
            self.turn(lambda: self.machine.join_failed(error, self.local()))

    # A round.

    def _ask_for(self, why: str) -> None:
        """Ask for a round, as a wish of this moment."""
        self._joining = True
        self.workers = None
        if (over := self._end_of_run()) is not None:
            self._join_failed(over)
        else:
            if self._record is not None and self._over_why is None:
                self.judge.asks(self.id, self._record.number)
            self.program.request(lambda now: self._ask_now(why, now))

    def _ask_now(self, why: str, now: float) -> None:
        if self.outcome is None:
            self.judge.rests(self.id)
            self.program.node.ask(why, now)

    def _joined(self, record: RoundRecord, share: NodeShare) -> None:
        self._joining = False
        self._record, self._rank, self._share = record, share.group_rank, share
        if self._reports is not None:
            self.program.close_watch(self._reports)
        prefix = f"{self.judge.keys.board}{record.number}/failed/"
        self._reports = self.program.watch(prefix, prefix=True)
        place = Place(record.number, self._rank, record.size, self.own_workers, record.failures)
        self.turn(lambda: self.machine.joined(place, self.local()))

    def _start(self, place: Place) -> None:
        own, share = place.workers, self._share
        assert share is not None
        first, world = share.first, share.world_size
        luck = random.Random(f"start {self.seed} {self.id} {place.round}")
        if luck.random() < self.behaviour.cannot_start:
            self.judge.start_failures += 1
            self.turn(lambda: self.machine.start_failed(UsageError("no such file")))
            return
        self.judge.started(self.id, place, own, world)
        self.workers = Workers(self, self._here(), first, world, own)

    @property
    def counting(self) -> bool:
        """Whether it waits for the account."""
        return self._counted is not None

    def worker_exited(self, told: WorkerExited) -> None:
        """Hear that a worker has ended."""
        self.turn(lambda: self.machine.worker_exited(told, self.local()))

    def group_ended(self, workers: Workers, abandoned: tuple[int, ...]) -> None:
        """Hear that no more comes of the workers."""
        if workers is self.workers:
            self.turn(lambda: self.machine.group_ended(abandoned, self.local()))

    def read_reports(self) -> None:
        """Read what the others report."""
        watch = self._reports
        while watch is not None and (change := watch.state.pending.take()) is not None:
            node, number = int(change.key.rpartition("/")[2]), self._here().number
            if node != self._rank and change.value is not None:
                self._told(number, node, change.value)

    def _told(self, number: int, node: int, report: bytes) -> None:
        failures, final = decode_report(report, self.wall())
        self.turn(lambda: self.machine.peer_told(number, node, failures, final, self.local()))

    # Tasks.

    def _do(self, op: AnyOp, timeout: float, then: Callable[[Any], None]) -> None:
        def heard(result: object) -> None:
            if self.ended is None:
                then(result)

        self.program.perform(op, timeout, heard)

    def _submit(self, act: Callable[[Callable[[], None]], None]) -> None:
        self._tasks.append(act)
        if not self._task_busy:
            self._next_task()

    def _next_task(self) -> None:
        self._task_busy = bool(self._tasks)
        if self._tasks and self.ended is None:
            self._tasks.popleft()(self._next_task)

    def _publish(self, where: tuple[int, int], effect: Publish, done: Callable[[], None]) -> None:
        said: dict[str, bytes] = {}
        board = SimpleNamespace(set=lambda key, value, timeout: said.update({key: value}))
        here: Any = SimpleNamespace(number=where[0], rank=where[1], board=board)
        publish(here, effect.failures, effect.final, self.wall(), Deadline.after(STORE_WITHIN_S))
        ((key, value),) = said.items()
        self._do(Set(self.judge.keys.board + key, value), STORE_WITHIN_S, lambda result: done())

    def _remember(self, number: int, description: str, done: Callable[[], None]) -> None:
        key = f"{self.judge.keys.board}failure/{number}"
        self._do(Set(key, description.encode()), STORE_WITHIN_S, lambda result: done())

    def _count(self, done: Callable[[], None]) -> None:
        wall = self.wall()
        self._counted = done
        if (over := self._end_of_run()) is not None:
            self._count_failed(over)
            return
        self.program.request(lambda now: self.program.node.count_failure(now, wall))

        def late() -> None:
            if self._counted is done:
                self._count_failed(RendezvousTimedOut("the failure could not be counted in time"))

        self._later(STORE_WITHIN_S, late)

    def _count_failed(self, error: HoldfastError) -> None:
        if self._counted is not None:
            self.judge.uncounted.add(self._here().number)
        self._answer_count(lambda: self.machine.count_failed(error, self.local()))

    def _answer_count(self, act: Callable[[], None]) -> None:
        done, self._counted = self._counted, None
        if done is not None:
            self.turn(act)
            done()

    def _close_run(self, reason: str, failed: bool, done: Callable[[], None]) -> None:
        if self._end_of_run() is not None:
            done()
            return
        self._closed = done
        self.judge.closes()
        self.program.request(lambda now: self.program.node.close(reason, failed, now))

        def late() -> None:
            if self._closed is done:
                self._closed = None
                done()

        self._later(STORE_WITHIN_S, late)

    # The end.

    def _broke(self, why: str) -> None:
        self.turn(lambda: self.machine.broke(TimeoutExpired(why)))

    def _finish_all(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self.workers is not None:
            self.workers.kill()
        number = self.machine.place.round if self.machine.place else 0
        self.judge.agent_ended(self.id, number, outcome)
        self._later(LAST_WORDS_S, self._go)
        self._submit(lambda done: self._go())

    def _go(self) -> None:
        if self._lost is not None:
            self.end("lost")
        elif not self.leaving:
            self.leave()
            self._later(STORE_WITHIN_S, self.end, "left")


class AgentProgram(NodeProgram):
    """A node with an agent."""

    agent: AgentUser

    @property
    def agent_judge(self) -> AgentJudge:
        """The judge, as agents know it."""
        assert isinstance(self.judge, AgentJudge)
        return self.judge

    def make_agent(self, behaviour: Behaviour, seed: int) -> AgentUser:
        assert isinstance(behaviour, AgentBehaviour)
        return AgentUser(self, behaviour, seed)

    def note(self, *words: object) -> None:
        """Add to the trace."""
        self._journal.sim.note(*words)

    def received(self, link: Link, frame: bytes) -> None:
        super().received(link, frame)
        if self.agent.ended is None:
            self.agent.read_reports()
