"""The run of a plan of remote references, and its command line. Seeds are run in tests/sim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.rpc.rref.protocol import References
from holdfast.testing.faultplan import Crash, Fault, FaultPlan, Partition, Pause, Rates
from tests.sim.rref.plan import RRefPlan
from tests.sim.rref.sim import RRefSim, main, run_seed

CALM = RRefPlan(FaultPlan(calm_at=4.0), 3, 0.1, frozenset(), 1 << 16)


def ran(plan: RRefPlan) -> RRefSim:
    run = RRefSim(1, plan)
    run.run()
    return run


def with_faults(**what: object) -> RRefPlan:
    return replace(CALM, faults=replace(CALM.faults, **what))  # type: ignore[arg-type]


def test_a_calm_run_makes_passes_finds_and_frees() -> None:
    run = ran(CALM)
    assert not run.judge.failures
    assert not run.faults
    assert min(run.judge.counts[name] for name in ("values", "freed", "taken", "found")) > 10
    assert run.judge.counts["refused"] == run.judge.counts["deaths"] == 0


@pytest.mark.parametrize("fault", ["drop", "delay", "duplicate", "reorder", "reset"])
def test_each_fault_of_messages_strikes_and_is_counted(fault: str) -> None:
    run = ran(with_faults(rates=Rates(**{fault: 0.2})))
    assert not run.judge.failures
    assert set(run.faults) == {Fault(fault)}


@pytest.mark.parametrize("one_way", [False, True])
def test_a_partitioned_worker_receives_nothing_meanwhile(one_way: bool) -> None:
    run = ran(with_faults(incidents=(Partition(1.0, 3.0, "w0", "w1", one_way),)))
    assert not run.judge.failures
    assert set(run.faults) == {Fault.ONE_WAY if one_way else Fault.PARTITION}


def test_a_paused_worker_goes_on_later() -> None:
    run = ran(with_faults(incidents=(Pause(1.0, 2.0, "w0"),)))
    assert not run.judge.failures
    assert run.faults[Fault.PAUSE] > 0


@pytest.mark.parametrize("silent", [False, True])
def test_a_worker_that_dies_may_come_back_with_a_new_incarnation(silent: bool) -> None:
    run = ran(with_faults(incidents=(Crash(1.0, "w0", 2.5, silent),)))
    assert not run.judge.failures
    assert [worker.me for worker in run.living()] == ["w1.1", "w2.2", "w0.3"]
    assert not run.is_known("w0.0")
    assert run.is_known("w0.3")


def test_a_giver_is_struck_when_it_gives() -> None:
    run = ran(replace(CALM, targeted_crashes=frozenset({3})))
    assert not run.judge.failures
    assert run.faults[Fault.CRASH] == run.judge.counts["deaths"] == 1


def test_whatever_the_machine_raises_is_found_by_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(self: References, owner: str) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(References, "ask", ask)
    (failure,) = run_seed(1).failures
    assert "KeyError: 'planted'" in failure


def test_the_command_runs_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    assert "seed 3: 0 broken promises" in capsys.readouterr().out
