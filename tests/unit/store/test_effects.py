"""What a store server wants done is plain data."""

from __future__ import annotations

from holdfast.store.effects import Hangup, SendFrame, ServiceStatus


def test_effects_say_all_that_a_shell_needs() -> None:
    assert SendFrame(1, b"frame").payload == b"frame"
    assert Hangup(1, "why").reason == "why"
    assert ServiceStatus(1, 2, 3, 4, 5, 6, 7).keys == 1
