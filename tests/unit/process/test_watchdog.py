"""A worker that does not finish in time is ended, by torch's client and by ours; no other is."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import UsageError
from holdfast.observe.events import TimerExpired
from holdfast.process import watchdog
from holdfast.process.outcome.stacks import STACK_SIGNAL
from holdfast.process.stop.escalation import ASK_BEFORE_S
from holdfast.process.watchdog import (
    TIMERS_MAX,
    UNKNOWN_PROCESSES_MAX,
    TimerRequest,
    Watchdog,
    expires,
    parse_request,
)
from holdfast.testing.clock import ManualClock

WAIT_S = 60.0
PAST = 1.0
FAR = 9e9


class Node:
    """An agent's watchdog, and workers that wait until they are ended."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self.expired: queue.Queue[TimerExpired] = queue.Queue()
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.watchdog = Watchdog(
            path, lambda pid: pid in self.workers, self.expired.put, clock=clock
        )

    def stranger(self) -> subprocess.Popen[bytes]:
        """Start a process that is no worker."""
        return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def worker(self) -> int:
        """Start a worker; return its pid."""
        process = self.stranger()
        self.workers[process.pid] = process
        return process.pid

    def write(self, *lines: bytes | TimerRequest) -> None:
        """Write to the FIFO as a worker would."""
        for line in lines:
            with self.path.open("wb", buffering=0) as fifo:
                fifo.write(line.encode() if isinstance(line, TimerRequest) else line)

    def settle(self) -> None:
        """Wait until everything that was written before has been heard."""
        pid = self.worker()
        self.write(TimerRequest(pid, "settle", PAST, SIGKILL))
        assert self.expired.get(timeout=WAIT_S).pid == pid
        self.ended(pid)

    def ended(self, pid: int) -> int:
        """Wait for the end of a worker; return its code."""
        process = self.workers.pop(pid)
        assert process.stdin is not None
        process.stdin.close()
        return process.wait(WAIT_S)

    def unharmed(self, pid: int) -> bool:
        """End a worker in peace; say whether that was news to it."""
        return self.ended(pid) == 0


@contextmanager
def watching(path: Path, clock: Clock = SYSTEM_CLOCK) -> Iterator[Node]:
    node = Node(path, clock)
    node.watchdog.start()
    try:
        yield node
    finally:
        node.watchdog.close()
        for pid in list(node.workers):
            node.ended(pid)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with watching(tmp_path / "timers") as node:
        yield node


# The agent's side.


def test_a_worker_whose_timer_expires_is_ended_and_reported(node: Node) -> None:
    """WD-1."""
    late, other = node.worker(), node.worker()
    node.write(TimerRequest(other, "step", FAR, SIGKILL), TimerRequest(late, "step", PAST, SIGKILL))
    event = node.expired.get(timeout=WAIT_S)
    assert (event.pid, event.scope, event.signal) == (late, "step", "SIGKILL")
    assert event.late_s > 0
    assert node.ended(late) == -SIGKILL
    assert node.unharmed(other)
    assert node.watchdog.why(late) == "the agent ended it: its timer 'step' has expired"
    assert node.watchdog.why(late) == node.watchdog.why(other) == ""


def test_an_agent_that_fails_to_answer_once_is_asked_again(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(dict[int, "subprocess.Popen[bytes]"]):
        def __contains__(self, pid: object) -> bool:
            node.workers = dict(self)
            raise RuntimeError("on purpose")

    node.workers = Failing()
    node.write(TimerRequest(os.getpid(), "step", PAST, SIGKILL))
    while isinstance(node.workers, Failing):
        assert node.watchdog._thread is not None
    node.settle()
    assert "on purpose" in caplog.text


def test_a_timer_waits_until_it_is_due(node: Node) -> None:
    begin = SYSTEM_CLOCK.monotonic()
    late = node.worker()
    node.write(TimerRequest(late, "step", SYSTEM_CLOCK.wall() + 0.2, SIGKILL))
    node.expired.get(timeout=WAIT_S)
    # Two clocks, so not to the millisecond.
    assert SYSTEM_CLOCK.monotonic() - begin > 0.15


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL, 40])
def test_the_worker_chooses_the_signal(node: Node, number: int) -> None:
    """WD-1."""
    late = node.worker()
    node.write(TimerRequest(late, "step", PAST, number))
    assert node.expired.get(timeout=WAIT_S).signal in {"SIGTERM", "SIGKILL", "signal 40"}
    assert node.ended(late) == -number


