"""Who is where: entries that come, go, and come again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import PeerLost, TimeoutExpired, UsageError
from holdfast.rpc.directory import Directory
from holdfast.rpc.names import WorkerInfo
from holdfast.rpc.peers import Contact
from holdfast.store.memory import MemoryStore

SOON_S = 20.0


def contact(name: str, number: int, life: str = "") -> Contact:
    return Contact(WorkerInfo(name, number), life or f"{name}-life", "machine", "unix", "")


class World:
    """Workers that share a store."""

    def __init__(self, stack: ExitStack) -> None:
        self.store = MemoryStore()
        self._stack = stack
        self.lost: list[Contact] = []

    def join(self, name: str, number: int, life: str = "", timeout: float = SOON_S) -> Directory:
        directory = Directory(self.store, lost=self.lost.append)
        self._stack.callback(directory.close)
        directory.join(contact(name, number, life), Deadline.after(timeout))
        return directory


@pytest.fixture
def world() -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack)


def until(true: Callable[[], object]) -> None:
    deadline = Deadline.after(SOON_S)
    while not true():
        assert not deadline.passed()
        SYSTEM_CLOCK.sleep(0.002)


def test_everybody_finds_everybody(world: World) -> None:
    both = [world.join("b", 1), world.join("a", 0)]
    for directory in both:
        directory.wait_for(2, Deadline.after(SOON_S))
        assert directory.everybody() == (contact("a", 0), contact("b", 1))
        for target in ("b", 1, WorkerInfo("b", 1)):
            assert directory.find(target) == contact("b", 1)
        assert directory.find_incarnation("a-life") == contact("a", 0)


def test_who_is_not_there(world: World) -> None:
    directory = world.join("a", 0)
    directory.wait_for(1, Deadline.after(SOON_S))
    targets: list[Any] = ["b", 7, WorkerInfo("b", 7), None, []]
    for target in targets:
        with pytest.raises(UsageError, match="unknown; there are a"):
            directory.find(target)
    with pytest.raises(PeerLost, match="Connection closed by peer"):
        directory.find_incarnation("b-life")
    with pytest.raises(TimeoutExpired, match="1 of 3 workers came in time: a"):
        directory.wait_for(3, Deadline.after(0.05))


def test_a_name_and_a_number_have_one_owner(world: World) -> None:
    first = world.join("a", 0)
    with pytest.raises(TimeoutExpired, match="number 0 is taken by another worker of this job"):
        world.join("b", 0, timeout=0.05)
    with pytest.raises(TimeoutExpired, match="name 'a' is taken by another worker of this job"):
        world.join("a", 1, life="second", timeout=0.05)
    first.close()
    world.join("a", 0, life="third")


def test_a_newcomer_waits_for_its_predecessor_to_be_gone(world: World) -> None:
    first = world.join("a", 0)
    watcher = world.join("w", 9)
    watcher.wait_for(2, Deadline.after(SOON_S))
    joined = threading.Thread(target=world.join, args=("a", 0, "second"))
    joined.start()
    first.close()
    joined.join(SOON_S)
    until(lambda: "second" in [one.incarnation for one in watcher.everybody()])
    assert watcher.find("a").incarnation == "second"
    assert [one.incarnation for one in world.lost if one.info.name == "a"].count("a-life") >= 1
    with pytest.raises(PeerLost):
        watcher.find_incarnation("a-life")


def test_who_leaves_is_lost_once(world: World) -> None:
    stays, leaves = world.join("a", 0), world.join("b", 1)
    stays.wait_for(2, Deadline.after(SOON_S))
    leaves.close()
    until(lambda: len(stays.everybody()) == 1)
    until(lambda: world.lost)
    leaves.close()  # twice is once
    assert world.lost == [contact("b", 1)]


def test_numbers_are_given_once(world: World) -> None:
    directory = Directory(world.store)
    assert [directory.next_id(1.0) for _ in range(3)] == [0, 1, 2]


def test_an_entry_that_is_none_hides_nobody(world: World, caplog: pytest.LogCaptureFixture) -> None:
    directory = world.join("a", 0)
    for junk in (b"{", b"[]", b"{}", b'{"info": {"name": "x"}}'):
        world.store.set("worker/x", junk)
    world.join("b", 1)
    directory.wait_for(2, Deadline.after(SOON_S))
    assert [one.info.name for one in directory.everybody()] == ["a", "b"]
    assert "entry of a worker" in caplog.text


class TestTheEnd:
    def test_all_want_to_end(self, world: World) -> None:
        both = {"a": world.join("a", 0), "b": world.join("b", 1)}
        for directory in both.values():
            directory.wait_for(2, Deadline.after(SOON_S))
        found: list[tuple[str, ...]] = []

        def end() -> None:
            found.append(both["b"].finish(contact("b", 1), Deadline.after(SOON_S)))

        other = threading.Thread(target=end)
        other.start()
        assert both["a"].finish(contact("a", 0), Deadline.after(SOON_S)) == ()
        other.join(SOON_S)
        assert found == [()]

    def test_who_does_not_want_to_is_named(self, world: World) -> None:
        directory = world.join("a", 0)
        world.join("b", 1)
        directory.wait_for(2, Deadline.after(SOON_S))
        assert directory.finish(contact("a", 0), Deadline.after(0.05)) == ("b",)

    def test_who_is_lost_is_named(self, world: World) -> None:
        directory, other = world.join("a", 0), world.join("b", 1)
        directory.wait_for(2, Deadline.after(SOON_S))
        other.close()
        assert directory.finish(contact("a", 0), Deadline.after(SOON_S)) == ("b",)

    def test_who_has_said_so_and_left_is_not(self, world: World) -> None:
        directory, other = world.join("a", 0), world.join("b", 1)
        directory.wait_for(2, Deadline.after(SOON_S))
        other.say_done(contact("b", 1), 1.0)
        other.close()
        until(lambda: len(directory.everybody()) == 1)
        assert directory.finish(contact("a", 0), Deadline.after(SOON_S)) == ()

    def test_an_earlier_life_speaks_for_itself_only(self, world: World) -> None:
        directory, other = world.join("a", 0), world.join("b", 1)
        other.say_done(contact("b", 1), 1.0)
        other.close()
        world.join("b", 1, life="second")
        directory.wait_for(2, Deadline.after(SOON_S))
        assert directory.finish(contact("a", 0), Deadline.after(0.05)) == ("b",)

    def test_waiting_for_the_others_to_leave(self, world: World) -> None:
        directory, other = world.join("a", 0), world.join("b", 1)
        directory.wait_for(2, Deadline.after(SOON_S))
        directory.wait_alone(contact("a", 0), Deadline.after(0.02))
        assert len(directory.everybody()) == 2
        other.close()
        directory.wait_alone(contact("a", 0), Deadline.after(SOON_S))
        assert directory.everybody() == (contact("a", 0),)
