"""Requests to an etcd cluster: several addresses, a pool of lanes, retries within a deadline.

A caller takes a `Lane`, a connection of its own, from the pool, and does the I/O on its own thread;
there are as many lanes as there were callers at once. When a member fails the lane moves to the
next one. After each round of failures the caller backs off, exponentially and with jitter: this
spares the cluster when it comes back, and the processor here.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import PeerViolation, StoreUnavailable, TimeoutExpired, Unavailable, UsageError
from holdfast.net.address import Address
from holdfast.net.tls import ClientTls
from holdfast.store.etcd.http.connection import HttpConnection, HttpRequest, Lost, NoAnswer, NotSent
from holdfast.store.etcd.http.reply import HttpReply

__all__ = [
    "ATTEMPT_S",
    "EtcdClient",
    "Lane",
    "Marker",
    "Retries",
    "backoff_s",
    "not_etcd",
    "still_missing",
]

ATTEMPT_S = 1.0
"""How long a member may take to answer at first; twice as long in each later round.

About as long as an election takes: a member whose leader died keeps its callers waiting for
seconds, while the next one could serve them.
"""
_ATTEMPT_MAX_S = 40.0
_PAUSE_FIRST_S = 0.01
_PAUSE_MAX_S = 1.0
# A write that nothing may have come before takes about a millisecond.
_GIVE_WAY_FIRST_S = 0.002
_GIVE_WAY_MAX_S = 0.05


@dataclass(slots=True)
class Marker:
    """A key that every write of a lane also puts: how a writer learns what became of a write.

    `revision` is the one at which the marker was last put, 0 if it never was. The marker hangs
    on `lease`, which was last kept alive at `kept_at`.
    """

    key: bytes
    lease: int
    kept_at: float
    revision: int = 0


class Lane:
    """A connection that one caller at a time uses, and the marker of its writes, if any."""

    def __init__(self, member: int, connection: HttpConnection) -> None:
        self.member = member
        self.connection = connection
        self.marker: Marker | None = None


class EtcdClient:
    """Exchanges requests for replies with whichever member answers. Thread-safe."""

    def __init__(
        self,
        endpoint: str,
        addresses: Sequence[Address],
        rng: random.Random,
        clock: Clock = SYSTEM_CLOCK,
        tls: ClientTls | None = None,
    ) -> None:
        if not addresses:
            raise UsageError(f"endpoint {endpoint!r}: an address is missing, such as host:2379")
        self.endpoint = endpoint
        self.rng = rng
        self.clock = clock
        self._addresses = tuple(addresses)
        self._tls = tls
        self._closed = threading.Event()
        self._lock = threading.Lock()  # guards what follows
        self._member = rng.randrange(len(self._addresses))  # the one that answered last
        self._idle: list[Lane] = []
        self._lanes: list[Lane] = []

    def check_open(self) -> None:
        """Raise UsageError if the store was closed."""
        if self._closed.is_set():
            raise UsageError(f"the store {self.endpoint} is closed")

    @contextmanager
    def lane(self) -> Iterator[Lane]:
        """Lend a lane for the time of a `with` block."""
        with self._lock:
            self.check_open()
            if self._idle:
                lane = self._idle.pop()
            else:
                lane = Lane(self._member, self.new_connection())
                self._lanes.append(lane)
        try:
            yield lane
        finally:
            with self._lock:
                self._idle.append(lane)
                if self._closed.is_set():
                    lane.connection.close()

    def new_connection(self) -> HttpConnection:
        """Return an unopened connection, of the caller's own, to the member that answered last."""
        return self._connection_to(self._member)

    def _connection_to(self, member: int) -> HttpConnection:
        return HttpConnection(self._addresses[member], self._tls)

    def failed_at(self, address: Address) -> None:
        """Note that a member failed: connections made from now on go to the next one."""
        with self._lock:
            if self._addresses[self._member] == address:
                self._member = (self._member + 1) % len(self._addresses)

    def exchange(self, lane: Lane, request: HttpRequest, deadline: Deadline) -> HttpReply:
        """Ask one member. After NotSent or Lost the lane points to the next one.

        A reply that says "I cannot, now" (5xx) is Lost too: it may come after the deed.
        """
        address = lane.connection.address
        try:
            lane.connection.open(deadline)
            self.check_open()  # here: `_close` shuts only the sockets that it can see
            reply = lane.connection.call(request, deadline)
            if reply.status >= 500:
                raise Lost(f"{address} answers {_excerpt(reply)}", address=str(address))
        except (NotSent, Lost):
            self.check_open()
            self.failed_at(address)
            lane.connection.close()
            lane.member = (lane.member + 1) % len(self._addresses)
            lane.connection = self._connection_to(lane.member)
            raise
        self._member = lane.member
        return reply

    def retries(self, what: str, deadline: Deadline, *, writes: bool) -> Retries:
        """Return the account of one operation's attempts."""
        return Retries(self, what, deadline, len(self._addresses), writes)

    def pause(self, seconds: float, deadline: Deadline) -> None:
        """Sleep, at most until the deadline; UsageError as soon as the store is closed."""
        self._closed.wait(deadline.sooner(seconds).remaining())
        self.check_open()

    def give_way(self, tries: int, what: str, deadline: Deadline) -> None:
        """Pause for a moment, when others change the same key; TimeoutExpired at the deadline."""
        if deadline.passed():
            raise TimeoutExpired(f"{what}: others changed the key {tries} times in between")
        self.pause(self.rng.random() * min(_GIVE_WAY_FIRST_S * tries, _GIVE_WAY_MAX_S), deadline)

    def reopened(self) -> EtcdClient:
        """Return a client like this one that is open, for what is left to do after closing."""
        return EtcdClient(self.endpoint, self._addresses, self.rng, self.clock, self._tls)

    def close(self) -> list[Lane]:
        """Wake all threads and release the connections; return the lanes there were. Idempotent."""
        with self._lock:
            self._closed.set()
            for lane in self._lanes:
                lane.connection.shut()
            for lane in self._idle:
                lane.connection.close()
            lanes, self._lanes = self._lanes, []
            return lanes


