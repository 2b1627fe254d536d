"""The nodes of a simulated cluster, and their store's server, as programs of its network.

`NodeProgram` is a shell around the product's own machine of a node, `rendezvous/machine.py`, over
the product's own store client, as `rendezvous/session.py` is: one operation at a time, events wait
meanwhile. Its clock is wrong by an offset and a rate of its own. `Agent` is its user.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.errors import Fenced, HoldfastError, LeaseLost, TimeoutExpired
from holdfast.ids import LeaseId, NodeId, new_token
from holdfast.rendezvous.effects import (
    Closed,
    Counted,
    Effect,
    Explained,
    Follow,
    LeaseHeld,
    Left,
    Notice,
    Perform,
    RoundOver,
    RoundReady,
    StoreLost,
    TimedOut,
)
from holdfast.rendezvous.machine import NodeMachine
from holdfast.rendezvous.model import Announcement, Phase, Progress, RoundRecord
from holdfast.store.ops import Add, AnyOp, Change, Guarded, ListPrefix
from holdfast.testing.checkers import Unknown
from holdfast.testing.network import Host, Link, Timer
from tests.sim.rendezvous.judge import Judge
from tests.sim.store.actors import ClientProgram, Journal, ServerProgram, WatchRecord

__all__ = ["Agent", "Behaviour", "ClusterServer", "NodePlan", "NodeProgram"]

RECONNECT_WITHIN_S = 10.0
OP_TIMEOUT_S = 12.0
COUNT_WITHIN_S = 3.0
POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node: when it comes, when it leaves if it does, and how its clock goes."""

    name: str
    comes_at: float
    leaves_at: float | None
    clock_offset_s: float
    clock_rate: float


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How agents behave; `until` this moment workers fail and nodes leave."""

    until: float
    stop_s: float
    """How long an agent takes to stop its workers, at most."""
    failures: float
    """The part of the rounds that end with a failure of a worker."""
    finishes: float = 0.0
    """How likely a member finishes its part of a round; most that do leave soon after."""


class ClusterServer(ServerProgram):
    """The store's server, which tells the judge all that it does."""

    def __init__(self, host: Host, journal: Journal, rng: random.Random, judge: Judge) -> None:
        super().__init__(host, journal, rng, slow=False)
        keyspace = self.service.keyspace
        apply, take, curtail = keyspace.apply, keyspace.take_changes, keyspace.curtail

        def observed(op: Any, now: float) -> Any:
            result = apply(op, now)
            judge.performed(op)
            return result

        def taken() -> list[Change]:
            changes = take()
            for change in changes:
                judge.changed(change)
            return changes

        def curtailed(lease_id: LeaseId, at: float) -> None:
            known = keyspace._leases.get(lease_id)
            if known is not None and at < known.ends_at:
                judge.curtailed(lease_id)
            curtail(lease_id, at)

        keyspace.apply = observed  # type: ignore[method-assign]
        keyspace.curtail = curtailed  # type: ignore[method-assign]
        keyspace.take_changes = taken  # type: ignore[method-assign]

    def shut(self) -> None:
        """Close every link, after what was sent on it: the end of a server that is closed."""
        for link in self._links.values():
            link.close()
        self._links.clear()


