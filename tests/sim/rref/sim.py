"""Simulated remote references: workers that make, pass on and drop them, over many seeds.

    python -m tests.sim.rref --seeds 1000        fresh seeds; the first is printed
    python -m tests.sim.rref --seed 123          one seed, with its whole trace

Each seed draws 2 to 8 workers and all that goes wrong: messages and answers are lost, late, doubled
and out of order, pairs of workers are cut off from each other in one direction or both, workers
stop for a while, die, and come back as new ones; of a death each worker hears at another moment,
some even before the dead one has stopped. References travel with calls and with their answers; a
call is sent once, and given up when its answer is late. `judge.py` checks at every step that

    S1  no value is freed while a confirmed fork, or a local hold, of a living worker stands on it
        (RR-1), and none is made twice (RR-6)
    S2  a confirmed reference finds its value, as long as its owner lives (RR-1)
    S3  a reference is refused only if a worker through whose hands it came is gone, or has heard
        that its owner is gone (RR-5)
    S4  what each worker knows is consistent (`rrefjudge.inconsistencies`)

Then the network heals, all workers drop everything, and within a bound

    L1  nothing is left: no value, no fork, no reference, nothing to be sent (RR-2)

A run of many seeds counts only if it was hard enough: see `seeds.Tally.too_easy`.
"""

from __future__ import annotations

import traceback

from holdfast.testing.faultplan import Crash, Fault
from holdfast.testing.network import Simulation
from tests.sim.lives import Lives
from tests.sim.rref.judge import Judge
from tests.sim.rref.plan import RRefPlan, draw_plan
from tests.sim.rref.worker import BEG, Frame, Worker
from tests.sim.seeds import Report, SeededRuns

__all__ = ["RRefSim", "main", "run_seed", "run_seeds"]

_MODULE = "tests.sim.rref"
_LEAST = {"values": 5, "freed": 5}

SETTLE_S = 30.0
"""Within which time everything must be gone once it is dropped (L1)."""


class RRefSim(Lives[Worker]):
    """A run of one plan."""

    def __init__(self, seed: int, plan: RRefPlan, *, traced: bool = False) -> None:
        super().__init__(Simulation(seed, traced=traced), plan.faults, plan.every_s)
        self.plan = plan
        self.judge = Judge(self)
        self.dropping = False
        self._gifts = 0
        self.begin(plan.workers)

    def make(self, life: str) -> Worker:
        return Worker(self, life)

    def ended(self, worker: Worker) -> None:
        self.judge.counts["deaths"] += 1

    def run(self) -> None:
        """Let all workers work, then drop everything, and wait until nothing is left."""
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

    # Members.

    def living(self) -> list[Worker]:
        """Return those that live."""
        return [worker for worker in self.workers.values() if worker.alive]

    def known_to(self, worker: Worker) -> list[str]:
        """Return those that a worker may name: it has not heard of their end."""
        gone, strangers = worker.references.is_dead, worker.strangers
        return [one for one in self._names.values() if one not in strangers and not gone(one)]

    def targeted_crash(self, worker: Worker) -> bool:
        """Kill a worker that passes on a reference, if it is time: its gift arrives late."""
        self._gifts += 1
        struck = self._gifts in self.plan.targeted_crashes and worker.me not in self.left
        if struck:
            self.crash(Crash(self.sim.now, worker.me.partition(".")[0]))
        return struck

    # The network.

    def send(self, frame: Frame) -> None:
        """Carry a message, or lose it."""
        sim, rng, faults = self.sim, self.rng, self.plan.faults
        low, high = faults.latency_s
        delay = rng.uniform(low, high)
        if frame.source != frame.target:
            if self.cut(frame.source, frame.target) or self.strikes(Fault.DROP):
                sim.note("lost:", frame.kind.name, frame.body, frame.source, frame.target)
                return
            if self.strikes(Fault.DELAY):
                delay += rng.random() * faults.delay_s
            if self.strikes(Fault.REORDER):
                delay += rng.random() * 10 * high
            if frame.kind is not BEG and self.strikes(Fault.DUPLICATE):
                sim.call_later(delay + rng.random() * faults.delay_s, self._deliver, frame)
        sim.call_later(delay, self._deliver, frame)

    def _deliver(self, frame: Frame) -> None:
        target = self.workers[frame.target]
        self.do(target, target.receive, (frame,))


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


_RUNS = SeededRuns("simulation of remote references", _MODULE, run_seed, _LEAST)
run_seeds, main = _RUNS.run_seeds, _RUNS.main
