"""Events are frozen, closed, and tell machines and people the same, without secrets."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, dataclass, field
from typing import get_args

import pytest

from holdfast.errors import Step
from holdfast.ids import CauseId
from holdfast.observe import events
from holdfast.observe.events import (
    AnyEvent,
    ConnectionClosed,
    ConnectionOpened,
    ConnectionRefused,
    Event,
    Level,
    RoundAwaited,
    RoundEnded,
    RoundFormed,
    RunEnded,
    ServerStarted,
    ServerStopped,
    printable,
)

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


def test_only_what_strangers_can_provoke_is_marked_so() -> None:
    assert {kind for kind in get_args(AnyEvent) if kind.provoked} == {ConnectionRefused}
    assert ConnectionRefused.level is Level.WARNING
    assert ConnectionOpened.level is Level.DEBUG


def test_a_secret_field_is_in_no_form() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Given(Event):
        secret: str = field(repr=False)

    event = Given(cause=CAUSE, at=0.0, secret="hush")
    assert "hush" not in repr(event)
    assert event.to_dict() == {"event": "Given", "cause": "start", "at": 0.0}


def test_a_stranger_cannot_forge_lines_or_fill_the_log() -> None:
    event = ConnectionClosed(cause=CAUSE, at=0.0, peer="x\nroot: all is well", reason="\x1b[2J")
    assert str(event) == r"connection from x\nroot: all is well closed: \x1b[2J"
    assert len(printable("a" * 10_000)) == 301
    assert printable("a" * 300) == "a" * 300
    assert printable("\ud800é") == r"\ud800é"


def test_an_event_cannot_be_changed() -> None:
    event = ServerStarted(cause=CAUSE, at=0.0, endpoint="e")
    with pytest.raises(FrozenInstanceError):
        event.at = 1.0  # type: ignore[misc]
