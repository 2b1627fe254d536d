"""Which connections are kept, and which are evicted: numbers only, no sockets."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from holdfast.net.unauthenticated import UnauthenticatedConnections, place_of


def test_no_connection_is_evicted_below_the_limit() -> None:
    held = UnauthenticatedConnections[str](2)
    assert [held.admit("a", "10.0.0.1"), held.admit("b", "10.0.0.1")] == [None, None]
    assert (len(held), list(held)) == (2, ["a", "b"])


def test_the_oldest_of_one_place_makes_room() -> None:
    """ST-1, ST-3."""
    held = UnauthenticatedConnections[int](2)
    gone = [held.admit(number, "10.0.0.1") for number in range(5)]
    assert gone == [None, None, 0, 1, 2]
    assert list(held) == [3, 4]


def test_a_flood_pushes_out_itself() -> None:
    """ST-2: though the other one is the oldest of all."""
    held = UnauthenticatedConnections[int](4)
    held.admit(-1, "10.0.0.2")
    gone = [held.admit(number, "10.0.0.1") for number in range(100)]
    assert gone == [None] * 3 + list(range(97))
    assert held.admit(-2, "10.0.0.3") == 97
    assert list(held) == [-1, 98, 99, -2]


def test_from_as_many_places_as_there_is_room_the_oldest_goes() -> None:
    held = UnauthenticatedConnections[int](3)
    gone = [held.admit(number, f"10.0.0.{number}") for number in range(5)]
    assert gone == [None, None, None, 0, 1]


def test_a_forgotten_connection_leaves_room_and_may_be_forgotten_again() -> None:
    held = UnauthenticatedConnections[str](1)
    held.admit("a", "10.0.0.1")
    held.forget("a")
    held.forget("a")
    assert len(held) == 0
    assert held.admit("b", "10.0.0.1") is None


def test_counts_agree_and_no_connection_is_evicted_for_a_larger_group() -> None:
    """ST-1, ST-2."""
    rng = random.Random(11)
    held, where = UnauthenticatedConnections[int](8), dict[int, str]()
    for number in range(5_000):
        if where and rng.random() < 0.3:
            left = rng.choice(list(where))
            held.forget(left)
            del where[left]
            continue
        where[number] = f"10.0.0.{min(rng.randrange(6), rng.randrange(6))}"
        counts = Counter(where.values())
        gone = held.admit(number, where[number])
        if gone is not None:
            assert counts[where.pop(gone)] == max(counts.values())
        assert list(held) == list(where)
        assert len(held) <= held.most


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("", ""),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_one_network_of_ipv6_is_one_place(host: str, place: str) -> None:
    assert place_of(host) == place
