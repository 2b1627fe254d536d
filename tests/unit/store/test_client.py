"""The client's shell: many threads, lost connections, forks, servers that stop or vanish."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from holdfast.clock import Deadline
from holdfast.errors import (
    Refused,
    Step,
    StoreUnavailable,
    TimeoutExpired,
    UsageError,
)
from holdfast.net import tcp
from holdfast.net.secret import new_secret
from holdfast.net.transport import Transport
from holdfast.store import client as client_module
from holdfast.store.client import RemoteStore
from holdfast.store.ops import VALUE_BYTES_MAX
from holdfast.store.server import StoreServer
from holdfast.store.store import Store
from tests.unit.store.tcp_parts import (
    ANY_PORT,
    LONG_S,
    SECRET,
    InprocServer,
    Proxy,
    cuts,
    line_of,
    new_client,
    new_server,
    python,
    server_process,
)
from tests.waiting import until


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with new_server() as made:
        yield made


@pytest.fixture
def store(server: StoreServer) -> Iterator[RemoteStore]:
    with new_client(server.address) as made:
        yield made


@pytest.fixture
def proxy(server: StoreServer) -> Iterator[Proxy]:
    with Proxy(server.address) as made:
        yield made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as made:
        yield made


# Many threads.


def test_many_threads_share_one_client(store: RemoteStore, pool: ThreadPoolExecutor) -> None:
    with store.watch("n") as watch:
        waiting = [pool.submit(store.wait, ["go"], timeout=LONG_S) for _ in range(3)]
        adding = [pool.submit(lambda: [store.add("n") for _ in range(100)]) for _ in range(8)]
        seen = 0
        while seen < 800:
            value = watch.next(LONG_S).value
            assert value is not None
            assert int(value) > seen
            seen = int(value)
        sums = [total for one in adding for total in one.result(LONG_S)]
        assert sorted(sums) == list(range(1, 801))
        store.set("go", b"!")
        assert [one.result(LONG_S) for one in waiting] == [[b"!"]] * 3


def test_a_waiting_thread_is_not_forgotten_when_the_driver_leaves(
    store: RemoteStore, server: StoreServer, pool: ThreadPoolExecutor
) -> None:
    with new_client(server.address) as other:
        # The first thread drives; it leaves at its deadline, and one after the other takes over.
        leaving = pool.submit(store.wait, ["never"], timeout=0.2)
        until(lambda: store._driven)
        also_leaving = [pool.submit(store.wait, ["never"], timeout=0.2) for _ in range(3)]
        staying = [pool.submit(store.wait, ["k"], timeout=LONG_S) for _ in range(3)]
        for one in (leaving, *also_leaving):
            with pytest.raises(TimeoutExpired):
                one.result(LONG_S)
        other.set("k", b"v")
        assert [one.result(LONG_S) for one in staying] == [[b"v"]] * 3


def test_a_driver_with_what_it_wants_hands_over(
    store: RemoteStore, server: StoreServer, pool: ThreadPoolExecutor
) -> None:
    with new_client(server.address) as other:
        for n in range(20):
            first = pool.submit(store.wait, [f"a{n}"], timeout=LONG_S)
            until(lambda: store._driven)
            second = pool.submit(store.wait, [f"b{n}"], timeout=LONG_S)
            other.set(f"a{n}", b"")
            first.result(LONG_S)
            other.set(f"b{n}", b"")
            second.result(LONG_S)


# Deadlines.


def test_cl1_a_wait_that_ends_at_its_deadline_names_what_is_missing(store: RemoteStore) -> None:
    store.set("here", b"")
    with pytest.raises(TimeoutExpired) as caught:
        store.wait(["here", "gone"], timeout=0.02)
    assert caught.value.waiting_for == ("gone",)
    with store.watch("k") as watch, pytest.raises(TimeoutExpired) as watched:
        watch.next(0.02)
    assert watched.value.waiting_for == ("k",)


def test_cl1_calls_end_at_their_deadline_while_nothing_passes(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CANCEL_WITHIN_S", 0.05)
    with new_client(proxy.address) as store:
        proxy.stall()
        with pytest.raises(TimeoutExpired) as written:
            store.add("n", timeout=0.5)  # long enough for it to leave
        assert written.value.maybe_applied
        with pytest.raises(TimeoutExpired) as read:
            store.get("n", timeout=0.05)
        assert not read.value.maybe_applied
        with pytest.raises(TimeoutExpired) as waited:
            store.wait(["a", "b"], timeout=0.05)
        assert waited.value.waiting_for == ("a", "b")
        with pytest.raises(TimeoutExpired):
            store.watch("n", timeout=0.05)
        proxy.go()
        assert store.get("n") == b"1"  # the add had left


def test_one_threads_send_that_does_not_end_leaves_the_others_their_deadlines(
    proxy: Proxy, pool: ThreadPoolExecutor
) -> None:
    with new_client(proxy.address) as store:
        proxy.stall()
        sending = [
            pool.submit(store.set, f"k{n}", bytes(VALUE_BYTES_MAX), timeout=LONG_S)
            for n in range(3)
        ]
        until(lambda: store._sending)
        with pytest.raises(TimeoutExpired):
            store.get("k", timeout=0.05)
        proxy.go()
        assert sorted(one.result(LONG_S) for one in sending) == [1, 2, 3]


def test_a_send_that_does_not_end_ends_at_its_deadline(proxy: Proxy) -> None:
    with new_client(proxy.address) as store:
        proxy.stall()
        with pytest.raises((TimeoutExpired, StoreUnavailable)) as caught:
            store.set("k", bytes(VALUE_BYTES_MAX), timeout=0.2)  # more than the buffers take
        assert isinstance(caught.value, (TimeoutExpired, StoreUnavailable))
        assert caught.value.maybe_applied
        proxy.go()
        assert store.add("n") == 1


def test_an_interrupted_call_leaves_nothing_behind(
    store: RemoteStore, server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: object, wait_s: float) -> list[bytes]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tcp.TcpTransport, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.wait(["k"])
        with pytest.raises(KeyboardInterrupt):
            store.watch("k")
    assert store.add("n") == 1
    until(lambda: server.status()[4:6] == (0, 0))  # waits and watches
    assert not store._session._calls


# Connections that break.


def test_a_cut_connection_is_made_again(proxy: Proxy, pool: ThreadPoolExecutor) -> None:
    with new_client(proxy.address) as store, store.watch("k") as watch:
        waiting = pool.submit(store.wait, ["go"], timeout=LONG_S)
        for n in range(5):
            proxy.cut()
            store.set("k", b"%d" % n)
            assert watch.next(LONG_S).value == b"%d" % n
        store.set("go", b"")
        assert waiting.result(LONG_S) == [b""]
        assert proxy.connections >= 6


@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_adds_are_exact_though_connections_are_cut_anywhere(
    proxy: Proxy,
    server: StoreServer,
    pool: ThreadPoolExecutor,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "PAUSE_MAX_S", 0.01)
    proxy.cut_after = cuts(seed, 1000)
    with new_client(proxy.address) as store:

        def work() -> list[int]:
            return [store.add("n") for _ in range(100)]

        workers = [pool.submit(work) for _ in range(4)]
        sums = [total for worker in workers for total in worker.result(LONG_S)]
    assert sorted(sums) == list(range(1, 401))
    with new_client(server.address) as honest:
        assert honest.get("n") == b"400"
    assert proxy.connections > 10


def test_a_watch_over_cut_connections_ends_with_the_newest(
    proxy: Proxy, server: StoreServer, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PAUSE_MAX_S", 0.01)
    proxy.cut_after = cuts(7, 3000)
    with (
        new_client(server.address) as writer,
        new_client(proxy.address) as store,
        store.watch("", prefix=True) as watch,
    ):
        writing = pool.submit(lambda: [writer.set(f"k{n % 3}", b"%d" % n) for n in range(300)])
        newest: dict[str, int] = {}
        revisions: dict[str, int] = {}
        while newest != {"k0": 297, "k1": 298, "k2": 299}:
            key, value, revision = watch.next(LONG_S)
            assert value is not None
            assert revision > revisions.get(key, 0)
            newest[key], revisions[key] = int(value), revision
        writing.result(LONG_S)


def test_a_server_that_refuses_for_a_while_is_waited_for(
    proxy: Proxy, pool: ThreadPoolExecutor
) -> None:
    with new_client(proxy.address) as store:
        proxy.refuse(True)
        adding = pool.submit(store.add, "n")
        until(lambda: store._tries > 2)
        proxy.refuse(False)
        assert adding.result(LONG_S) == 1


def test_cl2_a_server_that_is_gone_is_lost_for_good(
    proxy: Proxy, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RECONNECT_WITHIN_S", 0.1)
    with new_client(proxy.address) as store, store.watch("k") as watch:
        reading = pool.submit(watch.next, LONG_S)
        until(lambda: store._driven)
        proxy.refuse(True)
        with pytest.raises(StoreUnavailable, match="is lost: no connection"):
            store.add("n", timeout=LONG_S)
        with pytest.raises(StoreUnavailable, match="is lost"):
            reading.result(LONG_S)
        proxy.refuse(False)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="is lost"):
                store.add("n", timeout=LONG_S)
        with pytest.raises(StoreUnavailable, match="is lost"):
            store.watch("k")


def test_cl2_time_without_an_attempt_does_not_count(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_client(proxy.address) as store:
        proxy.refuse(True)
        with pytest.raises(StoreUnavailable):
            store.add("n", timeout=0.05)
        # Long after, one try fails, and the next succeeds.
        store._apart_since -= 3600.0
        store._retry_at -= 3600.0
        with pytest.raises(StoreUnavailable, match="did not end in time"):
            store.add("n", timeout=0.05)
        proxy.refuse(False)
        assert store.add("n", timeout=LONG_S) == 1


def test_cl2_tries_that_their_callers_cut_short_do_not_count(proxy: Proxy) -> None:
    with new_client(proxy.address) as store:
        proxy.cut()
        proxy.stall()  # connections are made, but no handshake gets through
        while store._tries < 6:
            with pytest.raises(StoreUnavailable, match="did not end in time"):
                store.get("k", timeout=0.05)
            store._apart_since -= 3600.0
        proxy.go()
        store.set("k", b"v", timeout=LONG_S)
        assert store.get("k", timeout=LONG_S) == b"v"


def test_a_restarted_server_is_noticed_and_named() -> None:
    with new_server() as first:
        address = first.address
        store = new_client(address)
        assert store.add("n") == 1
    with StoreServer(address, SECRET) as second, store:
        with pytest.raises(StoreUnavailable, match=f"{address} was restarted") as caught:
            store.add("n")
        assert caught.value.address == f"tcp://{address}"
        with pytest.raises(StoreUnavailable, match="was restarted"):
            store.get("n")
        until(lambda: second.status().connections == 0)
        with new_client(address) as fresh:
            assert fresh.get("n") is None


def test_a_server_with_another_secret_is_lost_at_once(proxy: Proxy) -> None:
    with (
        StoreServer(ANY_PORT, new_secret()) as stranger,
        new_client(proxy.address) as store,
    ):
        proxy.target = stranger.address
        proxy.cut()
        with pytest.raises(StoreUnavailable, match="is lost: handshake"):
            store.add("n", timeout=LONG_S)


def test_a_silent_server_is_left_for_a_new_connection(
    proxy: Proxy, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.session.SILENCE_S", 0.05)
    monkeypatch.setattr(client_module, "_READ_S", 0.02)
    with new_client(proxy.address) as store:
        proxy.stall()
        adding = pool.submit(store.add, "n")
        until(lambda: store._failure is not None)
        assert "silent" in str(store._failure)
        proxy.go()
        assert adding.result(LONG_S) == 1
        assert store.get("n") == b"1"


# Connecting.


def test_connect_waits_for_a_server_to_come_up(pool: ThreadPoolExecutor) -> None:
    with new_server() as first:
        address = first.address
    with new_client(address, connect_within_s=None) as store:
        connecting = pool.submit(store.connect, LONG_S)
        until(lambda: store._tries > 2)
        with StoreServer(address, SECRET):
            connecting.result(LONG_S)
            assert store.add("n") == 1


def test_connect_names_the_step_at_its_deadline() -> None:
    with new_server() as first:
        address = first.address
    with (
        new_client(address, connect_within_s=None) as store,
        pytest.raises(StoreUnavailable, match=f"no store at tcp://{address} in time") as caught,
    ):
        store.connect(0.05)
    assert caught.value.step is Step.TCP
    assert caught.value.address == f"tcp://{address}"


def test_connect_is_refused_at_once(server: StoreServer) -> None:
    key = new_secret().key("store")
    with (
        RemoteStore("tcp://x", lambda d: tcp.connect(server.address, key, d)) as store,
        pytest.raises(Refused),
    ):
        store.connect(None)


def test_pauses_grow_to_a_bound_however_often_it_tries(store: RemoteStore) -> None:
    pauses = []
    for tries in (0, 1, 2, 5, 10, 2000, 10**6):
        store._tries = tries
        store._pause(100.0)
        pauses.append(store._retry_at - 100.0)
    assert pauses[0] == 0.0
    assert all(0 < pause <= client_module.PAUSE_MAX_S for pause in pauses[1:])


# Closing.


def test_close_wakes_everyone(store: RemoteStore, pool: ThreadPoolExecutor) -> None:
    watch = store.watch("k")
    waiting: list[Future[object]] = [
        pool.submit(store.wait, ["k"], timeout=LONG_S),
        pool.submit(store.wait, ["k"], timeout=None),
        pool.submit(watch.next, LONG_S),
    ]
    until(lambda: len(store._waiting) == 2)
    store.close()
    store.close()
    for one in waiting:
        with pytest.raises(UsageError, match="closed"):
            one.result(LONG_S)
    with pytest.raises(UsageError, match="closed"):
        store.add("n")
    with pytest.raises(UsageError, match="closed"):
        store.connect(LONG_S)
    watch.close()


def test_close_while_connecting(proxy: Proxy, pool: ThreadPoolExecutor) -> None:
    store = new_client(proxy.address)
    proxy.refuse(True)
    adding = pool.submit(store.add, "n")
    until(lambda: store._tries > 2)
    store.close()
    with pytest.raises(UsageError, match="closed"):
        adding.result(LONG_S)


def test_a_connection_that_is_made_too_late_is_closed(
    server: StoreServer, pool: ThreadPoolExecutor
) -> None:
    dialling, go = threading.Event(), threading.Event()

    def dial(deadline: Deadline) -> Transport:
        dialling.set()
        assert go.wait(LONG_S)
        return tcp.connect(server.address, SECRET.key("store"), deadline)

    store = RemoteStore("tcp://x", dial)
    adding = pool.submit(store.add, "n")
    assert dialling.wait(LONG_S)
    store.close()
    go.set()
    with pytest.raises(UsageError, match="closed"):
        adding.result(LONG_S)
    until(lambda: server.status().connections == 0)


def test_closing_a_watch_wakes_its_reader_at_once(
    store: RemoteStore, pool: ThreadPoolExecutor
) -> None:
    watch, other = store.watch("k"), store.watch("k")
    reading = [pool.submit(watch.next, LONG_S), pool.submit(other.next, LONG_S)]
    until(lambda: len(store._waiting) == 1)
    watch.close()
    with pytest.raises(UsageError, match="closed"):
        reading[0].result(LONG_S)
    store.set("k", b"v")
    assert reading[1].result(LONG_S).value == b"v"
    other.close()


# Forks.


@contextmanager
def forked(work: Callable[[], None]) -> Iterator[None]:
    """Run `work` in a forked child, which must succeed."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    yield
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_cl3_a_forked_child_has_a_connection_of_its_own(
    store: RemoteStore, server: StoreServer, pool: ThreadPoolExecutor
) -> None:
    with store.watch("k") as watch:
        waiting = pool.submit(store.wait, ["child"], timeout=LONG_S)
        until(lambda: store._driven)

        def child() -> None:
            for _ in range(20):
                store.add("n")
            try:
                watch.next(0)
            except UsageError:
                store.set("child", b"!")
            store.close()

        with forked(child), forked(child):
            for _ in range(20):
                store.add("n")
        assert waiting.result(LONG_S) == [b"!"]
        assert store.get("n") == b"60"
        store.set("k", b"v")
        assert watch.next(LONG_S).value == b"v"
    assert server.status().sessions >= 3


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_cl3_a_store_closed_before_the_fork_stays_closed(store: RemoteStore) -> None:
    store.close()

    def child() -> None:
        with pytest.raises(UsageError, match="closed"):
            store.add("n")

    with forked(child):
        pass


