"""The caller's side of one peer: connections that are kept, replaced, bounded, and given up."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import Overloaded, PeerLost, Refused, Step, Unavailable
from holdfast.net.address import Address
from holdfast.net.auth import derive_key
from holdfast.net.tcp import open_socket
from holdfast.rpc.client import peer as peers_module
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.wire.connection import Connection
from holdfast.rpc.wire.hello import Purpose, WorkerHello
from holdfast.rpc.wire.messages import Kind, Message
from holdfast.rpc.wire.worker_info import WorkerInfo
from tests.patience import with_more_time
from tests.unit.rpc.peer_world import KEY, ME, SOON, World
from tests.unit.rpc.world import forked


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


def ask(call: int, body: bytes = b"") -> Message:
    return Message(Kind.PYTHON_CALL, call, body)


class Heard:
    def __init__(self) -> None:
        self.answers: list[Message | Exception] = []
        self.here = threading.Event()

    def __call__(self, answer: Message | Exception) -> None:
        self.answers.append(answer)
        self.here.set()

    def wait(self) -> Message | Exception:
        assert self.here.wait(SOON)
        assert len(self.answers) == 1
        return self.answers[0]


def beside(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


@contextlib.contextmanager
def silent(machine: str, backlog: int = 8) -> Iterator[tuple[socket.socket, str, str]]:
    """A peer that lets others connect and says nothing, and its places: `unix` and `tcp`."""
    here = machine == ME.machine
    with socket.socket(socket.AF_UNIX if here else socket.AF_INET) as sock:
        where = f"\0holdfast-test-{os.urandom(8).hex()}"
        sock.bind(where if here else ("127.0.0.1", 0))
        sock.listen(backlog)
        sock.settimeout(SOON)
        yield sock, where, "" if here else f"127.0.0.1:{sock.getsockname()[1]}"


def raised(kind: type[BaseException], act: Callable[[], object]) -> BaseException:
    with pytest.raises(kind) as caught:
        act()
    return caught.value


def soon() -> float:
    return SYSTEM_CLOCK.monotonic() + SOON


@pytest.mark.parametrize("machine", ["machine", "another machine"])
def test_calls_one_after_the_other_use_one_link_and_others_one_pipe(
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


def test_as_many_links_as_calls_at_once_and_not_too_many_idle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "IDLE_MAX", 3)
    callers = [beside(lambda n=n: world.peer.exchange(ask(n, b"wait"))) for n in range(6)]  # type: ignore[misc]
    for _ in callers:
        world.desk.entered.acquire()
    world.desk.gate.set()
    for caller in callers:
        caller.join()
    assert len(world.desk.purposes) == 6
    assert len(world.peer._idle) == len(world.peer._connections) == 3


def test_pe3_more_calls_at_once_than_may_be_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "CONNECTIONS_MAX", 2)
    callers = [beside(lambda n=n: world.peer.exchange(ask(n, b"wait"))) for n in range(2)]  # type: ignore[misc]
    for _ in callers:
        world.desk.entered.acquire()
    with pytest.raises(Overloaded, match="2 calls to it are under way"):
        world.peer.exchange(ask(9))
    world.desk.gate.set()
    for caller in callers:
        caller.join()
    assert world.peer.exchange(ask(10)).call == 10


def test_pe3_links_that_are_being_opened_count(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "CONNECTIONS_MAX", 1)
    with silent("machine") as (listener, unix, tcp):
        peer = world.make(unix=unix, tcp=tcp)
        caller = beside(lambda: raised(PeerLost, lambda: peer.exchange(ask(1))))
        with listener.accept()[0] as accepted:
            assert accepted.recv(1)
            with pytest.raises(Overloaded, match="1 calls to it are under way"):
                peer.exchange(ask(2))
        peer.lose("the test is over")
        caller.join(SOON)


def test_pe2_a_call_whose_time_is_up_gives_its_link_up(world: World) -> None:
    with pytest.raises(TimeoutError):
        world.peer.exchange(ask(1, b"wait"), SYSTEM_CLOCK.monotonic() + 0.03)
    assert not world.peer._idle
    assert not world.peer._connections
    world.desk.gate.set()
    assert world.peer.exchange(ask(2), soon()).call == 2


def test_pe2_links_that_ended_while_idle_are_replaced(world: World) -> None:
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
    deadline = Deadline.after(SOON)
    while world.server._connections:
        assert not deadline.passed()
        SYSTEM_CLOCK.sleep(0.001)
    assert world.peer.exchange(ask(6)).call == 6
    again = Heard()
    pipe.drive(lambda: pipe.lost is not None, Deadline.after(SOON))
    world.peer.post(ask(7), again)
    assert isinstance(again.wait(), Message)
    assert world.peer._pipe is not pipe
    assert len(world.peer._connections) == 2


def test_a_note_goes_by_the_pipe_which_is_opened_for_it(world: World) -> None:
    note = Message(Kind.CANCEL, 7)
    world.peer.note(note)
    world.desk.entered.acquire()
    world.peer.note(note)
    world.desk.entered.acquire()
    assert world.desk.purposes == [Purpose.PIPE]
    heard = Heard()
    world.peer.post(ask(1), heard)
    heard.wait()
    world.peer.note(note)
    world.desk.entered.acquire()
    assert world.desk.notes == [7, 7, 7]


def test_an_answer_to_another_call_is_not_taken(world: World) -> None:
    world.desk.lies = True
    with pytest.raises(Exception, match="an answer to another call came"):
        world.peer.exchange(ask(1))
    assert not world.peer._connections


def test_pe1_giving_a_peer_up_is_told_to_all_who_wait(world: World) -> None:
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
    assert not world.peer._connections


@pytest.mark.parametrize("machine", ["machine", "another machine"])
def test_pe1_who_is_opening_a_connection_hears_that_the_peer_is_given_up(
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


def test_pe1_who_waits_to_connect_hears_that_the_peer_is_given_up(world: World) -> None:
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
            patch.setattr(peers_module, "SYSTEM_CLOCK", Slow())
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
            (sock,) = peer._sockets

            def look() -> None:
                assert sock.fileno() < 0

            with forked(look):
                assert sock.fileno() >= 0
        peer.lose("the test is over")
        caller.join(SOON)


def test_giving_up_while_links_are_opened_leaves_none_open(world: World) -> None:
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
        assert not peer._connections


def test_who_hears_of_the_end_from_one_that_opens_a_pipe_may_call_again(
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
        peer._lost = lost  # another thread is about to close the pipe
        return connection

    monkeypatch.setattr(peer, "_open", open_slowly)
    beside(peer._open_pipe)
    assert str(again.wait()) == "given up"
    peer._lost = None  # so that all of it ends


def test_resetting_breaks_what_is_under_way_and_nothing_else(world: World) -> None:
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
    assert len(world.peer._connections) == 1


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
    connect, tries = peer._connect, list[Deadline]()

    def count(deadline: Deadline) -> Connection:
        tries.append(deadline)
        return connect(deadline)

    monkeypatch.setattr(peer, "_connect", count)
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
    """Let the server hang up on as many strangers; return a list of all that came."""
    admit, came = world.server._admit, list[int]()

    def hang_up_first(sock: socket.socket) -> tuple[Connection, WorkerHello]:
        came.append(1)
        if len(came) <= refused:
            raise OSError("too many strangers")
        return admit(sock)

    monkeypatch.setattr(world.server, "_admit", hang_up_first)
    return came


@pytest.mark.parametrize("machine", ["machine", "another machine"])
def test_a_peer_that_hangs_up_on_strangers_is_tried_again(
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
    monkeypatch.setattr(peers_module, "TRY_S", 0.05)
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
        monkeypatch.setattr(peers_module, "TRY_S", SOON)
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

    monkeypatch.setattr(peers_module, "open_socket", lose_two)
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
        patch.setattr(peer, "_made", refuse)
        with pytest.raises(Overloaded, match=r"no connection can be opened: .*Too many open"):
            peer.exchange(ask(1), soon())
    assert peer.exchange(ask(2), soon()).call == 2


def test_pe5_nothing_is_sent_to_a_socket_of_another_user(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(sock: socket.socket, group: int | None) -> None:
        raise Refused("another user's", step=Step.HANDSHAKE)

    monkeypatch.setattr(peers_module, "check_peer", refuse)
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


def test_who_posts_to_a_silent_peer_does_not_wait_for_it(world: World) -> None:
    """OP-1: neither does who posts next, and each is told when its own time is up."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"\0holdfast-test-{os.urandom(8).hex()}")
        silent.listen()  # and never accepts
        name: bytes = silent.getsockname()

        def post_in_vain(seconds: float) -> None:
            peer = world.make(unix=name.decode())
            first, second = Heard(), Heard()
            peer.post(ask(1), first, SYSTEM_CLOCK.monotonic() + seconds)
            peer.post(ask(2), second)
            peer.note(Message(Kind.CANCEL, 7))
            assert peer.under_way == 2
            assert isinstance(first.wait(), TimeoutError)
            assert peer.under_way == 1
            lost = peer.lose("given up")
            assert second.wait() is lost
            assert peer.under_way == 0

        with_more_time(post_in_vain, 0.05)


def test_who_sends_nothing_hears_of_the_loss_once_unless_he_wants_to_no_more(world: World) -> None:
    early, late, not_any_more = Heard(), Heard(), Heard()
    world.peer.tell_of_loss(early)
    world.peer.tell_of_loss(not_any_more)
    world.peer.tell_no_more(not_any_more)
    world.peer.tell_no_more(not_any_more)
    lost = world.peer.lose("it is gone")
    world.peer.lose("again")
    world.peer.tell_of_loss(late)
    for heard in (early, late):
        answer = heard.wait()
        assert isinstance(answer, PeerLost)
        assert answer is not lost  # each has one of his own
        assert str(answer) == str(lost)
    assert not_any_more.answers == []