def backoff_s(rounds: int, rng: random.Random) -> float:
    """Return how long to pause after so many failures: twice as long each time, with jitter."""
    longest: float = min(_PAUSE_FIRST_S * 2 ** min(rounds, 10), _PAUSE_MAX_S)
    return longest * (0.5 + rng.random() / 2)


class Retries:
    """The attempts at one operation: how long each may take, and when to give up."""

    def __init__(
        self, client: EtcdClient, what: str, deadline: Deadline, members: int, writes: bool
    ) -> None:
        self.lost = False
        """Whether a write may have been performed without our knowing."""
        self._writes = writes
        self._client = client
        self._what = what
        self._deadline = deadline
        self._members = members
        self._failures = 0
        self._failure: Unavailable | None = None

    def attempt(self) -> Deadline:
        """Return the deadline of the next attempt; raise if there is no time for one."""
        if self._deadline.passed():
            self.give_up(self._failure or NoAnswer("no time to ask"))
        rounds = min(self._failures // self._members, 10)
        return self._deadline.sooner(min(ATTEMPT_S * 2**rounds, _ATTEMPT_MAX_S))

    def failed(self, error: Unavailable) -> None:
        """Take note of a failure. Pauses after each round over the members.

        Raises what the caller should see if the deadline has passed.
        """
        self.lost = self.lost or (self._writes and isinstance(error, Lost))
        self._failures += 1
        self._failure = error
        if self._deadline.passed():
            self.give_up(error)
        rounds, member = divmod(self._failures, self._members)
        if member == 0:
            self._client.pause(backoff_s(rounds, self._client.rng), self._deadline)

    def give_up(self, why: Unavailable) -> NoReturn:
        """Raise the typed error for the last failure."""
        text = f"{self._what}: {why}"
        if isinstance(why, NoAnswer):
            raise TimeoutExpired(text, maybe_applied=self.lost) from None
        raise StoreUnavailable(
            text, step=why.step, address=why.address, maybe_applied=self.lost
        ) from None


def _excerpt(reply: HttpReply) -> str:
    return f"HTTP {reply.status} {reply.body[:160].decode(errors='replace').strip()!r}"


def not_etcd(reply: HttpReply, address: Address, api: str) -> PeerViolation:
    """Return the error for a server that speaks HTTP but not the API that we need."""
    return PeerViolation(
        f"{address} does not serve {api}; it answers {_excerpt(reply)}", address=str(address)
    )


def still_missing(keys: tuple[str, ...]) -> TimeoutExpired:
    """Return the error for a wait whose keys did not all come in time."""
    names = ", ".join(map(repr, keys[:10]))
    return TimeoutExpired(f"wait: still missing {names:.500}", waiting_for=keys)
