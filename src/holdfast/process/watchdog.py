"""Timers that end a worker which does not finish in time what it announced.

The worker writes a line to a FIFO when something begins and another when it is done; the agent
ends the worker that does not come back. The lines are those of torch's file timer, so its client
works unchanged:

    {"version": 1, "pid": 7, "scope_id": "step", "expiration_time": 1700000000.5, "signal": 9}

`expiration_time` is wall clock time, and negative when the timer is taken back. What is left is
measured when the line arrives, and counts on the monotonic clock from then on.

Guarantees
    WD-1  A worker whose timer expires is sent the signal that it named, once, and no other process:
          only what the agent then says is a worker of its own, held by a pidfd where there are any,
          so that a process which inherits its number is safe.
    WD-2  Nothing that is written to the FIFO stops the watchdog, nor makes it keep more than
          `TIMERS_MAX` timers for each worker, and `UNKNOWN_PROCESSES_MAX` processes that are no
          workers (a worker may be faster than the agent that learns of it).
    WD-3  No path that others may use is taken: the FIFO of an agent that lives, another user's, and
          what is no FIFO are refused. At the end our FIFO is gone.
    WD-4  Where no watchdog runs, `expires` says so once, and the work goes on.
    WD-5  A worker of holdfast that is about to be killed is asked for its stacks, and has
          ASK_BEFORE_S to write them; a timer that is taken back meanwhile has expired all the same.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import math
import os
import select
import selectors
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from pathlib import Path
from signal import SIGKILL, Signals, valid_signals

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline, check_timeout
from holdfast.env import current
from holdfast.errors import UsageError
from holdfast.ids import CauseId
from holdfast.observe.events import TimerExpired
from holdfast.process.fifo import FIFO_FLAGS, make_fifo, remove_fifo
from holdfast.process.outcome.stacks import STACK_SIGNAL, writes_stacks
from holdfast.process.stop.escalation import ASK_BEFORE_S
from holdfast.records import dataclass
from holdfast.threads import start_thread

__all__ = [
    "TIMERS_MAX",
    "UNKNOWN_PROCESSES_MAX",
    "TimerRequest",
    "Watchdog",
    "expires",
    "parse_request",
]

TIMERS_MAX = 256
UNKNOWN_PROCESSES_MAX = 16

_UNKNOWN_PROCESS = "a timer of a process that is not a worker of this agent"
_VERSION = 1
_LINE_MAX = 4096  # what a pipe takes in one piece, so that the lines of several writers never mix
_READ_BYTES = 1 << 16
_JOIN_S = 5.0
_WRITE_S = 10.0
_TIME_MAX = 1e12
_REST_S = 1.0
_WAIT_MAX_S = 3600.0  # no system call takes a wait that is as long as a clock can say

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TimerRequest:
    """What a worker announces: a timer, or that it is taken back (`expires_at` is None)."""

    pid: int
    scope: str
    expires_at: float | None
    signal: int = 0

    def encode(self) -> bytes:
        """Return it as a line."""
        at = -1 if self.expires_at is None else self.expires_at
        plain = {
            "version": _VERSION,
            "pid": self.pid,
            "scope_id": self.scope,
            "expiration_time": at,
            "signal": self.signal,
        }
        return json.dumps(plain).encode() + b"\n"


def parse_request(line: bytes) -> TimerRequest | None:
    """Read a line, which any process may have written; None if it is not a request."""
    try:
        plain = json.loads(line)
        version, pid = plain["version"], plain["pid"]
        scope, at, number = plain["scope_id"], plain["expiration_time"], plain["signal"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    whole = all(type(value) is int for value in (version, pid, number))
    if not whole or version != _VERSION or not 0 < pid < 1 << 31 or not isinstance(scope, str):
        return None
    if type(at) not in {int, float} or not -_TIME_MAX < at < _TIME_MAX:  # NaN is in no range
        return None
    return TimerRequest(pid, scope, float(at) if at >= 0 else None, number)


@dataclass(slots=True)
class _WatchedProcess:
    """A process that has announced timers; `pidfd` is None where the system has none.

    `known` says that the agent has called it a worker of its own. `expired` is the timer that ends
    it, and `end_at` when: once it has written its stacks.
    """

    pid: int
    pidfd: int | None
    known: bool
    timers: dict[str, _Timer] = field(default_factory=dict)
    expired: _Timer | None = None
    end_at: float = math.inf

    def send(self, number: int) -> bool:
        """Send a signal; False if the process is gone, or has made itself another user's."""
        try:
            if self.pidfd is None:
                os.kill(self.pid, number)
            else:
                _send_signal(self.pidfd, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Timer:
    scope: str
    at: float
    signal: int


class Watchdog:
    """The agent's side: reads what workers announce, on a thread of its own.

    `is_worker` says whether a process is a worker of this agent that has not been reaped; `report`
    hears of each signal that was sent. Both are called on the watchdog's thread.
    """

    def __init__(
        self,
        path: Path,
        is_worker: Callable[[int], bool],
        report: Callable[[TimerExpired], None],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.path = path
        self._is_worker = is_worker
        self._report = report
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._reasons: dict[int, str] = {}
        # The reading end, and a writing end that keeps it from ending and wakes the thread.
        self._ends: tuple[int, int] | None = None

    def start(self) -> None:
        """Make the FIFO and watch; UsageError if its path is taken."""
        self._ends = make_fifo(self.path)
        watch = _WatchdogLoop(
            self._ends[0], self.path, self._is_worker, self._report, self._clock, self._reasons
        )
        self._thread = threading.Thread(
            target=watch.run, args=(self._closing,), name="holdfast-watchdog", daemon=True
        )
        start_thread(self._thread)

    def why(self, pid: int) -> str:
        """Say which timer has ended a worker, or nothing; once, after the worker was reaped."""
        return self._reasons.pop(pid, "")

    def close(self) -> None:
        """Stop watching and remove the FIFO. May be called twice."""
        ends, self._ends = self._ends, None
        if ends is None or self._thread is None:
            return
        self._closing.set()
        try:
            os.write(ends[1], b"\n")
        except BlockingIOError:
            pass  # full: there is enough to wake up for
        self._thread.join(_JOIN_S)
        remove_fifo(self.path, ends[0])
        if not self._thread.is_alive():  # else what it was given has it still
            for end in ends:
                os.close(end)


class _WatchdogLoop:
    """What the watchdog's thread knows and does."""

    def __init__(
        self,
        fifo: int,
        path: Path,
        is_worker: Callable[[int], bool],
        report: Callable[[TimerExpired], None],
        clock: Clock,
        reasons: dict[int, str],
    ) -> None:
        self._fifo = fifo
        self._path = path
        self._is_worker = is_worker
        self._report = report
        self._clock = clock
        self._reasons = reasons
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, _WatchedProcess] = {}
        self._rest = b""
        self._skipping = False
        self._told: set[str] = set()

    def run(self, closing: threading.Event) -> None:
        """Watch until `closing` is set and the FIFO has something to read."""
        with self._selector as selector:
            selector.register(self._fifo, selectors.EVENT_READ)
            while not closing.is_set():
                try:
                    self._turn()
                except Exception:  # raised by a callback; the timers of other workers still count
                    _log.exception("timers: a check failed")
                    closing.wait(_REST_S)
            for worker in list(self._workers.values()):
                self._forget(worker)

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._next_s()):
            if key.data is None:
                self._read()
            else:
                self._forget(key.data)
        self._expire()

    def _next_s(self) -> float | None:
        times = [timer.at for worker in self._workers.values() for timer in worker.timers.values()]
        times += [worker.end_at for worker in self._workers.values() if worker.expired]
        if not times:
            return None
        return min(max(0.0, min(times) - self._clock.monotonic()), _WAIT_MAX_S)

    def _read(self) -> None:
        try:
            data = os.read(self._fifo, _READ_BYTES)
        except BlockingIOError:
            return
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if self._skipping or len(line) > _LINE_MAX:
                self._skipping = False
                self._tell_once("a line that is too long")
            elif line:
                self._hear(line)
        if len(self._rest) > _LINE_MAX:
            self._rest, self._skipping = b"", True

    def _hear(self, line: bytes) -> None:
        request = parse_request(line)
        if request is None:
            self._tell_once("something that is not a timer")
            return
        worker = self._workers.get(request.pid)
        if request.expires_at is None:
            if worker is not None:
                worker.timers.pop(request.scope, None)
            return
        if worker is None:
            worker = self._hold(request.pid)
        else:
            worker.known = worker.known or self._is_worker(worker.pid)
        if worker is None:
            self._tell_once(_UNKNOWN_PROCESS)
        elif request.scope not in worker.timers and len(worker.timers) >= TIMERS_MAX:
            self._tell_once(f"more than {TIMERS_MAX} timers of a worker")
        else:
            left = request.expires_at - self._clock.wall()
            at = self._clock.monotonic() + left
            worker.timers[request.scope] = _Timer(request.scope, at, request.signal)

    def _hold(self, pid: int) -> _WatchedProcess | None:
        """Take hold of a process, if it may be a worker of this agent."""
        known = self._is_worker(pid)
        unknown = sum(not worker.known for worker in self._workers.values())
        if not known and unknown >= UNKNOWN_PROCESSES_MAX:
            return None
        try:
            pidfd = _open_pidfd(pid)
        except OSError:
            return None
        self._reasons.pop(pid, None)  # of an earlier process that ended well in spite of it
        worker = self._workers[pid] = _WatchedProcess(pid, pidfd, known)
        if pidfd is not None:
            self._selector.register(pidfd, selectors.EVENT_READ, worker)
        return worker

    def _forget(self, worker: _WatchedProcess) -> None:
        """Drop a worker that has ended, with its timers."""
        del self._workers[worker.pid]
        if worker.pidfd is not None:
            self._selector.unregister(worker.pidfd)
            os.close(worker.pidfd)

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for worker in list(self._workers.values()):
            due = sorted(
                (timer for timer in worker.timers.values() if timer.at <= now),
                key=lambda timer: timer.at,
            )
            for timer in due:
                del worker.timers[timer.scope]
            # torch's rule: the first that names a signal; one that names none is only dropped.
            deadly = next((timer for timer in due if timer.signal in valid_signals()), None)
            if deadly is not None and worker.expired is None:
                self._condemn(worker, deadly, now)
            if worker.expired is not None and worker.end_at <= now:
                timer, worker.expired = worker.expired, None
                self._end(worker, timer, now)
            if worker.pidfd is None and not worker.timers and worker.expired is None:
                self._forget(worker)  # nothing else would say when it ends

    def _condemn(self, worker: _WatchedProcess, timer: _Timer, now: float) -> None:
        """Let a timer end a worker; one that is to be killed has time to write its stacks."""
        # Asked only now: a worker that is there still is the one whose pidfd we have.
        if not self._is_worker(worker.pid):
            self._tell_once(_UNKNOWN_PROCESS)
            return
        # Known before the end is noticed: native code may fail because the signal interrupts it.
        self._reasons[worker.pid] = f"the agent ended it: its timer {timer.scope!r} has expired"
        asked = timer.signal == SIGKILL and writes_stacks(worker.pid) and worker.send(STACK_SIGNAL)
        worker.expired, worker.end_at = timer, now + (ASK_BEFORE_S if asked else 0)

    def _end(self, worker: _WatchedProcess, timer: _Timer, now: float) -> None:
        if not self._is_worker(worker.pid):
            return  # it has ended meanwhile
        if not worker.send(timer.signal):
            self._reasons.pop(worker.pid, None)
            return
        self._report(
            TimerExpired(
                cause=CauseId(f"timer/{worker.pid}"),
                at=now,
                pid=worker.pid,
                scope=timer.scope,
                late_s=now - timer.at,
                signal=_signal_name(timer.signal),
            )
        )

    def _tell_once(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            _log.warning("timers: %s was written to %s, and is ignored", what, self._path)


def _open_pidfd(pid: int) -> int | None:
    return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:  # those of real time have numbers only
        return f"signal {number}"


def _send_signal(pidfd: int, number: int) -> None:
    # Typing knows it on Linux only, where alone there are pidfds.
    if sys.platform == "linux":
        from signal import pidfd_send_signal

        pidfd_send_signal(pidfd, number)


# The worker's side.

_numbers = itertools.count(1)
_warned = threading.Event()


def expires(after: float, scope: str = "") -> AbstractContextManager[None]:
    """Let the agent end this process if what is inside takes more than `after` seconds.

        with holdfast.expires(after=60, scope="all-reduce"):
            step()

    `scope` names it in the agent's report; where it is empty, the file and the line do. Where
    no agent watches (TORCHELASTIC_ENABLE_FILE_TIMER=1 makes it do so), it warns once and does
    nothing.
    """
    seconds = check_timeout(after, "after")
    if seconds is None:
        raise UsageError(f"after {after!r}: must be seconds, zero or more")
    if not scope:
        caller = sys._getframe(1)
        scope = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
    # Numbered, so that two with one name, in threads or one inside the other, are two timers.
    return _expires(seconds, f"{scope[:500]}#{next(_numbers)}")


@contextmanager
def _expires(seconds: float, scope: str) -> Iterator[None]:
    path = current().timer_file
    at = SYSTEM_CLOCK.wall() + seconds
    announced = _announce(path, TimerRequest(os.getpid(), scope, at, SIGKILL))
    try:
        yield
    finally:
        if announced:
            _announce(path, TimerRequest(os.getpid(), scope, None))


def _announce(path: Path | None, request: TimerRequest) -> bool:
    """Write a request; False if no process reads it, which is logged once."""
    try:
        if path is None:
            raise FileNotFoundError(errno.ENOENT, "TORCHELASTIC_TIMER_FILE is not set")
        end = os.open(path, os.O_WRONLY | FIFO_FLAGS)
        try:
            if not stat.S_ISFIFO(os.fstat(end).st_mode):
                raise FileNotFoundError(errno.ENOENT, f"{path} is not a FIFO")
            _write(end, request.encode())
        finally:
            os.close(end)
    except OSError as error:
        if not _warned.is_set():
            _warned.set()
            _log.warning(
                "timers: those of this process are not watched: %s"
                " (TORCHELASTIC_ENABLE_FILE_TIMER=1 makes the agent watch them)",
                error.strerror,
            )
        return False
    return True


def _write(end: int, line: bytes) -> None:
    """Write a line in one piece, as soon as there is room for it."""
    deadline = Deadline.after(_WRITE_S)
    poll = select.poll()
    poll.register(end, select.POLLOUT)
    while True:
        try:
            os.write(end, line)
        except BlockingIOError:
            left = deadline.remaining()
            if not left:
                raise
            poll.poll(left * 1000)
        else:
            return