class NodeProgram(ClientProgram):
    """A node: its store client, its machine and its agent."""

    def __init__(
        self,
        host: Host,
        journal: Journal,
        rng: random.Random,
        judge: Judge,
        plan: NodePlan,
        behaviour: Behaviour,
    ) -> None:
        super().__init__(host, journal, rng, reconnect_within_s=RECONNECT_WITHIN_S)
        self.judge = judge
        self.plan = plan
        self.id = NodeId(f"{self.name}-{new_token(rng, 4)}")
        self.ops = 0
        """How many store operations its machine has asked for."""
        me = Announcement(self.id, host.name, host.name, 1, Phase.WAITING, 0, None, "")
        self.node = NodeMachine(me, judge.keys, judge.rules)
        self.held: LeaseHeld | None = None
        """Until when its place in a round is its own."""
        self.agent = self.make_agent(behaviour, journal.sim.seed)
        self._started = False
        self._effects: deque[Effect] = deque()
        # What waits for the machine; while `_busy`, an operation or a new watch, it must wait.
        self._events: deque[Callable[[float], object] | Change] = deque()
        self._busy = False
        self._watch: WatchRecord | None = None
        self._advancing = False
        self._wake: Timer | None = None
        self.host.call_later(max(0.0, plan.comes_at - self.now()), self._start)

    def make_agent(self, behaviour: Behaviour, seed: int) -> Agent:
        """Make the node's user."""
        return Agent(self, behaviour, seed)

    # Time, as this node sees it.

    def local(self) -> float:
        """Return the time by this node's own clock."""
        return self.plan.clock_offset_s + self.plan.clock_rate * self.now()

    def _start(self) -> None:
        if not self.session.met:  # the product opens the store first
            self.host.call_later(0.1, self._start)
            return
        self._started = True
        self.node.start(self.local())
        self.agent.begin()
        self._advance()

    # The shell of the machine.

    def request(self, act: Callable[[float], object]) -> None:
        """Let the machine do something, at `now` by its clock, when it is its turn."""
        self._events.append(act)
        self._advance()

    def received(self, link: Link, frame: bytes) -> None:
        super().received(link, frame)
        self._read_watch()
        self._advance()

    def _read_watch(self) -> None:
        watch = self._watch
        if watch is None:
            return
        while (change := watch.state.pending.take()) is not None:
            self._events.append(change)

    def _advance(self) -> None:
        if self._advancing or not self._started or self.agent.ended:
            return
        self._advancing = True
        while self._step() and not self.agent.ended:
            pass
        self._advancing = False
        self._set_wake()

    def _step(self) -> bool:
        """Do the next thing; False if there is nothing to do now."""
        if self._busy:
            return False
        self._take_effects()
        if self._effects:
            self._do(self._effects.popleft())
            return True
        if self._events:
            self._take_events()
            self.node.tick(self.local())
            return True
        wake_at = self.node.next_wake()
        if wake_at is None or wake_at > self.local():
            return False
        self.node.tick(self.local())
        self._take_effects()
        again = self.node.next_wake()
        if not self._effects and again is not None and again <= self.local():
            self._journal.fail(f"{self.id} would spin: it asks to be woken, and does nothing")
            self.agent.end("spinning")
        return True

    def _take_events(self) -> None:
        changes = []
        while self._events:
            event = self._events.popleft()
            if isinstance(event, Change):
                changes.append(event)
            else:
                event(self.local())
        if changes:
            self.node.changed(changes, self.local())

    def _take_effects(self) -> None:
        """Put the operation last, as the product does."""
        effects = self.node.take_effects()
        self._effects.extend(sorted(effects, key=lambda effect: isinstance(effect, Perform)))

    def _do(self, effect: Effect) -> None:
        match effect:
            case Perform(op):
                self._busy = True
                self.ops += 1
                timeout = min(OP_TIMEOUT_S, self.node.op_limit_s(self.local()))
                self.perform(op, timeout, self._performed)
            case Follow(prefix):
                self._follow(prefix)
            case _:
                self.tell(effect)

    def _performed(self, result: object) -> None:
        self._take_events()
        self._busy = False
        match result:
            case LeaseLost():
                self.judge.counts["leases lost"] += 1
                self.node.failed(result, self.local())
                self._take_effects()
                self.judge.lost_lease(self.id, self._effects)
            case HoldfastError():
                self.node.failed(result, self.local())
            case Unknown():
                late = TimeoutExpired("no answer in time", maybe_applied=True)
                self.node.failed(late, self.local())
            case _:
                self.node.done(result, self.local())
        self._advance()

    def _follow(self, prefix: str) -> None:
        if self._watch is not None:
            self.close_watch(self._watch)
        self._watch = self.watch(prefix, prefix=True)
        self._busy = True
        self._await_sync(self._watch, self.now() + OP_TIMEOUT_S)

    def _await_sync(self, watch: WatchRecord, until: float) -> None:
        """Wait until the new watch has its first state, as the product's client does."""
        if watch.state.synced:
            self._busy = False
            self._read_watch()
            self._advance()
        elif self.session.lost is not None or self.now() >= until:
            self.tell(StoreLost("the store cannot be watched"))
        else:
            self.host.call_later(0.02, self._await_sync, watch, until)

    def _set_wake(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        wake_at = None if self._busy else self.node.next_wake()
        if wake_at is not None and not self.agent.ended:
            # A little late, so that no rounding makes it early.
            delay = max(0.0, wake_at - self.local()) / self.plan.clock_rate + 1e-6
            self._wake = self.host.call_later(delay, self._advance)

    def tell(self, notice: Notice) -> None:
        """Pass a notice on to the judge and to the agent."""
        self._journal.sim.note(self.id, notice)
        self.judge.told(self.id, notice)
        if isinstance(notice, LeaseHeld):
            self.held = notice
        else:
            self.agent.heard(notice)

    def hang_up(self) -> None:
        """Close the store's client, as a process does that ends."""
        self.session.lose("closed")
        if self._link is not None:
            self._link.close()
            self._link = None


class Agent:
    """The user of a node: works in rounds, asks for the next one, reports failures, leaves."""

    def __init__(self, program: NodeProgram, behaviour: Behaviour, seed: int) -> None:
        self.ended: str | None = None
        """How it ended: left, lost, or None while it has not."""
        self.last_reason = ""
        self.patient = True
        """Whether it asks again when no round came in time; otherwise it leaves."""
        self.hosts_until: Callable[[], None] | None = None
        """For the node that hosts the store: ends it, called when no other node is there."""
        self._program = program
        self._behaviour = behaviour
        self._seed = seed
        self._said: Notice | None = None
        self._rng = random.Random(f"agent {seed} {program.id}")
        self._round: RoundRecord | None = None
        self._over = True
        self._progress: Progress | None = None
        self._reported = False
        self._finished = False
        self.leaving = False

    def __str__(self) -> str:
        number = self._round.number if self._round is not None else 0
        over = " (over)" * self._over + " (leaving)" * self.leaving
        return f"{self._program.id} in round {number}{over}, {self.ended or 'here'}: {self._said}"

    def begin(self) -> None:
        """Ask for the first round."""
        plan = self._program.plan
        if plan.leaves_at is not None and plan.leaves_at > self._program.now():
            self._later(plan.leaves_at - self._program.now(), self.leave)
        self._ask("it starts")

    def leave(self) -> None:
        """Leave the run."""
        if not self.leaving:
            self.leaving = True
            self._over = True
            self._program.request(self._program.node.leave)

    def close(self, reason: str) -> None:
        """Close the run."""
        self._program.judge.closes()
        self._program.request(lambda now: self._program.node.close(reason, False, now))

    def end(self, how: str) -> None:
        """End the process."""
        self.ended = how
        self._program.judge.rests(self._program.id)
        self._program.hang_up()

    def heard(self, notice: Notice) -> None:
        """Act on what the node tells."""
        self._said = notice
        match notice:
            case RoundReady(record):
                self._work(record)
            case RoundOver():
                self._over = True
                if self._rng.random() < 0.5:
                    self._later(self._rng.uniform(0.0, 6.0), self._write, self._round)
                self._later(self._rng.uniform(0.0, self._behaviour.stop_s), self._ask, "it is over")
            case Explained(progress):
                self._progress = progress
            case Counted(number):
                self._reported = self._round is not None and self._round.number == number
            case TimedOut(reason):
                self.last_reason = reason
                if self.patient:
                    self._later(0.3, self._ask, "again")
                else:
                    self.leave()
            case Closed():
                self._over = True
                self._later(self._rng.uniform(0.0, self._behaviour.stop_s), self.leave)
            case Left():
                if self.hosts_until is not None:
                    self._host_until_alone()
                else:
                    self.end("left")
            case StoreLost(reason):
                self.last_reason = reason
                self.end("lost")

    def _later(self, delay: float, act: Callable[..., None], *args: object) -> None:
        self._program.host.call_later(delay, self._unless_ended, act, args)

    def _unless_ended(self, act: Callable[..., None], args: tuple[object, ...]) -> None:
        if self.ended is None:
            act(*args)

    def _ask(self, why: str) -> None:
        if not self.leaving and self._over:
            self._program.request(lambda now: self._asked(why, now))

    def _asked(self, why: str, now: float) -> None:
        if self._over:  # no round has come while this waited for its turn
            self._program.judge.rests(self._program.id)
            self._program.node.ask(why, now)

    # Work.

    def _work(self, record: RoundRecord) -> None:
        self._round, self._over, self._reported, self._finished = record, False, False, False
        fate = random.Random(f"round {self._seed} {record.number}")
        fails = fate.random() < self._behaviour.failures
        after = fate.uniform(0.2, 6.0)
        if fails and self._rng.random() < 0.6:
            self._later(after + self._rng.uniform(0.0, 0.3), self._fail, record)
        self._later(self._rng.uniform(0.0, 2.0), self._go_on, record)
        luck = random.Random(f"finish {self._seed} {self._program.id} {record.number}")
        if luck.random() < self._behaviour.finishes:
            leaves_after = luck.uniform(0.0, 4.0) if luck.random() < 0.7 else None
            self._later(luck.uniform(0.2, 5.0), self._finish, record, leaves_after)

    def _in(self, record: RoundRecord) -> bool:
        return self._round is record and not self._over and not self.leaving

    def _go_on(self, record: RoundRecord) -> None:
        """Write something for the other members, and let waiting nodes in."""
        if not self._in(record) or self._finished:
            return
        if self._program.now() < self._behaviour.until and self._rng.random() < 0.5:
            self._write(record)
        progress = self._progress
        if progress is not None and progress.number == record.number and progress.waiting:
            self._ask_anew(record, "others wait to come in")
        self._later(POLL_S, self._go_on, record)

    def _write(self, record: RoundRecord) -> None:
        """Write as the round's own store does: guarded by the round."""
        if self._program.session.lost is None:
            keys = self._program.judge.keys
            op = Add(keys.of_round(record.number) + "steps", 1)
            guarded: AnyOp = Guarded(keys.round, record.encode(), op)
            self._program.perform(guarded, 4.0, self._wrote)

    def _wrote(self, result: object) -> None:
        self._program.judge.counts["late writes refused"] += isinstance(result, Fenced)

    def _busy_in(self, record: RoundRecord) -> bool:
        return (
            self._in(record) and not self._finished and self._program.now() < self._behaviour.until
        )

    def _finish(self, record: RoundRecord, leaves_after: float | None) -> None:
        """Be done with the round, and perhaps leave then."""
        if self._busy_in(record):
            self._finished = True
            self._program.judge.finishes(self._program.id, record.number)
            self._program.request(self._program.node.finish)
            if leaves_after is not None:
                self._later(leaves_after, self._leave_finished, record)

    def _leave_finished(self, record: RoundRecord) -> None:
        if self._in(record) and self._program.now() < self._behaviour.until:
            self.leave()

    def _fail(self, record: RoundRecord) -> None:
        """Report a failed worker, then ask for a new round."""
        if self._busy_in(record):
            self._program.request(lambda now: self._program.node.count_failure(now, now))
            self._await_count(record, self._program.now() + COUNT_WITHIN_S)

    def _await_count(self, record: RoundRecord, until: float) -> None:
        if not self._in(record):
            return
        if self._reported or self._program.now() >= until:
            self._ask_anew(record, "a worker failed")
        else:
            self._later(0.1, self._await_count, record, until)

    def _ask_anew(self, record: RoundRecord, why: str) -> None:
        if self._in(record):
            self._over = True
            self._program.judge.asks(self._program.id, record.number)
            self._ask(why)

    # The end of the store's host (E3).

    def _host_until_alone(self) -> None:
        """Keep the store up until every other node has left."""
        self._program.perform(ListPrefix(self._program.judge.keys.nodes), 1.0, self._others)

    def _others(self, result: object) -> None:
        entries = result if isinstance(result, tuple) else None
        alone = entries is not None and all(
            Announcement.decode(entry.value).phase is Phase.LEFT for entry in entries
        )
        if alone and self.hosts_until is not None:
            self.hosts_until()
            self.end("left")
        else:
            self._later(0.1, self._host_until_alone)
