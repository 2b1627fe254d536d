"""The last events of an agent, kept for commands that ask later."""

from __future__ import annotations

import threading

from holdfast.ids import CauseId
from holdfast.observe.events import JobEnded
from holdfast.observe.journal import EVENTS_MAX, TEXT_MAX, Journal
from holdfast.testing.clock import ManualClock

LONG_S = 60.0


def event(reason: str) -> JobEnded:
    return JobEnded(cause=CauseId("job"), at=1.0, run="job", ending="succeeded", reason=reason)


def test_events_have_numbers_times_and_words() -> None:
    clock = ManualClock()
    journal = Journal(clock)
    journal.emit(event("a"))
    journal.emit(event("b"))
    events, ended = journal.after(0)
    assert [(one["number"], one["event"], one["reason"]) for one in events] == [
        (1, "JobEnded", "a"),
        (2, "JobEnded", "b"),
    ]
    assert (events[0]["time"], events[0]["text"]) == (clock.wall(), "run job: succeeded: a")
    assert not ended
    assert [one["number"] for one in journal.after(1)[0]] == [2]


def test_it_does_not_grow() -> None:
    journal = Journal()
    for number in range(EVENTS_MAX + 5):
        journal.emit(event(str(number)))
    events, _ = journal.after(0)
    assert len(events) == EVENTS_MAX
    assert events[0]["reason"] == "5"
    journal.emit(event("x" * TEXT_MAX))
    journal.emit(event("x" * (TEXT_MAX + 1)))
    fits, cut = journal.after(EVENTS_MAX + 5)[0]
    assert fits["reason"] == "x" * TEXT_MAX
    assert cut["reason"] == "x" * (TEXT_MAX - 1) + "…"


def test_a_thread_that_waits_hears_the_next_event_and_the_end() -> None:
    journal = Journal()
    heard: list[tuple[int, bool]] = []

    def wait() -> None:
        for number in range(2):
            events, ended = journal.after(number, LONG_S)
            heard.append((len(events), ended))

    thread = threading.Thread(target=wait)
    thread.start()
    journal.emit(event("a"))
    journal.close()
    thread.join(LONG_S)
    assert heard[0][0] == 1
    assert heard[1] == (0, True)
    assert journal.after(1, 0.0) == ([], True)
