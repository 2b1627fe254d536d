"""Servers that join others and leave them: SS-5 and SS-6."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import StoreUnavailable, UsageError
from holdfast.store.open import open_store
from holdfast.store.replica.machine import Replica
from holdfast.store.server import StoreServer
from tests.unit.store.tcp_parts import LONG_S, SECRET, new_server
from tests.waiting import until


@pytest.fixture
def servers() -> Iterator[list[StoreServer]]:
    """Three members of one store."""
    found = [new_server() for _ in range(3)]
    found[0].start()
    try:
        for server in found[1:]:
            server.join((found[0].address,), LONG_S)
        yield found
    finally:
        for server in found:
            server.close()


def test_ss6_members_leave_one_after_the_other_and_nothing_is_lost(
    servers: list[StoreServer],
) -> None:
    with open_store(f"tcp://{servers[0].address}", secret=SECRET) as store:
        store.set("k", b"v")
        while len(servers) > 1:
            leader = next(server for server in servers if server.leads)
            assert leader.leave(LONG_S)
            leader.close()
            servers.remove(leader)
            assert store.get("k", timeout=LONG_S) == b"v"
            until(lambda: any(server.leads for server in servers))
        (last,) = servers
        until(lambda: last.alone)
        assert not last.leave(LONG_S)
        assert not last.deserted


def test_ss6_all_leave_at_once_but_the_last(servers: list[StoreServer]) -> None:
    with ThreadPoolExecutor(3) as pool:
        gone = list(pool.map(lambda server: server.leave(LONG_S), servers))
    assert gone.count(False) == 1
    assert servers[gone.index(False)].alone


def test_a_server_alone_has_nothing_to_leave() -> None:
    with new_server() as server:
        assert server.alone
        assert server.leads
        assert not server.leave(LONG_S)


def test_a_server_that_is_closed_while_it_joins_gives_up() -> None:
    with new_server() as nowhere:
        nowhere.close()
        server = new_server()
        with ThreadPoolExecutor(1) as pool:
            joining = pool.submit(server.join, (nowhere.address,), LONG_S)
            until(lambda: server._reactor is not None)
            server.close()
            with pytest.raises(StoreUnavailable, match="was closed before it was a member"):
                joining.result(LONG_S)


def test_a_store_with_as_many_members_as_wanted_refuses(servers: list[StoreServer]) -> None:
    with pytest.raises(UsageError, match="the store has 3 members"):
        new_server().join((servers[1].address,), LONG_S, most=3)


def test_an_owner_is_known_to_all_members(servers: list[StoreServer]) -> None:
    servers[0].belongs_to(77)

    def known(server: StoreServer) -> bool:
        machine = server._machine
        return isinstance(machine, Replica) and 77 in machine._places.owners.values()

    until(lambda: all(map(known, servers)))


def test_a_member_that_is_closed_is_not_taken_for_dead(
    servers: list[StoreServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may live on, with a client that keeps its leases."""
    ended = threading.Event()
    machine = servers[0]._machine
    assert isinstance(machine, Replica)
    member = servers[1]._machine
    assert isinstance(member, Replica)
    told: list[bool] = []
    end = machine.voices.end

    def noted(number: int, voice: int, now: float, *, died: bool) -> None:
        end(number, voice, now, died=died)
        if number == member.member:
            told.append(died)
            ended.set()

    monkeypatch.setattr(machine.voices, "end", noted)
    servers[1].close()
    assert ended.wait(LONG_S)
    assert told == [False]
