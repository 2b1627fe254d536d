"""What an agent answers before it is there; e2e tests ask real ones."""

from __future__ import annotations

import os

import pytest

from holdfast.control.messages import AskEvents, AskStatus, AskStop
from holdfast.control.server import Caller
from holdfast.errors import Unavailable
from holdfast.ids import CauseId
from holdfast.launch.config import LaunchConfig
from holdfast.launch.steering import STATUS_EVENTS, Steering
from holdfast.observe.events import ServerStarted
from holdfast.observe.job_figures import JobFigures
from holdfast.observe.journal import Journal
from holdfast.testing.clock import ManualClock

CALLER = Caller(7, "me")
CLOCK = ManualClock()


def steering(journal: Journal, **config: object) -> Steering:
    wanted = LaunchConfig(1, 2, 4, run_id="a", max_restarts=3, **config)  # type: ignore[arg-type]
    return Steering(
        wanted, "a", "train.py", "vm", journal=journal, figures=JobFigures("a", "vm"), clock=CLOCK
    )


def test_a_job_that_looks_for_its_rendezvous() -> None:
    one = steering(Journal(), rdzv_endpoint="127.0.0.1:29400")
    told = one.answer(AskStatus(), CALLER)
    assert told["state"] == "joining"
    assert told["reason"] == "looking for the rendezvous at 127.0.0.1:29400"
    assert (told["run"], told["pid"], told["started_at"]) == ("a", os.getpid(), CLOCK.wall())
    assert (told["restarts"]["allowed"], told["restarts"]["used"]) == (3, 0)
    assert (told["round"], told["workers"], told["ending"]) == (0, [], None)
    with pytest.raises(Unavailable, match=f"stop it by a signal, kill {os.getpid()}"):
        one.answer(AskStop(), CALLER)


def test_the_last_events_are_told() -> None:
    journal = Journal()
    one = steering(journal, rdzv_endpoint="127.0.0.1:29400")
    for number in range(STATUS_EVENTS + 1):
        journal.emit(ServerStarted(cause=CauseId("a"), at=0.0, endpoint=str(number)))
    told = one.answer(AskStatus(), CALLER)["events"]
    assert [event["endpoint"] for event in told] == [str(n) for n in range(1, STATUS_EVENTS + 1)]
    answer = one.answer(AskEvents(STATUS_EVENTS), CALLER)
    assert (answer["host"], answer["ended"], len(answer["events"])) == ("vm", False, 1)
