"""What an agent does about its workers: every event in every state, and the guarantees."""

from __future__ import annotations

from signal import SIGTERM

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.effects import Close, CountFailure, Finish, Join, Publish, StartWorkers, Stop
from holdfast.agent.machine import GATHER_S, NOT_HELD, State, Terms
from holdfast.agent.outcome import Ending
from holdfast.agent.policy import RestartBudget
from holdfast.errors import (
    HoldfastError,
    InternalError,
    RendezvousClosed,
    RunOver,
    Stopped,
    StoreUnavailable,
    WorkersStuck,
)
from holdfast.rendezvous.effects import LeaseHeld
from tests.unit.agent.machine_events import (
    CLOSED,
    COUNTING,
    EVENTS,
    FINISHED,
    NO_STORE,
    RUN,
    START,
    STATES,
    TERMS,
    after,
    agent,
    counts,
    fails,
    outcome,
    peer,
)
from tests.unit.agent.slow_shell import SlowShell
from tests.unit.agent.stories import ended_well, failed, failure, place

SENTENCE = "rank 2 on b failed (exit code 1): boom"
FORGIVEN = (
    "rank 0 on a failed (exit code 1): boom; failure 1 of the job, 1 restart is allowed: restarting"
)
STOP = "stop SIGTERM 30"

# For each state the events that mean something in it, and what follows. All others must not.
FOLLOWS: dict[str, dict[str, str]] = {
    "new": {"signal": "ended: finish signalled", "broke": "ended: finish broken"},
    "joining": {
        "joined": "running: start round 2",
        "joined overdrawn": "ended: close failed, finish failed",
        "join timed out": "ended: finish broken",
        "join closed": "ended: finish not needed",
        "join closed failed": "ended: finish failed",
        "signal": "ended: finish signalled",
        "broke": "ended: finish broken",
    },
    "joining again": {
        "joined": "running: start round 2",
        "joined overdrawn": "ended: close failed, finish failed 2",
        "join timed out": "ended: finish broken 2",
        "join closed": "ended: finish not needed",
        "join closed failed": "gathering: publish none final",
        "signal": "ended: finish signalled 2",
        "broke": "ended: finish broken 2",
    },
    "running": {
        "worker failed": f"stopping: count, publish 1, {STOP}",
        "group stuck": "ended: finish broken",
        "peer failed": f"stopping: {STOP}",
        "peer said all": f"stopping: {STOP}",
        "round over": f"stopping: {STOP}",
        "newcomers": f"stopping: {STOP}",
        "closed": f"stopping: {STOP}",
        "closed failed": f"stopping: {STOP}",
        "signal": "stopping: stop SIGINT 30",
        "broke": f"stopping: {STOP}",
    },
    "one is done": {
        "worker failed": f"stopping: count, publish 1, {STOP}",
        "worker done": "finished: meet 300",
        "group stuck": "ended: finish broken",
        "peer failed": f"stopping: {STOP}",
        "peer said all": f"stopping: {STOP}",
        "round over": f"stopping: {STOP}",
        "newcomers": f"stopping: {STOP}",
        "closed": f"stopping: {STOP}",
        "closed failed": f"stopping: {STOP}",
        "signal": "stopping: stop SIGINT 30",
        "broke": f"stopping: {STOP}",
    },
    "counting": {
        "counted, spent": "stopping: close failed",
        "group stuck": "ended: finish broken 0",
        "signal": "stopping: stop SIGINT 30",
    },
    "counting, group ended": {
        "counted": f"joining: join: {FORGIVEN}",
        "counted, spent": "gathering: close failed, publish 0 final",
        "count failed": "ended: finish broken 0",
        "count closed": "gathering: publish 0 final",
        "signal": "ended: publish 0 final, finish signalled 0",
        "broke": "ended: finish broken 0",
    },
    "restarting": {
        "group ended": f"joining: join: {FORGIVEN}",
        "group stuck": "ended: finish broken 0",
        "signal": "stopping: stop SIGINT 30",
    },
    "giving up": {
        "group ended": "gathering: publish 0 final",
        "group stuck": "ended: finish broken 0",
        "signal": "stopping: stop SIGINT 30",
    },
    "going": {
        "group ended": "joining: publish none final, join: b is gone",
        "group stuck": "ended: finish broken",
        "signal": "stopping: stop SIGINT 30",
    },
    "signalled": {
        "group ended": "ended: finish signalled",
        "group stuck": "ended: finish broken",
        "signal": "stopping: stop SIGINT 0",
    },
    "breaking": {
        "group ended": "ended: finish broken",
        "group stuck": "ended: finish broken",
        "signal": "stopping: stop SIGINT 30",
    },
    "told of the failure": {
        "worker failed": "stopping: publish 1",
        "group ended": "gathering: publish none final",
        "group stuck": "ended: finish broken",
        "signal": "stopping: stop SIGINT 30",
    },
    "finished": {
        "met": "ended: close, finish succeeded",
        "met badly": "ended: finish succeeded",
        "peer failed": f"joining: publish none final, join: {SENTENCE}",
        "peer said all": f"joining: publish none final, join: {SENTENCE}",
        "round over": "joining: publish none final, join: b is gone",
        "closed": "ended: finish succeeded",
        "closed failed": "gathering: publish none final",
        "signal": "ended: finish signalled",
        "broke": "ended: finish broken",
    },
    "finished, group alive": {
        "met": "ended: close, finish succeeded",
        "met badly": "ended: finish succeeded",
        "group stuck": "ended: finish broken",
        "peer failed": f"stopping: {STOP}",
        "peer said all": f"stopping: {STOP}",
        "round over": f"stopping: {STOP}",
        "closed": "ended: finish succeeded",
        "closed failed": "gathering: publish none final",
        "signal": "stopping: stop SIGINT 30",
        "broke": f"stopping: {STOP}",
    },
    "gathering": {
        "peer said all": "ended: finish failed 2 0",
        "signal": "ended: finish failed 0",
        "broke": "ended: finish failed 0",
        "tick late": "ended: finish failed 0",
    },
    "ended": {},
}

