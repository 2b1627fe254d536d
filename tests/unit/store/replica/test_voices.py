"""Which members have died, by proof: MV-1 and MV-2."""

from __future__ import annotations

from holdfast.store.replica.voices import DEAD_AFTER_S, MemberVoices


def test_mv2_a_member_whose_end_closed_the_connection_is_dead_a_moment_later() -> None:
    voices = MemberVoices()
    one = voices.begin(7)
    voices.end(7, one, 1.0, died=True)
    assert voices.dead(1.0) == []
    assert voices.dead(1.0 + DEAD_AFTER_S) == [7]
    voices.begin(7)  # it speaks again
    assert voices.dead(99.0) == []


def test_mv1_one_that_parts_or_speaks_elsewhere_is_not_dead() -> None:
    voices = MemberVoices()
    one = voices.begin(7)
    two = voices.begin(7)
    voices.end(7, one, 1.0, died=True)  # of the older connection, heard late
    voices.end(7, two, 2.0, died=False)
    assert voices.dead(99.0) == []


def test_one_that_is_no_member_any_more_is_forgotten() -> None:
    voices = MemberVoices()
    one = voices.begin(7)
    voices.forget(7)
    voices.end(7, one, 1.0, died=True)
    two = voices.begin(8)
    voices.end(8, two, 1.0, died=True)
    voices.forget(8)
    assert voices.dead(99.0) == []
