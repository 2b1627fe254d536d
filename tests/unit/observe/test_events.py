"""Events are frozen, closed, and tell machines and people the same, without secrets."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, field
from typing import get_args

import pytest

from holdfast.errors import Step
from holdfast.ids import CauseId
from holdfast.observe import events
from holdfast.observe.events import (
    AgentSignalled,
    AnyEvent,
    ConnectionClosed,
    ConnectionOpened,
    ConnectionRefused,
    Event,
    JobEnded,
    JobFailed,
    Level,
    RoundAwaited,
    RoundEnded,
    RoundFormed,
    RunEnded,
    ServerStarted,
    ServerStopped,
    StopRequested,
    TimerExpired,
    WorkerFailed,
    WorkersFinished,
    WorkersRestarting,
    WorkersStarted,
    WorkersStopping,
    printable,
)
from holdfast.records import dataclass

CAUSE = CauseId("start")

SENTENCES: list[tuple[Event, str]] = [
    (ServerStarted(cause=CAUSE, at=1.0, endpoint="tcp://[::1]:5"), "serving tcp://[::1]:5"),
    (
        ServerStopped(cause=CAUSE, at=1.0, endpoint="tcp://h:5", reason="closed"),
        "stopped serving tcp://h:5: closed",
    ),
    (ConnectionOpened(cause=CAUSE, at=1.0, peer="p:1"), "connection from p:1 opened"),
    (
        ConnectionClosed(cause=CAUSE, at=1.0, peer="p:1", reason="done"),
        "connection from p:1 closed: done",
    ),
    (
        ConnectionRefused(cause=CAUSE, at=1.0, peer="p:1", step=Step.SECRET, reason="wrong"),
        "connection from p:1 refused at secret: wrong",
    ),
    (
        RoundAwaited(
            cause=CAUSE,
            at=1.0,
            run="job",
            round=3,
            have=1,
            missing=("a", "b"),
            left_s=2.54,
            reason="1 of 3 nodes",
        ),
        "run job: 1 of 3 nodes, 2.5 s left",
    ),
    (
        RoundAwaited(
            cause=CAUSE, at=1.0, run="job", round=3, have=1, missing=(), left_s=None, reason="wait"
        ),
        "run job: wait",
    ),
    (
        RoundFormed(
            cause=CAUSE, at=1.0, run="job", round=3, rank=1, world_size=4, reason="all came"
        ),
        "run job: rank 1 of 4 in round 3: all came",
    ),
    (
        RoundEnded(cause=CAUSE, at=1.0, run="job", round=3, reason="b\nleft"),
        r"run job: b\nleft",
    ),
    (RunEnded(cause=CAUSE, at=1.0, run="job", reason="it was closed"), "run job: it was closed"),
    (
        WorkersStarted(
            cause=CAUSE,
            at=1.0,
            run="job",
            round=3,
            ranks=(4, 5, 6, 7),
            pids=(11, 12, 13, 14),
            world_size=8,
            restarts=2,
        ),
        "run job: ranks 4 to 7 of 8 started in round 3, restart 2",
    ),
    (
        WorkersStarted(
            cause=CAUSE,
            at=1.0,
            run="job",
            round=1,
            ranks=(0,),
            pids=(11,),
            world_size=1,
            restarts=0,
        ),
        "run job: rank 0 of 1 started in round 1",
    ),
    (
        WorkerFailed(
            cause=CAUSE,
            at=1.0,
            run="job",
            round=3,
            rank=5,
            local_rank=1,
            role="trainer",
            host="node1",
            pid=12,
            exit_code=-9,
            reason="killed by SIGKILL\x1b[2J",
        ),
        r"run job: rank 5 (trainer) on node1, process 12, failed: killed by SIGKILL\x1b[2J",
    ),
    (
        WorkersStopping(
            cause=CAUSE, at=1.0, run="job", round=3, signal="SIGTERM", grace_s=30.0, reason="a\nb"
        ),
        r"run job: stopping workers by SIGTERM, KILL after 30 s: a\nb",
    ),
    (
        WorkersFinished(cause=CAUSE, at=1.0, run="job", round=3, ranks=(4, 5)),
        "run job: ranks 4 to 5 finished in round 3",
    ),
    (
        WorkersRestarting(
            cause=CAUSE, at=1.0, run="job", round=3, failures=1, left=None, reason="b\nleft"
        ),
        r"run job: restarting after round 3: b\nleft",
    ),
    (
        AgentSignalled(cause=CAUSE, at=1.0, run="job", signal="SIGTERM"),
        "run job: this agent was told to stop by SIGTERM",
    ),
    (
        StopRequested(cause=CAUSE, at=1.0, run="job", by="user\na"),
        r"run job: user\na stops the job",
    ),
    (
        TimerExpired(cause=CAUSE, at=1.0, pid=12, scope="step\n7", late_s=0.25, signal="SIGKILL"),
        r"process 12 was sent SIGKILL: its timer 'step\n7' expired 0.2 s ago",
    ),
    (
        JobEnded(cause=CAUSE, at=1.0, run="job", ending="succeeded", reason="all are done"),
        "run job: succeeded: all are done",
    ),
    (
        JobFailed(cause=CAUSE, at=1.0, run="job", ending="failed", reason="rank 5\nfailed"),
        r"run job: failed: rank 5\nfailed",
    ),
]


@pytest.mark.parametrize(("event", "sentence"), SENTENCES)
def test_each_event_is_a_sentence(event: Event, sentence: str) -> None:
    assert str(event) == sentence


def test_every_kind_of_event_is_in_the_union_and_tested() -> None:
    union = set(get_args(AnyEvent))
    exported = {getattr(events, name) for name in events.__all__}
    kinds = {kind for kind in exported if isinstance(kind, type) and issubclass(kind, Event)}
    assert union == kinds - {Event} == {type(event) for event, _ in SENTENCES}


@pytest.mark.parametrize("event", [event for event, _ in SENTENCES])
def test_the_dictionary_is_plain_json_with_cause_and_kind(event: Event) -> None:
    plain = event.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["event"] == type(event).__name__
    assert plain["cause"] == "start"


def test_an_enum_is_told_by_its_value() -> None:
    event = ConnectionRefused(cause=CAUSE, at=2.0, peer="p", step=Step.VERSION, reason="old")
    assert event.to_dict() == {
        "event": "ConnectionRefused",
        "cause": "start",
        "at": 2.0,
        "peer": "p",
        "step": "protocol version",
        "reason": "old",
    }
    assert type(event.to_dict()["step"]) is str


def test_only_events_that_unauthenticated_clients_can_provoke_are_marked() -> None:
    assert {kind for kind in get_args(AnyEvent) if kind.provoked} == {ConnectionRefused}
    assert ConnectionRefused.level is Level.WARNING
    assert ConnectionOpened.level is Level.DEBUG


def test_what_went_wrong_is_told_as_an_error() -> None:
    errors = {kind for kind in get_args(AnyEvent) if kind.level is Level.ERROR}
    assert errors == {WorkerFailed, TimerExpired, JobFailed}


def test_a_secret_field_is_in_no_form() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Given(Event):
        secret: str = field(repr=False)

    event = Given(cause=CAUSE, at=0.0, secret="hush")
    assert "hush" not in repr(event)
    assert event.to_dict() == {"event": "Given", "cause": "start", "at": 0.0}


def test_an_unauthenticated_client_cannot_forge_lines_or_fill_the_log() -> None:
    event = ConnectionClosed(cause=CAUSE, at=0.0, peer="x\nroot: all is well", reason="\x1b[2J")
    assert str(event) == r"connection from x\nroot: all is well closed: \x1b[2J"
    assert len(printable("a" * 10_000)) == 301
    assert printable("a" * 300) == "a" * 300
    assert printable("\ud800é") == r"\ud800é"


def test_an_event_cannot_be_changed() -> None:
    event = ServerStarted(cause=CAUSE, at=0.0, endpoint="e")
    with pytest.raises(FrozenInstanceError):
        event.at = 1.0  # type: ignore[misc]