# AG-11: a user's stop closes the run; what it ends with then depends on what had failed.
for _state in FOLLOWS.keys() - {"ended"}:
    FOLLOWS[_state]["stop"] = f"stopping: close failed, {STOP}"
for _state in ("new", "joining", "finished"):
    FOLLOWS[_state]["stop"] = "ended: close failed, finish stopped"
FOLLOWS["joining again"]["stop"] = "ended: close failed, finish stopped 2"
FOLLOWS["counting, group ended"]["stop"] = "ended: close failed, publish 0 final, finish stopped 0"
FOLLOWS["gathering"]["stop"] = "ended: close failed, finish failed 0"


def may_happen(state: str, event: str) -> bool:
    """Say whether the shell can tell this then: an answer has a question, an end a beginning."""
    if event.startswith("count"):
        return state.startswith("counting") or state == "ended"
    alive = {"one is done", "counting", "restarting", "giving up", "going", "signalled"}
    alive |= {"running", "breaking", "told of the failure", "finished, group alive", "ended"}
    return not event.startswith("group") or state in alive


@pytest.mark.parametrize(
    ("state", "event"),
    [(state, event) for state in STATES for event in EVENTS if may_happen(state, event)],
)
def test_every_event_in_every_state(state: str, event: str) -> None:
    machine = agent(*STATES[state])
    before = machine.state
    follows = ", ".join(after(machine, EVENTS[event]))
    expected = FOLLOWS[state].get(event, f"{before}: ")
    assert f"{machine.state}: {follows}" == expected


# What follows later is decided by what came in between.


def test_workers_start_only_when_the_last_ones_have_ended() -> None:
    """AG-1: also if the round is over, and another one is there."""
    machine = agent(*RUN)
    assert after(machine, EVENTS["round over"]) == [STOP]
    assert after(machine, EVENTS["joined"], EVENTS["tick"]) == []
    assert after(machine, EVENTS["group ended"])[-1] == "join: b is gone"
    assert after(machine, EVENTS["joined"]) == ["start round 2"]


