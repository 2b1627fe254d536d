"""Where members are, and whose process they are in."""

from __future__ import annotations

from holdfast.store.replica.places import MemberPlaces


def test_places_and_owners_come_and_go_together() -> None:
    places = MemberPlaces({1: "a:1"})
    places.put(2, "b:1", 9)
    places.put(3, "c:1", 0)
    assert places.owners == {2: 9}
    assert (places.of(2), places.of(4), places.of(None)) == ("b:1", "", "")
    assert places.among((1, 2, 4)) == {1: "a:1", 2: "b:1"}
    places.remove(2)
    assert (places.addresses, places.owners) == ({1: "a:1", 3: "c:1"}, {})
