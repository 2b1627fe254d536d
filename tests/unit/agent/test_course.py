"""How an agent goes on after a failure: the restart rules, and the pause before a restart."""

from __future__ import annotations

from dataclasses import replace
from signal import SIGTERM

from holdfast.agent.effects import Close, Effect, Finish, Join, Publish
from holdfast.agent.machine import GATHER_S, AgentMachine, State, Terms
from holdfast.agent.outcome import Ending
from holdfast.agent.policy import RestartBudget
from holdfast.agent.rules import RestartBackoff, RestartRules
from holdfast.errors import RendezvousClosed
from holdfast.process.outcome.failure import Failure
from tests.unit.agent.machine_events import EVENTS, agent, outcome, peer
from tests.unit.agent.stories import brief, ended_well, failed, failure, place

BUDGET = RestartBudget(9)
REFUSING = Terms(budget=BUDGET, rules=RestartRules(only=("SIGSEGV",)), grace_s=30.0)
SAME = Terms(budget=BUDGET, rules=RestartRules(same_max=3))
PAUSING = Terms(budget=BUDGET, backoff=RestartBackoff(4.0, 60.0), run_id="job")


def at_work(terms: Terms, *, nodes: int = 1, failures: int = 0) -> AgentMachine:
    return agent(
        lambda a: a.start(),
        lambda a: a.joined(place(nodes=nodes, failures=failures), 0.0),
        terms=terms,
    )


def after_failure(
    terms: Terms, told: Failure, *, nodes: int = 1, before: tuple[str, ...] = (), count: int = 1
) -> AgentMachine:
    """Return a machine whose worker failed, was counted, and whose others have ended."""
    machine = at_work(terms, nodes=nodes, failures=count - 1)
    machine.worker_exited(failed(told), 5.0)
    machine.counted(count, (), 0.0, 5.0, before)
    machine.take_effects()
    machine.group_ended((), 5.0)
    return machine


def briefly(machine: AgentMachine) -> list[str]:
    return [brief(effect) for effect in machine.take_effects()]


def kinds(effects: list[Effect]) -> list[type]:
    return [type(one) for one in effects]


# The rules.


def test_a_failure_that_no_rule_forgives_ends_the_job() -> None:  # AG-12
    machine = after_failure(REFUSING, failure(0))
    effects = machine.take_effects()
    assert kinds(effects) == [Close, Finish]
    told = "rank 0 on a failed (exit code 1): boom; restarts only after SIGSEGV: giving up"
    assert effects[0] == Close(told, True)
    assert isinstance(effects[1], Finish)
    assert (effects[1].outcome.ending, effects[1].outcome.reason) == (Ending.FAILED, told)


def test_a_failure_that_a_rule_names_restarts() -> None:
    machine = after_failure(REFUSING, failure(0, code=-11))
    assert kinds(machine.take_effects()) == [Join]


def test_the_other_nodes_are_heard_before_the_job_is_given_up() -> None:  # AG-12
    machine = after_failure(REFUSING, failure(0), nodes=2)
    assert briefly(machine) == ["publish 0 final"]
    assert (machine.state, machine.next_wake()) == (State.STOPPING, 5.0 + GATHER_S)
    machine.tick(5.0)
    machine.round_over("b is gone", 5.0)
    machine.run_ended("b closed it", True, 5.0)
    assert briefly(machine) == []
    machine.tick(5.0 + GATHER_S)
    assert briefly(machine) == ["publish 0 final", "close failed", "publish 0 final"]
    assert machine.state is State.GATHERING


def test_another_nodes_failure_that_came_first_is_judged_there() -> None:  # AG-12
    machine = after_failure(REFUSING, failure(0), nodes=2)
    machine.take_effects()
    peer(final=False)(machine)
    assert machine.state is State.STOPPING
    peer(2)(machine)  # at 9, ours was at 10
    assert kinds(machine.take_effects()) == [Join]
    assert machine.next_wake() is None


def test_when_all_others_have_said_everything_it_is_given_up_at_once() -> None:
    machine = after_failure(REFUSING, failure(0, at=8.0), nodes=2)
    machine.take_effects()
    peer(2, final=True)(machine)
    assert briefly(machine)[:2] == ["publish 0 final", "close failed"]
    assert outcome_of(machine) == (Ending.FAILED, [0, 2])


