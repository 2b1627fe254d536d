"""Those who hear answers: what one of them raises is logged, and two hear the same."""

from __future__ import annotations

import pytest

from holdfast.rpc.messages import Kind, Message
from holdfast.rpc.replies import NOT_TOLD, both, tell

ANSWER = Message(Kind.REPLY, 1)


def test_what_is_raised_by_who_hears_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(answer: Message | Exception) -> None:
        raise KeyError("planted")

    heard: list[Message | Exception] = []
    tell(fail, ANSWER)
    tell(heard.append, ANSWER)
    assert heard == [ANSWER]
    assert NOT_TOLD in caplog.text


def test_two_hear_the_same() -> None:
    heard: list[Message | Exception] = []
    both(heard.append, heard.append)(ANSWER)
    assert heard == [ANSWER, ANSWER]
