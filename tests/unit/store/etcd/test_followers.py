"""Waits read first and follow then; closing wakes every thread that follows."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.clock import Deadline
from holdfast.errors import TimeoutExpired, UsageError
from holdfast.net.address import Address
from holdfast.store.etcd.followers import Followers
from holdfast.store.etcd.http.cluster import EtcdClient
from holdfast.store.etcd.http.connection import Lost, NoAnswer
from holdfast.store.ops import Change, Entry

TIMEOUT_S = 30.0
HERE = Entry("k", b"v", 7)


class FakeSource:
    """Gives changes that were prepared; then it waits to be shut, or for its deadline."""

    def __init__(self, *batches: list[Change]) -> None:
        self._batches = list(batches)
        self._over = threading.Event()
        self.opened_at: int | None = None
        self.waiting = threading.Event()
        self.is_open = False

    def open(self, revision: int, deadline: Deadline) -> None:
        self.opened_at, self.is_open = revision, True

    def ready(self) -> bool:
        return bool(self._batches)

    def changes(self, deadline: Deadline) -> list[Change]:
        if self._batches:
            return self._batches.pop(0)
        self.waiting.set()
        if self._over.wait(deadline.remaining()):
            raise Lost("shut")
        raise NoAnswer("nothing came")

    def shut(self) -> None:
        self._over.set()

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def client() -> Iterator[EtcdClient]:
    made = EtcdClient("etcd://test", [Address("127.0.0.1", 1)], random.Random(0))
    yield made
    made.close()


def soon(seconds: float = TIMEOUT_S) -> Deadline:
    return Deadline.after(seconds)


def test_what_is_there_is_not_waited_for(client: EtcdClient) -> None:
    def never(missing: tuple[str, ...]) -> FakeSource:
        raise AssertionError(f"nothing is missing, but {missing} is followed")

    found = Followers(client).wait(("k",), lambda limit: (7, [HERE]), never, soon())
    assert found == (HERE,)


def test_a_wait_follows_what_is_missing_and_then_reads_again(client: EtcdClient) -> None:
    source = FakeSource([Change("k", None, 8), Change("other", b"v", 9)], [Change("k", b"v", 10)])
    answers: list[tuple[int, list[Entry | None]]] = [(7, [HERE, None]), (10, [HERE, HERE])]
    asked: list[tuple[str, ...]] = []

    def follow(missing: tuple[str, ...]) -> FakeSource:
        asked.append(missing)
        return source

    followers = Followers(client)
    found = followers.wait(("a", "k"), lambda limit: answers.pop(0), follow, soon())
    assert found == (HERE, HERE)
    assert asked == [("k",)]
    assert source.opened_at == 8  # right behind what was read
    assert not source.ready()  # a deletion, and another's key, were not enough
    assert not source.is_open
    assert followers._sources == set()


def test_at_the_deadline_the_missing_keys_are_named(client: EtcdClient) -> None:
    with pytest.raises(TimeoutExpired) as caught:
        Followers(client).wait(
            ("a", "k"), lambda limit: (7, [HERE, None]), lambda missing: FakeSource(), soon(0.01)
        )
    assert caught.value.waiting_for == ("k",)


def test_closing_wakes_a_waiting_thread(client: EtcdClient) -> None:
    source = FakeSource()
    followers = Followers(client)
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(
            followers.wait, ("k",), lambda limit: (7, [None]), lambda missing: source, soon()
        )
        assert source.waiting.wait(TIMEOUT_S)
        client.close()
        followers.close()
        with pytest.raises(UsageError, match="closed"):
            task.result(TIMEOUT_S)


def test_closing_ends_the_watches(client: EtcdClient) -> None:
    followers = Followers(client)
    watch = followers.watch("k", False, FakeSource(), lambda limit: (7, [HERE]), soon())
    assert watch.next(TIMEOUT_S) == Change(*HERE)
    client.close()
    followers.close()
    assert followers._watches == set()
    with pytest.raises(UsageError, match="closed"):
        watch.next(TIMEOUT_S)
    with pytest.raises(UsageError, match="closed"):
        followers.watch("k", False, FakeSource(), lambda limit: (7, [HERE]), soon())
