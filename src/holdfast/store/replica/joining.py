"""How a process becomes a member, and what a server does with the connections of members."""

from __future__ import annotations

import threading
from typing import Protocol

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import HoldfastError, PeerViolation, StoreUnavailable, Unavailable, UsageError
from holdfast.net.address import Address
from holdfast.net.frames import encode_frame
from holdfast.net.reactor import ReactorConnection
from holdfast.net.tcp import connect
from holdfast.store.candidates import Candidates
from holdfast.store.replica.machine import Replica
from holdfast.store.replica.messages import (
    ALIVE,
    ASK,
    Dismissal,
    JoinReply,
    JoinRequest,
    JoinState,
    MemberHello,
    PartsReader,
    decode_answer,
    decode_first,
    decode_message,
    encode_answer,
    encode_first,
)
from holdfast.store.service import Service

__all__ = ["JoiningServer", "MemberPeer", "ask_to_join", "sign_of_life"]

TRY_WITHIN_S = 2.0
ASK_EVERY_S = 0.1


class JoiningServer(Protocol):
    """What is needed of the server of a member."""

    def admit(self, request: JoinRequest) -> JoinReply: ...
    def learn(self, reply: JoinReply) -> None: ...


class MemberPeer:
    """The other end of a connection that another member, or one to be, has opened."""

    def __init__(
        self, server: JoiningServer, machine: Service | Replica, connection: ReactorConnection
    ) -> None:
        self._server = server
        self._machine = machine
        self._connection = connection
        self._parts: PartsReader | None = None
        self._sender = 0

    def receive(self, frame: bytes, now: float) -> None:
        """Take a frame. PeerViolation means: close the connection."""
        machine = self._machine
        if self._parts is None:
            self._begin(frame)
        elif isinstance(machine, Replica):
            if frame == ASK:
                self._connection.send(encode_frame(sign_of_life(machine, self._sender)))
            elif (whole := self._parts.feed(frame)) is not None:
                machine.step(decode_message(whole), now)

    def _begin(self, frame: bytes) -> None:
        match decode_first(frame):
            case JoinRequest() as request:
                reply = self._server.admit(request)
                self._connection.send(encode_frame(encode_answer(reply)))
            case MemberHello(sender, to):
                machine = self._machine
                if not isinstance(machine, Replica) or to != machine.member:
                    raise PeerViolation(f"no member {to} is here")
                if not machine.knows(sender):
                    self._connection.send(encode_frame(sign_of_life(machine, sender)))
                    return
                machine.unreachable(sender)  # it says so anew: an earlier connection was lost
                self._parts, self._sender = PartsReader(), sender


def sign_of_life(machine: Replica, sender: int) -> bytes:
    """Return the answer to a member that asks for a sign of life, or says Hello.

    One that was removed may not know: it can come back after the leader has asked for its removal,
    and is sent nothing any more once that is committed.
    """
    if machine.knows(sender):
        return ALIVE
    return encode_answer(Dismissal("the other members have not heard of it for too long"))


def ask_to_join(
    server: JoiningServer,
    request: JoinRequest,
    addresses: tuple[Address, ...],
    key: bytes,
    joined: threading.Event,
    deadline: Deadline,
) -> None:
    """Ask members, one after the other, until this process is one.

    StoreUnavailable at the deadline, and UsageError if they refuse.
    """
    candidates = Candidates(addresses)
    failure: HoldfastError | None = None
    told = False  # that it is a member; it needs the store's state as well
    while not (told and joined.is_set()) and not deadline.passed():
        try:
            reply = _ask(candidates.next(), request, key, deadline.sooner(TRY_WITHIN_S))
        except Unavailable as error:
            failure = error
        else:
            if reply.state is JoinState.REFUSED:
                raise UsageError(f"cannot join the store: {reply.why}")
            server.learn(reply)
            told = told or reply.state is JoinState.JOINED
            candidates.learn(tuple(where for _, where in reply.members), reply.leader)
        if not told:
            SYSTEM_CLOCK.sleep(ASK_EVERY_S)
        else:
            joined.wait(ASK_EVERY_S)
    if told and joined.is_set():
        return
    where = ", ".join(map(str, addresses))
    if told:
        text = f"the members of the store at {where} cannot connect to {request.address}"
    else:
        text = f"no store at {where} in time: {failure or 'no member leads'}"
    raise StoreUnavailable(text, address=where)


def _ask(address: Address, request: JoinRequest, key: bytes, deadline: Deadline) -> JoinReply:
    transport = connect(address, key, deadline)
    try:
        transport.send(encode_first(request), deadline)
        while not deadline.passed():
            for frame in transport.receive(deadline.remaining() or 0.0):
                answer = decode_answer(frame)
                if isinstance(answer, JoinReply):
                    return answer
    finally:
        transport.close()
    raise Unavailable(f"{address}: no answer to the request to join", address=str(address))
