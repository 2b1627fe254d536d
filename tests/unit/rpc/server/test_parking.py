"""Idle connections: one thread waits for all of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from holdfast.rpc.server.parking import Parking
from holdfast.rpc.server.worker_pool import WorkerPool
from holdfast.rpc.wire.connection import Connection
from tests.unit.rpc.server_world import SOON
from tests.waiting import until


class World:
    def __init__(self) -> None:
        self.pool = WorkerPool("test", threads_max=1)
        self.parking = Parking("test", self.pool)
        self.socks: list[socket.socket] = []

    def pair(self) -> tuple[Connection, socket.socket]:
        ours, theirs = socket.socketpair()
        self.socks += (ours, theirs)
        return Connection(ours), theirs

    def close(self) -> None:
        self.parking.close()
        self.parking.close()
        self.pool.close()
        until(lambda: not any("test-idle" in each.name for each in threading.enumerate()))
        for sock in self.socks:
            sock.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.mark.parametrize("before", [True, False])
def test_pk1_a_connection_is_resumed_once_when_something_comes(world: World, before: bool) -> None:
    connection, other = world.pair()
    resumed = threading.Semaphore(0)
    if before:
        other.send(b"x")
    assert world.parking.park(connection, resumed.release)
    if not before:
        other.send(b"x")
    assert resumed.acquire(timeout=SOON)
    other.send(b"y")
    assert not resumed.acquire(timeout=0.05)
    assert world.parking.park(connection, resumed.release)  # which may be done again
    assert resumed.acquire(timeout=SOON)


@pytest.mark.parametrize("how", ["theirs", "ours"])
def test_pk1_a_connection_is_resumed_when_it_ends(world: World, how: str) -> None:
    connection, other = world.pair()
    resumed = threading.Event()
    assert world.parking.park(connection, resumed.set)
    if how == "ours":
        connection.shut()
    else:
        other.close()
    assert resumed.wait(SOON)


def test_pk2_many_connections_cost_one_thread(world: World) -> None:
    pairs = [world.pair() for _ in range(50)]
    before = threading.active_count()
    resumed: list[int] = []
    for number, (connection, _) in enumerate(pairs):
        assert world.parking.park(connection, partial(resumed.append, number))
    assert threading.active_count() == before + 1
    assert len(world.parking) == 50
    for _, other in pairs:
        other.send(b"x")
    until(lambda: sorted(resumed) == list(range(50)))


def test_a_connection_for_which_there_is_no_thread_waits_for_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed, asked = threading.Event(), threading.Semaphore(0)

    def none(job: object, reads: bool) -> bool:
        asked.release()
        return False

    connection, other = world.pair()
    with monkeypatch.context() as patch:
        patch.setattr(world.pool, "run", none)
        assert world.parking.park(connection, resumed.set)
        other.send(b"x")
        assert asked.acquire(timeout=SOON)
        assert asked.acquire(timeout=SOON)
        assert not resumed.is_set()
    assert resumed.wait(SOON)


def test_closing_resumes_parked_connections_and_parks_no_more(world: World) -> None:
    connection, _ = world.pair()
    resumed = threading.Event()
    assert world.parking.park(connection, resumed.set)
    world.parking.close()
    assert resumed.wait(SOON)
    assert not world.parking.park(connection, resumed.set)


def test_a_connection_that_is_closed_or_known_is_not_parked(world: World) -> None:
    connection, _ = world.pair()
    assert world.parking.park(connection, lambda: None)
    assert not world.parking.park(connection, lambda: None)  # a mistake, which must not hang
    closed, _ = world.pair()
    closed.close()
    assert not world.parking.park(closed, lambda: None)


def test_no_connection_is_parked_if_no_thread_can_be_started(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*args: object, **kwargs: object) -> threading.Thread:
        raise RuntimeError("can't start new thread")

    connection, _ = world.pair()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", none)
        assert not world.parking.park(connection, lambda: None)
    assert world.parking.park(connection, lambda: None)
