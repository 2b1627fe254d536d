"""The address that others see."""

from __future__ import annotations

from holdfast.clock import Deadline
from holdfast.net.address import Address
from holdfast.net.towards import address_towards


def test_the_address_towards_a_target() -> None:
    soon = Deadline.after(5.0)
    assert address_towards(Address("127.0.0.1", 29400), soon) == "127.0.0.1"
    assert address_towards(None, soon) == "127.0.0.1"
    assert address_towards(Address("no-such-host.invalid", 1), soon) == "127.0.0.1"