def outcome_of(machine: AgentMachine) -> tuple[Ending, list[int]]:
    machine.tick(100.0)
    machine.take_effects()
    reasons = machine._failures.all()
    return Ending.FAILED if machine.state is State.ENDED else Ending.BROKEN, [
        one.rank for one in reasons
    ]


def test_a_signal_shortens_that_wait_and_hides_nothing() -> None:  # AG-5
    machine = after_failure(REFUSING, failure(0), nodes=2)
    machine.take_effects()
    machine.signalled(SIGTERM, 6.0)
    effects = machine.take_effects()
    assert kinds(effects) == [Publish, Close, Publish, Finish]
    assert isinstance(effects[-1], Finish)
    assert effects[-1].outcome.ending is Ending.FAILED


def test_a_failure_that_came_too_often_says_how_often() -> None:
    told = replace(failure(0), error_type="ValueError", step=7)
    same = "ValueError at step 7"
    machine = after_failure(SAME, told, before=(same, same), count=3)
    effects = machine.take_effects()
    assert kinds(effects) == [Close, Finish]
    assert isinstance(effects[-1], Finish)
    assert effects[-1].outcome.failures[0].repeated == 3
    assert "the same failure at step 7 3 times in a row" in effects[-1].outcome.reason


def test_a_failure_is_kept_for_the_judgement_of_later_ones() -> None:
    machine = after_failure(SAME, replace(failure(0), step=7), before=("",), count=2)
    assert briefly(machine)[0] == "remember 2: exit code 1 at step 7"


def test_as_many_failures_are_asked_for_as_are_compared() -> None:
    machine = at_work(SAME)
    machine.worker_exited(failed(failure(0)), 5.0)
    counting = machine.take_effects()[0]
    assert getattr(counting, "compared", None) == 2


def test_a_stall_is_a_failure_of_workers_that_run() -> None:
    machine = at_work(REFUSING)
    machine.stalled(replace(failure(0), kind="stall"))
    assert briefly(machine) == ["count", "publish 0", "stop SIGTERM 30"]
    machine.stalled(replace(failure(0), kind="stall"))  # and no second one beside it
    assert briefly(machine) == []


# The pause.


def pausing() -> AgentMachine:
    machine = after_failure(PAUSING, failure(0), nodes=2)
    assert (machine.take_effects(), machine.state) == ([], State.BACKOFF)
    return machine


def test_after_a_failure_there_is_a_pause_before_the_next_round() -> None:  # AG-13
    machine = pausing()
    pause_s = PAUSING.backoff.pause_s("job", 1)
    assert machine.next_wake() == machine.resume_at == 5.0 + pause_s
    assert machine.reason.endswith(f"restarting after a pause of {pause_s:.1f} s")
    machine.tick(5.0 + pause_s - 0.01)
    for name in ("newcomers", "round over", "peer failed", "worker failed"):
        EVENTS[name](machine)
    assert (machine.take_effects(), machine.state) == ([], State.BACKOFF)
    machine.tick(5.0 + pause_s)
    assert kinds(machine.take_effects()) == [Join]


def test_all_nodes_of_a_round_pause_equally() -> None:  # AG-13
    other = at_work(PAUSING, nodes=2)
    peer(2)(other)
    other.group_ended((), 5.0)
    assert other.state is State.BACKOFF
    assert other.next_wake() == pausing().next_wake()


def test_a_change_of_the_nodes_needs_no_pause() -> None:
    machine = at_work(PAUSING, nodes=2)
    machine.round_over("b is gone", 5.0)
    machine.group_ended((), 5.0)
    assert machine.state is State.JOINING


def test_the_end_of_the_run_ends_the_pause() -> None:  # AG-13
    machine = pausing()
    machine.run_ended("b closed it", True, 6.0)
    assert kinds(machine.take_effects()) == [Join]
    machine.join_failed(RendezvousClosed("b closed it", failed=True), 6.0)
    machine.tick(6.0 + GATHER_S)
    assert outcome(machine).ending is Ending.FAILED


def test_a_signal_a_stop_and_an_error_end_the_pause() -> None:  # AG-13
    for name, ending in (
        ("signal", Ending.SIGNALLED),
        ("stop", Ending.STOPPED),
        ("broke", Ending.BROKEN),
    ):
        machine = pausing()
        EVENTS[name](machine)
        assert outcome(machine).ending is ending


def test_a_pause_has_no_work_to_finish() -> None:
    machine = pausing()
    machine.worker_exited(ended_well(1), 6.0)
    machine.group_ended((), 6.0)
    assert machine.state is State.BACKOFF
