"""Connections between members: made again when they are lost, and closed with their server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.net.address import Address
from holdfast.net.reactor import Reactor
from holdfast.store.raft.messages import TimeoutNow
from holdfast.store.replica import links as links_module
from holdfast.store.replica.links import MemberLinks
from holdfast.store.replica.machine import Replica
from holdfast.store.replica.messages import JoinRequest
from tests.unit.store.tcp_parts import KEY, LONG_S, Proxy, new_server
from tests.waiting import until


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    reactor = Reactor("links-test")
    reactor.start()
    yield reactor
    reactor.close()


def links_on(reactor: Reactor, lost: Callable[[int], None]) -> MemberLinks:
    return MemberLinks(reactor, KEY, 7, SYSTEM_CLOCK, lost=lost, dismissed=lambda *told: None)


def drive(reactor: Reactor, links: MemberLinks, address: str, over: threading.Event) -> None:
    """Send to a member now and then, on the reactor's thread."""

    def again() -> None:
        if not over.is_set():
            links.send(1, address, TimeoutNow(1, 7, 1))
            links.tick(SYSTEM_CLOCK.monotonic(), {})
            reactor.call_later(0.01, again)

    reactor.call_soon(again)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no address"])
def test_a_member_that_cannot_be_reached_is_reported(reactor: Reactor, address: str) -> None:
    lost, over = threading.Event(), threading.Event()
    links = links_on(reactor, lambda member: lost.set())
    drive(reactor, links, address, over)
    assert lost.wait(LONG_S)
    over.set()
    links.close()


def test_a_connection_that_is_cut_is_made_again() -> None:
    with new_server() as first, Proxy(first.address) as proxy:
        lost, over = threading.Event(), threading.Event()
        first.admit(JoinRequest(7, "nowhere:1"))
        machine = first._machine
        assert isinstance(machine, Replica)
        reactor = Reactor("links-test")
        reactor.start()
        links = links_on(reactor, lambda member: lost.set())
        drive(reactor, links, str(proxy.address), over)
        until(lambda: proxy.connections == 1)
        proxy.cut()
        assert lost.wait(LONG_S)
        until(lambda: proxy.connections > 1)
        over.set()
        reactor.close()
        links.close()


def test_a_member_that_is_silent_is_given_up_and_closing_ends_a_dial(reactor: Reactor) -> None:
    """Closing does not wait for a handshake that does not come."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        over = threading.Event()
        links = links_on(reactor, lambda member: None)
        drive(reactor, links, where, over)
        until(lambda: any(links._dialing.values()))
        over.set()
        links.close()
        assert not any(thread.is_alive() for thread in links._dialing)


def test_what_finds_no_connection_is_told_as_dropped(reactor: Reactor) -> None:
    """Else a leader would wait for the answer to a snapshot that was never sent."""
    assert not links_on(reactor, lambda member: None).send(7, "nowhere:1", TimeoutNow(7, 1, 1))


def test_a_connection_that_is_made_after_the_reactors_end_is_closed_at_once() -> None:
    reactor = Reactor("ended")
    reactor.start()
    reactor.close()
    link = links_module._Link(links_on(reactor, lambda member: None), 1)
    one, other = socket.socketpair()
    with one, other:
        where = Address("127.0.0.1", 1)
        reactor.call_soon(links_module._Adoption(reactor, one, where, link))
        assert one.fileno() == -1


def test_too_much_for_a_member_is_dropped(
    reactor: Reactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "QUEUED_BYTES_MAX", 10)
    link = links_module._Link(links_on(reactor, lambda member: None), 1)
    assert link.send(b"x" * 100)
    assert not link.send(b"y" * 100)
    assert link._queued == 101  # the first and its kind; the second is dropped
    link.part("nothing to close")
