"""Writes happen exactly once, whatever gets lost (EW-1 to EW-4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.clock import Deadline
from holdfast.errors import Fenced, LeaseLost, StoreUnavailable
from holdfast.net.address import Address
from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.etcd.v3.gateway import kvs_of, range_op
from holdfast.store.etcd.v3.lease import end_once
from holdfast.store.etcd.v3.store import EtcdStore
from holdfast.store.etcd.v3.writer import MARKER_TTL_S
from holdfast.store.fenced import FencedStore
from holdfast.store.ops import Swap
from holdfast.store.store import Store
from holdfast.testing.clock import ManualClock
from tests.unit.store.etcd.proxy import Fate, Proxy
from tests.waiting import with_more_time

TXN = "/v3/kv/txn"
TIMEOUT_S = 30.0


@pytest.fixture
def store(proxy: Proxy, prefix: str) -> Iterator[EtcdStore]:
    with EtcdStore([proxy.address], prefix) as made:
        made.set("warm", b"up")  # the lane has its marker
        yield made


@pytest.fixture
def direct(etcd_server: LocalEtcdServer, prefix: str) -> Iterator[EtcdStore]:
    with EtcdStore(etcd_server.addresses, prefix) as made:
        yield made


def markers(store: EtcdStore) -> list[bytes]:
    """Return what is in the markers of this store's lanes."""
    with store._client.lane() as lane:
        op = range_op(store._writer._prefix, store._writer._prefix + b"\xff")
        reply = store._gateway.read(lane, op, Deadline.after(TIMEOUT_S), "test")
        return [kv.value for kv in kvs_of(reply)]


WRITES: list[tuple[str, Callable[[Store], object], object, dict[str, bytes]]] = [
    ("set", lambda s: s.set("k", b"v") > 0, True, {"k": b"v"}),
    ("multi_set", lambda s: s.multi_set({"k": b"1", "m": b"2"}) > 0, True, {"k": b"1", "m": b"2"}),
    ("add", lambda s: s.add("n", 3), 8, {"n": b"8"}),
    ("append", lambda s: s.append("log", b"b"), 2, {"log": b"ab"}),
    ("create", lambda s: s.compare_set("c", None, b"v").ok, True, {"c": b"v"}),
    ("swap", lambda s: s.compare_set("n", b"5", b"6").ok, True, {"n": b"6"}),
    ("take", lambda s: s.compare_set("n", b"5", None), Swap(True, None, 0), {}),
    ("delete", lambda s: s.delete("n"), True, {}),
]
each_write = pytest.mark.parametrize(
    ("write", "result", "after"), [pytest.param(*case[1:], id=case[0]) for case in WRITES]
)


@each_write
@pytest.mark.parametrize(
    "fates",
    [
        (Fate.LOSE_REPLY,),
        (Fate.LOSE_REQUEST,),
        (Fate.LOSE_REPLY, Fate.LOSE_REPLY, Fate.LOSE_REPLY),
        (Fate.LOSE_REQUEST, Fate.LOSE_REPLY, Fate.LOSE_REQUEST),
    ],
    ids=["reply", "request", "three replies", "some of both"],
)
def test_a_write_whose_answer_is_lost_happens_once(
    store: EtcdStore,
    direct: EtcdStore,
    proxy: Proxy,
    fates: tuple[Fate, ...],
    write: Callable[[Store], object],
    result: object,
    after: dict[str, bytes],
) -> None:
    direct.multi_set({"n": b"5", "log": b"a"})
    before = {entry.key: entry.revision for entry in direct.list_prefix()}
    proxy.next(TXN, *fates)
    assert write(store) == result
    changed = {e.key: e.value for e in direct.list_prefix() if e.revision != before.get(e.key)}
    assert changed == after


