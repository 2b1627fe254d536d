"""Simulated calls that are repeated until they are answered, over many seeds.

    python -m tests.sim.once --seeds 1000        fresh seeds; the first is printed
    python -m tests.sim.once --seed 123          one seed, with its whole trace

Each seed draws 2 to 5 workers and all that goes wrong: requests, answers and notes are lost, late,
doubled and out of order, connections break, pairs of workers are cut off from each other, workers
stop for a while, die, and come back as new ones; of a death each worker hears at another moment,
some even before the dead one has stopped. Callers are impatient in different ways, and some cancel.
What retries (`rpc/client/retrying.py`) and what answers (`rpc/server/dispatcher.py`) are the real
ones; `Worker` is what is around them. Checked at every step:

    O1  a call is run at most once, and only by the incarnation that it was made for
        (AN-2, IS-2, RC-1)
    O2  a call is completed once; if with an answer, then with its own, and after it has run
        (IS-1, RC-2); it is refused only if its caller has been given up (IS-5)
    O3  nothing is sent of a call that is over, or whose time is up (IS-3)
    O4  nothing is run for a caller that has been given up (AN-4)

Then the network heals, each worker calls each once more, and within a bound

    L1  every call is completed (IS-1), and no answer is kept any more (IS-5, RC-3)

A run of many seeds counts only if it was hard enough: see `seeds.Tally.too_easy`.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.testing.faultplan import Fault, FaultPlan, draw_faults
from holdfast.testing.network import Simulation
from tests.sim.lives import Lives
from tests.sim.once.worker import Call, Try, Worker
from tests.sim.seeds import Report, SeededRuns

__all__ = ["OncePlan", "OnceSim", "draw_plan", "main", "run_seed", "run_seeds"]

_MODULE = "tests.sim.once"
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
    faults = draw_faults(rng, names, work_s)
    return OncePlan(faults, len(names), rng.choice((0.1, 0.2, 0.4)))


class OnceSim(Lives[Worker]):
    """A run of one plan, and its judge."""

    def __init__(self, seed: int, plan: OncePlan, *, traced: bool = False) -> None:
        super().__init__(Simulation(seed, traced=traced), plan.faults, plan.every_s)
        self.plan = plan
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.calls: list[Call] = []
        self.healed = False
        self.begin(plan.workers)

    def make(self, life: str) -> Worker:
        worker = Worker(self, life)
        for gone in sorted(self.left):
            worker.died(gone)
        return worker

    def run(self) -> None:
        """Let all workers call, then heal the network, and wait until all is over."""
        self.sim.run(self.plan.faults.calm_at)
        self.healed = True
        # Late messages, and unnoticed pauses and deaths, may still come to light.
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

    # Members.

    def living(self) -> list[Worker]:
        """Return those that live, and are known to."""
        return [one for one in self.workers.values() if one.alive and one.me not in self.left]

    def known_to(self, worker: Worker) -> list[str]:
        """Return those others that a worker may call: it has not heard of their end."""
        return [one for one in self._names.values() if one != worker.me and one not in worker.gone]

    # The network.

    def carry(
        self, source: str, target: str, act: Callable[..., None], *args: Any, via: Try | None
    ) -> None:
        """Let something arrive at a worker, or not; `via` is the connection, and may break."""
        rng, faults = self.rng, self.plan.faults
        delay = rng.uniform(*faults.latency_s)
        if self.cut(source, target) or self.strikes(Fault.DROP):
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


_RUNS = SeededRuns("simulation of calls that are repeated", _MODULE, run_seed, _LEAST)
run_seeds, main = _RUNS.run_seeds, _RUNS.main
