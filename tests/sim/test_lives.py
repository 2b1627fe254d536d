"""Simulated workers stand still, die, come back, and are cut off."""

from __future__ import annotations

from holdfast.testing.faultplan import Crash, Fault, FaultPlan, Partition, Pause, Rates
from holdfast.testing.network import Simulation
from tests.sim.lives import Lives


class Worker:
    def __init__(self, me: str) -> None:
        self.me = me
        self.alive = True
        self.paused_until = 0.0
        self.began = 0
        self.gone: list[str] = []

    def act(self) -> None:
        self.began += 1

    def died(self, life: str) -> None:
        self.gone.append(life)


class Three(Lives[Worker]):
    def __init__(self, plan: FaultPlan) -> None:
        super().__init__(Simulation(1), plan, 0.1)
        self.begin(3)

    def make(self, life: str) -> Worker:
        return Worker(life)


def test_all_begin_and_nothing_goes_wrong() -> None:
    run = Three(FaultPlan())
    run.sim.run(1.0)
    assert [worker.began for worker in run.workers.values()] == [1, 1, 1]
    assert not run.faults


def test_the_others_hear_of_a_death_and_the_worker_comes_back_as_another() -> None:
    run = Three(FaultPlan(incidents=(Crash(1.0, "w0", 9.0), Crash(1.5, "w0"))))
    run.sim.run(10.0)
    assert [worker.alive for worker in run.workers.values()] == [False, True, True, True]
    assert [worker.gone for worker in run.workers.values()][1:3] == [["w0.0"]] * 2
    assert [run.is_known(life) for life in ("w0.0", "w0.3")] == [False, True]
    assert run.faults == {Fault.CRASH: 1}  # no worker dies twice


def test_a_worker_that_stands_still_acts_later() -> None:
    run = Three(FaultPlan(incidents=(Pause(0.5, 2.0, "w0"),)))
    run.sim.run(1.0)
    told: list[float] = []
    run.later(run.workers["w0.0"], 0.1, lambda: told.append(run.sim.now))
    run.sim.run(5.0)
    assert told == [2.0]
    assert run.faults[Fault.PAUSE] == 1


def test_a_partition_cuts_one_way_or_both() -> None:
    cuts = (Partition(0, 5, "w0", "w1", one_way=True), Partition(0, 5, "w1", "w2"))
    run = Three(FaultPlan(incidents=cuts))
    assert [run.cut("w0.0", "w1.1"), run.cut("w1.1", "w0.0")] == [True, False]
    assert [run.cut("w1.1", "w2.2"), run.cut("w2.2", "w1.1")] == [True, True]
    run.sim.run(5.0)
    assert not run.cut("w0.0", "w1.1")


def test_nothing_strikes_when_it_is_calm() -> None:
    run = Three(FaultPlan(rates=Rates(drop=1.0), calm_at=1.0))
    assert [run.strikes(Fault.DROP), run.strikes(Fault.DELAY)] == [True, False]
    run.sim.run(1.0)
    assert not run.strikes(Fault.DROP)
