"""The reference semantics: guarantees KS-1 to KS-6, by example and against a naive model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.errors import Fenced, InternalError, LeaseLost, UsageError
from holdfast.ids import LeaseId
from holdfast.store.keyspace import Keyspace, SavedItem, SavedLease, Snapshot, parse_counter
from holdfast.store.ops import (
    INT_MAX,
    INT_MIN,
    VALUE_BYTES_MAX,
    Add,
    AnyOp,
    Append,
    Change,
    CompareSet,
    Count,
    Delete,
    DeletePrefix,
    Entry,
    Get,
    Guarded,
    KeyWrite,
    Lease,
    LeaseGrant,
    LeaseKeep,
    LeaseRevoke,
    ListPrefix,
    MultiGet,
    MultiSet,
    Op,
    Set,
    Swap,
    Wait,
)


@pytest.fixture
def keyspace() -> Keyspace:
    return Keyspace()


def test_a_repeated_key_of_one_multi_set_changes_once(keyspace: Keyspace) -> None:
    assert keyspace.apply(MultiSet((("a", b"1"), ("b", b"2"), ("a", b"3"))), 0) == 1
    assert keyspace.take_changes() == [Change("a", b"3", 1), Change("b", b"2", 1)]


def test_to_nothing_swapped_is_deleted_and_nothing_is_written_of_nothing(
    keyspace: Keyspace,
) -> None:
    keyspace.apply(Set("k", b"1"), 0)
    assert keyspace.apply(CompareSet("k", b"2", None), 0) == Swap(False, b"1", 1)
    assert keyspace.apply(CompareSet("k", b"1", None), 0) == Swap(True, None, 0)
    assert not keyspace.apply(Delete("k"), 0)
    assert keyspace.apply(MultiSet(()), 0) == keyspace.revision == 2


def test_keys_under_a_prefix_go_at_one_revision() -> None:
    keyspace = Keyspace()
    keyspace.apply(MultiSet(tuple((key, b"") for key in ("a/2", "a", "a/1", "b"))), 0)
    keyspace.take_changes()
    assert keyspace.apply(DeletePrefix("a/"), 0) == 2
    assert keyspace.take_changes() == [Change("a/1", None, 2), Change("a/2", None, 2)]
    assert keyspace.apply(DeletePrefix("a/"), 0) == 2  # nothing was there
    assert keyspace.take_changes() == []


def test_a_wait_is_applied_only_when_its_keys_are_there(keyspace: Keyspace) -> None:
    with pytest.raises(InternalError, match="before its keys were there"):
        keyspace.apply(Wait(("a",)), 0)
    keyspace.apply(Set("a", b"1"), 0)
    assert keyspace.ready(("a", "b")) is None
    assert keyspace.missing(("a", "b")) == ("b",)
    assert keyspace.apply(Wait(("a", "a")), 0) == (Entry("a", b"1", 1),) * 2


def test_a_lease_ends_at_its_moment_and_not_before(keyspace: Keyspace) -> None:
    lease = keyspace.apply(LeaseGrant(2.0), 10.0)
    keyspace.apply(Set("k", b"", lease.id), 10.0)
    assert keyspace.next_expiry() == 12.0
    assert keyspace.apply(Count(""), 11.999) == 1
    assert keyspace.apply(Count(""), 12.0) == 0
    assert keyspace.next_expiry() is None


def test_a_kept_lease_ends_later(keyspace: Keyspace) -> None:
    lease = keyspace.apply(LeaseGrant(2.0), 10.0)
    keyspace.apply(Set("k", b"", lease.id), 10.0)
    assert keyspace.apply(LeaseKeep(lease.id), 11.0) == 2.0
    assert keyspace.apply(Get("k"), 12.5) is not None
    assert keyspace.next_expiry() == 13.0
    assert keyspace.apply(Get("k"), 13.0) is None
    with pytest.raises(LeaseLost):
        keyspace.apply(LeaseKeep(lease.id), 13.0)


def test_leases_end_in_order_each_at_its_own_revision(keyspace: Keyspace) -> None:
    late = keyspace.apply(LeaseGrant(9.0), 0).id
    early = keyspace.apply(LeaseGrant(5.0), 0).id
    empty = keyspace.apply(LeaseGrant(6.0), 0).id
    names = "zebracdfghij"
    keyspace.apply(MultiSet(tuple((name, b"") for name in names), late), 0)
    keyspace.apply(Set("m", b"", early), 0)
    keyspace.take_changes()
    keyspace.expire(100.0)
    assert keyspace.take_changes() == [
        Change("m", None, 3),
        *(Change(name, None, 4) for name in sorted(set(names))),
    ]
    assert not keyspace.apply(LeaseRevoke(empty), 100.0)


def test_revoked_leases_do_not_pile_up(keyspace: Keyspace) -> None:
    stays = keyspace.apply(LeaseGrant(1000.0), 0)
    for _ in range(1000):
        keyspace.apply(LeaseRevoke(keyspace.apply(LeaseGrant(86_400.0), 0).id), 0)
    assert len(keyspace._ends) < 200
    keyspace.check_invariants()
    assert keyspace.apply(LeaseKeep(stays.id), 999.0) == 1000.0


def test_a_revoked_lease_is_passed_over_when_its_time_comes(keyspace: Keyspace) -> None:
    keyspace.apply(LeaseRevoke(keyspace.apply(LeaseGrant(1.0), 0).id), 0)
    assert keyspace.next_expiry() == 1.0
    keyspace.expire(1.0)
    assert keyspace.next_expiry() is None
    assert keyspace.revision == 0


def test_a_curtailed_lease_ends_at_its_new_moment(keyspace: Keyspace) -> None:
    lease = keyspace.apply(LeaseGrant(60.0), 0).id
    keyspace.apply(Set("k", b"", lease), 0)
    keyspace.curtail(lease, 2.0)
    keyspace.curtail(lease, 5.0)  # too late to matter
    keyspace.check_invariants()
    assert keyspace.next_expiry() == 2.0
    assert keyspace.apply(Get("k"), 1.9) is not None
    assert keyspace.apply(Get("k"), 2.0) is None
    assert not keyspace.has_lease(lease)
    keyspace.curtail(lease, 3.0)
    assert keyspace.apply(Count(""), 60.0) == 0  # the first end is passed over
    assert keyspace.next_expiry() is None


def test_a_curtailed_lease_that_is_kept_has_its_whole_time_again(keyspace: Keyspace) -> None:
    lease = keyspace.apply(LeaseGrant(60.0), 0).id
    keyspace.curtail(lease, 2.0)
    keyspace.apply(LeaseKeep(lease), 1.0)
    keyspace.expire(2.0)
    assert keyspace.has_lease(lease)
    keyspace.expire(60.999)
    assert keyspace.has_lease(lease)
    keyspace.expire(61.0)
    assert not keyspace.has_lease(lease)


def test_a_lease_curtailed_for_the_second_time_ends_then(keyspace: Keyspace) -> None:
    lease = keyspace.apply(LeaseGrant(60.0), 0).id
    keyspace.curtail(lease, 2.0)
    keyspace.apply(LeaseKeep(lease), 1.0)
    keyspace.curtail(lease, 3.0)
    keyspace.check_invariants()
    keyspace.expire(2.9)
    assert keyspace.has_lease(lease)
    keyspace.expire(3.0)
    assert not keyspace.has_lease(lease)


def test_leases_that_are_curtailed_again_and_again_do_not_pile_up(keyspace: Keyspace) -> None:
    lease = keyspace.apply(LeaseGrant(86_400.0), 0).id
    for now in range(1000):
        keyspace.curtail(lease, now + 0.5)
        keyspace.apply(LeaseKeep(lease), now + 0.25)
        keyspace.expire(now + 0.75)
    assert len(keyspace._ends) < 200
    keyspace.check_invariants()
    assert keyspace.has_lease(lease)


def test_a_guard_is_looked_at_before_all_else(keyspace: Keyspace) -> None:
    keyspace.apply(Set("g", b"1"), 0)
    guarded: Guarded[int] = Guarded("g", b"1", Set("g", b"2"))
    assert keyspace.apply(guarded, 0) == 2
    for late in (
        guarded,
        Guarded("g", b"1", Set("k", b"", LeaseId(9))),
        Guarded("h", b"", Delete("g")),
    ):
        with pytest.raises(Fenced, match="the guard '.' has changed"):
            keyspace.apply(late, 0)
    assert keyspace.revision == 2


def test_a_guard_that_hangs_on_a_lease_ends_with_it(keyspace: Keyspace) -> None:
    lease = keyspace.apply(LeaseGrant(5.0), 0).id
    keyspace.apply(Set("g", b"1", lease), 0)
    guarded: Guarded[int] = Guarded("g", b"1", Add("n", 1))
    assert keyspace.apply(guarded, 4.9) == 1
    with pytest.raises(Fenced):
        keyspace.apply(guarded, 5.0)
    assert keyspace.apply(Get("n"), 5.0) == Entry("n", b"1", 2)


WRITES: list[tuple[Op[Any], str]] = [
    (Set("c", b""), "2 keys of 2"),
    (MultiSet((("c", b""), ("b", b""))), "2 keys of 2"),
    (CompareSet("c", None, b"1"), "2 keys of 2"),
    (Add("c", 1), "2 keys of 2"),
    (Append("c", b""), "2 keys of 2"),
    (Set("a", b"1234567"), "10 bytes of 10, no room for 3"),
    (MultiSet((("a", b"123456"), ("b", b"3456"))), "10 bytes of 10, no room for 2"),
    (CompareSet("b", b"1234", b"12345"), "10 bytes of 10, no room for 1"),
    (Add("b", 9999), "10 bytes of 10, no room for 1"),
    (Append("b", b"5"), "10 bytes of 10, no room for 1"),
    (LeaseGrant(1.0), "1 leases, the most"),
]


@pytest.mark.parametrize(("op", "why"), WRITES)
def test_ks6_a_full_store_takes_nothing_more(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch, op: Op[Any], why: str
) -> None:
    for name, most in (("KEYS_MAX", 2), ("BYTES_MAX", 10), ("LEASES_MAX", 1)):
        monkeypatch.setattr(f"holdfast.store.keyspace.{name}", most)
    lease = keyspace.apply(LeaseGrant(9.0), 0).id
    keyspace.apply(Set("a", b"1234"), 0)
    keyspace.apply(Set("b", b"1234", lease), 0)
    before = keyspace.dump()
    with pytest.raises(UsageError, match=f"^the store is full: it has {why}$"):
        keyspace.apply(op, 0)
    assert keyspace.dump() == before  # KS-4
    # What makes it no larger is taken, and makes room, as does what is deleted.
    keyspace.apply(Set("a", b"4321"), 0)
    keyspace.apply(LeaseRevoke(lease), 0)
    keyspace.apply(Set("c", b"1234", keyspace.apply(LeaseGrant(1.0), 0).id), 0)
    keyspace.apply(Delete("a"), 0)
    keyspace.apply(Append("c", b"56789"), 0)
    keyspace.check_invariants()


def test_a_count_of_bytes_that_is_wrong_is_found() -> None:
    keyspace = filled()
    keyspace._bytes += 1
    with pytest.raises(InternalError, match="KS-6"):
        keyspace.check_invariants()


def test_a_value_does_not_grow_beyond_its_limit(keyspace: Keyspace) -> None:
    assert keyspace.apply(Append("k", bytes(VALUE_BYTES_MAX)), 0) == VALUE_BYTES_MAX
    with pytest.raises(UsageError, match="'k' would grow to 8388609 bytes, at most 8388608"):
        keyspace.apply(Append("k", b"!"), 0)
    assert keyspace.revision == 1


@pytest.mark.parametrize(
    ("value", "number"), [(b"0", 0), (b"-0", 0), (b"007", 7), (b"%d" % INT_MIN, INT_MIN)]
)
def test_counters_that_are_numbers(value: bytes, number: int) -> None:
    assert parse_counter("k", value) == number


@pytest.mark.parametrize("value", [b"", b"-", b"--1", b"1e3", "\u0661".encode(), b"1" * 21, b"1\n"])
def test_counters_that_are_not(value: bytes) -> None:
    with pytest.raises(UsageError, match="key 'k' holds .* not a decimal integer"):
        parse_counter("k", value)


def test_a_number_beyond_64_bits_is_no_counter(keyspace: Keyspace) -> None:
    keyspace.apply(Set("k", b"9" * 20), 0)
    with pytest.raises(UsageError, match="64 bits"):
        keyspace.apply(Add("k", 0), 0)


def test_a_key_leaves_its_lease_when_it_is_overwritten_or_deleted(keyspace: Keyspace) -> None:
    lease = keyspace.apply(LeaseGrant(1.0), 0).id
    keyspace.apply(MultiSet((("a", b""), ("b", b""), ("c", b"")), lease), 0)
    keyspace.apply(Set("a", b"1"), 0)
    keyspace.apply(Delete("b"), 0)
    keyspace.apply(Set("b", b"2"), 0)
    keyspace.check_invariants()
    assert keyspace.apply(MultiSet((), None), 1.0) == 5
    assert [item.key for item in keyspace.dump().items] == ["a", "b"]


def test_the_state_of_a_key_and_of_a_prefix(keyspace: Keyspace) -> None:
    keyspace.apply(MultiSet((("p/b", b"1"), ("p/a", b"2"), ("p", b"3"))), 0)
    assert keyspace.state_of("p", prefix=False) == [Change("p", b"3", 1)]
    assert keyspace.state_of("p/c", prefix=False) == []
    assert keyspace.state_of("p/", prefix=True) == [Change("p/a", b"2", 1), Change("p/b", b"1", 1)]


# Saving and comparing.


def filled() -> Keyspace:
    keyspace = Keyspace()
    lease = keyspace.apply(LeaseGrant(5.0), 1.0).id
    keyspace.apply(LeaseGrant(7.0), 1.0)
    keyspace.apply(Set("plain", b"1"), 1.0)
    keyspace.apply(Set("leased", b"2", lease), 1.0)
    keyspace.take_changes()
    return keyspace


def test_a_loaded_keyspace_goes_on_like_the_saved_one() -> None:
    saved, loaded = filled(), Keyspace.load(filled().dump())
    assert loaded.dump() == saved.dump()
    for op in (LeaseGrant(1.0), Add("n", 1), LeaseKeep(LeaseId(2)), ListPrefix("")):
        assert loaded.apply(op, 2.0) == saved.apply(op, 2.0)
    loaded.expire(6.0)
    saved.expire(6.0)
    assert loaded.take_changes() == saved.take_changes()
    assert loaded.dump() == saved.dump()


GOOD = filled().dump()
BROKEN = [
    (replace(GOOD, revision=1), "KS-1"),
    (replace(GOOD, items=(SavedItem("k", b"", 0, None),)), "KS-1"),
    (replace(GOOD, items=(SavedItem("k", b"", 1, LeaseId(99)),)), "KS-2"),
    (replace(GOOD, next_lease=2), "a lease was never granted"),
    (replace(GOOD, leases=(SavedLease(LeaseId(0), 1.0, 1.0),), items=()), "never granted"),
]


@pytest.mark.parametrize(("snapshot", "message"), BROKEN)
def test_a_snapshot_that_contradicts_itself_is_refused(snapshot: Snapshot, message: str) -> None:
    with pytest.raises(UsageError, match=f"snapshot: .*{message}"):
        Keyspace.load(snapshot)


def test_a_lost_end_of_a_lease_is_found() -> None:
    keyspace = filled()
    keyspace._ends.pop(0)
    with pytest.raises(InternalError, match="KS-3"):
        keyspace.check_invariants()


def test_changes_since_an_older_keyspace() -> None:
    older, newer = filled(), filled()
    newer.apply(Set("new", b"3"), 1.0)
    newer.apply(Delete("plain"), 1.0)
    newer.apply(Append("leased", b"+"), 1.0)
    assert newer.changes_since(older) == [
        Change("new", b"3", 3),
        Change("leased", b"2+", 5),
        Change("plain", None, 5),
    ]
    assert newer.changes_since(newer) == [  # changes that were never taken are doubtful
        Change("new", b"3", 3),
        Change("leased", b"2+", 5),
        Change("plain", None, 5),
    ]
    assert filled().changes_since(filled()) == []


def test_what_was_never_published_is_told_again() -> None:
    ahead, file = filled(), filled()
    ahead.apply(Delete("plain"), 1.0)  # not written, say because the disk was full
    assert file.changes_since(ahead) == [Change("plain", b"1", 1)]
    file.apply(Delete("plain"), 1.0)  # then by another client
    assert file.changes_since(ahead) == [Change("plain", None, 3)]


# Against a model.

KEYS = st.sampled_from(["a", "a/1", "a/2", "b", "é"])
VALUES = st.sampled_from([b"", b"0", b"1", b"-5", b"x", b"%d" % INT_MAX])
MAYBE = st.none() | VALUES
LEASE_IDS = st.integers(1, 5).map(LeaseId)
LEASES = st.none() | LEASE_IDS
KEY_WRITES: st.SearchStrategy[KeyWrite] = st.one_of(
    st.builds(Set, KEYS, VALUES, LEASES),
    st.builds(Add, KEYS, st.sampled_from([1, 0, -7, INT_MAX, INT_MIN])),
    st.builds(CompareSet, KEYS, MAYBE, MAYBE, LEASES),
    st.builds(Delete, KEYS),
    st.builds(DeletePrefix, st.sampled_from(["a", "a/", "c"])),
    st.builds(Append, KEYS, VALUES),
    st.builds(MultiSet, st.dictionaries(KEYS, VALUES).map(lambda d: tuple(d.items())), LEASES),
)
OPS: st.SearchStrategy[AnyOp] = st.one_of(
    KEY_WRITES,
    st.tuples(KEYS, VALUES, KEY_WRITES).map(lambda parts: Guarded(*parts)),
    st.builds(Get, KEYS),
    st.builds(MultiGet, st.lists(KEYS).map(tuple)),
    st.builds(Count, st.sampled_from(["", "a", "a/", "c"])),
    st.builds(ListPrefix, st.sampled_from(["", "a", "a/", "c"])),
    st.builds(LeaseGrant, st.sampled_from([1.0, 2.0, 5.0])),
    st.builds(LeaseKeep, LEASE_IDS),
    st.builds(LeaseRevoke, LEASE_IDS),
)


class Model:
    """The same semantics by copying and scanning; slow, and plain to read."""

    def __init__(self) -> None:
        self.revision = 0
        self.keys: dict[str, tuple[bytes, int, int | None]] = {}
        self.leases: dict[int, tuple[float, float]] = {}  # ttl, end
        self.granted = 0

    def expire(self, now: float) -> None:
        for end, lease in sorted((end, lease) for lease, (_, end) in self.leases.items()):
            if end <= now:
                self.drop(lease)

    def drop(self, lease: int) -> None:
        del self.leases[lease]
        mine = [key for key, (_, _, holder) in self.keys.items() if holder == lease]
        self.revision += bool(mine)
        for key in mine:
            del self.keys[key]

    def entry(self, key: str) -> Entry | None:
        return Entry(key, *self.keys[key][:2]) if key in self.keys else None

    def write(self, items: dict[str, bytes], lease: int | None) -> int:
        if lease is not None and lease not in self.leases:
            raise LeaseLost("")
        self.revision += bool(items)
        for key, value in items.items():
            self.keys[key] = (value, self.revision, lease)
        return self.revision

    def delete(self, key: str) -> bool:
        if key not in self.keys:
            return False
        del self.keys[key]
        self.revision += 1
        return True

    def delete_all(self, keys: list[str]) -> int:
        self.revision += bool(keys)
        for key in keys:
            del self.keys[key]
        return self.revision

    def apply(self, op: AnyOp, now: float) -> Any:  # as many cases as operations
        self.expire(now)
        match op:
            case Get(key):
                return self.entry(key)
            case MultiGet(keys):
                return tuple(map(self.entry, keys))
            case Set(key, value, lease):
                return self.write({key: value}, lease)
            case MultiSet(items, lease):
                return self.write(dict(items), lease)
            case Add(key, amount):
                old, _, holder = self.keys.get(key, (b"0", 0, None))
                try:
                    total = int(old.decode()) + amount
                except ValueError:
                    raise UsageError from None
                if not -(2**63) <= total < 2**63:
                    raise UsageError
                self.write({key: str(total).encode()}, holder)
                return total
            case Append(key, value):
                old, _, holder = self.keys.get(key, (b"", 0, None))
                self.write({key: old + value}, holder)
                return len(old + value)
            case CompareSet(key, expected, desired, lease):
                found = self.entry(key)
                if desired is not None and lease is not None and lease not in self.leases:
                    raise LeaseLost("")
                if (found and found.value) != expected:
                    return Swap(False, *(found[1:] if found else (None, 0)))
                if desired is None:
                    self.delete(key)
                    return Swap(True, None, 0)
                return Swap(True, desired, self.write({key: desired}, lease))
            case Delete(key):
                return self.delete(key)
            case DeletePrefix(prefix):
                return self.delete_all([key for key in self.keys if key.startswith(prefix)])
            case Count(prefix):
                return len([key for key in self.keys if key.startswith(prefix)])
            case ListPrefix(prefix):
                return tuple(
                    Entry(key, *self.keys[key][:2])
                    for key in sorted(self.keys)
                    if key.startswith(prefix)
                )
            case LeaseGrant(ttl):
                self.granted += 1
                self.leases[self.granted] = (ttl, now + ttl)
                return Lease(LeaseId(self.granted), ttl)
            case LeaseKeep(lease):
                if lease not in self.leases:
                    raise LeaseLost("")
                ttl = self.leases[lease][0]
                self.leases[lease] = (ttl, now + ttl)
                return ttl
            case LeaseRevoke(lease):
                alive = lease in self.leases
                if alive:
                    self.drop(lease)
                return alive
            case Guarded(key, guard, write):
                if self.keys.get(key, (None,))[0] != guard:
                    raise Fenced("")
                return self.apply(write, now)
        raise NotImplementedError(op)

    def curtail(self, lease: int, at: float) -> None:
        if lease in self.leases:
            ttl, end = self.leases[lease]
            self.leases[lease] = (ttl, min(end, at))


class KeyspaceMachine(RuleBasedStateMachine):
    """Random operations at random moments, on the keyspace and on the model."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.keyspace = Keyspace()
        self.model = Model()
        self.replica: dict[str, bytes] = {}
        self.newest: dict[str, int] = {}
        self.last_revision = 0

        for ttl in (2.0, 5.0, 30.0):
            self.operation(LeaseGrant(ttl))

    @rule(ops=st.lists(OPS, min_size=1, max_size=5))
    def operations(self, ops: list[AnyOp]) -> None:
        for op in ops:
            self.operation(op)

    def operation(self, op: AnyOp) -> None:
        try:
            expected = self.model.apply(op, self.now)
        except (UsageError, LeaseLost, Fenced) as error:
            self.keyspace.expire(self.now)
            before = self.keyspace.dump()
            with pytest.raises(type(error)):
                self.keyspace.apply(op, self.now)
            assert self.keyspace.dump() == before  # KS-4
        else:
            assert self.keyspace.apply(op, self.now) == expected

    @rule(seconds=st.sampled_from([0.25, 1.0, 2.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(lease=LEASE_IDS, seconds=st.sampled_from([0.0, 0.5, 3.0]))
    def curtail(self, lease: LeaseId, seconds: float) -> None:
        self.keyspace.curtail(lease, self.now + seconds)
        self.model.curtail(lease, self.now + seconds)
        assert self.keyspace.has_lease(lease) == (lease in self.model.leases)

    @rule()
    def expire(self) -> None:
        self.keyspace.expire(self.now)
        self.model.expire(self.now)

    @rule()
    def save_and_load(self) -> None:
        self.take_changes()
        self.keyspace = Keyspace.load(self.keyspace.dump())

    @rule()
    def take_changes(self) -> None:
        """The changes alone give the keys, each newer than all before it (KS-1, KS-5)."""
        for key, value, revision in self.keyspace.take_changes():
            assert revision > self.newest.get(key, 0)
            assert revision >= self.last_revision
            self.newest[key] = self.last_revision = revision
            if value is None:
                del self.replica[key]
            else:
                self.replica[key] = value
        entries = self.keyspace.dump().items
        assert self.replica == {item.key: item.value for item in entries}
        assert all(self.newest[item.key] == item.revision for item in entries)

    @invariant()
    def agrees(self) -> None:
        self.keyspace.check_invariants()
        saved = self.keyspace.dump()
        assert len(self.keyspace) == len(saved.items)
        assert saved.revision == self.model.revision
        assert {item.key: item[1:] for item in saved.items} == self.model.keys
        assert {lease.id: lease[1:] for lease in saved.leases} == self.model.leases
        earliest = self.keyspace.next_expiry()
        if saved.leases:
            assert earliest is not None
            assert earliest <= min(lease.ends_at for lease in saved.leases)


KeyspaceMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=25, deadline=None
)


@pytest.mark.timeout(400)  # of a failure the smallest example is looked for, for minutes
class TestAgainstTheModel(KeyspaceMachine.TestCase):  # type: ignore[misc, valid-type]
    """The state machine, as pytest collects it."""