@pytest.mark.parametrize("number", [0, -1, 9999])
def test_a_timer_without_a_signal_ends_no_worker(node: Node, number: int) -> None:
    pid = node.worker()
    node.write(TimerRequest(pid, "step", PAST, number))
    node.settle()
    assert node.unharmed(pid)


def test_the_first_of_several_expired_timers_is_named(node: Node) -> None:
    """WD-1: one signal for all of them."""
    late = node.worker()
    requests = [
        TimerRequest(late, "silent", 1.0, 0),
        TimerRequest(late, "second", 3.0, SIGTERM),
        TimerRequest(late, "first", 2.0, SIGKILL),
    ]
    node.write(b"".join(request.encode() for request in requests))
    assert node.expired.get(timeout=WAIT_S).scope == "first"
    assert node.ended(late) == -SIGKILL
    node.settle()
    assert node.expired.empty()


def test_a_cancelled_timer_ends_no_worker(tmp_path: Path) -> None:
    clock = ManualClock()
    with watching(tmp_path / "timers", clock) as node:
        pid, later = node.worker(), node.worker()
        at = clock.wall() + 10
        node.write(
            TimerRequest(pid, "step", at, SIGKILL),
            TimerRequest(later, "step", at, SIGKILL),
            TimerRequest(later, "step", at + 100, SIGKILL),  # renewed
            TimerRequest(pid, "step", None),
            TimerRequest(pid, "never begun", None),
        )
        node.settle()
        clock.advance(20)
        node.settle()
        assert node.unharmed(pid)
        assert node.unharmed(later)


def test_a_wall_clock_that_jumps_ends_no_worker(tmp_path: Path) -> None:
    clock = ManualClock()
    with watching(tmp_path / "timers", clock) as node:
        pid = node.worker()
        node.write(TimerRequest(pid, "step", clock.wall() + 10, SIGKILL))
        node.settle()
        clock.wall_offset += 1e6
        node.settle()
        assert node.workers[pid].poll() is None
        clock.wall_offset -= 2e6
        clock.advance(10)
        node.write(b"\n")
        assert node.expired.get(timeout=WAIT_S).pid == pid


