"""Simulated calls that are repeated until they are answered, over many seeds.

    python -m holdfast.testing.oncesim --seeds 1000        fresh seeds; the first is printed
    python -m holdfast.testing.oncesim --seed 123          one seed, with its whole trace

Each seed draws 2 to 5 workers and all that goes wrong: requests, answers and notes are lost, late,
doubled and out of order, connections break, pairs of workers are cut off from each other, workers
stop for a while, die, and come back as new ones; of a death each worker hears at another moment,
some even before the dead one has stopped. Callers are impatient in different ways, and some cancel.
What insists (`rpc/insisting.py`) and what answers (`rpc/answering.py`) are the real ones; `Worker`
is what is around them. Checked at every step:

    O1  a call is run at most once, and only by the incarnation that it was made for
        (AN-2, IS-2, RC-1)
    O2  a call is completed once; if with an answer, then with its own, and after it has run
        (IS-1, RC-2); it is refused only if its caller has been given up (IS-5)
    O3  nothing is sent of a call that is over, or whose time is up (IS-3)
    O4  nothing is run for a caller that has been given up (AN-4)

Then the network heals, everybody calls everybody once more, and within a bound

    L1  every call is completed (IS-1), and no answer is kept any more (IS-5, RC-3)

A run of many seeds counts only if it was hard enough: see `seeds.Tally.too_easy`.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.testing.faultplan import (
    Crash,
    Fault,
    FaultPlan,
    Incident,
    Partition,
    Pause,
    draw_partition,
    draw_pause,
    draw_rates,
)
from holdfast.testing.network import Simulation
from holdfast.testing.onceworker import Call, Try, Worker
from holdfast.testing.seeds import Report, Tally, command, run_many

__all__ = ["OncePlan", "OnceSim", "draw_plan", "main", "run_seed", "run_seeds"]

_MODULE = "holdfast.testing.oncesim"
_LEAST = {"calls": 10, "runs": 8, "retries": 1}

SETTLE_S = 60.0
"""Within which time everything must be over once the network has healed (L1)."""


@dataclass(frozen=True, slots=True)
class OncePlan:
    """All that a seed decides."""

    faults: FaultPlan
    workers: int
    every_s: float
    """How often a worker calls another one, on average."""

    def __str__(self) -> str:
        return f"{self.workers} workers, each calls every {self.every_s:.2f} s\n{self.faults}"


def draw_plan(seed: int) -> OncePlan:
    """Decide from the seed all that will go wrong."""
    rng = random.Random(f"once {seed}")
    names = [f"w{number}" for number in range(rng.choice((2, 2, 3, 3, 4, 5)))]
    work_s = rng.uniform(3.0, 8.0)
    pairs = [(one, other) for one in names for other in names if one != other]
    incidents: list[Incident] = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        incidents.append(draw_partition(rng, pairs, work_s, 3.0))
    for _ in range(rng.choice((0, 0, 1, 2))):
        incidents.append(draw_pause(rng, names, work_s, 2.0))
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        at = rng.uniform(0.3, work_s)
        back = rng.choice((None, at + rng.uniform(0.1, 3.0)))
        incidents.append(Crash(at, rng.choice(names), back, rng.random() < 0.5))
    low = rng.uniform(0.0002, 0.01)
    faults = FaultPlan(
        latency_s=(low, low * rng.uniform(1.5, 30.0)),
        delay_s=rng.choice((0.05, 0.5, 3.0)),
        rates=draw_rates(rng),
        incidents=tuple(incidents),
        calm_at=work_s,
    )
    return OncePlan(faults, len(names), rng.choice((0.1, 0.2, 0.4)))


class OnceSim:
    """A run of one plan, and its judge."""

    def __init__(self, seed: int, plan: OncePlan, *, traced: bool = False) -> None:
        self.plan = plan
        self.sim = Simulation(seed, traced=traced)
        self.rng = self.sim.rng
        self.faults: Counter[Fault] = Counter()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.calls: list[Call] = []
        self.healed = False
        self.workers: dict[str, Worker] = {}
        self._names: dict[str, str] = {}  # worker → its life now
        self._left: set[str] = set()  # those who are gone, for all that the directory knows
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
        """Let everybody call, then heal the network, and wait until all is over."""
        self.sim.run(self.plan.faults.calm_at)
        self.healed = True
        # What is late, and who is paused or dead without anybody knowing, may still come to light.
        self.sim.run(self.sim.now + 10.0)
        for worker in self.living():
            for other in self.living():
                if other is not worker:
                    worker.call(other.me, patient=True)
        end = self.sim.now + SETTLE_S
        while self.sim.now < end and self._unsettled():
            self.sim.run(self.sim.now + 1.0)
        for text in self._unsettled():
            self.fail(f"L1: {text}")

    def _unsettled(self) -> list[str]:
        open_ = [f"{call} is not completed" for call in self.calls if call.is_open()]
        kept = [(worker.me, worker.answerer.kept_answers) for worker in self.living()]
        return open_ + [f"{me} keeps {number} answers" for me, number in kept if number]

    # The judge.

    def fail(self, text: str) -> None:
        """Note that a promise is broken."""
        self.failures.append(f"{self.sim.now:.6f} {text}")
        self.sim.note("BROKEN", text)

    # Who is there.

    def living(self) -> list[Worker]:
        """Return those that live, and are known to."""
        return [one for one in self.workers.values() if one.alive and one.me not in self._left]

    def is_known(self, worker: str) -> bool:
        """Say whether a life is, for all that the directory knows, not over."""
        return worker not in self._left

    def known_to(self, worker: Worker) -> list[str]:
        """Return those others that a worker may call: it has not heard of their end."""
        return [one for one in self._names.values() if one != worker.me and one not in worker.gone]

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
        for gone in sorted(self._left):
            worker.died(gone)
        self.later(worker, self.rng.random() * self.plan.every_s, worker.act)

    def _pause(self, pause: Pause) -> None:
        self.workers[self._names[pause.host]].paused_until = pause.until

    def _crash(self, crash: Crash) -> None:
        life = self._names[crash.host]
        worker = self.workers[life]
        if life in self._left:
            return
        self.faults[Fault.SILENT_CRASH if crash.silent else Fault.CRASH] += 1
        # A lease may end before its worker does: it is cut off, and will know it soon.
        lives_on = self.rng.choice((0.0, 0.0, self.rng.random()))
        heard_within = 6.0 if crash.silent else self.rng.choice((0.01, 0.6))
        self.sim.call_later(lives_on, self._end, worker)
        self._left.add(life)
        for other in self.workers.values():
            if other is not worker and other.alive:
                self.later(other, self.rng.random() * heard_within, other.died, life)
        if crash.back is not None:
            self.sim.call_at(max(crash.back, self.sim.now + lives_on), self._join, crash.host)

    def _end(self, worker: Worker) -> None:
        self.sim.note(worker.me, "dies")
        worker.alive = False

    # The network.

    def strikes(self, fault: Fault) -> bool:
        """Say whether a fault strikes now."""
        struck = not self.healed and self.rng.random() < getattr(
            self.plan.faults.rates, fault.value
        )
        if struck:
            self.faults[fault] += 1
        return struck

    def carry(
        self, source: str, target: str, act: Callable[..., None], *args: Any, via: Try | None
    ) -> None:
        """Let something arrive at a worker, or not; `via` is the connection, and may break."""
        rng, faults = self.rng, self.plan.faults
        delay = rng.uniform(*faults.latency_s)
        if self._cut(source, target) or self.strikes(Fault.DROP):
            self.sim.note("lost:", source, target, act.__name__)
            if via is not None and via.limitless:
                via.breaks(delay + rng.random())  # nothing else would ever tell
            return
        if via is not None and self.strikes(Fault.RESET):
            via.breaks(delay * 2 * rng.random())  # before it arrives, or after
        if self.strikes(Fault.DELAY):
            delay += rng.random() * faults.delay_s
        if self.strikes(Fault.REORDER):
            delay += rng.random() * 10 * faults.latency_s[1]
        worker = self.workers[target]
        if self.strikes(Fault.DUPLICATE):
            self.later(worker, delay + rng.random() * faults.delay_s, act, *args)
        self.later(worker, delay, act, *args)

    def _cut(self, source: str, target: str) -> bool:
        ends = (source.partition(".")[0], target.partition(".")[0])
        for one in self.plan.faults.incidents:
            if isinstance(one, Partition) and one.at <= self.sim.now < one.until:
                there = (one.source, one.target)
                if ends == there or (not one.one_way and ends == there[::-1]):
                    self.faults[Fault.ONE_WAY if one.one_way else Fault.PARTITION] += 1
                    return True
        return False


def run_seed(seed: int, *, traced: bool = False) -> Report:
    """Run one seed, and judge it."""
    plan = draw_plan(seed)
    run = OnceSim(seed, plan, traced=traced)
    try:
        run.run()
    except Exception:
        # Whatever the real parts raise is found by this seed, and must be shown with it.
        run.fail(traceback.format_exc())
    return Report(_MODULE, seed, plan, run.failures, run.sim.trace, run.faults, run.counts)


def run_seeds(
    seeds: Iterable[int], *, processes: int = 1, show: Callable[[str], object] = lambda text: None
) -> Tally:
    """Run many seeds, untraced; `show` gets the first broken ones as they are found."""
    return run_many(run_seed, _LEAST, seeds, processes, show)


def main(argv: Sequence[str] | None = None) -> int:
    """Run seeds from the command line; 0 if no promise was broken and the runs count."""
    return command("simulation of calls that are repeated", _MODULE, run_seed, _LEAST, argv)


if __name__ == "__main__":
    sys.exit(main())
