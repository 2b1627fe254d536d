"""The store over torch's protocol: at our own store_server, and at servers that misbehave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from holdfast.errors import (
    HoldfastError,
    PeerViolation,
    StoreUnavailable,
    TimeoutExpired,
    UsageError,
)
from holdfast.ids import LeaseId
from holdfast.store.c10d import client as c10d_client
from holdfast.store.c10d import line as c10d_line
from holdfast.store.c10d import messages as c10d
from holdfast.store.c10d.client import C10dStore
from holdfast.store.c10d.server import C10dServer
from holdfast.store.c10d.space import C10dSpace
from holdfast.store.c10d.wire import RequestParser
from holdfast.store.ops import Entry, Lease, Swap
from tests.unit.store.c10d.peers import LOOPBACK, WITHIN_S, Peer, ScriptedServer
from tests.waiting import with_more_time

MIN, MAX = -(1 << 63), (1 << 63) - 1


@pytest.fixture
def store_server() -> Iterator[C10dServer]:
    with C10dServer(LOOPBACK) as store_server:
        yield store_server


@pytest.fixture
def store(store_server: C10dServer) -> Iterator[C10dStore]:
    with C10dStore(store_server.address) as store:
        yield store


class Server:
    """A server that answers as a space does, but wakes no client; `change` may say something else.

    `change` gets each request and the bytes of the right answer, and returns those that are sent;
    None hangs up.
    """

    def __init__(
        self, change: Callable[[c10d.Request, bytes], bytes | None] = lambda _, reply: reply
    ) -> None:
        self.asked: list[c10d.Request] = []
        self._space = C10dSpace()
        self._change = change
        self._lock = threading.Lock()
        self._numbers = count()

    def __call__(self, sock: socket.socket) -> None:
        parser, number = RequestParser(), next(self._numbers)
        while data := sock.recv(1 << 16):
            parser.feed(data)
            while (request := parser.next()) is not None:
                with self._lock:
                    self.asked.append(request)
                    replies = self._space.handle(number, request)
                own = b"".join(reply for to, reply in replies if to == number)
                reply = self._change(request, own)
                if reply is None:
                    return
                sock.sendall(reply)


# Reading and writing.


def test_nothing_is_connected_before_the_first_call(store_server: C10dServer) -> None:
    store = C10dStore(store_server.address)
    assert store.endpoint == f"c10d://{store_server.address}"
    assert repr(store) == f"<C10dStore c10d://{store_server.address}>"
    store.close()
    store.close()
    with pytest.raises(UsageError, match="closed"):
        store.get("k")
    assert not store_server._clients


def test_missing_empty_and_full(store: C10dStore) -> None:
    assert store.get("k") is None
    assert store.set("k", b"") == 0
    assert store.get("k") == b""
    store.set("k", b"v")
    assert store.get_entry("k") == Entry("k", b"v", 0)
    assert store.delete("k") is True
    assert store.delete("k") is False


def test_keys_lie_where_torchs_clients_look(store_server: C10dServer, store: C10dStore) -> None:
    store.set("ключ", b"v")
    with Peer(store_server.address) as peer:
        assert peer.get("/ключ".encode()) == b"v"


def test_several_keys(store: C10dStore) -> None:
    assert store.multi_set({"a": b"1", "b": b"", "c": b"3"}) == 0
    assert store.multi_get(["c", "x", "b", "a", "c"]) == [b"3", None, b"", b"1", b"3"]
    assert store.multi_get([]) == []
    assert store.multi_set({}) == 0


def test_more_keys_than_checks_in_flight(monkeypatch: pytest.MonkeyPatch, store: C10dStore) -> None:
    monkeypatch.setattr(c10d_client, "CHECKS_IN_FLIGHT", 3)
    store.multi_set({f"{n}": b"%d" % n for n in range(0, 10, 2)})
    expected = [None if n % 2 else b"%d" % n for n in range(10)]
    assert store.multi_get([f"{n}" for n in range(10)]) == expected


def test_counting_and_listing_see_only_what_can_be_named(
    store_server: C10dServer, store: C10dStore
) -> None:
    store.multi_set({"b/2": b"2", "a": b"", "b/1": b"1"})
    with Peer(store_server.address) as peer:
        peer.say(c10d.Set(b"bare", b""), c10d.Set(b"/\xff", b""), c10d.QueuePush(b"/q", b""))
        peer.sync()
    assert store.count() == 3
    assert store.count("b/") == 2
    assert store.list_prefix() == [
        Entry("a", b"", 0),
        Entry("b/1", b"1", 0),
        Entry("b/2", b"2", 0),
    ]
    assert [entry.key for entry in store.list_prefix("b/")] == ["b/1", "b/2"]
    assert store.list_prefix("c") == []


def test_a_key_that_goes_while_it_is_listed_is_left_out() -> None:
    def change(request: c10d.Request, reply: bytes) -> bytes:
        return b"\x01" if isinstance(request, c10d.Check) else reply

    with ScriptedServer(Server(change)) as server, C10dStore(server.address) as store:
        store.set("k", b"v")
        assert store.list_prefix() == []


def test_a_key_that_goes_while_it_is_read_is_missing() -> None:
    def change(request: c10d.Request, reply: bytes) -> bytes:
        return b"\x00" if isinstance(request, c10d.Check) else reply

    with ScriptedServer(Server(change)) as server, C10dStore(server.address) as store:
        assert store.get("k") is None
        assert store.multi_get(["a", "b"]) == [None, None]


def test_append_returns_the_length(store: C10dStore) -> None:
    assert store.append("k", b"") == 0
    assert store.append("k", b"ab") == 2
    assert store.append("k", b"c") == 3


# Counters.


def test_counters(store: C10dStore) -> None:
    assert [store.add("n", 5), store.add("n", -7), store.add("n", 0)] == [5, -2, -2]


@pytest.mark.parametrize(
    ("value", "amount"), [(MAX, 1), (MIN, -1), (MIN, MIN), (MAX, MAX), (-1, MIN)]
)
def test_a_sum_that_leaves_64_bits_is_taken_back(store: C10dStore, value: int, amount: int) -> None:
    store.set("n", b"%d" % value)
    with pytest.raises(UsageError, match="would leave 64 bits"):
        store.add("n", amount)
    assert store.get("n") == b"%d" % value


@pytest.mark.parametrize(("value", "amount"), [(MAX, MIN), (MIN, MAX), (0, MIN), (0, MAX)])
def test_a_sum_at_the_edge_is_kept(store: C10dStore, value: int, amount: int) -> None:
    store.set("n", b"%d" % value)
    assert store.add("n", amount) == value + amount


@pytest.mark.parametrize("value", [b"", b"text", b"9" * 30])
def test_what_is_no_number_is_a_usage_error(store: C10dStore, value: bytes) -> None:
    store.set("n", value)
    with pytest.raises(UsageError, match="which is no 64-bit integer"):
        store.add("n", 1)
    assert store.get("n") == value


# Comparing.


@pytest.mark.parametrize(
    ("stored", "expected", "desired", "swap"),
    [
        (None, None, b"d", Swap(True, b"d", 0)),
        (None, None, b"", Swap(True, b"", 0)),
        (None, b"e", b"d", Swap(False, None, 0)),
        (None, b"e", b"e", Swap(False, None, 0)),
        (b"s", None, b"d", Swap(False, b"s", 0)),
        (b"s", None, b"s", Swap(False, b"s", 0)),
        (b"", None, b"d", Swap(False, b"", 0)),
        (b"s", b"e", b"d", Swap(False, b"s", 0)),
        (b"s", b"s", b"d", Swap(True, b"d", 0)),
        (b"s", b"s", b"s", Swap(True, b"s", 0)),
        (b"s", b"s", b"", Swap(True, b"", 0)),
        (b"s", b"e", b"s", Swap(False, b"s", 0)),
    ],
)
def test_compare_set(
    store: C10dStore, stored: bytes | None, expected: bytes | None, desired: bytes, swap: Swap
) -> None:
    if stored is not None:
        store.set("k", stored)
    assert store.compare_set("k", expected, desired) == swap
    assert store.get("k") == swap.value


@pytest.mark.parametrize(
    ("answer", "swap"),
    [(b"e", Swap(False, None, 0)), (b"x", Swap(False, b"x", 0)), (b"d", Swap(True, b"d", 0))],
)
def test_compare_set_when_the_key_changes_after_the_first_look(answer: bytes, swap: Swap) -> None:
    def change(request: c10d.Request, reply: bytes) -> bytes:
        if isinstance(request, c10d.CompareSet):
            return len(answer).to_bytes(8, "little") + answer
        return reply

    with ScriptedServer(Server(change)) as server, C10dStore(server.address) as store:
        store.set("k", b"e")
        assert store.compare_set("k", b"e", b"d") == swap


# Waiting.


def test_a_wait_returns_what_is_there(store: C10dStore) -> None:
    store.multi_set({"a": b"1", "b": b""})
    assert store.wait(["b", "a", "b"]) == [b"", b"1", b""]
    assert store.wait([]) == []
    assert store.wait(["a"], timeout=0) == [b"1"]


def test_waits_do_not_hold_up_other_calls(store_server: C10dServer, store: C10dStore) -> None:
    found: list[list[bytes]] = []
    keys = [[f"k{n}", "last"] for n in range(4)]
    waiters = [
        threading.Thread(target=lambda some=some: found.append(store.wait(some))) for some in keys
    ]
    for waiter in waiters:
        waiter.start()
    for n in range(4):
        store.set(f"k{n}", b"%d" % n)
    assert store.get("last") is None
    store.set("last", b"!")
    for waiter in waiters:
        waiter.join(WITHIN_S)
    assert sorted(found) == [[b"%d" % n, b"!"] for n in range(4)]
    # One line for the calls, one kept for the next wait.
    store.get("last")
    assert len(store._lines._idle) == 2


def test_a_wait_that_expires_says_what_was_missing(
    store_server: C10dServer, store: C10dStore
) -> None:
    store.set("there", b"")
    with pytest.raises(TimeoutExpired, match="'gone'") as caught:
        store.wait(["there", "gone"], timeout=0.5)
    assert caught.value.waiting_for == ("gone",)
    assert store._lines._spare[0].line is not None  # it was cancelled in order, not cut off
    with pytest.raises(TimeoutExpired) as caught:
        store.wait(["there", "gone"], timeout=0)
    assert caught.value.waiting_for == ("gone",)
    store.set("gone", b"")
    assert store.wait(["there", "gone"]) == [b"", b""]
    assert not store_server._space._waits


def test_a_wait_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d_client, "WAIT_SLICE_S", 0.01)
    server = Server()
    with ScriptedServer(server) as listener, C10dStore(listener.address) as store:

        def wait_in_vain(seconds: float) -> None:
            server.asked.clear()
            with pytest.raises(TimeoutExpired):
                store.wait(["k"], timeout=seconds)
            assert server.asked.count(c10d.Wait((b"/k",))) > 2

        with_more_time(wait_in_vain, 0.5)
        # This server wakes no client; the next renewal finds the key.
        waiter = threading.Thread(target=lambda: found.extend(store.wait(["k"])))
        found: list[bytes] = []
        waiter.start()
        store.set("k", b"v")
        waiter.join(WITHIN_S)
        assert found == [b"v"]


def test_an_answer_that_crosses_the_cancelling_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d_client, "WAIT_SLICE_S", 0.01)

    def change(request: c10d.Request, reply: bytes) -> bytes:
        match request:
            case c10d.Wait():
                return b""
            case c10d.CancelWait():
                return b"\x00\x01"
            case _:
                return reply

    with ScriptedServer(Server(change)) as server, C10dStore(server.address) as store:
        store.set("k", b"v")
        assert store.wait(["k"]) == [b"v"]


@pytest.mark.parametrize(
    ("waiting", "cancelling"),
    [(b"\x01", b""), (b"\x07", b""), (b"", b"\x00\x00"), (b"", b"\x02\x02")],
)
def test_a_wait_that_is_answered_wrongly_is_a_violation(
    monkeypatch: pytest.MonkeyPatch, waiting: bytes, cancelling: bytes
) -> None:
    # What is answered at once must not be cancelled before, though the answer takes its time.
    monkeypatch.setattr(c10d_client, "WAIT_SLICE_S", WITHIN_S if waiting else 0.01)

    def change(request: c10d.Request, reply: bytes) -> bytes:
        match request:
            case c10d.Wait():
                return waiting
            case c10d.CancelWait():
                return cancelling
            case _:
                return reply

    with ScriptedServer(Server(change)) as server, C10dStore(server.address) as store:
        with pytest.raises(PeerViolation, match="wait"):
            store.wait(["k"])
        store.set("k", b"")
        assert store.get("k") == b""


def only_pings(request: c10d.Request, reply: bytes) -> bytes:
    return reply if isinstance(request, c10d.Ping) else b""


def test_a_server_that_falls_silent_ends_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d_client, "WAIT_SLICE_S", 0.01)
    monkeypatch.setattr(c10d_client, "REPLY_WITHIN_S", 0.05)
    with ScriptedServer(Server(only_pings)) as server, C10dStore(server.address) as store:
        with pytest.raises(StoreUnavailable, match="silent"):
            store.wait(["k"], timeout=None)
        with pytest.raises(StoreUnavailable, match="silent"):
            store.get("k", timeout=None)


def test_cl1_a_wait_that_expires_at_a_silent_server_misses_every_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(c10d_client, "GRACE_S", 0.05)
    with ScriptedServer(Server(only_pings)) as server, C10dStore(server.address) as store:
        with pytest.raises(TimeoutExpired) as caught:
            store.get("k", timeout=0.5)
        with pytest.raises(TimeoutExpired) as caught:
            store.wait(["k", "x"], timeout=0.5)
        assert caught.value.waiting_for == ("k", "x")


def test_a_wait_goes_on_over_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [2]

    def change(request: c10d.Request, reply: bytes) -> bytes | None:
        if isinstance(request, c10d.Wait) and left[0]:
            left[0] -= 1
            return None
        return reply

    with ScriptedServer(Server(change)) as server, C10dStore(server.address) as store:
        store.set("k", b"v")
        assert store.wait(["k"]) == [b"v"]


def test_a_queue_of_torch_is_no_key(store_server: C10dServer, store: C10dStore) -> None:
    with Peer(store_server.address) as peer:
        peer.say(c10d.QueuePush(b"/q", b"x"))
        peer.sync()
    assert store.get("q") is None
    with pytest.raises(TimeoutExpired) as caught:
        store.wait(["q"], timeout=0.5)
    assert caught.value.waiting_for == ("q",)


def test_closing_ends_a_wait(store_server: C10dServer) -> None:
    store = C10dStore(store_server.address)
    errors: list[HoldfastError] = []

    def wait() -> None:
        try:
            store.wait(["k"], timeout=None)
        except UsageError as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    with Peer(store_server.address) as peer:
        while not store_server._space._waits:  # a busy peer is the clock
            peer.sync()
    store.close()
    waiter.join(WITHIN_S)
    assert "closed" in str(errors[0])


# Failing.


def dies_on(kind: type[c10d.Request]) -> Server:
    def change(request: c10d.Request, reply: bytes) -> bytes | None:
        return None if isinstance(request, kind) else reply

    return Server(change)


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (c10d.Set, lambda store: store.set("k", b"v")),
        (c10d.MultiSet, lambda store: store.multi_set({"k": b"v"})),
        (c10d.Add, lambda store: store.add("n", 1)),
        (c10d.CompareSet, lambda store: store.compare_set("k", None, b"v")),
        (c10d.Delete, lambda store: store.delete("k")),
        (c10d.Append, lambda store: store.append("k", b"v")),
    ],
)
def test_a_write_that_fails_midway_may_have_happened_and_is_not_repeated(
    kind: type[c10d.Request], call: Callable[[C10dStore], object]
) -> None:
    server = dies_on(kind)
    with ScriptedServer(server) as listener, C10dStore(listener.address) as store:
        with pytest.raises(StoreUnavailable) as caught:
            call(store)
        assert caught.value.maybe_applied
        assert sum(isinstance(request, kind) for request in server.asked) == 1
        assert store.count() >= 0  # the store goes on


def test_an_append_whose_length_cannot_be_read_has_happened() -> None:
    with (
        ScriptedServer(dies_on(c10d.Check)) as server,
        C10dStore(server.address) as store,
        pytest.raises(StoreUnavailable) as caught,
    ):
        store.append("k", b"v")
    assert caught.value.maybe_applied


def test_an_add_whose_server_died_is_not_blamed_on_the_counter() -> None:
    def change(request: c10d.Request, reply: bytes) -> bytes | None:
        return None if isinstance(request, c10d.Add | c10d.Check) else reply

    with ScriptedServer(Server(change)) as server, C10dStore(server.address) as store:
        with pytest.raises(StoreUnavailable) as caught:
            store.add("n", 1)
        assert caught.value.maybe_applied


def test_a_write_that_cannot_connect_has_not_happened() -> None:
    with socket.create_server(LOOPBACK) as free:
        address = LOOPBACK._replace(port=free.getsockname()[1])
    with C10dStore(address) as store, pytest.raises(StoreUnavailable) as caught:
        store.add("n", 1, timeout=0.5)
    assert not caught.value.maybe_applied


def test_a_read_survives_lost_connections(store_server: C10dServer, store: C10dStore) -> None:
    store.set("k", b"v")
    line = store._shared.line
    assert line is not None
    line.wake()
    assert store.get("k") == b"v"


def test_a_wrong_proof_is_a_violation() -> None:
    def change(request: c10d.Request, reply: bytes) -> bytes:
        return b"\0\0\0\0" if request == c10d.Ping(c10d_client.PROOF) else reply

    with ScriptedServer(Server(change)) as server, C10dStore(server.address) as store:
        with pytest.raises(PeerViolation, match="ping"):
            store.set("k", b"v")
        assert store.get("k") == b"v"


def test_an_over_long_answer_is_a_violation() -> None:
    def change(request: c10d.Request, reply: bytes) -> bytes:
        return b"\xff" * 8 if isinstance(request, c10d.MultiGet) else reply

    with ScriptedServer(Server(change)) as server, C10dStore(server.address) as store:
        store.set("k", b"v")
        with pytest.raises(PeerViolation, match="announced"):
            store.get("k")


def test_cl1_a_silent_server_hangs_no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d_line, "HANDSHAKE_WITHIN_S", 0.05)

    def serve(sock: socket.socket) -> None:
        while sock.recv(1 << 16):
            pass

    with ScriptedServer(serve) as server, C10dStore(server.address) as store:
        with pytest.raises(StoreUnavailable) as caught:
            store.set("k", b"v", timeout=0.5)
        assert not caught.value.maybe_applied


# What torch's protocol cannot say.


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda store: store.grant_lease(1), "no leases"),
        (lambda store: store.keep_lease(Lease(LeaseId(1), 1)), "no leases"),
        (lambda store: store.revoke_lease(Lease(LeaseId(1), 1)), "no leases"),
        (lambda store: store.set("k", b"", lease=Lease(LeaseId(1), 1)), "no leases"),
        (lambda store: store.multi_set({"k": b""}, lease=Lease(LeaseId(1), 1)), "no leases"),
        (
            lambda store: store.compare_set("k", None, b"", lease=Lease(LeaseId(1), 1)),
            "no leases",
        ),
        (lambda store: store.watch("k"), "no watches"),
        (lambda store: store.compare_set("k", b"v", None), "no compare_set to absence"),
        (lambda store: store.compare_set("k", b"", b"v"), "no compare_set from an empty"),
        (lambda store: store.set("k" * 8192, b""), "at most 8191"),
        (lambda store: store.wait(["k" * 8192]), "at most 8191"),
    ],
)
def test_what_the_protocol_cannot_say_is_refused_in_one_line(
    store: C10dStore, call: Callable[[C10dStore], object], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        call(store)
    assert "\n" not in str(caught.value)
    assert store._shared.line is None  # before anything was sent


def test_the_longest_key_is_taken(store: C10dStore) -> None:
    store.set("k" * 8191, b"v")
    assert store.get("k" * 8191) == b"v"
