"""holdfast and real torch, both ways: its clients at our server, our client at its servers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StoreUnavailable, TimeoutExpired, UsageError
from holdfast.net.address import Address
from holdfast.store.c10d.client import C10dStore
from holdfast.store.c10d.server import C10dServer
from tests import torch_versions
from tests.e2e.torch_client import SCENES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)

HERE = Path(__file__).parent
LOOPBACK = Address("127.0.0.1", 0)
WITHIN_S = 100


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(HERE / program), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )


# torch's client at our server.


@pytest.fixture(scope="module")
def outcome() -> dict[str, str | None]:
    with C10dServer(LOOPBACK) as store_server, C10dServer(LOOPBACK) as other:
        client = start(
            "torch_client.py",
            store_server.address.host,
            store_server.address.port,
            other.address.port,
        )
        with client:
            try:
                output, _ = client.communicate(timeout=WITHIN_S)
            finally:
                client.kill()
        assert client.returncode == 0
        # What torch's clients left behind is the keys, and nothing else.
        assert not store_server._space._waits
        result: dict[str, str | None] = json.loads(output)
        return result


@pytest.mark.parametrize("scene", SCENES)
def test_torchs_client_at_our_server(scene: str, outcome: dict[str, str | None]) -> None:
    from torch.distributed import TCPStore

    if scene == "barriers" and not hasattr(TCPStore, "barrier"):
        pytest.skip(f"torch {torch_versions.installed()} has no barrier of a store")
    assert outcome[scene] is None, outcome[scene]


# A torch job whose stores are our store_servers.


def test_gloo_groups_of_four_and_of_two_meet_at_our_servers() -> None:
    # The pairs use the same keys at the same time, on store_servers of their own.
    with (
        C10dServer(LOOPBACK) as store_server,
        C10dServer(LOOPBACK) as left,
        C10dServer(LOOPBACK) as right,
    ):
        pairs = (left.address.port, right.address.port)
        ranks = [
            start("torch_rank.py", rank, 4, store_server.address.port, pairs[rank // 2])
            for rank in range(4)
        ]
        try:
            sums = [json.loads(rank.communicate(timeout=WITHIN_S)[0]) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    assert sums == [[1111.0, 11.0]] * 4


# Our client at torch's servers.


class Torch:
    """The two servers of a torch process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.ports: list[int] = json.loads(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def __call__(self, server: int, method: str, *arguments: object) -> Any:
        assert self._process.stdin is not None
        print(json.dumps([server, method, *arguments]), file=self._process.stdin, flush=True)
        return json.loads(self._line())


@pytest.fixture(scope="module")
def torch() -> Iterator[Torch]:
    with start("torch_servers.py") as process:
        try:
            yield Torch(process)
        finally:
            process.kill()


NEWER, OLDER = 0, 1


@pytest.fixture(params=[NEWER, OLDER], ids=["newer", "older"])
def server(request: pytest.FixtureRequest) -> int:
    which: int = request.param
    return which


@pytest.fixture
def store(torch: Torch, server: int) -> Iterator[C10dStore]:
    with C10dStore(Address("127.0.0.1", torch.ports[server])) as store:
        for entry in store.list_prefix():
            store.delete(entry.key)
        yield store


def test_values_go_both_ways(torch: Torch, server: int, store: C10dStore) -> None:
    store.set("k", b"ours")
    assert torch(server, "get", "k") == "ours"
    torch(server, "set", "k", "theirs")
    assert store.get("k") == b"theirs"
    assert store.get("none") is None
    store.set("k", b"")
    assert store.get("k") == b""
    assert store.append("k", b"ab") == 2
    assert store.append("k", b"c") == 3
    large = os.urandom(8 << 20)
    store.set("large", large)
    assert store.get("large") == large
    assert store.delete("large")
    assert not store.delete("large")


def test_several_keys(torch: Torch, server: int, store: C10dStore) -> None:
    store.multi_set({"a": b"1", "b": b"", "c": b"3"})
    assert store.multi_get(["c", "none", "b", "a", "c"]) == [b"3", None, b"", b"1", b"3"]
    assert store.multi_get([]) == []
    many = {f"many/{n:05}": b"%d" % n for n in range(3000)}
    store.multi_set(many)
    assert store.multi_get(many) == list(many.values())
    assert store.count("many/") == 3000
    assert store.count() == 3003
    assert [entry.key for entry in store.list_prefix()] == ["a", "b", "c", *many]
    assert [entry.value for entry in store.list_prefix("many/0001")] == [
        b"%d" % n for n in range(10, 20)
    ]
    assert sorted(torch(server, "list_keys")) == ["a", "b", "c", *many]


def test_counters(torch: Torch, server: int, store: C10dStore) -> None:
    assert store.add("n", 5) == 5
    assert torch(server, "add", "n", -7) == -2
    store.set("n", b"%d" % ((1 << 63) - 1))
    with pytest.raises(UsageError, match="64 bits"):
        store.add("n", 1)
    assert store.get("n") == b"%d" % ((1 << 63) - 1)
    store.set("n", b"%d" % -(1 << 63))
    with pytest.raises(UsageError, match="64 bits"):
        store.add("n", -(1 << 63))
    assert store.get("n") == b"%d" % -(1 << 63)
    store.set("n", b"text")
    with pytest.raises(UsageError, match="holds b'text'"):
        store.add("n", 1)
    assert store.get("n") == b"text"


def test_compare_set(store: C10dStore) -> None:
    assert store.compare_set("k", b"a", b"b") == (False, None, 0)
    assert store.compare_set("k", None, b"a") == (True, b"a", 0)
    assert store.compare_set("k", None, b"b") == (False, b"a", 0)
    assert store.compare_set("k", b"x", b"b") == (False, b"a", 0)
    assert store.compare_set("k", b"a", b"b") == (True, b"b", 0)
    assert store.compare_set("k", b"b", b"b") == (True, b"b", 0)
    assert store.compare_set("k", b"b", b"") == (True, b"", 0)
    assert store.compare_set("k", None, b"c") == (False, b"", 0)
    assert store.get("k") == b""


def test_waits_meet_torchs_writes(torch: Torch, server: int, store: C10dStore) -> None:
    found: list[bytes] = []
    waiter = threading.Thread(target=lambda: found.extend(store.wait(["w1", "w2"])))
    waiter.start()
    torch(server, "set", "w1", "1")
    assert store.add("meanwhile", 1) == 1  # a wait does not hold up other calls
    # The older server wakes no client for this.
    assert torch(server, "compare_set", "w2", "", "2") == "2"
    waiter.join(30)
    assert found == [b"1", b"2"]


def test_a_wait_that_expires_says_what_was_missing(
    torch: Torch, server: int, store: C10dStore
) -> None:
    store.set("there", b"1")
    with pytest.raises(TimeoutExpired) as caught:
        store.wait(["there", "gone", "off"], timeout=0.5)
    assert caught.value.waiting_for == ("gone", "off")
    torch(server, "set", "gone", "2")
    assert store.wait(["there", "gone"]) == [b"1", b"2"]


def test_torch_waits_for_our_writes(torch: Torch, server: int, store: C10dStore) -> None:
    answers: list[Any] = []
    reader = threading.Thread(target=lambda: answers.append(torch(server, "get", "ours")))
    reader.start()
    store.set("ours", b"v")
    reader.join(30)
    assert answers == ["v"]


@pytest.mark.parametrize("server", [NEWER], ids=["newer"])  # the older one has no queues
def test_a_queue_of_torch_is_no_key(torch: Torch, server: int, store: C10dStore) -> None:
    torch(server, "queue_push", "q", "x")
    assert store.get("q") is None
    with pytest.raises(TimeoutExpired) as caught:
        store.wait(["q"], timeout=0.5)
    assert caught.value.waiting_for == ("q",)
    assert torch(server, "queue_pop", "q") == "x"


def test_the_longest_key(store: C10dStore) -> None:
    longest = "k" * 8191
    store.set(longest, b"v")
    assert store.get(longest) == b"v"
    with pytest.raises(UsageError, match="at most 8191"):
        store.set(longest + "k", b"v")


def test_a_server_that_dies_is_unavailable() -> None:
    with start("torch_servers.py") as process:
        address = Address("127.0.0.1", Torch(process).ports[NEWER])
        with C10dStore(address) as store:
            store.set("k", b"v")
            process.kill()
            process.wait()
            with pytest.raises(StoreUnavailable) as caught:
                store.set("k", b"w")
            assert caught.value.maybe_applied
            with pytest.raises(StoreUnavailable) as caught:
                store.get("k")
            assert not caught.value.maybe_applied
            assert caught.value.address == str(address)
