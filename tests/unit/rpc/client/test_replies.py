"""Callbacks for answers: what one of them raises is logged, and two get the same."""

from __future__ import annotations

import pytest

from holdfast.rpc.client.replies import NOT_DELIVERED, deliver
from holdfast.rpc.wire.messages import Kind, Message

ANSWER = Message(Kind.REPLY, 1)


def test_an_exception_of_a_reply_callback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(answer: Message | Exception) -> None:
        raise KeyError("planted")

    heard: list[Message | Exception] = []
    deliver(fail, ANSWER)
    deliver(heard.append, ANSWER)
    assert heard == [ANSWER]
    assert NOT_DELIVERED in caplog.text
