"""Sinks write what they are given, never flood, and never break their caller."""

from __future__ import annotations

import json
import logging
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.errors import Step
from holdfast.ids import CauseId
from holdfast.observe.events import (
    ConnectionOpened,
    ConnectionRefused,
    Event,
    ServerStarted,
    ServerStopped,
)
from holdfast.observe.sinks import FanOut, FileSink, LogSink, MemorySink
from holdfast.testing.clock import ManualClock

CAUSE = CauseId("c")
STARTED = ServerStarted(cause=CAUSE, at=1.0, endpoint="tcp://h:1")
STOPPED = ServerStopped(cause=CAUSE, at=2.0, endpoint="tcp://h:1", reason="done")
OPENED = ConnectionOpened(cause=CAUSE, at=1.5, peer="p:1")
REFUSED = ConnectionRefused(cause=CAUSE, at=1.5, peer="p:1", step=Step.SECRET, reason="wrong")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "holdfast")
    return caplog


class Broken:
    def __init__(self) -> None:
        self.tries = 0
        self.closed = False

    def emit(self, event: Event) -> None:
        self.tries += 1
        raise OSError("disk full")

    def close(self) -> None:
        self.closed = True
        raise OSError("still full")


def test_memory_keeps_everything() -> None:
    sink = MemorySink()
    sink.emit(STARTED)
    sink.emit(STOPPED)
    sink.close()
    assert sink.events == [STARTED, STOPPED]


def test_a_log_line_is_the_sentence_at_its_level(logs: pytest.LogCaptureFixture) -> None:
    sink = LogSink()
    for event in (STARTED, OPENED, REFUSED):
        sink.emit(event)
    assert [(record.levelname, record.getMessage()) for record in logs.records] == [
        ("INFO", "serving tcp://h:1"),
        ("WARNING", "connection from p:1 refused at secret: wrong"),
    ]


def test_a_percent_sign_is_only_a_percent_sign(logs: pytest.LogCaptureFixture) -> None:
    LogSink().emit(ServerStarted(cause=CAUSE, at=0.0, endpoint="file:///%s%d"))
    assert logs.messages == ["serving file:///%s%d"]


def test_json_lines_carry_the_wall_time_and_every_field(
    logs: pytest.LogCaptureFixture, clock: ManualClock
) -> None:
    LogSink(as_json=True, clock=clock).emit(STARTED)
    assert json.loads(logs.messages[0]) == {
        "time": clock.wall(),
        "event": "ServerStarted",
        "cause": "c",
        "at": 1.0,
        "endpoint": "tcp://h:1",
        "left_out": 0,
    }


def test_a_flood_of_refusals_is_one_line_a_second(
    logs: pytest.LogCaptureFixture, clock: ManualClock
) -> None:
    sink = LogSink(clock=clock)
    for _ in range(1000):
        sink.emit(REFUSED)
    clock.advance(0.99)
    sink.emit(REFUSED)
    assert len(logs.messages) == 1
    clock.advance(0.01)
    sink.emit(REFUSED)
    sentence = "connection from p:1 refused at secret: wrong"
    assert logs.messages == [sentence, f"{sentence} (1000 more like it left out)"]


def test_events_that_no_client_provokes_are_never_left_out(
    logs: pytest.LogCaptureFixture, clock: ManualClock
) -> None:
    sink = LogSink(clock=clock)
    for _ in range(5):
        sink.emit(STARTED)
    assert len(logs.messages) == 5


def test_closing_tells_what_was_left_out_last(
    logs: pytest.LogCaptureFixture, clock: ManualClock
) -> None:
    sink = LogSink(clock=clock)
    for _ in range(3):
        sink.emit(REFUSED)
    sink.close()
    sink.close()
    assert logs.messages[1:] == ["2 more ConnectionRefused left out"]


def test_a_level_that_is_off_costs_no_turn_of_the_limit(
    caplog: pytest.LogCaptureFixture, clock: ManualClock
) -> None:
    sink = LogSink(clock=clock)
    caplog.set_level(logging.ERROR, "holdfast")
    sink.emit(REFUSED)
    caplog.set_level(logging.WARNING, "holdfast")
    sink.emit(REFUSED)
    assert len(caplog.messages) == 1


def test_the_file_has_one_json_object_a_line_at_once(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "events.jsonl"
    sink = FileSink(path, clock)
    assert not path.exists()  # a constructor does no I/O
    sink.emit(STARTED)
    sink.emit(REFUSED)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["event"] for line in lines] == ["ServerStarted", "ConnectionRefused"]
    assert lines[0]["time"] == clock.wall()
    sink.close()


def test_a_flood_of_refusals_does_not_fill_the_disk(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "events.jsonl"
    sink = FileSink(path, clock)
    for _ in range(1000):
        sink.emit(REFUSED)
    clock.advance(1.0)
    sink.emit(REFUSED)
    sink.close()
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["left_out"] for line in lines] == [0, 999]


def test_a_file_sink_does_not_follow_a_link(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.symlink_to(tmp_path / "victim")
    sink = FileSink(path)
    with pytest.raises(OSError, match="symbolic links"):
        sink.emit(STARTED)
    assert not (tmp_path / "victim").exists()


def test_lines_of_many_threads_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = FileSink(path)

    def emit(number: int) -> None:
        peer = f"{number}" * 2000
        for _ in range(100):
            sink.emit(ConnectionOpened(cause=CAUSE, at=0.0, peer=peer))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(emit, range(4)))
    sink.close()
    peers = [json.loads(line)["peer"][0] for line in path.read_text(encoding="utf-8").splitlines()]
    assert sorted(peers) == sorted("0123" * 100)


def test_the_file_is_this_users_only(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = FileSink(path)
    sink.emit(STARTED)
    sink.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_sink_appends_and_is_silent_once_closed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('"kept"\n', encoding="utf-8")
    sink = FileSink(path)
    sink.emit(STARTED)
    sink.close()
    sink.close()
    sink.emit(STOPPED)
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2


def test_a_file_sink_that_got_nothing_leaves_nothing(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "events.jsonl")
    sink.close()
    assert list(tmp_path.iterdir()) == []


def test_one_broken_sink_harms_neither_the_others_nor_the_caller(
    logs: pytest.LogCaptureFixture,
) -> None:
    broken, first, last = Broken(), MemorySink(), MemorySink()
    fan = FanOut([first, broken, last])
    fan.emit(STARTED)
    fan.emit(STOPPED)
    assert first.events == last.events == [STARTED, STOPPED]
    assert broken.tries == 1
    assert logs.messages == ["Broken failed and gets no more events"]


def test_closing_reaches_every_sink_even_the_broken(
    logs: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    broken, file = Broken(), FileSink(tmp_path / "events.jsonl")
    fan = FanOut([broken, file])
    fan.emit(STARTED)
    fan.close()
    assert broken.closed
    file.emit(STOPPED)
    assert len((tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()) == 1
    assert logs.messages[-1] == "Broken failed while closing"
