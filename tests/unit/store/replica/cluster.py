"""Members of a replicated store, and their clients, without a network: by hand, and in order."""

from __future__ import annotations

import random
from typing import Any

from holdfast.ids import SessionId
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
from holdfast.store.raft.messages import Message
from holdfast.store.replica.effects import SendToMember, Tell
from holdfast.store.replica.machine import TICK_S, Replica
from holdfast.store.replica.messages import JoinRequest, JoinState
from holdfast.store.service import Service
from holdfast.store.wire import decode_result

LIFE = 77


class Cluster:
    """Members 1, 2, …, of which 1 founded the store; each is at the address "m1", "m2", …"""

    def __init__(self, size: int = 3) -> None:
        self.now = 0.0
        self.machines: dict[int, Replica] = {}
        self.cut: set[int] = set()
        """Members that hear nothing and are not heard."""
        self.got: dict[tuple[int, int], list[FromServer]] = {}
        self.hung_up: list[tuple[int, int]] = []
        self.told: list[str] = []
        self._messages: list[Message] = []
        self.start(1, founder=True)
        for number in range(2, size + 1):
            self.start(number)
            self.join(number)
        self.pass_time(1.0)

    def start(self, number: int, *, founder: bool = False) -> None:
        rng, service = random.Random(number), Service(LIFE if founder else number)
        self.machines[number] = Replica(
            service, number, f"m{number}:1", rng, self.now, founder=founder
        )
        self.settle()

    def join(self, number: int, at: int = 1) -> None:
        for _ in range(200):
            reply = self.machines[at].admit(JoinRequest(number, f"m{number}:1"), self.now)
            self.machines[number].learn(reply)
            self.pass_time(TICK_S)
            if reply.state is JoinState.JOINED:
                return
        raise AssertionError(f"{number} is no member")

    def settle(self) -> None:
        """Perform what is wanted, until nothing is."""
        busy = True
        while busy:
            busy = False
            for number, machine in self.machines.items():
                for effect in machine.take_effects():
                    busy = True
                    self._perform(number, effect)
            messages, self._messages = self._messages, []
            for message in messages:
                if not {message.to, message.sender} & self.cut and message.to in self.machines:
                    self.machines[message.to].step(message, self.now)

    def _perform(self, number: int, effect: object) -> None:
        match effect:
            case SendFrame(connection, payload):
                message = decode_from_server(payload)
                self.got.setdefault((number, connection), []).append(message)
            case Hangup(connection):
                self.hung_up.append((number, connection))
            case SendToMember(_, _, message):
                self._messages.append(message)
            case Tell(text):
                self.told.append(text)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += TICK_S / 2
            for number, machine in self.machines.items():
                if number not in self.cut or machine.leads:
                    machine.tick(self.now)
            self.settle()

    def leader(self) -> int:
        (one,) = (n for n, m in self.machines.items() if m.leads and n not in self.cut)
        return one

    # Clients.

    def say(self, member: int, connection: int, *messages: FromClient) -> list[FromServer]:
        for message in messages:
            self.machines[member].receive(connection, encode(message), self.now)
        self.settle()
        return self.take(member, connection)

    def take(self, member: int, connection: int) -> list[FromServer]:
        return self.got.pop((member, connection), [])

    def connect(self, member: int, connection: int, session: int = 1, life: int = 0) -> Any:
        self.machines[member].connect(connection)
        return self.say(member, connection, Hello(SessionId(session), life, 1))

    def call(self, member: int, connection: int, number: int, op: AnyOp, ack: int = 1) -> Any:
        (answer,) = self.say(member, connection, Call(number, ack, op))
        assert isinstance(answer, Reply), answer
        assert answer.number == number
        return decode_result(op, answer.result)
