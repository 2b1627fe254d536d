"""The simulated server and clients: what they do at the edges, and what they write down."""

from __future__ import annotations

from holdfast.errors import StoreUnavailable
from holdfast.ids import SessionId
from holdfast.store.messages import Call as CallMessage
from holdfast.store.messages import Cancel, Hello, Ping, WatchOpen, encode
from holdfast.store.ops import Add, AnyOp, Entry, Get, Lease, LeaseGrant, LeaseKeep, Set, Wait
from holdfast.testing.checkers import UNKNOWN, Call
from holdfast.testing.faultplan import Crash, FaultPlan, Incident, Partition, Pause
from holdfast.testing.network import Network, Simulation
from tests.sim.store.actors import (
    LEASED,
    SERVER,
    ClientProgram,
    Journal,
    ServerProgram,
    is_loose,
)


class World:
    """A server, two clients, and what came back to their users."""

    def __init__(self, *incidents: Incident) -> None:
        self.sim = Simulation(1)
        self.journal = Journal(self.sim)
        self.network = Network(self.sim, FaultPlan(incidents=incidents), loose=is_loose)
        self.network.add(
            SERVER, lambda host: ServerProgram(host, self.journal, self.sim.rng, slow=False)
        )
        for name in ("a", "b"):
            self.network.add(
                name,
                lambda host: ClientProgram(
                    host, self.journal, self.sim.rng, reconnect_within_s=10.0
                ),
            )
        self.network.start()
        self.results: list[object] = []

    def client(self, name: str) -> ClientProgram:
        program = self.network.hosts[name].program
        assert isinstance(program, ClientProgram)
        return program

    @property
    def server(self) -> ServerProgram:
        return self.journal.servers[-1]

    def call(self, name: str, op: AnyOp, timeout: float = 5.0) -> None:
        self.client(name).perform(op, timeout, self.results.append)

    def calls(self) -> list[Call]:
        return [call for calls in self.journal.calls.values() for call in calls]


def test_calls_and_their_results_are_written_down_in_order() -> None:
    world = World()
    world.sim.run(1.0)
    world.call("a", Add("n", 2))
    world.sim.run(2.0)
    world.call("b", Get("n"))
    world.sim.run(3.0)
    assert world.results == [2, Entry("n", b"2", 1)]
    assert world.calls() == [
        Call("a.1", Add("n", 2), 2, 0, 1),
        Call("b.1", Get("n"), Entry("n", b"2", 1), 2, 3),
    ]
    assert [round(at, 3) for at in world.journal.times][::2] == [1.0, 2.0]
    assert world.server.entries() == (Entry("n", b"2", 1),)


def test_a_call_without_an_answer_ends_at_its_deadline_as_unknown() -> None:
    world = World(Partition(1.0, 9.0, "a", SERVER))
    world.sim.run(2.0)
    world.call("a", Add("n", 1), timeout=3.0)
    world.sim.run(4.9)
    assert world.results == []
    world.sim.run(5.1)
    assert world.results == [UNKNOWN]
    assert [call.result for call in world.calls()] == [UNKNOWN]
    assert world.journal.unknown == 1


def test_a_wait_that_times_out_says_what_was_missing() -> None:
    world = World()
    world.sim.run(1.0)
    world.call("a", Set("x", b"1"))
    world.call("a", Wait(("x", "y")), timeout=2.0)
    world.sim.run(5.0)
    absent = [call for call in world.calls() if call.op == Get("y")]
    assert [call.result for call in absent] == [None]
    # The key was missing when the wait was cancelled, not only when it began.
    assert world.journal.times[int(absent[0].called)] == 3.0
    assert world.journal.cancelled == 1
    assert world.journal.failures == []


def test_a_watch_delivers_what_is_read() -> None:
    world = World()
    record = world.client("a").watch("n", prefix=False)
    world.sim.run(1.0)
    world.call("b", Add("n", 1))
    world.call("b", Add("n", 1))
    world.sim.run(2.0)
    assert record.changes == []
    record.read(5)
    assert [change.value for change in record.changes] == [b"2"]
    world.client("a").close_watch(record)
    world.call("b", Add("n", 1))
    world.sim.run(3.0)
    record.read(5)
    assert len(record.changes) == 1


def test_a_silent_server_is_left_and_found_again() -> None:
    world = World(Pause(1.0, 15.0, SERVER))
    world.sim.run(14.0)
    assert not world.client("a").session.ready
    world.sim.run(30.0)
    assert world.client("a").session.ready
    assert world.client("a").session.lost is None


def test_a_server_that_is_gone_is_given_up() -> None:
    world = World(Crash(1.0, SERVER, silent=True))
    world.sim.run(60.0)
    assert world.client("a").session.lost is not None
    world.call("a", Get("n"))
    assert isinstance(world.results[0], StoreUnavailable)
    assert not world.server.alive


def test_a_client_is_bound_to_the_server_that_it_met() -> None:
    world = World(Crash(1.0, SERVER, back=2.0), Crash(1.0, "b", back=5.0))
    world.sim.run(20.0)
    first, second = world.journal.servers
    assert world.client("a").incarnation == first.service.incarnation
    assert world.client("a").session.lost is not None
    assert world.client("b").incarnation == second.service.incarnation
    assert world.client("b").name == "b.2"


def test_what_a_crashed_client_had_begun_is_unknown() -> None:
    world = World(Partition(1.0, 9.0, "a", SERVER), Crash(3.0, "a"))
    world.sim.run(2.0)
    crashed = world.client("a")
    world.call("a", Add("n", 1))
    world.call("a", Get("n"))
    world.sim.run(4.0)
    assert not crashed.alive
    crashed.crashed()
    assert [(call.op, call.result) for call in world.calls()] == [(Add("n", 1), UNKNOWN)]
    assert world.results == []


def test_the_life_of_a_lease_is_written_down_by_the_servers_clock() -> None:
    world = World()
    world.sim.run(1.0)
    world.call("a", LeaseGrant(2.0))
    world.sim.run(2.0)
    (lease,) = world.results
    assert isinstance(lease, Lease)
    world.call("a", Set(LEASED + "a", b"x", lease.id))
    world.call("a", LeaseKeep(lease.id))
    world.sim.run(2.5)
    assert world.server.holding_leases() == (lease.id,)
    world.sim.run(10.0)
    life = world.server.leases[lease.id]
    assert world.server.holding_leases() == ()
    assert life.ended is not None
    assert len(life.renewals) == 2
    assert life.ended == life.renewals[-1] + life.ttl
    assert not life.revoked


def test_a_client_that_breaks_the_protocol_is_hung_up() -> None:
    world = World()
    world.sim.run(1.0)
    link = world.client("a")._link
    assert link is not None
    link.send(encode(Hello(SessionId(1), 0, 1)))
    world.sim.run(1.5)
    assert not link.open
    world.sim.run(3.0)
    assert world.client("a").session.ready


def test_calls_and_cancellations_are_loose_and_nothing_else() -> None:
    assert is_loose(encode(CallMessage(1, 1, Get("x"))))
    assert is_loose(encode(Cancel(1)))
    assert not is_loose(encode(Hello(SessionId(1), 0, 1)))
    assert not is_loose(encode(WatchOpen(1, False, "x")))
    assert not is_loose(encode(Ping()))