TELLS = f"""
import signal, sys
def tell(*_):
    print("asked", flush=True)
signal.signal({STACK_SIGNAL}, tell)
print("here", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [SIGKILL, SIGTERM])
def test_a_worker_that_is_killed_is_asked_for_its_stacks_before(
    tmp_path: Path, number: int
) -> None:
    """WD-5."""
    clock = ManualClock()
    with watching(tmp_path / "timers", clock) as node:
        worker = subprocess.Popen(
            [sys.executable, "-c", TELLS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        node.workers[worker.pid] = worker
        assert worker.stdout is not None
        with worker.stdout as said:
            assert said.readline() == b"here\n"
            node.write(TimerRequest(worker.pid, "step", PAST, number))
            if number == SIGKILL:
                assert said.readline() == b"asked\n"
                node.write(
                    TimerRequest(worker.pid, "step", None),
                    TimerRequest(worker.pid, "another", PAST, number),
                )
                node.settle()
                assert worker.poll() is None
                clock.advance(ASK_BEFORE_S)
                node.write(b"\n")
            assert node.expired.get(timeout=WAIT_S).scope == "step"
            assert node.ended(worker.pid) == -number
            assert said.read() == b""


def test_a_process_that_is_no_worker_is_left_alone(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """WD-1."""
    stranger = node.stranger()
    try:
        for pid in (stranger.pid, 1, 2**31 - 1, 1):
            node.write(TimerRequest(pid, "step", PAST, SIGKILL))
        node.settle()
        assert stranger.poll() is None
    finally:
        assert stranger.stdin is not None
        stranger.stdin.close()
        assert stranger.wait(WAIT_S) == 0
    (told,) = (r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    assert told == (
        "timers: a timer of a process that is not a worker of this agent was written to "
        f"{node.path}, and is ignored"
    )


def test_a_worker_may_be_faster_than_the_agent_that_learns_of_it(tmp_path: Path) -> None:
    """WD-1."""
    clock = ManualClock()
    with watching(tmp_path / "timers", clock) as node:
        process = node.stranger()
        node.write(TimerRequest(process.pid, "step", clock.wall() + 10, SIGKILL))
        node.settle()
        node.workers[process.pid] = process
        clock.advance(10)
        node.write(b"\n")
        assert node.expired.get(timeout=WAIT_S).pid == process.pid
        assert node.ended(process.pid) == -SIGKILL


def test_few_unknown_processes_are_kept(node: Node) -> None:
    """WD-2."""
    strangers = [node.stranger() for _ in range(UNKNOWN_PROCESSES_MAX + 4)]
    try:
        node.write(*(TimerRequest(s.pid, "step", FAR, SIGKILL) for s in strangers))
        node.settle()
        assert UNKNOWN_PROCESSES_MAX <= pidfds() <= UNKNOWN_PROCESSES_MAX + 1
        # Each that turns out to be a worker makes room for another.
        for early, late in zip(strangers[:4], strangers[-4:], strict=True):
            node.workers[early.pid] = early
            node.write(TimerRequest(early.pid, "more", FAR, SIGKILL))
            node.write(TimerRequest(late.pid, "step", FAR, SIGKILL))
        node.settle()
        assert pidfds() >= UNKNOWN_PROCESSES_MAX + 4
    finally:
        for stranger in strangers:
            node.workers.pop(stranger.pid, None)
            assert stranger.stdin is not None
            stranger.stdin.close()
            assert stranger.wait(WAIT_S) == 0


def pidfds() -> int:
    """Count the processes that this one holds."""
    links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum("pidfd" in link for link in links)


def test_a_worker_that_has_ended_takes_its_timers_along(node: Node) -> None:
    """WD-1: no process is kept whose number could be reused."""
    pids = [node.worker() for _ in range(5)]
    node.write(*(TimerRequest(pid, "step", FAR, SIGKILL) for pid in pids))
    node.settle()
    assert pidfds() >= len(pids)
    assert all(node.unharmed(pid) for pid in pids)
    node.settle()
    assert pidfds() <= 1  # the one by which it settled


def test_without_pidfds_workers_are_ended_as_well(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    late, other = node.worker(), node.worker()
    node.write(TimerRequest(other, "step", FAR, SIGKILL), TimerRequest(late, "step", PAST, SIGKILL))
    assert node.expired.get(timeout=WAIT_S).pid == late
    assert node.ended(late) == -SIGKILL
    assert node.unharmed(other)


GOOD = {"version": 1, "pid": 7, "scope_id": "s", "expiration_time": 1.5, "signal": 9}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\x00\xff",
        b"null",
        b"[]",
        b"7",
        b"[" * 4000,
        b"{}",
        *[
            json.dumps(GOOD | wrong).encode()
            for wrong in (
                {"version": 2},
                {"version": True},
                {"pid": 0},
                {"pid": -1},
                {"pid": 2**40},
                {"pid": "7"},
                {"pid": 7.0},
                {"scope_id": None},
                {"expiration_time": float("nan")},
                {"expiration_time": float("inf")},
                {"expiration_time": 10**400},
                {"expiration_time": "soon"},
                {"expiration_time": True},
                {"signal": None},
            )
        ],
    ],
)
def test_garbage_is_no_request_and_stops_nothing(node: Node, line: bytes) -> None:
    """WD-2."""
    assert parse_request(line) is None
    node.write(line + b"\n")
    node.settle()


@given(st.binary(max_size=200))
def test_no_bytes_written_to_the_fifo_are_an_error(line: bytes) -> None:
    """WD-2."""
    parse_request(line)


@given(
    st.builds(
        TimerRequest,
        st.integers(1, 2**31 - 1),
        st.text(),
        st.none() | st.floats(0, 1e11),
        st.integers(-(2**31), 2**31),
    )
)
def test_what_is_written_is_read(request_: TimerRequest) -> None:
    assert parse_request(request_.encode()) == request_
    assert request_.encode().count(b"\n") == 1


def test_a_line_without_an_end_is_not_kept(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """WD-2."""
    for _ in range(100):
        node.write(b"x" * 4096)
    node.write(TimerRequest(os.getpid(), "the end of the long line", PAST, SIGKILL))
    node.settle()
    node.write(b"y" * 5000 + b"\n")
    node.settle()
    assert [r.getMessage().partition(" was ")[0] for r in caplog.records] == [
        "timers: a line that is too long"
    ]


def test_of_a_line_without_an_end_nothing_is_kept(tmp_path: Path) -> None:
    """WD-2: the size of memory is all that would show it from outside."""
    reading, writing = os.pipe()
    watch = watchdog._WatchdogLoop(
        reading, tmp_path, lambda pid: False, lambda event: None, SYSTEM_CLOCK, {}
    )
    try:
        for _ in range(5):
            os.write(writing, b"x" * 4000)
            watch._read()
            assert len(watch._rest) <= 4096
    finally:
        watch._selector.close()
        os.close(reading)
        os.close(writing)


def test_a_worker_cannot_have_timers_without_end(node: Node) -> None:
    """WD-2."""
    pid = node.worker()
    for number in range(TIMERS_MAX):
        node.write(TimerRequest(pid, str(number), FAR, SIGKILL))
    node.write(TimerRequest(pid, "one too many", PAST, SIGKILL))
    node.settle()
    assert node.workers[pid].poll() is None
    # One that it has can be changed, and one that is taken back makes room.
    node.write(TimerRequest(pid, "0", None), TimerRequest(pid, "another", PAST, SIGKILL))
    assert node.expired.get(timeout=WAIT_S).scope == "another"


# The FIFO.


def quiet(path: Path) -> Watchdog:
    return Watchdog(path, lambda pid: False, lambda event: None)


def test_the_fifo_is_private_and_goes_with_the_watchdog(tmp_path: Path) -> None:
    """WD-3."""
    path = tmp_path / "timers"
    dog = quiet(path)
    assert not path.exists()
    dog.start()
    assert path.is_fifo()
    assert path.stat().st_mode & 0o777 == 0o600
    dog.close()
    assert not path.exists()
    dog.close()


def test_one_that_was_never_started_can_be_closed(tmp_path: Path) -> None:
    quiet(tmp_path / "timers").close()


def test_closing_works_while_the_fifo_is_full(tmp_path: Path) -> None:
    """WD-2."""
    hearing, go_on = threading.Event(), threading.Event()

    def is_worker(pid: int) -> bool:
        hearing.set()
        return not go_on.wait(WAIT_S)

    path = tmp_path / "timers"
    dog = Watchdog(path, is_worker, lambda event: None)
    dog.start()
    end = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(end, TimerRequest(os.getpid(), "step", FAR, SIGKILL).encode())
        assert hearing.wait(WAIT_S)
        fill(end)
    finally:
        os.close(end)
    go_on.set()
    dog.close()
    assert not path.exists()


def fill(end: int) -> None:
    for size in (4096, 1):
        try:
            while True:
                os.write(end, b"\n" * size)
        except BlockingIOError:
            pass


def test_the_fifo_of_an_agent_that_lives_is_refused(tmp_path: Path) -> None:
    """WD-3."""
    with watching(tmp_path / "timers") as node:
        with pytest.raises(UsageError, match="another agent uses it"):
            quiet(node.path).start()
        node.settle()


def test_the_fifo_of_an_agent_that_died_is_replaced(tmp_path: Path) -> None:
    """WD-3."""
    path = tmp_path / "timers"
    os.mkfifo(path, 0o666)
    with watching(path) as node:
        assert path.stat().st_mode & 0o777 == 0o600
        node.settle()


# The worker's side.


@pytest.fixture
def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Be the agent: the reading end of a FIFO that workers are told of."""
    path = tmp_path / "timers"
    os.mkfifo(path)
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(path))
    monkeypatch.setattr(watchdog, "_warned", threading.Event())
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield end
    os.close(end)


