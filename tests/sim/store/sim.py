"""Many clients and one store server in a faulty network, judged over many seeds.

    python -m tests.sim.store --seeds 1000        fresh seeds; the first is printed
    python -m tests.sim.store --seed 123          one seed, with its whole trace

Each seed draws its own faults and its own users: they read and write a few keys, wait, watch, and
hold leases, while messages are lost and late, processes stop and die. For a while all goes wrong;
then the network is calm, and everything must come to a good end. Judged are

    K1  linearizability of every key, over all clients of one life of the server
    K2  a server that lost its state is never taken for the one that was known
    K3  every watch: growing revisions, and in the end the final state
    K4  every lease: not early by the server's clock, at most 1 s late
    K5  no call is left without an end; a wait that times out names keys that were missing

A run of many seeds counts only if it was hard enough: `Tally.too_easy` demands that enough calls
were completed, and that every kind of fault has struck.
"""

from __future__ import annotations

import random
import sys
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.store.ops import Change, Entry, ListPrefix, MultiGet, Set, Wait
from holdfast.testing.checkers import (
    UNKNOWN,
    Call,
    Expire,
    check_key,
    check_lease,
    check_revisions,
    check_watch,
    split_by_key,
)
from holdfast.testing.faultplan import (
    Break,
    Crash,
    FaultPlan,
    Incident,
    Partition,
    Pause,
    draw_partition,
    draw_pause,
    draw_rates,
)
from holdfast.testing.network import Host, Network, Simulation
from tests.sim.seeds import Report, SeededRuns
from tests.sim.store.actors import (
    LEASED,
    SERVER,
    ClientProgram,
    Journal,
    ServerProgram,
    is_loose,
)
from tests.sim.store.users import PAIR, Behaviour, start_users

__all__ = [
    "Report",
    "StorePlan",
    "draw_plan",
    "entries_of",
    "expiries",
    "judge_pair",
    "main",
    "run_seed",
    "run_seeds",
]

_MODULE = "tests.sim.store"
_LEAST = {"completed": 40}

CALM_S = 40.0
"""How long the network is calm at the end: longer than it takes to notice a dead connection,
connect again, and let every lease run out."""


@dataclass(frozen=True, slots=True)
class StorePlan:
    """All that a seed decides."""

    faults: FaultPlan
    clients: tuple[str, ...]
    work_s: float
    users: Behaviour
    slow_readers: bool
    reconnect_within_s: float

    def __str__(self) -> str:
        return (
            f"{len(self.clients)} clients at work for {self.work_s:.1f} s, {self.users}, "
            f"reconnecting for {self.reconnect_within_s:.0f} s, "
            f"slow readers: {self.slow_readers}\n{self.faults}"
        )


def draw_plan(seed: int) -> StorePlan:
    """Decide from the seed all that will go wrong."""
    rng = random.Random(f"plan {seed}")
    clients = tuple(f"c{number}" for number in range(rng.randint(3, 8)))
    pairs = [(client, SERVER) for client in clients]
    work_s = rng.uniform(15.0, 30.0)
    users, reconnect_within_s = Behaviour(think_s=1.2, patient=0.1), 10.0
    incidents: list[Incident] = []
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        incidents.append(draw_partition(rng, pairs, work_s, rng.choice((4.0, 15.0))))
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        incidents.append(draw_pause(rng, clients, work_s, 15.0))
    if rng.random() < 0.25:
        incidents.append(draw_pause(rng, [SERVER], work_s, 8.0))
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        at = rng.uniform(0.0, work_s)
        back = at + rng.uniform(0.1, 5.0)
        incidents.append(Crash(at, rng.choice(clients), back, rng.random() < 0.5))
    if rng.random() < 0.2:
        at = rng.uniform(0.3, 1.0) * work_s
        again = rng.choice((None, at + rng.uniform(0.1, 5.0)))
        incidents.append(Crash(at, SERVER, again, rng.random() < 0.5))
    elif rng.random() < 0.04:
        # The answers to one client are held up and lost; then it is away, patiently, for so long
        # that the server forgets it, or nearly.
        at, one = rng.uniform(4.0, work_s), rng.choice(clients)
        incidents += [
            Partition(at - 4.0, at + 1.0, SERVER, one, one_way=True),
            Break(at, one),
            Pause(at, at + rng.uniform(115.0, 140.0), one),
        ]
        work_s, users, reconnect_within_s = work_s + 150.0, Behaviour(8.0, 0.9), 400.0
    low = rng.uniform(0.0002, 0.002)
    faults = FaultPlan(
        latency_s=(low, low * rng.uniform(1.5, 30.0)),
        delay_s=rng.choice((0.05, 0.5, 3.0)),
        rates=draw_rates(rng),
        incidents=tuple(incidents),
        calm_at=work_s,
    )
    return StorePlan(faults, clients, work_s, users, rng.random() < 0.5, reconnect_within_s)


