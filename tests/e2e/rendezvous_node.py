"""A node of a run as a process of its own: orders come on stdin, what happens goes to stdout.

The argument is a JSON object: the fields of RendezvousParameters, and `reconnect_within_s` for
tests that do not wait ten seconds until a store counts as lost. Orders and reports are
lines of JSON. A report is an event of the rendezvous as it is, or {"event": "did", "order": ...}
with what came of an order: its result, or the error. The end of stdin, SIGTERM and the order
"leave" make the node leave; its last report says what it has left behind.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError
from holdfast.observe.events import Event
from holdfast.rendezvous import session
from holdfast.rendezvous.handler import Rendezvous, Round
from holdfast.rendezvous.model import Keys
from holdfast.rendezvous.parameters import RendezvousParameters
from holdfast.rendezvous.registry import create_rendezvous
from holdfast.rendezvous.release import Release
from holdfast.store import client
from holdfast.store.replica.machine import Replica
from holdfast.testing.leaks import find_leaks, take_snapshot


def report(event: str, **fields: object) -> None:
    """Write one line; a short write to a pipe is never torn."""
    os.write(1, json.dumps({"event": event, **fields}).encode() + b"\n")


class Reporter:
    """A sink that reports every event."""

    def emit(self, event: Event) -> None:
        fields = event.to_dict()
        report(str(fields.pop("event")), **fields)

    def close(self) -> None:
        pass


class Orders:
    """What a node can be told to do; each method returns what to report."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.rendezvous = rendezvous
        self.rounds: dict[int, Round] = {}

    def next(self, why: str = "", timeout: float | None = None) -> dict[str, Any]:
        here = self.rendezvous.next_round(why, timeout=timeout)
        self.rounds[here.number] = here
        return {
            "round": here.number,
            "rank": here.rank,
            "size": here.world_size,
            "master": f"{here.master_address}:{here.master_port}",
            "hosts": [member.host for member in here.members],
            "reason": here.reason,
        }

    def state(self) -> dict[str, Any]:
        rendezvous = self.rendezvous
        return {
            "over": rendezvous.over(),
            "closed": rendezvous.closed(),
            "waiting": rendezvous.nodes_waiting(),
        }

    def leads(self) -> dict[str, Any]:
        """Say whether the store's leader is here, and how many vote."""
        release: Any = self.rendezvous._release  # type: ignore[attr-defined]
        server = release.host.server
        machine = None if server is None else server._machine
        voters = len(machine.configuration.voters) if isinstance(machine, Replica) else 1
        return {"leads": server is not None and server.leads, "voters": voters}

    def write(self, number: int, key: str, value: str) -> dict[str, Any]:
        self.rounds[number].store.set(key, value.encode())
        return {}

    def read(self, number: int, key: str) -> dict[str, Any]:
        [value] = self.rounds[number].store.wait([key], timeout=30)
        return {"value": value.decode()}

    def count(self) -> dict[str, Any]:
        return {"count": self.rendezvous.count_failure().count}

    def close(self, reason: str) -> dict[str, Any]:
        self.rendezvous.close(reason)
        return {}


def lines() -> Iterator[bytes]:
    """Yield the lines of stdin; a signal is heard even if it comes just before the wait."""
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    rest = b""
    try:
        while 0 in select.select([0, woken], [], [])[0]:
            data = os.read(0, 65536)
            if not data:
                return
            *whole, rest = (rest + data).split(b"\n")
            yield from whole
    finally:
        signal.set_wakeup_fd(-1)
        os.close(woken)
        os.close(waker)


def obey(orders: Orders) -> None:
    """Carry out orders until there are no more."""
    for line in lines():
        order, *arguments = json.loads(line)
        if order == "leave":
            return
        try:
            result = getattr(orders, order)(*arguments)
        except HoldfastError as error:
            result = {"error": type(error).__name__, "text": str(error)}
        report("did", order=order, **result)


def terminated(number: int, frame: FrameType | None) -> None:
    """Leave by way of every `finally`."""
    sys.exit(128 + number)


def report_waiting() -> None:
    """Let a host report that it has left, and waits for the others from now on."""
    wait_alone = Release._wait_alone

    def waiting(self: Release, keys: Keys, deadline: Deadline, stop: Callable[[], bool]) -> bool:
        report("waiting")
        return wait_alone(self, keys, deadline, stop)

    Release._wait_alone = waiting  # type: ignore[method-assign]


def main() -> None:
    """Be a node."""
    report_waiting()
    signal.signal(signal.SIGTERM, terminated)
    wish = json.loads(sys.argv[1])
    client.RECONNECT_WITHIN_S = wish.pop("reconnect_within_s", client.RECONNECT_WITHIN_S)
    session.LogSink = Reporter  # type: ignore[assignment, attr-defined]
    before = take_snapshot()
    clean = True
    try:
        report("started", pid=os.getpid())
        rendezvous = create_rendezvous(RendezvousParameters(**wish))
        try:
            report("created")
            obey(Orders(rendezvous))
        finally:
            report("leaving")
            clean = rendezvous.shutdown()
    except HoldfastError as error:
        report("failed", error=type(error).__name__, text=str(error))
        sys.exit(1)
    finally:
        leaks = [f"{leak.kind}: {leak.what}" for leak in find_leaks(before)]
        report("left", clean=clean, leaks=leaks)


if __name__ == "__main__":
    main()