def test_many_ends_of_a_round_make_one_wish() -> None:
    """AG-2."""
    machine = agent(*RUN)
    names = ("round over", "peer failed", "newcomers", "round over", "worker failed")
    heard = after(machine, *(EVENTS[name] for name in names), EVENTS["group ended"])
    assert [one.partition(":")[0] for one in heard] == [STOP, "publish 1 final", "join"]
    assert after(machine, EVENTS["round over"], EVENTS["peer failed"], EVENTS["newcomers"]) == []


def test_a_failure_is_counted_then_told_then_acted_on() -> None:
    """AG-4."""
    heard = after(agent(*RUN), EVENTS["worker failed"])
    assert heard == ["count", "publish 1", STOP]


@pytest.mark.parametrize("ended_first", [True, False])
def test_the_account_decides_on_the_next_round(ended_first: bool) -> None:
    """AG-3: in whichever order the verdict and the end of the workers come."""
    acts = [EVENTS["group ended"], counts(1)]
    heard = after(agent(*COUNTING), *(acts if ended_first else acts[::-1]))
    assert heard == [f"join: {FORGIVEN}"]
    acts = [EVENTS["group ended"], counts(2)]
    machine = agent(*COUNTING)
    heard = after(machine, *(acts if ended_first else acts[::-1]))
    assert heard == ["close failed", "publish 0 final"]
    assert "failure 2 of the job, 1 restart is allowed: giving up" in machine.reason


def test_without_others_a_failed_job_ends_at_once() -> None:
    machine = agent(*START, lambda a: a.joined(place(nodes=1), 0.0), fails(), counts(2))
    EVENTS["group ended"](machine)
    end = outcome(machine)
    assert (end.ending, [one.rank for one in end.failures]) == (Ending.FAILED, [0])


def test_a_signal_keeps_no_failure_out_of_the_account() -> None:
    """AG-3, AG-5: the signal does not close the run; the failure before it does."""
    machine = agent(*COUNTING)
    assert after(machine, EVENTS["signal"], counts(2)) == ["stop SIGINT 30", "close failed"]
    assert after(machine, EVENTS["group ended"]) == ["publish 0 final", "finish failed 0"]
    machine = agent(*COUNTING, EVENTS["signal"])
    machine.count_failed(CLOSED, 5.0)
    assert after(machine, EVENTS["group ended"]) == ["publish 0 final", "finish failed 0"]


@pytest.mark.parametrize("error", [NO_STORE, RendezvousClosed("done")])
def test_a_failure_that_cannot_be_counted_changes_nothing_about_a_signal(
    error: HoldfastError,
) -> None:
    machine = agent(*COUNTING, EVENTS["signal"])
    machine.count_failed(error, 5.0)
    end = ["publish 0 final", "finish signalled 0"]
    assert after(machine, EVENTS["group ended"]) == end


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ("giving up", ["publish 0 final", "finish failed 0"]),
        ("told of the failure", ["publish none final", "finish failed"]),
        ("breaking", ["finish broken"]),
        ("closing", ["finish not needed"]),
    ],
)
def test_a_signal_in_the_last_stopping_hides_nothing(state: str, end: list[str]) -> None:
    """AG-5: no node waits for more then, but what is known is told."""
    machine = agent(*(STATES | {"closing": (*RUN, EVENTS["closed"])})[state])
    heard = after(machine, EVENTS["signal"], EVENTS["signal"], EVENTS["group ended"])
    assert heard == ["stop SIGINT 30", "stop SIGINT 0", *end]


@pytest.mark.parametrize("state", ["counting", "counting, group ended", "restarting"])
def test_a_node_that_is_signalled_before_the_verdict_reports_what_had_failed(state: str) -> None:
    """AG-5."""
    machine = agent(*STATES[state], EVENTS["signal"])
    machine.group_ended((), 6.0)
    assert machine.reason == "stopped by SIGINT, after rank 0 on a failed (exit code 1): boom"


def test_an_overdrawn_account_ends_the_run_with_what_is_known_of_the_last_round() -> None:
    """AG-3: the node that counted the last failure has died before it closed the run."""
    machine = agent(*STATES["joining again"])
    machine.joined(place(2, failures=2), 0.0)
    close, finish = machine.take_effects()
    assert isinstance(close, Close)
    assert close.failed
    assert "the job failed 2 times" in close.reason
    assert isinstance(finish, Finish)
    assert [one.rank for one in finish.outcome.failures] == [2]


