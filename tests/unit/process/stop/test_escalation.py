"""Tests of the escalation: the guarantees ES-1 to ES-6, by examples and by random histories."""

from __future__ import annotations

from signal import SIGINT, SIGKILL, SIGTERM

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.process.stop.escalation import (
    ASK_BEFORE_S,
    ENDING_WAIT_S,
    KILL_WAIT_S,
    Abandon,
    Ask,
    Effect,
    Escalation,
    Kill,
    SendSignal,
)


def test_nothing_happens_before_a_stop() -> None:
    escalation = Escalation([1, 2])
    assert escalation.tick(1e9) == []
    assert escalation.next_wake() is None


def test_the_signal_then_kill_then_giving_up() -> None:
    escalation = Escalation([1, 2])
    assert escalation.stop(SIGTERM, 30.0, 100.0) == [SendSignal(SIGTERM, (1, 2))]
    assert escalation.next_wake() == 130.0 - ASK_BEFORE_S
    assert escalation.tick(129.4) == []
    escalation.exited(1)
    assert escalation.tick(129.5) == [Ask((2,))], "ES-6"
    assert escalation.next_wake() == 130.0
    assert escalation.tick(129.9) == []
    assert escalation.tick(130.0) == [Kill((2,))]
    assert escalation.next_wake() == 130.0 + KILL_WAIT_S
    assert escalation.tick(134.9) == []
    assert escalation.tick(135.0) == [Abandon((2,))]
    assert escalation.abandoned == (2,)
    assert escalation.alive == ()
    assert escalation.next_wake() is None
    assert escalation.tick(1000.0) == []


def test_when_all_have_exited_nothing_is_due() -> None:
    escalation = Escalation([1])
    escalation.stop(SIGTERM, 1.0, 0.0)
    escalation.exited(1)
    escalation.exited(1)
    assert escalation.next_wake() is None
    assert escalation.tick(100.0) == []
    assert escalation.stop(SIGINT, 0.0, 100.0) == []
    assert escalation.abandoned == ()


def test_no_grace_and_kill_as_the_signal_kill_at_once() -> None:
    assert Escalation([1]).stop(SIGTERM, 0.0, 5.0) == [Kill((1,))]
    assert Escalation([1]).stop(SIGTERM, -1.0, 5.0) == [Kill((1,))]
    assert Escalation([1]).stop(SIGKILL, 30.0, 5.0) == [Kill((1,))]


def test_a_second_stop_shortens_and_never_lengthens() -> None:
    escalation = Escalation([1])
    escalation.stop(SIGTERM, 10.0, 0.0)
    assert escalation.stop(SIGTERM, 100.0, 1.0) == []
    assert escalation.next_wake() == 10.0 - ASK_BEFORE_S
    assert escalation.stop(SIGINT, 3.0, 2.0) == [SendSignal(SIGINT, (1,))]
    assert escalation.next_wake() == 5.0 - ASK_BEFORE_S
    assert escalation.stop(SIGTERM, 0.0, 3.0) == [Kill((1,))]
    assert escalation.stop(SIGTERM, 0.0, 4.0) == []


def test_a_worker_with_little_time_has_half_of_it_before_it_is_asked_for_its_stacks() -> None:
    """ES-6."""
    escalation = Escalation([1])
    escalation.stop(SIGTERM, 0.2, 10.0)
    assert escalation.next_wake() == 10.1
    assert escalation.tick(10.1) == [Ask((1,))]
    assert escalation.stop(SIGTERM, 0.05, 10.1) == []
    assert escalation.tick(10.16) == [Kill((1,))]


def test_after_a_late_tick_kill_still_has_its_time() -> None:
    escalation = Escalation([1], kill_wait_s=2.0)
    escalation.stop(SIGTERM, 1.0, 0.0)
    assert escalation.tick(50.0) == [Kill((1,))]
    assert escalation.tick(51.0) == []
    assert escalation.tick(52.0) == [Abandon((1,))]


