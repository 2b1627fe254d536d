"""Did a store keep its word? Checks of recorded histories: K1, K3 and K4 of `store.py`.

Rule 1: this file runs nothing and reads no clock; it judges what was recorded.
Rule 2: it does not use the keyspace, so that a wrong keyspace cannot vouch for itself.

`check_key` decides whether the calls on one key are linearizable: whether each can be given one
moment between its beginning and its end such that, in the order of these moments, every result
is the one that a store gives. It searches depth-first (Wing and Gong), and never looks twice at
the same set of performed calls with the same state (Lowe). A call whose outcome is unknown (it
timed out, or its connection broke) may take its moment at any time after its beginning, or
never. Linearizability is a property of each key alone (Herlihy and Wing), so a history is split
by `split_by_key` first; that keeps the search small.

Revisions are part of the results: along a key's order they must strictly increase, and every
reader of a write must see the same one. So a stale read is found though the bytes are equal.

Each check returns None, or a text that shows the violation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias, assert_never

from holdfast.errors import UsageError
from holdfast.ids import LeaseId
from holdfast.store.ops import (
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
    LeaseGrant,
    LeaseKeep,
    LeaseRevoke,
    ListPrefix,
    MultiGet,
    MultiSet,
    Set,
    Swap,
    Wait,
)

__all__ = [
    "UNKNOWN",
    "Call",
    "Expire",
    "Unknown",
    "check_key",
    "check_lease",
    "check_revisions",
    "check_watch",
    "split_by_key",
]


class Unknown:
    """The type of `UNKNOWN`, the result of a call that no client saw."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = Unknown()


@dataclass(frozen=True, slots=True)
class Expire:
    """The end of a lease as it befalls one key: removes the key if it hangs on this lease."""

    key: str
    lease: LeaseId


