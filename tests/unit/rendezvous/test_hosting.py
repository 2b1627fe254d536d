"""Which agents host a member of the store: HO-1 to HO-5."""

from __future__ import annotations

from holdfast.rendezvous.hosting import (
    AGAIN_S,
    HOSTED_MAX,
    PAUSE_MAX_S,
    AskToJoin,
    Hosting,
    WaitUntil,
)

ASK = AskToJoin()


def asked(now: float = 0.0) -> Hosting:
    machine = Hosting(founder=False)
    assert machine.next_step(1, now) == ASK
    return machine


def test_a_founder_is_a_member_and_does_nothing() -> None:
    machine = Hosting(founder=True)
    assert machine.settled
    assert machine.is_member
    assert machine.next_step(1, 0.0) == WaitUntil(None)


def test_ho1_ho5_an_agent_asks_once_and_is_settled_when_that_has_ended() -> None:
    machine = asked()
    assert machine.next_step(1, 0.0) == WaitUntil(None)
    assert not machine.settled
    machine.joined()
    assert machine.settled
    assert machine.is_member
    assert machine.next_step(1, 99.0) == WaitUntil(None)


def test_ho1_one_that_was_dismissed_asks_anew_at_once() -> None:
    machine = asked()
    machine.dismissed()  # of an earlier life: it is no member yet
    assert machine.next_step(1, 0.0) == WaitUntil(None)
    machine.joined()
    machine.dismissed()
    assert not machine.is_member
    assert machine.next_step(HOSTED_MAX, 0.0) == ASK


def test_ho2_one_that_was_refused_asks_again_when_there_are_fewer() -> None:
    machine = asked()
    machine.refused(10.0)
    assert machine.settled
    again = 10.0 + AGAIN_S
    assert machine.next_step(1, 10.0) == WaitUntil(again)
    assert machine.next_step(HOSTED_MAX, again) == WaitUntil(again + AGAIN_S)
    assert machine.next_step(HOSTED_MAX - 1, again + AGAIN_S) == ASK


def test_ho3_one_that_failed_asks_again_after_pauses_that_double() -> None:
    machine, now, pauses = asked(), 0.0, []
    for _ in range(6):
        machine.failed(now)
        step = machine.next_step(1, now)
        assert isinstance(step, WaitUntil)
        assert step.at is not None
        pauses.append(step.at - now)
        now = step.at
        assert machine.next_step(1, now) == ASK
    assert pauses == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S, 8 * AGAIN_S, PAUSE_MAX_S, PAUSE_MAX_S]
    machine.joined()
    machine.dismissed()
    assert machine.next_step(1, now) == ASK
    machine.failed(now)
    assert machine.next_step(1, now) == WaitUntil(now + AGAIN_S)


def test_ho4_one_that_leaves_never_asks_again() -> None:
    machine = asked()
    machine.leave()
    assert machine.settled
    assert machine.is_leaving
    for told in (machine.joined, machine.dismissed, lambda: machine.failed(0.0)):
        told()
        assert machine.is_leaving
        assert machine.next_step(1, 99.0) == WaitUntil(None)
