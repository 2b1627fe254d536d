"""The server's machine: each of its guarantees, driven by frames and a hand-moved `now`."""

from __future__ import annotations

import pytest

from holdfast.errors import PeerViolation
from holdfast.ids import LeaseId, SessionId
from holdfast.net.frames import FRAME_BYTES_MAX
from holdfast.store import delivery
from holdfast.store import service as service_module
from holdfast.store.messages import (
    CALLS_MAX,
    WATCHES_MAX,
    Call,
    CallFailure,
    Cancel,
    Changed,
    Hello,
    Parting,
    Ping,
    Pong,
    Reply,
    WatchClose,
    WatchOpen,
    WatchSnapshot,
    Welcome,
    Why,
    encode,
)
from holdfast.store.ops import (
    VALUE_BYTES_MAX,
    Add,
    Append,
    Change,
    CompareSet,
    Delete,
    Entry,
    Get,
    Guarded,
    Lease,
    LeaseGrant,
    LeaseKeep,
    ListPrefix,
    MultiGet,
    MultiSet,
    Set,
    Wait,
)
from holdfast.store.service import LINGER_S
from holdfast.store.wire import decode_result
from tests.unit.store.service_clients import LIFE, NEVER_MET, Clients


@pytest.fixture
def clients() -> Clients:
    made = Clients()
    assert made.join(1) == Welcome(LIFE, resumed=False)
    return made


# Greeting.


def test_the_first_message_must_be_hello_and_only_the_first() -> None:
    clients = Clients()
    clients.service.connect(1)
    with pytest.raises(PeerViolation, match="first message must be Hello"):
        clients.say(1, Ping())
    clients.say(1, Hello(SessionId(1), 0, 1))
    with pytest.raises(PeerViolation, match="a second Hello"):
        clients.say(1, Hello(SessionId(1), 0, 1))


def test_ping_is_answered(clients: Clients) -> None:
    assert clients.say(1, Ping()) == [Pong()]


def test_frames_of_an_unknown_connection_are_ignored(clients: Clients) -> None:
    assert clients.say(99, Ping()) == []
    clients.leave(99)
    clients.service.congest(99)
    clients.service.relieve(99)
    assert clients.service.take_effects() == []


def test_a_connection_that_never_said_hello_leaves_nothing(clients: Clients) -> None:
    clients.service.connect(2)
    clients.leave(2)
    assert clients.service.status().sessions == 1
    assert clients.service.status().connections == 1
    assert clients.service.next_wake() is None


# SV-1: a write is performed at most once for each (session, number).


def test_sv1_a_write_sent_again_gets_its_first_answer(clients: Clients) -> None:
    assert clients.call(1, 1, Add("n", 1)) == 1
    assert clients.call(1, 1, Add("n", 1)) == 1
    clients.leave(1)
    assert clients.join(2, life=LIFE) == Welcome(LIFE, resumed=True)
    assert clients.call(2, 1, Add("n", 1)) == 1
    assert clients.call(2, 2, Add("n", 1), ack=2) == 2
    assert clients.service.status().calls == 2


def test_sv1_failures_are_remembered_too(clients: Clients) -> None:
    clients.call(1, 1, Set("n", b"no number"))
    (failure,) = clients.say(1, Call(2, 1, Add("n", 1)))
    assert isinstance(failure, CallFailure)
    assert failure.why is Why.USAGE
    clients.call(1, 3, Set("n", b"1"))
    assert clients.say(1, Call(2, 1, Add("n", 1))) == [failure]
    assert clients.call(1, 4, Get("n")) == Entry("n", b"1", 2)


def test_sv1_a_late_copy_of_a_settled_write_is_ignored(clients: Clients) -> None:
    assert clients.call(1, 1, Add("n", 1)) == 1
    assert clients.call(1, 2, Add("n", 1), ack=2) == 2
    assert clients.say(1, Call(1, 1, Add("n", 1))) == []
    assert clients.call(1, 3, Get("n"), ack=3) == Entry("n", b"2", 2)


def test_sv1_the_floor_of_a_hello_settles(clients: Clients) -> None:
    clients.call(1, 1, Add("n", 1))
    clients.leave(1)
    clients.join(2, life=LIFE, floor=2)
    assert clients.say(2, Call(1, 2, Add("n", 1))) == []


