"""The plain transport: what it is given goes to the peer, and comes back from it."""

from __future__ import annotations

from typing import Any, cast

from holdfast.rpc.client.peer import Peer
from holdfast.rpc.client.transport import Direct
from holdfast.rpc.wire.messages import Kind, Message


class Echo:
    """A peer that answers at once."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Message, float]] = []

    def exchange(self, message: Message, at: float) -> Message:
        self.asked.append(("exchange", message, at))
        return Message(Kind.REPLY, message.call)

    def post(self, message: Message, reply: Any, at: float) -> str:
        self.asked.append(("post", message, at))
        reply(Message(Kind.REPLY, message.call))
        return "driver"


def test_requests_are_carried_as_they_are() -> None:
    echo, direct = Echo(), Direct()
    peer, request = cast("Peer", echo), Message(Kind.PYTHON_CALL, 7)
    heard: list[Message | Exception] = []
    assert direct.exchange(peer, request, 1.5) == Message(Kind.REPLY, 7)
    assert cast("str", direct.post(peer, request, heard.append, 2.5)) == "driver"
    assert heard == [Message(Kind.REPLY, 7)]
    assert echo.asked == [("exchange", request, 1.5), ("post", request, 2.5)]
    direct.close()
