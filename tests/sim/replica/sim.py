"""Many clients and a store of three members in a faulty network, judged over many seeds.

    python -m tests.sim.replica --seeds 1000        fresh seeds; the first is printed
    python -m tests.sim.replica --seed 123          one seed, with its whole trace

The clients and their users are those of the simulation of a store with one server; the server is
three members that replicate (`members.py`). Members crash and come back as new members, stop, and
are cut off from each other and from clients, the leader as well as any other; their clocks run at
different rates. Then the network is calm for CALM_LEAST_S at least, and the run is over as soon as
everything has come to a good end, which must be so within CALM_S. Judged are

    K1  linearizability of every key, over all clients and all leaders: an answered write is kept,
        no write is performed twice, no read is stale
    K3  every watch: growing revisions, and in the end the final state
    K4  every lease: never early, by the clock of the client that asked; gone at the end
    K5  no call is left without an end; a wait that times out names keys that were missing
    K6  one leader serves at the end, and all members vote and have the same state
"""

from __future__ import annotations

import random
import sys
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.store.ops import Change, Entry, Get, Lease, LeaseGrant, LeaseKeep, ListPrefix
from holdfast.testing.checkers import check_key, check_revisions, check_watch, split_by_key
from holdfast.testing.faultplan import (
    Break,
    Crash,
    FaultPlan,
    Incident,
    Partition,
    draw_partition,
    draw_pause,
    draw_rates,
)
from holdfast.testing.network import Host, Network, Simulation
from tests.sim.replica.members import MemberProgram, Members, RoamingClient, is_loose_here
from tests.sim.seeds import Report, SeededRuns
from tests.sim.store.actors import LEASED, ClientProgram, Journal, LeaseLife
from tests.sim.store.sim import entries_of, expiries, judge_pair
from tests.sim.store.users import Behaviour, start_users

__all__ = ["ReplicaPlan", "Report", "draw_plan", "main", "run_seed", "run_seeds"]

_MODULE = "tests.sim.replica"
_LEAST = {"completed": 40, "leaders": 1}
MEMBERS = ("s0", "s1", "s2")

CALM_S = 40.0
CALM_LEAST_S = 5.0
PATIENCE_S = 80.0
"""A client gives up after this long without a leader: never, in a run. Faults may keep all members
from leading for most of the time in which clients work, and a client that gave up shows nothing."""
LOOK_EVERY_S = 0.3
CRASH_EVERY_S = 12.0
"""How far apart crashes of members are: long enough to replace the last one, if all is well."""


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """All that a seed decides."""

    faults: FaultPlan
    clients: tuple[str, ...]
    work_s: float
    rates: tuple[float, ...]
    """How fast the members' clocks run: never faster than time does."""

    def __str__(self) -> str:
        rates = ", ".join(f"{rate:.3f}" for rate in self.rates)
        return (
            f"{len(self.clients)} clients at work for {self.work_s:.1f} s, "
            f"members' clocks at {rates}\n{self.faults}"
        )


def draw_plan(seed: int) -> ReplicaPlan:
    """Decide from the seed all that will go wrong."""
    rng = random.Random(f"replica plan {seed}")
    clients = tuple(f"c{number}" for number in range(rng.randint(2, 6)))
    work_s = rng.uniform(20.0, 40.0)
    among = [(one, other) for one in MEMBERS for other in MEMBERS if one < other]
    pairs = [(client, member) for client in clients for member in MEMBERS]
    incidents: list[Incident] = []
    for _ in range(rng.choice((0, 1, 2, 3))):
        incidents.append(draw_partition(rng, among, work_s, rng.choice((2.0, 8.0, 20.0))))
    for _ in range(rng.choice((0, 0, 1, 2))):
        incidents.append(draw_partition(rng, pairs, work_s, 10.0))
    for _ in range(rng.choice((0, 1, 2))):
        incidents.append(draw_pause(rng, MEMBERS, work_s, 8.0))
    for _ in range(rng.choice((0, 0, 1))):
        incidents.append(draw_pause(rng, clients, work_s, 10.0))
    if rng.random() < 0.5:
        incidents += _draw_isolation(rng, clients, work_s)
    at = rng.uniform(3.0, 12.0)
    while at < work_s and rng.random() < 0.8:
        back = at + rng.uniform(0.1, 4.0)
        incidents.append(Crash(at, rng.choice(MEMBERS), back, rng.random() < 0.5))
        at += CRASH_EVERY_S + rng.uniform(0.0, 8.0)
    if rng.random() < 0.3:
        at = rng.uniform(0.0, work_s)
        incidents.append(Crash(at, rng.choice(clients), at + 2.0, rng.random() < 0.5))
    low = rng.uniform(0.0002, 0.002)
    faults = FaultPlan(
        latency_s=(low, low * rng.uniform(1.5, 30.0)),
        delay_s=rng.choice((0.05, 0.5)),
        rates=draw_rates(rng),
        incidents=tuple(incidents),
        calm_at=work_s,
    )
    # The founder leads at first; slow, it takes long to notice that no member follows it any more.
    rates = (rng.choice((1.0, 1.0, 0.5)), *(rng.uniform(0.95, 1.0) for _ in MEMBERS[1:]))
    return ReplicaPlan(faults, clients, work_s, rates)


