"""Waiting for sockets: what is reported, and when the thread spins before it sleeps."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator

import pytest

from holdfast.net import poller as module
from holdfast.net.poller import READABLE, WRITABLE, Poller

SOON = 30.0

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


@pytest.fixture(params=["epoll", "poll"])
def poller(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Poller[str]]:
    if request.param == "poll":
        monkeypatch.delattr(select, "epoll", raising=False)
    made = Poller[str]()
    yield made
    made.close()


def test_what_is_ready_is_reported_by_its_number(poller: Poller[str], pair: Pair) -> None:
    here, there = pair
    poller.add(here, READABLE, "here")
    assert poller.wait(0.0) == []
    there.send(b"x")
    for seconds in (0.0, 1.0, None):
        assert poller.wait(seconds) == [(here.fileno(), READABLE)]
    assert poller.targets == {here.fileno(): "here"}


def test_events_can_be_changed_and_sockets_removed(poller: Poller[str], pair: Pair) -> None:
    here, there = pair
    poller.add(here, READABLE, "here")
    poller.change(here, WRITABLE)
    there.send(b"x")
    assert poller.wait(None) == [(here.fileno(), WRITABLE)]
    poller.remove(here)
    assert poller.targets == {}
    assert poller.wait(0.001) == []


def test_the_end_of_a_connection_is_reported_to_a_socket_that_waits_for_room_alone(
    poller: Poller[str], pair: Pair
) -> None:
    here, there = pair
    poller.add(here, WRITABLE, "here")
    there.close()
    [(number, events)] = poller.wait(None)
    assert number == here.fileno()
    assert events & select.POLLHUP


def test_po1_a_wait_sleeps_at_first(poller: Poller[str], pair: Pair) -> None:
    here, there = pair
    poller.add(here, READABLE, "here")
    asked = count_polls(poller)
    threading.Timer(0.01, there.send, [b"x"]).start()
    assert poller.wait(SOON)
    assert asked == [SOON]


def test_po1_what_arrives_while_the_thread_spins_needs_no_sleep(
    poller: Poller[str], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPIN_S", SOON)
    here, there = pair
    poller.add(here, READABLE, "here")
    poller._spin.now = True
    asked = count_polls(poller)
    threading.Timer(0.01, there.send, [b"x"]).start()
    assert poller.wait(None) == [(here.fileno(), READABLE)]
    assert set(asked) == {0.0}
    assert poller._spin.now  # it was worth it


def test_po1_where_spinning_finds_nothing_the_thread_sleeps_and_does_not_spin_again(
    poller: Poller[str], pair: Pair
) -> None:
    here, there = pair
    poller.add(here, READABLE, "here")
    poller._spin.now = True
    asked = count_polls(poller)
    assert poller.wait(0.01) == []
    assert asked[0] == 0.0
    assert asked[-1] == 0.01
    assert not poller._spin.now
    there.send(b"x")
    asked.clear()
    assert poller.wait(SOON)
    assert asked == [SOON]


def test_a_poller_that_is_closed_leaves_the_sockets_open(poller: Poller[str], pair: Pair) -> None:
    here, there = pair
    poller.add(here, READABLE, "here")
    poller.close()
    poller.close()
    there.send(b"x")
    assert here.recv(1) == b"x"


def count_polls(poller: Poller[str]) -> list[float | None]:
    """Return a list to which each poll adds how long it may take."""
    asked: list[float | None] = []
    poll = poller._poll_s

    def counted(seconds: float | None) -> list[tuple[int, int]]:
        asked.append(seconds)
        return poll(seconds)

    poller._poll_s = counted
    return asked
