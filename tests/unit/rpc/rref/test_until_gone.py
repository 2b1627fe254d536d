"""How long messages about references are retried."""

from __future__ import annotations

from holdfast.rpc.rref.until_gone import UntilGone
from holdfast.rpc.wire.messages import Kind


class Delays:
    def delay(self, kind: Kind, worker: str, tried: int) -> float | None:
        assert (kind, worker) == (Kind.RREF_USER_DELETE, "owner")
        return None if tried > 2 else float(tried)


def test_the_table_says_when_to_retry_and_when_the_receiver_is_gone() -> None:
    policy = UntilGone(Delays(), Kind.RREF_USER_DELETE, "owner")
    assert [policy.delay(tried) for tried in (1, 2, 3)] == [1.0, 2.0, None]
    assert policy.exhausted() == "Its receiver is gone."
    assert policy.try_s > 0