def test_with_a_window_an_old_failure_overdraws_nothing() -> None:
    terms = Terms(budget=RestartBudget(1, 60.0))
    machine = agent(*START, terms=terms)
    assert after(machine, lambda a: a.joined(place(5, failures=4), 0.0)) == ["start round 5"]


def test_no_signal_ever_closes_the_run() -> None:
    """AG-5."""
    for acts in STATES.values():
        machine = agent(*acts)
        heard = after(machine, EVENTS["signal"], EVENTS["signal"], EVENTS["group ended"])
        assert not any(one.startswith("close") for one in heard)
        assert machine.state is State.ENDED


def test_a_repeated_signal_is_in_a_hurry() -> None:
    machine = agent(*RUN)
    assert after(machine, EVENTS["signal"]) == ["stop SIGINT 30"]
    second = "the workers have 30 s to end, a second Ctrl-C kills them"
    assert machine.reason == f"stopped by SIGINT; {second}"
    assert after(machine, lambda a: a.signalled(SIGTERM, 6.0)) == ["stop SIGTERM 0"]
    machine.group_ended((), 7.0)
    end = outcome(machine)
    assert (end.signal, end.reason) == (15, "stopped by SIGTERM")
    assert machine.reason == "stopped by SIGTERM"


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ("running", "finish stopped"),
        ("going", "finish stopped"),
        ("signalled", "finish stopped"),
        ("told of the failure", "finish stopped"),  # another agent that was stopped closed it
        ("breaking", "finish broken"),
        ("restarting", "publish 0 final, finish stopped 0"),
        ("giving up", "publish 0 final"),
    ],
)
def test_a_user_s_stop_hides_no_end_that_came_before(state: str, end: str) -> None:
    """AG-11."""
    machine = agent(*STATES[state], EVENTS["stop"])
    assert ", ".join(after(machine, EVENTS["group ended"])) == end


def test_a_user_s_stop_has_its_own_grace_and_names_the_user() -> None:
    """AG-11."""
    machine = agent(*RUN)
    assert after(machine, lambda a: a.stop_asked("user a", 2.5, 5.0))[-1] == "stop SIGTERM 2.5"
    assert machine.reason == "stopped by user a"
    machine.group_ended((), 7.0)
    end = outcome(machine)
    assert isinstance(end.error, Stopped)
    assert (end.reason, end.error.by) == ("stopped by user a", "user a")


def test_nothing_is_started_beside_a_worker_that_cannot_be_killed() -> None:
    """AG-6."""
    machine = agent(*STATES["going"])
    machine.group_ended((7, 8), 6.0)
    end = outcome(machine)
    assert isinstance(end.error, WorkersStuck)
    assert end.error.pids == (7, 8)
    assert end.reason == "SIGKILL did not end process 7, 8: this node leaves the job"
    assert after(machine, EVENTS["joined"]) == []


def test_trouble_in_the_exit_barrier_is_told_and_fails_nothing() -> None:
    """AG-7."""
    machine = agent(*FINISHED)
    machine.met(1, "node 1 is late", 5.0)
    end = outcome(machine)
    assert (end.ending, end.reason) == (
        Ending.SUCCEEDED,
        "finished; the exit barrier: node 1 is late",
    )


def test_a_node_that_loses_the_store_in_the_exit_barrier_has_not_succeeded() -> None:
    """AG-7: whichever learns of it first, the barrier or the rendezvous."""
    machine = agent(*FINISHED)
    machine.broke(NO_STORE)
    end = outcome(machine)
    assert (end.ending, end.error) == (Ending.BROKEN, NO_STORE)
    machine = agent(*FINISHED, EVENTS["round over"])
    machine.join_failed(NO_STORE, 5.0)
    end = outcome(machine)
    assert (end.ending, end.error) == (Ending.BROKEN, NO_STORE)


def test_a_node_that_is_done_works_again_when_another_one_fails() -> None:
    """AG-7: no node waits in the barrier after a failure."""
    machine = agent(*FINISHED)
    after(machine, EVENTS["peer failed"])
    assert after(machine, EVENTS["met"]) == []
    assert after(machine, EVENTS["joined"]) == ["start round 2"]