def test_an_exiting_process_gets_more_time() -> None:
    escalation = Escalation([1, 2, 3], kill_wait_s=2.0)
    assert escalation.stop(SIGKILL, 0.0, 100.0) == [Kill((1, 2, 3))]
    escalation.ending(2)
    escalation.ending(3)
    assert escalation.next_wake() == 102.0
    assert escalation.tick(102.0) == [Abandon((1,))]
    assert escalation.alive == (2, 3)
    assert escalation.next_wake() == 100.0 + ENDING_WAIT_S
    assert escalation.stop(SIGKILL, 0.0, 103.0) == []
    assert escalation.tick(99.9 + ENDING_WAIT_S) == []
    escalation.exited(3)
    assert escalation.tick(100.0 + ENDING_WAIT_S) == [Abandon((2,))]
    assert escalation.abandoned == (1, 2)
    assert escalation.next_wake() is None


def test_when_all_are_exiting_no_process_is_abandoned_early() -> None:
    escalation = Escalation([1], kill_wait_s=2.0)
    escalation.ending(1)
    escalation.stop(SIGKILL, 0.0, 100.0)
    assert escalation.tick(102.0) == []
    assert escalation.alive == (1,)
    assert escalation.next_wake() == 100.0 + ENDING_WAIT_S


class Histories(RuleBasedStateMachine):
    """Any order of stops, exits and time, ticked when the machine asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.alive = set(range(1, 5))
        self.ending: set[int] = set()
        self.escalation = Escalation(sorted(self.alive), kill_wait_s=5.0)
        self.kill_at: float | None = None
        self.killed_at: float | None = None
        self.sent: list[int] = []
        self.asked = False

    def check(self, effects: list[Effect]) -> None:
        for effect in effects:
            assert effect.pids, "ES-5"
            match effect:
                case SendSignal(signal, pids):
                    assert set(pids) == self.alive, "ES-5: and nobody is forgotten"
                    assert self.killed_at is None, "ES-4"
                    assert signal not in self.sent, "ES-4"
                    self.sent.append(signal)
                case Ask(pids):
                    assert set(pids) == self.alive, "ES-5: and nobody is forgotten"
                    assert not self.asked, "ES-6"
                    assert self.kill_at is not None, "ES-6"
                    assert self.kill_at - ASK_BEFORE_S <= self.now < self.kill_at, "ES-6"
                    self.asked = True
                case Kill(pids):
                    assert set(pids) == self.alive, "ES-5: and nobody is forgotten"
                    assert self.killed_at is None, "ES-1"
                    assert self.kill_at is not None, "ES-1"
                    assert self.now >= self.kill_at, "ES-1"
                    self.killed_at = self.now
                case Abandon(pids):
                    assert self.killed_at is not None
                    assert self.now >= self.killed_at + 5.0
                    late = self.now >= self.killed_at + ENDING_WAIT_S
                    assert set(pids) == self.alive - (set() if late else self.ending), "ES-2, ES-5"
                    self.alive -= set(pids)

    @rule(signal=st.sampled_from([SIGTERM, SIGINT, SIGKILL]), grace_s=st.floats(0, 30))
    def stop(self, signal: int, grace_s: float) -> None:
        wanted = self.now if signal == SIGKILL else self.now + grace_s
        self.kill_at = wanted if self.kill_at is None else min(self.kill_at, wanted)
        self.check(self.escalation.stop(signal, grace_s, self.now))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def exit(self, data: st.DataObject) -> None:
        pid = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.discard(pid)
        self.escalation.exited(pid)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def begin_to_end(self, data: st.DataObject) -> None:
        pid = data.draw(st.sampled_from(sorted(self.alive)))
        self.ending.add(pid)
        self.escalation.ending(pid)

    @rule(seconds=st.floats(0, 10) | st.just(ENDING_WAIT_S))
    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while (wake := self.escalation.next_wake()) is not None and wake <= until:
            self.now = max(self.now, wake)
            self.check(self.escalation.tick(self.now))
        self.now = until
        self.check(self.escalation.tick(self.now))

    @invariant()
    def every_stop_ends(self) -> None:
        assert set(self.escalation.alive) == self.alive
        if self.kill_at is not None and self.now > self.kill_at + 5.0:
            assert self.alive <= self.ending, "ES-2, and with the earliest of all stops ES-3"
        if self.kill_at is not None and self.now > self.kill_at + ENDING_WAIT_S:
            assert not self.alive, "ES-2"


TestHistories = Histories.TestCase