def test_sv1_sessions_do_not_share_numbers(clients: Clients) -> None:
    clients.join(2, session=2)
    assert clients.call(1, 1, Add("n", 1)) == 1
    assert clients.call(2, 1, Add("n", 1)) == 2


def test_sv1_a_late_first_hello_does_not_wipe_the_session(clients: Clients) -> None:
    # The client gave its first connection up before its Hello arrived; then it does arrive.
    assert clients.call(1, 1, Add("n", 1)) == 1
    assert clients.join(2, life=NEVER_MET) == Welcome(LIFE, resumed=True)
    assert clients.join(3, life=LIFE) == Welcome(LIFE, resumed=True)
    assert clients.call(3, 1, Add("n", 1)) == 1


def test_sv1_a_read_sent_again_is_performed_again(clients: Clients) -> None:
    assert clients.call(1, 1, Get("k")) is None
    clients.call(1, 2, Set("k", b"v"))
    assert clients.call(1, 1, Get("k")) == Entry("k", b"v", 1)


# SV-2: a call's effects and its answer are of the same moment.


def test_sv2_answers_tell_the_state_at_their_own_moment(clients: Clients) -> None:
    answers = clients.say(1, Call(1, 1, Add("n", 5)), Call(2, 1, Add("n", 5)), Call(3, 1, Get("n")))
    assert [decode_result(Add("n", 5), a.result) for a in answers[:2] if isinstance(a, Reply)] == [
        5,
        10,
    ]
    assert isinstance(answers[2], Reply)
    assert decode_result(Get("n"), answers[2].result) == Entry("n", b"10", 2)


def test_sv2_leases_that_ended_are_gone_before_the_call(clients: Clients) -> None:
    lease = clients.call(1, 1, LeaseGrant(5.0))
    clients.call(1, 2, Set("k", b"v", lease.id))
    clients.now = 5.0
    assert clients.call(1, 3, Get("k")) is None
    (failure,) = clients.say(1, Call(4, 1, LeaseKeep(lease.id)))
    assert isinstance(failure, CallFailure)
    assert (failure.why, failure.number) == (Why.LEASE_LOST, 4)


# SV-3: a newer connection takes a session over.


def test_sv3_a_newer_connection_takes_over(clients: Clients) -> None:
    clients.say(1, WatchOpen(1, False, "k"), Call(1, 1, Wait(("k",))))
    assert clients.join(2, life=LIFE) == Welcome(LIFE, resumed=True)
    assert clients.hung_up == [1]
    status = clients.service.status()
    assert (status.sessions, status.connections, status.watches, status.waits) == (1, 1, 0, 0)
    assert clients.say(1, Call(5, 1, Set("k", b"old"))) == []  # no client listens to it any more
    clients.call(2, 2, Set("k", b"v"))
    assert clients.take(1) == []


def test_sv3_the_end_of_the_older_one_does_not_end_the_session(clients: Clients) -> None:
    clients.join(2, life=LIFE)
    clients.leave(1)
    clients.tick(10 * LINGER_S)
    assert clients.call(2, 1, Add("n", 1)) == 1


# SV-4: waits.


def test_sv4_a_wait_is_answered_when_all_keys_are_there_at_once(clients: Clients) -> None:
    clients.join(2, session=2)
    assert clients.say(1, Call(1, 1, Wait(("a", "b")))) == []
    clients.call(2, 1, Set("a", b"1"))
    clients.call(2, 2, Delete("a"))
    clients.call(2, 3, Set("b", b"2"))
    assert clients.take(1) == []
    clients.call(2, 4, Set("a", b"3"))
    (reply,) = clients.take(1)
    assert isinstance(reply, Reply)
    assert decode_result(Wait(()), reply.result) == (Entry("a", b"3", 4), Entry("b", b"2", 3))
    assert clients.service.status().waits == 0


def test_sv4_a_wait_whose_keys_are_there_is_answered_at_once(clients: Clients) -> None:
    clients.call(1, 1, MultiSet((("a", b"1"), ("b", b"2"))))
    assert clients.call(1, 2, Wait(("b", "a"))) == (Entry("b", b"2", 1), Entry("a", b"1", 1))
    assert clients.call(1, 3, Wait(())) == ()


