"""The transport that injects faults, between the table of calls and the connections.

Neither the agent nor the peer detects it. The table keeps the call whose message is dropped or
delayed, so the call ends like every other one: at its deadline, when its receiver is lost, or when
this agent ends. A request whose caller gives up may still arrive, as in a real network: a delayed
message is sent with its original content, even if its call has expired.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import HoldfastError, PeerLost
from holdfast.faults.plan import Action, FaultPlan, Fired, Moment
from holdfast.rpc.client.calls import CALLS_MAX
from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.client.transport import Link
from holdfast.rpc.wire.messages import NO_BUDGET, Kind, Message

__all__ = ["FaultyTransport"]

DROPPED_REPLY_S = 60.0
"""How long a request without a deadline waits for a reply that was dropped."""
REORDER_S = 0.05
"""How long a message waits for another one that may overtake it."""
NO_KIND = 255
"""The kind of a corrupted message."""
ON_PURPOSE = "Connection reset by peer (on purpose)"


class FaultyTransport:
    """Carries messages with the faults of a plan."""

    def __init__(self, plan: FaultPlan, clock: Clock = SYSTEM_CLOCK) -> None:
        self.plan = plan
        self._repeats = any(rule.action is Action.DUPLICATE for rule in plan.rules)
        self._clock = clock
        self._scheduler = Scheduler("holdfast-faults", clock)
        # Guards the fields below; the keys of the first two are the names of peers.
        self._lock = threading.Lock()
        self._cut_until: dict[str, float] = {}
        self._held_back: dict[str, list[Callable[[], None]]] = {}
        self._asked: OrderedDict[tuple[str, int], _Request] = OrderedDict()  # without a reply

    @property
    def repeats(self) -> bool:
        """Whether a message may arrive twice."""
        return self._repeats

    def fired(self) -> dict[Action, int]:
        """Return how often each action has happened."""
        with self._lock:
            return self.plan.fired()

    def close(self) -> None:
        """Send nothing more."""
        self._scheduler.close()

    def check(self, link: Link, message: Message) -> None:
        """Decide about a request that waits for its connection; raise the error if it fails.

        What is delayed is delayed from now on: it arrives though its call may expire before.
        """
        request = self._add(link, message)
        if self._is_cut(request.name):
            return
        request.decided = self._decide(request, Moment.REQUEST)
        actions = {fault.action for fault in request.decided}
        if Action.FAIL in actions:
            with self._lock:  # the next try is decided about anew
                self._asked.pop((link.contact.incarnation, message.call), None)
            raise _failed(request)
        if Action.PARTITION in actions:
            self._cut(request.name, request.decided)
        elif actions and actions <= {Action.DELAY, Action.REORDER, Action.DUPLICATE}:
            request.is_late = actions != {Action.DUPLICATE}
            if request.is_late:
                self._send_on(request, message, request.decided)

    def send(self, link: Link, message: Message) -> None:
        """Send a request, with the faults of the plan."""
        with self._lock:
            checked = self._asked.get((link.contact.incarnation, message.call))
        if checked is not None and checked.is_late:
            checked.is_late, checked.decided = False, None  # a timer sends it
            return
        request = self._add(link, message)
        name = request.name
        if self._is_cut(name):
            self._drop(request)
            return
        faults = None if checked is None else checked.decided
        if faults is None:
            faults = self._decide(request, Moment.REQUEST)
        actions = {fault.action for fault in faults}
        if Action.FAIL in actions:
            link.complete(message.call, _failed(request))
        elif Action.PARTITION in actions or Action.DROP in actions:
            self._cut(name, faults)
            self._drop(request)
        elif Action.RESET in actions:
            link.reset(ON_PURPOSE)
        elif Action.CORRUPT in actions:
            link.transmit(replace(message, kind=NO_KIND))  # type: ignore[arg-type]
        else:
            self._send_on(request, message, faults)

    def _send_on(self, request: _Request, message: Message, faults: list[Fired]) -> None:
        """Send a request: now, later, or twice."""
        actions = {fault.action for fault in faults}
        twice = Action.DUPLICATE in actions
        delay = _delay(faults)
        if delay or Action.REORDER in actions:
            # Even if its caller has given up by then: late messages arrive in real networks too.
            copy = replace(message, buffers=[bytes(buffer) for buffer in message.buffers])
            late = _Once(partial(self._send_late, request, copy, twice))
            if Action.REORDER in actions:
                with self._lock:
                    self._held_back.setdefault(request.name, []).append(late)
            self._scheduler.submit(late, delay or REORDER_S)
            return
        self._send_now(request, message, twice)
        with self._lock:
            waiting = self._held_back.pop(request.name, [])
        for send in waiting:
            self._scheduler.submit(send)

    def _send_late(self, request: _Request, message: Message, twice: bool) -> None:
        try:
            self._send_now(request, message, twice)
        except HoldfastError as error:  # such as a loss of the peer; no thread waits in `send`
            request.link.complete(request.call, error)

    def _send_now(self, request: _Request, message: Message, twice: bool) -> None:
        breaks = self._decide(request, Moment.RUNNING)  # before a reply can have come
        for _ in range(1 + twice):  # the callee detects the copy by its number
            request.link.transmit(message)
        if breaks:
            request.link.reset(ON_PURPOSE)

    def receive(self, link: Link, message: Message) -> None:
        """Pass a reply on, with the faults of the plan."""
        asked = (link.contact.incarnation, message.call)
        with self._lock:
            request = self._asked.get(asked)
        faults = [] if request is None else self._decide(request, Moment.REPLY)
        actions, delay = {fault.action for fault in faults}, _delay(faults)
        if request is not None and Action.DROP in actions:
            self._drop(request)
            return
        with self._lock:
            self._asked.pop(asked, None)
        if actions & {Action.RESET, Action.CORRUPT}:
            link.reset(ON_PURPOSE)
        elif delay:
            self._scheduler.submit(partial(link.complete, message.call, message), delay)
        else:
            link.complete(message.call, message)

    def _add(self, link: Link, message: Message) -> _Request:
        request = _Request(link, message.call, message.kind, zlib.crc32(message.body))
        request.limitless = message.budget_ms == NO_BUDGET
        with self._lock:
            self._asked[link.contact.incarnation, message.call] = request
            while len(self._asked) > CALLS_MAX:
                self._asked.popitem(last=False)
        return request

    def _decide(self, request: _Request, moment: Moment) -> list[Fired]:
        key = (request.kind, request.name, request.body_sum)
        with self._lock:
            return self.plan.decide(request.kind, request.name, moment, key)

    def _is_cut(self, name: str) -> bool:
        with self._lock:
            return self._clock.monotonic() < self._cut_until.get(name, 0.0)

    def _cut(self, name: str, faults: list[Fired]) -> None:
        seconds = sum(fault.seconds for fault in faults if fault.action is Action.PARTITION)
        with self._lock:  # another thread may have begun a longer partition just now
            until = self._clock.monotonic() + seconds
            self._cut_until[name] = max(until, self._cut_until.get(name, 0.0))

    def _drop(self, request: _Request) -> None:
        """Drop a message; its call ends at its deadline, or after a while if it has none."""
        if request.limitless:
            fail = partial(request.link.complete, request.call, TimeoutError())
            self._scheduler.submit(fail, DROPPED_REPLY_S)


@dataclass(slots=True)
class _Request:
    """A request that was sent; a later try of it has the same kind and checksum."""

    link: Link
    call: int
    kind: Kind
    body_sum: Hashable
    limitless: bool = False
    decided: list[Fired] | None = None
    is_late: bool = False

    @property
    def name(self) -> str:
        return self.link.contact.info.name


class _Once:
    """Calls a function the first time only."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = [act]  # popped once: that is one instruction

    def __call__(self) -> None:
        try:
            act = self._act.pop()
        except IndexError:
            return
        act()


def _failed(request: _Request) -> PeerLost:
    text = f"Send attempt failed intentionally for {request.kind.name}"
    return PeerLost(text, peer=request.name)


def _delay(faults: list[Fired]) -> float:
    return sum(fault.seconds for fault in faults if fault.action is Action.DELAY)
