"""The simulation is worth something: it finds bugs that are planted in the store's machines.

Each bug changes one decision of `service.py`, `session.py` or `keyspace.py`, as a careless edit
might. A bug must be found within its number of seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.store.keyspace import Keyspace
from holdfast.store.messages import Reply, WatchSnapshot, Welcome, encode
from holdfast.store.ops import Change, Entry, Get, Set
from holdfast.store.pending import Pending
from holdfast.store.service import LINGER_S, Service
from holdfast.store.session import PendingCall, Session, WatchState
from holdfast.store.wire import encode_result
from holdfast.testing.faultplan import Pause
from tests.sim.store.sim import draw_plan, run_seed

Plant = Callable[[pytest.MonkeyPatch], None]
BUGS: list[object] = []


def bug(
    broken: str, *, seeds: int, only: Callable[[int], bool] = lambda seed: True
) -> Callable[[Plant], Plant]:
    """Register a bug that breaks these guarantees and must be found within so many seeds."""

    def register(plant: Plant) -> Plant:
        tried = [seed for seed in range(seeds) if only(seed)]
        BUGS.append(pytest.param(plant, tried, id=f"{plant.__name__}, {broken}"))
        return plant

    return register


def before(patch: pytest.MonkeyPatch, kind: type, name: str, act: Callable[..., None]) -> None:
    """Let `act` run before a method."""
    real = getattr(kind, name)

    def changed(self: Any, *args: Any) -> Any:
        act(self, *args)
        return real(self, *args)

    patch.setattr(kind, name, changed)


@bug("SV-1", seeds=30)
def a_write_that_comes_again_is_performed_again(patch: pytest.MonkeyPatch) -> None:
    before(patch, Service, "_call", lambda self, session, *rest: session.answers.clear())


@bug("SV-1", seeds=60)
def only_the_newest_answer_is_kept(patch: pytest.MonkeyPatch) -> None:
    def keep_newest(self: Service, session: Any, *rest: Any) -> None:
        for number in sorted(session.answers)[:-1]:
            del session.answers[number]

    before(patch, Service, "_call", keep_newest)


@bug("SV-1", seeds=60)
def answers_are_forgotten_with_the_connection(patch: pytest.MonkeyPatch) -> None:
    def forget(self: Service, connection: int, now: float) -> None:
        for session in self._sessions.values():
            if session.connection == connection:
                session.answers.clear()

    before(patch, Service, "disconnect", forget)


@bug("SV-1", seeds=60)
def a_late_copy_of_a_settled_write_is_performed(patch: pytest.MonkeyPatch) -> None:
    def settle(self: Service, session: Any, floor: int) -> None:
        for number in [n for n in session.answers if n < floor]:
            del session.answers[number]

    patch.setattr(Service, "_settle", settle)


@bug("SV-2", seeds=30)
def a_set_is_acknowledged_before_it_is_performed(patch: pytest.MonkeyPatch) -> None:
    """The answer leaves at once; the write is done when the next frame comes."""
    late: dict[Service, list[tuple[Set, float]]] = {}
    real_perform, real_receive = Service._perform, Service.receive

    def perform(self: Service, session: Any, number: int, op: Any, now: float) -> bytes:
        if isinstance(op, Set) and op.lease is None:
            queue = late.setdefault(self, [])
            queue.append((op, now))
            return encode(Reply(number, encode_result(op, self.keyspace.revision + len(queue))))
        return real_perform(self, session, number, op, now)

    def receive(self: Service, connection: int, payload: bytes, now: float) -> None:
        real_receive(self, connection, payload, now)
        while len(late.get(self, ())) > 1:
            self.keyspace.apply(late[self].pop(0)[0], now)

    patch.setattr(Service, "_perform", perform)
    patch.setattr(Service, "receive", receive)


@bug("SV-4", seeds=30)
def a_wait_is_answered_at_the_first_of_its_keys(patch: pytest.MonkeyPatch) -> None:
    def tell(self: Service, change: Change) -> None:
        for parked in list(self._waits[change.key]):
            if change.value is not None:
                found = self.keyspace.apply(Get(change.key), 0.0)
                assert found is not None
                entries = tuple(Entry(key, found.value, found.revision) for key in parked.op.keys)
                self._unpark(parked.session, parked.number)
                result = encode_result(parked.op, entries)
                self._send(parked.session.connection, encode(Reply(parked.number, result)))

    patch.setattr(Service, "_tell_waits", tell)


@bug("SV-4, K3", seeds=30)
def a_wait_is_not_woken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Service, "_tell_waits", lambda self, change: None)


@bug("SV-4", seeds=30)
def a_wait_forgets_that_a_key_went_away(patch: pytest.MonkeyPatch) -> None:
    real = Service._tell_waits

    def tell(self: Service, change: Change) -> None:
        if change.value is not None:
            real(self, change)

    patch.setattr(Service, "_tell_waits", tell)


@bug("K5", seeds=60)
def a_wait_is_not_asked_again_after_a_reconnect(patch: pytest.MonkeyPatch) -> None:
    def welcomed(self: Session, welcome: Welcome) -> None:
        waits = {n: c for n, c in self._calls.items() if n not in self._writes and c.sent}
        self._calls = {n: c for n, c in self._calls.items() if n not in waits}
        real(self, welcome)
        self._calls.update(waits)

    real = Session._welcomed
    patch.setattr(Session, "_welcomed", welcomed)


@bug("K4, KS-3", seeds=30)
def a_lease_ends_at_half_its_time(patch: pytest.MonkeyPatch) -> None:
    real = Keyspace._grant

    def grant(self: Keyspace, ttl: float, now: float) -> Any:
        return real(self, ttl / 2, now)._replace(ttl=ttl)

    patch.setattr(Keyspace, "_grant", grant)


@bug("K4, KS-3", seeds=30)
def keeping_a_lease_does_not_lengthen_it(patch: pytest.MonkeyPatch) -> None:
    def keep(self: Keyspace, lease_id: Any, now: float) -> float:
        self._check_lease(lease_id)
        return self._leases[lease_id].ttl

    patch.setattr(Keyspace, "_keep", keep)


@bug("K4", seeds=30)
def leases_end_only_when_somebody_calls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Service, "next_wake", lambda self: None)


@bug("K3, SE-4", seeds=60)
def a_watch_ignores_what_changed_while_it_was_away(patch: pytest.MonkeyPatch) -> None:
    real = Session._snapshot

    def snapshot(self: Session, watch: WatchState, part: WatchSnapshot) -> None:
        if not watch.synced:
            real(self, watch, part)

    patch.setattr(Session, "_snapshot", snapshot)


@bug("K3, SE-4", seeds=120)
def a_watch_ignores_what_was_deleted_while_it_was_away(patch: pytest.MonkeyPatch) -> None:
    def forget(self: Session, watch: WatchState, part: WatchSnapshot) -> None:
        here = watch.arriving.keys() | {entry.key for entry in part.entries}
        watch.known = {key: at for key, at in watch.known.items() if key in here}

    before(patch, Session, "_snapshot", forget)


@bug("K3, SE-4", seeds=60)
def a_watch_is_not_opened_again_after_a_reconnect(patch: pytest.MonkeyPatch) -> None:
    def welcomed(self: Session, welcome: Welcome) -> None:
        watches = {} if not self._incarnation else self._watches
        self._watches = {} if watches else self._watches
        real(self, welcome)
        self._watches |= watches

    real = Session._welcomed
    patch.setattr(Session, "_welcomed", welcomed)


@bug("K3, SV-5", seeds=60)
def changes_for_a_slow_reader_are_lost(patch: pytest.MonkeyPatch) -> None:
    def relieve(self: Service, connection: int) -> None:
        if conn := self._connections.get(connection):
            for watch in conn.watches.values():
                watch.pending = Pending(watch.key, watch.prefix)

    before(patch, Service, "relieve", relieve)


@bug("K2, SE-5", seeds=60)
def a_restarted_server_is_taken_for_the_old_one(patch: pytest.MonkeyPatch) -> None:
    def forget(self: Session, welcome: Welcome) -> None:
        self._incarnation = welcome.incarnation

    before(patch, Session, "_welcomed", forget)


@bug("SE-3", seeds=60)
def a_call_that_was_given_up_is_said_not_to_have_happened(patch: pytest.MonkeyPatch) -> None:
    real = Session.abandon

    def abandon(self: Session, call: PendingCall[Any]) -> bool:
        real(self, call)
        return False

    patch.setattr(Session, "abandon", abandon)


@bug("K1", seeds=30)
def reads_are_answered_with_what_was_read_before(patch: pytest.MonkeyPatch) -> None:
    seen: dict[tuple[Service, str], Entry | None] = {}
    real = Service._perform

    def perform(self: Service, session: Any, number: int, op: Any, now: float) -> bytes:
        if not isinstance(op, Get):
            return real(self, session, number, op, now)
        fresh = self.keyspace.apply(op, now)
        old = seen.get((self, op.key), fresh)
        seen[self, op.key] = fresh
        return encode(Reply(number, encode_result(op, old)))

    patch.setattr(Service, "_perform", perform)


def has_long_absence(seed: int) -> bool:
    incidents = draw_plan(seed).faults.incidents
    return any(isinstance(one, Pause) and one.until - one.at > LINGER_S for one in incidents)


@bug("SE-2", seeds=2000, only=has_long_absence)
def writes_are_sent_again_to_a_server_that_forgot_the_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "_session_forgotten", lambda self: None)


@pytest.mark.parametrize(("plant", "seeds"), BUGS)
def test_a_planted_bug_is_found(
    plant: Plant, seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = next(filter(None, (run_seed(seed).failures for seed in seeds)), [])
    assert found
    # A bug that makes the machines raise would be a bug in its planting.
    assert not any("Traceback" in text for text in found)
