"""Opening connections to a peer: what is tried again, what is final, and what is never sent."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable, Iterator

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import Overloaded, PeerLost, Refused, Step, Unavailable
from holdfast.net.address import Address
from holdfast.net.auth import derive_key
from holdfast.net.tcp import open_socket
from holdfast.rpc.client import dialer as dialer_module
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.wire.connection import Connection
from holdfast.rpc.wire.hello import WorkerHello
from holdfast.rpc.wire.messages import Message
from holdfast.rpc.wire.worker_info import WorkerInfo
from tests.unit.rpc.peer_world import KEY, ME, SOON, Heard, World, ask, beside, silent, soon


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"life": "an earlier life"}, "another worker than the one that we mean"),
        ({"key": derive_key(b"another job", "rpc")}, "Connection closed by peer .*secret"),
        ({"unix": "\0nobody"}, "Connection closed by peer .*refused"),
        ({"machine": "other", "tcp": ""}, "workers of its own host only"),
        ({"machine": "other", "tcp": "127.0.0.1:1"}, "Connection closed by peer .*127.0.0.1:1"),
    ],
)
def test_a_peer_that_cannot_be_reached_is_lost_and_the_text_says_why(
    world: World, change: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = world.make(**change)  # type: ignore[arg-type]
    connect, tries = peer._dialer._connect, list[Deadline]()

    def count(deadline: Deadline) -> Connection:
        tries.append(deadline)
        return connect(deadline)

    monkeypatch.setattr(peer._dialer, "_connect", count)
    with pytest.raises(PeerLost, match=text) as caught:
        peer.exchange(ask(1), soon())
    assert caught.value.peer == "you"
    heard = Heard()
    peer.post(ask(2), heard, soon())
    told = heard.wait()
    assert isinstance(told, PeerLost)
    assert re.search(text, str(told))
    assert len(tries) == 2  # it will not get better


def admit_after(world: World, refused: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the server close as many new connections; return a list of all that came."""
    admit, came = world.server._meet, list[int]()

    def hang_up_first(sock: socket.socket) -> tuple[Connection, WorkerHello]:
        came.append(1)
        if len(came) <= refused:
            raise OSError("too many connections")
        return admit(sock)

    monkeypatch.setattr(world.server, "_meet", hang_up_first)
    return came


@pytest.mark.parametrize("machine", ["machine", "another machine"])
def test_a_peer_that_evicts_unauthenticated_connections_is_tried_again(
    world: World, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PE-4: nothing was run by then."""
    came = admit_after(world, 3, monkeypatch)
    peer = world.make(machine=machine)
    assert peer.exchange(ask(1), soon()).call == 1
    assert len(came) == 4
    heard = Heard()
    admit_after(world, 3, monkeypatch)
    peer.post(ask(2), heard, soon())
    assert isinstance(heard.wait(), Message)


def test_a_peer_that_hangs_up_before_its_welcome_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_hello, came = world.desk.check_hello, list[WorkerHello]()

    def fail_first(hello: WorkerHello) -> None:
        came.append(hello)
        if len(came) <= 2:
            raise OSError("no time")
        check_hello(hello)

    monkeypatch.setattr(world.desk, "check_hello", fail_first)
    assert world.peer.exchange(ask(1), soon()).call == 1
    assert len(came) == 3


def test_a_peer_that_never_stops_hanging_up_is_tried_for_as_long_as_there_is_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit_after(world, 10**9, monkeypatch)
    with pytest.raises(TimeoutError, match="no connection was opened: "):
        world.peer.exchange(ask(1), SYSTEM_CLOCK.monotonic() + 0.1)


class Skipping(type(SYSTEM_CLOCK)):  # type: ignore[misc]
    """A clock that can be set forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return float(super().monotonic()) + self.ahead_s


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("machine", ["machine", "another machine"])
def test_pe4_a_peer_that_is_slow_to_shake_hands_is_not_lost(
    world: World, machine: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes: it was frozen, say, or so many others came before us."""
    clock = Skipping()
    monkeypatch.setattr(dialer_module, "TRY_S", 0.05)
    with silent(machine) as (listener, unix, tcp):
        contact = Contact(WorkerInfo("you", 1), "life", machine, unix, tcp)
        peer = Peer(contact, ME, KEY, world.background, clock)
        world.peers.append(peer)
        heard = Heard()
        exchange, post = (lambda: heard(peer.exchange(ask(1)))), (lambda: peer.post(ask(1), heard))
        caller = beside(exchange if waits else post)
        for _ in range(3):
            with listener.accept()[0] as accepted:
                while accepted.recv(256):
                    pass  # until this attempt is given up
            clock.ahead_s += 3600.0
        monkeypatch.setattr(dialer_module, "TRY_S", SOON)
        ours = listener.dup()
        ours.settimeout(None)
        world.server.listen(ours)
        assert isinstance(heard.wait(), Message)
        caller.join(SOON)


def test_pe4_a_host_that_does_not_answer_for_a_while_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Address] = []

    def lose_two(
        address: Address, deadline: Deadline, made: Callable[[socket.socket], object]
    ) -> socket.socket:
        tries.append(address)
        if len(tries) <= 2:
            raise Unavailable("cannot connect", step=Step.TCP) from TimeoutError()
        return open_socket(address, deadline, made)

    monkeypatch.setattr(dialer_module, "open_socket", lose_two)
    assert world.make(machine="another machine").exchange(ask(1), soon()).call == 1
    assert len(tries) == 3


@pytest.mark.parametrize("machine", ["machine", "another machine"])
def test_a_shortage_of_this_process_is_not_the_loss_of_a_peer(
    world: World, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = world.make(machine=machine)

    def refuse(sock: socket.socket) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(peer._dialer, "_made", refuse)
        with pytest.raises(Overloaded, match=r"no connection can be opened: .*Too many open"):
            peer.exchange(ask(1), soon())
    assert peer.exchange(ask(2), soon()).call == 2


def test_pe5_nothing_is_sent_to_a_socket_of_another_user(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(sock: socket.socket, group: int | None) -> None:
        raise Refused("another user's", step=Step.HANDSHAKE)

    monkeypatch.setattr(dialer_module, "check_peer", refuse)
    with silent("machine") as (listener, unix, _):
        with pytest.raises(PeerLost, match="another user's"):
            world.make(unix=unix).exchange(ask(1), soon())
        with listener.accept()[0] as accepted:
            assert accepted.recv(1) == b""


def test_a_refusal_is_not_argued_with(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    came = admit_after(world, 0, monkeypatch)
    with pytest.raises(PeerLost, match="secret"):
        world.make(key=derive_key(b"another job", "rpc")).exchange(ask(1), soon())
    world.desk.refusal = PeerLost("another one has its name now")
    with pytest.raises(PeerLost, match="another one has its name now"):
        world.peer.exchange(ask(1), soon())
    assert len(came) == 2