# Processes.

ADDING_PROGRAM = """
import sys
from holdfast.errors import LeaseLost
from holdfast.net.address import parse_address
from tests.unit.store.tcp_parts import new_client
store = new_client(parse_address(sys.argv[1]))
while True:
    try:
        store.set("leased", b"", lease=store.grant_lease(0.3))
        break
    except LeaseLost:
        pass  # a slow machine
print("ready", flush=True)
while True:
    store.add("n")
"""


def test_a_killed_client_leaves_the_server_well(server: StoreServer, store: RemoteStore) -> None:
    for _ in range(2):
        with python(ADDING_PROGRAM, str(server.address)) as process:
            assert line_of(process) == "ready"
            store.wait(["n"], timeout=LONG_S)
            process.kill()
            process.wait()
    until(lambda: server.status().connections == 1)
    before = int(store.get("n") or b"")
    assert store.add("n") == before + 1
    with store.watch("leased") as watch:
        while store.get("leased") is not None:
            watch.next(LONG_S)


def test_a_stopped_server_costs_time_and_nothing_else(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CANCEL_WITHIN_S", 0.05)
    with server_process() as (process, address), new_client(address) as store:
        sums = [store.add("n") for _ in range(3)]
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        patient = pool.submit(store.add, "n", timeout=LONG_S)
        until(lambda: len(store._session._writes) == 1)
        with pytest.raises(TimeoutExpired) as caught:
            store.add("n", timeout=0.5)  # long enough for it to leave
        assert caught.value.maybe_applied
        with pytest.raises(TimeoutExpired):
            store.wait(["k"], timeout=0.05)
        process.send_signal(signal.SIGCONT)
        sums += [patient.result(LONG_S)]
        # The abandoned one had left, so it happens all the same, once.
        assert sums == [1, 2, 3, 4]
        assert store.add("n", 0) == 5
        process.kill()


# Over another transport.


def test_it_works_over_any_transport() -> None:
    there = InprocServer()
    store: Store
    with RemoteStore("inproc", there.dial) as store:
        assert store.add("n") == 1
        there.ends[0].close()
        assert store.add("n") == 2
        with store.watch("n") as watch:
            assert watch.next(LONG_S).value == b"2"
            store.delete("n")
            assert watch.next(LONG_S).value is None
        there.ends[1].send(b"\xff", Deadline(None))  # a server that breaks the protocol
        assert store.add("n") == 1
        assert len(there.ends) == 3
    for thread in there.threads:
        thread.join(LONG_S)
