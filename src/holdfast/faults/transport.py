"""The wrapper that injects faults between an agent and its connections.

Neither the agent nor the peer detects it. A synchronous request is sent here like an asynchronous
one, so that all faults happen in one place.

A request whose caller gives up may still arrive, as in a real network: a delayed message is sent,
with its original content, even if its call has expired. A call whose message is dropped or delayed
fails when its receiver is lost or this agent ends, like every other call.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import HoldfastError, PeerLost
from holdfast.faults.plan import Action, FaultPlan, Fired, Moment
from holdfast.rpc.client.future import Driver, Future
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.client.pipe import NEVER, Reply
from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.client.transport import CallTransport
from holdfast.rpc.wire.messages import Message

__all__ = ["FaultyTransport"]

PATIENCE_S = 60.0
"""How long a request without a deadline waits for a reply that was dropped."""
REORDER_S = 0.05
"""How long a message waits for another one that may overtake it."""
NO_KIND = 255
"""The kind of a corrupted message."""
ON_PURPOSE = "Connection reset by peer (on purpose)"


class FaultyTransport:
    """Carries requests through another transport, with the faults of a plan."""

    def __init__(
        self, transport: CallTransport, plan: FaultPlan, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._transport = transport
        self.plan = plan
        self.repeats = any(rule.action is Action.DUPLICATE for rule in plan.rules)
        """Whether a message may arrive twice."""
        self._clock = clock
        self._scheduler = Scheduler("holdfast-faults", clock)
        # Guards the fields below; their keys are the names of peers.
        self._lock = threading.Lock()
        self._cut_until: dict[str, float] = {}
        self._held_back: dict[str, list[Callable[[], None]]] = {}

    def fired(self) -> dict[Action, int]:
        """Return how often each action has happened."""
        with self._lock:
            return self.plan.fired()

    def close(self) -> None:
        """Send nothing more."""
        self._scheduler.close()
        self._transport.close()

    def exchange(self, peer: Peer, message: Message, at: float) -> Message:
        """Send a request and return its reply."""
        future: Future[Message] = Future()
        future._driver = self.post(peer, message, _into(future), at)
        left = Deadline(None if at == NEVER else at, self._clock).remaining()
        try:
            return future.wait(None if left is None else left + PATIENCE_S)
        finally:
            del future  # else its error would keep it alive through this frame

    def post(self, peer: Peer, message: Message, reply: Reply, at: float) -> Driver | None:
        """Send a request, and call `reply` with the outcome."""
        name, hear = peer.contact.info.name, _Once(reply)
        request = _TrackedRequest(peer, message, (message.kind, name, zlib.crc32(message.body)), at)
        if self._is_cut(name):
            self._expire(request, hear)
            return None
        faults = self._decide(request, Moment.REQUEST)
        actions = {fault.action for fault in faults}
        if Action.FAIL in actions:
            kind = message.kind.name
            hear(PeerLost(f"Send attempt failed intentionally for {kind}", peer=name))
        elif Action.PARTITION in actions or Action.DROP in actions:
            self._cut(name, faults)
            self._expire(request, hear)
        elif Action.RESET in actions:
            peer.reset(ON_PURPOSE)
            hear(PeerLost(ON_PURPOSE, peer=name))
        elif Action.CORRUPT in actions:
            garbled = replace(message, kind=NO_KIND)  # type: ignore[arg-type]
            return self._send(request, garbled, hear, at)
        else:
            return self._send_on(request, faults, hear)
        return None

    def _send_on(self, request: _TrackedRequest, faults: list[Fired], hear: Reply) -> Driver | None:
        """Send a request: now, later, or twice."""
        actions = {fault.action for fault in faults}
        delay = sum(fault.seconds for fault in faults if fault.action is Action.DELAY)
        twice = Action.DUPLICATE in actions
        if delay or Action.REORDER in actions:
            self._expire(request, hear)
            # Even if its caller has given up by then: late messages arrive in real networks too.
            message = request.message
            copies = [bytes(buffer) for buffer in message.buffers]
            request = replace(request, message=replace(message, buffers=copies), at=NEVER)
            late = _Once(partial(self._send_now, request, twice, hear))
            if Action.REORDER in actions:
                with self._lock:
                    self._held_back.setdefault(request.name, []).append(partial(late, None))
            self._scheduler.submit(partial(late, None), delay or REORDER_S)
            return None
        driver = self._send_now(request, twice, hear, None)
        with self._lock:
            waiting = self._held_back.pop(request.name, [])
        for send in waiting:
            self._scheduler.submit(send)
        return driver

    def _send_now(
        self, request: _TrackedRequest, twice: bool, hear: Reply, _: object
    ) -> Driver | None:
        message = request.message
        if twice:  # the callee detects the copy by its number
            self._send(request, message, _ignore, request.at)
        breaks = self._decide(request, Moment.RUNNING)
        if breaks:
            with contextlib.suppress(HoldfastError, OSError):  # sending reports it below
                request.peer.open(request.at)  # else the reset would precede the message
        driver = self._send(request, message, partial(self._answered, request, hear), request.at)
        if breaks:
            request.peer.reset(ON_PURPOSE)
        return driver

    def _send(
        self, request: _TrackedRequest, message: Message, reply: Reply, at: float
    ) -> Driver | None:
        try:
            return self._transport.post(request.peer, message, reply, at)
        except (HoldfastError, TimeoutError) as error:
            reply(error)
            return None

    def _answered(self, request: _TrackedRequest, hear: Reply, answer: Message | Exception) -> None:
        """Pass a reply on, with the faults of the plan."""
        if not isinstance(answer, Message):
            hear(answer)  # there is no reply to which a fault could happen
            return
        faults = self._decide(request, Moment.REPLY)
        actions = {fault.action for fault in faults}
        delay = sum(fault.seconds for fault in faults if fault.action is Action.DELAY)
        if Action.DROP in actions:
            self._expire(request, hear)
        elif actions & {Action.RESET, Action.CORRUPT}:
            request.peer.reset(ON_PURPOSE)
            hear(PeerLost(ON_PURPOSE, peer=request.name))
        elif delay:
            self._expire(request, hear)
            self._scheduler.submit(partial(hear, answer), delay)
        else:
            hear(answer)

    def _decide(self, request: _TrackedRequest, moment: Moment) -> list[Fired]:
        with self._lock:
            return self.plan.decide(request.message.kind, request.name, moment, request.key)

    def _is_cut(self, name: str) -> bool:
        with self._lock:
            return self._clock.monotonic() < self._cut_until.get(name, 0.0)

    def _cut(self, name: str, faults: list[Fired]) -> None:
        seconds = sum(fault.seconds for fault in faults if fault.action is Action.PARTITION)
        with self._lock:  # another thread may have begun a longer partition just now
            until = self._clock.monotonic() + seconds
            self._cut_until[name] = max(until, self._cut_until.get(name, 0.0))

    def _expire(self, request: _TrackedRequest, hear: Reply) -> None:
        """Fail a request without a reply at its deadline, or when the peer is lost."""
        peer, at = request.peer, request.at

        def expire() -> None:
            peer.tell_no_more(hear)
            hear(TimeoutError())

        left = PATIENCE_S if at == NEVER else max(0.0, at - self._clock.monotonic())
        peer.tell_of_loss(hear)
        self._scheduler.submit(expire, left or 1e-6)


@dataclass(frozen=True, slots=True)
class _TrackedRequest:
    """A request that is under way; `key` is the same when it is sent again."""

    peer: Peer
    message: Message
    key: Hashable
    at: float

    @property
    def name(self) -> str:
        return self.peer.contact.info.name


def _into(future: Future[Message]) -> Reply:
    def hear(answer: Message | Exception) -> None:
        if isinstance(answer, Message):
            future.set_result(answer)
        else:
            future.set_exception(answer)

    return hear


class _Once:
    """Passes the first call on, and ignores all others."""

    def __init__(self, tell: Callable[[Any], object]) -> None:
        self._tell: Callable[[Any], object] | None = tell
        self._lock = threading.Lock()

    def __call__(self, what: Any) -> None:
        with self._lock:
            tell, self._tell = self._tell, None
        if tell is not None:
            tell(what)


def _ignore(answer: Message | Exception) -> None:
    """Ignore the reply to a copy."""