def _draw_isolation(
    rng: random.Random, clients: tuple[str, ...], work_s: float
) -> Iterable[Incident]:
    """Cut a member off from the others and from some clients, which look for another leader."""
    one = rng.choice(MEMBERS[:2])
    at = rng.uniform(4.0, work_s - 8.0)
    until = at + rng.uniform(1.0, 8.0)
    for other in MEMBERS:
        if other != one:
            yield Partition(at, until, one, other, breaks=rng.random() < 0.5)
    for client in clients[::2]:
        yield Partition(at, until, client, one)
        for _ in range(3):  # so that it does not wait for an answer that is cut off
            yield Break(at + rng.uniform(0.0, 3.0), client)


def run_seed(seed: int, *, traced: bool = False) -> Report:
    """Run one seed, and judge it."""
    plan = draw_plan(seed)
    sim = Simulation(seed, traced=traced)
    network = Network(sim, plan.faults, loose=is_loose_here)
    journal = Journal(sim)
    members = Members(MEMBERS, network)
    users = random.Random(f"users {seed}")
    for name, rate in zip(MEMBERS, plan.rates, strict=True):

        def make_member(host: Host, rate: float = rate) -> MemberProgram:
            return MemberProgram(host, journal, members, sim.rng, rate)

        network.add(name, make_member)
    for name in plan.clients:

        def make(host: Host) -> ClientProgram:
            client = RoamingClient(host, journal, sim.rng, MEMBERS, reconnect_within_s=PATIENCE_S)
            start_users(client, users, plan.work_s, Behaviour(think_s=1.2, patient=0.1))
            host.call_later(0.0, _look_often, client, plan.work_s)
            return client

        network.add(name, make)
    network.start()
    try:
        sim.run(plan.work_s + CALM_LEAST_S)
        while sim.now < plan.work_s + CALM_S and _loose_ends(journal, members):
            sim.run(sim.now + 1.0)
        _judge(journal, members)
    except Exception:
        # Whatever a machine raises is found by this seed, and must be shown with it.
        journal.fail(traceback.format_exc())
    counts = Counter(
        begun=journal.begun,
        completed=journal.completed,
        unknown=journal.unknown,
        cancelled_waits=journal.cancelled,
        leaders=len(members.leaders),
        survived=int(not members.is_lost()),
        redirects=members.redirects,
        lives=len(members.lives),
        ended_leases=len(members.lease_ends),
        delivered_changes=sum(len(record.changes) for record in journal.watches),
    )
    return Report(_MODULE, seed, plan, journal.failures, sim.trace, network.faults, counts)


def _look_often(client: ClientProgram, until: float) -> None:
    """Read a counter again and again: a stale read shows only while two members take the lead."""

    def again(result: object) -> None:
        client.host.call_later(LOOK_EVERY_S, _look_often, client, until)

    if client.now() < until and client.session.lost is None:
        client.perform(Get("n0"), 1.0, again)


# Judging.