def heard(end: int) -> list[TimerRequest]:
    requests = [parse_request(line) for line in os.read(end, 1 << 20).splitlines()]
    assert None not in requests
    return [request for request in requests if request is not None]


def test_a_timer_is_announced_and_taken_back(reading: int) -> None:
    before = SYSTEM_CLOCK.wall()
    with holdfast.expires(after=60, scope="step"):
        (begun,) = heard(reading)
    (done,) = heard(reading)
    assert begun.expires_at is not None
    assert before + 60 <= begun.expires_at <= SYSTEM_CLOCK.wall() + 60
    assert begun == TimerRequest(os.getpid(), begun.scope, begun.expires_at, SIGKILL)
    assert done == TimerRequest(os.getpid(), begun.scope, None)
    assert begun.scope.startswith("step#")


def test_a_timer_is_taken_back_when_the_work_fails(reading: int) -> None:
    def work() -> None:
        with expires(60):
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        work()
    assert [request.expires_at is None for request in heard(reading)] == [False, True]


def test_timers_of_one_name_do_not_end_each_other(reading: int) -> None:
    with expires(60, "step"), expires(30, "step"):
        pass
    outer, inner, inner_done, outer_done = (request.scope for request in heard(reading))
    assert (outer, inner) == (outer_done, inner_done)
    assert outer != inner


