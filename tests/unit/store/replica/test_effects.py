"""What a member wants done is plain data."""

from __future__ import annotations

from holdfast.store.raft.messages import TimeoutNow
from holdfast.store.replica.effects import SendToMember, Tell


def test_effects_say_all_that_a_shell_needs() -> None:
    assert SendToMember(1, "a:1", TimeoutNow(1, 2, 3)).address == "a:1"
    assert Tell("text") == ("text",)
