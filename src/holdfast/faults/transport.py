"""The wrapper that makes faults: it stands between an agent and its connections.

The agent does not know that it is there; neither does the peer. A synchronous request goes the way
of an asynchronous one here, so that there is one place where things go wrong.

A request whose sender gives up may still arrive, as in a real network: a delayed message is sent
even if its caller has long been told that time was up.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import replace
from functools import partial

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import PeerLost
from holdfast.faults.plan import Action, FaultPlan, Fired, Moment
from holdfast.rpc.agent import Transport
from holdfast.rpc.errands import Errands
from holdfast.rpc.future import Driver, Future
from holdfast.rpc.messages import Message
from holdfast.rpc.peers import Peer
from holdfast.rpc.pipe import NEVER, Reply

__all__ = ["FaultyTransport"]

PATIENCE_S = 60.0
"""How long a request without a deadline waits for an answer that was dropped."""
REORDER_S = 0.05


class FaultyTransport:
    """Carries requests through another transport, and does to them what a plan says."""

    def __init__(self, transport: Transport, plan: FaultPlan, clock: Clock = SYSTEM_CLOCK) -> None:
        self._transport = transport
        self.plan = plan
        self._clock = clock
        self._errands = Errands("holdfast-faults", clock)
        self._lock = threading.Lock()
        self._cut_until: dict[str, float] = {}

    def fired(self) -> dict[Action, int]:
        """Return how often each action has happened."""
        with self._lock:
            return self.plan.fired()

    def close(self) -> None:
        """Do nothing more."""
        self._errands.close()

    def exchange(self, peer: Peer, message: Message, at: float) -> Message:
        """Send a request and return its answer."""
        future: Future[Message] = Future()

        def hear(answer: Message | Exception) -> None:
            if isinstance(answer, Message):
                future.set_result(answer)
            else:
                future.set_exception(answer)

        future._driver = self.post(peer, message, hear, at)
        left = Deadline(None if at == NEVER else at, self._clock).remaining()
        error = future.exception(None if left is None else left + PATIENCE_S)
        if error is not None:
            raise error
        return future.value()

    def post(self, peer: Peer, message: Message, reply: Reply, at: float) -> Driver | None:
        """Send a request whose answer `reply` hears."""
        hear = _Once(reply)
        name = peer.contact.info.name
        key = (message.kind, name, zlib.crc32(message.body))
        with self._lock:
            cut = self._clock.monotonic() < self._cut_until.get(name, 0.0)
            faults = self.plan.decide(message.kind, name, Moment.REQUEST, key)
            replies = self.plan.decide(message.kind, name, Moment.REPLY, key)
            running = self.plan.decide(message.kind, name, Moment.RUNNING, key)
        for fault in faults:
            if fault.action is Action.PARTITION:
                with self._lock:
                    self._cut_until[name] = self._clock.monotonic() + fault.seconds
                cut = True
        actions = {fault.action for fault in faults}
        if Action.FAIL in actions:
            kind = message.kind.name
            hear(PeerLost(f"Send attempt failed intentionally for {kind}", peer=name))
            return None
        heard: Reply = partial(self._answered, replies, hear, at)
        if cut or Action.DROP in actions:
            self._expire(hear, at)
            return None
        if Action.RESET in actions or Action.CORRUPT in actions:
            peer.reset("Connection reset by peer (on purpose)")
            hear(PeerLost("Connection reset by peer (on purpose)", peer=name))
            return None
        if Action.DUPLICATE in actions:
            message = replace(message, once=True)
            self._send(peer, message, _ignore, at)
        delay = sum(fault.seconds for fault in faults if fault.action is Action.DELAY)
        if Action.REORDER in actions:
            delay += REORDER_S
        if delay:
            self._expire(hear, at)
            self._errands.do(partial(self._send_late, peer, message, heard), delay)
            return None
        driver = self._send(peer, message, heard, at)
        if running:
            peer.reset("Connection reset by peer (on purpose)")
        return driver

    def _send(self, peer: Peer, message: Message, reply: Reply, at: float) -> Driver | None:
        try:
            return self._transport.post(peer, message, reply, at)
        except (PeerLost, TimeoutError) as error:
            reply(error)
            return None

    def _send_late(self, peer: Peer, message: Message, reply: Reply) -> None:
        self._send(peer, message, reply, NEVER)

    def _answered(
        self, faults: list[Fired], hear: Reply, at: float, answer: Message | Exception
    ) -> None:
        """Pass an answer on, as the plan says."""
        actions = {fault.action for fault in faults}
        delay = sum(fault.seconds for fault in faults if fault.action is Action.DELAY)
        if Action.DROP in actions or Action.PARTITION in actions:
            self._expire(hear, at)
        elif Action.RESET in actions or Action.CORRUPT in actions:
            hear(PeerLost("Connection reset by peer (on purpose)"))
        elif delay:
            self._expire(hear, at)
            self._errands.do(partial(hear, answer), delay)
        else:
            hear(answer)

    def _expire(self, hear: Reply, at: float) -> None:
        """Tell that time is up when it is, if nothing else has been told by then."""
        left = PATIENCE_S if at == NEVER else max(0.0, at - self._clock.monotonic())
        self._errands.do(partial(hear, TimeoutError()), left or 1e-6)


class _Once:
    """Hears the first answer only."""

    def __init__(self, reply: Reply) -> None:
        self._reply: Reply | None = reply
        self._lock = threading.Lock()

    def __call__(self, answer: Message | Exception) -> None:
        with self._lock:
            reply, self._reply = self._reply, None
        if reply is not None:
            reply(answer)


def _ignore(answer: Message | Exception) -> None:
    """Hear the answer to a copy, which is nobody's."""
