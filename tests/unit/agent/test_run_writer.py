"""What an agent writes to the run's store, and what it says if it cannot."""

from __future__ import annotations

from typing import Any, cast

import pytest

from holdfast.agent.effects import Publish, Remember
from holdfast.agent.exchange import decode_report
from holdfast.agent.inputs import AgentInput, CountFailed, FailureCounted
from holdfast.agent.run_writer import RunWriter
from holdfast.errors import UsageError
from holdfast.ids import NodeId
from holdfast.rendezvous.handler import Rendezvous, Round
from holdfast.rendezvous.model import Failures, Member
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from tests.unit.agent.stories import failure

CLOCK = ManualClock()
ERROR = UsageError("not today")


class PlayedRendezvous:
    """Counts and closes, or refuses."""

    run_id = "job"

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.closed: list[tuple[str, bool]] = []

    def count_failure(self, *, timeout: float | None) -> Failures:
        if self.refuses:
            raise ERROR
        return Failures(2, 1, (5.0,))

    def close(self, reason: str, *, failed: bool) -> None:
        if self.refuses:
            raise ERROR
        self.closed.append((reason, failed))


def writer(rendezvous: PlayedRendezvous) -> tuple[RunWriter, list[AgentInput]]:
    posted: list[AgentInput] = []
    return RunWriter(cast(Rendezvous, rendezvous), posted.append, CLOCK), posted


def a_round(store: Any) -> Round:
    members = (Member(NodeId("a"), "a", "a", 1), Member(NodeId("b"), "b", "b", 1))
    return Round(3, 0, 2, store, store, "a", 1, members, "")


def test_a_failure_is_published_and_counted_and_the_run_closed() -> None:
    rendezvous, store = PlayedRendezvous(), MemoryStore()
    one, posted = writer(rendezvous)
    one.publish(a_round(store), Publish((failure(1),), False))
    (entry,) = store.list_prefix("")
    report = entry.value
    assert [told.rank for told in decode_report(report, CLOCK.wall())[0]] == [1]
    one.remember(a_round(store), Remember(1, "ValueError at step 7"))
    one.count(a_round(store), 0)
    one.count(a_round(store), 2)
    before = ("ValueError at step 7",)
    assert posted == [
        FailureCounted(2, (5.0,), CLOCK.wall()),
        FailureCounted(2, (5.0,), CLOCK.wall(), before),
    ]
    one.close_run("all is done", False)
    assert rendezvous.closed == [("all is done", False)]
    store.close()


def test_what_cannot_be_written_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    one, posted = writer(PlayedRendezvous(refuses=True))
    store = MemoryStore()
    store.close()
    one.publish(a_round(store), Publish((failure(1),), False))
    one.say_done(a_round(store))
    one.close_run("all is done", False)
    one.remember(a_round(store), Remember(1, "boom"))
    one.count(a_round(store), 0)
    assert posted == [CountFailed(ERROR)]
    for text in ("a failure could not be reported", "it could not be closed: not today"):
        assert f"run job: {text}" in caplog.text
    assert "the end of this node could not be reported" in caplog.text
    assert "what failed could not be kept" in caplog.text
