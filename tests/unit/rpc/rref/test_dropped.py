"""Dropped references: all are reported, together, and none twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.rref import dropped as module
from holdfast.rpc.rref.dropped import Dropped, DroppedReferences
from holdfast.rpc.rref.protocol import ControlMessage
from holdfast.rpc.wire.messages import Kind
from holdfast.rpc.wire.tickets import Number

SOON = 60.0


def deletion(to: str, serial: int) -> ControlMessage:
    return ControlMessage(Kind.RREF_USER_DELETE, to, Number("a", serial), Number("b", serial))


def hold(gate: threading.Event) -> None:
    assert gate.wait(SOON)


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler("scheduler of a test")
    yield made
    made.close()


class Heard:
    """What is reported, and when it is all there."""

    def __init__(self) -> None:
        self.dropped: list[list[Dropped]] = []
        self.sent: list[list[ControlMessage]] = []
        self.more = threading.Semaphore(0)

    def hear(self, dropped: list[Dropped]) -> None:
        self.dropped.append(dropped)
        self.more.release()

    def send(self, messages: list[ControlMessage]) -> None:
        self.sent.append(messages)
        self.more.release()


def test_dr1_references_dropped_while_the_thread_is_busy_are_reported_together(
    scheduler: Scheduler,
) -> None:
    heard, gate = Heard(), threading.Event()
    references = DroppedReferences(scheduler, heard.hear, heard.send)
    scheduler.submit(partial(hold, gate))
    every: list[Dropped] = [(Number("a", n), None if n % 2 else Number("b", n)) for n in range(9)]
    for one in every:
        references.drop(*one)
    for n in range(4):
        references.delete(deletion("even" if n % 2 == 0 else "odd", n))
    gate.set()
    for _ in range(3):
        assert heard.more.acquire(timeout=SOON)
    assert heard.dropped == [every]
    assert heard.sent == [
        [deletion("even", 0), deletion("even", 2)],
        [deletion("odd", 1), deletion("odd", 3)],
    ]


def test_dr1_a_message_deletes_so_many_at_most(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DELETIONS_MAX", 2)
    heard, gate = Heard(), threading.Event()
    references = DroppedReferences(scheduler, heard.hear, heard.send)
    scheduler.submit(partial(hold, gate))
    for n in range(5):
        references.delete(deletion("owner", n))
    gate.set()
    for _ in range(3):
        assert heard.more.acquire(timeout=SOON)
    assert [len(messages) for messages in heard.sent] == [2, 2, 1]


def test_dr1_references_dropped_during_a_report_are_in_the_next_one(
    scheduler: Scheduler,
) -> None:
    heard = Heard()

    def hear(dropped: list[Dropped]) -> None:
        if not heard.dropped:
            references.drop(Number("a", 2), None)
            references.delete(deletion("owner", 1))
        heard.hear(dropped)

    references = DroppedReferences(scheduler, hear, heard.send)
    references.drop(Number("a", 1), None)
    for _ in range(3):
        assert heard.more.acquire(timeout=SOON)
    assert heard.dropped == [[(Number("a", 1), None)], [(Number("a", 2), None)]]
    assert heard.sent == [[deletion("owner", 1)]]


def test_dr2_a_drop_that_interrupts_a_report_is_reported(scheduler: Scheduler) -> None:
    """As the garbage collector may, at any line; here at the end of a report."""
    heard = Heard()

    def send(messages: list[ControlMessage]) -> None:
        references.drop(Number("a", 1), None)
        heard.send(messages)

    references = DroppedReferences(scheduler, heard.hear, send)
    references.delete(deletion("owner", 1))
    for _ in range(2):
        assert heard.more.acquire(timeout=SOON)
    assert heard.dropped == [[(Number("a", 1), None)]]
