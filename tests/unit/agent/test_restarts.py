"""How often workers were started again, and why, in a value that does not grow."""

from __future__ import annotations

from holdfast.agent.restarts import CAUSES_MAX, Restarts


def test_restarts_in_words() -> None:
    none = Restarts()
    assert str(none) == "no restart"
    one = none.plus("rank 3: ValueError")
    assert str(one) == "1 restart (rank 3: ValueError)"
    three = one.plus("host1 left").plus("rank 3: ValueError")
    assert str(three) == "3 restarts (rank 3: ValueError 2 times, host1 left)"


def test_many_causes_are_counted_and_few_are_named() -> None:
    many = Restarts()
    for number in range(CAUSES_MAX + 3):
        many = many.plus(f"rank {number}: exit code 1")
    assert (many.count, len(many.causes)) == (CAUSES_MAX + 3, CAUSES_MAX)
    assert str(many).endswith(f"rank {CAUSES_MAX - 1}: exit code 1, 3 more)")