def test_sv4_one_key_named_twice(clients: Clients) -> None:
    assert clients.say(1, Call(1, 1, Wait(("a", "a")))) == []
    answers = clients.say(1, Call(2, 1, Set("a", b"")))
    assert [answer.number for answer in answers if isinstance(answer, Reply)] == [1, 2]


def test_sv8_waits_and_watches_are_told_before_the_write_is_answered(clients: Clients) -> None:
    for number in (2, 3):
        clients.join(number, session=number)
    clients.say(2, Call(1, 1, Wait(("k",))))
    clients.say(3, WatchOpen(1, False, "k"))
    clients.service.receive(1, encode(Call(1, 1, Set("k", b""))), clients.now)
    effects = clients.service.take_effects()
    assert [effect.connection for effect in effects] == [2, 3, 1]


def test_sv4_a_copy_of_a_parked_wait_changes_nothing(clients: Clients) -> None:
    clients.say(1, Call(1, 1, Wait(("k",))), Call(1, 1, Wait(("k",))))
    assert clients.service.status().waits == 1
    answers = clients.say(1, Call(2, 1, Set("k", b"")))
    assert [answer.number for answer in answers if isinstance(answer, Reply)] == [1, 2]


def test_sv4_a_key_that_comes_and_goes_at_one_moment_wakes_no_waiter(clients: Clients) -> None:
    lease = clients.call(1, 1, LeaseGrant(5.0))
    clients.say(1, Call(2, 1, Wait(("k",))))
    clients.service.keyspace.apply(Set("k", b"", lease.id), 1.0)
    clients.tick(5.0)  # sees the key's birth and its end together
    assert clients.take(1) == []
    answers = clients.say(1, Call(3, 1, Set("k", b"")))
    assert [answer.number for answer in answers if isinstance(answer, Reply)] == [2, 3]


def test_sv4_expiry_while_parking_counts(clients: Clients) -> None:
    lease = clients.call(1, 1, LeaseGrant(5.0))
    clients.call(1, 2, Set("k", b"", lease.id))
    clients.say(1, WatchOpen(1, False, "k"))
    clients.now = 5.0
    assert clients.say(1, Call(3, 1, Wait(("k",)))) == [Changed(1, Change("k", None, 2))]


def test_sv4_cancel_answers_with_what_is_missing(clients: Clients) -> None:
    clients.call(1, 1, Set("b", b""))
    clients.say(1, Call(2, 1, Wait(("a", "b", "c"))))
    assert clients.say(1, Cancel(2)) == [CallFailure(2, Why.CANCELLED, "", ("a", "c"))]
    assert clients.say(1, Cancel(2), Cancel(99)) == []
    assert clients.service.status().waits == 0


