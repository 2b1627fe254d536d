"""What torch asks of an agent that fails and delays chosen messages, asked of ours.

Each test runs in four real workers. `docs/seeds.md` says which of torch's tests each stands for.
The workers import this file too, so it does without pytest.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.faults.plan import Action
from holdfast.faults.transport import FaultyTransport
from holdfast.rpc.api import DEFAULT_TIMEOUT_S, remote, rpc_async, rpc_sync
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.current import current_agent
from holdfast.rpc.rref.rref import RRef
from holdfast.rpc.wire.messages import Kind
from holdfast.testing.rpcworld import rpc_workers
from tests.waiting import until

WITHIN_S = 120.0
TIMED_OUT = "RPC ran for more than"
CREATION = "RRef creation"
CONTROL = ["RREF_FORK_REQUEST", "RREF_CHILD_ACCEPT", "RREF_USER_DELETE"]
RETRYABLE_NAMES = [*CONTROL, "CLEANUP_AUTOGRAD_CONTEXT_REQ"]


def refused(text: str, act: Callable[..., Any], *args: Any, **more: Any) -> None:
    """Check that this raises a RuntimeError that says so."""
    try:
        value = act(*args, **more)
    except RuntimeError as error:
        assert text in str(error), error  # noqa: PT017  # pytest costs workers too much
    else:
        raise AssertionError(f"{value!r} came instead of: {text}")


def counts() -> dict[str, int]:
    return current_agent().rrefs.counts()


def nothing_left() -> None:
    until(lambda: not any(counts().values()), counts)


def fired() -> dict[tuple[Action, str], int]:
    """Return how often each fault has happened to messages of this worker, by their kind."""
    found: dict[tuple[Action, str], int] = {}
    for fault in plan().record:
        key = (fault.action, fault.kind.name)
        found[key] = found.get(key, 0) + 1
    return found


def plan() -> Any:
    transport = current_agent().transport
    assert isinstance(transport, FaultyTransport)
    return transport.plan


def add_to(rref: RRef[int], value: int) -> int:
    return rref.to_here() + value


# Messages about references that cannot be sent.


def count_through_failures() -> None:
    """Worker 0 makes a value at worker 1 and passes it to worker 2; all release it."""
    rref = remote("worker1", operator.add, args=(1, 2))
    sum_ref = remote("worker2", add_to, args=(rref, 4))
    assert rref.to_here() == 3
    assert sum_ref.to_here() == 7
    # Not before: a reference whose owner does not know it yet has nothing to delete.
    for held in (rref, sum_ref):
        until(held.confirmed_by_owner, counts)
    del held
    del rref, sum_ref
    nothing_left()


def done_by(rank: int, what: str) -> int:
    return int(rpc_sync(f"worker{rank}", kinds_failed, args=(what,)))


def kinds_failed(what: str) -> int:
    nothing_left()
    return fired().get((Action.FAIL, what), 0)


@rpc_workers(4, messages_to_fail=CONTROL, num_fail_sends=1, messages_to_delay={})
def test_control_messages_that_fail_are_sent_again(rank: int) -> None:
    if rank == 0:
        count_through_failures()
        # The receiver asks the owner and tells the giver; both holders tell the owner at the end.
        assert done_by(2, "RREF_FORK_REQUEST") == 1
        assert done_by(2, "RREF_CHILD_ACCEPT") == 1
        assert done_by(2, "RREF_USER_DELETE") == 1
        assert done_by(0, "RREF_USER_DELETE") == 2
        assert done_by(1, "RREF_USER_DELETE") == 0
        assert done_by(3, "RREF_USER_DELETE") == 0


def hurry() -> None:
    current_agent().rrefs._retry = RetryPolicy(max_retries=5, delay_s=0.02, backoff=1.5)


@rpc_workers(4, messages_to_fail=RETRYABLE_NAMES, num_fail_sends=3, messages_to_delay={})
def test_each_message_fails_as_often_as_it_shall(rank: int) -> None:
    hurry()
    if rank == 0:
        for worker in range(1, 4):
            rpc_sync(f"worker{worker}", hurry)
        count_through_failures()
        for kind in CONTROL:
            assert done_by(2, kind) == 3
        assert done_by(0, "RREF_USER_DELETE") == 6


# The options.


def options_of_plan() -> dict[str, Any]:
    rules = plan().rules
    return {
        "fail": {kind.name for rule in rules if rule.action is Action.FAIL for kind in rule.kinds},
        "each": {rule.each for rule in rules if rule.action is Action.FAIL},
        "delay": {
            kind.name: rule.seconds
            for rule in rules
            if rule.action is Action.DELAY
            for kind in rule.kinds
        },
    }


@rpc_workers(
    4,
    messages_to_fail=RETRYABLE_NAMES,
    num_fail_sends=3,
    messages_to_delay={"PYTHON_CALL": 0.01, "SCRIPT_CALL": 0.01},
)
def test_the_options_arrive(rank: int) -> None:
    found = options_of_plan()
    assert found["fail"] == set(RETRYABLE_NAMES)
    assert len(found["fail"]) == 4
    assert found["each"] == {3}
    assert found["delay"] == {"PYTHON_CALL": 0.01, "SCRIPT_CALL": 0.01}
    assert current_agent().timeout_s == DEFAULT_TIMEOUT_S


@rpc_workers(4, messages_to_fail=CONTROL[:2], num_fail_sends=1)
def test_chosen_messages_fail(rank: int) -> None:
    found = options_of_plan()
    assert (found["fail"], found["delay"]) == (set(CONTROL[:2]), {})
    if rank == 0:
        count_through_failures()
        assert [done_by(2, kind) for kind in CONTROL] == [1, 1, 0]


@rpc_workers(4, messages_to_fail=[], messages_to_delay={})
def test_no_messages_fail_and_none_is_late(rank: int) -> None:
    assert plan().rules == ()
    if rank == 0:
        count_through_failures()
        assert [done_by(worker, kind) for worker in range(4) for kind in CONTROL] == [0] * 12
        assert fired() == {}


@rpc_workers(4, messages_to_fail=[], messages_to_delay={"SCRIPT_CALL": 0.3})
def test_chosen_messages_are_late(rank: int) -> None:
    found = options_of_plan()
    assert (found["fail"], found["delay"]) == (set(), {"SCRIPT_CALL": 0.3})
    if rank == 0:
        refused(TIMED_OUT, post_script("worker1", timeout=0.01).wait)
        assert post_script("worker1").wait() == 2
        assert rpc_sync("worker1", operator.add, args=(1, 1)) == 2
        assert fired() == {(Action.DELAY, "SCRIPT_CALL"): 2}


# Creations that never arrive.


def creation_fails(worker: str, kind: Kind = Kind.PYTHON_REMOTE_CALL) -> None:
    before = fired().get((Action.FAIL, kind.name), 0)
    rref = current_agent().remote(worker, operator.add, (1, 2), kind=kind)
    assert rref._get_future().done()  # the sending failed, and that is known at once
    refused(CREATION, rref.__reduce__)
    refused(CREATION, rpc_async, worker, add_to, args=(rref, 1))
    refused(CREATION, rpc_sync, worker, add_to, args=(rref, 1))
    refused(CREATION, rref.to_here)
    assert fired() == {(Action.FAIL, kind.name): before + 1}
    del rref
    nothing_left()


@rpc_workers(4, messages_to_fail=["PYTHON_REMOTE_CALL"], num_fail_sends=3)
def test_a_creation_that_was_not_sent(rank: int) -> None:
    if rank == 0:
        creation_fails("worker1")


@rpc_workers(4, messages_to_fail=["PYTHON_REMOTE_CALL"], num_fail_sends=3)
def test_a_creation_at_ourselves_that_was_not_sent(rank: int) -> None:
    if rank == 0:
        creation_fails("worker0")


# Creations that are late.


def creation_is_late(worker: str, kind: Kind = Kind.PYTHON_REMOTE_CALL) -> None:
    make = partial(current_agent().remote, kind=kind)
    rref = make(worker, operator.add, (1, 2), timeout=0.001)
    refused(TIMED_OUT, rref._get_future().wait)
    refused(CREATION, rref.to_here)
    refused(CREATION, rpc_async, worker, add_to, args=(rref, 1))
    patient = make(worker, operator.add, (3, 4), timeout=WITHIN_S)
    refused(TIMED_OUT, patient.to_here, timeout=0.001)
    assert patient.to_here() == 7
    # Late is not never: the owner has made both, and counts them until they are released.
    until(lambda: owners_at(worker) == 2, counts)
    del rref, patient
    until(lambda: owners_at(worker) == 0, counts)
    nothing_left()


def owners_at(worker: str) -> int:
    return int(rpc_sync(worker, counts)["owners"])


@rpc_workers(4, messages_to_fail=[], messages_to_delay={"PYTHON_REMOTE_CALL": 0.5})
def test_a_creation_that_is_late(rank: int) -> None:
    if rank == 0:
        creation_is_late("worker1")


@rpc_workers(4, messages_to_fail=[], messages_to_delay={"PYTHON_REMOTE_CALL": 0.5})
def test_a_creation_at_ourselves_that_is_late(rank: int) -> None:
    if rank == 0:
        creation_is_late("worker0")


@rpc_workers(4, messages_to_fail=[], messages_to_delay={"PYTHON_RREF_FETCH_CALL": 0.3})
def test_a_fetch_that_is_late(rank: int) -> None:
    if rank == 0:
        rref = remote("worker1", operator.add, args=(1, 1))
        refused(TIMED_OUT, rref.to_here, timeout=0.01)
        assert rref.to_here() == 2


# Calls that are late.


def calls_are_late(to: str, call: Callable[..., Any], post: Callable[..., Any]) -> None:
    refused(TIMED_OUT, call, to, timeout=0.1)
    late = post(to, timeout=0.1)
    refused(TIMED_OUT, late.wait)
    assert post(to).wait() == 2  # the default is long enough
    agent = current_agent()
    agent.timeout_s = 0.001
    refused(TIMED_OUT, post(to).wait)
    refused(TIMED_OUT, call, to)
    assert post(to, timeout=0).wait() == 2  # none at all
    assert call(to, timeout=0) == 2
    agent.timeout_s = DEFAULT_TIMEOUT_S


@rpc_workers(4, messages_to_fail=[], messages_to_delay={"PYTHON_CALL": 0.4})
def test_calls_that_are_late(rank: int) -> None:
    calls_are_late(
        f"worker{(rank + 1) % 4}",
        lambda to, **more: rpc_sync(to, operator.add, args=(1, 1), **more),
        lambda to, **more: rpc_async(to, operator.add, args=(1, 1), **more),
    )


# The kinds that calls of torch's own functions, and of its scripts, go by under torch's names.


def post_script(to: str, timeout: float | None = None) -> Any:
    agent = current_agent()
    return agent.call_async(to, operator.add, (1, 1), timeout=timeout, kind=Kind.SCRIPT_CALL)


@rpc_workers(4, messages_to_fail=[], messages_to_delay={"SCRIPT_CALL": 0.4})
def test_calls_of_scripts_that_are_late(rank: int) -> None:
    calls_are_late(
        f"worker{(rank + 1) % 4}",
        lambda to, **more: post_script(to, **more).wait(),
        post_script,
    )


@rpc_workers(4, messages_to_fail=["SCRIPT_REMOTE_CALL"], num_fail_sends=3)
def test_creations_of_scripts_that_were_not_sent(rank: int) -> None:
    if rank == 0:
        creation_fails("worker1", Kind.SCRIPT_REMOTE_CALL)
        creation_fails("worker0", Kind.SCRIPT_REMOTE_CALL)


@rpc_workers(4, messages_to_fail=[], messages_to_delay={"SCRIPT_REMOTE_CALL": 0.5})
def test_creations_of_scripts_that_are_late(rank: int) -> None:
    if rank == 0:
        creation_is_late("worker1", Kind.SCRIPT_REMOTE_CALL)
        creation_is_late("worker0", Kind.SCRIPT_REMOTE_CALL)


@rpc_workers(4, messages_to_fail=[], messages_to_delay={"SCRIPT_RREF_FETCH_CALL": 0.3})
def test_fetches_of_scripts_that_are_late(rank: int) -> None:
    if rank == 0:
        kind = Kind.SCRIPT_RREF_FETCH_CALL
        rref = current_agent().remote("worker1", operator.add, (1, 1), kind=Kind.SCRIPT_REMOTE_CALL)
        refused(TIMED_OUT, rref._fetch, 0.01, kind)
        assert rref._fetch(None, kind) == 2
        assert fired() == {(Action.DELAY, kind.name): 2}
