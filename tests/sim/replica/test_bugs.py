"""The simulation is worth something: it finds bugs that are planted in the replicated store.

Each bug changes one decision of `store/replica`, or of `service.py` where it is replicated, as a
careless edit might. A bug must be found within its number of seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.ids import SessionId
from holdfast.store.keyspace import Keyspace
from holdfast.store.messages import Call
from holdfast.store.raft.effects import Role
from holdfast.store.replica.commands import ClientWrote
from holdfast.store.replica.machine import Replica
from holdfast.store.replica.reads import ReadQueue
from holdfast.store.replica.state import StoreState
from holdfast.store.replica.store_time import StoreTime
from holdfast.store.service import Service
from tests.sim.replica.sim import run_seed

Plant = Callable[[pytest.MonkeyPatch], None]
BUGS: list[object] = []


def bug(broken: str, *, seeds: int) -> Callable[[Plant], Plant]:
    """Register a bug that breaks these guarantees and must be found within so many seeds."""

    def register(plant: Plant) -> Plant:
        BUGS.append(pytest.param(plant, seeds, id=f"{plant.__name__}, {broken}"))
        return plant

    return register


@bug("MB-1", seeds=40)
def a_new_leader_does_not_know_the_answers(patch: pytest.MonkeyPatch) -> None:
    real = Replica._became

    def became(self: Replica, *args: Any) -> None:
        real(self, *args)
        for session in self.service.sessions() if self.leads else ():
            session.answers.clear()

    patch.setattr(Replica, "_became", became)


@bug("MB-1", seeds=80)
def a_member_that_joins_is_given_no_answers(patch: pytest.MonkeyPatch) -> None:
    real = Replica._restore

    def restore(self: Replica, state: StoreState) -> None:
        for session in state.sessions:
            session.answers.clear()
        real(self, state)

    patch.setattr(Replica, "_restore", restore)


@bug("MB-1, MB-4", seeds=40)
def a_write_is_performed_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    real = Replica._propose

    def propose(self: Replica) -> None:
        for command in self._commands:
            if isinstance(command, ClientWrote):
                self.service.write(command.session, command.call, self._time.reached)
        real(self)

    patch.setattr(Replica, "_propose", propose)


@bug("MB-1", seeds=20)
def what_reads_acknowledge_is_settled_by_the_leader_alone(patch: pytest.MonkeyPatch) -> None:
    real = ReadQueue.add

    def add(self: ReadQueue, connection: int, message: Any, size: int) -> None:
        if isinstance(message, Call):
            message = message._replace(ack=message.number)
        real(self, connection, message, size)

    patch.setattr(ReadQueue, "add", add)


@bug("MB-3", seeds=80)
def a_new_leader_gives_leases_no_time(patch: pytest.MonkeyPatch) -> None:
    """Clients need some of it to find the new leader; here it ends all leases at once."""
    patch.setattr(Keyspace, "renew_all", lambda self, now: self.expire(float("inf")))


@bug("MB-3", seeds=60)
def the_store_s_time_is_each_leader_s_own(patch: pytest.MonkeyPatch) -> None:
    """Leases were granted by the clock of one member, and end by that of another, an hour ahead."""
    patch.setattr(StoreTime, "at", lambda self, now: now + 3600.0 * (self.reached < 3600.0))


@bug("MB-3, K6", seeds=40)
def leases_end_by_each_member_s_own_clock(patch: pytest.MonkeyPatch) -> None:
    real = Replica.tick

    def tick(self: Replica, now: float) -> None:
        self.service.expire(self._time.at(now) + (0.0 if self.leads else 1.0))
        real(self, now)

    patch.setattr(Replica, "tick", tick)


@bug("MB-3", seeds=10)
def a_lease_counts_from_what_was_applied_before(patch: pytest.MonkeyPatch) -> None:
    """A batch has the moment of the last one, not its own; leases end by the true time."""
    real = Replica._propose

    def propose(self: Replica) -> None:
        with pytest.MonkeyPatch.context() as inner:
            if self._commands:
                inner.setattr(StoreTime, "at", lambda time, now: time.reached)
            real(self)

    patch.setattr(Replica, "_propose", propose)


@bug("MB-3, K6", seeds=10)
def a_member_that_joins_is_given_no_leases(patch: pytest.MonkeyPatch) -> None:
    real = Replica._restore

    def restore(self: Replica, state: StoreState) -> None:
        state.keyspace._leases.clear()
        real(self, state)

    patch.setattr(Replica, "_restore", restore)


@bug("MB-5", seeds=20)
def a_leader_that_was_deposed_goes_on(patch: pytest.MonkeyPatch) -> None:
    real = Replica._became

    def became(self: Replica, role: Role, *args: Any) -> None:
        if not self.leads or role is Role.LEADER:
            real(self, role, *args)

    patch.setattr(Replica, "_became", became)


@bug("RP-2", seeds=5)
def members_that_listen_never_get_a_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "_change_members", lambda self: None)


@bug("K6", seeds=20)
def a_member_that_joins_is_not_told_where_the_others_are(patch: pytest.MonkeyPatch) -> None:
    real = Replica._restore

    def restore(self: Replica, state: StoreState) -> None:
        real(self, state)
        self._places.addresses = {self.member: self._places.of(self.member)}

    patch.setattr(Replica, "_restore", restore)


@bug("K4", seeds=20)
def leases_end_only_when_a_client_writes(patch: pytest.MonkeyPatch) -> None:
    real = Replica._propose

    def propose(self: Replica) -> None:
        if self._commands:
            real(self)

    patch.setattr(Replica, "_propose", propose)


@bug("K6", seeds=40)
def a_session_is_forgotten_by_the_leader_alone(patch: pytest.MonkeyPatch) -> None:
    real = Service.drop

    def drop(self: Service, connection: int, now: float, *, by_peer: bool) -> SessionId | None:
        conn = self.connection(connection)
        session = conn.session if conn is not None else None
        died = real(self, connection, now, by_peer=by_peer)
        if session is not None and by_peer:
            self.forget(session.id)
        return died

    patch.setattr(Service, "drop", drop)


@bug("K6", seeds=120)
def a_member_that_lost_a_connection_is_not_probed_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "unreachable", lambda self, member: None)


@pytest.mark.parametrize(("plant", "seeds"), BUGS)
def test_a_bug_is_found(plant: Plant, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(run_seed(seed).failures for seed in range(seeds))