def test_the_revision_of_a_write_whose_answer_was_lost_is_its_own(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    proxy.next(TXN, Fate.LOSE_REPLY)
    revision = store.set("k", b"v")
    entry = direct.get_entry("k")
    assert entry is not None
    assert entry.revision == revision


def test_another_write_between_the_attempts_is_not_undone(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    """The retry of a set that was performed must not write over what came after it."""
    watch = direct.watch("k")
    proxy.next(TXN, Fate.LOSE_REPLY, *[Fate.LOSE_REQUEST] * 5)
    with watch, ThreadPoolExecutor() as pool:
        writing = pool.submit(store.set, "k", b"mine")
        assert watch.next(TIMEOUT_S).value == b"mine"
        direct.set("k", b"theirs")
        writing.result(TIMEOUT_S)
    assert direct.get("k") == b"theirs"


def test_a_delayed_attempt_does_not_come_true_after_its_retry(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    proxy.next(TXN, Fate.DELAY)
    assert store.add("n") == 1
    assert proxy.release() == [200]
    assert direct.get("n") == b"1"
    assert store.add("n") == 2


def test_a_delayed_attempt_does_not_come_true_after_the_answer_no(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    """EW-3: the condition is false when the retry arrives, and true when the first attempt does."""
    direct.set("k", b"b")
    proxy.next(TXN, Fate.DELAY)
    swap = store.compare_set("k", b"a", b"c")
    assert not swap.ok
    assert swap.value == b"b"
    direct.set("k", b"a")
    assert proxy.release() == [200]
    assert direct.get("k") == b"a"


@each_write
@pytest.mark.parametrize("fate", [Fate.LOSE_REPLY, Fate.LOSE_REQUEST])
def test_a_guarded_write_whose_answer_is_lost_happens_once(
    store: EtcdStore,
    direct: EtcdStore,
    proxy: Proxy,
    fate: Fate,
    write: Callable[[Store], object],
    result: object,
    after: dict[str, bytes],
) -> None:
    direct.multi_set({"n": b"5", "log": b"a", "g": b"1"})
    before = {entry.key: entry.revision for entry in direct.list_prefix()}
    proxy.next(TXN, fate, Fate.PASS, fate)  # the reading of `add` and `append`, and the write
    assert write(FencedStore(store, "g", b"1")) == result
    changed = {e.key: e.value for e in direct.list_prefix() if e.revision != before.get(e.key)}
    assert changed == after


def test_a_write_that_was_performed_is_not_called_fenced(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    """EW-2: the guard changes after the write, and before its answer is found."""
    direct.set("g", b"1")
    proxy.next(TXN, Fate.LOSE_REPLY, *[Fate.LOSE_REQUEST] * 5)
    with direct.watch("k") as watch, ThreadPoolExecutor() as pool:
        writing = pool.submit(FencedStore(store, "g", b"1").set, "k", b"v")
        revision = watch.next(TIMEOUT_S).revision
        direct.set("g", b"2")
        assert writing.result(TIMEOUT_S) == revision


def test_a_delayed_attempt_does_not_come_true_after_it_was_fenced(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    """EW-3: the guard does not hold when the retry arrives, and does when the first one does."""
    direct.set("g", b"2")
    proxy.next(TXN, Fate.DELAY)
    with pytest.raises(Fenced):
        FencedStore(store, "g", b"1").set("k", b"v")
    direct.set("g", b"1")
    assert proxy.release() == [200]
    assert direct.get("k") is None
    assert b"fenced" in markers(store)
    assert FencedStore(store, "g", b"1").set("k", b"v") > 0


@pytest.mark.parametrize("fate", [Fate.LOSE_REPLY, Fate.LOSE_REQUEST])
def test_a_fence_that_is_lost_is_put_again(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy, prefix: str, fate: Fate
) -> None:
    proxy.next(TXN, Fate.DELAY, Fate.PASS, fate)
    assert store.delete("missing") is False
    assert proxy.release() == [200]
    assert b"fenced" in markers(store)
    store.set("k", b"v")
    assert markers(store) == [b"wrote"]


def test_at_the_deadline_the_error_says_that_it_may_have_happened(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    proxy.next(TXN, Fate.LOSE_REPLY, *[Fate.LOSE_REQUEST] * 1000)

    def give_up(seconds: float) -> None:
        with pytest.raises(StoreUnavailable) as caught:
            store.set("k", b"v", timeout=seconds)
        assert caught.value.maybe_applied

    with_more_time(give_up)
    assert direct.wait(["k"], timeout=TIMEOUT_S) == [b"v"]


def test_a_write_that_never_left_was_not_applied(prefix: str, unused: Address) -> None:
    with EtcdStore([unused], prefix) as store, pytest.raises(StoreUnavailable) as caught:
        store.set("k", b"v", timeout=0.2)
    assert not caught.value.maybe_applied
    assert caught.value.address == str(unused)


def test_a_lane_that_gave_up_writes_again(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy, prefix: str
) -> None:
    """EW-4: what it gave up may still come true, and the next write must be told from it."""
    proxy.next(TXN, Fate.DELAY, *[Fate.LOSE_REQUEST] * 1000)

    def give_up(seconds: float) -> None:
        with pytest.raises(StoreUnavailable) as caught:
            store.add("n", timeout=seconds)
        assert caught.value.maybe_applied

    with_more_time(give_up)
    proxy.pass_all()
    assert store.set("k", b"v") > 0
    proxy.release()
    assert direct.get("n") == b"1"
    assert store.add("n") == 2


def test_markers_are_never_shown(store: EtcdStore, direct: EtcdStore, prefix: str) -> None:
    assert markers(store) == [b"wrote"]
    assert [entry.key for entry in direct.list_prefix()] == ["warm"]
    assert direct.count() == 1
    with direct.watch("", prefix=True) as watch:
        assert watch.next(TIMEOUT_S).key == "warm"
        store.set("k", b"v")
        assert watch.next(TIMEOUT_S).key == "k"


def test_closing_removes_the_markers(store: EtcdStore, direct: EtcdStore) -> None:
    assert markers(store) == [b"wrote"]
    store.close()
    direct._writer = store._writer
    assert markers(direct) == []
    assert direct.get("warm") == b"up"


def test_a_marker_that_expired_is_replaced(
    store: EtcdStore, direct: EtcdStore, prefix: str
) -> None:
    with store._client.lane() as lane:
        assert lane.marker is not None
        end_once(store._gateway, lane, lane.marker.lease, Deadline.after(TIMEOUT_S))
    assert markers(store) == []
    assert store.add("n") == 1
    assert markers(store) == [b"wrote"]


def test_a_marker_that_expired_while_the_answer_was_lost(
    store: EtcdStore, direct: EtcdStore, proxy: Proxy
) -> None:
    with store._client.lane() as lane:
        assert lane.marker is not None
        lease = lane.marker.lease
    proxy.next(TXN, Fate.LOSE_REPLY, *[Fate.LOSE_REQUEST] * 5)
    with direct.watch("k") as watch, ThreadPoolExecutor() as pool:
        writing = pool.submit(store.set, "k", b"v")
        watch.next(TIMEOUT_S)
        with direct._client.lane() as lane:
            end_once(direct._gateway, lane, lease, Deadline.after(TIMEOUT_S))
        with pytest.raises(StoreUnavailable, match="expired") as caught:
            writing.result(TIMEOUT_S)
    assert caught.value.maybe_applied
    assert store.set("k", b"w") > 0


def test_a_marker_is_kept_alive_by_use(
    etcd_server: LocalEtcdServer, proxy: Proxy, prefix: str
) -> None:
    clock = ManualClock()
    with EtcdStore([proxy.address], prefix, clock=clock) as store:
        store.set("k", b"1", timeout=None)
        clock.advance(MARKER_TTL_S / 2)
        proxy.requests.clear()
        store.set("k", b"2", timeout=None)
        store.set("k", b"3", timeout=None)
    paths = [request.split(b" ")[1] for request in proxy.requests]
    assert paths.count(b"/v3/lease/keepalive") == 1


def test_the_end_of_the_writers_own_lease_is_told_from_the_markers(store: EtcdStore) -> None:
    lease = store.grant_lease(60)
    store.revoke_lease(lease)
    with pytest.raises(LeaseLost, match=str(lease.id)):
        store.set("k", b"v", lease=lease)
    with store._client.lane() as lane:
        assert lane.marker is not None
        end_once(store._gateway, lane, lane.marker.lease, Deadline.after(TIMEOUT_S))
    alive = store.grant_lease(60)
    assert store.set("k", b"v", lease=alive) > 0
