"""The metrics of an agent, as strings by name: for people and for monitoring tools.

    agent.client_calls              requests made so far: calls, creations, fetches, and messages
                                    about references
    agent.client_active_calls       those of them that have no reply yet
    agent.server_calls              messages of others that have been handled so far
    agent.server_active_calls       handlers that run now, each on a thread
    agent.server_active_async_calls replies that a coroutine or a future will give
    agent.retries_pending           calls that may be sent again, and have no reply yet
    agent.receipts_kept             replies that are kept for callers that may retry
    agent.links                     connections to others
    agent.threads                   threads that work for RPC, of all agents of this process
    agent.pooled_bytes              memory of this process that waits for the next large buffer
    agent.gil_average_wait_time_us  see `InterpreterWait`; only while that is measured
    rref.num_owner_rrefs            values that live here
    rref.num_forks                  references of others to them
    rref.num_pending_users          references of ours that their owners have not confirmed yet
    rref.num_pending_futures        values that are still being created

The names do not change; more of them may come.

Guarantees
    IG-1  A call pays for one count on its connection, and for nothing else: the metrics are read
          on demand from state that exists anyway. So each number is from its own moment.
    IG-2  Reading the metrics changes nothing.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sized
from types import FrameType

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import UsageError
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.rref.table import RRefTable
from holdfast.rpc.server.dispatcher import Dispatcher
from holdfast.rpc.server.listener import Server
from holdfast.rpc.wire.memory import pooled_bytes
from holdfast.rpc.wire.worker_info import WorkerInfo

__all__ = ["SAMPLE_EVERY_S", "AgentMetrics", "InterpreterWait"]

SAMPLE_EVERY_S = 0.01
_THREADS = "holdfast-rpc-"


class AgentMetrics:
    """Reads the metrics from the parts of an agent."""

    def __init__(
        self,
        info: WorkerInfo,
        numbers: itertools.count[int],
        peers: Mapping[str, Peer],
        retrying: Sized,
        server: Server,
        answerer: Dispatcher,
        rrefs: RRefTable,
    ) -> None:
        self._info = info
        self._numbers = numbers
        self._peers = peers
        self._retrying = retrying
        self._server = server
        self._dispatcher = answerer
        self._rrefs = rrefs
        self.wait = InterpreterWait(f"{_THREADS}{info.name}-gil")
        """Measures how long threads wait for the interpreter, while it is on."""

    def metrics(self) -> dict[str, str]:
        """Return the numbers that are listed above."""
        peers = list(self._peers.values())
        references = self._rrefs.counts()
        found: dict[str, int | float] = {
            "agent.client_calls": _next_of(self._numbers) - 1,
            "agent.client_active_calls": sum(peer.under_way for peer in peers),
            "agent.server_calls": self._server.handled,
            "agent.server_active_calls": _running(self._dispatcher),
            "agent.server_active_async_calls": self._dispatcher.open_answers,
            "agent.retries_pending": len(self._retrying),
            "agent.receipts_kept": self._dispatcher.kept_answers,
            "agent.links": sum(len(peer.connections) for peer in peers),
            "agent.threads": sum(
                thread.name.startswith(_THREADS) for thread in threading.enumerate()
            ),
            "agent.pooled_bytes": pooled_bytes(),
            "rref.num_owner_rrefs": references["owners"],
            "rref.num_forks": references["forks"],
            "rref.num_pending_users": references["pending_users"],
            "rref.num_pending_futures": self._rrefs.open_values,
        }
        average = self.wait.average_us()
        if average is not None:
            found["agent.gil_average_wait_time_us"] = round(average, 1)
        return {name: str(number) for name, number in found.items()}

    def debug_info(self) -> dict[str, str]:
        """Return the numbers, and a description of the connections.

        agent.worker         this worker
        agent.peer.NAME      our connections to a worker: how many, and over which medium
        agent.caller.NAME    a worker's connections to us
        """
        outward = [
            (peer.contact.info.name, connection)
            for peer in list(self._peers.values())
            for connection in peer.connections
        ]
        inward = [
            (hello.name, connection) for connection, hello in self._server.connections.items()
        ]
        words = {"agent.worker": str(self._info)}
        for key, connections in (("agent.peer", outward), ("agent.caller", inward)):
            carried = Counter((name, connection.mode) for name, connection in connections)
            for (name, mode), number in sorted(carried.items()):
                text = f"{number} connection{'s' * (number > 1)}: {mode}"
                before = words.get(f"{key}.{name}")
                words[f"{key}.{name}"] = f"{before}; {text}" if before else text
        return self.metrics() | words


def _next_of(numbers: itertools.count[int]) -> int:
    """Return the next number without consuming it."""
    return int(repr(numbers).removeprefix("count(").removesuffix(")"))


def _running(answerer: Dispatcher) -> int:
    """Return how many threads run a handler of this agent, according to their frames."""
    code, number = Dispatcher.handle.__code__, 0
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code is code and frame.f_locals["self"] is answerer:
                number += 1
            frame = frame.f_back
    return number


class InterpreterWait:
    """Measures how long a thread waits until it may run Python, after it has slept; off at first.

    A thread repeatedly sleeps for SAMPLE_EVERY_S, like a thread that waits for a message, and
    records how much later than due it runs Python again. This is the wait for the interpreter's
    lock (the GIL) and for a core of the machine; the two cannot be distinguished here. Some tens
    of microseconds of it come from the system's timer. The average is over all samples since it
    was switched on.
    """

    def __init__(
        self, name: str, every_s: float = SAMPLE_EVERY_S, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._name = name
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._sampler: _Sampler | None = None
        self._closed = False

    def switch(self, on: bool) -> None:
        """Start or stop to measure."""
        with self._lock:
            if on and self._closed:
                raise UsageError("this agent has been shut down")
            if on and self._sampler is None:
                self._sampler = _Sampler(self._name, self._every_s, self._clock)
            elif not on and self._sampler is not None:
                self._sampler.end()
                self._sampler = None

    def average_us(self) -> float | None:
        """Return the average in microseconds, 0 before the first sample; None if it is off."""
        sampler = self._sampler
        return None if sampler is None else sampler.average_s() * 1e6

    def close(self) -> None:
        """Stop to measure for good. Idempotent."""
        self._closed = True
        self.switch(False)


class _Sampler:
    """The thread that sleeps and records how late it wakes."""

    def __init__(self, name: str, every_s: float, clock: Clock) -> None:
        self._every_s = every_s
        self._clock = clock
        self._noted = (0.0, 0)
        # Held until the end: waiting for a lock is a sleep that a single call can end.
        self._over = threading.Lock()
        self._over.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def average_s(self) -> float:
        total, number = self._noted
        return total / number if number else 0.0

    def end(self) -> None:
        self._over.release()
        self._thread.join(5.0)

    def _run(self) -> None:
        while True:
            due = self._clock.monotonic() + self._every_s
            if self._over.acquire(timeout=self._every_s):
                return
            total, number = self._noted
            self._noted = (total + max(0.0, self._clock.monotonic() - due), number + 1)
