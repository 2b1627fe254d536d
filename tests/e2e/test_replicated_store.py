"""A store of three real processes, whose leader is killed while clients write, wait and watch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.store.client import RemoteStore
from holdfast.store.open import open_store
from holdfast.store.ops import Change
from holdfast.store.store import Store
from tests.waiting import until

HOLDFAST = [sys.executable, "-m", "holdfast"]
LONG_S = 100.0
SECRET = "a secret of this test alone"


class Cluster:
    """Processes of `holdfast store serve`, by the address that each serves."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.members: dict[str, subprocess.Popen[str]] = {}
        self.known: set[str] = set()
        self._stack = stack
        self._log = (folder / "members.log").open("w")
        stack.callback(self._log.close)

    def add(self, *, join: str | None = None) -> str:
        """Start one more member, wait until it is one, and return its address."""
        argv = [*HOLDFAST, "store", "serve", "tcp://127.0.0.1:0"]
        argv += ["--join", join] if join else []
        process = self._stack.enter_context(
            subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=self._log, text=True)
        )
        self._stack.callback(process.kill)
        assert process.stdout is not None
        line: str = process.stdout.readline()
        found = re.fullmatch(r"export HOLDFAST_STORE=tcp://(.*)\n", line)
        assert found, "the member has ended: see members.log"
        (address,) = (one for one in str(found[1]).split(",") if one not in self.known)
        self.known.add(address)
        self.members[address] = process
        return address

    @property
    def endpoint(self) -> str:
        """Where the members are."""
        return f"tcp://{','.join(self.members)}"

    def kill(self, address: str) -> None:
        """Let a member die at once."""
        process = self.members.pop(address)
        process.send_signal(signal.SIGKILL)
        process.wait(LONG_S)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Three members of one store."""
    monkeypatch.setenv("HOLDFAST_SECRET", SECRET)
    with ExitStack() as stack:
        cluster = Cluster(stack, tmp_path)
        first = cluster.add()
        for _ in range(2):
            cluster.add(join=f"tcp://{first}")
        yield cluster


def leader_of(store: Store) -> str:
    """Return the address of the member that a client talks to."""
    assert isinstance(store, RemoteStore)
    assert store._members is not None
    return store._members.leader


def watched(store: Store, opened: threading.Event) -> list[Change]:
    """Watch a prefix until its last key comes; return all changes."""
    with store.watch("w/", prefix=True) as watch:
        opened.set()
        changes = [watch.next(LONG_S)]
        while changes[-1].key != "w/end":
            changes.append(watch.next(LONG_S))
    return changes


def test_a_killed_leader_loses_nothing_doubles_nothing_and_wakes_the_waiters(
    cluster: Cluster,
) -> None:
    """CL-4, MB-1, MB-2, MB-4."""
    per_writer, writers = 60, 4
    killed, opened = threading.Event(), threading.Event()
    with ExitStack() as stack:
        stores = [
            stack.enter_context(open_store(cluster.endpoint, timeout=LONG_S))
            for _ in range(writers + 2)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(writers + 2))
        waiting = pool.submit(stores[-1].wait, ["go"], timeout=LONG_S)
        watching = pool.submit(watched, stores[-2], opened)
        assert opened.wait(LONG_S)

        def write(number: int) -> None:
            store = stores[number]
            for turn in range(per_writer):
                if turn == per_writer // 2 and number == 0:
                    cluster.kill(leader_of(store))
                    killed.set()
                store.add("n", 1, timeout=LONG_S)
                store.append("log", f"{number}.{turn} ".encode(), timeout=LONG_S)
                store.set(f"w/{number}", b"%d" % turn, timeout=LONG_S)

        for done in [pool.submit(write, number) for number in range(writers)]:
            done.result(2 * LONG_S)
        assert killed.is_set()
        last = stores[0]
        assert last.get("n") == b"%d" % (writers * per_writer)
        log = (last.get("log") or b"").decode().split()
        assert sorted(log) == sorted(f"{w}.{t}" for w in range(writers) for t in range(per_writer))
        last.set("go", b"1", timeout=LONG_S)
        last.set("w/end", b"", timeout=LONG_S)
        assert waiting.result(LONG_S) == [b"1"]
        changes = watching.result(LONG_S)
        for number in range(writers):
            seen = [change for change in changes if change.key == f"w/{number}"]
            assert seen[-1].value == b"%d" % (per_writer - 1)
            revisions = [change.revision for change in seen]
            assert revisions == sorted(set(revisions))


def test_a_member_that_joins_replaces_a_lost_one(cluster: Cluster) -> None:
    with open_store(cluster.endpoint, timeout=LONG_S) as store:
        store.set("k", b"kept")
        for _ in range(2):  # three members survive one loss after the other, if each is replaced
            cluster.kill(leader_of(store))
            assert store.get("k", timeout=LONG_S) == b"kept"
            cluster.add(join=cluster.endpoint)
        assert store.get("k", timeout=LONG_S) == b"kept"
        with open_store(cluster.endpoint, timeout=LONG_S) as other:
            assert other.get("k") == b"kept"


def test_a_leader_that_is_told_to_end_hands_over(cluster: Cluster) -> None:
    with open_store(cluster.endpoint, timeout=LONG_S) as store:
        store.set("k", b"kept")
        leader = leader_of(store)
        process = cluster.members.pop(leader)
        process.terminate()
        assert process.wait(LONG_S) == 0
        assert store.get("k", timeout=LONG_S) == b"kept"
        assert leader_of(store) != leader


def test_a_store_of_which_more_than_half_are_gone_is_lost_and_says_so(cluster: Cluster) -> None:
    with open_store(cluster.endpoint, timeout=LONG_S) as store:
        store.set("k", b"kept")
        for address in list(cluster.members)[:2]:
            cluster.kill(address)
        with pytest.raises(StoreUnavailable, match="is lost: no connection for"):
            until(lambda: store.get("k", timeout=LONG_S) is None)


def test_a_process_that_starts_again_alone_is_another_store(cluster: Cluster) -> None:
    """SE-6."""
    with open_store(cluster.endpoint, timeout=LONG_S) as store:
        store.set("k", b"kept")
        address = leader_of(store)
        endpoint = cluster.endpoint
        cluster.kill(address)
        argv = [*HOLDFAST, "store", "serve", f"tcp://{address}"]
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as again:
            try:
                assert again.stdout is not None
                assert again.stdout.readline() == f"export HOLDFAST_STORE=tcp://{address}\n"
                assert store.get("k", timeout=LONG_S) == b"kept"
                with open_store(endpoint, timeout=LONG_S) as other:
                    assert other.get("k") == b"kept"
                with open_store(f"tcp://{address}") as alone:
                    assert alone.get("k") is None
            finally:
                again.terminate()
                _, err = again.communicate(timeout=LONG_S)
        assert "a new, empty store" in err


WORKER = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
(folder / f"started-{attempt}-{rank}").touch(exist_ok=False)
order = (folder / f"order-{attempt}-{rank}").read_text()  # a FIFO: waits for the test
sys.exit(order == "fail")
"""


