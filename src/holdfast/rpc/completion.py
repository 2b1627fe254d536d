"""Reads the replies to requests, and releases the references of a reply that cannot be read.

Guarantees
    RD-1  If a request ends without a reply that was read whole, its callee is notified
          (`RRefTable.unread`): references sent with a call or its reply never leak.
    RD-2  After a request is given up, because it expired or was cancelled, no later change of its
          arguments is sent: the caller may use them again.
"""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.errors import CallCancelled, HoldfastError, PeerLost
from holdfast.rpc.client.calls import timed_out
from holdfast.rpc.client.future import Carrier, Future
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.rref.table import RRefTable
from holdfast.rpc.values.errors import load_error
from holdfast.rpc.values.pickling import load
from holdfast.rpc.wire.messages import Kind, Message

__all__ = ["HasReferences", "ReplyFuture", "Requester", "complete", "read"]

_REPLY = Kind.REPLY


class HasReferences(Protocol):
    """An object with the table of the references that replies contain."""

    @property
    def rrefs(self) -> RRefTable:
        """The table."""
        ...


class Requester(HasReferences, Protocol):
    """Sends requests: an agent."""

    def give_up(self, peer: Peer, request: Message) -> None:
        """Cancel a call: tell the callee, later on another thread, that no reply is needed."""
        ...


class ReplyFuture(Future[Any]):
    """The future of the reply to a request. It keeps the requester alive until it is complete.

    The code that creates it sets `asked`: requester, peer and request. A constructor that does so
    would double the cost.
    """

    __slots__ = ("asked",)
    asked: tuple[Requester, Peer, Message] | None

    def receive(self, answer: Message | Exception) -> None:
        """Complete it with the reply, or with the reason why none will come."""
        asked, self.asked = self.asked, None
        if asked is None:
            return
        requester, peer, request = asked
        if (
            isinstance(answer, Message)
            and answer.kind is _REPLY
            and not (answer.has_references or request.given)
        ):  # nearly always: a fast path of `complete`
            try:
                value = load(answer.body, answer.buffers)
            except BaseException as error:
                self.finish(None, error.with_traceback(None))
            else:
                self.finish(value, None)
            return
        to = peer.contact.incarnation
        late = isinstance(answer, TimeoutError) and not isinstance(answer, HoldfastError)
        if late:
            answer = timed_out(request.budget_ms, request.deadline_of, str(answer))
        if complete(requester, to, request, self, answer) and late:
            requester.give_up(peer, request)

    def cancel(self) -> bool:
        asked = self.asked
        cancelled = super().cancel()
        if cancelled and asked is not None:
            requester, peer, request = asked
            requester.give_up(peer, request)
            self.receive(CallCancelled("its future was cancelled"))
        return cancelled

    def _withdraw(self) -> None:
        asked, carrier = self.asked, self.driver
        if asked is not None and isinstance(carrier, Carrier):
            carrier.give_up(asked[2].call)


def read(rrefs: RRefTable, to: str, request: Message, answer: Message) -> Any:
    """Return the value of a reply, or raise its error."""
    if answer.kind is not _REPLY:
        if request.given:  # the callee may have refused it unread
            rrefs.unread(to, request)
        raise load_error(answer.body, answer.buffers)
    try:
        if answer.has_references:
            value = rrefs.unpack(answer.body, answer.buffers, is_answer=True)
        else:
            value = load(answer.body, answer.buffers)
    except BaseException:
        rrefs.unread(to, request)
        raise
    if request.given:
        rrefs.taken_by(to, request)
    return value


def complete(
    holder: HasReferences,
    to: str,
    request: Message,
    future: Future[Any],
    answer: Message | Exception,
) -> bool:
    """Complete a future with the value or error of a reply, or with the reason why none came.

    Return False if the future was cancelled before. The reply is read even then, since it may
    contain references.
    """
    if not isinstance(answer, Message):
        holder.rrefs.unread(to, request)
        if isinstance(answer, PeerLost):
            # A new error: many calls receive the same one, and the traceback that it collects in
            # one would stay as long as any of them, or the peer, keeps it.
            answer = PeerLost(str(answer), peer=answer.peer, incarnation=answer.incarnation)
        return future.finish(None, answer)
    try:
        value = read(holder.rrefs, to, request, answer)
    except BaseException as error:
        # Without this frame: it refers to the future, and the future to the error. This cycle
        # would keep all frames of the traceback until a garbage collection.
        return future.finish(None, error.with_traceback(None))
    return future.finish(value, None)
