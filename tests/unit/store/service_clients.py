"""Clients of the server's machine: they speak to it by frames and a hand-moved `now`."""

from __future__ import annotations

from typing import Any

from holdfast.ids import SessionId
from holdfast.net.frames import FRAME_BYTES_MAX
from holdfast.store.effects import Hangup, SendFrame
from holdfast.store.messages import (
    Call,
    FromClient,
    FromServer,
    Hello,
    Reply,
    decode_from_server,
    encode,
)
from holdfast.store.ops import AnyOp
from holdfast.store.service import Service
from holdfast.store.wire import decode_result

LIFE = 77
NEVER_MET = 0


class Clients:
    """Speaks to a service as its clients do; remembers what each connection was sent."""

    def __init__(self) -> None:
        self.service = Service(LIFE)
        self.now = 0.0
        self.got: dict[int, list[FromServer]] = {}
        self.hung_up: list[int] = []

    def say(self, connection: int, *messages: FromClient) -> list[FromServer]:
        """Say something; return what this connection gets."""
        for message in messages:
            self.service.receive(connection, encode(message), self.now)
        self.perform()
        return self.take(connection)

    def perform(self) -> None:
        for effect in self.service.take_effects():
            match effect:
                case SendFrame(connection, payload):
                    assert len(payload) <= FRAME_BYTES_MAX
                    self.got.setdefault(connection, []).append(decode_from_server(payload))
                case Hangup(connection):
                    self.hung_up.append(connection)
                    self.service.disconnect(connection, self.now)

    def take(self, connection: int) -> list[FromServer]:
        return self.got.pop(connection, [])

    def join(
        self, connection: int, session: int = 1, life: int = NEVER_MET, floor: int = 1
    ) -> FromServer:
        self.service.connect(connection)
        (answer,) = self.say(connection, Hello(SessionId(session), life, floor))
        return answer

    def call(self, connection: int, number: int, op: AnyOp, ack: int = 1) -> Any:
        (answer,) = self.say(connection, Call(number, ack, op))
        assert isinstance(answer, Reply), answer
        assert answer.number == number
        return decode_result(op, answer.result)

    def leave(self, connection: int) -> None:
        self.service.disconnect(connection, self.now)
        self.perform()

    def tick(self, now: float) -> None:
        self.now = now
        self.service.tick(now)
        self.perform()