def test_a_job_survives_the_loss_of_the_member_that_leads_its_store(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The round goes on; a failure of a worker after the loss is counted, once."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    orders = {(a, r): tmp_path / f"order-{a}-{r}" for a in (0, 1) for r in (0, 1)}
    for order in orders.values():
        os.mkfifo(order)

    def is_started(attempt: int) -> bool:
        return all((tmp_path / f"started-{attempt}-{rank}").exists() for rank in (0, 1))

    endpoint = cluster.endpoint.removeprefix("tcp://")
    argv = [*HOLDFAST, "run", "--nnodes=2", "--max-restarts=1", "--rdzv-backend=c10d"]
    argv += [f"--rdzv-endpoint={endpoint}", "--rdzv-id=survivor", str(script), str(tmp_path)]
    with ExitStack() as stack:
        store = stack.enter_context(open_store(cluster.endpoint, timeout=LONG_S))
        nodes = []
        for number in range(2):
            log = stack.enter_context((tmp_path / f"node{number}.log").open("w"))
            nodes.append(stack.enter_context(subprocess.Popen(argv, stdout=log, stderr=log)))
            stack.callback(nodes[-1].kill)
        until(lambda: is_started(0))
        cluster.kill(leader_of(store))
        store.set("served", b"again", timeout=LONG_S)
        assert [node.poll() for node in nodes] == [None, None]
        assert not is_started(1)
        orders[0, 0].write_text("go")
        orders[0, 1].write_text("fail")
        until(lambda: is_started(1))
        for rank in (0, 1):
            orders[1, rank].write_text("go")
        assert [node.wait(LONG_S) for node in nodes] == [0, 0]
    assert not (tmp_path / "started-2-0").exists()
