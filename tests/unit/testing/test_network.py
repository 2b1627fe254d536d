"""The simulated network: links behave as TCP does, and each fault does what it says."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.testing.faultplan import (
    Break,
    Crash,
    Fault,
    FaultPlan,
    Incident,
    Partition,
    Pause,
    Rates,
)
from holdfast.testing.network import Host, Link, Network, Simulation

NO_RATES = Rates()


class Peer:
    """Notes what it hears; answers nothing by itself."""

    def __init__(self, host: Host, sim: Simulation) -> None:
        self.host = host
        self.sim = sim
        self.links: list[Link] = []
        self.frames: list[bytes] = []
        self.ends: list[str] = []
        self.heard: list[tuple[float, object]] = []

    def linked(self, link: Link) -> None:
        self.links.append(link)
        self.heard.append((self.sim.now, "linked"))

    def received(self, link: Link, frame: bytes) -> None:
        self.frames.append(frame)
        self.heard.append((self.sim.now, frame))

    def unlinked(self, link: Link, reason: str) -> None:
        self.ends.append(reason)
        self.heard.append((self.sim.now, reason))


class World:
    """Two hosts, `a` and `b`, and a plan."""

    def __init__(self, *incidents: Incident, rates: Rates = NO_RATES, loose: bool = False) -> None:
        self.sim = Simulation(seed=1, traced=True)
        plan = FaultPlan((0.01, 0.02), 0.5, rates, incidents, calm_at=100.0)
        self.network = Network(self.sim, plan, loose=lambda frame: loose)
        self.lives: dict[str, list[Peer]] = {"a": [], "b": []}
        for name in ("a", "b"):
            self.network.add(name, self.make)
        self.network.start()

    def make(self, host: Host) -> Peer:
        peer = Peer(host, self.sim)
        self.lives[host.name].append(peer)
        return peer

    @property
    def a(self) -> Peer:
        return self.lives["a"][-1]

    @property
    def b(self) -> Peer:
        return self.lives["b"][-1]

    def link(self) -> tuple[Link, Link]:
        """Connect a to b; return both ends."""
        near = self.a.host.connect("b")
        self.sim.run(self.sim.now + 0.1)
        return near, self.b.links[-1]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# Time.


def test_things_happen_in_the_order_of_time_and_then_of_asking() -> None:
    sim = Simulation(0)
    seen: list[str] = []
    sim.call_later(2.0, seen.append, "late")
    sim.call_later(1.0, seen.append, "first")
    sim.call_later(1.0, seen.append, "second")
    sim.call_later(1.5, seen.append, "never").cancel()
    sim.call_later(9.0, seen.append, "too late")
    sim.run(2.0)
    assert seen == ["first", "second", "late"]
    assert sim.now == 2.0


def test_what_is_asked_for_the_past_happens_now() -> None:
    sim = Simulation(0)
    sim.run(5.0)
    seen: list[float] = []
    sim.call_at(1.0, lambda: seen.append(sim.now))
    sim.run(6.0)
    assert seen == [5.0]


# Links.


def test_a_link_opens_on_both_sides_and_carries_frames_in_order() -> None:
    world = World()
    near, far = world.link()
    assert near.open
    assert far.open
    assert (near.opener, far.opener) == (True, False)
    assert (near.peer, far.peer) == ("b", "a")
    for frame in numbered(50):
        near.send(frame)
        far.send(frame)
    world.sim.run(1.0)
    assert world.b.frames == world.a.frames == numbered(50)
    assert not world.network.faults


def test_a_close_is_told_after_what_was_sent_and_not_to_the_closer() -> None:
    world = World()
    near, far = world.link()
    near.send(b"last words")
    near.close()
    near.close()
    near.send(b"too late")
    world.sim.run(1.0)
    assert [what for _, what in world.b.heard] == ["linked", b"last words", "closed by the peer"]
    assert world.a.ends == []
    assert not far.open


def test_sending_on_a_closed_link_reports_it() -> None:
    world = World(Partition(0.2, 5.0, "a", "b", one_way=True))
    near, far = world.link()
    world.sim.run(0.3)
    near.close()  # b is not told, for a's word is held up
    far.send(b"are you there?")
    world.sim.run(4.0)
    assert far.open
    world.sim.run(6.0)
    assert not far.open
    assert world.a.frames == []


def test_a_connection_to_a_dead_process_is_refused_and_to_a_dead_machine_is_silent() -> None:
    for silent, ends in ((False, ["connection reset"]), (True, [])):
        world = World(Crash(0.1, "b", silent=silent))
        world.sim.run(0.2)
        link = world.a.host.connect("b")
        world.sim.run(30.0)
        assert world.a.ends == ends
        assert not link.open


# Faults.


def test_a_drop_silences_one_direction_at_once_and_soon_the_other() -> None:
    world = World(rates=Rates(drop=1.0))
    near, far = world.link()
    assert near.sound
    world.sim.run(world.network.plan.calm_at - 0.5)
    near.send(b"lost")
    near.send(b"lost too")
    world.sim.run(world.network.plan.calm_at)
    far.send(b"heard")
    world.sim.run(200.0)
    near.send(b"and this")
    far.send(b"and this")
    world.sim.run(201.0)
    assert world.b.frames == []
    assert world.a.frames == [b"heard"]
    assert near.open
    assert not near.sound
    assert world.network.faults[Fault.DROP] == 2


def test_a_reset_loses_what_is_under_way_and_tells_both() -> None:
    world = World(Break(0.2, "a"))
    near, far = world.link()
    world.sim.run(0.195)
    near.send(b"lost")
    far.send(b"lost")
    world.sim.run(1.0)
    assert world.a.frames == world.b.frames == []
    assert world.a.ends == world.b.ends == ["connection reset"]
    assert world.network.faults[Fault.RESET] == 1


def test_a_rate_of_resets_breaks_links() -> None:
    world = World(rates=Rates(reset=1.0))
    near, _ = world.link()
    near.send(b"lost")
    world.sim.run(1.0)
    assert world.b.frames == []
    assert world.a.ends == world.b.ends == ["connection reset"]


def test_a_delay_keeps_the_order() -> None:
    world = World(rates=Rates(delay=0.5))
    near, _ = world.link()
    for frame in numbered(50):
        near.send(frame)
    world.sim.run(5.0)
    assert world.b.frames == numbered(50)
    assert world.network.faults[Fault.DELAY] > 10
    assert world.b.heard[-1][0] > 0.4


@pytest.mark.parametrize("loose", [True, False])
def test_only_loose_frames_are_duplicated(loose: bool) -> None:
    world = World(rates=Rates(duplicate=0.5), loose=loose)
    near, _ = world.link()
    for frame in numbered(50):
        near.send(frame)
    world.sim.run(5.0)
    copies = len(world.b.frames) - 50
    assert copies == world.network.faults[Fault.DUPLICATE]
    assert (copies > 10) == loose
    assert set(world.b.frames) == set(numbered(50))


@pytest.mark.parametrize("loose", [True, False])
def test_only_loose_frames_are_reordered(loose: bool) -> None:
    world = World(rates=Rates(reorder=0.5), loose=loose)
    near, _ = world.link()
    for frame in numbered(50):
        near.send(frame)
    world.sim.run(5.0)
    assert (world.b.frames != numbered(50)) == loose
    assert sorted(world.b.frames) == sorted(numbered(50))
    assert (world.network.faults[Fault.REORDER] > 10) == loose


def test_a_calm_network_harms_nothing() -> None:
    world = World(rates=Rates(drop=0.5, reset=0.5))
    world.sim.run(100.0)
    near, _ = world.link()
    near.send(b"safe")
    world.sim.run(101.0)
    assert world.b.frames == [b"safe"]


def test_a_partition_holds_frames_up_until_it_ends() -> None:
    world = World(Partition(0.2, 5.0, "a", "b"))
    near, far = world.link()
    world.sim.run(0.3)
    near.send(b"to b")
    far.send(b"to a")
    world.sim.run(4.9)
    assert world.a.frames == world.b.frames == []
    world.sim.run(5.1)
    assert (world.a.frames, world.b.frames) == ([b"to a"], [b"to b"])
    assert world.network.faults == {Fault.PARTITION: 1}


def test_a_one_way_partition_lets_the_other_way_through() -> None:
    world = World(Partition(0.2, 5.0, "a", "b", one_way=True))
    near, far = world.link()
    world.sim.run(0.3)
    near.send(b"to b")
    far.send(b"to a")
    world.sim.run(4.9)
    assert (world.a.frames, world.b.frames) == ([b"to a"], [])
    world.sim.run(5.1)
    assert world.b.frames == [b"to b"]
    assert world.network.faults == {Fault.ONE_WAY: 1}


def test_a_partition_may_break_the_links_that_it_held_up() -> None:
    world = World(Partition(0.2, 5.0, "a", "b", breaks=True))
    near, _ = world.link()
    world.sim.run(0.3)
    near.send(b"lost")
    world.sim.run(6.0)
    assert world.b.frames == []
    assert world.a.ends == world.b.ends == ["connection reset"]


def test_a_partition_that_meets_nothing_is_not_counted() -> None:
    world = World(Partition(0.2, 5.0, "a", "b", breaks=True))
    near, _ = world.link()
    world.sim.run(10.0)
    assert near.open
    assert not world.network.faults


def test_overlapping_partitions_end_with_the_last() -> None:
    world = World(Partition(0.2, 5.0, "a", "b"), Partition(1.0, 8.0, "b", "a", one_way=True))
    near, far = world.link()
    world.sim.run(2.0)
    near.send(b"to b")
    far.send(b"to a")
    world.sim.run(6.0)
    assert (world.a.frames, world.b.frames) == ([], [b"to b"])
    world.sim.run(9.0)
    assert world.a.frames == [b"to a"]


def test_a_paused_process_hears_everything_later_and_in_order() -> None:
    world = World(Pause(0.2, 5.0, "b"))
    near, _ = world.link()
    world.sim.run(0.3)
    seen: list[float] = []
    world.b.host.call_later(1.0, lambda: seen.append(world.sim.now))
    cancelled = world.b.host.call_later(1.0, seen.append, 0.0)
    near.send(b"one")
    near.send(b"two")
    near.close()
    world.sim.run(4.9)
    cancelled.cancel()
    assert world.b.frames == []
    world.sim.run(5.0)
    assert [what for _, what in world.b.heard] == ["linked", b"one", b"two", "closed by the peer"]
    assert seen == [5.0]
    assert world.network.faults == {Fault.PAUSE: 1}


def test_a_crash_loses_the_state_and_breaks_the_links() -> None:
    world = World(Crash(0.2, "b", back=1.0))
    world.link()
    world.b.host.call_later(0.5, world.b.frames.append, b"never")
    world.sim.run(0.5)
    assert len(world.a.ends) == 1
    world.sim.run(2.0)
    first, second = world.lives["b"]
    assert first.frames == second.frames == []
    assert second.host.life == 2
    world.link()
    assert len(second.links) == 1
    assert world.network.faults == {Fault.CRASH: 1}


def test_a_silent_crash_is_noticed_only_when_the_machine_is_back() -> None:
    world = World(Crash(0.2, "b", back=5.0, silent=True))
    near, _ = world.link()
    world.sim.run(1.0)
    near.send(b"hello?")
    world.sim.run(4.9)
    assert near.open
    world.sim.run(5.1)
    near.send(b"hello?")
    world.sim.run(6.0)
    assert not near.open
    assert world.b.frames == []
    assert world.network.faults == {Fault.SILENT_CRASH: 1}


def test_a_crash_in_a_pause_ends_the_pause() -> None:
    world = World(Pause(0.2, 9.0, "b"), Crash(0.5, "b", back=1.0), Crash(0.6, "b"))
    world.sim.run(2.0)
    near, _ = world.link()
    near.send(b"awake")
    world.sim.run(3.0)
    assert world.b.frames == [b"awake"]
    assert world.network.faults[Fault.CRASH] == 1


def test_the_trace_tells_frames_and_faults() -> None:
    world = World(Crash(0.5, "b"))
    near, _ = world.link()
    near.send(b"\x01\x02")
    world.sim.run(1.0)
    trace = "\n".join(world.sim.trace or ())
    assert "a>b#1 0102" in trace
    assert "0.500000 crash b" in trace


def test_two_hosts_of_one_name_are_refused() -> None:
    world = World()
    with pytest.raises(UsageError, match="'a': exists already"):
        world.network.add("a", world.make)