def _judge(journal: Journal, members: Members) -> None:
    """Add to the journal every promise that was broken."""
    for end in _loose_ends(journal, members):
        journal.fail(end)
    for client in journal.clients:
        client.crashed()  # a call that still waits for a leader may have been performed
    _note_leases(journal)
    seen: list[Entry | Change] = []
    for record in journal.watches:
        record.read(sys.maxsize)
        if text := check_watch(record.state.key, record.state.prefix, record.changes, None):
            journal.fail(f"K3: {record.client.name}: {text}")
        seen.extend(record.changes)
    for incarnation, calls in journal.calls.items():
        for call in calls:
            seen.extend(entries_of(call))
            judge_pair(call, journal)
        for key, part in split_by_key(calls).items():
            if key.startswith(LEASED):
                part.extend(expiries(key, part, journal, incarnation))
            if text := check_key(part):
                journal.fail(f"K1: key {key!r}: {text}")
    if text := check_revisions(seen):
        journal.fail(f"K1: {text}")
    _judge_leases(journal, members)


def _loose_ends(journal: Journal, members: Members) -> list[str]:
    """Return what is not yet as it must be in the end."""
    leader, lost = members.leader(), members.is_lost()
    found = [] if lost else _members_ends(members, leader)
    for client in journal.clients:
        if client.alive:
            found += _client_ends(client, journal, lost)
    if leader is None or lost:
        return found
    final = leader.machine.service.keyspace.apply(ListPrefix(""), leader.machine._time.reached)
    for record in journal.watches:
        client = record.client
        record.read(sys.maxsize)
        if not record.closed and client.alive and client.session.lost is None:
            text = check_watch(record.state.key, record.state.prefix, record.changes, final)
            found += [f"K3: {client.name}: {text}"] * (text is not None)
    return found


def _members_ends(members: Members, leader: MemberProgram | None) -> list[str]:
    if leader is None:
        return [f"K6: no member leads, though all has been calm for {CALM_S} s"]
    found = []
    serving = [one for one in members.lives if one.alive and one.machine.leads]
    if len(serving) > 1:
        found.append("K6: two members serve clients")
    configuration = leader.machine.configuration
    left = leader.machine.service.keyspace.apply(ListPrefix(LEASED), leader.machine._time.reached)
    if left:
        found.append(f"K4: {left} are still there, though no client keeps a lease")
    states = {}
    for one in members.lives:
        machine = one.machine
        if one.alive and machine.member in configuration.members:
            sessions = machine.service.sessions()
            kept = sorted((s.id, s.floor, sorted(s.answers.items())) for s in sessions)
            applied = machine._raft.state.applied
            states[one.host.name] = (applied, machine.service.keyspace.dump(), kept)
    if len(states) != len(MEMBERS) or len(configuration.voters) != len(MEMBERS):
        found.append(f"K6: only {sorted(states)} are members in the end, of {configuration}")
    if any(state != states[leader.host.name] for state in states.values()):
        found.append(f"K6: members have different states: {states}")
    return found


def _client_ends(client: ClientProgram, journal: Journal, lost: bool) -> list[str]:
    late = [r for r in client.running if client.session.ready or r.until < journal.sim.now]
    found = [f"K5: {client.name}: {running.op} has no end" for running in late]
    if not lost and not client.session.ready:
        why = client.session.lost or "it goes on looking"
        found.append(f"{client.name} is not connected at the end: {why}")
    return found


def _note_leases(journal: Journal) -> None:
    """Note of each lease when it was granted and kept for sure: not before its client asked."""
    for incarnation, calls in journal.calls.items():
        lives = journal.leases.setdefault(incarnation, {})
        for call in calls:
            asked = journal.times[int(call.called)]
            match call.op, call.result:
                case LeaseGrant(), Lease(lease, ttl):
                    lives[lease] = LeaseLife(ttl, [asked])
                case LeaseKeep(lease), float() if lease in lives:
                    lives[lease].renewals.append(asked)
                case _:
                    pass


def _judge_leases(journal: Journal, members: Members) -> None:
    for incarnation, lives in journal.leases.items():
        for lease, life in lives.items():
            ended = members.lease_ends.get(lease)
            if ended is None or (incarnation, lease) in journal.revokes:
                continue
            due = max(life.renewals) + life.ttl
            if ended < due:
                journal.fail(f"K4: lease {lease} of {life.ttl:g} s ended {due - ended:g} s early")


# Many seeds.

_RUNS = SeededRuns("replica simulation", _MODULE, run_seed, _LEAST)
run_seeds, main = _RUNS.run_seeds, _RUNS.main
