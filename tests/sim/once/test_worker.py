"""The judge of repeated calls tells right from wrong."""

from __future__ import annotations

import pickle

import pytest

from holdfast.errors import CallCancelled, CallTimedOut, PeerLost, UsageError
from holdfast.rpc.values.errors import dump_error
from holdfast.rpc.wire.messages import Kind, Message
from holdfast.testing.faultplan import FaultPlan
from tests.sim.once.sim import OncePlan, OnceSim
from tests.sim.once.worker import Call


@pytest.fixture
def run() -> OnceSim:
    return OnceSim(0, OncePlan(FaultPlan(), workers=2, every_s=1.0))


@pytest.fixture
def call(run: OnceSim) -> Call:
    made = Call(run, run.workers["w0.0"], "w1.1", 0, at=5.0)
    run.calls.append(made)
    return made


def reply(body: bytes) -> Message:
    return Message(Kind.REPLY, 1, pickle.dumps(body))


def refusal(error: Exception) -> Message:
    return Message(Kind.FAILURE, 1, *dump_error(error, "w1"))


def broken(run: OnceSim) -> str:
    return " ".join(run.failures)


def test_what_runs_once_and_is_answered_is_right(run: OnceSim, call: Call) -> None:
    call.sent(1)
    call.ran(run.workers["w1.1"])
    assert call.is_open()
    call.heard(reply(call.answer()))
    assert not call.is_open()
    assert not run.failures


def test_what_runs_twice_or_elsewhere_is_wrong(run: OnceSim, call: Call) -> None:
    call.ran(run.workers["w0.0"])
    assert "O1: call 0 of w0.0 to w1.1 runs at w0.0, 1 times" in broken(run)
    call.ran(run.workers["w1.1"])
    assert "runs at w1.1, 2 times" in broken(run)


def test_what_runs_for_one_that_is_gone_is_wrong(run: OnceSim, call: Call) -> None:
    run.workers["w1.1"].died("w0.0")
    call.ran(run.workers["w1.1"])
    assert "O4" in broken(run)


@pytest.mark.parametrize(
    "outcome",
    [
        reply(b"answer 0"),  # though it has not run
        reply(b"another's"),
        refusal(UsageError("this call was answered long ago")),
        refusal(PeerLost("given up")),  # though no worker has given it up
        ValueError("what is this?"),
    ],
)
def test_answers_that_cannot_be_are_wrong(
    run: OnceSim, call: Call, outcome: Message | Exception
) -> None:
    call.heard(outcome)
    assert "O2" in broken(run)


@pytest.mark.parametrize("outcome", [CallTimedOut("late"), CallCancelled("no"), PeerLost("gone")])
def test_failures_are_right_and_a_second_completion_is_wrong(
    run: OnceSim, call: Call, outcome: Exception
) -> None:
    call.heard(outcome)
    assert not run.failures
    call.heard(outcome)
    assert "O2: call 0 of w0.0 to w1.1 is completed twice" in broken(run)


def test_what_is_sent_when_it_is_over_or_too_late_is_wrong(run: OnceSim, call: Call) -> None:
    run.sim.now = 5.0
    call.sent(1)
    assert "O3" in broken(run)
