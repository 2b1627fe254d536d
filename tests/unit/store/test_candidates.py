"""Which member a client tries next."""

from __future__ import annotations

from holdfast.net.address import Address
from holdfast.store.candidates import Candidates

A, B, C = Address("a", 1), Address("b", 2), Address("c", 3)


def test_one_address_is_tried_again_and_again() -> None:
    candidates = Candidates((A,))
    assert not candidates.several
    assert [candidates.next() for _ in range(2)] == [A, A]


def test_several_are_tried_one_after_the_other() -> None:
    candidates = Candidates((A, B))
    assert candidates.several
    assert [candidates.next() for _ in range(3)] == [A, B, A]


def test_a_leader_that_was_named_is_tried_first_and_once() -> None:
    candidates = Candidates((A,))
    candidates.next()
    candidates.learn(("a:1", "b:2", "c:3"), "c:3")
    assert candidates.several
    assert candidates.next() == C
    candidates.learn(("a:1", "b:2", "c:3"), "c:3")  # a member does not know yet that it is dead
    assert candidates.next() == B


def test_what_cannot_be_connected_to_is_left_out() -> None:
    candidates = Candidates((A,))
    candidates.learn(("nonsense", "b:0", "b:2"), "")
    assert {candidates.next() for _ in range(4)} == {A, B}
