"""The client's machine: each of its guarantees, alone and against the server's machine."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import (
    Fenced,
    LeaseLost,
    PeerViolation,
    StoreUnavailable,
    TimeoutExpired,
    Unavailable,
    UsageError,
)
from holdfast.ids import LeaseId, SessionId
from holdfast.net.frames import FRAME_BYTES_MAX
from holdfast.store.effects import SendFrame
from holdfast.store.messages import (
    CALLS_MAX,
    WATCHES_MAX,
    Call,
    CallFailure,
    Cancel,
    Changed,
    FromClient,
    FromServer,
    Hello,
    Members,
    Parting,
    Ping,
    Pong,
    Reply,
    WatchClose,
    WatchOpen,
    WatchSnapshot,
    Welcome,
    Why,
    decode_from_client,
    encode,
)
from holdfast.store.ops import (
    VALUE_BYTES_MAX,
    Add,
    Change,
    Delete,
    Entry,
    Get,
    Guarded,
    LeaseGrant,
    MultiSet,
    Set,
    Wait,
)
from holdfast.store.service import LINGER_S, Service
from holdfast.store.session import SILENCE_S, PendingCall, Session, WatchState, missing_keys

ME = SessionId(5)
LIFE = 77


def output(session: Session) -> list[FromClient]:
    return [decode_from_client(payload) for payload in session.take_output()]


def hear(session: Session, *messages: FromServer, now: float = 0.0) -> None:
    for message in messages:
        session.receive(encode(message), now)


def changes_of(watch: WatchState) -> list[Change]:
    found = []
    while (change := watch.pending.take()) is not None:
        found.append(change)
    return found


def ready_session() -> Session:
    session = Session(ME, "tcp://there")
    session.connected(0.0)
    hear(session, Welcome(LIFE, resumed=False))
    assert output(session) == [Hello(ME, 0, 1)]
    return session


def reconnect(session: Session, *, resumed: bool = True, life: int = LIFE) -> list[FromClient]:
    session.disconnected()
    session.connected(0.0)
    (hello,) = output(session)
    assert isinstance(hello, Hello)
    hear(session, Welcome(life, resumed))
    return output(session)


@pytest.fixture
def session() -> Session:
    return ready_session()


# The beginning.


def test_calls_wait_for_the_welcome() -> None:
    session = Session(ME, "tcp://there")
    assert not session.met
    call, watch = session.begin(Add("n", 1)), session.open_watch("k", False)
    assert session.quiet
    assert session.take_output() == []
    session.connected(0.0)
    assert not session.ready
    assert not session.quiet
    assert output(session) == [Hello(ME, 0, 1)]
    assert session.quiet
    hear(session, Welcome(LIFE, resumed=False))
    assert session.ready
    assert session.met
    # In this order: a call that reads what is watched must not be older than the watch.
    assert output(session) == [WatchOpen(watch.id, False, "k"), Call(1, 1, Add("n", 1))]
    assert not call.done
    assert not watch.synced


def test_before_the_welcome_nothing_else_is_taken() -> None:
    session = Session(ME, "tcp://there")
    call = session.begin(Add("n", 1))
    session.connected(0.0)
    with pytest.raises(PeerViolation, match="first message must be Welcome"):
        hear(session, Reply(1, bytes(8)))
    assert not call.done


def test_a_second_welcome_is_a_violation(session: Session) -> None:
    with pytest.raises(PeerViolation, match="Welcome was not asked for"):
        hear(session, Welcome(LIFE, resumed=True))


# SE-1: settled exactly once.


def test_se1_an_answer_settles_its_call(session: Session) -> None:
    one, two = session.begin(Add("n", 1)), session.begin(Get("n"))
    hear(session, Reply(2, b"\0"), Reply(1, bytes(7) + b"\x05"), Reply(1, bytes(8)))
    assert one.outcome() == 5
    assert two.outcome() is None


def test_se1_answers_to_unknown_calls_are_ignored(session: Session) -> None:
    hear(
        session,
        Reply(9, b"nonsense"),
        CallFailure(9, Why.USAGE, ""),
        Changed(9, Change("k", b"", 1)),
    )
    hear(session, WatchSnapshot(9, True, 1, ()))
    assert session.take_output() == []


def test_se1_a_malformed_result_does_not_settle(session: Session) -> None:
    call = session.begin(Add("n", 1))
    with pytest.raises(PeerViolation):
        hear(session, Reply(1, b"short"))
    assert not call.done
    assert reconnect(session) == [Call(1, 1, Add("n", 1))]


@pytest.mark.parametrize(
    ("why", "error"),
    [
        (Why.USAGE, UsageError),
        (Why.LEASE_LOST, LeaseLost),
        (Why.FENCED, Fenced),
        (Why.CANCELLED, TimeoutExpired),
    ],
)
def test_se1_failures_are_told_by_kind(session: Session, why: Why, error: type[Exception]) -> None:
    call = session.begin(Set("k", b"", LeaseId(1)))
    hear(session, CallFailure(1, why, "because", ("k",)))
    with pytest.raises(error, match="because|'k'"):
        call.outcome()


def test_se1_a_guarded_write_gets_the_result_of_the_write(session: Session) -> None:
    call: PendingCall[int] = session.begin(Guarded("g", b"1", Add("n", 1)))
    assert output(session) == [Call(1, 1, Guarded("g", b"1", Add("n", 1)))]
    assert session.abandon(session.begin(Guarded("g", b"1", Delete("k"))))  # as every sent write
    hear(session, Reply(1, bytes(7) + b"\x05"))
    assert call.outcome() == 5


def test_se1_a_wait_whose_answer_crosses_its_cancel(session: Session) -> None:
    wait = session.begin(Wait(("k",)))
    session.cancel(wait)
    assert output(session)[1:] == [Cancel(1)]
    entry = b"\0\0\0\1\0\1k\0\0\0\0" + bytes(7) + b"\1"
    hear(session, Reply(1, entry), CallFailure(1, Why.CANCELLED, "", ("k",)))
    assert wait.outcome() == (Entry("k", b"", 1),)
    session.cancel(wait)
    assert output(session) == []


def test_se1_a_cancelled_wait_names_what_is_missing(session: Session) -> None:
    wait = session.begin(Wait(("a", "b")))
    session.cancel(wait)
    hear(session, CallFailure(1, Why.CANCELLED, "", ("b",)))
    with pytest.raises(TimeoutExpired, match="still missing 'b'") as caught:
        wait.outcome()
    assert caught.value.waiting_for == ("b",)


def test_the_message_of_missing_keys_stays_short() -> None:
    error = missing_keys([f"k{n}" for n in range(1000)])
    assert len(error.waiting_for) == 1000
    assert str(error).endswith("'k9', …")


def test_a_cancel_while_apart_is_not_sent(session: Session) -> None:
    wait = session.begin(Wait(("k",)))
    session.disconnected()
    session.cancel(wait)
    assert session.take_output() == []


# SE-2: sent again only to the life and session that saw it first.


def test_se2_unsettled_calls_go_out_again_in_order(session: Session) -> None:
    session.begin(Add("n", 1))
    session.begin(Get("n"))
    session.begin(Wait(("k",)))
    session.begin(Add("n", 2))
    hear(session, Reply(1, bytes(8)))
    assert reconnect(session) == [
        Call(2, 4, Get("n")),
        Call(3, 4, Wait(("k",))),
        Call(4, 4, Add("n", 2)),
    ]


def test_se2_hello_says_what_is_settled(session: Session) -> None:
    session.begin(Add("n", 1))
    session.begin(Add("n", 1))
    hear(session, Reply(1, bytes(8)))
    session.disconnected()
    session.connected(0.0)
    assert output(session) == [Hello(ME, LIFE, 2)]


def test_se2_a_restarted_server_ends_everything(session: Session) -> None:
    sent = session.begin(Add("n", 1))
    read = session.begin(Get("n"))
    session.disconnected()
    unsent = session.begin(Add("n", 1))
    session.connected(0.0)
    session.take_output()
    hear(session, Welcome(LIFE + 1, resumed=False))
    assert session.take_output() == []
    for call, maybe in ((sent, True), (read, False), (unsent, False)):
        with pytest.raises(StoreUnavailable, match="tcp://there was restarted") as caught:
            call.outcome()
        assert caught.value.maybe_applied is maybe
        assert caught.value.address == "tcp://there"


def test_se2_a_forgotten_session_fails_its_sent_writes_only(session: Session) -> None:
    sent, read = session.begin(Add("n", 1)), session.begin(Get("n"))
    session.disconnected()
    unsent = session.begin(Add("n", 2))
    session.connected(0.0)
    session.take_output()
    hear(session, Welcome(LIFE, resumed=False))
    with pytest.raises(StoreUnavailable, match="forgot this client") as caught:
        sent.outcome()
    assert caught.value.maybe_applied
    assert output(session) == [Call(2, 3, Get("n")), Call(3, 3, Add("n", 2))]
    assert not read.done
    assert not unsent.done


def test_se2_what_was_not_sent_before_the_connection_broke_is_not_sent_on_the_next(
    session: Session,
) -> None:
    session.begin(Add("n", 1))
    session.disconnected()  # the frame is still in the output
    session.connected(0.0)
    assert output(session) == [Hello(ME, LIFE, 1)]


# SE-3: a failure says truly whether the write may have happened.


def test_se3_abandon_tells_whether_it_may_have_happened(session: Session) -> None:
    assert session.abandon(session.begin(Add("n", 1)))
    assert not session.abandon(session.begin(Get("n")))
    session.disconnected()
    assert not session.abandon(session.begin(Add("n", 1)))
    session.connected(0.0)
    assert output(session) == [Hello(ME, LIFE, 4)]  # nothing holds the floor down


def test_se3_an_abandoned_call_is_not_sent_again(session: Session) -> None:
    call = session.begin(Add("n", 1))
    session.abandon(call)
    assert reconnect(session) == []
    hear(session, Reply(1, bytes(8)))
    assert call.done


# SE-5: lost is lost.


def test_se5_a_lost_session_stays_lost_and_says_why(session: Session) -> None:
    call = session.begin(Add("n", 1))
    session.lose("the cable was eaten")
    session.lose("another reason")
    late = session.begin(Get("n"))
    for failed in (call, late):
        assert failed.done
        with pytest.raises(StoreUnavailable, match="the cable was eaten"):
            failed.outcome()
    session.disconnected()
    assert session.lost == "the cable was eaten"
    assert not session.ready
    assert session.tick(1e9)
    assert session.take_output() == []


# Limits.


def test_a_call_too_large_for_a_frame_fails_alone(session: Session) -> None:
    items = tuple((f"k{n}", bytes(VALUE_BYTES_MAX)) for n in range(5))
    large, small = session.begin(MultiSet(items)), session.begin(Get("k"))
    with pytest.raises(UsageError, match=rf"multiset: \d+ bytes, at most {FRAME_BYTES_MAX} fit"):
        large.outcome()
    assert output(session) == [Call(2, 3, Get("k"))]
    assert not small.done


def test_calls_at_one_time_are_bounded(session: Session) -> None:
    calls = [session.begin(Get("k")) for _ in range(CALLS_MAX)]
    refused = session.begin(Get("k"))
    with pytest.raises(UsageError, match=f"more than {CALLS_MAX} calls"):
        refused.outcome()
    session.abandon(calls[0])
    assert not session.begin(Get("k")).done


def test_watches_at_one_time_are_bounded(session: Session) -> None:
    watches = [session.open_watch("k", False) for _ in range(WATCHES_MAX)]
    with pytest.raises(UsageError, match=f"more than {WATCHES_MAX} watches"):
        session.open_watch("k", False)
    session.close_watch(watches[0])
    session.open_watch("k", False)


# Silence.


def test_silence_is_asked_about_and_then_ends_the_connection(session: Session) -> None:
    assert session.tick(SILENCE_S - 0.1)
    assert output(session) == []
    assert session.tick(SILENCE_S)
    assert output(session) == [Ping()]
    assert session.tick(2 * SILENCE_S - 0.1)
    assert output(session) == []
    assert not session.tick(2 * SILENCE_S)
    assert output(session) == [Parting()]  # the server may hear, though we do not


def test_an_answer_ends_the_silence(session: Session) -> None:
    session.tick(SILENCE_S)
    hear(session, Pong(), now=2 * SILENCE_S)
    assert session.tick(3 * SILENCE_S - 0.1)
    assert output(session) == [Ping()]
    assert session.tick(3 * SILENCE_S)
    assert output(session) == [Ping()]


def test_a_client_that_did_not_listen_asks_before_it_judges(session: Session) -> None:
    assert session.tick(3600.0)
    assert output(session) == [Ping()]
    assert not session.tick(3600.0 + SILENCE_S)


def test_a_server_that_does_not_welcome_is_given_up() -> None:
    session = Session(ME, "tcp://there")
    assert session.tick(1e9)  # apart: nothing to be silent
    session.connected(100.0)
    assert session.tick(100.0 + SILENCE_S - 0.1)
    assert not session.tick(100.0 + SILENCE_S)


# SE-4: watches.


def test_se4_a_watch_delivers_its_state_and_then_changes(session: Session) -> None:
    watch = session.open_watch("k", True)
    hear(session, WatchSnapshot(1, False, 4, (Entry("k1", b"1", 3),)))
    assert not watch.synced
    hear(
        session,
        WatchSnapshot(1, True, 4, (Entry("k2", b"2", 4),)),
        Changed(1, Change("k1", None, 5)),
    )
    assert watch.synced
    assert changes_of(watch) == [Change("k2", b"2", 4), Change("k1", None, 5)]


def test_se4_after_a_gap_only_what_differs_is_delivered(session: Session) -> None:
    watch = session.open_watch("k", True)
    state = (Entry("k1", b"1", 1), Entry("k2", b"2", 2), Entry("k3", b"3", 3))
    hear(session, WatchSnapshot(1, True, 3, state))
    changes_of(watch)
    assert reconnect(session) == [WatchOpen(1, True, "k")]
    # Meanwhile k1 was deleted, k2 deleted and made again, k3 left alone, k4 made.
    state = (Entry("k2", b"2", 6), Entry("k3", b"3", 3), Entry("k4", b"4", 7))
    hear(session, WatchSnapshot(1, True, 8, state))
    assert changes_of(watch) == [
        Change("k1", None, 8),
        Change("k2", b"2", 6),
        Change("k4", b"4", 7),
    ]
    hear(session, Changed(1, Change("k1", b"new", 9)))
    assert changes_of(watch) == [Change("k1", b"new", 9)]


def test_se4_half_a_snapshot_is_forgotten_with_its_connection(session: Session) -> None:
    watch = session.open_watch("k", True)
    hear(session, WatchSnapshot(1, False, 5, (Entry("k1", b"1", 1),)))
    reconnect(session)
    hear(session, WatchSnapshot(1, True, 6, ()))
    assert watch.synced
    assert changes_of(watch) == []


def test_se4_a_deletion_of_an_unknown_key_is_delivered(session: Session) -> None:
    watch = session.open_watch("k", False)
    hear(session, WatchSnapshot(1, True, 1, ()), Changed(1, Change("k", None, 2)))
    assert changes_of(watch) == [Change("k", None, 2)]


def test_a_closed_watch_is_deaf_and_is_not_opened_again(session: Session) -> None:
    watch = session.open_watch("k", False)
    session.take_output()
    session.close_watch(watch)
    session.close_watch(watch)
    assert output(session) == [WatchClose(1), Ping()]
    hear(session, WatchSnapshot(1, True, 1, (Entry("k", b"", 1),)))
    assert changes_of(watch) == []
    assert reconnect(session) == []


def test_a_watch_opened_and_closed_while_apart_is_never_mentioned(session: Session) -> None:
    session.disconnected()
    session.close_watch(session.open_watch("k", False))
    session.connected(0.0)
    hear(session, Welcome(LIFE, resumed=True))
    assert output(session) == [Hello(ME, LIFE, 1)]


# Both machines together, over connections that lose what they carry.


class Wire:
    """A client's and a server's machine; a test decides which frames arrive."""

    def __init__(self) -> None:
        self.service = Service(LIFE)
        self.session = Session(ME, "tcp://there")
        self.connection = 0
        self.now = 0.0

    def connect(self, *, lose_welcome: bool = False) -> None:
        self.connection += 1
        self.service.connect(self.connection)
        self.session.connected(self.now)
        if lose_welcome:
            self.up()
        else:
            self.talk()

    def up(self, *, copies: int = 1) -> list[bytes]:
        """Carry the client's frames; return the server's."""
        for payload in self.session.take_output():
            for _ in range(copies):
                self.service.receive(self.connection, payload, self.now)
        return [
            effect.payload
            for effect in self.service.take_effects()
            if isinstance(effect, SendFrame) and effect.connection == self.connection
        ]

    def talk(self, *, copies: int = 1) -> None:
        while frames := self.up(copies=copies):
            for payload in frames:
                self.session.receive(payload, self.now)

    def cut(self) -> None:
        self.session.disconnected()
        self.service.disconnect(self.connection, self.now)

    def value(self, key: str) -> Any:
        entry = self.service.keyspace.apply(Get(key), self.now)
        return entry and entry.value


@pytest.mark.parametrize("lost", ["request", "answer", "welcome"])
def test_together_a_write_happens_once_whatever_is_lost(lost: str) -> None:
    wire = Wire()
    wire.connect()
    call = wire.session.begin(Add("n", 1))
    if lost == "request":
        wire.session.take_output()
    else:
        wire.up()
    wire.cut()
    if lost == "welcome":
        wire.connect(lose_welcome=True)
        wire.cut()
    wire.connect()
    wire.talk()
    assert call.outcome() == 1
    assert wire.value("n") == b"1"


def test_together_duplicated_frames_do_nothing_twice() -> None:
    wire = Wire()
    wire.connect()
    calls = [wire.session.begin(Add("n", 1)) for _ in range(3)]
    waiting = wire.session.begin(Wait(("go",)))
    wire.talk(copies=3)
    assert [call.outcome() for call in calls] == [1, 2, 3]
    wire.session.begin(Set("go", b""))
    wire.talk(copies=2)
    assert waiting.outcome() == (Entry("go", b"", 4),)
    assert wire.value("n") == b"3"


def test_together_a_forgotten_client_never_writes_twice() -> None:
    # SV-6 and SE-2: away for too long, then the Welcome that says so gets lost.
    wire = Wire()
    wire.connect()
    call = wire.session.begin(Add("n", 1))
    wire.up()
    wire.cut()
    wire.now = 2 * LINGER_S
    wire.service.tick(wire.now)
    wire.connect(lose_welcome=True)
    wire.cut()
    wire.connect()
    wire.talk()
    with pytest.raises(StoreUnavailable, match="forgot") as caught:
        call.outcome()
    assert caught.value.maybe_applied
    assert wire.value("n") == b"1"


def test_together_a_wait_survives_its_connection() -> None:
    wire = Wire()
    wire.connect()
    waiting = wire.session.begin(Wait(("k",)))
    wire.talk()
    wire.cut()
    wire.service.keyspace.apply(Set("k", b"v"), 0.0)  # by another client, meanwhile
    wire.connect()
    wire.talk()
    assert waiting.outcome() == (Entry("k", b"v", 1),)


def test_together_a_watch_tells_what_happened_while_away() -> None:
    wire = Wire()
    wire.connect()
    watch = wire.session.open_watch("k", True)
    for key in ("k1", "k2", "k3"):
        wire.session.begin(Set(key, b"1"))
    wire.talk()
    assert [change.revision for change in changes_of(watch)] == [1, 2, 3]
    wire.cut()
    wire.service.keyspace.apply(Delete("k1"), 0.0)
    wire.service.keyspace.apply(Delete("k2"), 0.0)
    wire.service.keyspace.apply(Set("k2", b"1"), 0.0)
    wire.connect()
    wire.talk()
    assert changes_of(watch) == [Change("k1", None, 6), Change("k2", b"1", 6)]


def test_together_a_lease_of_a_write_that_was_sent_again_is_one_lease() -> None:
    wire = Wire()
    wire.connect()
    call = wire.session.begin(LeaseGrant(10.0))
    wire.up()
    wire.cut()
    wire.connect()
    wire.talk()
    assert call.outcome().id == 1
    assert len(wire.service.keyspace.dump().leases) == 1


THREE = ("a:1", "b:1", "c:1")


def test_a_member_that_does_not_lead_names_the_leader() -> None:
    session = Session(ME, "tcp://a:1,b:1", several=True)
    for leader, text in (("b:1", "the leader is b:1"), ("", "no leader is known")):
        session.connected(0.0)
        with pytest.raises(Unavailable, match=text):
            hear(session, Members(False, leader, THREE))
        assert session.members == Members(False, leader, THREE)
        session.disconnected()
    session.connected(0.0)
    hear(session, Members(True, "b:1", THREE), Welcome(LIFE, resumed=False))
    assert session.ready
    with pytest.raises(Unavailable, match="does not lead"):
        hear(session, Members(False, "c:1", THREE))  # it steps down


def test_se6_a_session_with_several_endpoints_begins_at_a_store_with_several_members() -> None:
    session = Session(ME, "tcp://a:1,b:1", several=True)
    session.connected(0.0)
    with pytest.raises(Unavailable, match="has one member"):
        hear(session, Welcome(LIFE, resumed=False))
    assert not session.met


def test_se6_another_store_at_the_address_of_a_member_does_not_lose_the_session() -> None:
    session = Session(ME, "tcp://a:1")
    session.connected(0.0)
    hear(session, Members(True, "a:1", THREE), Welcome(LIFE, resumed=False))
    call = session.begin(Add("n", 1))
    session.disconnected()
    session.connected(0.0)
    with pytest.raises(Unavailable, match="another store"):
        hear(session, Welcome(LIFE + 1, resumed=False))
    assert session.lost is None
    session.disconnected()
    session.connected(0.0)
    hear(session, Members(True, "b:1", THREE), Welcome(LIFE, resumed=True))
    assert not call.done
    assert isinstance(output(session)[-1], Call)
