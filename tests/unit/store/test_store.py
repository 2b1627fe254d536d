"""The verbs of the store protocol: each makes one operation and unpacks its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import UsageError
from holdfast.ids import LeaseId
from holdfast.net.address import Address
from holdfast.store import ops
from holdfast.store.ops import Entry, Lease, Op, Swap
from holdfast.store.store import DEFAULT_TIMEOUT_S, Store, Watch

R = TypeVar("R")
ENTRY = Entry("k", b"v", 3)
LEASE = Lease(LeaseId(7), 2.5)


class ScriptedStore(Store):
    """Gives one prepared result, and remembers what it was asked."""

    endpoint = "script://"

    def __init__(self, result: object = None) -> None:
        self.result: Any = result
        self.asked: list[object] = []
        self.left: float | None = None
        self.closed = 0

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        self.asked.append(op)
        self.left = deadline.remaining()
        result: R = self.result
        return result

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        self.asked.append((key, prefix))
        self.left = deadline.remaining()
        result: Watch = self.result
        return result

    def _close(self) -> None:
        self.closed += 1


CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], object, object, object]] = [
    ("get", ("k",), {}, ops.Get("k"), ENTRY, b"v"),
    ("get", ("k",), {}, ops.Get("k"), None, None),
    ("get_entry", ("k",), {}, ops.Get("k"), ENTRY, ENTRY),
    ("multi_get", (["k", "j"],), {}, ops.MultiGet(("k", "j")), (ENTRY, None), [b"v", None]),
    ("wait", (["k"],), {}, ops.Wait(("k",)), (ENTRY,), [b"v"]),
    ("count", (), {}, ops.Count(""), 4, 4),
    ("count", ("p",), {}, ops.Count("p"), 4, 4),
    ("list_prefix", ("p",), {}, ops.ListPrefix("p"), (ENTRY,), [ENTRY]),
    ("set", ("k", b"v"), {}, ops.Set("k", b"v"), 9, 9),
    ("set", ("k", b"v"), {"lease": LEASE}, ops.Set("k", b"v", LEASE.id), 9, 9),
    ("multi_set", ({"k": b"v"},), {}, ops.MultiSet((("k", b"v"),)), 9, 9),
    (
        "multi_set",
        ({"k": b"v"},),
        {"lease": LEASE},
        ops.MultiSet((("k", b"v"),), LEASE.id),
        9,
        9,
    ),
    ("add", ("k",), {}, ops.Add("k", 1), 5, 5),
    ("add", ("k", -3), {}, ops.Add("k", -3), 5, 5),
    (
        "compare_set",
        ("k", None, b"v"),
        {"lease": LEASE},
        ops.CompareSet("k", None, b"v", LEASE.id),
        Swap(True, b"v", 3),
        (True, b"v", 3),
    ),
    (
        "compare_set",
        ("k", b"v", None),
        {},
        ops.CompareSet("k", b"v", None),
        Swap(True, None, 0),
        (True, None, 0),
    ),
    ("append", ("k", b"v"), {}, ops.Append("k", b"v"), 6, 6),
    ("delete", ("k",), {}, ops.Delete("k"), True, True),
    ("delete_prefix", ("k/",), {}, ops.DeletePrefix("k/"), 7, 7),
    ("grant_lease", (2,), {}, ops.LeaseGrant(2.0), LEASE, LEASE),
    ("keep_lease", (LEASE,), {}, ops.LeaseKeep(LEASE.id), 2.5, 2.5),
    ("revoke_lease", (LEASE,), {}, ops.LeaseRevoke(LEASE.id), True, True),
]


@pytest.mark.parametrize(("verb", "args", "options", "op", "result", "returned"), CALLS)
def test_a_verb_is_one_operation(
    verb: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
    op: object,
    result: object,
    returned: object,
) -> None:
    store = ScriptedStore(result)
    assert getattr(store, verb)(*args, **options) == returned
    assert store.asked == [op]
    assert store.left is not None
    assert 0 < store.left <= DEFAULT_TIMEOUT_S
    getattr(store, verb)(*args, **options, timeout=None)
    assert store.left is None
    getattr(store, verb)(*args, **options, timeout=0)
    assert store.left == 0.0


def test_a_watch_is_of_a_key_or_of_a_prefix() -> None:
    store = ScriptedStore()
    store.watch("k")
    store.watch("", prefix=True)
    assert store.asked == [("k", False), ("", True)]
    with pytest.raises(UsageError, match="must not be empty"):
        store.watch("")


def test_too_many_items_are_refused() -> None:
    store = ScriptedStore()
    with pytest.raises(UsageError, match="items: 65537 given, at most 65536 in one call"):
        store.multi_set({f"{n}": b"" for n in range(65537)})
    assert store.asked == []


def test_wrong_arguments_reach_no_backend() -> None:
    store: Any = ScriptedStore()
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: store.multi_set([("k", b"")]), "must be a mapping"),
        (lambda: store.add("k", 1.5), r"amount 1\.5: must be an int"),
        (lambda: store.add("k", 1 << 63), "must fit in 64 bits"),
        (lambda: store.keep_lease(7), "lease 7: must be what grant_lease returned"),
        (lambda: store.set("k", b"", timeout=-1), "timeout -1"),
    ]
    for call, message in calls:
        with pytest.raises(UsageError, match=message):
            call()
    assert store.asked == []


def test_a_store_is_closed_by_with() -> None:
    with ScriptedStore() as store:
        assert repr(store) == "<ScriptedStore script://>"
    assert store.closed == 1


class NumberWatch(Watch):
    def __init__(self) -> None:
        self.closed = False
        self.limits: list[float | None] = []

    def _next(self, deadline: Deadline) -> ops.Change:
        self.limits.append(deadline.at)
        return ops.Change("k", b"", len(self.limits))

    def close(self) -> None:
        self.closed = True


def test_a_watch_can_be_iterated_and_is_closed_by_with() -> None:
    with NumberWatch() as watch:
        found = [change.revision for change, _ in zip(watch, range(3), strict=False)]
        assert found[:3] == [1, 2, 3]
        assert not any(watch.limits)
        watch.next(timeout=5)
        assert (watch.limits[-1] or 0) > SYSTEM_CLOCK.monotonic()
    assert watch.closed


@pytest.mark.parametrize(
    ("endpoint", "addresses"),
    [
        ("memory://", ()),
        ("file:///a,b?c:d", ()),
        ("tcp://host:1/prefix", (Address("host", 1),)),
        ("etcd://a:1,[::1]:2/p?protocol=https", (Address("a", 1), Address("::1", 2))),
    ],
)
def test_where_its_servers_are(endpoint: str, addresses: tuple[Address, ...]) -> None:
    store = ScriptedStore()
    store.endpoint = endpoint
    assert store.addresses == addresses