def test_nothing_is_wanted_after_the_end() -> None:
    """AG-8."""
    for acts in STATES.values():
        machine = agent(*acts, EVENTS["signal"], EVENTS["signal"], EVENTS["group ended"])
        assert after(machine, *EVENTS.values()) == []
        assert machine.next_wake() is None


# The outcome names the first cause, whichever node saw it.


def test_a_failed_job_waits_for_what_the_others_know_but_not_for_ever() -> None:
    machine = agent(*STATES["gathering"])
    assert machine.next_wake() == 5.0 + GATHER_S
    assert after(machine, peer(2, 3)) == []  # not all that it has to say
    machine.tick(5.0 + GATHER_S)
    assert [one.rank for one in outcome(machine).failures] == [2, 3, 0]


def test_a_node_that_waits_for_a_round_hears_the_end_of_the_last_one() -> None:
    """The verdict is another node's, and its last message tells of an earlier failure."""
    machine = agent(*STATES["joining again"], EVENTS["join closed failed"])
    assert machine.state is State.GATHERING
    peer(3, 2, final=True)(machine)
    end = outcome(machine)
    assert [one.rank for one in end.failures] == [2, 3]
    assert end.reason == str(CLOSED)


def test_a_failure_that_was_forgiven_is_no_cause_of_a_later_end() -> None:
    machine = agent(*COUNTING, EVENTS["group ended"], counts(1), EVENTS["join closed failed"])
    machine.tick(5.0 + GATHER_S)
    end = outcome(machine)
    assert (end.ending, end.failures, end.reason) == (Ending.FAILED, (), str(CLOSED))


def test_what_a_worker_shows_while_it_is_stopped_is_told_too() -> None:
    """Its error file says that it had failed before; it may be the first cause."""
    machine = agent(*STATES["told of the failure"])
    machine.worker_exited(failed(failure(1, at=1.0), asked=True), 5.0)
    assert after(machine) == ["publish 1"]  # at once: its neighbour may be long in ending
    machine.worker_exited(ended_well(0, asked=True), 5.0)
    assert after(machine, EVENTS["group ended"]) == ["publish 1 final"]
    peer(2, final=True)(machine)
    assert [one.rank for one in outcome(machine).failures] == [1, 2]


def test_only_what_changes_the_first_cause_is_told_before_the_end() -> None:
    machine = agent(*COUNTING)  # rank 0 failed at 10.0
    assert after(machine, fails(1, at=11.0)) == []
    assert after(machine, fails(1, at=9.0)) == ["publish 0 1 1"]
    machine = agent(*STATES["going"])  # no worker has failed: this is not counted, and not told yet
    assert after(machine, fails(1, at=9.0), fails(0, at=8.0)) == []


def test_a_failure_is_told_when_a_later_one_is_counted_elsewhere() -> None:
    """AG-4, AG-5: ours came first, while the workers were stopped for something else."""
    for state in ("going", "signalled"):
        machine = agent(*STATES[state], fails(1, at=8.0))
        assert after(machine, peer(2)) == ["publish 1"]  # at once: the end may be far
        assert after(machine, peer(2, 3)) == []  # told once
        machine = agent(*STATES[state], fails(1, at=9.5))
        assert after(machine, peer(2)) == []  # not the first cause


def test_a_node_that_a_signal_ends_says_which_workers_had_failed() -> None:
    """AG-5: a node that fails at the same time gathers it, to name the first cause."""
    machine = agent(*STATES["signalled"], fails(1, at=8.0))
    assert after(machine, EVENTS["group ended"]) == ["publish 1 final", "finish signalled"]
    machine = agent(*STATES["signalled"], peer(2))
    assert after(machine, EVENTS["group ended"]) == ["publish none final", "finish signalled"]


def test_the_store_is_lost_while_the_job_is_given_up() -> None:
    machine = agent(*STATES["giving up"])
    assert after(machine, EVENTS["broke"], EVENTS["group ended"]) == ["publish 0 final"]
    assert machine.state is State.GATHERING


