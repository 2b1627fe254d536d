"""A program with torch's own store client: tries every method against the server it is given.

Usage: torch_client.py HOST PORT OTHER_PORT. Prints one JSON object: for each scene null, or the
traceback of what went wrong. It is run in a process of its own, since some of torch's methods
keep Python's lock while they wait for a server, which would then be in the same process.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

SHORT = timedelta(milliseconds=200)
HOST = "127.0.0.1"
PORTS = (0, 0)

SCENES: dict[str, Callable[[], None]] = {}


def scene(function: Callable[[], None]) -> Callable[[], None]:
    SCENES[function.__name__] = function
    return function


def connect(port: int | None = None, **options: Any) -> Any:
    from torch.distributed import TCPStore

    options = {"wait_for_workers": False, "timeout": timedelta(seconds=30), **options}
    return TCPStore(HOST, PORTS[0] if port is None else port, is_master=False, **options)


def in_thread(function: Callable[[], object]) -> Callable[[], Any]:
    """Start it now; the returned function waits for its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()

    def result() -> Any:
        thread.join(30)
        assert results, "the thread failed or hangs"
        return results[0]

    return result


def fails(function: Callable[[], object], *kinds: str) -> str:
    """Check that it raises an error of one of these kinds; return its text."""
    try:
        function()
    except Exception as error:
        if type(error).__name__ in kinds:
            return str(error)
        raise
    raise AssertionError("nothing was raised")


@scene
def set_and_get() -> None:
    store = connect()
    store.set("sg", "value")
    assert store.get("sg") == b"value"
    store.set("sg", "")
    assert store.get("sg") == b""
    store.set("ключ", bytes(range(256)).decode("latin1"))
    assert store.get("ключ").decode() == bytes(range(256)).decode("latin1")
    large = "x" * (8 << 20)
    store.set("large", large)
    assert connect().get("large") == large.encode()
    store.delete_key("large")


@scene
def add() -> None:
    store, other = connect(), connect()
    assert [store.add("a", 5), other.add("a", -7), store.add("a", 0)] == [5, -2, -2]
    assert store.get("a") == b"-2"
    store.set("a", "  +12abc")
    assert store.add("a", 1) == 13
    store.set("a", str((1 << 63) - 1))
    assert store.add("a", 1) == -(1 << 63)
    store.set("a", "no number")
    fails(lambda: store.add("a", 1), "DistNetworkError")
    assert other.get("a") == b"no number"


@scene
def compare_set() -> None:
    store = connect()
    assert store.compare_set("cs", "old", "new") == b"old"
    assert not store.check(["cs"])
    assert store.compare_set("cs", "", "first") == b"first"
    assert store.compare_set("cs", "", "second") == b"first"
    assert store.compare_set("cs", "first", "second") == b"second"
    assert store.compare_set("cs", "first", "third") == b"second"


@scene
def check_and_delete() -> None:
    store = connect()
    store.set("cd", "1")
    assert store.check(["cd"])
    assert not store.check(["cd", "none"])
    assert store.delete_key("cd") is True
    assert store.delete_key("cd") is False
    assert not store.check(["cd"])


@scene
def wait_times_out_and_the_store_goes_on() -> None:
    store = connect()
    began = time.monotonic()
    text = fails(lambda: store.wait(["never", "neither"], SHORT), "DistStoreError")
    assert "/never" in text, text
    assert time.monotonic() - began >= 0.19
    store.set("w1", "v")
    assert store.get("w1") == b"v"
    store.wait(["w1"], SHORT)
    store.set_timeout(SHORT)
    fails(lambda: store.get("never"), "DistStoreError")
    for _ in range(50):  # cancels that meet the answer on their way
        try:
            store.wait(["w1"], timedelta(milliseconds=0))
        except RuntimeError:
            pass
        assert store.add("w2", 0) == 0


@scene
def waits_are_woken_by_every_kind_of_write() -> None:
    waiters = [connect() for _ in range(6)]
    store = connect()
    writes: list[Callable[[], object]] = [
        lambda: store.set("wake0", "v"),
        lambda: store.add("wake1", 1),
        lambda: store.compare_set("wake2", "", "v"),
        lambda: store.append("wake3", "v"),
        lambda: store.multi_set(["wake4", "other"], ["v", "w"]),
        lambda: store.queue_push("wake5", "v"),
    ]
    done = [in_thread(partial(waiter.wait, [f"wake{n}"])) for n, waiter in enumerate(waiters)]
    for _ in range(500):  # so that most waits really wait; the outcome does not depend on it
        store.add("ticks", 1)
    for write in writes:
        write()
    assert [result() for result in done] == [None] * 6


