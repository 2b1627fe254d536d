"""The member of the store that an agent hosts: it joins, is dismissed, joins anew, and stops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from holdfast.clock import Deadline
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.net.address import Address
from holdfast.rendezvous.store_host import StoreHost
from holdfast.store.client import RemoteStore
from holdfast.store.open import open_store
from holdfast.store.server import StoreServer
from tests.unit.store.tcp_parts import LONG_S, SECRET, new_server
from tests.waiting import until

Make = Callable[..., StoreHost]


@pytest.fixture
def first() -> Iterator[StoreServer]:
    with new_server() as server:
        yield server


@pytest.fixture
def make(first: StoreServer) -> Iterator[Make]:
    """Make hosts of members beside the first one; all of them leave when the test ends."""
    with ExitStack() as stack:

        def make(server: type[StoreServer] = StoreServer) -> StoreHost:
            store = stack.enter_context(open_store(f"tcp://{first.address}", secret=SECRET))
            assert isinstance(store, RemoteStore)
            host = StoreHost(store, lambda: server(Address("127.0.0.1", 0), SECRET), None)

            def end() -> None:
                hosted = host.stop()
                if hosted is not None:
                    hosted.leave(LONG_S)
                    hosted.close()

            stack.callback(end)
            host.start()
            return host

        yield make


def soon() -> Deadline:
    return Deadline.after(LONG_S)


def test_a_host_joins_and_knows_all_members(first: StoreServer, make: Make) -> None:
    hosts = [make(), make()]
    for host in hosts:
        host.settle(soon())
    until(lambda: all(len(host.addresses()) == 3 for host in hosts))
    assert str(first.address) in hosts[0].addresses()
    assert all(host.server is not None for host in hosts)


def test_a_founder_hosts_from_the_beginning_and_has_no_thread(first: StoreServer) -> None:
    with open_store(f"tcp://{first.address}", secret=SECRET) as store:
        assert isinstance(store, RemoteStore)
        threads = threading.active_count()
        host = StoreHost(store, new_server, first)
        host.start()
        host.settle(soon())
        assert threading.active_count() == threads
        assert host.addresses() == ()
        assert host.stop() is first


def test_one_that_is_dismissed_joins_anew(make: Make) -> None:
    host = make()
    host.settle(soon())
    old = host.server
    assert old is not None
    old.leave(LONG_S)
    old.on_dismissed("was silent for too long")
    until(lambda: host.server not in (None, old))


class Unable(StoreServer):
    def join(self, addresses: object, timeout: object, *, most: int = 0) -> None:
        raise StoreUnavailable("cannot be reached")


class Surplus(StoreServer):
    def join(self, addresses: object, timeout: object, *, most: int = 0) -> None:
        raise UsageError(f"the store has {most} members")


@pytest.mark.parametrize("kind", [Unable, Surplus])
def test_one_that_cannot_join_is_settled_and_hosts_nothing(
    make: Make, kind: type[StoreServer]
) -> None:
    host = make(kind)
    host.settle(soon())
    assert host.server is None
    assert host.addresses() == ()


class Slow(StoreServer):
    asked = threading.Event()

    def join(self, addresses: object, timeout: object, *, most: int = 0) -> None:
        self.asked.set()
        assert self._closing.wait(LONG_S)
        raise StoreUnavailable("closed")


def test_one_that_stops_while_it_joins_ends_at_once(make: Make) -> None:
    host = make(Slow)
    assert Slow.asked.wait(LONG_S)
    host.settle(Deadline.after(0.01))
    assert host.stop() is None
    host.settle(soon())
