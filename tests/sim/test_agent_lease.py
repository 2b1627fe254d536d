"""What an agent does when the end of its lease comes near (AG-10), or the run has ended."""

from __future__ import annotations

from signal import SIGTERM

from holdfast.agent.effects import Count, Join, Publish, Start, Stop
from holdfast.agent.machine import NOT_HELD, State
from holdfast.agent.outcome import Ending
from holdfast.errors import RunOver
from holdfast.rendezvous.effects import Held
from tests.unit.agent.stories import ended_well, place
from tests.unit.agent.test_machine import RUN, START, after, agent, counts, fails, outcome

HELD = Held(stop_at=12.0, kill_at=13.5)


def test_ag10_workers_are_stopped_in_the_time_that_is_left_of_the_lease() -> None:
    machine = agent(*RUN)
    machine.held(HELD)
    assert machine.next_wake() == 12.0
    machine.tick(11.9)
    assert machine.take_effects() == []
    machine.tick(12.5)
    assert machine.take_effects() == [Stop(SIGTERM, 1.0, NOT_HELD)]
    assert machine.state is State.STOPPING
    assert machine.next_wake() is None  # told once
    machine.group_ended((), 13.0)
    assert Join(NOT_HELD) in machine.take_effects()


def test_ag10_a_renewal_moves_the_end() -> None:
    machine = agent(*RUN)
    machine.held(HELD)
    machine.held(Held(17.0, 18.5))
    machine.tick(16.9)
    assert machine.take_effects() == []


def test_ag10_after_a_long_pause_there_is_no_grace() -> None:
    machine = agent(*RUN)
    machine.held(HELD)
    machine.tick(100.0)
    assert machine.take_effects() == [Stop(SIGTERM, 0.0, NOT_HELD)]


def test_ag10_what_became_of_workers_then_is_no_failure() -> None:
    machine = agent(*RUN)
    machine.held(HELD)
    machine.tick(100.0)
    after(machine, fails())
    machine.group_ended((), 100.0)
    wanted = machine.take_effects()
    assert not [one for one in wanted if isinstance(one, Count)]
    assert [one.failures for one in wanted if isinstance(one, Publish)] == [()]
    assert Join(NOT_HELD) in wanted


def test_ag10_a_stop_that_takes_longer_than_the_lease_is_hurried() -> None:
    machine = agent(*RUN, fails(), counts(1))
    machine.held(HELD)
    machine.tick(12.0)
    assert machine.take_effects() == [Stop(SIGTERM, 1.5, NOT_HELD)]
    machine.group_ended((), 13.0)
    (join,) = [one for one in machine.take_effects() if isinstance(one, Join)]
    assert "failed" in join.why  # what ended the round is still the failure


def test_ag10_no_workers_are_started_after_the_end_of_the_lease() -> None:
    machine = agent(*START)
    machine.held(HELD)
    machine.joined(place(), 12.0)
    assert machine.take_effects() == [Join(NOT_HELD)]
    assert machine.state is State.JOINING
    machine.held(Held(17.0, 18.5))
    machine.joined(place(), 12.1)
    assert [type(one) for one in machine.take_effects()] == [Start]


def test_ag10_a_node_without_workers_waits_in_peace() -> None:
    machine = agent(*RUN)
    machine.worker_exited(ended_well(0), 1.0)
    machine.worker_exited(ended_well(1), 1.0)
    machine.take_effects()
    machine.held(HELD)
    machine.tick(100.0)
    assert machine.take_effects() == []


def test_a_run_that_had_ended_before_is_not_taken_for_done() -> None:
    machine = agent(*START)
    error = RunOver("run 'job' ended at noon")
    machine.join_failed(error, 5.0)
    ending = outcome(machine)
    assert (ending.ending, ending.error) == (Ending.BROKEN, error)