@scene
def get_blocks_until_the_key_is_there() -> None:
    store, other = connect(), connect()
    value = in_thread(lambda: store.get("late"))
    other.set("late", "here")
    assert value() == b"here"


@scene
def append() -> None:
    store = connect()
    assert store.has_extended_api()
    for part in ("a", "", "bc"):
        store.append("ap", part)
    assert store.get("ap") == b"abc"


@scene
def multi() -> None:
    store = connect()
    store.multi_set(["m1", "m2"], ["1", ""])
    assert store.multi_get(["m2", "m1", "m1"]) == [b"", b"1", b"1"]
    keys = [f"many{n}" for n in range(5000)]
    store.multi_set(keys, [key * 3 for key in keys])
    assert store.multi_get(keys) == [(key * 3).encode() for key in keys]
    for key in keys:
        store.delete_key(key)


@scene
def queues() -> None:
    store, other = connect(), connect()
    for value in ("1", "22", "333"):
        store.queue_push("q", value)
    assert store.queue_len("q") == 3
    assert [other.queue_pop("q"), store.queue_pop("q")] == [b"1", b"22"]
    assert store.check(["q"])
    assert store.queue_pop("q", False) == b"333"
    fails(lambda: store.queue_pop("q", False), "QueueEmptyError")
    assert store.queue_len("q") == 0
    late = in_thread(lambda: store.queue_pop("q"))
    other.queue_push("q", "late")
    assert late() == b"late"


@scene
def keys_are_counted_and_listed() -> None:
    store = connect(PORTS[1])
    assert store.num_keys() == 0
    store.set("x", "1")
    connect(PORTS[1], world_size=3, wait_for_workers=True).set("y", "2")
    assert store.num_keys() == 3  # with torch's own count of workers
    assert sorted(store.list_keys()) == ["x", "y"]
    store.delete_key("x")
    store.delete_key("y")


@scene
def clones_and_prefixes() -> None:
    from torch.distributed import PrefixStore

    store = connect()
    prefixed = PrefixStore("p", store)
    prefixed.set("k", "v")
    assert store.get("p/k") == b"v"
    assert prefixed.get("k") == b"v"
    assert prefixed.list_keys() == ["k"]
    inner = PrefixStore("q", prefixed)
    assert inner.add("n", 2) == 2
    assert store.get("p/q/n") == b"2"
    clone = store.clone()
    waiting = in_thread(lambda: clone.get("p/late"))
    prefixed.set("late", "1")
    assert waiting() == b"1"
    assert prefixed.delete_key("k") is True


@scene
def barriers() -> None:
    from torch.distributed import PrefixStore

    stores = [connect() for _ in range(3)]
    done = [in_thread(partial(store.barrier, "b", 3)) for store in stores]
    assert [result() for result in done] == [None] * 3
    assert stores[0].get("b") == b"3"
    fails(lambda: stores[0].barrier("b2", 2, SHORT), "DistStoreError")
    stores[1].barrier("b2", 2)  # a rank that gave up stays counted
    views = [PrefixStore("pb", store) for store in stores]
    done = [in_thread(partial(view.barrier, "b", 3)) for view in views]
    assert [result() for result in done] == [None] * 3


@scene
def limits() -> None:
    store = connect()
    store.set("k" * 8191, "v")
    assert store.get("k" * 8191) == b"v"
    store.delete_key("k" * 8191)
    fails(lambda: (store.set("k" * 8192, "v"), store.get("x")), "DistNetworkError")
    store = connect()
    fails(lambda: (store.set("k", "v" * ((8 << 20) + 1)), store.add("x", 1)), "DistNetworkError")


@scene
def two_servers_are_apart() -> None:
    here, there = connect(PORTS[0]), connect(PORTS[1])
    here.set("where", "here")
    assert not there.check(["where"])
    there.set("where", "there")
    assert here.get("where") == b"here"


def main() -> None:
    global HOST, PORTS
    HOST, PORTS = sys.argv[1], (int(sys.argv[2]), int(sys.argv[3]))
    outcome: dict[str, str | None] = {}
    for name, function in SCENES.items():
        try:
            function()
            outcome[name] = None
        except Exception:
            outcome[name] = traceback.format_exc()
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
