"""Reads the answers to requests, and sees to what they gave if they cannot be read.

Guarantees
    RD-1  A request that ends without an answer that was read whole is told to its callee
          (`RRefTable.unread`): neither what it gave nor what its answer gave is kept for nobody.
    RD-2  Of a request that is given up, since its time is up or it was cancelled, nothing is sent
          that changes afterwards: who gave it up may use its arguments again.
"""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.errors import CallCancelled, HoldfastError, PeerLost
from holdfast.rpc.client.deadlines import timed_out
from holdfast.rpc.client.future import Carrier, Future
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.rref.table import RRefTable
from holdfast.rpc.values.errors import load_error
from holdfast.rpc.wire.messages import Kind, Message

__all__ = ["ReplyFuture", "Requester", "read", "settle"]

_REPLY = Kind.REPLY


class Requester(Protocol):
    """Who sends requests: an agent."""

    @property
    def rrefs(self) -> RRefTable:
        """Where the references are that answers bring."""
        ...

    def give_up(self, peer: Peer, request: Message) -> None:
        """Tell a callee, sometime, that nobody waits for an answer any more."""
        ...


class ReplyFuture(Future[Any]):
    """The future of the answer to a request. It keeps who asked until there is one.

    Who makes it sets `_asked`: who asks whom for what. To do that here costs as much again.
    """

    __slots__ = ("_asked",)
    _asked: tuple[Requester, Peer, Message] | None

    def hear(self, answer: Message | Exception) -> None:
        """Hear the answer, or why there will be none."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        asker, peer, request = asked
        to = peer.contact.incarnation
        late = isinstance(answer, TimeoutError) and not isinstance(answer, HoldfastError)
        if late:
            answer = timed_out(request.budget_ms, request.deadline_of, str(answer))
        if settle(asker.rrefs, to, request, self, answer) and late:
            asker.give_up(peer, request)

    def cancel(self) -> bool:
        asked = self._asked
        cancelled = super().cancel()
        if cancelled and asked is not None:
            asker, peer, request = asked
            asker.give_up(peer, request)
            self.hear(CallCancelled("nobody waits for it"))
        return cancelled

    def _withdraw(self) -> None:
        asked, carrier = self._asked, self._driver
        if asked is not None and isinstance(carrier, Carrier):
            carrier.give_up(asked[2].call)


def read(rrefs: RRefTable, to: str, request: Message, answer: Message) -> Any:
    """Return what an answer says, or raise it."""
    if answer.kind is not _REPLY:
        if request.given:  # the callee may have refused it unread
            rrefs.unread(to, request)
        raise load_error(answer.body, answer.buffers)
    try:
        return rrefs.unpack(answer.body, answer.buffers)
    except BaseException:
        rrefs.unread(to, request)
        raise


def settle(
    rrefs: RRefTable, to: str, request: Message, future: Future[Any], answer: Message | Exception
) -> bool:
    """Complete a future with what an answer says, or with why there is none.

    It may have been cancelled: then nobody hears it, and False is returned, but what it brings is
    taken all the same, since references may be among it.
    """
    if not isinstance(answer, Message):
        rrefs.unread(to, request)
        if isinstance(answer, PeerLost):
            # A new one: many are told the same, and what one gathers on its way up would stay as
            # long as any of them, and the peer, keeps it.
            answer = PeerLost(str(answer), peer=answer.peer, incarnation=answer.incarnation)
        return future._settle(None, answer)
    try:
        value = read(rrefs, to, request, answer)
    except BaseException as error:
        # Without this frame, which knows the future, which would keep the error: all that its
        # traceback gathers would stay until the garbage collector comes.
        return future._settle(None, error.with_traceback(None))
    return future._settle(value, None)
