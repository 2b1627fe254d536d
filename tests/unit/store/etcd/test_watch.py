"""A watch reads again what its source did not tell, and never goes back in time."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import StoreUnavailable, TimeoutExpired, UsageError
from holdfast.net.address import Address
from holdfast.store.etcd import watch as etcd_watch
from holdfast.store.etcd.http.cluster import EtcdClient
from holdfast.store.etcd.http.connection import Lost, NoAnswer
from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.etcd.v3.store import EtcdStore
from holdfast.store.etcd.watch import EtcdWatch
from holdfast.store.ops import Change, Entry
from tests.unit.store.etcd.proxy import Proxy

TIMEOUT_S = 30.0


class ScriptedSource:
    """A source that gives what the test tells it to."""

    def __init__(self) -> None:
        self.batches: list[list[Change] | Exception] = []
        self.opened: list[int] = []
        self.is_open = False
        self.closed = threading.Event()

    def open(self, revision: int, deadline: Deadline) -> None:
        self.opened.append(revision)
        self.is_open = True

    def ready(self) -> bool:
        return self.is_open and bool(self.batches)

    def changes(self, deadline: Deadline) -> list[Change]:
        if not self.batches:
            raise NoAnswer("nothing")
        batch = self.batches.pop(0)
        if isinstance(batch, Exception):
            raise batch
        return batch

    def shut(self) -> None:
        self.closed.set()

    def close(self) -> None:
        self.is_open = False


class Space:
    """What a snapshot finds."""

    def __init__(self) -> None:
        self.revision = 1
        self.entries: dict[str, Entry] = {}
        self.failing = False
        self.reads = 0

    def put(self, key: str, value: bytes, revision: int) -> None:
        self.revision = revision
        self.entries[key] = Entry(key, value, revision)

    def drop(self, key: str, revision: int) -> None:
        self.revision = revision
        del self.entries[key]

    def snapshot(self, deadline: Deadline) -> tuple[int, list[Entry]]:
        self.reads += 1
        if self.failing:
            raise StoreUnavailable("away")
        return self.revision, sorted(self.entries.values())


class Setup:
    def __init__(self) -> None:
        self.space = Space()
        self.source = ScriptedSource()
        client = EtcdClient("etcd://test", [Address("127.0.0.1", 1)], random.Random(0))
        self.forgotten: list[EtcdWatch] = []
        self.watch = EtcdWatch(
            client, "", True, self.source, self.space.snapshot, self.forgotten.append
        )

    def start(self) -> None:
        self.watch.start(Deadline.after(TIMEOUT_S))

    def rest(self) -> list[Change]:
        """Return everything that the watch has to tell now."""
        found = []
        while True:
            try:
                found.append(self.watch.next(timeout=0))
            except TimeoutExpired:
                return found


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_it_begins_with_what_is_there_and_follows_from_the_next_revision(setup: Setup) -> None:
    setup.space.put("k2", b"2", 7)
    setup.space.put("k1", b"1", 5)
    setup.start()
    assert setup.rest() == [Change("k1", b"1", 5), Change("k2", b"2", 7)]
    assert setup.source.opened == [6]


def test_changes_are_merged_into_the_newest_of_each_key(setup: Setup) -> None:
    setup.start()
    setup.source.batches = [
        [Change("a", b"1", 2), Change("b", b"1", 3)],
        [Change("a", b"2", 4)],
        [Change("b", None, 5)],
    ]
    assert setup.rest() == [Change("a", b"2", 4), Change("b", None, 5)]


def test_nothing_older_is_told_after_something_newer(setup: Setup) -> None:
    setup.space.put("k", b"5", 5)
    setup.start()
    setup.source.batches = [[Change("k", b"4", 4), Change("k", None, 5)]]
    assert setup.rest() == [Change("k", b"5", 5)]


def test_a_broken_source_leads_to_reading_again(setup: Setup) -> None:
    for key in ("same", "changed", "gone"):
        setup.space.put(key, b"1", 2)
    setup.start()
    assert len(setup.rest()) == 3
    setup.space.put("changed", b"2", 5)
    setup.space.put("new", b"1", 4)
    setup.space.drop("gone", 6)
    setup.source.batches = [Lost("broken")]
    found = [setup.watch.next(TIMEOUT_S) for _ in range(3)]
    assert found == [Change("gone", None, 6), Change("new", b"1", 4), Change("changed", b"2", 5)]
    assert setup.source.opened == [3, 7]
    setup.source.batches = [[Change("gone", None, 5), Change("gone", b"again", 7)]]
    assert setup.rest() == [Change("gone", b"again", 7)]


def test_polling_without_time_gets_a_new_source(setup: Setup) -> None:
    setup.start()
    setup.source.batches = [Lost("broken")]
    setup.space.put("k", b"v", 3)
    polls = [setup.rest() for _ in range(3)]
    assert [change for poll in polls for change in poll] == [Change("k", b"v", 3)]


def test_a_silent_source_is_not_trusted_for_long(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_watch, "REREAD_S", 0.0)
    setup.start()
    setup.space.put("k", b"v", 3)
    assert setup.watch.next(TIMEOUT_S) == Change("k", b"v", 3)
    assert setup.source.opened == [2, 4]  # it missed something, so another one is made


def test_while_the_store_is_away_it_waits_without_storming_it(setup: Setup) -> None:
    setup.start()
    setup.space.failing = True
    setup.source.batches = [Lost("broken")]
    reads = setup.space.reads
    with pytest.raises(TimeoutExpired, match="away in time") as caught:
        setup.watch.next(timeout=0.3)
    assert caught.value.waiting_for == ("",)
    assert setup.space.reads - reads < 10
    setup.space.failing = False
    setup.space.put("k", b"v", 3)
    assert setup.watch.next(TIMEOUT_S) == Change("k", b"v", 3)


def test_reading_again_gets_more_time_when_it_takes_more(setup: Setup) -> None:
    """In turns, so that closing the watch need not wait for a reading that never ends."""
    setup.start()
    given: list[float] = []

    def slow(deadline: Deadline) -> tuple[int, list[Entry]]:
        given.append(deadline.remaining() or 0.0)
        if len(given) < 4:
            raise TimeoutExpired("slow")
        return 9, [Entry("k", b"v", 9)]

    setup.watch._snapshot = slow
    setup.source.batches = [Lost("broken")]
    assert setup.watch.next() == Change("k", b"v", 9)
    limits = [0, 1, 2, 4, 8]
    for seconds, (before, limit) in zip(given, itertools.pairwise(limits), strict=True):
        assert before < seconds <= limit


def test_opening_fails_as_an_operation_does(setup: Setup) -> None:
    setup.space.failing = True
    with pytest.raises(StoreUnavailable):
        setup.start()


def test_closing_forgets_the_watch_and_lets_the_source_go(setup: Setup) -> None:
    setup.start()
    setup.watch.close()
    assert setup.forgotten == [setup.watch]
    assert not setup.source.is_open
    with pytest.raises(UsageError, match="closed"):
        setup.watch.next(timeout=0)


def test_a_second_reader_waits_its_turn_until_its_deadline(setup: Setup) -> None:
    setup.start()
    with setup.watch._reading, pytest.raises(TimeoutExpired, match="another thread"):
        setup.watch.next(timeout=0.01)


# On a real etcd.


@pytest.fixture
def store(etcd_server: LocalEtcdServer, prefix: str) -> Iterator[EtcdStore]:
    with EtcdStore(etcd_server.addresses, prefix) as made:
        yield made


def test_a_watch_survives_the_loss_of_its_connection(store: EtcdStore, proxy: Proxy) -> None:
    with store.watch("k") as watch:
        for number in range(5):
            store.set("k", b"%d" % number)
            assert watch.next(TIMEOUT_S).value == b"%d" % number
            assert isinstance(watch, EtcdWatch)
            watch._source.shut()


def test_a_watch_survives_a_restart_of_etcd_and_a_compaction() -> None:
    with LocalEtcdServer() as server, EtcdStore(server.addresses) as store:
        store.multi_set({"gone": b"", "k": b"1"})
        with store.watch("", prefix=True) as watch:
            assert {watch.next(TIMEOUT_S).key for _ in range(2)} == {"gone", "k"}
            server.kill(0)
            server.restart(0)
            store.delete("gone")
            revision = store.set("k", b"2")
            with store._client.lane() as lane:
                body = {"revision": str(revision)}
                deadline = Deadline.after(TIMEOUT_S)
                store._gateway.ask(lane, "/v3/kv/compaction", body, deadline, "compacting")
            seen = {(change.key, change.value) for change in (watch.next(TIMEOUT_S) for _ in "12")}
            assert seen == {("gone", None), ("k", b"2")}


def test_closing_a_watch_wakes_a_reader_of_a_dead_cluster() -> None:
    with LocalEtcdServer() as server, EtcdStore(server.addresses) as store:
        watch = store.watch("k")
        server.kill(0)
        with ThreadPoolExecutor() as pool:
            reading = pool.submit(watch.next)
            started = SYSTEM_CLOCK.monotonic()
            watch.close()
            with pytest.raises(UsageError, match="closed"):
                reading.result(TIMEOUT_S)
            assert SYSTEM_CLOCK.monotonic() - started < TIMEOUT_S