@pytest.mark.parametrize("state", ["counting", "restarting", "going"])
def test_the_store_is_lost_while_workers_are_stopped(state: str) -> None:
    machine = agent(*STATES[state])
    machine.broke(NO_STORE)
    machine.group_ended((), 5.0)
    assert outcome(machine).error is NO_STORE


def test_the_store_is_lost_while_a_failure_is_handled() -> None:
    """AG-9: all failures that are known at the end are told, the first cause first."""
    machine = agent(*COUNTING)  # rank 0 failed at 10.0
    machine.count_failed(NO_STORE, 5.0)
    after(machine, fails(1, at=9.0))
    end = EVENTS["group ended"]
    assert after(machine, end) == ["finish broken 1 0"]


@pytest.mark.parametrize("event", ["join timed out", "broke"])
def test_no_round_comes_after_a_failure(event: str) -> None:
    """AG-9: the failure was forgiven, but no workers were started again."""
    machine = agent(*COUNTING, counts(1), EVENTS["group ended"])
    assert after(machine, EVENTS[event]) == ["finish broken 0"]


def test_a_failure_that_was_survived_is_not_told_when_something_breaks_later() -> None:
    machine = agent(*COUNTING, counts(1), EVENTS["group ended"], EVENTS["joined"])
    assert after(machine, EVENTS["broke"], EVENTS["group ended"])[-1] == "finish broken"


@pytest.mark.parametrize("failed_", [True, False])
def test_the_run_is_closed_while_workers_are_stopped_for_the_next_round(failed_: bool) -> None:
    machine = agent(*STATES["going"])
    machine.run_ended("it is over", failed_, 5.0)
    heard = after(machine, EVENTS["group ended"])
    assert heard == (["publish none final"] if failed_ else ["finish not needed"])


def test_a_count_that_comes_too_late_says_so() -> None:
    machine = agent(*COUNTING)
    machine.count_failed(CLOSED, 5.0)
    assert after(machine, EVENTS["group ended"]) == ["publish 0 final"]
    assert machine.reason.endswith("run job is closed: rank 3 failed")
    machine = agent(*COUNTING)
    machine.count_failed(RendezvousClosed("done"), 5.0)
    assert after(machine, EVENTS["group ended"]) == ["finish not needed"]


def test_workers_that_cannot_be_started_end_the_run() -> None:
    machine = agent(*RUN)
    error = StoreUnavailable("no such file: train.py")
    machine.start_failed(error)
    close, finish = machine.take_effects()
    assert close == Close(f"a node could not start its workers: {error}", failed=True)
    assert isinstance(finish, Finish)
    assert (finish.outcome.ending, finish.outcome.error) == (Ending.BROKEN, error)
    machine.start_failed(error)
    assert machine.take_effects() == []


def test_sentences_for_people() -> None:
    cases = {
        "boom\nand more": "rank 0 on a failed (exit code 1): boom",
        "exit code 1": "rank 0 on a failed (exit code 1)",
        " \n": "rank 0 on a failed (exit code 1)",
    }
    for message, sentence in cases.items():
        machine = agent(*RUN)
        machine.worker_exited(failed(failure(message=message)), 5.0)
        assert machine.reason == sentence


# Whatever happens.


@given(st.integers(0, 1 << 32))
def test_the_guarantees_hold_whatever_happens(seed: int) -> None:
    """AG-1, AG-2, AG-3, AG-4, AG-8."""
    SlowShell(seed, TERMS).run()


@pytest.mark.parametrize("state", ["running", "counting"])
def test_an_error_of_the_agent_ends_the_run_for_all_nodes(state: str) -> None:
    """AG-5."""
    machine = agent(*STATES[state])
    heard = after(machine, lambda a: a.broke(InternalError("a bug")))
    assert "close failed" in heard
    assert "close failed" not in after(agent(*STATES[state]), EVENTS["broke"])


# The end of the lease comes near.

HELD = LeaseHeld(stop_at=12.0, kill_at=13.5)


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
    machine.held(LeaseHeld(17.0, 18.5))
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
    assert not [one for one in wanted if isinstance(one, CountFailure)]
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
    machine.held(LeaseHeld(17.0, 18.5))
    machine.joined(place(), 12.1)
    assert [type(one) for one in machine.take_effects()] == [StartWorkers]


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
