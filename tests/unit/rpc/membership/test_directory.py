"""The addresses of workers: entries that come, go, and come again."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import pytest

from holdfast.clock import Deadline
from holdfast.errors import (
    LeaseLost,
    PeerLost,
    StoreUnavailable,
    TimeoutExpired,
    Unavailable,
    UsageError,
)
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.membership.directory import GRACE_S, LOOK_EVERY_S, Directory
from holdfast.rpc.membership.entry import encode_entry
from holdfast.rpc.wire.worker_info import WorkerInfo
from holdfast.store.memory import MemoryStore
from holdfast.store.ops import Get, ListPrefix, Op
from holdfast.store.prefix import PrefixStore
from holdfast.store.store import Store, Watch
from tests.waiting import until

SOON_S = 20.0
MISMATCH = "world_size {}: {} has world_size {}; all workers of a job need the same"
R = TypeVar("R")


def contact(name: str, number: int, life: str = "", size: int = 0) -> Contact:
    return Contact(WorkerInfo(name, number), life or f"{name}-life", "machine", "unix", "", size)


class World:
    """Workers that share a store."""

    def __init__(self, stack: ExitStack) -> None:
        self.store = MemoryStore()
        self._stack = stack
        self.lost: list[Contact] = []

    def join(
        self,
        name: str,
        number: int,
        life: str = "",
        timeout: float = SOON_S,
        store: Store | None = None,
        keep_alive_s: float = SOON_S,
        fixed: bool = False,
        size: int = 0,
    ) -> Directory:
        directory = Directory(store or self.store, lost=self.lost.append, keep_alive_s=keep_alive_s)
        self._stack.callback(directory.close)
        directory.join(contact(name, number, life, size), Deadline.after(timeout), fixed)
        return directory


@pytest.fixture
def world() -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack)


def test_all_workers_find_each_other(world: World) -> None:
    both = [world.join("b", 1), world.join("a", 0)]
    for directory in both:
        directory.wait_for(2, Deadline.after(SOON_S))
        assert directory.everybody() == (contact("a", 0), contact("b", 1))
        for target in ("b", 1, WorkerInfo("b", 1)):
            assert directory.find(target) == contact("b", 1)
        assert directory.find_incarnation("a-life") == contact("a", 0)


def test_an_unknown_worker(world: World) -> None:
    directory = world.join("a", 0)
    directory.wait_for(1, Deadline.after(SOON_S))
    targets: list[Any] = ["b", 7, WorkerInfo("b", 7), None, []]
    for target in targets:
        with pytest.raises(UsageError, match="unknown; there are a"):
            directory.find(target)
    with pytest.raises(PeerLost, match="Connection closed by peer"):
        directory.find_incarnation("b-life")
    with pytest.raises(TimeoutExpired, match="1 of 3 workers came in time: a"):
        directory.wait_for(3, Deadline.after(0.05))


class Bootstrap:
    """Workers that wait for each other, each in a thread."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def begin(self, directory: Directory, me: Contact, then: Callable[[], object] = list) -> None:
        def meet() -> None:
            try:
                directory.meet(me, 2, Deadline.after(SOON_S))
                then()
            except BaseException as error:
                self.errors.append(error)

        self._threads.append(threading.Thread(target=meet))
        self._threads[-1].start()

    def end(self) -> None:
        for thread in self._threads:
            thread.join(SOON_S)
            assert not thread.is_alive()
        assert self.errors == []


