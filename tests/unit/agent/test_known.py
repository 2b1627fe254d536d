"""What is known of a round's failures, and which of them came first."""

from __future__ import annotations

from holdfast.agent.known import KnownFailures
from tests.unit.agent.stories import failure


def test_the_first_cause_is_ours_or_another_nodes() -> None:
    known = KnownFailures()
    assert (known.all(), known.own_first()) == ((), None)
    own = failure(0, at=10.0)
    known.own.append(own)
    assert known.own_first() is own
    earlier = failure(2, at=9.0, host="b")
    known.peers[1] = (earlier,)
    assert known.all() == (earlier, own)
    assert known.own_first() is None


def test_what_the_others_do_not_know_yet() -> None:
    known = KnownFailures()
    known.own.append(failure(0, at=10.0))
    assert known.is_untold_first()
    assert known.tell() == (failure(0, at=10.0),)
    assert not known.is_untold_first()
    known.own.append(failure(1, at=11.0))
    assert not known.is_untold_first()
    known.own.append(failure(1, at=8.0))
    assert known.is_untold_first()


def test_a_failure_that_came_again_says_so() -> None:
    known = KnownFailures()
    known.own += [failure(0), failure(1)]
    known.note_repeated(known.own[1], 3)
    assert [one.repeated for one in known.own] == [0, 3]


def test_all_others_have_said_everything() -> None:
    known = KnownFailures()
    assert known.others_told_all(0)
    assert not known.others_told_all(1)
    known.told_all.add(1)
    assert known.others_told_all(1)
