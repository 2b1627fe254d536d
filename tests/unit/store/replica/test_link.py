"""When a connection to another member is made, asked, and given up."""

from __future__ import annotations

from holdfast.store.replica.link import (
    ASK_EVERY_S,
    DIAL_WITHIN_S,
    SILENCE_S,
    LinkState,
    LinkStep,
    MemberLink,
)


def test_it_is_made_when_there_is_something_to_say() -> None:
    link = MemberLink()
    assert link.tick(0.0) is None
    assert not link.want()
    assert link.tick(0.0) is LinkStep.DIAL
    assert link.tick(0.0) is None
    link.opened(1.0)
    assert link.want()
    assert link.state is LinkState.OPEN


def test_an_attempt_without_an_end_is_given_up() -> None:
    link = MemberLink()
    link.want()
    assert link.tick(0.0) is LinkStep.DIAL
    assert link.tick(4 * DIAL_WITHIN_S + 0.1) is None
    assert link.state is LinkState.APART
    link.want()
    assert link.tick(5 * DIAL_WITHIN_S) is LinkStep.DIAL


def test_it_is_asked_and_given_up_when_it_is_silent() -> None:
    link = MemberLink()
    link.opened(0.0)
    assert link.tick(0.1) is None
    assert link.tick(ASK_EVERY_S) is LinkStep.ASK
    link.heard(1.0)
    assert link.tick(1.0) is LinkStep.ASK
    assert link.tick(1.1 + SILENCE_S) is LinkStep.CLOSE


def test_pauses_between_attempts_grow_until_it_is_heard_of() -> None:
    link, now, waits = MemberLink(), 0.0, []
    for _ in range(7):
        link.want()
        begun = now
        while link.tick(now) is not LinkStep.DIAL:
            now += 0.01
        waits.append(round(now - begun, 2))
        link.closed(now)
    assert waits == sorted(waits)
    assert waits[:2] == [0.0, 0.05]
    assert 1.0 <= waits[-1] <= 1.02
    link.opened(now)
    link.heard(now)
    link.closed(now)
    link.want()
    assert link.tick(now + 0.06) is LinkStep.DIAL