class TestMeeting:
    """DI-4: no worker goes on before all have seen all."""

    def test_it_takes_all_of_them(self, world: World) -> None:
        a, b = world.join("a", 0), world.join("b", 1)
        a.wait_for(2, Deadline.after(SOON_S))
        said = "all 2 workers came, but not all have seen the others in time: b"
        with pytest.raises(TimeoutExpired, match=said):
            a.meet(contact("a", 0), 2, Deadline.after(0.05))
        meeting = Bootstrap()
        for directory, me in ((a, contact("a", 0)), (b, contact("b", 1))):
            meeting.begin(directory, me)
        meeting.end()
        with pytest.raises(TimeoutExpired, match="2 of 3 workers came in time: a, b"):
            a.meet(contact("a", 0), 3, Deadline.after(0.05))

    def test_a_worker_that_leaves_at_once_has_been_there(self, world: World) -> None:
        left = threading.Event()

        class Late(PrefixStore):
            def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
                assert key != "ready/" or left.wait(SOON_S)
                return super()._open_watch(key, prefix, deadline)

        a = world.join("a", 0, store=PrefixStore(world.store, "x/"))
        b = world.join("b", 1, store=Late(world.store, "x/"))
        meeting = Bootstrap()

        def leave() -> None:
            a.close()
            until(lambda: len(b.everybody()) == 1)
            left.set()

        meeting.begin(a, contact("a", 0), leave)
        meeting.begin(b, contact("b", 1))
        meeting.end()

    def test_a_worker_that_dies_before_it_has_seen_all_is_waited_for(self, world: World) -> None:
        a, b = world.join("a", 0), world.join("b", 1)
        a.wait_for(2, Deadline.after(SOON_S))
        ended: list[BaseException] = []

        def meet() -> None:
            try:
                a.meet(contact("a", 0), 2, Deadline.after(1.0))
            except TimeoutExpired as error:
                ended.append(error)

        thread = threading.Thread(target=meet)
        thread.start()
        until(lambda: world.store.get("ready/a"))
        b.close()
        thread.join(SOON_S)
        assert ["seen the others in time: b" in str(error) for error in ended] == [True]

    def test_a_worker_that_comes_again_needs_no_new_meeting(self, world: World) -> None:
        a, b = world.join("a", 0), world.join("b", 1)
        meeting = Bootstrap()
        meeting.begin(a, contact("a", 0))
        meeting.begin(b, contact("b", 1), b.close)
        meeting.end()
        second = world.join("b", 1, life="second")
        second.meet(contact("b", 1, "second"), 2, Deadline.after(SOON_S))

    def test_notes_of_an_earlier_incarnation_do_not_count(self, world: World) -> None:
        a, b = world.join("a", 0), world.join("b", 1)
        meeting = Bootstrap()
        meeting.begin(a, contact("a", 0))
        meeting.begin(b, contact("b", 1), b.close)
        meeting.end()
        world.join("b", 1, life="second")
        until(lambda: a.find("b").incarnation == "second")
        with pytest.raises(TimeoutExpired, match="not all have seen the others in time: b"):
            a.meet(contact("a", 0), 2, Deadline.after(0.05))

    @pytest.mark.parametrize("size", [1, 3])
    def test_di7_a_worker_with_another_world_size_gets_an_error(
        self, world: World, size: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Both at once, though the first has gone by the time that the second looks."""
        to_first = MISMATCH.format(2, WorkerInfo("b", 1), size)
        to_second = MISMATCH.format(size, WorkerInfo("a", 0), 2)
        world.store.set("worker/x", b"junk")
        first = world.join("a", 0, size=2)
        second = world.join("b", 1, size=size)
        until(lambda: len(first.everybody()) == len(second.everybody()) == 2)
        assert caplog.text.count(to_first) == caplog.text.count(to_second) == 1
        with pytest.raises(UsageError, match=re.escape(to_first)):
            first.meet(contact("a", 0, size=2), 2, Deadline.after(SOON_S))
        first.close()
        until(lambda: len(second.everybody()) == 1)
        with pytest.raises(UsageError, match=re.escape(to_second)):
            second.meet(contact("b", 1, size=size), size, Deadline.after(SOON_S))

    def test_di7_a_worker_that_never_saw_the_other_one_gets_the_error_too(
        self, world: World
    ) -> None:
        """They came at once, and the other one saw this one first, and left."""
        second = world.join("b", 1, size=3)
        refusal = encode_entry(contact("a", 0, size=2))
        for junk in (b"junk", refusal):
            world.store.set("refused/b-life", junk)
        with pytest.raises(UsageError, match=re.escape(MISMATCH.format(3, WorkerInfo("a", 0), 2))):
            second.wait_for(3, Deadline.after(SOON_S))

    def test_di7_one_that_is_silent_counts_after_its_lease(self, world: World) -> None:
        """It may have ended without being forgotten yet, until it would be."""
        silent = contact("a", 0, size=2)
        world.store.set("worker/a", encode_entry(silent))
        second = world.join("b", 1, size=3)
        until(lambda: len(second.everybody()) == 2)
        world.store.set("refused/b-life", b"junk")
        with pytest.raises(TimeoutExpired, match="came in time: a, b; a has world_size 2"):
            second.wait_for(3, Deadline.after(2 * LOOK_EVERY_S))
        third = world.join("c", 2, size=3, keep_alive_s=3.0)
        with pytest.raises(UsageError, match=re.escape(MISMATCH.format(3, silent.info, 2))):
            third.meet(contact("c", 2, size=3), 3, Deadline.after(SOON_S))

    def test_a_closed_store_is_an_error(self, world: World) -> None:
        directory = world.join("a", 0)
        directory.wait_for(1, Deadline.after(SOON_S))
        world.store.close()
        with pytest.raises(UsageError, match="is closed"):
            directory.meet(contact("a", 0), 1, Deadline.after(SOON_S))


class Slow(PrefixStore):
    """A store whose changes come only after an operation of a kind; it can be broken, too."""

    def __init__(self, store: Store, *kinds: type[Any]) -> None:
        super().__init__(store, "x/")
        self._kinds = kinds
        self.open = threading.Event()
        self.looks = 0
        self.broken = False
        self.waits: list[float | None] = []

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        if self.broken:
            self.waits.append(deadline.remaining())
            raise StoreUnavailable("the store is broken")
        result = super()._perform(op, deadline)
        if isinstance(op, self._kinds):
            self.looks += 1
            self.open.set()
        return result

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        watch = super()._open_watch(key, prefix, deadline)
        return _SlowWatch(watch, self) if key == "worker/" else watch


class _SlowWatch(Watch):
    def __init__(self, inner: Watch, store: Slow) -> None:
        self._inner = inner
        self._store = store

    def _next(self, deadline: Deadline) -> Any:
        assert self._store.open.wait(SOON_S)
        if self._store.broken:
            raise StoreUnavailable("the store is broken")
        return self._inner._next(deadline)

    def close(self) -> None:
        self._store.open.set()
        self._inner.close()


class TestWhoIsNotKnownYet:
    """DI-3: is looked for."""

    @pytest.mark.parametrize("target", ["b", 1, WorkerInfo("b", 1)])
    def test_by_name_or_number(self, world: World, target: str | int | WorkerInfo) -> None:
        store = Slow(world.store, Get)
        world.join("b", 1, store=PrefixStore(world.store, "x/"))
        assert world.join("a", 0, store=store).find(target) == contact("b", 1)

    def test_by_its_life(self, world: World) -> None:
        store = Slow(world.store, ListPrefix)
        world.join("b", 1, store=PrefixStore(world.store, "x/"))
        world.store.set("x/worker/a0", b"junk")
        assert world.join("a", 0, store=store).find_incarnation("b-life") == contact("b", 1)

    def test_a_life_that_is_over_is_looked_for_once(self, world: World) -> None:
        store = Slow(world.store, ListPrefix)
        directory = world.join("a", 0, store=store)
        for _ in range(3):
            with pytest.raises(PeerLost, match="Connection closed by peer"):
                directory.find_incarnation("an older life")
        assert store.looks == 1
        b = world.join("b", 1, store=PrefixStore(world.store, "x/"))
        until(lambda: len(directory.everybody()) == 2)
        b.close()
        until(lambda: len(directory.everybody()) == 1)
        with pytest.raises(PeerLost):  # known to be over
            directory.find_incarnation("b-life")
        assert store.looks == 1

    def test_lives_that_are_over_do_not_pile_up(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.rpc.membership.directory.OVER_MAX", 2)
        directory = world.join("a", 0)
        for number in range(5):
            with pytest.raises(PeerLost):
                directory.find_incarnation(f"life {number}")
        assert list(directory._over) == ["life 3", "life 4"]

    def test_a_worker_that_does_not_become_known_in_time(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.rpc.membership.directory.LOOK_WITHIN_S", 0.05)
        store = Slow(world.store)
        world.join("b", 1, store=PrefixStore(world.store, "x/"))
        directory = world.join("a", 0, store=store)
        with pytest.raises(UsageError, match="worker 'b': unknown; .*has not become known here"):
            directory.find("b")
        with pytest.raises(TimeoutExpired, match="has not become known here in time"):
            directory.find_incarnation("b-life")

    def test_when_the_store_is_broken(self, world: World) -> None:
        store = Slow(world.store, Get)
        directory = world.join("a", 0, store=store)
        store.broken = True
        with pytest.raises(UsageError, match=r"worker 'b': unknown; .* \(the store is broken\)"):
            directory.find("b")
        with pytest.raises(StoreUnavailable):  # it cannot be known
            directory.find_incarnation("b-life")

    def test_when_the_store_is_lost(self, world: World) -> None:
        store = Slow(world.store)
        directory = world.join("a", 0, store=store)
        store.broken = True
        store.open.set()
        until(lambda: directory._failure is not None)
        with pytest.raises(Unavailable, match="the directory of workers is lost: "):
            directory.find_incarnation("b-life")

    def test_nothing_is_looked_up_after_the_end(self, world: World) -> None:
        store = Slow(world.store)
        directory = world.join("a", 0, store=store)
        directory.close()
        store.broken = True
        with pytest.raises(UsageError, match="unknown; there are [^(]*$"):
            directory.find("b")
        with pytest.raises(PeerLost):
            directory.find_incarnation("b-life")


def test_a_worker_that_lost_its_lease_writes_nothing_for_its_successor(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    stale = world.join("a", 0, keep_alive_s=3.0)
    assert stale._keeper is not None
    lease = stale._keeper.lease
    world.store.revoke_lease(lease)
    until(lambda: "WorkerInfo(id=0, name=a) has lost its lease: " in caplog.text)
    assert stale._keeper.lost
    second = world.join("a", 0, life="second")
    second.say_done(contact("a", 0, "second"), Deadline.after(SOON_S))
    with pytest.raises(LeaseLost):
        stale.say_done(contact("a", 0), Deadline.after(SOON_S))
    assert world.store.get("done/a") == b"second"


def test_a_name_and_a_number_have_one_owner(world: World) -> None:
    """DI-1: a worker that wants what is taken waits for it."""
    first = world.join("a", 0)
    with pytest.raises(TimeoutExpired, match="number 0 is taken by another worker of this job"):
        world.join("b", 0, timeout=0.05)
    with pytest.raises(TimeoutExpired, match="name 'a' is taken by another worker of this job"):
        world.join("a", 1, life="second", timeout=0.05)
    first.close()
    world.join("a", 0, life="third")


def test_where_numbers_are_fixed_a_name_of_another_number_is_not_waited_for(world: World) -> None:
    world.join("a", 7, fixed=True)
    world.join("b", 9, fixed=True)
    for number, first, second in ((3, 3, 7), (8, 7, 8)):
        said = f"name a is not unique. Workers {first} and {second} share the same name."
        with pytest.raises(UsageError, match=said):
            world.join("a", number, life="second", fixed=True)


@pytest.mark.parametrize("fixed", [True, False])
def test_a_newcomer_waits_for_its_predecessor_to_be_gone(world: World, fixed: bool) -> None:
    first = world.join("a", 0)
    watcher = world.join("w", 9)
    watcher.wait_for(2, Deadline.after(SOON_S))
    again = partial(world.join, fixed=fixed)
    joined = threading.Thread(target=again, args=("a", 0, "second"))
    joined.start()
    first.close()
    joined.join(SOON_S)
    until(lambda: "second" in [one.incarnation for one in watcher.everybody()])
    assert watcher.find("a").incarnation == "second"
    until(lambda: "a-life" in [one.incarnation for one in world.lost])
    with pytest.raises(PeerLost):
        watcher.find_incarnation("a-life")


def test_a_worker_that_leaves_is_reported_as_lost_once(world: World) -> None:
    """DI-2: to the workers that had found it."""
    stays, leaves = world.join("a", 0), world.join("b", 1)
    stays.wait_for(2, Deadline.after(SOON_S))
    leaves.close()
    until(lambda: len(stays.everybody()) == 1)
    until(lambda: world.lost)
    leaves.close()  # twice is once
    assert world.lost == [contact("b", 1)]


def test_a_callback_of_a_loss_may_wait_for_other_workers(world: World) -> None:
    """Others come, and are lost, while a callback still handles the first loss."""
    may_end, told = threading.Event(), queue.SimpleQueue[str]()

    def lost(contact: Contact) -> Callable[[], None]:
        def tell() -> None:
            told.put(contact.info.name)
            assert may_end.wait(SOON_S)

        return tell

    stays = Directory(world.store, lost=lost)
    try:
        stays.join(contact("a", 0), Deadline.after(SOON_S))
        leaves, leaves_too = world.join("b", 1), world.join("c", 2)
        stays.wait_for(3, Deadline.after(SOON_S))
        leaves.close()
        assert told.get(timeout=SOON_S) == "b"
        leaves_too.close()
        assert told.get(timeout=SOON_S) == "c"
        world.join("d", 3)
        assert stays.find("d") == contact("d", 3)
    finally:
        may_end.set()
        stays.close()
    assert not stays._beside


def test_a_loss_is_reported_even_if_no_thread_can_be_started(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Contact] = []
    stays = Directory(world.store, lost=lambda contact: lambda: told.append(contact))
    stays.join(contact("a", 0), Deadline.after(SOON_S))
    leaves = world.join("b", 1)
    stays.wait_for(2, Deadline.after(SOON_S))
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "holdfast-rpc-loss":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    leaves.close()
    until(lambda: told == [contact("b", 1)] and not stays._beside)
    stays.close()


def test_di6_only_the_latest_of_very_many_that_are_gone_are_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.rpc.membership.directory.OVER_MAX", 2)
    stays = world.join("a", 0)
    for number, name in enumerate(("b", "c", "d"), 1):
        leaves = world.join(name, number)
        stays.wait_for(2, Deadline.after(SOON_S))
        leaves.close()
        until(lambda: len(stays.everybody()) == 1)
    assert list(stays._gone) == ["c", "d"]


def test_a_worker_that_was_there_and_is_gone_is_lost_and_not_unknown(world: World) -> None:
    stays, leaves = world.join("a", 0), world.join("b", 1)
    stays.wait_for(2, Deadline.after(SOON_S))
    leaves.close()
    until(lambda: len(stays.everybody()) == 1)
    for target in ("b", 1, contact("b", 1).info):
        with pytest.raises(PeerLost, match=r"name=b\): Connection closed by peer") as caught:
            stays.find(target)
        assert caught.value.peer == "b"
        assert caught.value.incarnation == contact("b", 1).incarnation
    with pytest.raises(UsageError, match="worker 'c': unknown"):
        stays.find("c")
    world.join("b", 1, "another life")
    until(lambda: len(stays.everybody()) == 2)
    assert stays.find("b").incarnation == "another life"


def test_numbers_are_given_once(world: World) -> None:
    directory = Directory(world.store)
    deadline = Deadline.after(SOON_S)
    assert [directory.next_id(0, deadline) for _ in range(3)] == [0, 1, 2]
    assert directory.next_id(1, deadline) == 4


def test_a_number_that_a_worker_chose_is_not_assigned(world: World) -> None:
    world.join("a", 0)
    world.join("b", 1)
    assert Directory(world.store).next_id(0, Deadline.after(SOON_S)) == 2


def test_a_malformed_entry_hides_no_worker(world: World, caplog: pytest.LogCaptureFixture) -> None:
    directory = world.join("a", 0)
    for junk in (b"{", b"[]", b"{}", b'{"info": {"name": "x"}}'):
        world.store.set("worker/x", junk)
    world.join("b", 1)
    directory.wait_for(2, Deadline.after(SOON_S))
    assert [one.info.name for one in directory.everybody()] == ["a", "b"]
    assert "entry of a worker" in caplog.text


class TestTheEnd:
    def test_all_want_to_end(self, world: World) -> None:
        both = {"a": world.join("a", 0), "b": world.join("b", 1)}
        for directory in both.values():
            directory.wait_for(2, Deadline.after(SOON_S))
        found: list[tuple[str, ...]] = []

        def end() -> None:
            found.append(both["b"].finish(contact("b", 1), Deadline.after(SOON_S)))

        other = threading.Thread(target=end)
        other.start()
        assert both["a"].finish(contact("a", 0), Deadline.after(SOON_S)) == ()
        other.join(SOON_S)
        assert found == [()]

    @pytest.mark.parametrize("left", [0.0, 0.05])
    def test_a_worker_that_does_not_leave_is_named(self, world: World, left: float) -> None:
        directory = world.join("a", 0)
        world.join("b", 1)
        directory.wait_for(2, Deadline.after(SOON_S))
        assert directory.finish(contact("a", 0), Deadline.after(left)) == ("b",)

    def test_a_finished_worker_is_not_named_even_if_no_time_is_left(self, world: World) -> None:
        directory, other = world.join("a", 0), world.join("b", 1)
        directory.wait_for(2, Deadline.after(SOON_S))
        other.say_done(contact("b", 1), Deadline.after(SOON_S))
        assert directory.finish(contact("a", 0), Deadline.after(0.0)) == ()

    def test_a_lost_worker_is_named(self, world: World) -> None:
        directory, other = world.join("a", 0), world.join("b", 1)
        directory.wait_for(2, Deadline.after(SOON_S))
        other.close()
        assert directory.finish(contact("a", 0), Deadline.after(SOON_S)) == ("b",)

    def test_a_worker_that_is_done_and_left_is_not_named(self, world: World) -> None:
        directory, other = world.join("a", 0), world.join("b", 1)
        directory.wait_for(2, Deadline.after(SOON_S))
        other.say_done(contact("b", 1), Deadline.after(SOON_S))
        other.close()
        until(lambda: len(directory.everybody()) == 1)
        assert directory.finish(contact("a", 0), Deadline.after(SOON_S)) == ()

    def test_an_earlier_life_speaks_for_itself_only(self, world: World) -> None:
        directory, other = world.join("a", 0), world.join("b", 1)
        other.say_done(contact("b", 1), Deadline.after(SOON_S))
        other.close()
        world.join("b", 1, life="second")
        until(lambda: directory.find("b").incarnation == "second")
        assert directory.finish(contact("a", 0), Deadline.after(0.05)) == ("b",)

    def test_waiting_for_the_others_to_leave(self, world: World) -> None:
        directory, other = world.join("a", 0), world.join("b", 1)
        directory.wait_for(2, Deadline.after(SOON_S))
        directory.wait_alone(contact("a", 0), Deadline.after(0.02))
        assert len(directory.everybody()) == 2
        other.close()
        directory.wait_alone(contact("a", 0), Deadline.after(SOON_S))
        assert directory.everybody() == (contact("a", 0),)

    def test_a_store_that_does_not_answer_delays_no_worker(self, world: World) -> None:
        """DI-5: it is given what is left of the time, or a moment."""
        store = Slow(world.store)
        directory = world.join("a", 0, store=store)
        store.broken = True
        for left, least, most in ((0.0, 0.0, GRACE_S), (1000.0, GRACE_S, 1000.0)):
            with pytest.raises(StoreUnavailable):
                directory.finish(contact("a", 0), Deadline.after(left))
            waited = store.waits.pop()
            assert waited is not None
            assert least < waited <= most
        directory.close(0.0)
        assert store.waits == [0.0]
