"""Those who hear answers: what one of them raises is logged, and two hear the same."""

from __future__ import annotations

import pytest

from holdfast.rpc.client.replies import NOT_DELIVERED, deliver, fan_out
from holdfast.rpc.wire.messages import Kind, Message

ANSWER = Message(Kind.REPLY, 1)


def test_what_is_raised_by_who_hears_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(answer: Message | Exception) -> None:
        raise KeyError("planted")

    heard: list[Message | Exception] = []
    deliver(fail, ANSWER)
    deliver(heard.append, ANSWER)
    assert heard == [ANSWER]
    assert NOT_DELIVERED in caplog.text


def test_two_hear_the_same() -> None:
    heard: list[Message | Exception] = []
    fan_out(heard.append, heard.append)(ANSWER)
    assert heard == [ANSWER, ANSWER]
