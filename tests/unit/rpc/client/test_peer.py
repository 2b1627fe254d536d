"""The caller's side of one peer: connections that are kept, replaced, bounded, and given up."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import NoReturn

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import Overloaded, PeerLost
from holdfast.rpc.client import dialer as dialer_module
from holdfast.rpc.client import peer as peers_module
from holdfast.rpc.client.future import Future
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.wire.connection import Connection
from holdfast.rpc.wire.hello import Purpose
from holdfast.rpc.wire.messages import Kind, Message
from tests.unit.rpc.peer_world import SOON, Heard, World, ask, beside, raised, silent, soon
from tests.unit.rpc.world import forked
from tests.waiting import until, with_more_time


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("machine", ["machine", "another machine"])
def test_successive_calls_use_one_connection_and_asynchronous_ones_one_pipe(
    world: World, machine: str
) -> None:
    peer = world.make(machine=machine)
    for number in range(10):
        assert peer.exchange(ask(number, b"x"), soon()).body == b"x"
    assert world.desk.purposes == [Purpose.DIRECT]
    heard = [Heard() for _ in range(10)]
    for number, each in enumerate(heard):
        peer.post(ask(number), each)
    assert all(isinstance(each.wait(), Message) for each in heard)
    assert world.desk.purposes == [Purpose.DIRECT, Purpose.PIPE]


def test_an_idle_connection_to_another_host_shows_signs_of_life(world: World) -> None:
    """Or it would be forgotten on the way."""
    assert world.make(machine="another machine").exchange(ask(1), soon()).call == 1
    for connections in (world.peers[-1].connections, world.server.connections):
        for connection in connections:
            assert connection._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if sys.platform == "linux":
                assert connection._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < 60
        assert connections


def test_pe3_a_call_that_finds_all_connections_in_use_shares_the_pipe(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "DIRECT_MAX", 2)
    callers = [beside(lambda n=n: world.peer.exchange(ask(n, b"wait"))) for n in range(2)]  # type: ignore[misc]
    for _ in callers:
        world.desk.entered.acquire()
    assert world.peer.exchange(ask(9), soon()).call == 9
    late = SYSTEM_CLOCK.monotonic() + 0.05
    with pytest.raises(TimeoutError):
        world.peer.exchange(ask(10, b"wait"), late)
    world.desk.gate.set()
    for caller in callers:
        caller.join()
    assert world.desk.purposes == [Purpose.DIRECT, Purpose.DIRECT, Purpose.PIPE]
    assert len(world.peer._idle) == 2
    assert world.peer.exchange(ask(11)).call == 11
    assert len(world.desk.purposes) == 3


def test_pe3_more_synchronous_calls_than_may_be_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "DIRECT_MAX", 1)
    monkeypatch.setattr(peers_module, "EXCHANGES_MAX", 2)
    callers = [beside(lambda n=n: world.peer.exchange(ask(n, b"wait"))) for n in range(2)]  # type: ignore[misc]
    for _ in callers:
        world.desk.entered.acquire()
    with pytest.raises(Overloaded, match="2 calls to it are under way"):
        world.peer.exchange(ask(9))
    world.desk.gate.set()
    for caller in callers:
        caller.join()
    assert world.peer.exchange(ask(10)).call == 10


def test_pe3_connections_that_are_being_opened_count(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "DIRECT_MAX", 1)
    with silent("machine") as (listener, unix, tcp):
        peer = world.make(unix=unix, tcp=tcp)
        callers = [beside(lambda: raised(PeerLost, lambda: peer.exchange(ask(1))))]
        with listener.accept()[0] as direct:
            assert direct.recv(1)
            for request in map(ask, range(2, 5)):  # these share the pipe that one of them opens
                share = partial(raised, PeerLost, partial(peer.exchange, request))
                callers.append(beside(share))
            with listener.accept()[0] as pipe:
                assert pipe.recv(1)
                until(lambda: peer._sharing == 3)
                listener.setblocking(False)
                with pytest.raises(BlockingIOError):
                    listener.accept()
        peer.lose("the test is over")
        for caller in callers:
            caller.join(SOON)


def test_a_shared_call_whose_wait_is_interrupted_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "DIRECT_MAX", 0)

    def interrupted(future: Future[Message]) -> NoReturn:
        assert not future.done()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Future, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            world.peer.exchange(ask(1, b"wait"))
    assert world.peer.under_way == 0
    assert world.peer._sharing == 0
    world.desk.gate.set()
    assert world.peer.exchange(ask(2), soon()).call == 2


def test_pe2_a_call_that_times_out_closes_its_connection(world: World) -> None:
    with pytest.raises(TimeoutError):
        world.peer.exchange(ask(1, b"wait"), SYSTEM_CLOCK.monotonic() + 0.03)
    assert not world.peer._idle
    assert not world.peer.connections
    world.desk.gate.set()
    assert world.peer.exchange(ask(2), soon()).call == 2


def test_pe2_connections_that_ended_while_idle_are_replaced(world: World) -> None:
    callers = [beside(lambda n=n: world.peer.exchange(ask(n, b"wait"))) for n in range(3)]  # type: ignore[misc]
    for _ in callers:
        world.desk.entered.acquire()
    world.desk.gate.set()
    for caller in callers:
        caller.join()
    heard = Heard()
    world.peer.post(ask(5), heard)
    heard.wait()
    pipe = world.peer._pipe
    assert pipe is not None
    world.server.hang_up("my life")
    until(lambda: not world.server.connections)
    assert world.peer.exchange(ask(6)).call == 6
    again = Heard()
    pipe.drive(lambda: pipe.lost is not None, Deadline.after(SOON))
    world.peer.post(ask(7), again)
    assert isinstance(again.wait(), Message)
    assert world.peer._pipe is not pipe
    assert len(world.peer.connections) == 2


def test_a_note_goes_by_the_pipe_which_is_opened_for_it(world: World) -> None:
    note = Message(Kind.CANCEL, 7)
    world.peer.transmit(note)
    world.desk.entered.acquire()
    world.peer.transmit(note)
    world.desk.entered.acquire()
    assert world.desk.purposes == [Purpose.PIPE]
    heard = Heard()
    world.peer.post(ask(1), heard)
    heard.wait()
    world.peer.transmit(note)
    world.desk.entered.acquire()
    assert world.desk.notes == [7, 7, 7]


def test_an_answer_to_another_call_is_not_taken(world: World) -> None:
    world.desk.lies = True
    with pytest.raises(Exception, match="an answer to another call came"):
        world.peer.exchange(ask(1))
    assert not world.peer.connections


def test_pe1_giving_a_peer_up_fails_all_waiting_calls(world: World) -> None:
    caught: list[BaseException] = []

    def call() -> None:
        try:
            world.peer.exchange(ask(1, b"wait"))
        except PeerLost as error:
            caught.append(error)

    callers = [beside(call) for _ in range(3)]
    heard = Heard()
    world.peer.post(ask(2, b"wait"), heard)
    for _ in range(4):
        world.desk.entered.acquire()
    lost = world.peer.lose("Connection closed by peer (it is gone)")
    for caller in callers:
        caller.join()
    assert [str(error) for error in caught] == [str(lost)] * 3
    assert len({id(error) for error in [*caught, lost]}) == 4  # each gathers a traceback of its own
    assert heard.wait() is lost
    assert (lost.peer, lost.incarnation) == ("you", "life")
    assert world.peer.lose("again") is world.peer.lost is lost
    for act in (
        lambda: world.peer.exchange(ask(3)),
        lambda: world.peer.post(ask(4), Heard()),
    ):
        with pytest.raises(PeerLost, match="it is gone"):
            act()
    assert not world.peer.connections


@pytest.mark.parametrize("machine", ["machine", "another machine"])
def test_pe1_a_connecting_thread_fails_when_the_peer_is_given_up(
    world: World, machine: str
) -> None:
    with silent(machine) as (listener, unix, tcp):
        peer = world.make(machine=machine, unix=unix, tcp=tcp)
        ends: list[object] = []

        def call() -> None:
            try:
                peer.exchange(ask(1))
            except PeerLost as error:
                ends.append(str(error))

        caller = beside(call)
        with listener.accept()[0] as accepted:
            assert accepted.recv(1)  # it waits for the handshake now
            lost = peer.lose("given up")
            caller.join(SOON)
    assert ends == [str(lost)]


def test_pe1_a_thread_that_waits_to_connect_fails_when_the_peer_is_given_up(world: World) -> None:
    with silent("machine", backlog=0) as (listener, unix, tcp), contextlib.ExitStack() as others:
        while True:  # until no more get to the end of the queue
            other = others.enter_context(socket.socket(socket.AF_UNIX))
            other.setblocking(False)
            if other.connect_ex(listener.getsockname()):
                break
        peer = world.make(unix=unix, tcp=tcp)
        slept = threading.Event()

        class Slow(type(SYSTEM_CLOCK)):  # type: ignore[misc]
            def sleep(self, seconds: float) -> None:
                slept.set()
                super().sleep(seconds)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dialer_module, "SYSTEM_CLOCK", Slow())
            ends: list[BaseException] = []
            caller = beside(lambda: ends.append(raised(PeerLost, lambda: peer.exchange(ask(1)))))
            assert slept.wait(SOON)
            lost = peer.lose("given up")
            caller.join(SOON)
    assert [str(end) for end in ends] == [str(lost)]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("machine", ["machine", "another machine"])
def test_fk1_a_child_forked_while_a_connection_is_opened_has_no_part_in_it(
    world: World, machine: str
) -> None:
    with silent(machine) as (listener, unix, tcp):
        peer = world.make(machine=machine, unix=unix, tcp=tcp)
        caller = beside(lambda: raised(PeerLost, lambda: peer.exchange(ask(1))))
        with listener.accept()[0] as accepted:
            assert accepted.recv(1)
            (sock,) = peer._dialer._sockets

            def look() -> None:
                assert sock.fileno() < 0

            with forked(look):
                assert sock.fileno() >= 0
        peer.lose("the test is over")
        caller.join(SOON)


def test_giving_up_while_connections_are_opened_leaves_none_open(world: World) -> None:
    for _ in range(30):
        peer = world.make()
        barrier = threading.Barrier(3)
        ends: list[object] = []

        def call(
            peer: Peer = peer, barrier: threading.Barrier = barrier, ends: list[object] = ends
        ) -> None:
            barrier.wait()
            try:
                ends.append(peer.exchange(ask(1)))
            except PeerLost as error:
                ends.append(error)

        def post(
            peer: Peer = peer, barrier: threading.Barrier = barrier, ends: list[object] = ends
        ) -> None:
            barrier.wait()
            heard = Heard()
            try:
                peer.post(ask(2), heard)
                ends.append(heard.wait())
            except PeerLost as error:
                ends.append(error)

        threads = [beside(call), beside(post)]
        barrier.wait()
        peer.lose("given up")
        for thread in threads:
            thread.join()
        assert len(ends) == 2
        assert not peer.connections


def test_a_callback_of_a_failed_connection_may_call_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, again = world.peer, Heard()
    lost = PeerLost("given up", peer="you")

    def call_again(answer: Message | Exception) -> None:
        try:
            peer.post(ask(2), Heard())
        except PeerLost as error:
            again(error)

    peer.post(ask(1, b"wait"), call_again)
    world.desk.entered.acquire()
    open_link = peer._open

    def open_slowly(purpose: Purpose, at: float) -> Connection:
        connection = open_link(purpose, at)
        peer.lost = lost  # another thread is about to close the pipe
        return connection

    monkeypatch.setattr(peer, "_open", open_slowly)
    beside(peer._open_pipe)
    assert str(again.wait()) == "given up"
    peer.lost = None  # so that all of it ends


def test_resetting_fails_the_calls_under_way_and_the_next_one_connects_again(world: World) -> None:
    heard = Heard()
    world.peer.post(ask(1, b"wait"), heard)
    world.desk.entered.acquire()
    world.peer.reset("Connection reset by peer")
    assert isinstance(heard.wait(), PeerLost)
    assert world.peer.exchange(ask(2)).call == 2
    assert world.peer.lost is None


def test_threads_that_open_a_pipe_at_once_share_it(world: World) -> None:
    barrier = threading.Barrier(5)
    heard = [Heard() for _ in range(5)]

    def post(number: int) -> None:
        barrier.wait()
        world.peer.post(ask(number), heard[number])

    threads = [beside(lambda n=n: post(n)) for n in range(5)]  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert all(isinstance(each.wait(), Message) for each in heard)
    assert len(world.peer.connections) == 1


def test_a_peer_that_is_silent_takes_no_longer_than_the_call_may(world: World) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        where = f"\0holdfast-test-{os.urandom(8).hex()}"
        sock.bind(where)
        sock.listen(0)
        peer = world.make(unix=where)
        others = []
        for _ in range(4):  # the last ones do not even get to the end of the queue
            with pytest.raises(TimeoutError, match="no connection was opened: "):
                peer.exchange(ask(1), SYSTEM_CLOCK.monotonic() + 0.05)
            other = socket.socket(socket.AF_UNIX)
            other.setblocking(False)
            other.connect_ex(where)
            others.append(other)
        for other in others:
            other.close()


def test_posting_to_a_silent_peer_does_not_block(world: World) -> None:
    """OP-1: neither does the next post, and each is told when its own time is up."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"\0holdfast-test-{os.urandom(8).hex()}")
        silent.listen()  # and never accepts
        name: bytes = silent.getsockname()

        def post_in_vain(seconds: float) -> None:
            peer = world.make(unix=name.decode())
            first, second = Heard(), Heard()
            peer.post(ask(1), first, SYSTEM_CLOCK.monotonic() + seconds)
            peer.post(ask(2), second)
            peer.transmit(Message(Kind.CANCEL, 7))
            assert peer.under_way == 2
            assert isinstance(first.wait(), TimeoutError)
            assert peer.under_way == 1
            lost = peer.lose("given up")
            assert second.wait() is lost
            assert peer.under_way == 0

        with_more_time(post_in_vain, 0.05)
