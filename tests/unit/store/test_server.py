"""The server's shell: one thread for all clients, and none can harm the others."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from holdfast.clock import Deadline
from holdfast.errors import LeaseLost, Refused, Step, Unavailable, UsageError
from holdfast.ids import SessionId
from holdfast.net import tcp
from holdfast.net.address import Address
from holdfast.net.frames import encode_frame
from holdfast.net.secret import new_secret
from holdfast.observe.events import (
    ConnectionClosed,
    ConnectionOpened,
    ConnectionRefused,
    ServerStarted,
    ServerStopped,
)
from holdfast.observe.prometheus import render_prometheus
from holdfast.observe.sinks import MemorySink
from holdfast.store import server as server_module
from holdfast.store.messages import (
    KEY_CONTEXT,
    Call,
    Changed,
    Hello,
    Ping,
    Pong,
    Reply,
    WatchOpen,
    decode_from_server,
    encode,
)
from holdfast.store.open import open_store
from holdfast.store.ops import VALUE_BYTES_MAX, Get, Set
from holdfast.store.replica.machine import Replica
from holdfast.store.server import CONGESTED_BYTES, StoreServer
from holdfast.testing.clock import ManualClock
from tests.unit.store.tcp_parts import (
    ANY_PORT,
    LONG_S,
    SECRET,
    dial,
    new_client,
    new_server,
    read_frames,
    say,
)
from tests.waiting import until, with_more_time

IDLE_CLIENTS = 1000


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with new_server() as made:
        yield made


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * IDLE_CLIENTS + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} descriptors are allowed here")
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_thousand_idle_clients_cost_one_thread(server: StoreServer) -> None:
    threads = threading.active_count()
    with ExitStack() as stack:
        idle = [stack.enter_context(new_client(server.address)) for _ in range(IDLE_CLIENTS)]
        assert threading.active_count() == threads
        active = [stack.enter_context(new_client(server.address)) for _ in range(5)]
        with ThreadPoolExecutor(5) as pool:
            list(pool.map(lambda store: [store.add("n") for _ in range(50)], active))
        assert idle[-1].get("n") == b"250"
        with idle[0].watch("n") as watch, idle[1].watch("", prefix=True) as wide:
            assert watch.next(LONG_S).value == wide.next(LONG_S).value == b"250"
            active[0].set("n", b"!")
            assert watch.next(LONG_S).value == wide.next(LONG_S).value == b"!"
        status = server.status()
        assert (status.connections, status.sessions) == (IDLE_CLIENTS + 5, IDLE_CLIENTS + 5)
    until(lambda: server.status().connections == 0)


def test_a_slow_watcher_gets_merged_changes_and_delays_no_other(server: StoreServer) -> None:
    value = bytes(CONGESTED_BYTES // 4)
    with new_client(server.address) as writer, new_client(server.address) as quick:
        slow = dial(server.address)
        say(slow, Hello(SessionId(1), 0, 1), WatchOpen(1, True, ""))
        with quick.watch("", prefix=True) as watch:
            for n in range(200):
                writer.set(f"k{n % 2}", b"%d:" % n + value)
                change = watch.next(LONG_S)
                assert change.value is not None
                assert change.value.startswith(b"%d:" % n)
        newest: dict[str, int] = {}
        told = 0
        for payload in read_frames(slow):
            match decode_from_server(payload):
                case Changed(_, change):
                    assert change.value is not None
                    number = int(change.value.partition(b":")[0])
                    assert number > newest.get(change.key, -1)
                    newest[change.key] = number
                    told += 1
            if newest == {"k0": 198, "k1": 199}:
                break
        assert told < 200
        slow.close()


@pytest.mark.parametrize("broken", [False, True])
def test_ss4_a_client_gets_its_answers_at_its_own_pace(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    value = bytes(VALUE_BYTES_MAX // 2)
    monkeypatch.setattr("holdfast.net.reactor.OUTPUT_BYTES_MAX", 4 * len(value))
    with new_client(server.address) as other:
        other.set("large", value)
        greedy = dial(server.address)
        say(greedy, Hello(SessionId(1), 0, 1))
        frames = read_frames(greedy)
        next(frames)
        calls = [encode(Call(number, 1, Get("large"))) for number in range(1, 41)]
        last = b"\xff" if broken else encode(Ping())
        greedy._socket.sendall(b"".join(encode_frame(each) for each in (*calls, last)))
        for number in range(1, 41):
            answer = decode_from_server(next(frames))
            assert isinstance(answer, Reply)
            assert answer.number == number
            assert len(answer.result) > len(value)
            assert other.add("n") == number  # served meanwhile
            # What is read was performed; what is far from being read was not.
            assert server.status().calls < 1 + number + number + 16
        if broken:
            assert list(frames) == []  # a held violation ends the connection too
        else:
            assert decode_from_server(next(frames)) == Pong()
        greedy.close()


BROKEN = {
    "an unknown kind": b"\xff",
    "an empty frame": b"",
    "an unknown operation": b"\x02" + bytes(16) + b"\xff",
    "a server's message": b"\x16",
}


@pytest.mark.parametrize("greeted", [False, True])
@pytest.mark.parametrize("broken", BROKEN)
def test_ss3_a_client_that_breaks_the_protocol_loses_only_its_connection(
    server: StoreServer, broken: str, greeted: bool
) -> None:
    with new_client(server.address) as other, other.watch("k") as watch:
        rude = dial(server.address)
        if greeted:
            say(rude, Hello(SessionId(1), 0, 1))
        rude.send(BROKEN[broken], Deadline.after(LONG_S))
        list(read_frames(rude))  # it ends
        rude.close()
        other.set("k", b"v")
        assert watch.next(LONG_S).value == b"v"


def test_ss3_what_came_before_a_violation_counts(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.session.SILENCE_S", 1e6)  # no other client wakes the server
    monkeypatch.setattr(server_module, "CONGESTED_BYTES", 16 * VALUE_BYTES_MAX)
    with new_client(server.address) as other, other.watch("k") as watch:
        other.set("large", bytes(VALUE_BYTES_MAX))
        rude = dial(server.address)
        # It leaves answers unread, so its connection cannot be closed at once.
        say(rude, Hello(SessionId(1), 0, 1), *(Call(n, 1, Get("large")) for n in range(4)))
        until(lambda: server.status().calls == 5)
        write = encode_frame(encode(Call(9, 1, Set("k", b"v"))))
        rude._socket.sendall(write + encode_frame(b"\xff"))
        assert watch.next(LONG_S).value == b"v"
        assert server.status().connections == 2  # told before the rude one is gone
        rude.close()


def test_a_frame_over_the_cap_ends_the_connection(server: StoreServer) -> None:
    rude = dial(server.address)
    rude._socket.sendall(b"\xff\xff\xff\xff")
    assert list(read_frames(rude)) == []
    rude.close()
    with new_client(server.address) as other:
        assert other.add("n") == 1


def test_sv3_an_older_connection_of_a_session_is_hung_up(server: StoreServer) -> None:
    older, newer = dial(server.address), dial(server.address)
    say(older, Hello(SessionId(1), 0, 1))
    frames = read_frames(older)
    next(frames)
    say(newer, Hello(SessionId(1), 0, 1))
    assert list(frames) == []
    say(newer, Ping())
    older.close()
    newer.close()


# Leases run on the server's clock.


def test_leases_end_by_the_servers_clock_alone() -> None:
    clock = ManualClock()
    with (
        StoreServer(ANY_PORT, SECRET, clock=clock) as server,
        new_client(server.address) as store,
    ):
        lease = store.grant_lease(10.0)
        store.set("k", b"v", lease=lease)
        clock.advance(9.9)
        assert store.get("k") == b"v"
        assert store.keep_lease(lease) == 10.0
        clock.advance(9.9)
        assert store.get("k") == b"v"
        clock.advance(0.1)
        assert store.get("k") is None
        with pytest.raises(LeaseLost):
            store.keep_lease(lease)


def test_a_lease_ends_though_no_client_sends_anything(server: StoreServer) -> None:
    with new_client(server.address) as store, store.watch("k") as watch:
        store.set("k", b"v", lease=store.grant_lease(3600.0))
        assert watch.next(LONG_S).value == b"v"

        def hurry(seconds: float) -> None:
            store.set("k", b"v", lease=store.grant_lease(seconds))

        with_more_time(hurry, 0.05)  # an earlier end than the one set
        while (change := watch.next(LONG_S)).value is not None:
            pass
        assert change.key == "k"


# Unauthenticated connections.


def test_ss1_a_wrong_secret_is_refused_at_its_step() -> None:
    sink = MemorySink()
    with StoreServer(ANY_PORT, SECRET, sink=sink) as server:
        with pytest.raises(Refused) as caught:
            tcp.connect(server.address, new_secret().key(KEY_CONTEXT), Deadline.after(LONG_S))
        assert caught.value.step is Step.SECRET
        until(lambda: any(isinstance(e, ConnectionRefused) for e in sink.events))
        (refused,) = [e for e in sink.events if isinstance(e, ConnectionRefused)]
        assert refused.step is Step.SECRET
        assert not any(isinstance(e, ConnectionOpened) for e in sink.events)
        assert server.status().connections == 0


def test_ss1_a_frame_without_a_handshake_is_not_parsed(server: StoreServer) -> None:
    with socket.create_connection(server.address) as stranger:
        stranger.sendall(b"\0\0\0\x19\x01" + bytes(24))
        assert stranger.recv(4096) == b""


@pytest.mark.parametrize("proved", [False, True])
def test_ss2_a_silent_peer_is_dropped(proved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def be_silent(seconds: float) -> None:
        monkeypatch.setattr(server_module, "HANDSHAKE_WITHIN_S", seconds)
        with new_server() as server, new_client(server.address) as speaker:
            first = speaker._transport
            if proved:
                silent = dial(server.address)
                assert list(read_frames(silent)) == []
                silent.close()
            else:
                with socket.create_connection(server.address) as stranger:
                    assert stranger.recv(1) == b""
            assert speaker.add("n") == 1  # a client that has sent its first message may be silent
            assert speaker._transport is first

    with_more_time(be_silent)


def test_ss2_the_oldest_unauthenticated_connection_is_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "UNAUTHENTICATED_MAX", 2)
    with new_server() as server, ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(server.address)) for _ in range(3)
        ]
        assert strangers[0].recv(1) == b""
        with new_client(server.address) as store:  # makes the second one go
            assert store.add("n") == 1
        assert strangers[1].recv(1) == b""
        strangers[2].setblocking(False)
        with pytest.raises(BlockingIOError):
            strangers[2].recv(1)


# Beginning and end.


def test_close_ends_everything() -> None:
    threads = threading.active_count()
    server = new_server()
    server.start()
    stranger = socket.create_connection(server.address)
    idle = dial(server.address)
    say(idle, Hello(SessionId(1), 0, 1))
    server.close()
    server.close()
    assert threading.active_count() == threads
    assert stranger.recv(1) == b""
    list(read_frames(idle))
    with pytest.raises(Unavailable):
        dial(server.address)
    stranger.close()
    idle.close()


def test_an_address_in_use_is_refused_and_nothing_is_left(server: StoreServer) -> None:
    threads = threading.active_count()
    second = StoreServer(server.address, SECRET)
    with pytest.raises(UsageError, match="cannot listen"):
        second.start()
    second.close()
    assert threading.active_count() == threads


def test_its_life_is_told_as_events() -> None:
    sink = MemorySink()
    with StoreServer(ANY_PORT, SECRET, sink=sink) as server:
        assert server.endpoint == f"tcp://{server.address}"
        assert isinstance(server.address, Address)
        with new_client(server.address) as store:
            store.add("n")
        until(lambda: any(isinstance(e, ConnectionClosed) for e in sink.events))
    kinds = [type(event) for event in sink.events]
    assert kinds == [ServerStarted, ConnectionOpened, ConnectionClosed, ServerStopped]
    causes = {str(event.cause).partition("/")[0] for event in sink.events}
    assert len(causes) == 1


def test_status_may_be_asked_from_any_thread_at_any_time(server: StoreServer) -> None:
    over = threading.Event()

    def ask() -> int:
        asked = 0
        while not over.is_set():
            server.status()
            asked += 1
        return asked

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        for _ in range(50):
            with new_client(server.address) as store, store.watch("k"):
                pass
        over.set()
        assert asking.result(LONG_S) > 0


def test_its_numbers_can_be_scraped(server: StoreServer) -> None:
    with new_client(server.address) as store:
        store.set("k", b"v")
        with pytest.raises(Refused):
            tcp.connect(server.address, new_secret().key(KEY_CONTEXT), Deadline.after(LONG_S))
        until(lambda: 'outcome="refused"} 1' in render_prometheus(server.metrics()))
        text = render_prometheus(server.metrics())
    assert 'holdfast_store_connections_total{outcome="opened"} 1' in text
    assert "holdfast_store_keys 1" in text


def test_two_versions_apart_are_told_so(server: StoreServer) -> None:
    with socket.create_connection(server.address) as old:
        old.sendall(b"HFST\x63\x00" + bytes(32))
        assert old.recv(4096).startswith(b"HFST")
        assert old.recv(4096) == b""


def test_ss5_a_leader_that_is_closed_hands_over() -> None:
    with ExitStack() as stack:
        first = stack.enter_context(new_server())
        others = [new_server() for _ in range(2)]
        for server in others:
            stack.callback(server.close)
            server.join((first.address,), LONG_S)
        with open_store(f"tcp://{','.join(first.members)}", secret=SECRET) as store:
            store.set("k", b"v")
            first.close()
            machine = first._machine
            assert isinstance(machine, Replica)
            assert not machine.leads  # another member stood for election, because it was told to
            assert store.get("k") == b"v"


def test_a_server_on_all_addresses_is_announced_by_the_machine_s_name() -> None:
    here = socket.gethostname()
    for host in ("0.0.0.0", "::"):
        assert StoreServer(Address(host, 7), SECRET).announced == (here, 7)
    assert StoreServer(Address("10.0.0.1", 7), SECRET).announced == ("10.0.0.1", 7)
