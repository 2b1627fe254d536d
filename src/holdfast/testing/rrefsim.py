"""Simulated remote references: workers that make, pass on and drop them, over many seeds.

    python -m holdfast.testing.rrefsim --seeds 1000        fresh seeds; the first is printed
    python -m holdfast.testing.rrefsim --seed 123          one seed, with its whole trace

Each seed draws 2 to 8 workers and all that goes wrong: messages and answers are lost, late, doubled
and out of order, pairs of workers are cut off from each other in one direction or both, workers
stop for a while, die, and come back as new ones; of a death each worker hears at another moment,
some even before the dead one has stopped. `rrefjudge.py` checks at every step that

    S1  no value is freed while a confirmed fork, or a local hold, of a living worker stands on it
        (RR-1), and none is made twice (RR-6)
    S2  a confirmed reference finds its value, as long as its owner lives (RR-1)
    S3  a reference is refused only if a worker through whose hands it came is gone (RR-5)
    S4  what each worker knows is consistent (`References.check_invariants`)

Then the network heals, everybody drops everything, and within a bound

    L1  nothing is left: no value, no fork, no reference, nothing to be sent (RR-2)

A run of many seeds counts only if it was hard enough: see `seeds.Tally.too_easy`.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast.rpc.messages import Kind
from holdfast.rpc.retry import RetryPolicy
from holdfast.rpc.rref_protocol import Freed, Number, Outcome, References, Send, Ticket
from holdfast.testing.faultplan import Crash, Fault, Partition, Pause
from holdfast.testing.network import Simulation
from holdfast.testing.rrefjudge import Handle, Judge
from holdfast.testing.rrefplan import RRefPlan, draw_plan
from holdfast.testing.seeds import Report, Tally, command, run_many

__all__ = ["Frame", "RRefSim", "Worker", "main", "run_seed", "run_seeds"]

_MODULE = "holdfast.testing.rrefsim"
_LEAST = {"values": 5, "freed": 5}

_GIFT = Kind.PYTHON_CALL

ANSWER_S = 0.5
"""How long a worker waits for an answer before it tries again."""
RETRY = RetryPolicy(max_retries=5, delay_s=0.1, backoff=1.5)
SETTLE_S = 30.0
"""Within which time everything must be gone once it is dropped (L1)."""


class Frame(NamedTuple):
    """A message on its way: a request, or the answer to one."""

    source: str
    target: str
    call: int
    kind: Kind
    body: Any


Heard = Callable[[Any], None]
"""Hears the answer to a request, or None if there is none in time."""


class Worker:
    """One life of a worker: the machine under test, and a shell as thin as can be."""

    def __init__(self, sim: RRefSim, me: str) -> None:
        self.sim = sim
        self.me = me
        self.alive = True
        self.paused_until = 0.0
        self.references = References(me, sim.plan.remembered)
        self.values: set[Number] = set()
        self.handles: list[Handle] = []
        self.unsent = 0
        self.strangers = frozenset(sim.left)
        """Those who were gone before this one came: it never hears of them."""
        self._calls: dict[int, Heard] = {}
        self._call = 0

    # What its user does.

    def act(self) -> None:
        """Do something, and plan what comes next."""
        sim, rng = self.sim, self.sim.rng
        if not self.alive or sim.dropping:
            return
        sim.later(self, rng.expovariate(1.0 / sim.plan.every_s), self.act)
        what = rng.random()
        if what < 0.2 or not self.handles:
            self._make(rng.choice(sim.known_to(self)))
        elif what < 0.6:
            self._give(rng.choice(self.handles), rng.choice(sim.known_to(self)))
        elif what < 0.75:
            self._fetch(rng.choice(self.handles))
        else:
            self.drop(rng.choice(self.handles))

    def drop(self, handle: Handle) -> None:
        """Let a reference go."""
        self.handles.remove(handle)
        if handle.fork is None:
            self.perform(self.references.let_go(handle.reference))
        else:
            self.perform(self.references.drop(handle.fork))

    def _make(self, owner: str) -> None:
        sim = self.sim
        sim.judge.counts["values"] += 1
        if owner == self.me and sim.rng.random() < 0.5:
            reference = self.references.own()
            self.values.add(reference)
            self.handles.append(Handle(reference, owner, None))
            return
        ticket = self.references.ask(owner)
        self.handles.append(Handle(ticket.reference, owner, ticket.fork))
        sim.judge.made(ticket)
        body = (ticket.reference, ticket.fork)
        # Sent once; whatever comes of it, it may be deleted from then on.
        self.request(
            owner,
            Kind.PYTHON_REMOTE_CALL,
            body,
            lambda _: self.perform(self.references.confirmed(ticket.fork)),
        )

    def _give(self, handle: Handle, to: str) -> None:
        sim, references = self.sim, self.references
        if handle.fork is None:
            ticket = references.give_own(handle.reference, to)
        else:
            ticket = references.give(handle.fork, to)
        if ticket is None:
            return  # lost
        sim.judge.given(ticket, self.me, handle)
        if sim.strikes(Fault.RESET):
            self.perform(references.not_given(ticket))
        elif handle.fork is not None and sim.ambush(self):
            sim.sim.call_later(sim.rng.random(), sim.send, Frame(self.me, to, 0, _GIFT, ticket))
        else:
            self.insist(to, _GIFT, ticket, lambda _: None)

    def _fetch(self, handle: Handle) -> None:
        sim = self.sim
        if handle.fork is None:
            sim.judge.found(self, handle, self._look(handle.reference))
            return
        if self.references.lost(handle.fork) is not None:
            return

        def heard(answer: Any) -> None:
            if answer is not None and handle in self.handles:
                sim.judge.found(self, handle, answer)

        self.request(handle.owner, Kind.PYTHON_RREF_FETCH_CALL, handle.reference, heard)

    def _look(self, reference: Number) -> str:
        if reference in self.values:
            return "here"
        if self.references.was_freed(reference):
            return "freed"
        return "missing" if self.sim.judge.was_created(reference) else "not yet"

    # What the machine wants.

    def perform(self, outcomes: Iterable[Outcome]) -> None:
        """Do what the machine decided, and let the judge look."""
        for outcome in outcomes:
            match outcome:
                case Freed(reference):
                    self.sim.judge.freed(self, reference, reference in self.values)
                    self.values.discard(reference)
                case Send(kind, to, reference, fork):
                    self.insist(to, kind, (reference, fork), partial(self._sent, outcome))
        self.sim.judge.check(self)

    def _sent(self, sent: Send, answer: Any) -> None:
        references = self.references
        match sent.kind:
            case Kind.RREF_FORK_REQUEST if answer:
                self.perform(references.confirmed(sent.fork))
            case Kind.RREF_FORK_REQUEST:
                self.sim.judge.refused(self, sent)
                self.perform(references.refused(sent.fork))
            case Kind.RREF_USER_DELETE:
                self.perform(references.deleted(sent.fork))
            case _:
                pass

    def died(self, worker: str) -> None:
        """Hear that another one is gone."""
        if self.alive:
            self.sim.sim.note(self.me, "hears of the end of", worker)
            self.perform(self.references.died(worker))

    # Messages.

    def insist(self, to: str, kind: Kind, body: Any, answered: Heard, tried: int = 1) -> None:
        """Send a request until it is answered or the receiver is gone."""
        if tried == 1:
            self.unsent += 1

        def heard(answer: Any) -> None:
            if answer is not None:
                self.unsent -= 1
                answered(answer)
            elif self.references.is_dead(to):
                self.unsent -= 1
            elif tried > RETRY.max_retries and not self.sim.is_known(to):
                self.unsent -= 1
                self.died(to)
            else:
                delay = RETRY.insisting(tried)
                self.sim.later(self, delay, self.insist, to, kind, body, answered, tried + 1)

        self.request(to, kind, body, heard)

    def request(self, to: str, kind: Kind, body: Any, heard: Heard) -> None:
        """Send a request once."""
        self._call += 1
        call = self._call
        self._calls[call] = heard
        self.sim.send(Frame(self.me, to, call, kind, body))
        self.sim.later(self, ANSWER_S, self._hear, call, None)

    def receive(self, frame: Frame) -> None:
        """Take a message."""
        self.sim.sim.note(self.me, "gets", frame.kind.name, frame.body, "from", frame.source)
        if frame.kind is Kind.REPLY:
            self._hear(frame.call, frame.body)
        elif not self.references.is_dead(frame.source):  # else a stale incarnation
            answer = self._answer(frame)
            self.sim.send(Frame(self.me, frame.source, frame.call, Kind.REPLY, answer))

    def _hear(self, call: int, answer: Any) -> None:
        heard = self._calls.pop(call, None)
        if heard is not None:
            heard(answer)

    def _answer(self, frame: Frame) -> Any:
        references = self.references
        match frame.kind:
            case Kind.PYTHON_CALL:  # a gift
                self._take(frame.body)
                return True
            case Kind.PYTHON_RREF_FETCH_CALL:
                return self._look(frame.body)
            case _:
                reference, fork = frame.body
        match frame.kind:
            case Kind.PYTHON_REMOTE_CALL:
                outcomes, first = references.created(reference, fork, frame.source)
                if first:
                    self.values.add(reference)
                    self.sim.judge.created(reference)
                self.perform(outcomes)
            case Kind.RREF_FORK_REQUEST:
                counted = references.fork_requested(reference, fork, frame.source)
                self.perform([])
                return counted
            case Kind.RREF_CHILD_ACCEPT:
                self.perform(references.child_accepted(fork))
            case _:
                self.perform(references.user_deleted(reference, fork))
        return True

    def _take(self, ticket: Ticket) -> None:
        fork = None if ticket.owner == self.me else ticket.fork
        handle = Handle(ticket.reference, ticket.owner, fork)
        freed = fork is None and self.references.was_freed(ticket.reference)
        self.perform(self.references.take(ticket))
        if not freed:
            self.handles.append(handle)
            self.sim.judge.counts["taken"] += 1
            if self.sim.dropping:
                self.drop(handle)


class RRefSim:
    """A run of one plan."""

    def __init__(self, seed: int, plan: RRefPlan, *, traced: bool = False) -> None:
        self.plan = plan
        self.sim = Simulation(seed, traced=traced)
        self.rng = self.sim.rng
        self.faults: Counter[Fault] = Counter()
        self.judge = Judge(self)
        self.dropping = False
        self.workers: dict[str, Worker] = {}
        self._names: dict[str, str] = {}  # worker → its life now
        self.left: set[str] = set()
        """Those who are gone, for all that the directory knows."""
        self._gifts = 0
        for number in range(plan.workers):
            self._join(f"w{number}")
        for incident in plan.faults.incidents:
            match incident:
                case Crash():
                    self.sim.call_at(incident.at, self._crash, incident)
                case Pause():
                    self.sim.call_at(incident.at, self._pause, incident)
                case _:
                    pass  # looked up when something is sent

    def run(self) -> None:
        """Let everybody work, then drop everything, and wait until nothing is left."""
        # Deaths that are heard of late may come after the work.
        self.sim.run(self.plan.faults.calm_at)
        self.dropping = True
        for worker in self.living():
            for handle in list(worker.handles):
                worker.drop(handle)
        end = self.sim.now + SETTLE_S
        while self.sim.now < end and self.judge.left():
            self.sim.run(self.sim.now + 1.0)
        self.judge.ended()

    # Who is there.

    def living(self) -> list[Worker]:
        """Return those that live."""
        return [worker for worker in self.workers.values() if worker.alive]

    def known_to(self, worker: Worker) -> list[str]:
        """Return those that a worker may name: it has not heard of their end."""
        gone, strangers = worker.references.is_dead, worker.strangers
        return [one for one in self._names.values() if one not in strangers and not gone(one)]

    def is_known(self, worker: str) -> bool:
        """Say whether a life is, for all that the directory knows, not over."""
        return worker not in self.left

    def later(self, worker: Worker, delay: float, act: Callable[..., None], *args: Any) -> None:
        """Let a worker do something later in its life; late if it stands still then."""
        self.sim.call_later(delay, self._do, worker, act, args)

    def _do(self, worker: Worker, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not worker.alive:
            return
        if worker.paused_until > self.sim.now:
            self.faults[Fault.PAUSE] += 1
            self.sim.call_at(worker.paused_until, self._do, worker, act, args)
        else:
            act(*args)

    def _join(self, name: str) -> None:
        life = f"{name}.{len(self.workers)}"
        worker = self.workers[life] = Worker(self, life)
        self._names[name] = life
        self.later(worker, self.rng.random() * self.plan.every_s, worker.act)

    def ambush(self, worker: Worker) -> bool:
        """Strike a user who passes on a reference, if it is time: what it gave arrives late."""
        self._gifts += 1
        struck = self._gifts in self.plan.ambushes and worker.me not in self.left
        if struck:
            self._crash(Crash(self.sim.now, worker.me.partition(".")[0]))
        return struck

    def _pause(self, pause: Pause) -> None:
        self.workers[self._names[pause.host]].paused_until = pause.until

    def _crash(self, crash: Crash) -> None:
        life = self._names[crash.host]
        worker = self.workers[life]
        if not worker.alive or life in self.left:
            return
        self.faults[Fault.SILENT_CRASH if crash.silent else Fault.CRASH] += 1
        # A lease may end before its worker does: it is cut off, and will know it soon.
        lives_on = self.rng.choice((0.0, 0.0, self.rng.random()))
        heard_within = 6.0 if crash.silent else self.rng.choice((0.01, 0.6))
        self.sim.call_later(lives_on, self._end, worker)
        self.left.add(life)
        for other in self.living():
            if other is not worker:
                after = self.rng.random() * heard_within
                self.later(other, after, other.died, life)
        if crash.back is not None:
            self.sim.call_at(max(crash.back, self.sim.now + lives_on), self._join, crash.host)

    def _end(self, worker: Worker) -> None:
        self.sim.note(worker.me, "dies")
        worker.alive = False
        self.judge.counts["deaths"] += 1

    # The network.

    def strikes(self, fault: Fault) -> bool:
        """Say whether a fault strikes now."""
        calm = self.sim.now >= self.plan.faults.calm_at
        struck = not calm and self.rng.random() < getattr(self.plan.faults.rates, fault.value)
        if struck:
            self.faults[fault] += 1
        return struck

    def send(self, frame: Frame) -> None:
        """Carry a message, or lose it."""
        sim, rng, faults = self.sim, self.rng, self.plan.faults
        low, high = faults.latency_s
        delay = rng.uniform(low, high)
        if frame.source != frame.target:
            if self._cut(frame) or self.strikes(Fault.DROP):
                sim.note("lost:", frame.kind.name, frame.body, frame.source, frame.target)
                return
            if self.strikes(Fault.DELAY):
                delay += rng.random() * faults.delay_s
            if self.strikes(Fault.REORDER):
                delay += rng.random() * 10 * high
            if self.strikes(Fault.DUPLICATE):
                sim.call_later(delay + rng.random() * faults.delay_s, self._deliver, frame)
        sim.call_later(delay, self._deliver, frame)

    def _cut(self, frame: Frame) -> bool:
        ends = (frame.source.partition(".")[0], frame.target.partition(".")[0])
        for one in self.plan.faults.incidents:
            if isinstance(one, Partition) and one.at <= self.sim.now < one.until:
                there = (one.source, one.target)
                if ends == there or (not one.one_way and ends == there[::-1]):
                    self.faults[Fault.ONE_WAY if one.one_way else Fault.PARTITION] += 1
                    return True
        return False

    def _deliver(self, frame: Frame) -> None:
        target = self.workers[frame.target]
        self._do(target, target.receive, (frame,))


def run_seed(seed: int, *, traced: bool = False) -> Report:
    """Run one seed, and judge it."""
    plan = draw_plan(seed)
    run = RRefSim(seed, plan, traced=traced)
    try:
        run.run()
    except Exception:
        # Whatever the machine raises is found by this seed, and must be shown with it.
        run.judge.fail(traceback.format_exc())
    return Report(
        _MODULE, seed, plan, run.judge.failures, run.sim.trace, run.faults, run.judge.counts
    )


def run_seeds(
    seeds: Iterable[int], *, processes: int = 1, show: Callable[[str], object] = lambda text: None
) -> Tally:
    """Run many seeds, untraced; `show` gets the first broken ones as they are found."""
    return run_many(run_seed, _LEAST, seeds, processes, show)


def main(argv: Sequence[str] | None = None) -> int:
    """Run seeds from the command line; 0 if no promise was broken and the runs count."""
    return command("simulation of remote references", _MODULE, run_seed, _LEAST, argv)


if __name__ == "__main__":
    sys.exit(main())
