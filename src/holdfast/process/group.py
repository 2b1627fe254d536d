"""The workers of one attempt: start them, hear of their ends, stop them.

One thread, the waiter, sleeps until a worker ends or something is due. It reaps, carries out the
escalation, and reports; the group's user only reads what is reported.

The kernel reports an end when it has freed all that the process held, which can be seconds after
its peers have seen their connections break, and have failed in turn. So the waiter also checks at
intervals for exiting workers: that is when a death without words has happened.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from signal import SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM
from typing import Protocol, TypeAlias, assert_never

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import HoldfastError, Unavailable, UsageError
from holdfast.process.outcome.errorfile import read_stack
from holdfast.process.outcome.failure import Failure, WorkerExited, clip
from holdfast.process.outcome.stacks import STACK_SIGNAL, writes_stacks
from holdfast.process.spec import Exit, GroupEnded, Launch
from holdfast.process.start.spawn import Starter, WorkerProcess
from holdfast.process.start.zygote import StartGivenUp
from holdfast.process.stop.containment import Containment
from holdfast.process.stop.escalation import (
    KILL_WAIT_S,
    Abandon,
    Ask,
    Effect,
    Escalation,
    Kill,
    SendSignal,
)
from holdfast.process.stop.handle import exit_of, is_ending, readable, still_running
from holdfast.process.stop.orphans import reap_orphans
from holdfast.records import dataclass

__all__ = ["LOOK_EVERY_S", "Streams", "WorkerGroup"]

SIGNALLED_TOGETHER_S = 0.5
"""How much later than a worker its agent may hear a signal that was sent to both."""
LOOK_EVERY_S = 0.5
"""How often to check for exiting workers: well within NOTICED_LATE_S, and cheap enough to idle."""

UNTOLD_S = 2.0
"""How long the end of a worker may stay untold by the forkserver, before the system is asked."""

_ENDING_SIGNALS = (SIGTERM, SIGINT, SIGHUP, SIGQUIT)
_TOLD_CHARS_MAX = 8 * 1024
_SLEEP_MAX_S = 3600.0  # in one go; the system takes no more than 24 days

_log = logging.getLogger("holdfast.process")

Examine: TypeAlias = Callable[[Launch, int, Exit], Failure]
Report: TypeAlias = Callable[[WorkerExited | GroupEnded], None]


class Streams(Protocol):
    """What the workers write to; see `AttemptLogs`."""

    def descriptors(self, local_rank: int) -> tuple[int | None, int | None]:
        """Return the standard output and error for a worker's process; None for our own."""
        ...

    def started(self, local_rank: int) -> None:
        """Hear that the worker's process has them."""
        ...


@dataclass(frozen=True, slots=True)
class _RunningWorker:
    launch: Launch
    process: WorkerProcess