KeyOp: TypeAlias = Get | Set | Add | CompareSet | Delete | Append | Expire


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client: what was asked, what came back, and between which moments.

    `called` and `returned` lie on one common scale: the times, or the numbers, of events. With
    `result=UNKNOWN`, `returned` means nothing. Calls that failed for certain, and so changed
    nothing, do not belong in a history.
    """

    client: str
    op: AnyOp | Expire
    result: object
    called: float
    returned: float = float("inf")

    def __str__(self) -> str:
        if self.result is UNKNOWN:
            return f"[{self.called:g}, ...] {self.client}: {self.op} -> unknown"
        return f"[{self.called:g}, {self.returned:g}] {self.client}: {self.op} -> {self.result!r}"


class _State(NamedTuple):
    """One key. `revision` is exact if `seen`, else the least that it can be."""

    value: bytes | None = None
    revision: int = 0
    seen: bool = True
    lease: LeaseId | None = None
    ended: frozenset[LeaseId] = frozenset()


# The model: what one call does to one key.


def _step(state: _State, op: KeyOp, result: object) -> _State | None:
    """Return the state after the call, or None if it cannot have given this result now."""
    match op:
        case Get():
            return _observe(state, result)
        case Set(_, value, lease):
            return None if lease in state.ended else _write(state, value, lease, result)
        case Add(_, amount):
            total = _counter(state.value)
            if total is None or result not in (UNKNOWN, total + amount):
                return None
            return _change(state, b"%d" % (total + amount), state.lease)
        case Append(_, value):
            grown = (state.value or b"") + value
            return (
                None if result not in (UNKNOWN, len(grown)) else _change(state, grown, state.lease)
            )
        case Delete():
            if result not in (UNKNOWN, state.value is not None):
                return None
            return _change(state, None, None)
        case CompareSet():
            return _swap(state, op, result)
        case Expire(_, lease):
            # Where it would remove nothing, leaving it out is as good, and cheaper.
            if state.value is None or state.lease != lease:
                return None
            return _change(state, None, None)._replace(ended=state.ended | {lease})
        case _:
            assert_never(op)


def _counter(value: bytes | None) -> int | None:
    try:
        return int(value or b"0")
    except ValueError:
        return None


def _observe(state: _State, result: object) -> _State | None:
    """Compare what a reader saw with the key; the revision that it saw becomes certain."""
    if result is None:
        return state if state.value is None else None
    if not isinstance(result, Entry) or result.value != state.value:
        return None
    if result.revision < state.revision or (state.seen and result.revision != state.revision):
        return None
    return state._replace(revision=result.revision, seen=True)


def _change(state: _State, value: bytes | None, lease: LeaseId | None) -> _State:
    """Write at a revision that the writer was not told."""
    if value is None and state.value is None:
        return state  # deleting nothing takes no revision
    return state._replace(value=value, revision=state.revision + 1, seen=False, lease=lease)


def _write(state: _State, value: bytes, lease: LeaseId | None, result: object) -> _State | None:
    """Write at the revision that the writer was told, or, if that is unknown, at some revision."""
    if result is UNKNOWN:
        return _change(state, value, lease)
    if not isinstance(result, int) or result <= state.revision:
        return None
    return state._replace(value=value, revision=result, seen=True, lease=lease)


def _swap(state: _State, op: CompareSet, result: object) -> _State | None:
    matches = state.value == op.expected
    if not isinstance(result, Swap):
        return _change(state, op.desired, op.lease) if matches else state
    if result.ok != matches:
        return None
    if not matches:
        if result.value is None:
            return state if state.value is None and result.revision == 0 else None
        return _observe(state, Entry(op.key, result.value, result.revision))
    if op.desired is None:
        return _change(state, None, None) if result[1:] == (None, 0) else None
    if result.value != op.desired or op.lease in state.ended:
        return None
    return _write(state, op.desired, op.lease, result.revision)


# K1: linearizability of one key.


class _Event:
    """The beginning or the end of a call, in a doubly linked list in order of time."""

    __slots__ = ("end", "index", "next", "prev")

    def __init__(self, index: int, end: _Event | None = None) -> None:
        self.index = index
        self.end = end  # the call's end if this is its beginning, and if it has one
        self.next: _Event | None = None
        self.prev: _Event = self


def check_key(history: Iterable[Call]) -> str | None:
    """Return None if the calls, all on one key, are linearizable; else show that they are not."""
    calls = sorted(history, key=lambda call: call.called)
    ops = [_key_op(call) for call in calls]
    head, ends = _link(calls)
    state = _State()
    done = 0
    tried: set[tuple[int, _State]] = set()
    stack: list[tuple[_Event, _State]] = []
    best: list[int] = []
    event = head.next
    while event is not None:
        if event in ends:
            # A call that is not placed yet ends here: whatever begins later cannot come before
            # it. So the last choice was wrong.
            if len(stack) >= len(best):
                best = [placed.index for placed, _ in stack]
            if not stack:
                return _explain(calls, best)
            placed, state = stack.pop()
            done &= ~(1 << placed.index)
            _put_back(placed)
            event = placed.next
            continue
        after = _step(state, ops[event.index], calls[event.index].result)
        choice = done | 1 << event.index
        if after is None or (choice, after) in tried:
            event = event.next
            continue
        tried.add((choice, after))
        stack.append((event, state))
        state, done = after, choice
        _take_out(event)
        event = head.next
    return None


def _key_op(call: Call) -> KeyOp:
    if isinstance(call.op, (Get, Set, Add, CompareSet, Delete, Append, Expire)):
        return call.op
    raise UsageError(f"{call}: is not a call on one key; use split_by_key first")


def _link(calls: list[Call]) -> tuple[_Event, set[_Event]]:
    """Make the list of beginnings and ends, behind a head; return the head and the ends."""
    events: list[tuple[float, bool, _Event]] = []
    ends: set[_Event] = set()
    for index, call in enumerate(calls):
        end = None
        if call.result is not UNKNOWN:
            end = _Event(index)
            ends.add(end)
            events.append((call.returned, True, end))
        events.append((call.called, False, _Event(index, end)))
    # At one moment beginnings go first: then the calls overlap, and either order is allowed.
    events.sort(key=lambda item: item[:2])
    head = last = _Event(-1)
    for _, _, event in events:
        last.next, event.prev = event, last
        last = event
    return head, ends


def _take_out(event: _Event) -> None:
    for one in (event, event.end):
        if one is not None:
            one.prev.next = one.next
            if one.next is not None:
                one.next.prev = one.prev


def _put_back(event: _Event) -> None:
    for one in (event.end, event):
        if one is not None:
            one.prev.next = one
            if one.next is not None:
                one.next.prev = one


def _explain(calls: list[Call], best: list[int]) -> str:
    lines = ["not linearizable; the longest order that explains its results:"]
    lines += [f"  {number}. {calls[index]}" for number, index in enumerate(best, 1)]
    lines += ["after which none of these fits:"]
    lines += [f"  -  {call}" for index, call in enumerate(calls) if index not in best]
    return "\n".join(lines)


def split_by_key(calls: Iterable[Call]) -> dict[str, list[Call]]:
    """Split a history into one for each key, in the form that `check_key` takes.

    A call on several keys becomes one on each. A list by prefix becomes a read of each key that
    the history knows under that prefix. Unknown reads, counts and calls on leases say nothing
    about a single key, and are left out. So are deletions by prefix: do not record them.
    """
    parts: dict[str, list[Call]] = {}
    lists: list[tuple[str, Call]] = []
    for call in calls:
        for op, result in _parts(call):
            parts.setdefault(op.key, []).append(replace(call, op=op, result=result))
        if isinstance(call.op, ListPrefix) and isinstance(call.result, tuple):
            lists.append((call.op.prefix, call))
            for entry in call.result:
                parts.setdefault(entry.key, [])
    for prefix, call in lists:
        assert isinstance(call.result, tuple)
        found = {entry.key: entry for entry in call.result}
        for key, part in parts.items():
            if key.startswith(prefix):
                part.append(replace(call, op=Get(key), result=found.get(key)))
    return parts


def _parts(call: Call) -> list[tuple[KeyOp, object]]:
    op, result = call.op, call.result
    match op:
        case Set() | Add() | CompareSet() | Delete() | Append() | Expire():
            return [(op, result)]
        case MultiSet(items, lease):
            # The last of several values for one key is the one that stays.
            return [(Set(key, value, lease), result) for key, value in dict(items).items()]
        case Get():
            return [] if result is UNKNOWN else [(op, result)]
        case MultiGet(keys) | Wait(keys):
            if not isinstance(result, tuple):
                return []
            return [(Get(key), entry) for key, entry in zip(keys, result, strict=True)]
        case Guarded():
            return _parts(replace(call, op=op.op))
        case ListPrefix() | DeletePrefix() | Count() | LeaseGrant() | LeaseKeep() | LeaseRevoke():
            return []
        case _:
            assert_never(op)


# K3: watches. K4: leases.


def check_revisions(seen: Iterable[Entry | Change]) -> str | None:
    """Return None if all clients saw the same value of a key at a revision; else show two."""
    values: dict[tuple[str, int], bytes | None] = {}
    for one in seen:
        first = values.setdefault((one.key, one.revision), one.value)
        if first != one.value:
            return (
                f"key {one.key!r} at revision {one.revision} was seen as {first!r} "
                f"and as {one.value!r}"
            )
    return None


def check_watch(
    key: str,
    prefix: bool,
    changes: Sequence[Change],
    final: Iterable[Entry] | None,
) -> str | None:
    """Return None if a watch kept K3; else say how it did not.

    `changes` is what it delivered, in order; `final` is what the store holds once everything
    has been delivered, or None if the watch ended before that.
    """
    newest: dict[str, Change] = {}
    for number, change in enumerate(changes, 1):
        if change.key != key and not (prefix and change.key.startswith(key)):
            return f"watch of {key!r}: delivery {number}, {change}, is of another key"
        before = newest.get(change.key)
        if before is not None and change.revision <= before.revision:
            return f"watch of {key!r}: delivery {number}, {change}, came after {before}"
        newest[change.key] = change
    if final is None:
        return None
    holds = {
        entry.key: entry
        for entry in final
        if entry.key == key or (prefix and entry.key.startswith(key))
    }
    for name in sorted(newest.keys() | holds.keys()):
        last, entry = newest.get(name), holds.get(name)
        told = None if last is None or last.value is None else (last.value, last.revision)
        true = None if entry is None else (entry.value, entry.revision)
        if told != true:
            return f"watch of {key!r}: the last delivery of {name!r} was {last}, the end is {entry}"
    return None


def check_lease(
    ttl: float, renewals: Sequence[float], ended: float | None, *, late_s: float = 1.0
) -> str | None:
    """Return None if a lease kept K4, by the server's clock; else say how it did not.

    `renewals` are the moments at which it was granted and kept; `ended` is when it expired, or
    None if it is alive at the last moment that is known.
    """
    if ended is None:
        return None
    due = max(renewals) + ttl
    if ended < due:
        return f"lease of {ttl:g} s: ended at {ended:g}, {due - ended:g} s early"
    if ended > due + late_s:
        return f"lease of {ttl:g} s: ended at {ended:g}, {ended - due:g} s late"
    return None