def test_sv4_the_answer_to_a_cancel_fits_into_a_frame(clients: Clients) -> None:
    fill = FRAME_BYTES_MAX - 22
    keys = tuple(f"{n:04d}".ljust(8190, "k") for n in range(fill // 8192))
    keys += ("k" * (fill % 8192 - 2),)
    call = Call(1, 1, Wait(keys))
    assert len(encode(call)) == FRAME_BYTES_MAX
    clients.say(1, call)
    (failure,) = clients.say(1, Cancel(1))
    assert isinstance(failure, CallFailure)
    assert failure.keys == keys


def test_sv4_waits_end_with_their_connection(clients: Clients) -> None:
    clients.say(1, Call(1, 1, Wait(("k",))))
    clients.leave(1)
    assert clients.service.status().waits == 0
    clients.join(2, life=LIFE)
    assert clients.call(2, 2, Set("k", b"")) == 1
    assert clients.take(2) == []
    assert clients.call(2, 1, Wait(("k",))) == (Entry("k", b"", 1),)


# Large answers.


def test_an_answer_too_large_for_a_frame_is_a_failure(clients: Clients) -> None:
    for n in range(5):
        clients.call(1, n + 1, Set(f"k{n}", bytes(VALUE_BYTES_MAX)))
    (failure,) = clients.say(1, Call(9, 1, ListPrefix("k")))
    assert isinstance(failure, CallFailure)
    assert failure.why is Why.USAGE
    assert f"at most {FRAME_BYTES_MAX} fit" in failure.text


def test_a_wait_that_ends_in_too_large_an_answer_fails_alone(clients: Clients) -> None:
    clients.join(2, session=2)
    clients.say(1, Call(1, 1, Wait(tuple(f"k{n}" for n in range(5)))))
    for n in range(5):
        clients.call(2, n + 1, Set(f"k{n}", bytes(VALUE_BYTES_MAX)))
    (failure,) = clients.take(1)
    assert isinstance(failure, CallFailure)
    assert failure.why is Why.USAGE


def test_an_answer_whose_values_just_fit_may_be_too_large_with_its_keys(clients: Clients) -> None:
    for n in range(4):
        clients.call(1, n + 1, Set(f"k{n}", bytes(VALUE_BYTES_MAX)))
    assert 4 * VALUE_BYTES_MAX == FRAME_BYTES_MAX
    (failure,) = clients.say(1, Call(9, 1, ListPrefix("k")))
    assert isinstance(failure, CallFailure)
    assert failure.why is Why.USAGE


def test_an_answer_too_large_for_a_frame_is_not_even_made(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients.call(1, 1, Set("k", bytes(1024 * 1024)))
    monkeypatch.setattr(delivery, "encode_result", None)  # would copy it
    (failure,) = clients.say(1, Call(2, 2, MultiGet(("k",) * 65_536)))
    assert isinstance(failure, CallFailure)
    assert failure.why is Why.USAGE
    assert "the answer would take 68719476736 bytes" in failure.text


def test_what_waits_to_be_sent_is_counted_until_it_is_taken(clients: Clients) -> None:
    service = clients.service
    assert service.queued_bytes == 0
    for _ in range(2):
        service.receive(1, encode(Ping()), 0.0)
    assert service.queued_bytes == 2 * len(encode(Pong()))
    assert len(service.take_effects()) == 2
    assert service.queued_bytes == 0


# SV-5: watches.


def test_sv5_a_watch_gets_the_state_and_then_every_change(clients: Clients) -> None:
    clients.call(1, 1, Set("k", b"1"))
    assert clients.say(1, WatchOpen(7, False, "k")) == [
        WatchSnapshot(7, True, 1, (Entry("k", b"1", 1),))
    ]
    clients.join(2, session=2)
    clients.call(2, 1, Append("k", b"2"))
    clients.call(2, 2, Set("kk", b"unwatched"))
    clients.call(2, 3, Delete("k"))
    assert clients.take(1) == [
        Changed(7, Change("k", b"12", 2)),
        Changed(7, Change("k", None, 4)),
    ]
    assert clients.say(1, WatchClose(7), WatchClose(7)) == []
    clients.call(2, 4, Set("k", b""))
    assert clients.take(1) == []


def test_sv5_a_prefix_watch_gets_what_lies_under_it(clients: Clients) -> None:
    clients.call(1, 1, MultiSet((("a/1", b"1"), ("a/2", b"2"), ("b", b""))))
    assert clients.say(1, WatchOpen(1, True, "a/"), WatchOpen(2, True, "zz")) == [
        WatchSnapshot(1, True, 1, (Entry("a/1", b"1", 1), Entry("a/2", b"2", 1))),
        WatchSnapshot(2, True, 1, ()),
    ]
    clients.join(2, session=2)
    clients.call(2, 1, CompareSet("a/3", None, b"3"))
    clients.call(2, 2, Set("c", b""))
    assert clients.take(1) == [Changed(1, Change("a/3", b"3", 2))]


def test_sv5_a_large_state_comes_in_parts(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "SNAPSHOT_BYTES", 10)
    clients.call(1, 1, MultiSet(tuple((f"k{n}", b"12345") for n in range(5))))
    parts = clients.say(1, WatchOpen(1, True, "k"))
    assert [part.last for part in parts if isinstance(part, WatchSnapshot)] == [False, False, True]
    keys = [
        entry.key for part in parts if isinstance(part, WatchSnapshot) for entry in part.entries
    ]
    assert keys == [f"k{n}" for n in range(5)]


def test_sv5_while_congested_changes_are_merged(clients: Clients) -> None:
    clients.join(2, session=2)
    clients.say(1, WatchOpen(1, True, "k"), WatchOpen(2, False, "k1"))
    clients.service.congest(1)
    for n in range(5):
        clients.call(2, 2 * n + 1, Set("k1", b"%d" % n))
        clients.call(2, 2 * n + 2, Set("k2", b"%d" % n))
    assert clients.say(1, Ping()) == [Pong()]  # answers are not held back
    clients.service.relieve(1)
    clients.perform()
    assert clients.take(1) == [
        Changed(1, Change("k1", b"4", 9)),
        Changed(1, Change("k2", b"4", 10)),
        Changed(2, Change("k1", b"4", 9)),
    ]
    clients.service.relieve(1)
    clients.perform()
    assert clients.take(1) == []
    clients.call(2, 11, Set("k2", b"live"))
    assert clients.take(1) == [Changed(1, Change("k2", b"live", 11))]


def test_sv5_the_neighbour_of_a_congested_watcher_gets_every_change(clients: Clients) -> None:
    clients.join(2, session=2)
    clients.say(2, WatchOpen(1, False, "k"))
    clients.say(1, WatchOpen(1, False, "k"))
    clients.service.congest(1)
    for n in range(3):
        clients.call(1, n + 1, Set("k", b"%d" % n))
    changes = [m.change.value for m in clients.take(2) if isinstance(m, Changed)]
    assert changes == [b"0", b"1", b"2"]


def test_sv5_what_expired_before_a_watch_opened_is_not_told_to_it(clients: Clients) -> None:
    lease = clients.call(1, 1, LeaseGrant(5.0))
    clients.call(1, 2, Set("k", b"", lease.id))
    clients.say(1, WatchOpen(1, False, "k"))
    clients.now = 5.0
    assert clients.say(1, WatchOpen(2, False, "k")) == [
        Changed(1, Change("k", None, 2)),
        WatchSnapshot(2, True, 2, ()),
    ]


def test_sv5_two_watchers_of_a_key_with_different_numbers(clients: Clients) -> None:
    clients.join(2, session=2)
    clients.say(1, WatchOpen(1, False, "k"))
    clients.say(2, WatchOpen(5, False, "k"))
    assert clients.say(1, Call(1, 1, Set("k", b""))) == [
        Changed(1, Change("k", b"", 1)),
        Reply(1, b"\0\0\0\0\0\0\0\1"),
    ]
    assert clients.take(2) == [Changed(5, Change("k", b"", 1))]
    clients.leave(1)
    assert clients.service.status().watches == 1


# SV-6: bounds.


def test_sv6_unsettled_calls_are_bounded(clients: Clients) -> None:
    for number in range(1, CALLS_MAX):
        clients.call(1, number, Add("n", 1))
    assert clients.say(1, Call(CALLS_MAX, 1, Wait(("k",)))) == []
    for op in (Add("n", 1), Wait(("k",)), Get("k")):
        with pytest.raises(PeerViolation, match=f"more than {CALLS_MAX} unsettled calls"):
            clients.say(1, Call(CALLS_MAX + 1, 1, op))
    assert clients.call(1, CALLS_MAX + 1, Add("n", 1), ack=2) == CALLS_MAX


def test_sv6_answers_that_are_kept_are_bounded_in_bytes(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "ANSWERS_BYTES_MAX", 1000)
    clients.call(1, 1, Set("k", bytes(400)))
    for number in (2, 3, 4):  # each answer tells the value that is there instead
        clients.call(1, number, CompareSet("k", b"other", b"new"), ack=2)
    revision = clients.service.keyspace.revision
    with pytest.raises(PeerViolation, match="more than 1000 bytes of unsettled answers"):
        clients.say(1, Call(5, 2, Set("k", b"v")))
    assert clients.service.keyspace.revision == revision  # judged before it is performed
    assert clients.say(1, Call(4, 2, CompareSet("k", b"other", b"new"))) != []  # known
    assert clients.call(1, 5, Get("k")) == Entry("k", bytes(400), 1)  # nothing is kept for it
    assert clients.call(1, 6, Set("k", b"v"), ack=4) == 2
    clients.leave(1)
    clients.join(2, life=LIFE, floor=7)
    assert [session.answers_bytes for session in clients.service._sessions.values()] == [0]


def test_sv6_watches_are_bounded(clients: Clients) -> None:
    with pytest.raises(PeerViolation, match="watch 1 is open already"):
        clients.say(1, WatchOpen(1, False, "k"), WatchOpen(1, False, "k"))
    for watch in range(2, WATCHES_MAX + 1):
        clients.say(1, WatchOpen(watch, False, "k"))
    with pytest.raises(PeerViolation, match=f"more than {WATCHES_MAX} watches"):
        clients.say(1, WatchOpen(0, False, "k"))
    clients.say(1, WatchClose(2), WatchOpen(0, False, "k"))


def test_sv6_a_session_is_forgotten_after_a_while(clients: Clients) -> None:
    assert clients.call(1, 1, Add("n", 1)) == 1
    clients.now = 3.0
    clients.leave(1)
    assert clients.service.next_wake() == 3.0 + LINGER_S
    clients.tick(2.9 + LINGER_S)
    assert clients.service.status().sessions == 1
    clients.tick(3.0 + LINGER_S)
    assert clients.service.status().sessions == 0
    assert clients.service.next_wake() is None
    assert clients.join(2, life=LIFE) == Welcome(LIFE, resumed=False)


def test_sv6_a_forgotten_client_is_told_until_it_has_heard(clients: Clients) -> None:
    # The first Welcome that says so may get lost: the next must say it again, or the client
    # would take its unsettled write for one that the server remembers.
    clients.leave(1)
    clients.tick(2 * LINGER_S)
    assert clients.join(2, life=LIFE) == Welcome(LIFE, resumed=False)
    clients.leave(2)
    assert clients.join(3, life=LIFE) == Welcome(LIFE, resumed=False)
    clients.say(3, Ping())
    clients.leave(3)
    assert clients.join(4, life=LIFE) == Welcome(LIFE, resumed=True)


def test_sv6_a_new_client_resumes_even_if_all_it_said_got_lost(clients: Clients) -> None:
    clients.leave(1)
    assert clients.join(2, life=LIFE) == Welcome(LIFE, resumed=True)


def test_sv6_lingering_sessions_are_bounded(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "LINGERING_MAX", 3)
    for session in range(2, 12):
        clients.join(session, session=session)
    for session in range(2, 12):
        clients.leave(session)
    assert clients.service.status().sessions == 1 + 3
    assert clients.join(20, session=8, life=LIFE) == Welcome(LIFE, resumed=False)
    assert clients.join(21, session=9, life=LIFE) == Welcome(LIFE, resumed=True)


def test_the_next_wake_is_the_sooner_of_leases_and_sessions(clients: Clients) -> None:
    assert clients.service.next_wake() is None
    clients.call(1, 1, LeaseGrant(1000.0))
    assert clients.service.next_wake() == 1000.0
    clients.leave(1)
    assert clients.service.next_wake() == LINGER_S


def test_time_alone_ends_leases_and_tells_watchers(clients: Clients) -> None:
    lease = clients.call(1, 1, LeaseGrant(5.0))
    clients.call(1, 2, Set("k", b"", lease.id))
    clients.say(1, WatchOpen(1, False, "k"))
    clients.tick(4.9)
    assert clients.take(1) == []
    clients.tick(5.0)
    assert clients.take(1) == [Changed(1, Change("k", None, 2))]
    assert clients.service.keyspace.revision == 2
    (failure,) = clients.say(1, Call(3, 1, Set("k", b"", LeaseId(99))))
    assert isinstance(failure, CallFailure)
    assert failure.why is Why.LEASE_LOST


def test_status_counts(clients: Clients) -> None:
    clients.call(1, 1, Set("k", b""))
    clients.say(1, Call(2, 1, Wait(("w",))), WatchOpen(1, True, ""))
    assert clients.service.status() == (1, 1, 1, 1, 1, 1, 2)


def test_sv4_waiters_of_one_key_end_one_by_one(clients: Clients) -> None:
    clients.join(2, session=2)
    clients.say(1, Call(1, 1, Wait(("k",))))
    clients.say(2, Call(1, 1, Wait(("k",))))
    clients.leave(2)
    answers = clients.say(1, Call(2, 1, Set("k", b"")))
    assert [answer.number for answer in answers if isinstance(answer, Reply)] == [1, 2]


def test_sv5_watchers_with_the_same_number_get_the_same_change(clients: Clients) -> None:
    clients.join(2, session=2)
    clients.join(3, session=3)
    for connection in (1, 2):
        clients.say(connection, WatchOpen(1, True, ""))
    clients.call(3, 1, Set("k", b"v"))
    assert clients.take(1) == clients.take(2) == [Changed(1, Change("k", b"v", 1))]


def test_sv1_a_guarded_write_sent_again_gets_its_first_answer(clients: Clients) -> None:
    clients.call(1, 1, Set("g", b"1"))
    guarded: Guarded[object] = Guarded("g", b"1", Add("n", 1))
    assert clients.call(1, 2, guarded) == 1
    clients.call(1, 3, Set("g", b"2"))
    (failure,) = clients.say(1, Call(4, 1, guarded))
    assert isinstance(failure, CallFailure)
    assert (failure.why, failure.number) == (Why.FENCED, 4)
    assert clients.call(1, 2, guarded) == 1
    clients.call(1, 5, Set("g", b"1"))
    assert clients.say(1, Call(4, 1, guarded)) == [failure]
    assert clients.call(1, 6, Get("n")) == Entry("n", b"1", 2)


# SV-7: leases that end with the connection.


@pytest.fixture
def lease(clients: Clients) -> Lease:
    """A lease of client 1 that lingers for 2 s, with a key that client 2 watches."""
    found = clients.call(1, 1, LeaseGrant(60.0, 2.0))
    assert isinstance(found, Lease)
    clients.call(1, 2, Set("k", b"", found.id))
    clients.join(2, session=2)
    clients.say(2, WatchOpen(1, False, "k"))
    return found


def test_sv7_a_lease_ends_soon_after_its_connection(clients: Clients, lease: Lease) -> None:
    clients.now = 10.0
    clients.leave(1)
    assert clients.service.next_wake() == 12.0
    clients.tick(11.9)
    assert clients.take(2) == []
    clients.tick(12.0)
    assert clients.take(2) == [Changed(1, Change("k", None, 2))]


def test_sv7_a_client_that_says_it_lives_keeps_its_lease(clients: Clients, lease: Lease) -> None:
    clients.now = 10.0
    clients.say(1, Parting())
    clients.leave(1)
    clients.tick(59.9)
    assert clients.take(2) == []
    clients.tick(60.0)
    assert clients.take(2) == [Changed(1, Change("k", None, 2))]


def test_sv7_the_servers_own_hanging_up_shortens_no_lease(clients: Clients, lease: Lease) -> None:
    clients.service.disconnect(1, 10.0, by_peer=False)
    clients.tick(59.9)
    assert clients.take(2) == []


def test_sv7_a_client_that_comes_back_has_the_whole_time_again(
    clients: Clients, lease: Lease
) -> None:
    clients.now = 10.0
    clients.leave(1)
    clients.now = 11.9
    assert clients.join(3, life=LIFE) == Welcome(LIFE, resumed=True)
    clients.tick(71.8)
    assert clients.take(2) == []
    clients.tick(71.9)
    assert clients.take(2) == [Changed(1, Change("k", None, 2))]


def test_sv7_a_client_that_comes_back_too_late_finds_it_lost(
    clients: Clients, lease: Lease
) -> None:
    clients.leave(1)
    clients.now = 2.0
    clients.join(3, life=LIFE)  # no tick came since
    assert clients.take(2) == [Changed(1, Change("k", None, 2))]
    (failure,) = clients.say(3, Call(3, 1, LeaseKeep(lease.id)))
    assert isinstance(failure, CallFailure)
    assert failure.why is Why.LEASE_LOST


def test_sv7_a_takeover_ends_no_lease(clients: Clients, lease: Lease) -> None:
    clients.join(3, life=LIFE)
    clients.leave(1)
    clients.tick(59.9)
    assert clients.take(2) == []
    clients.leave(3)
    clients.tick(61.9)
    assert clients.take(2) == [Changed(1, Change("k", None, 2))]


def test_sv7_all_other_leases_are_left_alone(clients: Clients, lease: Lease) -> None:
    plain = clients.call(2, 1, LeaseGrant(60.0))
    clients.leave(2)
    clients.tick(59.9)
    assert clients.call(1, 3, LeaseKeep(lease.id)) == 60.0
    assert clients.call(1, 4, LeaseKeep(plain.id)) == 60.0


def test_sv7_leases_that_ended_do_not_pile_up(clients: Clients) -> None:
    for number in range(1, 501):
        clients.call(1, number, LeaseGrant(1.0, 0.5), ack=number)
        clients.now += 2.0
    (session,) = clients.service._sessions.values()
    assert len(session.lingers) <= service_module.LINGERS_SWEPT