def test_a_timer_without_a_name_is_named_by_its_place(reading: int) -> None:
    with expires(60):
        pass
    assert heard(reading)[0].scope.startswith("test_watchdog.py:")


def test_the_longest_name_still_fits_into_one_line(reading: int) -> None:
    with expires(60, "☃" * 10_000):
        pass
    assert len(heard(reading)) == 2


@pytest.mark.parametrize("after", [-1, None, "x", float("nan"), True])
def test_a_time_that_is_none_is_refused(after: float) -> None:
    with pytest.raises(UsageError, match=r"^after "):
        expires(after)


def no_variable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_TIMER_FILE", raising=False)


def no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pass


def no_reader(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(path)


def no_fifo(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("precious")


@pytest.mark.parametrize("spoil", [no_variable, no_file, no_reader, no_fifo])
def test_without_a_watchdog_the_work_goes_on_after_one_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    """WD-4."""
    path = tmp_path / "timers"
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(path))
    monkeypatch.setattr(watchdog, "_warned", threading.Event())
    spoil(path, monkeypatch)
    done = 0
    for _ in range(2):
        with expires(60):
            done += 1
    assert done == 2
    assert len(caplog.records) == 1
    assert (
        caplog.records[0].getMessage().startswith("timers: those of this process are not watched: ")
    )
    if path.is_file():
        assert path.read_text() == "precious"


def test_a_full_fifo_is_waited_for(reading: int) -> None:
    end = os.open(os.environ["TORCHELASTIC_TIMER_FILE"], os.O_WRONLY | os.O_NONBLOCK)
    fill(end)
    os.close(end)
    begun = threading.Event()

    def work() -> None:
        with expires(60):
            begun.set()

    worker = threading.Thread(target=work)
    worker.start()
    # It cannot begin before there is room.
    os.read(reading, 1 << 20)
    assert begun.wait(WAIT_S)
    worker.join(WAIT_S)
    assert len(heard(reading)) == 2


def test_a_fifo_that_stays_full_does_not_stop_the_worker(
    reading: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """WD-4."""
    monkeypatch.setattr(watchdog, "_WRITE_S", 0.01)
    end = os.open(os.environ["TORCHELASTIC_TIMER_FILE"], os.O_WRONLY | os.O_NONBLOCK)
    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 4096)
    fill(end)
    with expires(60):
        pass
    os.close(end)
    assert "Resource temporarily unavailable" in caplog.text


# Both sides.

OURS = """
import signal, sys, holdfast
sys.stdin.readline()
with holdfast.expires(after=60, scope="fine"):
    pass
with holdfast.expires(after=0.05, scope="stuck"):
    signal.pause()
"""
TORCHS = """
import os, signal, sys
import torch.distributed.elastic.timer as timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"], signal.SIGKILL))
sys.stdin.readline()
with timer.expires(after=60, scope="fine"):
    pass
with timer.expires(after=0.05, scope="stuck"):
    signal.pause()
"""


@pytest.mark.parametrize("program", [OURS, TORCHS], ids=["ours", "torch's"])
def test_a_real_worker_that_is_stuck_is_ended(node: Node, program: str) -> None:
    """WD-1."""
    if program is TORCHS:
        pytest.importorskip("torch")
    worker = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        env=os.environ | {"TORCHELASTIC_TIMER_FILE": str(node.path)},
    )
    node.workers[worker.pid] = worker
    assert worker.stdin is not None
    worker.stdin.write(b"go\n")
    worker.stdin.flush()
    event = node.expired.get(timeout=WAIT_S)
    assert event.pid == worker.pid
    assert event.scope.partition("#")[0] == "stuck"
    assert node.ended(worker.pid) == -signal.SIGKILL
