"""What the users of a simulated store do: a mix of calls that is hard to get right.

Each client has a few users. A user thinks, calls, waits for the outcome, and thinks again, until
the work is over. The keys are few, so that users meet:

    n0 n1       counters         v0 v1   values that are set, swapped and deleted
    t0          a growing text   w0      comes and goes, and is waited for
    p/a p/b     always written together
    l/<client>  hangs on a lease of that client, and on nothing else
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from holdfast.errors import HoldfastError
from holdfast.ids import LeaseId
from holdfast.store.ops import (
    Add,
    AnyOp,
    Append,
    CompareSet,
    Count,
    Delete,
    Entry,
    Get,
    Lease,
    LeaseGrant,
    LeaseKeep,
    LeaseRevoke,
    ListPrefix,
    MultiGet,
    MultiSet,
    Set,
    Swap,
    Wait,
)
from tests.sim.store.actors import LEASED, ClientProgram, WatchRecord

__all__ = ["PAIR", "Behaviour", "start_users"]

PAIR = ("p/a", "p/b")

_WATCHES = (("v", True), ("n0", False), ("p/", True), (LEASED, True), ("w0", False), ("", True))


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How users behave: they pause for up to `think_s`; some calls are patient."""

    think_s: float
    patient: float
    """The part of the calls that wait for minutes, where others wait for seconds."""


def start_users(
    client: ClientProgram, rng: random.Random, until: float, behaviour: Behaviour
) -> None:
    """Put users to work at a client until a moment."""
    for number in range(rng.randint(1, 2)):
        _Worker(client, rng, until, behaviour, f"{client.name}.{number}")
    if rng.random() < 0.5:
        _Holder(client, rng, until, behaviour)
    for _ in range(rng.randint(0, 2)):
        _Reader(client, rng, until, behaviour)


class _User:
    """What all users have in common."""

    def __init__(
        self, client: ClientProgram, rng: random.Random, until: float, behaviour: Behaviour
    ) -> None:
        self.client = client
        self.rng = rng
        self.behaviour = behaviour
        self._until = until
        self.pause(rng.uniform(0.0, behaviour.think_s))

    def pause(self, seconds: float) -> None:
        """Go on after some time, if the work is not over then."""
        self.client.host.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        if self.client.now() < self._until:
            self.act()

    def act(self) -> None:
        """Do the next thing."""
        raise NotImplementedError

    def timeout(self) -> float:
        """Choose how long to wait for an outcome."""
        patient = self.rng.random() < self.behaviour.patient
        return 300.0 if patient else self.rng.uniform(0.3, 15.0)


class _Worker(_User):
    """Reads and writes everything but leases."""

    def __init__(
        self,
        client: ClientProgram,
        rng: random.Random,
        until: float,
        behaviour: Behaviour,
        name: str,
    ) -> None:
        super().__init__(client, rng, until, behaviour)
        self._name = name
        self._number = 0
        self._last: dict[str, bytes | None] = {}

    def act(self) -> None:
        op = self._choose()
        timeout = self.rng.uniform(0.1, 5.0) if isinstance(op, Wait) else self.timeout()
        self.client.perform(op, timeout, lambda result: self._done(op, result))

    def _done(self, op: AnyOp, result: object) -> None:
        if isinstance(op, (Get, CompareSet)) and isinstance(result, (Entry, Swap)):
            self._last[op.key] = result.value
        # A user whose store is lost tries once more, and later, to see that it stays lost.
        lost = self.client.session.lost is not None
        self.pause(self._until / 2 if lost else self.rng.uniform(0.0, self.behaviour.think_s))

    def _value(self) -> bytes:
        """Make a value that no other user writes."""
        self._number += 1
        return f"{self._name}-{self._number}".encode()

    def _choose(self) -> AnyOp:
        rng = self.rng
        match rng.randrange(10):
            case 0 | 1:
                key = rng.choice(("n0", "n1"))
                return rng.choice((Add(key, 1), Add(key, rng.randint(2, 9)), Get(key)))
            case 2 | 3 | 4:
                return self._choose_value(rng.choice(("v0", "v1")))
            case 5:
                return rng.choice((Append("t0", self._value()), Get("t0")))
            case 6:
                value = self._value()
                return rng.choice((MultiSet(tuple((k, value) for k in PAIR)), MultiGet(PAIR)))
            case 7:
                return rng.choice((Wait(("w0",)), Wait(("w0", "v0")), Wait(PAIR)))
            case 8:
                return rng.choice((Set("w0", self._value()), Delete("w0"), Delete("w0")))
            case _:
                leased = Get(LEASED + self.client.host.name)
                return rng.choice((ListPrefix(LEASED), ListPrefix("v"), leased, Count("")))

    def _choose_value(self, key: str) -> AnyOp:
        expected = self._last.get(key)
        match self.rng.randrange(6):
            case 0 | 1:
                return Get(key)
            case 2:
                return Set(key, self._value())
            case 3 | 4:
                return CompareSet(key, expected, self._value())
            case _:
                return self.rng.choice((Delete(key), CompareSet(key, expected, None)))


class _Holder(_User):
    """Takes a lease, hangs a key on it, keeps it alive for a while, lets it go, takes another."""

    def __init__(
        self, client: ClientProgram, rng: random.Random, until: float, behaviour: Behaviour
    ) -> None:
        super().__init__(client, rng, until, behaviour)
        self._lease: Lease | None = None
        self._renewals = 0
        self._sets = 0

    def act(self) -> None:
        self.client.perform(self._next(), self.timeout(), self._done)

    def _next(self) -> AnyOp:
        lease, rng = self._lease, self.rng
        if lease is None:
            return LeaseGrant(rng.uniform(0.5, 6.0))
        if self._renewals == 0:
            self._lease = None
            return LeaseRevoke(lease.id)
        self._renewals -= 1
        if rng.random() < 0.4:
            self._sets += 1
            return self._set(lease.id)
        return LeaseKeep(lease.id)

    def _set(self, lease: LeaseId) -> AnyOp:
        value = f"{self.client.name}-{self._sets}".encode()
        return Set(LEASED + self.client.host.name, value, lease)

    def _done(self, result: object) -> None:
        rng = self.rng
        if isinstance(result, Lease):
            self._lease, self._renewals = result, rng.randint(2, 8)
        elif isinstance(result, HoldfastError) or (self._renewals == 0 and rng.random() < 0.5):
            self._lease = None  # lost, or left to itself
        lost = self.client.session.lost is not None
        ttl = self._lease.ttl if self._lease else 1.0
        self.pause(self._until / 2 if lost else rng.uniform(0.0, 0.7) * ttl)


class _Reader(_User):
    """Watches, reading now and then; sometimes it ends the watch and opens another."""

    def __init__(
        self, client: ClientProgram, rng: random.Random, until: float, behaviour: Behaviour
    ) -> None:
        super().__init__(client, rng, until, behaviour)
        self._record: WatchRecord | None = None

    def act(self) -> None:
        rng = self.rng
        if self._record is None:
            self._record = self.client.watch(*rng.choice(_WATCHES))
        elif rng.random() < 0.05:
            self.client.close_watch(self._record)
            self._record = None
        else:
            self._record.read(rng.choice((1, 1000)))
        self.pause(rng.uniform(0.0, 2.0 * self.behaviour.think_s))
