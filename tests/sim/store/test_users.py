"""The users of the simulated store do all that the store can do, and stop in time."""

from __future__ import annotations

import random

from holdfast.store import ops
from holdfast.testing.faultplan import FaultPlan
from holdfast.testing.network import Host, Network, Simulation
from tests.sim.store.actors import LEASED, SERVER, ClientProgram, Journal, ServerProgram
from tests.sim.store.users import PAIR, Behaviour, start_users


def work(seed: int, until: float) -> Journal:
    """Let five clients work in a network without faults."""
    sim = Simulation(seed)
    network = Network(sim, FaultPlan())
    journal = Journal(sim)
    users = random.Random(seed)

    def make(host: Host) -> ClientProgram:
        client = ClientProgram(host, journal, sim.rng, reconnect_within_s=10.0)
        start_users(client, users, until, Behaviour(think_s=1.0, patient=0.1))
        return client

    network.add(SERVER, lambda host: ServerProgram(host, journal, sim.rng, slow=True))
    for number in range(5):
        network.add(f"c{number}", make)
    sim.run(until + 10.0)
    return journal


def test_they_use_every_operation_and_every_kind_of_watch() -> None:
    journal = work(seed=1, until=120.0)
    done = {type(call.op) for calls in journal.calls.values() for call in calls}
    # The nodes of a run use these, in the simulation of the rendezvous; a history by key, which the
    # judge reads here, cannot contain a deletion by prefix.
    elsewhere = {ops.Guarded[object], ops.DeletePrefix}
    assert {*ops.AnyOp.__args__} - elsewhere <= done
    assert len({(one.state.key, one.state.prefix) for one in journal.watches}) >= 4
    assert any(one.closed for one in journal.watches)
    assert any(one.changes for one in journal.watches)


def test_without_faults_every_call_has_a_known_end() -> None:
    journal = work(seed=2, until=60.0)
    assert (journal.unknown, journal.lost, journal.failures) == (0, 0, [])
    assert not any(client.running for client in journal.clients)
    assert journal.begun == journal.completed + journal.cancelled
    assert max(journal.times) < 70.0


def test_pairs_are_written_together_and_leased_keys_only_with_leases() -> None:
    journal = work(seed=3, until=60.0)
    for calls in journal.calls.values():
        for call in calls:
            match call.op:
                case ops.MultiSet(items):
                    assert tuple(key for key, _ in items) == PAIR
                case ops.Set(key, _, lease):
                    assert key.startswith(LEASED) == (lease is not None)
                case ops.Delete(key) | ops.CompareSet(key):
                    assert not key.startswith(LEASED)
                case _:
                    pass