def run_seed(seed: int, *, traced: bool = False) -> Report:
    """Run one seed, and judge it."""
    plan = draw_plan(seed)
    sim = Simulation(seed, traced=traced)
    network = Network(sim, plan.faults, loose=is_loose)
    journal = Journal(sim)
    users = random.Random(f"users {seed}")
    network.add(SERVER, lambda host: ServerProgram(host, journal, sim.rng, slow=plan.slow_readers))
    for name in plan.clients:

        def make(host: Host) -> ClientProgram:
            client = ClientProgram(
                host, journal, sim.rng, reconnect_within_s=plan.reconnect_within_s
            )
            start_users(client, users, plan.work_s, plan.users)
            return client

        network.add(name, make)
    network.start()
    try:
        sim.run(plan.work_s + CALM_S)
        _judge(journal, plan)
    except Exception:
        # Whatever a machine raises is found by this seed, and must be shown with it.
        journal.fail(traceback.format_exc())
    return Report(
        _MODULE, seed, plan, journal.failures, sim.trace, network.faults, _counts(journal)
    )


def _counts(journal: Journal) -> Counter[str]:
    leases = [life for lives in journal.leases.values() for life in lives.values()]
    return Counter(
        begun=journal.begun,
        completed=journal.completed,
        unknown=journal.unknown,
        cancelled_waits=journal.cancelled,
        lost=journal.lost,
        lost_clients=sum(client.session.lost is not None for client in journal.clients),
        expired_leases=sum(life.ended is not None and not life.revoked for life in leases),
        delivered_changes=sum(len(record.changes) for record in journal.watches),
    )


# Judging.


def _judge(journal: Journal, plan: StorePlan) -> None:
    """Add to the journal every promise that was broken."""
    for client in journal.clients:
        _judge_end(client, journal)
    finals = {server.service.incarnation: server for server in journal.servers}
    seen: dict[int, list[Entry | Change]] = {}
    for record in journal.watches:
        client = record.client
        record.read(sys.maxsize)
        server = finals.get(client.incarnation)
        over = record.closed or not client.alive or client.session.lost is not None
        final = None if over or server is None else server.entries()
        if text := check_watch(record.state.key, record.state.prefix, record.changes, final):
            journal.fail(f"K3: {client.name}: {text}")
        seen.setdefault(client.incarnation, []).extend(record.changes)
    for incarnation, calls in journal.calls.items():
        for call in calls:
            seen.setdefault(incarnation, []).extend(entries_of(call))
        for key, part in split_by_key(calls).items():
            if key.startswith(LEASED):
                part.extend(expiries(key, part, journal, incarnation))
            if text := check_key(part):
                journal.fail(f"K1: key {key!r}: {text}")
        for call in calls:
            judge_pair(call, journal)
    for observations in seen.values():
        if text := check_revisions(observations):
            journal.fail(f"K1: {text}")
    pauses = [one for one in plan.faults.incidents if isinstance(one, Pause)]
    asleep = sum(one.until - one.at for one in pauses if one.host == SERVER)
    for server in journal.servers:
        # A lease that still holds a key at the end has not ended before that.
        holding = server.holding_leases() if server.alive else ()
        for lease, life in server.leases.items():
            if life.revoked:
                continue
            ended = life.ended
            if ended is None and lease in holding:
                ended = journal.sim.now
            if text := check_lease(life.ttl, life.renewals, ended, late_s=1.0 + asleep):
                journal.fail(f"K4: lease {lease}: {text}")


def _judge_end(client: ClientProgram, journal: Journal) -> None:
    if not client.alive:
        client.crashed()
        return
    for running in client.running:
        if client.session.ready or running.until < journal.sim.now:
            journal.fail(f"K5: {client.name}: {running.op} has no end")
    server = journal.servers[-1]
    bound_elsewhere = client.incarnation not in (0, server.service.incarnation)
    if client.session.lost is None and (bound_elsewhere or not server.alive):
        if client.incarnation:
            journal.fail(f"K2: {client.name} does not know that its store is gone")
    elif client.session.lost is None and not client.session.ready:
        journal.fail(f"{client.name} is not connected, though all has been calm for {CALM_S} s")


def entries_of(call: Call) -> Iterable[Entry]:
    """Return the entries that a call read."""
    result = call.result
    if isinstance(result, Entry):
        return (result,)
    if isinstance(result, tuple) and isinstance(call.op, (MultiGet, Wait, ListPrefix)):
        return tuple(entry for entry in result if entry is not None)
    return ()


def expiries(key: str, part: list[Call], journal: Journal, incarnation: int) -> list[Call]:
    """Return, for each lease that the key hung on, its end, from the first moment it may come."""
    found = []
    for lease in dict.fromkeys(call.op.lease for call in part if isinstance(call.op, Set)):
        if lease is not None:
            life = journal.leases[incarnation][lease]
            due = bisect_left(journal.times, max(life.renewals) + life.ttl) - 0.5
            called = journal.revokes.get((incarnation, lease), due)
            found.append(Call(SERVER, Expire(key, lease), UNKNOWN, min(due, called)))
    return found


def judge_pair(call: Call, journal: Journal) -> None:
    """Check that what is written together is read together."""
    if (
        isinstance(call.op, (MultiGet, Wait))
        and call.op.keys == PAIR
        and call.result is not UNKNOWN
    ):
        assert isinstance(call.result, tuple)
        one, other = call.result
        if (one and one[1:]) != (other and other[1:]):
            journal.fail(f"K1: a torn read: {call}")


# Many seeds.

_RUNS = SeededRuns("store simulation", _MODULE, run_seed, _LEAST)
run_seeds, main = _RUNS.run_seeds, _RUNS.main