class WorkerGroup:
    """The workers of one attempt, from `start` until `close`.

    `report` is called on the waiter's thread: with WorkerExited for each worker that ends, and with
    GroupEnded once, last, when none is left and what they left behind has been killed. It must only
    put what it gets on a queue. `examine(launch, pid, exit)` says why a worker failed; it runs on
    the same thread. At most `monitor_interval_s` after a worker began to end that is known.

    `start` and `close` belong to one thread; `stop`, `signal` and `pids` to any. The kernel kills
    the workers when the thread that called `start` ends.
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        logs: Streams,
        starter: Starter,
        containment: Containment,
        report: Report,
        *,
        examine: Examine,
        monitor_interval_s: float = LOOK_EVERY_S,
        kill_wait_s: float = KILL_WAIT_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._mark = containment.group_environment()
        self._launches = [_marked(launch, self._mark) for launch in launches]
        self._logs = logs
        self._starter = starter
        self._containment = containment
        self._report = report
        self._examine = examine
        self._monitor_interval_s = monitor_interval_s
        self._kill_wait_s = kill_wait_s
        self._clock = clock
        # What follows changes under the lock: no worker is reaped while it is being signalled.
        self._lock = threading.Lock()
        self._workers: dict[int, _RunningWorker] = {}
        self._escalation = Escalation(())
        self._early: list[tuple[int, float]] | None = []  # stops from before all had been started
        self._asked_at: float | None = None  # on the clock of the error files
        self._asked_by: set[int] = set()
        self._ending_at: dict[int, float] = {}  # by pid: workers that end unasked, and when
        self._ending: set[int] = set()  # the pids that are exiting, or have ended
        self._untold_since: dict[int, float] = {}
        self._hung: set[int] = set()  # the pids that were asked for their stacks
        self._started = False
        self._waiter: threading.Thread | None = None
        self._wake: tuple[int, int] | None = None
        self._abandoned: tuple[int, ...] = ()

    # What the agent does.

    def start(self) -> dict[int, int]:
        """Start all workers and return their pids by local rank, of those that end at once too.

        If one cannot be started, none is left and the reason is raised; but after a `stop` the end
        is reported, and there are no pids. Nor are there any if one fails while a forkserver does
        not start the next: the rest is not started then.
        """
        if self._started:
            raise UsageError("this WorkerGroup has been started already")
        self._started = True
        with self._lock:
            self._starter.begin(self._has_failed)
            if self._early:
                self._starter.interrupt()
        try:
            pids = self._start_all()
            self._start_waiter()
            self._starter.replenish()
        except BaseException as error:
            self._undo_start()
            if not (self._early and isinstance(error, HoldfastError)):
                raise
            self._report(GroupEnded(self._abandoned))
            return {}
        return pids

    def pids(self) -> dict[int, int]:
        """Return the pids of the workers that run, by local rank."""
        with self._lock:
            return {worker.launch.local_rank: pid for pid, worker in self._workers.items()}

    def signal(self, number: int) -> None:
        """Send a signal to every worker that runs, and to what it has started."""
        with self._lock:
            self._perform([SendSignal(number, tuple(self._workers))])

    def ask_stack(self, pid: int) -> bool:
        """Let a worker write its stacks to its file, if it is there and can; say whether it is."""
        with self._lock:  # it is not reaped meanwhile, so that the number is still its own
            if pid not in self._workers or not writes_stacks(pid):
                return False
            with contextlib.suppress(OSError):  # another user's by now
                os.kill(pid, STACK_SIGNAL)
                return True
        return False

    def stop(self, number: int, grace_s: float) -> None:
        """Begin to stop the workers, and return: the signal, KILL after the grace, then giving up.

        May be called again: the shorter grace wins. While the workers are still being started, it
        begins when they all have been; but a forkserver is not waited for.
        """
        with self._lock:
            self._look()
            if self._asked_at is None:
                self._asked_at = self._clock.wall()
            self._asked_by.add(number)
            if self._early is None:
                self._stop(number, grace_s)
            else:
                self._early.append((number, grace_s))
                self._starter.interrupt()
            if self._wake is not None:
                with contextlib.suppress(BlockingIOError):  # it has been woken often enough
                    os.write(self._wake[1], b".")

    def _stop(self, number: int, grace_s: float) -> None:
        self._perform(self._escalation.stop(number, grace_s, self._clock.monotonic()))

    def close(self) -> tuple[int, ...]:
        """Kill what runs, wait for its end, and return what could not be killed. Idempotent."""
        if self._waiter is not None:
            self.stop(SIGKILL, 0)
            self._waiter.join()  # bounded by the escalation
            self._waiter = None
        self._close_wake()
        return self._abandoned

    def _close_wake(self) -> None:
        with self._lock:
            wake, self._wake = self._wake, None
        for fd in wake or ():
            os.close(fd)

    # Starting.

    def _start_all(self) -> dict[int, int]:
        try:
            wanted = [(one, *self._logs.descriptors(one.local_rank)) for one in self._launches]
            with contextlib.closing(self._starter.start_all(wanted)) as processes:
                for launch, process in zip(self._launches, processes, strict=True):
                    self._note_start(launch, process)
        except StartGivenUp:
            return {}
        return self.pids()  # before any of them is reaped

    def _has_failed(self) -> bool:
        """Say whether a worker has failed, while others are still being started."""
        with self._lock:
            ends = [exit_of(pid) for pid in self._workers]
        return any(not exit_.ok for exit_ in ends if exit_ is not None)

    def _note_start(self, launch: Launch, process: WorkerProcess) -> None:
        with self._lock:
            self._workers[process.pid] = _RunningWorker(launch, process)
        self._containment.entered(process.pid)
        self._logs.started(launch.local_rank)

    def _start_waiter(self) -> None:
        try:
            with self._lock:
                self._wake = wake, _ = os.pipe()
                for fd in self._wake:
                    os.set_blocking(fd, False)
                self._escalation = Escalation(self._workers, self._kill_wait_s)
                early, self._early = self._early or (), None
                for number, grace_s in early:
                    self._stop(number, grace_s)
            waiter = threading.Thread(
                target=self._wait, args=(wake,), name="holdfast-waiter", daemon=True
            )
            waiter.start()
        except (OSError, RuntimeError) as error:
            raise Unavailable(f"cannot watch the workers: {error}") from error
        self._waiter = waiter

    def _undo_start(self) -> None:
        with self._lock:
            workers, self._workers = self._workers, {}
        for pid in workers:
            self._containment.signal(pid, SIGKILL)
        waited = {worker.process.fileno(): pid for pid, worker in workers.items()}
        stuck = {waited[fd] for fd in still_running(waited, self._kill_wait_s, self._clock)}
        for pid, worker in workers.items():
            if pid not in stuck:
                self._containment.left(pid)
                worker.process.reap()
            worker.process.close()
        self._close_wake()
        self._abandoned = self._containment.kill_leftovers(self._mark, stuck)

    # The waiter.

    def _wait(self, wake: int) -> None:
        try:
            self._wait_for_all(wake)
        except Exception:  # such as no descriptor left: a thread that waits for the end must wake
            _log.exception("the workers can no longer be watched: they are killed")
            self._give_up()
        self._report(GroupEnded(self._abandoned))

    def _give_up(self) -> None:
        """Kill the workers, of whose ends nothing will be heard, and name those that were there."""
        with self._lock:
            for pid, worker in self._workers.items():
                self._containment.signal(pid, SIGKILL)
                worker.process.close()
            self._abandoned = tuple(self._workers)
            self._workers.clear()
            self._escalation = Escalation(())

    def _wait_for_all(self, wake: int) -> None:
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as processes:
            for worker in self._workers.values():
                selector.register(worker.process, selectors.EVENT_READ, worker)
                processes.callback(worker.process.close)
            selector.register(wake, selectors.EVENT_READ)
            while self._workers:
                ready = selector.select(self._timeout())
                with self._lock:
                    if self._asked_at is None or not ready or self._is_due():
                        self._look()
                for key, _ in ready:
                    if key.data is None:
                        os.read(key.fd, 4096)
                    elif self._take_end(key.data):
                        selector.unregister(key.fileobj)
                for worker in self._find_untold():
                    if self._take_end(worker):
                        selector.unregister(worker.process)
                # Only now: a worker whose end had not been noticed must not be given up.
                with self._lock:
                    self._perform(self._escalation.tick(self._clock.monotonic()))
                if not ready:
                    reap_orphans()
        stuck = self._escalation.abandoned
        leftovers = self._containment.kill_leftovers(self._mark, stuck)
        self._abandoned = tuple(sorted({*stuck, *leftovers}))

    def _look(self) -> None:
        """Note the exiting workers; after a stop has begun, none counts as exiting unasked."""
        now = self._clock.wall()
        for pid, worker in self._workers.items():
            if readable(worker.process.fileno(), 0) or is_ending(pid):
                self._escalation.ending(pid)
                self._ending.add(pid)
                if self._asked_at is None:
                    self._ending_at.setdefault(pid, now)

    def _is_due(self) -> bool:
        """Say whether the escalation goes on now, which needs to know which workers are exiting."""
        wake_at = self._escalation.next_wake()
        return wake_at is not None and wake_at <= self._clock.monotonic()

    def _find_untold(self) -> list[_RunningWorker]:
        """Return the workers that have ended, by what the system says, and whose end was not told.

        A forkserver that is stopped tells nothing.
        """
        now = self._clock.monotonic()
        with self._lock:
            ended = {
                pid: worker
                for pid, worker in self._workers.items()
                if pid in self._ending and exit_of(pid) is not None
            }
            self._untold_since = {pid: self._untold_since.get(pid, now) for pid in ended}
            return [ended[pid] for pid, at in self._untold_since.items() if now >= at + UNTOLD_S]

    def _timeout(self) -> float:
        with self._lock:
            wake_at = self._escalation.next_wake()
        most = min(self._monitor_interval_s, _SLEEP_MAX_S)
        return most if wake_at is None else min(max(0.0, wake_at - self._clock.monotonic()), most)

    def _take_end(self, worker: _RunningWorker) -> bool:
        """Reap a worker that has ended and report it."""
        pid = worker.process.pid
        with self._lock:
            if pid not in self._workers:
                return True  # given up a moment ago, by a stop in another thread
            self._containment.left(pid)
            exit_ = worker.process.reap()
            if exit_ is None:
                return False
            del self._workers[pid]
            self._escalation.exited(pid)
            ending_at = self._ending_at.pop(pid, None)
        if pid in self._hung and exit_.code == -SIGKILL:
            _tell_stack(worker.launch, pid)
        if self._is_asked_soon(exit_):
            ending_at = None
        asked_at = self._asked_at if ending_at is None else None
        # A worker that ends as it was asked to, and says nothing, has not failed.
        silent = asked_at is not None and not os.path.lexists(worker.launch.error_file)
        failure = None if exit_.ok or silent else self._failure_of(worker.launch, pid, exit_)
        if failure is not None and ending_at is not None:
            failure = replace(failure, at=min(failure.at, ending_at))
        if failure is not None and asked_at is not None:
            failure = _before(failure, asked_at)
        asked = asked_at is not None
        self._report(WorkerExited(worker.launch.local_rank, pid, exit_, failure, asked))
        return True

    def _is_asked_soon(self, exit_: Exit) -> bool:
        """Say whether a signal that ended a worker makes the agent stop them all a moment later.

        A job may be ended by a signal to each of its processes: that is no failure.
        """
        numbers = {one for one in _ENDING_SIGNALS if exit_.code in (-one, 128 + one)}
        if not numbers or self._wake is None:
            return False
        if self._asked_at is None:
            readable(self._wake[0], SIGNALLED_TOGETHER_S)
        with self._lock:
            return bool(numbers & self._asked_by)

    def _failure_of(self, launch: Launch, pid: int, exit_: Exit) -> Failure:
        try:
            return self._examine(launch, pid, exit_)
        except Exception:  # a bug there must not hide a worker's end
            _log.exception("the failure of process %d cannot be examined", pid)
            return Failure(
                rank=launch.rank,
                local_rank=launch.local_rank,
                role=launch.role,
                host="",
                pid=pid,
                exit=exit_,
                at=self._clock.wall(),
                message=str(exit_),
            )

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendSignal(number, pids):
                    for pid in pids:
                        self._containment.signal(pid, number)
                case Ask(pids):
                    for pid in filter(writes_stacks, pids):
                        self._hung.add(pid)
                        with contextlib.suppress(OSError):  # another user's by now
                            os.kill(pid, STACK_SIGNAL)
                case Kill(pids):
                    for pid in pids:
                        self._containment.signal(pid, SIGKILL)
                    self._starter.interrupt()  # a forkserver that hangs would not tell their ends
                case Abandon(pids):
                    for pid in pids:
                        del self._workers[pid]
                    _log.error("processes %s were killed and still run", list(pids))
                case _:
                    assert_never(effect)


def _before(failure: Failure, asked_at: float) -> Failure | None:
    """Return the failure of a worker that was asked to end, if it had failed before that.

    It was exiting when our signal came: without the signal the exit code would have been Python's.
    """
    if failure.at >= asked_at:
        return None
    return failure if failure.exit.code >= 0 else replace(failure, exit=Exit(1))


def _tell_stack(launch: Launch, pid: int) -> None:
    """Show where a worker was that did not end when it was asked to; its file may not be kept."""
    if stack := read_stack(launch.stack_file):
        _log.warning(
            "the worker of rank %d (process %d) did not end in time and was killed; its stack:\n%s",
            launch.rank,
            pid,
            clip(stack.rstrip("\n"), _TOLD_CHARS_MAX),
        )


def _marked(launch: Launch, mark: dict[str, str]) -> Launch:
    return replace(launch, environment={**launch.environment, **mark})
